"""A confidence histogram of fixed size from which every top-label metric can be read, exactly or nearly.

The cells are the 3,000 equal-width ones that divide evenly into 5, 10, 15, 20, 25, 30, 50, 100, 200, 500 and 1,000 bins,
so those binned metrics are exact. The last cell, where modern networks put most of their mass, is divided further.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from calibrant.core.binning import equal_width_edges, equal_width_index

# Least common multiple of the bin numbers that streaming promises to be exact for.
WIDTH_CELLS = 3000
EXACT_BINS = (5, 10, 15, 20, 25, 30, 50, 100, 200, 500, 1000)
# The cell (2999/3000, 1] is split at 1 - 2^-k / 3000 for k = 1..20 (about the spacing of float32 below one) and at 1 itself.
_TOP_SPLITS = 20
NUM_CELLS = WIDTH_CELLS + _TOP_SPLITS


@dataclass(frozen=True)
class Grid:
    """Sums per cell, float64 ``[NUM_CELLS]`` each; adding two grids field by field merges their data.

    Attributes:
        weight: Sum of sample weights (a count where there are none).
        confidence: Sum of weight times confidence.
        correct: Sum of weight times correctness.
    """

    weight: Tensor
    confidence: Tensor
    correct: Tensor


@lru_cache(maxsize=4)
def grid_edges(dtype: torch.dtype = torch.float64) -> Tensor:
    """Edges of the cells ``[NUM_CELLS + 1]``: k/3000 rounded to ``dtype``, then the finer ones below 1."""
    width = equal_width_edges(WIDTH_CELLS, dtype)
    fine = 1 - 2.0 ** -torch.arange(1, _TOP_SPLITS + 1, dtype=torch.float64) / WIDTH_CELLS
    return torch.cat([width[:-1], fine, width[-1:]])


def grid_index(confidence: Tensor, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Cell of every confidence (float64, any shape); ``dtype`` is the precision the probabilities came in."""
    index = equal_width_index(confidence, WIDTH_CELLS, dtype=dtype)
    top = index == WIDTH_CELLS - 1
    if bool(top.any()):
        fine = grid_edges(dtype)[WIDTH_CELLS:-1]
        index[top] += torch.bucketize(confidence[top], fine)
    return index


def grid_of(confidence: Tensor, correct: Tensor, weights: Tensor | None = None, *, dtype: torch.dtype = torch.float64) -> Grid:
    """Build the grid of float64 ``confidence [N]``, ``correct [N]`` (0/1) and optional ``weights [N]``."""
    index = grid_index(confidence, dtype=dtype)
    weight = torch.ones_like(confidence) if weights is None else weights
    sums = [torch.bincount(index, weights=v, minlength=NUM_CELLS) for v in (weight, weight * confidence, weight * correct)]
    return Grid(*sums)


def fold_to_bins(sums: Tensor, n_bins: int) -> Tensor:
    """Add up cell sums ``[..., NUM_CELLS]`` to ``[..., n_bins]``; exact for ``n_bins`` that divides 3,000."""
    if WIDTH_CELLS % n_bins:
        raise ValueError(f"fold_to_bins: `n_bins` must divide {WIDTH_CELLS}, got {n_bins}. Exact are: {EXACT_BINS}.")
    last = sums[..., WIDTH_CELLS - 1 :].sum(-1, keepdim=True)
    cells = torch.cat([sums[..., : WIDTH_CELLS - 1], last], dim=-1)
    folded: Tensor = cells.unflatten(-1, (n_bins, WIDTH_CELLS // n_bins)).sum(-1)
    return folded
