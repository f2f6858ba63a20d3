"""Log-probabilities of the true class, from logits: the arithmetic that the per-sample losses share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Stands for a logit that is not there. Finite, and with a finite square in float32, so that a row whose other logits are all
# -inf (p = 1 exactly) has zero derivatives of both orders instead of inf * 0.
_ABSENT = -1e18


def widen(logits: Tensor) -> Tensor:
    """Return ``logits`` in a precision to compute in: float16 and bfloat16 become float32, others stay."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def log_sum_others(logits: Tensor, index: Tensor) -> Tensor:
    r"""Return :math:`\mathrm{LSE}_{j \ne y_i} z_{ij}` as ``[B, 1]``, with labels given as ``index [B, 1]`` (int64).

    Written out with a constant shift and in one buffer, since ``torch.logsumexp`` computes its exponentials a second time in
    backward and fresh memory is what such losses wait for.
    """
    others = logits.scatter(1, index, _ABSENT)
    shift = others.detach().amax(1, keepdim=True)
    return others.sub_(shift).exp_().sum(1, keepdim=True).log() + shift


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
    return (log_sum_others(logits, index) - logits.gather(1, index)).squeeze(1)


def minus_log_p(odds: Tensor) -> Tensor:
    """Return -log p of the true class, ``[B]``, from its log-odds: softplus, linear only where float64 cannot tell."""
    return F.softplus(odds, threshold=40.0)
