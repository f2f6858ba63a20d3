"""What objectives read from logits: probabilities of the true and the top class and entropy, differentiable at any logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.checks import check_logits, check_positive

# Stands for a logit that is not there. Finite, and with a finite square in float32, so that a row whose other logits are all
# -inf (p = 1 exactly) has zero derivatives of both orders instead of inf * 0.
_ABSENT = -1e18
# Below exp(-1000) a probability is 0 even in float64, so the bound changes no entropy; it replaces the log of a -inf logit.
_LEAST_LOG = -1e3


def checked(logits: Tensor, labels: Tensor, *, where: str, soft_targets: bool = False, **positive: float) -> Tensor:
    """Check the arguments of an objective, ``positive`` ones among them, and return the logits in a precision to compute in."""
    check_logits(logits, labels, where=where, soft_targets=soft_targets)
    for name, value in positive.items():
        check_positive(value, where=where, name=name)
    return widen(logits)


def check_share(value: float, *, where: str, name: str) -> None:
    """Raise unless ``value`` lies in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{where}: `{name}` must lie in [0, 1), got {value!r}.")


def widen(logits: Tensor) -> Tensor:
    """Return ``logits`` in a precision to compute in: float16 and bfloat16 become float32, others stay."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def log_sum_others(logits: Tensor, index: Tensor) -> Tensor:
    r"""Return :math:`\mathrm{LSE}_{j \ne y_i} z_{ij}` as ``[B, 1]``, with labels given as ``index [B, 1]`` (int64)."""
    others = logits.scatter(1, index, _ABSENT)
    # Shifted by hand: the gradient of `logsumexp` subtracts its result again, and loses the digits that large logits cost it.
    shift = others.detach().amax(1, keepdim=True)
    return (others - shift).exp().sum(1, keepdim=True).log() + shift


def true_class_log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Log-odds ``[B]`` *against* the true class, :math:`t_i = \log\frac{1 - p_i}{p_i}`.

    Focal losses need no other number: :math:`\log p = \log\sigma(-t)` and :math:`\log(1 - p) = \log\sigma(t)` are exact however
    close p comes to 0 or 1, where ``1 - softmax`` is rounded to 0 from a logit gap of 17 on (float32).
    """
    index = labels.long().unsqueeze(1)
    return (log_sum_others(logits, index) - logits.gather(1, index)).squeeze(1)


def minus_log_p(odds: Tensor) -> Tensor:
    """Return -log p of the true class, ``[B]``, from its log-odds: softplus, linear only where float64 cannot tell."""
    return F.softplus(odds, threshold=40.0)


def confidence_and_correct(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return confidence :math:`c_i = \max_k q_{ik}` and correctness :math:`a_i \in \{0, 1\}`, each ``[B]``.

    The first of the most probable classes is the predicted one; the gradient of the confidence goes to it alone.
    """
    log_confidence, top = scores.log_softmax(1).max(1)
    return log_confidence.exp(), (top == labels).to(log_confidence.dtype)


def top_of(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return confidence and correctness as above where ``probs [B, C]`` are at hand."""
    confidence, top = probs.max(1)
    return confidence, (top == labels).to(probs.dtype)


def probs_and_entropy(scores: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the softmax ``[B, C]`` and its entropy :math:`-\sum_k q_{ik} \log q_{ik}` ``[B]`` in nats; 0 log 0 is 0."""
    log_probs = scores.log_softmax(1)
    probs = log_probs.exp()
    return probs, -(probs * log_probs.clamp(min=_LEAST_LOG)).sum(1)


def full_precision(tensor: Tensor) -> torch.autocast:
    """Return a context in which autocast leaves products of matrices in the precision of their factors.

    Kernel weights rounded to bfloat16 are off by 0.4 %, more than the calibration errors to be measured.
    """
    return torch.autocast(tensor.device.type, enabled=False)
