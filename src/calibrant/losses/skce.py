"""SKCE: an unbiased estimate of the squared kernel calibration error, from pairs of different samples."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from calibrant.core.checks import check_logits, check_positive
from calibrant.core.kernels import gaussian_exponents
from calibrant.losses.base import Penalty, Shared
from calibrant.losses.confidence import confidence_and_correct, full_precision


def skce_penalty(logits: Tensor, labels: Tensor, *, bandwidth: float = 0.1) -> Tensor:
    r"""Mean product of the gaps of two different samples, weighted by how close their confidences are.

    With confidence :math:`c_i = \max_k q_{ik}`, :math:`q_i = \mathrm{softmax}(z_i)`, correctness
    :math:`a_i = [\arg\max_k q_{ik} = y_i]` (no gradient) and a batch of B,

    .. math:: \mathrm{SKCE} = \frac{1}{B (B - 1)} \sum_{i \ne j} (a_i - c_i)(a_j - c_j)\, e^{-(c_i - c_j)^2 / 2h^2}

    with :math:`h` the ``bandwidth``. Without the pairs i = j its expectation is 0 for a calibrated model at any batch size
    (so single values may be negative), where MMCE, SECE and the binned errors are positive. It is the top-label form of
    the estimate of Widmann et al., who define it for whole probability vectors and matrix-valued kernels.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        bandwidth: Standard deviation ``h`` of the Gaussian kernel, > 0. 0.1 is our choice, about 1.5 bins of a 15-bin ECE.

    Returns:
        Scalar ``[]`` in ``[-1, 1]``; 0 in expectation is best. One sample makes no pair: 0. Raises ``ValueError`` if shapes
        disagree or the bandwidth is not positive.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # gaps 0.1192 and -0.8808 at the same confidence
        >>> skce_penalty(logits, torch.tensor([0, 1]))
        tensor(-0.1050)

    Reference:
        Widmann, Lindsten and Zachariah, "Calibration tests in multi-class classification", NeurIPS 2019, the estimator
        :math:`\widehat{\mathrm{SKCE}}_{uq}`. Others cite table 1 for it.
    """
    where = "skce_penalty"
    check_logits(logits, labels, where=where)
    check_positive(bandwidth, where=where, name="bandwidth")
    confidence, correct = confidence_and_correct(logits, labels)
    gap = correct - confidence
    kernel = gaussian_exponents(confidence, bandwidth=bandwidth).exp()
    pairs = max(len(gap) * (len(gap) - 1), 1)
    with full_precision(gap):
        return (gap @ (kernel @ gap) - gap @ gap) / pairs


class SKCE(Penalty):
    """`skce_penalty` as a module.

    Args:
        bandwidth: Standard deviation of the Gaussian kernel.
        shared: ``ignore_index``, as in `Penalty`.
    """

    def __init__(self, *, bandwidth: float = 0.1, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.bandwidth = bandwidth

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return skce_penalty(logits, labels, bandwidth=self.bandwidth)
