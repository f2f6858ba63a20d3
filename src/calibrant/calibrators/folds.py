"""Splitting fit data for cross-validation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from calibrant.calibrators.fit_data import FitData


def split_folds(data: FitData, *, n_folds: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return, for each fold, the positions to fit on and those held out; every class is spread over the folds.

    Args:
        data: The examples.
        n_folds: Number of folds; at most one per example is made.
        seed: Seed of the shuffle.
    """
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(data), generator=generator)
    # Dealing out the examples of one class after the other, like cards, gives every fold its share of each.
    dealt = shuffled[data.labels[shuffled].argsort(stable=True)]
    fold = torch.empty(len(data), dtype=torch.long)
    fold[dealt] = torch.arange(len(data)) % min(n_folds, len(data))
    return [((fold != k).nonzero().flatten(), (fold == k).nonzero().flatten()) for k in range(int(fold.max()) + 1)]


def fold_data(data: FitData, folds: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[FitData, FitData]]:
    """Yield the data to fit on and the data held out of each fold."""
    for kept, held in folds:
        yield data.subset(kept), data.subset(held)
