"""Weights of a fit: only their proportions count, on all of the data and on every part of it that a choice is made by."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch

from calibrant.calibrators import AutoCalibrator, MatrixScaling, MonteCarloTemperatureScaling, TemperatureScaling, VectorScaling
from calibrant.calibrators.auto import nll_scores
from calibrant.calibrators.fit_data import (
    CalibrationWarning,
    check_fit_input,
    few_examples,
    marks_to_keep,
    row_marks,
    warn_if_seen,
)
from calibrant.calibrators.folds import split_folds
from calibrant.core.checks import ArrayLike
from calibrant.data.synthetic import synthetic_predictions
from calibrant.metrics import error_rate

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


@pytest.mark.parametrize("kind", [TemperatureScaling, MonteCarloTemperatureScaling])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_fit_leaves_out_examples_with_the_label_to_ignore(
    kind: type[TemperatureScaling | MonteCarloTemperatureScaling], weights: torch.Tensor | None
) -> None:
    logits = LOGITS.clone()
    # What is left out is not looked at.
    logits[:100] = torch.nan
    labels = torch.where(torch.arange(300) < 100, -100, LABELS)
    alone = kind().fit(LOGITS[100:], LABELS[100:], weights=None if weights is None else weights[100:])
    assert kind().fit(logits, labels, weights=weights, ignore_index=-100).temperature_ == alone.temperature_
    with pytest.raises(ValueError, match="Pass `ignore_index=-100` if it marks examples to leave out"):
        kind().fit(LOGITS, labels)
    with pytest.raises(ValueError, match="`weights` must have a positive sum"):
        kind().fit(LOGITS, labels, weights=(labels < 0).double(), ignore_index=-100)
    with pytest.raises(ValueError, match=r"`ignore_index` must not be given with a `Predictions`. Give it to"):
        kind().fit(GIVEN, ignore_index=0)


def test_fit_on_samples_leaves_out_the_ignored_of_every_sample() -> None:
    samples = torch.stack([LOGITS, LOGITS + 0.1 * LOGITS.roll(1, 1)])
    labels = torch.where(torch.arange(300) < 100, -100, LABELS)
    alone = MonteCarloTemperatureScaling().fit(samples[:, 100:], LABELS[100:])
    assert MonteCarloTemperatureScaling().fit(samples, labels, ignore_index=-100).temperature_ == alone.temperature_


def with_first(value: object) -> np.ndarray[tuple[int, ...], np.dtype[np.object_]]:
    labels = LABELS.numpy().astype(object)
    labels[0] = value
    return labels


@pytest.mark.parametrize("kind", [TemperatureScaling, MonteCarloTemperatureScaling])
@pytest.mark.parametrize(
    "labels",
    [
        LABELS.numpy().astype(np.float64),
        LABELS.half(),
        LABELS.to(torch.int8),
        LABELS.numpy().astype(np.uint16),
        LABELS.numpy().astype(object),
        LABELS.tolist(),
        [str(label) for label in LABELS.tolist()],
    ],
    ids=["float64", "half", "int8", "uint16", "objects", "list", "text"],
)
def test_labels_that_metrics_take_are_those_a_fit_takes(
    kind: type[TemperatureScaling | MonteCarloTemperatureScaling], labels: ArrayLike
) -> None:
    assert float(error_rate(GIVEN.probs, labels)) == float(error_rate(GIVEN.probs, LABELS))
    found = kind().fit(LOGITS, labels)
    assert found.temperature_ == kind().fit(LOGITS, LABELS).temperature_
    assert found.classes_.tolist() == [0, 1, 2]
    assert found.score(LOGITS + 1, labels) == pytest.approx(float(GIVEN.correct.double().mean()))


@pytest.mark.parametrize("kind", [TemperatureScaling, MonteCarloTemperatureScaling])
@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (with_first(np.nan).astype(np.float64), "got no label in row 0"),
        (with_first(None), "got no label in row 0"),
        (with_first(0.5).astype(np.float64), r"got 0\.5 in row 0"),
        (with_first("cat"), "got 'cat' in row 0"),
        (with_first({}), "got other Python objects"),
        (with_first(-100), "Pass `ignore_index=-100`"),
        (LABELS + 1, "They look one-based"),
        (LABELS[:-1], r"must be \[N\] = \[300\], got \[299\]"),
        (np.eye(3)[LABELS], r"Pass `labels\.argmax\(1\)`"),
        (np.ma.masked_less(LABELS.numpy(), 1), "must have no masked entries"),
        ([[0], [1, 2]] * 150, "must be a tensor, a numpy array or a nested list of numbers"),
    ],
)
def test_labels_that_metrics_refuse_are_refused_by_a_fit_with_the_same_sentence(
    kind: type[TemperatureScaling | MonteCarloTemperatureScaling], labels: ArrayLike, said: str
) -> None:
    with pytest.raises(ValueError, match=said) as by_metric:
        error_rate(GIVEN.probs, labels)
    # How several labels are measured is nothing to a fit.
    sentence = str(by_metric.value).removeprefix("error_rate").partition(" Several labels at once are measured")[0]
    with pytest.raises(ValueError, match=f"^{re.escape(kind.__name__ + '.fit' + sentence)}$"):
        kind().fit(LOGITS, labels)


@pytest.mark.parametrize("kind", [TemperatureScaling, MonteCarloTemperatureScaling])
def test_label_to_ignore_may_be_text(kind: type[TemperatureScaling | MonteCarloTemperatureScaling]) -> None:
    labels = [str(label) if row >= 100 else "-100" for row, label in enumerate(LABELS.tolist())]
    assert kind().fit(LOGITS, labels, ignore_index=-100).temperature_ == kind().fit(LOGITS[100:], LABELS[100:]).temperature_


def test_few_examples_are_fewer_than_advised() -> None:
    data = check_fit_input(LOGITS, LABELS, None, where="here")
    assert few_examples(data, fewest=300, where="here") is None
    said = few_examples(data, fewest=301, where="here")
    assert said is not None
    assert said.startswith("here: 300 examples are few for this method (301 or more are advised with 3 classes).")


def test_marks_are_kept_where_nine_of_ten_rows_are_distinct() -> None:
    rows = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    marks = marks_to_keep(torch.cat([rows, rows[:10]]))
    assert marks is not None
    # Those that the fit has twice are no mark of it.
    assert len(marks) == 80
    assert marks_to_keep(torch.cat([rows[:89], rows[:11]])) is None


def test_rows_that_every_part_of_rounded_predictions_has_are_not_taken_for_seen_ones() -> None:
    probs = (5 * torch.randn(2000, 10, generator=torch.Generator().manual_seed(0))).softmax(1).mul(1000).round().div(1000)
    fit, other = probs[:1000].log(), probs[1000:].log()
    # A label of probability 1 stands in both.
    assert 0.02 < float(torch.isin(row_marks(other), row_marks(fit)).double().mean()) < 0.1
    seen = marks_to_keep(fit)
    assert seen is not None
    assert float(torch.isin(row_marks(other), seen).double().mean()) < 0.02
    assert float(torch.isin(row_marks(fit), seen).double().mean()) > 0.9


def test_warning_of_seen_rows_begins_where_they_matter() -> None:
    rows = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    seen = marks_to_keep(rows[:100])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_seen(torch.cat([rows[:4], rows[100:196]]), seen, where="here")
    with pytest.warns(CalibrationWarning, match="here: 5 % of these examples were used to fit"):
        warn_if_seen(torch.cat([rows[:5], rows[100:195]]), seen, where="here")
