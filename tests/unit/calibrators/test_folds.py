"""How examples are shared out for cross-validation."""

from __future__ import annotations

import torch

from calibrant.calibrators.fit_data import FitData
from calibrant.calibrators.folds import split_folds


def fit_data(labels: torch.Tensor) -> FitData:
    return FitData(torch.zeros(len(labels), int(labels.max()) + 1), labels, torch.ones(len(labels)).double())


def test_folds_are_of_one_size_and_hold_every_example_out_once() -> None:
    folds = split_folds(fit_data(torch.arange(1000) % 2), n_folds=5, seed=0)
    assert sorted(torch.cat([held for _, held in folds]).tolist()) == list(range(1000))
    for kept, held in folds:
        assert len(held) == 200
        assert sorted([*kept.tolist(), *held.tolist()]) == list(range(1000))


def test_folds_do_not_share_out_a_class_evenly() -> None:
    labels = torch.arange(1000) % 2
    ones = [int(labels[held].sum()) for _, held in split_folds(fit_data(labels), n_folds=5, seed=0)]
    assert max(ones) - min(ones) > 5


def test_folds_fit_on_every_class_that_has_two_examples() -> None:
    # Two examples of a class meet in one of five folds by a chance of a fifth.
    labels = torch.cat([torch.arange(200), torch.arange(200), torch.tensor([200])])
    for kept, _ in split_folds(fit_data(labels), n_folds=5, seed=0):
        assert set(labels[kept].tolist()) >= set(range(200))
