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


def count_below(x: Tensor, table: Tensor, row: Tensor) -> Tensor:
    """How many numbers of an ascending row are below x.

    As `torch.searchsorted`, which has no form in ONNX: a bisection of as many steps as the table is long in binary, made of
    operations that every exporter knows. The number of steps depends on the shape of the table alone.

    Args:
        x: Points, of any shape.
        table: Ascending numbers ``[K, L]``, L at least one.
        row: Which row each point is looked up in, int64 in ``[0, K)``, of a shape that fits that of x.

    Returns:
        Counts in ``[0, L]``, int64, shaped as x.

    Example:
        >>> table = torch.tensor([[0.2, 0.4, 0.6], [0.5, 0.5, 2.0]])
        >>> count_below(torch.tensor([0.1, 0.5, 0.6]), table, torch.tensor([0, 1, 1])).tolist()
        [0, 0, 2]
    """
    flat = table.reshape(-1)
    left = table.shape[1]
    first = row * left
    found = torch.zeros_like(x, dtype=torch.long)
    while left > 1:
        half = left // 2
        found = torch.where(flat[first + found + (half - 1)] < x, found + half, found)
        left -= half
    return found + (flat[first + found] < x)


def interpolate_rows(x: Tensor, knots: Tensor, values: Tensor, row: Tensor) -> Tensor:
    """Straight lines between knots, constant beyond the first and the last.

    Args:
        x: Points in ``[0, 1]``, of any shape.
        knots: Ascending positions ``[K, L]``, L at least two.
        values: Values at the knots ``[K, L]``.
        row: The row of each point, int64, of a shape that fits that of x.

    Returns:
        Shaped as x.

    Example:
        >>> knots, values = torch.tensor([[0.2, 0.6]]), torch.tensor([[0.0, 1.0]])
        >>> interpolate_rows(torch.tensor([0.1, 0.3, 0.9]), knots, values, torch.tensor(0))
        tensor([0.0000, 0.2500, 1.0000])
    """
    right = count_below(x, knots, row).clamp(1, knots.shape[1] - 1) + row * knots.shape[1]
    places, heights = knots.reshape(-1), values.reshape(-1)
    start, end = places[right - 1], places[right]
    low, high = heights[right - 1], heights[right]
    width = end - start
    share = ((x - start) / torch.where(width > 0, width, torch.ones_like(width))).clamp(0, 1)
    return low + share * (high - low)


def lookup_rows(x: Tensor, edges: Tensor, values: Tensor, row: Tensor) -> Tensor:
    """Value of the step that holds x; a point on an edge belongs to the step below it.

    Args:
        x: Points in ``[0, 1]``, of any shape.
        edges: Ascending inner edges ``[K, L]``, L at least one.
        values: Values of the steps ``[K, L + 1]``.
        row: The row of each point, int64, of a shape that fits that of x.

    Returns:
        Shaped as x.

    Example:
        >>> lookup_rows(torch.tensor([0.1, 0.5, 0.6]), torch.tensor([[0.5]]), torch.tensor([[0.0, 1.0]]), torch.tensor(0))
        tensor([0., 0., 1.])
    """
    return values.reshape(-1)[count_below(x, edges, row) + row * values.shape[1]]


def pad_rows(rows: Sequence[Vector], *, least: int, fill: float | None) -> Tensor:
    """Stack rows of different lengths, filled up with ``fill`` (None: with their last value) to ``least`` or more."""
    longest = max([least, *(len(row) for row in rows)])
    padded = [np.pad(row, (0, longest - len(row)), constant_values=row[-1] if fill is None else fill) for row in rows]
    return torch.from_numpy(np.stack(padded).astype(np.float64))


def own_row(x: Tensor) -> Tensor:
    """The row of each column of ``x [..., K]``: its own, ``[K]``."""
    return torch.arange(x.shape[-1], device=x.device)
