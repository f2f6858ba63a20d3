"""Soft-binned ECE and its label-binned sibling."""

from __future__ import annotations

from typing import Literal, TypeAlias, Unpack

import torch
from torch import Tensor

from calibrant.core.checks import check_count, check_logits, check_positive
from calibrant.losses.base import Penalty, Shared
from calibrant.losses.confidence import confidence_and_correct

Order: TypeAlias = Literal[1, 2]
# Least total membership by which a bin's sums are divided, and share of uniform membership in the label-binned form: both
# as in the authors' code.
_LEAST_MASS = 1e-5
_UNIFORM_SHARE = 1e-5
# Under the root; the authors' code has none and its gradient is NaN at exactly 0.
_ROOT_EPS = 1e-12


def sb_ece_penalty(logits: Tensor, labels: Tensor, *, n_bins: int = 15, bin_temperature: float = 0.01, p: Order = 2) -> Tensor:
    r"""Expected calibration error with a soft membership of every sample in every bin.

    With confidence :math:`c_i = \max_k q_{ik}`, :math:`q_i = \mathrm{softmax}(z_i)`, correctness
    :math:`a_i = [\arg\max_k q_{ik} = y_i]` (no gradient), bin centres :math:`\xi_m = (m - 1/2)/M` and memberships

    .. math:: u_{im} = \mathrm{softmax}_m \bigl( -(c_i - \xi_m)^2 / T \bigr), \qquad
        \mathrm{SB\text{-}ECE}_p = \Bigl( \sum_{m=1}^{M} \frac{S_m}{B} \bigl| A_m - C_m \bigr|^p \Bigr)^{1/p}

    where :math:`S_m = \sum_i u_{im}`, :math:`A_m` and :math:`C_m` are the u-weighted means of correctness and confidence
    (sums divided by at least 1e-5), and :math:`T` is the ``bin_temperature``. The root of p = 2 is taken as
    :math:`\sqrt{x + 10^{-12}}`; the released code has the bare root, whose gradient is NaN at 0.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        n_bins: Number of bins ``M``; 15, as usual for ECE.
        bin_temperature: Softness ``T`` of the bins, > 0. The paper tunes it; 0.01 lets about two bins share a sample. The
            released code can derive it from a decay d between bins as 1 / (ln(d) M²).
        p: Order of the norm: 1, or 2 as in the paper and the released code.

    Returns:
        Scalar ``[]`` in ``[0, 1]``; 0 is best. Raises ``ValueError`` if shapes disagree or a number is out of range.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # both with confidence 0.8808, one of them right
        >>> sb_ece_penalty(logits, torch.tensor([0, 1]))
        tensor(0.3808)

    Reference:
        Karandikar et al., "Soft calibration objectives for neural networks", NeurIPS 2021, eq. 11.
    """
    where = "sb_ece_penalty"
    check_logits(logits, labels, where=where)
    _check_bins(n_bins, bin_temperature, where=where)
    if p not in (1, 2):
        raise ValueError(f"{where}: `p` must be 1 or 2, got {p!r}.")
    confidence, correct = confidence_and_correct(logits, labels)
    member = _member(confidence, n_bins=n_bins, bin_temperature=bin_temperature, lowest=0.0)
    mass = member.sum(0)
    gap = (member * (correct - confidence).unsqueeze(1)).sum(0) / mass.clamp(min=_LEAST_MASS)
    share = mass / len(confidence)
    if p == 1:
        return (share * gap.abs()).sum()
    return torch.sqrt((share * gap.square()).sum() + _ROOT_EPS)


def label_binned_sb_ece_penalty(logits: Tensor, labels: Tensor, *, n_bins: int = 15, bin_temperature: float = 0.01) -> Tensor:
    r"""Squared soft-binned ECE in which each confidence is compared with the accuracy of its bins.

    In the notation of `sb_ece_penalty`, but with bins dividing [1/C, 1] and memberships
    :math:`\tilde u = (1 - 10^{-5})\,u + 10^{-5} / M`,

    .. math:: L = \frac{1}{B} \sum_{i=1}^{B} \sum_{m=1}^{M} \tilde u_{im} (\tilde A_m - c_i)^2

    where :math:`\tilde A_m` is the :math:`\tilde u`-weighted mean of correctness in bin m. There is no root. It is the
    form the authors use to recalibrate after training.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        n_bins: Number of bins ``M``.
        bin_temperature: Softness ``T`` of the bins, > 0; as in `sb_ece_penalty`.

    Returns:
        Scalar ``[]`` in ``[0, 1]``; 0 is best. Raises ``ValueError`` if shapes disagree or a number is out of range.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # both with confidence 0.8808, one of them right
        >>> label_binned_sb_ece_penalty(logits, torch.tensor([0, 1]))  # 0.3808 squared
        tensor(0.1450)

    Reference:
        Karandikar et al., NeurIPS 2021, eq. 12.
    """
    where = "label_binned_sb_ece_penalty"
    check_logits(logits, labels, where=where)
    _check_bins(n_bins, bin_temperature, where=where)
    confidence, correct = confidence_and_correct(logits, labels)
    member = _member(confidence, n_bins=n_bins, bin_temperature=bin_temperature, lowest=1 / logits.shape[1])
    member = (1 - _UNIFORM_SHARE) * member + _UNIFORM_SHARE / n_bins
    accuracy = (member * correct.unsqueeze(1)).sum(0) / member.sum(0)
    return (member * (accuracy - confidence.unsqueeze(1)).square()).sum() / len(confidence)


def _member(confidence: Tensor, *, n_bins: int, bin_temperature: float, lowest: float) -> Tensor:
    """Membership ``[B, M]`` in bins that divide ``[lowest, 1]``."""
    step = torch.arange(n_bins, dtype=confidence.dtype, device=confidence.device)
    centre = lowest + (step + 0.5) * ((1 - lowest) / n_bins)
    return ((confidence.unsqueeze(1) - centre).square() / -bin_temperature).softmax(1)


def _check_bins(n_bins: int, bin_temperature: float, *, where: str) -> None:
    check_count(n_bins, where=where, name="n_bins")
    check_positive(bin_temperature, where=where, name="bin_temperature")


class SBECE(Penalty):
    """`sb_ece_penalty` as a module.

    Args:
        n_bins: Number of bins.
        bin_temperature: Softness of the bins.
        p: Order of the norm: 1 or 2.
        shared: ``ignore_index``, as in `Penalty`.
    """

    def __init__(self, *, n_bins: int = 15, bin_temperature: float = 0.01, p: Order = 2, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.n_bins = n_bins
        self.bin_temperature = bin_temperature
        self.p: Order = p

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return sb_ece_penalty(logits, labels, n_bins=self.n_bins, bin_temperature=self.bin_temperature, p=self.p)


class LabelBinnedSBECE(Penalty):
    """`label_binned_sb_ece_penalty` as a module.

    Args:
        n_bins: Number of bins.
        bin_temperature: Softness of the bins.
        shared: ``ignore_index``, as in `Penalty`.
    """

    def __init__(self, *, n_bins: int = 15, bin_temperature: float = 0.01, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.n_bins = n_bins
        self.bin_temperature = bin_temperature

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return label_binned_sb_ece_penalty(logits, labels, n_bins=self.n_bins, bin_temperature=self.bin_temperature)
