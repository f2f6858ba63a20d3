"""Weights of a fit: only their proportions count, on all of the data and on every part of it that a choice is made by."""

from __future__ import annotations

import pytest
import torch

from calibrant.calibrators import AutoCalibrator, MatrixScaling, VectorScaling
from calibrant.calibrators.auto import nll_scores
from calibrant.calibrators.fit_data import check_fit_input
from calibrant.calibrators.folds import split_folds
from calibrant.data.synthetic import synthetic_predictions

GIVEN, _ = synthetic_predictions(300, 3, temperature=2.0, hardness=0.5, split="val")
LOGITS, LABELS = GIVEN.logits.double(), GIVEN.labels
# A few examples weigh a hundred times as much, so that the mean weight differs from part to part.
WEIGHTS = torch.where(torch.arange(300) % 41 == 0, 100.0, 1.0).double()


def test_subset_is_the_data_of_its_rows_alone() -> None:
    rows = torch.arange(50)
    part = check_fit_input(LOGITS, LABELS, WEIGHTS, where="test").subset(rows)
    alone = check_fit_input(LOGITS[rows], LABELS[rows], WEIGHTS[rows], where="test")
    assert float(part.weights.mean()) == pytest.approx(1.0, rel=1e-12)
    torch.testing.assert_close(part.weights, alone.weights, rtol=1e-12, atol=0)
    assert torch.equal(part.logits, alone.logits)
    assert torch.equal(part.labels, alone.labels)


def test_auto_weighted_folds_are_fits_on_their_rows_alone() -> None:
    auto = AutoCalibrator(methods=("vector",), n_folds=3).fit(LOGITS, LABELS, weights=WEIGHTS)
    scores = torch.empty(300, dtype=torch.float64)
    for kept, held in split_folds(check_fit_input(LOGITS, LABELS, WEIGHTS, where="test"), n_folds=3, seed=0):
        fitted = VectorScaling().fit(LOGITS[kept], LABELS[kept], weights=WEIGHTS[kept])
        scores[held] = nll_scores(fitted.predict_log_proba(LOGITS[held]), LABELS[held])
    entry = next(entry for entry in auto.ranking_ if entry.name == "vector")
    assert entry.score == pytest.approx(float(WEIGHTS @ scores / WEIGHTS.sum()), rel=1e-9)


def test_choices_do_not_depend_on_the_scale_of_the_weights() -> None:
    one, ten = (
        MatrixScaling(spreads=(0.03, 0.3), max_iter=15).fit(LOGITS, LABELS, weights=scale * WEIGHTS) for scale in (1, 10)
    )
    assert one.spread_ == ten.spread_
    torch.testing.assert_close(one.weight_, ten.weight_)
    methods = ("temperature", "histogram")
    first, second = (
        AutoCalibrator(methods=methods, n_folds=3).fit(LOGITS, LABELS, weights=scale * WEIGHTS) for scale in (1, 10)
    )
    assert (first.best_name_, [e.name for e in first.ranking_]) == (second.best_name_, [e.name for e in second.ranking_])
    assert [e.score for e in first.ranking_] == pytest.approx([e.score for e in second.ranking_], rel=1e-7)
