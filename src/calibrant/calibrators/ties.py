"""Probabilities that differ by rounding alone: they are one value when a map is fitted, and lie on one side of its edges."""

from __future__ import annotations

import numpy as np

Vector = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
# Log-odds this near are equal: float32 keeps the difference of two logits below 32 to within 2e-6.
_LOG_ODDS = 2e-6
# Beside it, the rounding of a probability in double precision.
_RELATIVE = 1e-15
# The smallest probability of float32: zeros are given numbers up to this (`floor_logits`), and remain one value.
_SMALLEST = 2.0**-149


def just_above(probs: Vector) -> Vector:
    """The largest probability that counts as equal to each.

    Example:
        >>> bool(0.2 < just_above(np.array([0.2]))[0] < 0.200001)
        True
    """
    return np.asarray(probs + probs * (_LOG_ODDS * (1 - probs) + _RELATIVE) + _SMALLEST)


def merge_ties(probs: Vector) -> Vector:
    """Make probabilities equal that differ by rounding alone: groups no wider than that, with a wider gap on either side.

    Values that lie so dense everywhere are no ties, and stay as they are.

    Example:
        >>> merge_ties(np.array([0.1 + 0.2, 0.3, 0.5])).tolist()
        [0.30000000000000004, 0.30000000000000004, 0.5]
    """
    order = np.argsort(probs, kind="stable")
    ordered = probs[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] > just_above(ordered[:-1])]))
    last = ordered[np.append(starts[1:], len(ordered)) - 1]
    sizes = np.diff(np.append(starts, len(ordered)))
    alike = np.repeat(last <= just_above(ordered[starts]), sizes)
    merged = np.empty_like(ordered)
    merged[order] = np.where(alike, np.repeat(last, sizes), ordered)
    return merged


def edges_behind(ordered: Vector, ends: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Vector:
    """Edges between ascending probabilities, right behind the value before each of ``ends`` in ``[1, N)``, which it holds.

    Example:
        >>> edges_behind(np.array([0.2, 0.4]), np.array([1])).round(4).tolist()
        [0.2]
    """
    before, behind = ordered[ends - 1], ordered[ends]
    return np.asarray(np.minimum(just_above(before), (before + behind) / 2))
