"""Log-probabilities of the true class, from logits: the arithmetic that the per-sample losses share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def widen(logits: Tensor) -> Tensor:
    """Return ``logits`` in a precision to compute in: float16 and bfloat16 become float32, others stay."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def true_class_log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Log-odds *against* the true class, :math:`t_i = \log\frac{1 - p_i}{p_i} = \mathrm{LSE}_{j \ne y_i} z_{ij} - z_{iy_i}`.

    Everything a focal loss needs is a function of this one number: :math:`\log p = \log\sigma(-t)` and
    :math:`\log(1 - p) = \log\sigma(t)`, both exact however close p comes to 0 or 1, where ``1 - softmax`` is rounded to 0
    from a logit gap of 17 on (float32).

    Args:
        logits: Scores ``[B, C]`` in float32 or float64.
        labels: Class indices ``[B]``.

    Returns:
        ``[B]``.
    """
    index = labels.long().unsqueeze(1)
    others = logits.scatter(1, index, float("-inf")).logsumexp(1)
    return others - logits.gather(1, index).squeeze(1)


def log_p_and_log_1mp(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p and log(1 - p) of the true class, each ``[B]``."""
    odds = true_class_log_odds(logits, labels)
    return F.logsigmoid(-odds), F.logsigmoid(odds)
