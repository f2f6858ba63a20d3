"""Probabilities that were rounded before they were saved: their rows no longer sum to one, and are made to again."""

from __future__ import annotations

import numpy as np
import torch

from calibrant.core.checks import SUM_TOLERANCE
from calibrant.core.records import Column

# Rows further from one than this have lost what no rule can bring back.
_MOST = 0.05
_DECIMALS = (2, 3, 4, 5)


def without_rounding(probs: Column) -> Column:
    r"""Return probabilities with rows that sum to one, if rounding explains that they do not.

    Explained are rows of C numbers with d decimals (2 to 5) whose sums are off by up to :math:`C \cdot 10^{-d} / 2`, and rows
    that bfloat16 or float16 hold exactly, off by what `calibrant.core.checks.SUM_TOLERANCE` says for that precision; in no case
    by more than 0.05. Such rows are divided by their sums. Everything else is returned as it is.

    Args:
        probs: Probabilities ``[N, C]``, floating point.

    Example:
        >>> without_rounding(np.array([[0.333, 0.333, 0.333], [0.25, 0.25, 0.5]])).sum(axis=1).tolist()
        [1.0, 1.0]
        >>> without_rounding(np.array([[0.3331, 0.3331, 0.3312]])).sum(axis=1).tolist()
        [0.9974000000000001]
    """
    if probs.ndim != 2 or not probs.size or probs.dtype not in (np.float32, np.float64):
        return probs
    sums = probs.sum(axis=1, dtype=np.float64)
    off = float(np.abs(sums - 1).max())
    usual = SUM_TOLERANCE[torch.float32 if probs.dtype == np.float32 else torch.float64]
    # NaN fails the comparison; what is bad otherwise is for the record to say.
    if not usual < off <= _MOST or probs.min() < 0 or off > _explained(probs):
        return probs
    return np.asarray(probs / sums[:, None], dtype=probs.dtype)


def _explained(probs: Column) -> float:
    """How far rounding may have moved the sum of a row, by the coarsest rounding that all entries show."""
    for decimals in _DECIMALS:
        scaled = probs.astype(np.float64) * 10**decimals
        # float32 holds a rounded number only to its own precision.
        if float(np.abs(scaled - np.round(scaled)).max()) <= 1e-7 * 10**decimals:
            return min(_MOST, probs.shape[1] * 0.5 * 10.0**-decimals * (1 + 1e-6))
    values = torch.from_numpy(np.ascontiguousarray(probs))
    for dtype in (torch.bfloat16, torch.float16):
        if bool((values.to(dtype).to(values.dtype) == values).all()):
            return SUM_TOLERANCE[dtype]
    return 0.0
