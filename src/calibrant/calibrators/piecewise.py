"""Piecewise maps of probabilities, one a row: straight lines between knots, and steps between edges.

Rows may need fewer knots than the longest: they are filled up at the end with `PAD`, which no probability reaches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

Vector = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
PAD = 2.0


def interpolate_rows(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Straight lines between knots, constant beyond the first and the last.

    Args:
        x: Points in ``[0, 1]``, ``[K, n]``.
        knots: Ascending positions ``[K, L]``.
        values: Values at the knots ``[K, L]``.

    Returns:
        ``[K, n]``.

    Example:
        >>> knots, values = torch.tensor([[0.2, 0.6]]), torch.tensor([[0.0, 1.0]])
        >>> interpolate_rows(torch.tensor([[0.1, 0.3, 0.9]]), knots, values)
        tensor([[0.0000, 0.2500, 1.0000]])
    """
    right = torch.searchsorted(knots.contiguous(), x.contiguous()).clamp(1, knots.shape[1] - 1)
    left = right - 1
    start, end = knots.gather(1, left), knots.gather(1, right)
    low, high = values.gather(1, left), values.gather(1, right)
    width = end - start
    share = ((x - start) / torch.where(width > 0, width, torch.ones_like(width))).clamp(0, 1)
    return low + share * (high - low)


def lookup_rows(x: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Value of the step that holds x; a point on an edge belongs to the step below it.

    Args:
        x: Points in ``[0, 1]``, ``[K, n]``.
        edges: Ascending inner edges ``[K, L]``.
        values: Values of the steps ``[K, L + 1]``.

    Returns:
        ``[K, n]``.

    Example:
        >>> lookup_rows(torch.tensor([[0.1, 0.5, 0.6]]), torch.tensor([[0.5]]), torch.tensor([[0.0, 1.0]]))
        tensor([[0., 0., 1.]])
    """
    return values.gather(1, torch.searchsorted(edges.contiguous(), x.contiguous()))


def pad_rows(rows: Sequence[Vector], *, least: int, fill: float | None) -> Tensor:
    """Stack rows of different lengths, filled up with ``fill`` (None: with their last value) to ``least`` or more."""
    longest = max([least, *(len(row) for row in rows)])
    padded = [np.pad(row, (0, longest - len(row)), constant_values=row[-1] if fill is None else fill) for row in rows]
    return torch.from_numpy(np.stack(padded).astype(np.float64))


def by_rows(x: Tensor) -> Tensor:
    """``[..., K]`` as ``[K, n]``."""
    return x.reshape(-1, x.shape[-1]).T
