"""Confidence, correctness and entropy of a batch, differentiable in the logits: where most penalties start."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.losses.logprob import widen

# Below exp(-1000) a probability is 0 even in float64, so the bound changes no entropy; it replaces the log of a -inf logit.
_LEAST_LOG = -1e3


def confidence_and_correct(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return confidence :math:`c_i = \max_k q_{ik}` and correctness :math:`a_i \in \{0, 1\}`, each ``[B]``.

    Half precision is computed in float32. The predicted class is the first of the most probable; the gradient
    of the confidence goes to it alone, and correctness has none.
    """
    # The largest log-probability, not probability: PyTorch's softmax of few classes takes twice the time of its logarithm.
    log_confidence, top = widen(logits).log_softmax(1).max(1)
    return log_confidence.exp(), (top == labels).to(log_confidence.dtype)


def top_of(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return confidence and correctness as above where ``probs [B, C]`` are at hand."""
    confidence, top = probs.max(1)
    return confidence, (top == labels).to(probs.dtype)


def probs_and_entropy(logits: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the softmax ``[B, C]`` and its entropy :math:`-\sum_k q_{ik} \log q_{ik}` ``[B]`` in nats; 0 log 0 is 0."""
    log_probs = logits.log_softmax(1)
    probs = log_probs.exp()
    return probs, -(probs * log_probs.clamp(min=_LEAST_LOG)).sum(1)


def full_precision(tensor: Tensor) -> torch.autocast:
    """Return a context in which autocast leaves products of matrices in the precision of their factors.

    Kernel weights rounded to bfloat16 are off by 0.4 %, more than the calibration errors to be measured.
    """
    return torch.autocast(tensor.device.type, enabled=False)
