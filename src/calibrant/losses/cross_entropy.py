"""Cross-entropy with label smoothing, the base of nearly every recipe."""

from __future__ import annotations

from typing import Unpack

import torch.nn.functional as F
from torch import Tensor

from calibrant.core.checks import check_logits
from calibrant.losses.base import Loss, Reduction, Shared
from calibrant.losses.labelled import Rows
from calibrant.losses.logprob import widen


def cross_entropy_loss(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    r"""Negative log-likelihood of the label, or of a target distribution, optionally smoothed.

    With :math:`q_i = \mathrm{softmax}(z_i)` over C classes, label :math:`y_i` and smoothing :math:`\epsilon`,

    .. math:: L_i = -\sum_{k=1}^{C} t_{ik} \log q_{ik}, \qquad t_{ik} = (1 - \epsilon)\,[k = y_i] + \epsilon / C .

    A soft target :math:`s_i` takes the place of :math:`[k = y_i]`. Sources disagree on the share of the true class: here, as
    in Szegedy et al. and ``torch.nn.CrossEntropyLoss``, it keeps :math:`1 - \epsilon + \epsilon / C`; code that spreads
    :math:`\epsilon'` over the C - 1 *other* classes (MDCA's) means :math:`\epsilon = \epsilon' C / (C - 1)`.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``, or probabilities ``[B, C]``.
        label_smoothing: Smoothing :math:`\epsilon` in [0, 1). 0 is plain cross-entropy; 0.05 and 0.1 are usual.

    Returns:
        ``[B]``, at least 0. Raises ``ValueError`` if shapes disagree.

    Example:
        >>> import torch
        >>> cross_entropy_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor([0.6931])

    Reference:
        Szegedy et al., CVPR 2016, section 7; Müller, Kornblith and Hinton, NeurIPS 2019.
    """
    check_logits(logits, labels, where="cross_entropy_loss", soft_targets=True)
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"cross_entropy_loss: `label_smoothing` must lie in [0, 1), got {label_smoothing!r}.")
    scores = widen(logits)
    target = labels.to(scores.dtype) if labels.ndim == 2 else labels.long()
    return F.cross_entropy(scores, target, reduction="none", label_smoothing=label_smoothing)


class CrossEntropyLoss(Loss):
    """`cross_entropy_loss` as a module.

    Args:
        label_smoothing: Smoothing in [0, 1).
        reduction: "mean", "sum" or "none".
        shared: ``ignore_index`` and ``weight``, as in `Loss`.
    """

    def __init__(self, *, label_smoothing: float = 0.0, reduction: Reduction = "mean", **shared: Unpack[Shared]) -> None:
        super().__init__(reduction=reduction, **shared)
        self.label_smoothing = label_smoothing

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample, ``[B]``."""
        return cross_entropy_loss(logits, labels, label_smoothing=self.label_smoothing)

    def _weighted(self, rows: Rows, weight: Tensor) -> tuple[Tensor, Tensor]:
        values, share = super()._weighted(rows, weight)
        if self.label_smoothing:
            # As torch has it: in a smoothed target every class has its own weight.
            scores, labels, smoothing = widen(rows.logits), rows.labels.long(), self.label_smoothing
            own = weight.to(scores.dtype)
            values = F.cross_entropy(scores, labels, weight=own, reduction="none", label_smoothing=smoothing)
        return values, share
