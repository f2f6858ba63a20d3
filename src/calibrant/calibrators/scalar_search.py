"""The least of a function of one positive number, where it need not be convex."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

# Steps of the first look, evenly spaced in the logarithm: two a factor of e.
_STEPS_PER_E = 2


def least_in_log(loss: Callable[[float], float], *, bounds: tuple[float, float]) -> tuple[float, bool]:
    """Return the positive number of least ``loss`` within ``bounds``, and whether it is one of the bounds.

    The whole range is looked at coarsely first, so that a second valley is not missed, then the best place finely.

    Example:
        >>> found, at_bound = least_in_log(lambda x: math.log(x / 3) ** 2, bounds=(0.01, 100.0))
        >>> round(found, 6), at_bound
        (3.0, False)
    """
    from scipy.optimize import minimize_scalar

    low, high = (math.log(bound) for bound in bounds)
    grid = np.linspace(low, high, max(math.ceil((high - low) * _STEPS_PER_E), 2) + 1)
    values = [loss(math.exp(at)) for at in grid]
    best = int(np.nanargmin(values))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    found = minimize_scalar(lambda at: loss(math.exp(at)), bounds=around, method="bounded", options={"xatol": 1e-9})
    # Where the loss is flat down to a bound, as by rounding, the bound it is.
    at = float(found.x) if found.fun < values[best] else float(grid[best])
    edge = [bound for bound, end in zip(bounds, (low, high), strict=True) if abs(at - end) < 1e-4]
    return (edge[0], True) if edge else (math.exp(at), False)
