"""Confidence, correctness and entropy of a batch, differentiable in the logits: where most penalties start."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.losses.logprob import widen

# Below exp(-1000) a probability is 0 even in float64, so the bound changes no entropy; it replaces the log of a -inf logit.
_LEAST_LOG = -1e3


def confidence_and_correct(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return confidence :math:`c_i = \max_k q_{ik}` and correctness :math:`a_i \in \{0, 1\}`, each ``[B]``.

    Half precision is computed in float32. The predicted class is the first of those with the largest logit; the gradient
    of the confidence goes to it alone, and correctness has none.
    """
    scores = widen(logits)
    return top_of(scores.log_softmax(1), scores, labels)


def top_of(log_probs: Tensor, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return confidence and correctness as above where ``log_probs [B, C]`` are at hand."""
    # The arg-max is read from the logits: log-probabilities of near ties are rounded onto each other.
    top = logits.detach().argmax(1)
    confidence = log_probs.gather(1, top.unsqueeze(1)).squeeze(1).exp()
    return confidence, (top == labels).to(log_probs.dtype)


def entropy(log_probs: Tensor) -> Tensor:
    r"""Shannon entropy :math:`H_i = -\sum_k q_{ik} \log q_{ik}` ``[B]`` in nats, of ``log_probs [B, C]``; 0 log 0 is 0."""
    return -(log_probs.exp() * log_probs.clamp(min=_LEAST_LOG)).sum(1)


def full_precision(tensor: Tensor) -> torch.autocast:
    """Return a context in which autocast leaves products of matrices in the precision of their factors.

    Kernel weights rounded to bfloat16 are off by 0.4 %, more than the calibration errors to be measured.
    """
    return torch.autocast(tensor.device.type, enabled=False)
