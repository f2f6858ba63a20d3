"""What closed forms need of every row of logits, in numpy: exponentials, softmax, confidence, entropy.

The differentiable forms of the same are in `logprob` and `confidence`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from calibrant.core.closed_form import Array, quiet_products

# Exponentials of logits up to this need no shift: sums of a million of them, and ratios of two sums, stay in float32.
_LARGEST_LOGIT = 40.0
# Smaller sums would leave the full precision of float32 in a ratio.
_LEAST_SUM = 1e-15
# From this size on torch shares the work among its threads.
_THREADED = 65536
# From this size on torch multiplies faster than numpy, in spite of its higher price for a call.
_LONG = 16384
# Up to this size BLAS multiplies a matrix by a vector in the calling thread (OpenBLAS: below 9,216 entries).
_UNSHARED = 8192


def exponentials(scores: Array, *, largest: Array | None = None) -> Array | None:
    """``exp(scores)``, new and contiguous; None where a score is too large for it (or NaN).

    The ``largest [B]`` score of each row, if at hand, is looked at instead of all.
    """
    fit = np.maximum.reduce(scores if largest is None else largest, axis=None) < _LARGEST_LOGIT
    return _exp(scores) if fit else None


def _exp(scores: Array) -> Array:
    # numpy takes half of torch's time, unless torch has threads to share the work among.
    if scores.size < _THREADED or torch.get_num_threads() == 1:
        return np.exp(scores, order="C")
    return torch.from_numpy(scores).exp().contiguous().numpy()


def large_enough(sums: Array) -> bool:
    """Whether no sum of exponentials was rounded to few digits."""
    return bool(np.minimum.reduce(sums) > _LEAST_SUM)


def name_classes(labels: Array, num_classes: int) -> bool:
    """Whether all labels lie in ``[0, num_classes)``."""
    if labels.dtype == np.int64:
        # Negative numbers are the largest ones without a sign, so one pass does.
        labels = labels.view(np.uint64)
    elif np.minimum.reduce(labels) < 0:
        return False
    return bool(np.maximum.reduce(labels) < num_classes)


@quiet_products()
def row_sums(values: Array) -> Array:
    """Sums ``[B]`` of ``values [B, C]``; ``values.sum(1)`` takes three times as long."""
    sums: Array
    sums = values.dot(_ones(values.shape[1], values.dtype)) if values.size <= _UNSHARED else np.einsum("ij->i", values)
    return sums


def scale_rows(values: Array, factors: Array) -> None:
    """Multiply every row of ``values [B, C]`` by one of ``factors [B]``, in place."""
    if values.size < _LONG:
        values *= factors[:, None]
    else:
        torch.from_numpy(values).mul_(torch.from_numpy(factors[:, None]))


def flat_positions(columns: Array, num_classes: int) -> Array:
    """Positions of one column per row in a flattened ``[B, C]`` array."""
    return _row_starts(len(columns), num_classes) + columns


def confidence_of_rows(scores: Array, index: Array) -> tuple[Array, Callable[[Array], Array]] | None:
    """Softmax probability ``[B]`` of the largest class ``index [B]``, and the way back from its gradient: c (onehot - q).

    None where the exponentials leave their range.
    """
    weights = exponentials(scores, largest=scores[np.arange(len(index)), index])
    if weights is None:
        return None
    total = row_sums(weights)
    if not large_enough(total):
        return None
    at, flat = flat_positions(index, scores.shape[1]), weights.reshape(-1)
    own = flat[at]

    def pull(grad: Array) -> Array:
        slope = grad * (own / total)
        scale_rows(weights, slope / -total)
        flat[at] += slope
        return weights

    return own / total, pull


def entropy_of_rows(scores: Array, index: Array) -> tuple[Array, Array, Callable[[Array, Array], Array]] | None:
    """Probability of the largest class ``index [B]`` and entropy in nats, each ``[B]``, and the way back from their gradients.

    Shifted by the largest score, both terms of the entropy, the log of the sum and the mean gap, are at least 0: nothing
    cancels however small it is. None where a score is not finite.
    """
    lead = scores[np.arange(len(index)), index]
    if not np.isfinite(lead).all():
        return None
    gaps = (torch.from_numpy(scores) - torch.from_numpy(lead).unsqueeze(1)).contiguous().numpy()
    weights = _exp(gaps)
    total = row_sums(weights)
    mean_gap = np.einsum("ij,ij->i", weights, gaps) / total
    if not np.minimum.reduce(mean_gap) > -np.inf:
        return None

    def pull(by_probability: Array, by_entropy: Array) -> Array:
        slope = by_probability / total
        gradient, factors = torch.from_numpy(gaps), torch.from_numpy(by_entropy / -total)
        shifts = torch.from_numpy((by_entropy * mean_gap - slope) / total)
        gradient.mul_(factors.unsqueeze(1)).add_(shifts.unsqueeze(1)).mul_(torch.from_numpy(weights))
        gaps.reshape(-1)[flat_positions(index, gaps.shape[1])] += slope
        return gaps

    return 1 / total, np.log(total) - mean_gap, pull


# Training asks for the same few constants at every step; making them takes as long as using them.
@lru_cache(maxsize=4)
def _ones(length: int, dtype: np.dtype[Any]) -> Array:
    return _frozen(np.ones(length, dtype))


@lru_cache(maxsize=4)
def _row_starts(rows: int, length: int) -> Array:
    return _frozen(np.arange(0, rows * length, length))


def _frozen(constant: Array) -> Array:
    constant.flags.writeable = False
    return constant
