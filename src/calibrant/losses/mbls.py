"""Margin-based label smoothing: a hinge on the distance of every logit from the largest."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from calibrant.core.checks import check_logits
from calibrant.losses.base import Penalty, Shared
from calibrant.losses.logprob import widen


def mbls_penalty(logits: Tensor, labels: Tensor, *, margin: float = 10.0) -> Tensor:
    r"""Mean amount by which logits fall behind the largest one by more than a margin.

    With logits :math:`z_{ik}` of a batch of B with C classes and m the ``margin``,

    .. math:: P = \frac{1}{B C} \sum_{i=1}^{B} \sum_{k=1}^{C} \bigl[ \max_j z_{ij} - z_{ik} - m \bigr]_+ .

    The gradient flows into the largest logit as well, shared evenly where several tie. The mean runs over classes too, as
    in the released code. The weight that goes with it is 0.1. ``margin=0`` is the linear penalty without margin, and an
    infinite margin none at all. Labels are not looked at.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``; checked and otherwise unused.
        margin: Distance ``m`` >= 0 left unpunished; 10 in the released configuration (6 for CIFAR-10 in the paper).

    Returns:
        Scalar ``[]``, at least 0; 0 where all logits are within the margin. Raises ``ValueError`` if shapes disagree or the
        margin is negative.

    Example:
        >>> mbls_penalty(torch.tensor([[9.0, 3.0, 0.0]]), torch.tensor([0]), margin=5)  # (0 + 1 + 4) / 3
        tensor(1.6667)

    Reference:
        Liu et al., "The devil is in the margin: margin-based label smoothing for network calibration", CVPR 2022.
    """
    where = "mbls_penalty"
    check_logits(logits, labels, where=where)
    if not margin >= 0:
        raise ValueError(f"{where}: `margin` must be a number >= 0, got {margin!r}.")
    scores = widen(logits)
    return torch.relu(scores.amax(1, keepdim=True) - margin - scores).mean()


class MbLS(Penalty):
    """`mbls_penalty` as a module.

    Args:
        margin: Distance from the largest logit left unpunished.
        shared: ``ignore_index``, as in `Penalty`.
    """

    def __init__(self, *, margin: float = 10.0, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.margin = margin

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return mbls_penalty(logits, labels, margin=self.margin)
