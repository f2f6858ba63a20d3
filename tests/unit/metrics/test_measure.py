from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.core.binning import summarize
from calibrant.core.records import Scores
from calibrant.metrics.binned import (
    class_calibration_errors,
    classwise_calibration_error,
    expected_calibration_error,
    reliability_bins,
)
from calibrant.metrics.levels import if_calibrated
from calibrant.metrics.measure import class_scores, measure, measure_summary, values_of
from calibrant.metrics.paired import paired_test
from calibrant.metrics.table import METRICS, Metric, score_metrics
from helpers import golden, mixed_gaps

# Those read from the sums that all scores share; the others are computed from all examples.
KEYS = tuple(key for key, metric in score_metrics().items() if metric.read)


def score_values(predictions: Predictions, *, n_bins: int) -> dict[str, float]:
    return values_of(summarize(predictions, n_bins=n_bins, keep=None))


def some_predictions(n: int = 400, num_classes: int = 4, **more: object) -> Predictions:
    probs, labels = mixed_gaps(n, num_classes)
    return Predictions(probs=probs, labels=labels, **more)  # type: ignore[arg-type]


def test_measure_gives_every_key_with_its_value_inside_its_interval() -> None:
    predictions = some_predictions()
    scores = measure(predictions, n_resamples=100)
    assert tuple(scores) == tuple(score_metrics())
    assert (scores.n, scores.num_classes, scores.n_bins) == (400, 4, 15)
    for key, value in score_values(predictions, n_bins=15).items():
        assert scores[key].value == value
        assert scores[key].low <= value <= scores[key].high, key
        assert key == "signed_gap" or scores[key].low >= 0, key
    assert int(scores.bins.count.sum()) == 400


def test_measure_p_value_is_that_of_if_calibrated() -> None:
    probs, labels = mixed_gaps(400, 4)
    scores = measure(Predictions(probs=probs, labels=labels), n_resamples=100, seed=3)
    assert scores.ece_if_calibrated == pytest.approx(if_calibrated(probs, labels, n_resamples=100, seed=3))


@pytest.mark.parametrize("seed", range(8))
def test_measure_ece_interval_begins_above_zero_where_p_is_at_most_5_percent(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(1000, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    scores = measure(Predictions(logits=(1 + 0.05 * seed) * logits, labels=labels), n_resamples=199)
    assert (scores["ece"].low > 0) == (scores.ece_if_calibrated.p_value <= 0.05)


def test_measure_is_written_as_json_of_the_schema() -> None:
    scores = measure(some_predictions(), n_resamples=100, by_class=True, file="a.npz")
    data = json.loads(scores.to_json())
    assert data["file"] == "a.npz"
    assert list(data["metrics"]) == list(score_metrics())
    assert set(data["metrics"]["ece"]) == {"value", "low", "high"}
    assert set(data["ece_if_calibrated"]) == {"mean", "p95", "p_value"}
    assert len(data["classes"]) == 4


def test_measure_slices_are_the_measures_of_the_groups() -> None:
    group = np.array(["b", "a"] * 200)
    predictions = some_predictions(columns={"group": group})
    scores = measure(predictions, slice_by="group", n_resamples=100)
    assert list(scores.slices) == ["a", "b"]
    alone = measure(predictions.subset(group == "a"), n_resamples=100)
    assert scores.slices["a"].to_dict() == alone.to_dict()
    assert scores.slices["a"].n == 200


def test_measure_takes_a_record_or_arrays_that_say_what_they_are() -> None:
    given = some_predictions()
    record, logits, probs = (
        measure(**arguments, n_resamples=100)
        for arguments in (
            {"predictions": Predictions(probs=given.probs, labels=given.labels)},
            {"logits": given.probs.log(), "labels": given.labels},
            {"probs": given.probs, "labels": given.labels},
        )
    )
    assert probs == record
    assert logits["nll"].value == pytest.approx(record["nll"].value)
    for wrong in ({"probs": given.probs}, {"predictions": given, "logits": given.logits}, {"labels": given.labels}):
        with pytest.raises(ValueError, match=r"measure: .*must be given"):
            measure(**wrong)


def test_measure_unknown_column_raises_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown column .* 'grup'. Did you mean 'group'"):
        measure(some_predictions(10, columns={"group": np.arange(10)}), slice_by="grup")


def test_measure_wrong_counts_raise() -> None:
    with pytest.raises(ValueError, match="measure: `n_resamples` must be a whole number from 100 to 500, got 1000"):
        measure(some_predictions(10), n_bins=10_000)
    with pytest.raises(ValueError, match="measure: `n_resamples` must be a whole number from 100 to [0-9,]+, got 99"):
        measure(some_predictions(10), n_resamples=99)
    with pytest.raises(ValueError, match="measure: `n_bins` must be a whole number from 1 to 10,000, got 0"):
        measure(some_predictions(10), n_bins=0)
    with pytest.raises(ValueError, match="measure_summary: `n_resamples` must be a whole number from 100 to [0-9,]+, got 0"):
        measure_summary(summarize(some_predictions(10)), n_resamples=0)
    with pytest.raises(ValueError, match="measure: `seed` must be a whole number >= 0, got -1"):
        measure(some_predictions(10), seed=-1)
    with pytest.raises(ValueError, match="measure_summary: `seed` must be a whole number >= 0, got 0.5"):
        measure_summary(summarize(some_predictions(10)), seed=0.5)  # type: ignore[arg-type]


def test_measure_classes_are_sorted_worst_first() -> None:
    probs, labels = mixed_gaps(400, 4)
    names = ["w", "x", "y", "z"]
    scores = measure(Predictions(probs=probs, labels=labels, class_names=names), by_class=True, n_resamples=100)
    errors = class_calibration_errors(probs, labels, n_bins=15)
    assert [c.ece for c in scores.classes] == sorted((c.ece for c in scores.classes), reverse=True)
    for entry in scores.classes:
        assert entry.name == names[entry.index]
        assert entry.ece == pytest.approx(float(errors[entry.index]))
        assert entry.count == float((labels == entry.index).sum())
        assert entry.signed_gap == pytest.approx(float(probs[:, entry.index].mean() - (labels == entry.index).double().mean()))
        wrong = (probs.argmax(1) != labels)[labels == entry.index].double().mean()
        assert entry.error == pytest.approx(float(wrong))


def test_class_scores_of_calibrated_classes_are_within_chance_in_95_of_100() -> None:
    draw, within, weighted = torch.Generator().manual_seed(0), 0, 0
    for _ in range(60):
        probs = (3 * torch.randn(400, 10, generator=draw, dtype=torch.float64)).softmax(1)
        labels = torch.multinomial(probs, 1, generator=draw).squeeze(1)
        weights = torch.rand(400, generator=draw, dtype=torch.float64).square()
        for given in (None, weights):
            found = class_scores(summarize(Predictions(probs=probs, labels=labels, weights=given)))
            held = sum(abs(entry.signed_gap) <= (entry.chance or 0.0) for entry in found)
            within, weighted = (within + held, weighted) if given is None else (within, weighted + held)
    # Of 600; the standard error is 5.
    assert 555 <= within <= 590
    assert 555 <= weighted <= 590


def test_class_scores_absent_class_has_no_error_rate() -> None:
    scores = class_scores(summarize(Predictions(probs=[[0.6, 0.3, 0.1], [0.7, 0.2, 0.1]], labels=[0, 0])))
    assert {c.index: math.isnan(c.error) for c in scores} == {0: False, 1: True, 2: True}
    with pytest.raises(ValueError, match="class_scores: `names` must hold C = 3 names, got 1"):
        class_scores(summarize(Predictions(probs=[[0.6, 0.3, 0.1]], labels=[0])), names=["a"])


@pytest.mark.parametrize("n_bins", [15, 7])
def test_measure_weighted_examples_are_counted_as_rows_beside_their_weight(n_bins: int) -> None:
    probs, labels = mixed_gaps(300)
    weights = torch.rand(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e-4
    columns = {"half": [k // 150 for k in range(300)]}
    given = Predictions(probs=probs, labels=labels, weights=weights, columns=columns)
    scores = measure(given, n_bins=n_bins, n_resamples=100, by_class=True, slice_by="half")
    assert scores.weight == pytest.approx(float(weights.sum()))
    assert scores.bins.rows is not None
    assert scores.bins.rows.tolist() == summarize(Predictions(probs=probs, labels=labels), n_bins=n_bins).bins.count.tolist()
    for entry in scores.classes:
        assert entry.count == int((labels == entry.index).sum())
        assert entry.weight == pytest.approx(float(weights[labels == entry.index].sum()))
    assert [part.n for part in scores.slices.values()] == [150, 150]
    assert scores.slices["1"].weight == pytest.approx(float(weights[150:].sum()))
    first, rest = (summarize(given.subset(rows), n_bins=n_bins) for rows in torch.arange(300).split([100, 200]))
    joined = measure_summary(first + rest, n_resamples=100, by_class=True)
    assert {entry.index: entry.count for entry in joined.classes} == {entry.index: entry.count for entry in scores.classes}
    again = Scores.from_dict(scores.to_dict())
    assert again.weight == scores.weight
    assert again.classes == scores.classes


def test_measure_summary_is_near_measure() -> None:
    predictions = some_predictions(3000)
    whole = measure(predictions, n_resamples=100, by_class=True)
    parts = [summarize(predictions.subset(torch.arange(at, at + 1000))) for at in (0, 1000, 2000)]
    summed = measure_summary(parts[0] + parts[1] + parts[2], n_resamples=100, by_class=True)
    for key in KEYS:
        assert summed[key] == pytest.approx(whole[key], abs=2e-3), key
    assert summed.ece_if_calibrated == pytest.approx(whole.ece_if_calibrated)
    assert [c.index for c in summed.classes] == [c.index for c in whole.classes]


CASES = {
    "all right": ([[0.9, 0.1], [0.3, 0.7]] * 10, [0, 1] * 10),
    "all wrong": ([[0.9, 0.1], [0.3, 0.7]] * 10, [1, 0] * 10),
    "certain and right": ([[1.0, 0.0]] * 20, [0] * 20),
    "certain and wrong": ([[1.0, 0.0]] * 20, [1] * 20),
    "fewer than bins": ([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [0, 1, 1]),
    "one example": ([[0.9, 0.1]], [0]),
    "class absent": ([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2]] * 10, [0, 1] * 10),
    "all tied": ([[0.25, 0.25, 0.25, 0.25]] * 20, [0, 1, 2, 3] * 5),
}


@pytest.mark.parametrize("case", CASES)
def test_measure_extreme_input_gives_sensible_intervals(case: str) -> None:
    probs, labels = CASES[case]
    scores = measure(Predictions(probs=probs, labels=labels), n_resamples=100, by_class=True)
    for key, (value, low, high) in scores.metrics.items():
        assert low <= value <= high, key
        assert key in ("signed_gap", "binary_gap") or low >= 0, key
        assert key in ("nll", "brier") or -1 <= low <= high <= 1, key
    assert 0 < scores.ece_if_calibrated.p_value <= 1
    assert scores["error"].high > scores["error"].low


@pytest.mark.parametrize("weights", [(1, 1e-320), (1e90, 1e-90), (1e-99, 1e-99), (1e97, 1)])
def test_measure_extreme_weights_give_numbers(weights: tuple[float, float]) -> None:
    given = some_predictions(weights=torch.tensor(weights, dtype=torch.float64).repeat(200))
    for metric in (metric for metric in METRICS.values() if not metric.positive):
        assert math.isfinite(float(metric(given))), metric.label
    assert all(math.isfinite(end) for estimate in measure(given, n_resamples=100).metrics.values() for end in estimate)
    assert all(math.isfinite(test.low) for test in paired_test(given, given, n_resamples=100).values())


@pytest.mark.parametrize("weights", [(1e-320, 1e-320), (1e300, 1e-300), (1e308, 1), (1e308, 1e308)])
def test_weights_beyond_measure_are_refused_with_a_sentence(weights: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="`weights` must have a positive sum .* Rescale"):
        some_predictions(weights=torch.tensor(weights, dtype=torch.float64).repeat(200))


@pytest.mark.parametrize(
    "function", [measure, expected_calibration_error, classwise_calibration_error, if_calibrated, reliability_bins]
)
def test_more_bins_than_anybody_has_data_for_are_refused(function: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match="`n_bins` must be a whole number from 1 to 10,000, got 100000000"):
        function(some_predictions(), n_bins=100_000_000)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("key", KEYS)
def test_score_values_are_those_of_the_metric_functions(key: str, dtype: torch.dtype, weighted: bool) -> None:
    probs, labels = mixed_gaps(700, 6, dtype=dtype)
    weights = (torch.arange(700) % 4).double() if weighted else None
    values = score_values(Predictions(probs=probs, labels=labels, weights=weights), n_bins=10)
    metric = METRICS[key]
    options = {"n_bins": 10} if "n_bins" in inspect.signature(metric.function).parameters else {}
    expected = float(metric(probs, labels, weights=weights, **options))
    assert values[key] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def half_of_errors(probs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    wrong = (probs.argmax(1) != labels).double() / 2
    return wrong.mean() if weights is None else weights @ wrong / weights.sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_metric_that_is_only_a_function_is_measured_and_compared(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    added = {**METRICS._entries, "half": Metric(half_of_errors, label="half of the errors")}
    monkeypatch.setattr(METRICS, "_entries", added)
    monkeypatch.setattr(METRICS, "builtin", (*METRICS.builtin, "half"))
    weights = torch.ones(400) if weighted else None
    predictions = some_predictions(weights=weights)
    value, low, high = measure(predictions, n_resamples=200)["half"]
    error = measure(predictions, n_resamples=200)["error"]
    assert value == pytest.approx(error.value / 2)
    # Two bootstraps of 200 know the ends to about a tenth of the length.
    assert (low, high) == pytest.approx((error.low / 2, error.high / 2), abs=0.15 * (error.high - error.low))
    other = predictions.replace(probs=predictions.probs.roll(1, 0))
    tests = paired_test(predictions, other, n_resamples=100)
    assert tests["half"].difference == pytest.approx(tests["error"].difference / 2)
    assert tests["half"].p_value <= 0.01
    # It cannot be read from sums.
    assert "half" not in measure_summary(summarize(predictions), n_resamples=100)


def test_score_values_golden_input_gives_golden_values() -> None:
    logits, labels = golden()
    values = score_values(Predictions(logits=logits, labels=labels), n_bins=15)
    # Printed from float32 runs of the authors' own functions.
    known = {"error": 1 / 3, "nll": 1.209579, "brier": 0.601093, "ece": 0.268477, "mce": 0.559181, "ace": 0.334314}
    known |= {"classwise_ece": 0.174134, "sece": 0.272692, "smece": 0.197073, "mmce": 0.140817}
    for key, value in known.items():
        assert values[key] == pytest.approx(value, rel=5e-6), key
