"""Brier loss: the squared distance between the predicted distribution and the target."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from calibrant.core.checks import check_logits
from calibrant.losses.base import Loss, Reduction, Shared
from calibrant.losses.logprob import widen


def brier_loss(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Squared distance between predicted probabilities and the target, summed over classes.

    With :math:`q_i = \mathrm{softmax}(z_i)` over C classes and label :math:`y_i`,

    .. math:: L_i = \sum_{k=1}^{C} (q_{ik} - [k = y_i])^2 .

    A soft target :math:`s_i` takes the place of :math:`[k = y_i]`. Sources disagree on the scale: this is the sum, neither
    halved nor divided by C, so that the range is 0 to 2.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``, or probabilities ``[B, C]``.

    Returns:
        ``[B]`` in [0, 2]. Raises ``ValueError`` if shapes disagree.

    Example:
        >>> import torch
        >>> brier_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor([0.5000])

    Reference:
        Brier, Monthly Weather Review 1950, eq. 2.
    """
    check_logits(logits, labels, where="brier_loss", soft_targets=True)
    probs = widen(logits).softmax(1)
    if labels.ndim == 2:
        return (probs - labels.to(probs.dtype)).square().sum(1)
    index = labels.long().unsqueeze(1)
    return probs.scatter_add(1, index, probs.new_full((1, 1), -1.0).expand_as(index)).square().sum(1)


class BrierLoss(Loss):
    """`brier_loss` as a module.

    Args:
        reduction: "mean", "sum" or "none".
        shared: ``ignore_index`` and ``weight``, as in `Loss`.
    """

    def __init__(self, *, reduction: Reduction = "mean", **shared: Unpack[Shared]) -> None:
        super().__init__(reduction=reduction, **shared)

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample, ``[B]``."""
        return brier_loss(logits, labels)
