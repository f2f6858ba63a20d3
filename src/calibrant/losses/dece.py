"""DECE: expected calibration error with soft bins and a soft accuracy."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from calibrant.core.checks import check_count, check_logits, check_positive
from calibrant.core.soft_accuracy import all_pairs_accuracy
from calibrant.losses.base import Penalty, Shared
from calibrant.losses.confidence import top_of
from calibrant.losses.logprob import widen

# Added to every membership by the authors' code, which then divides by 1 + (M + 1) times it.
_MEMBERSHIP_EPS = 1e-6


def dece_penalty(
    logits: Tensor,
    labels: Tensor,
    *,
    n_bins: int = 15,
    bin_temperature: float = 0.01,
    sharpness: float = 100.0,
) -> Tensor:
    r"""Expected calibration error made differentiable: soft bin membership and soft accuracy.

    With confidence :math:`c_i = \max_k q_{ik}`, :math:`q_i = \mathrm{softmax}(z_i)`, soft accuracy :math:`\pi_i`
    (`all_pairs_accuracy`), M bins and memberships

    .. math:: u_{im} = \mathrm{softmax}_m \frac{m\,c_i - \sum_{l=0}^{m-1} l/M}{t}, \quad m = 1 \dots M, \qquad
        \mathrm{DECE} = \sum_{m=1}^{M} \frac{S_m}{B} \bigl| A_m - C_m \bigr|
        = \frac{1}{B} \sum_{m=1}^{M} \Bigl| \sum_{i=1}^{B} u_{im} (\pi_i - c_i) \Bigr|

    where :math:`S_m = \sum_i u_{im}`, :math:`A_m` and :math:`C_m` are the u-weighted means of accuracy and confidence, and
    :math:`t` is the ``bin_temperature``. Neighbouring memberships are equal exactly at the edges m/M, so for t → 0 and an
    infinite sharpness this is ECE over M equal-width bins. As in the authors' code, u becomes
    :math:`(u + 10^{-6}) / (1 + (M + 1) 10^{-6})`. The gradient flows through u, c and :math:`\pi`.

    The released code wraps the sigmoid of the soft accuracy in a function that can be differentiated once only, and builds
    all pairs of classes, O(B C²); here it is twice differentiable in O(B C + B M).

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        n_bins: Number of bins ``M``; 15 in the released code.
        bin_temperature: Softness ``t`` of the bins, > 0; 0.01 in the released code.
        sharpness: Slope of the soft accuracy, > 0; 100 in the released code.

    Returns:
        Scalar ``[]`` in ``[0, 1]``; 0 is best. Raises ``ValueError`` if shapes disagree or a number is out of range.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # both with confidence 0.8808, one of them right
        >>> dece_penalty(logits, torch.tensor([0, 1]))
        tensor(0.3808)

    Reference:
        Bohdal, Yang and Hospedales, "Meta-calibration: learning of model calibration using differentiable expected
        calibration error", TMLR 2023; bins after Yang, Morillo and Hospedales, "Deep neural decision trees", 2018,
        eqs. 1 and 2.
    """
    where = "dece_penalty"
    check_logits(logits, labels, where=where)
    check_count(n_bins, where=where, name="n_bins")
    check_positive(bin_temperature, where=where, name="bin_temperature")
    scores = widen(logits)
    probs = scores.softmax(1)
    confidence, _ = top_of(probs, labels)
    accuracy = all_pairs_accuracy(probs, labels, sharpness=sharpness)
    member = soft_bins(confidence, n_bins=n_bins, bin_temperature=bin_temperature)
    member = (member + _MEMBERSHIP_EPS) / (1 + (n_bins + 1) * _MEMBERSHIP_EPS)
    return (member * (accuracy - confidence).unsqueeze(1)).mean(0).abs().sum()


def soft_bins(confidence: Tensor, *, n_bins: int, bin_temperature: float) -> Tensor:
    """Membership ``[B, M]`` of every confidence in the M equal-width bins, rows summing to one (formula: `dece_penalty`)."""
    m = torch.arange(1, n_bins + 1, dtype=confidence.dtype, device=confidence.device)
    below = m * (m - 1) / (2 * n_bins)
    return ((confidence.unsqueeze(1) * m - below) / bin_temperature).softmax(1)


class DECE(Penalty):
    """`dece_penalty` as a module.

    Args:
        n_bins: Number of bins.
        bin_temperature: Softness of the bins.
        sharpness: Slope of the soft accuracy.
        shared: ``ignore_index``, as in `Penalty`.
    """

    def __init__(
        self, *, n_bins: int = 15, bin_temperature: float = 0.01, sharpness: float = 100.0, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(**shared)
        self.n_bins = n_bins
        self.bin_temperature = bin_temperature
        self.sharpness = sharpness

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return dece_penalty(logits, labels, n_bins=self.n_bins, bin_temperature=self.bin_temperature, sharpness=self.sharpness)
