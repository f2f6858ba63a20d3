"""Splitting fit data for cross-validation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from calibrant.calibrators.fit_data import FitData


def split_folds(data: FitData, *, n_folds: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return, for each fold, the positions to fit on and those held out; every class of two examples or more is fitted on.

    Folds are random. Sharing out every class evenly would give the held-out part the class frequencies of the fitted part, so
    that learning their chance fluctuation is rewarded, as it never is on new data.

    Args:
        data: The examples.
        n_folds: Number of folds; at most one per example is made.
        seed: Seed of the shuffle.
    """
    n_folds = min(n_folds, len(data))
    fold = torch.empty(len(data), dtype=torch.long)
    fold[torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))] = torch.arange(len(data)) % n_folds
    count = torch.zeros(data.num_classes, n_folds, dtype=torch.long)
    count.index_put_((data.labels, fold), torch.ones_like(fold), accumulate=True)
    # A class whose examples are all in one fold would be unknown to the fit that is rated on them: one of them moves on.
    for label in ((count.amax(1) == count.sum(1)) & (count.sum(1) > 1)).nonzero().flatten():
        first = (data.labels == label).nonzero()[0]
        fold[first] = (fold[first] + 1) % n_folds
    return [((fold != k).nonzero().flatten(), (fold == k).nonzero().flatten()) for k in range(n_folds)]


def fold_data(data: FitData, folds: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[FitData, FitData]]:
    """Yield the data to fit on and the data held out of each fold."""
    for kept, held in folds:
        yield data.subset(kept), data.subset(held)
