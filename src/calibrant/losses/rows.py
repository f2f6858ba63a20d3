"""What closed forms need of every row of logits, in numpy: exponentials, softmax, confidence, entropy.

The differentiable forms of the same are in `logprob` and `confidence`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from calibrant.core.closed_form import Array

# Sums of exponentials between these are exact to rounding in float32, and so are ratios of two. Logits within +-34 are.
_LEAST_SUM, _LARGEST_SUM = 1e-15, 1e15
# From this size on torch shares the work among its threads.
_THREADED = 65536


def exponentials(scores: Array) -> Array:
    """``exp(scores)``, new and contiguous: by numpy, in half of torch's time, unless torch has threads to share it among.

    Not shifted by the largest score: ask `in_range` whether the sums are fit for use.
    """
    if scores.size < _THREADED or torch.get_num_threads() == 1:
        with np.errstate(over="ignore"):
            return np.exp(scores, order="C")
    return torch.from_numpy(scores).exp().contiguous().numpy()


def in_range(*sums: Array) -> bool:
    """Whether no sum of exponentials overflowed, or was rounded to few digits; False if one is NaN."""
    return all(np.minimum.reduce(s) > _LEAST_SUM and np.maximum.reduce(s) < _LARGEST_SUM for s in sums)


def row_sums(values: Array) -> Array:
    """Sums ``[B]`` of ``values [B, C]``; numpy takes three times as long for short rows."""
    return torch.from_numpy(values).sum(1).numpy()


def scale_rows(values: Array, factors: Array) -> None:
    """Multiply every row of ``values [B, C]`` by one of ``factors [B]``, in place."""
    torch.from_numpy(values).mul_(torch.from_numpy(factors).unsqueeze(1))


def flat_positions(columns: Array, num_classes: int) -> Array:
    """Positions of one column per row in a flattened ``[B, C]`` array."""
    return np.arange(0, len(columns) * num_classes, num_classes) + columns


def confidence_of_rows(scores: Array, index: Array) -> tuple[Array, Callable[[Array], Array]] | None:
    """Softmax probability ``[B]`` of the largest class ``index [B]``, and the way back from its gradient: c (onehot - q).

    None where the exponentials leave their range.
    """
    weights = exponentials(scores)
    at, flat = flat_positions(index, scores.shape[1]), weights.reshape(-1)
    total = row_sums(weights)
    if not in_range(total):
        return None
    confidence = flat[at] / total

    def pull(grad: Array) -> Array:
        slope = grad * confidence
        scale_rows(weights, slope / -total)
        flat[at] += slope
        return weights

    return confidence, pull


def entropy_of_rows(scores: Array, index: Array) -> tuple[Array, Array, Callable[[Array, Array], Array]] | None:
    """Probability of the largest class ``index [B]`` and entropy in nats, each ``[B]``, and the way back from their gradients.

    Shifted by the largest score, both terms of the entropy, the log of the sum and the mean gap, are at least 0: nothing
    cancels however small it is. None where a score is not finite.
    """
    lead = scores[np.arange(len(index)), index]
    gaps = (torch.from_numpy(scores) - torch.from_numpy(lead).unsqueeze(1)).contiguous().numpy()
    weights = exponentials(gaps)
    total = row_sums(weights)
    with np.errstate(invalid="ignore"):
        mean_gap = np.einsum("ij,ij->i", weights, gaps) / total
    if not np.isfinite(mean_gap).all():
        return None

    def pull(by_probability: Array, by_entropy: Array) -> Array:
        slope = by_probability / total
        gradient, factors = torch.from_numpy(gaps), torch.from_numpy(by_entropy / -total)
        shifts = torch.from_numpy((by_entropy * mean_gap - slope) / total)
        gradient.mul_(factors.unsqueeze(1)).add_(shifts.unsqueeze(1)).mul_(torch.from_numpy(weights))
        gaps.reshape(-1)[flat_positions(index, gaps.shape[1])] += slope
        return gaps

    return 1 / total, np.log(total) - mean_gap, pull
