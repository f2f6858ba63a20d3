"""Inverse focal loss, which puts more weight on samples that are already probable."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from calibrant.core.checks import check_logits
from calibrant.losses.base import Loss, Reduction, Shared
from calibrant.losses.cross_entropy import cross_entropy_loss
from calibrant.losses.focal import Gamma, check_gamma


def inverse_focal_loss(logits: Tensor, labels: Tensor, *, gamma: Gamma) -> Tensor:
    r"""Cross-entropy scaled up where the true class is already probable.

    With :math:`p_i = \mathrm{softmax}(z_i)_{y_i}` the probability of the true class,

    .. math:: L_i = -(1 + p_i)^{\gamma_i} \log p_i .

    It makes a network *more* confident, for use with a post-hoc calibrator, and is the branch of negative gamma in AdaFocal.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        gamma: Strength, at least 0: a number, or a tensor ``[]`` or ``[B]``. 0 is cross-entropy. It has no default: the
            source names none, and re-implementations default to 0, which is no inverse focal loss.

    Returns:
        ``[B]``, at least 0. Raises ``ValueError`` if shapes disagree.

    Example:
        >>> inverse_focal_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), gamma=2)
        tensor([1.5596])

    Reference:
        Wang, Feng and Zhang, "Rethinking Calibration of Deep Neural Networks: Do Not Be Afraid of Overconfidence",
        NeurIPS 2021, section 5.2.
    """
    check_logits(logits, labels, where="inverse_focal_loss")
    strength = check_gamma(gamma, logits, where="inverse_focal_loss")
    surprise = cross_entropy_loss(logits, labels)
    return torch.exp(strength * torch.log1p(torch.exp(-surprise))) * surprise


class InverseFocalLoss(Loss):
    """`inverse_focal_loss` as a module.

    Args:
        gamma: Strength, at least 0.
        reduction: "mean", "sum" or "none".
        shared: ``ignore_index`` and ``weight``, as in `Loss`.
    """

    def __init__(self, *, gamma: float, reduction: Reduction = "mean", **shared: Unpack[Shared]) -> None:
        super().__init__(reduction=reduction, **shared)
        self.gamma = gamma

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample, ``[B]``."""
        return inverse_focal_loss(logits, labels, gamma=self.gamma)
