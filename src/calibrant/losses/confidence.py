"""Confidence, correctness and entropy of a batch, differentiable in the logits: where most penalties start."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.core.closed_form import Array, Result, closed_form, has_plain_values
from calibrant.losses.logprob import widen
from calibrant.losses.rows import confidence_of_rows

# Below exp(-1000) a probability is 0 even in float64, so the bound changes no entropy; it replaces the log of a -inf logit.
_LEAST_LOG = -1e3


def confidence_and_correct(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return confidence :math:`c_i = \max_k q_{ik}` and correctness :math:`a_i \in \{0, 1\}`, each ``[B]``.

    Half precision is computed in float32. The predicted class is the first of the most probable; the gradient
    of the confidence goes to it alone, and correctness has none.
    """
    scores = widen(logits)
    if not has_plain_values(scores, labels):
        return confidence_and_correct_by_torch(scores, labels)
    # numpy finds the largest of a thousand logits in a tenth of torch's time.
    index = torch.from_numpy(scores.detach().numpy().argmax(1))
    return closed_form(_probability_of, _confidence_by_numpy, scores, index), (index == labels).to(scores.dtype)


def confidence_and_correct_by_torch(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same by differentiable operations alone, from float32 or float64 ``scores [B, C]``."""
    # The largest log-probability, not probability: PyTorch's softmax of few classes takes twice the time of its logarithm.
    log_confidence, top = scores.log_softmax(1).max(1)
    return log_confidence.exp(), (top == labels).to(scores.dtype)


def _probability_of(scores: Tensor, index: Tensor) -> Tensor:
    return scores.log_softmax(1).gather(1, index.unsqueeze(1)).squeeze(1).exp()


def _confidence_by_numpy(scores: Array, index: Array) -> Result | None:
    found = confidence_of_rows(scores, index)
    return None if found is None else (found[0], lambda grad: (found[1](grad),))


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
