"""ACLS: adaptive and conditional label smoothing, as a penalty on logits."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from calibrant.core.checks import check_logits
from calibrant.losses.base import Penalty, Shared
from calibrant.losses.logprob import widen


def acls_penalty(
    logits: Tensor,
    labels: Tensor,
    *,
    margin: float = 10.0,
    top_weight: float = 1.0,
    rest_weight: float = 0.1,
) -> Tensor:
    r"""Squared hinge on a large top logit, and on the logits that fall far behind it.

    With logits :math:`z_{ik}` of a batch of B with C classes, :math:`\hat z_i = \max_k z_{ik}`, sg a stop of the gradient
    and m the ``margin``,

    .. math:: R = \frac{\lambda_1}{B} \sum_{i=1}^{B} \bigl[ \hat z_i - m \bigr]_+^2
        + \frac{\lambda_2}{B (C - 1)} \sum_{i=1}^{B} \sum_{k:\, z_{ik} < \hat z_i}
        \bigl[ \mathrm{sg}(\hat z_i) - z_{ik} - m \bigr]_+^2

    with :math:`\lambda_1` the ``top_weight`` and :math:`\lambda_2` the ``rest_weight``. As in the released code, every logit
    that ties for the largest counts in the first sum. The weight that goes with it is 0.1. Labels are not looked at.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``; checked and otherwise unused.
        margin: ``m`` >= 0; 10 in the released code (its Tiny-ImageNet setting).
        top_weight: :math:`\lambda_1` >= 0; 1 in the released code.
        rest_weight: :math:`\lambda_2` >= 0; 0.1 in the released code.

    Returns:
        Scalar ``[]``, at least 0. Raises ``ValueError`` if shapes disagree or a number is negative.

    Example:
        >>> acls_penalty(torch.tensor([[4.0, 1.0, -2.0]]), torch.tensor([0]), margin=2)  # 2² + 0.1 (1² + 4²) / 2
        tensor(4.8500)

    Reference:
        Park et al., "ACLS: adaptive and conditional label smoothing for network calibration", ICCV 2023.
    """
    where = "acls_penalty"
    check_logits(logits, labels, where=where)
    for name, value in (("margin", margin), ("top_weight", top_weight), ("rest_weight", rest_weight)):
        if not value >= 0:
            raise ValueError(f"{where}: `{name}` must be a number >= 0, got {value!r}.")
    scores = widen(logits)
    batch, num_classes = scores.shape
    largest = scores.amax(1, keepdim=True)
    # Ties with the largest are at distance 0 and so drop out of the second sum by themselves; in the first they count.
    ties = (scores.detach() == largest.detach()).sum(1, keepdim=True)
    top = (ties * torch.relu(largest - margin).square()).sum() / batch
    rest = torch.relu(largest.detach() - margin - scores).square().sum() / (batch * (num_classes - 1))
    return top_weight * top + rest_weight * rest


class ACLS(Penalty):
    """`acls_penalty` as a module.

    Args:
        margin: Size of the top logit, and distance from it, left unpunished.
        top_weight: Weight of the term on the top logit.
        rest_weight: Weight of the term on the others.
        shared: ``ignore_index``, as in `Penalty`.
    """

    def __init__(
        self, *, margin: float = 10.0, top_weight: float = 1.0, rest_weight: float = 0.1, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(**shared)
        self.margin = margin
        self.top_weight = top_weight
        self.rest_weight = rest_weight

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return acls_penalty(logits, labels, margin=self.margin, top_weight=self.top_weight, rest_weight=self.rest_weight)
