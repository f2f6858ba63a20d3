"""The numbers behind the charts of a page are those of ``calibrant measure``."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from calibrant import Predictions, measure
from calibrant.core.binning import TopLabel, equal_width_bins, summarize
from calibrant.core.records import Entry
from calibrant.metrics import area_under_risk_coverage, expected_calibration_error
from calibrant.report.page import (
    REGION_EDGES,
    STOPS,
    UNIT,
    bin_rows,
    class_view,
    confident_mistakes,
    examine_stops,
    regions_of,
    risk_curve,
    run_diagram,
)
from helpers import hard_gaps, mixed_gaps


def rows_of(flat: list[float]) -> list[list[float]]:
    return [flat[k : k + 6] for k in range(0, len(flat), 6)]


@pytest.mark.parametrize("n_bins", [2, 15, 17, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stops_equal_measure_with_as_many_bins(n_bins: int, dtype: torch.dtype) -> None:
    probs, labels = hard_gaps(dtype=dtype)
    predictions = Predictions(probs=probs, labels=labels)
    summary = summarize(predictions, n_bins=15)
    (found,) = examine_stops(summary, stops=[n_bins], n_resamples=100, seed=3)
    scores = measure(predictions, n_bins=n_bins, n_resamples=100, seed=3)
    assert found["ece"] == scores["ece"].value
    assert found["mce"] == scores["mce"].value
    assert found["null"] == scores.ece_if_calibrated.mean
    assert found["p95"] == scores.ece_if_calibrated.p95


def test_bin_rows_hold_what_the_bins_hold() -> None:
    # Four of five right at a confidence of 0.9: Wilson's interval is 0.3755 to 0.9638.
    top = TopLabel(torch.full((5,), 0.9, dtype=torch.float64), torch.tensor([1.0, 1, 1, 1, 0], dtype=torch.float64))
    assert bin_rows(equal_width_bins(top, n_bins=5)) == [4, 5, 9000, 8000, 3755, 9638]


def test_regions_are_right_closed_and_hold_every_example() -> None:
    confidence = torch.tensor([0.3, 0.5, 0.51, 0.99, 0.991, 1.0], dtype=torch.float64)
    rows = rows_of(bin_rows(regions_of(TopLabel(confidence, torch.ones(6, dtype=torch.float64)), REGION_EDGES)))
    assert [(row[0], row[1]) for row in rows] == [(0, 2), (1, 1), (5, 1), (6, 2)]
    assert rows[-1][2] == round(UNIT * 0.9955)
    assert len(REGION_EDGES) == 8


def test_risk_curve_gives_values_by_hand() -> None:
    # The most confident is right, the next wrong, the third right, the least confident wrong.
    top = TopLabel(torch.tensor([0.9, 0.8, 0.7, 0.6]).double(), torch.tensor([1.0, 0, 1, 0]).double())
    assert risk_curve(top) == [2500, 0, 5000, 5000, 7500, 3333, 10000, 5000]


def test_risk_curve_ends_at_the_error_and_has_the_area_of_aurc() -> None:
    probs, labels = mixed_gaps(4000)
    predictions = Predictions(probs=probs, labels=labels)
    top = TopLabel(predictions.confidence, predictions.correct.double())
    curve = risk_curve(top)
    assert curve[-2] == UNIT
    assert curve[-1] == pytest.approx(UNIT * (1 - float(predictions.correct.double().mean())), abs=1)
    # 200 of 4,000 points: their mean is the area to the width of one of the steps.
    assert sum(curve[1::2]) / UNIT / (len(curve) / 2) == pytest.approx(float(area_under_risk_coverage(probs, labels)), abs=3e-3)


def test_class_view_holds_the_numbers_of_measure() -> None:
    probs, labels = mixed_gaps(500, 6)
    predictions = Predictions(probs=probs, labels=labels)
    view = class_view(summarize(predictions, n_bins=10))
    scores = measure(predictions, n_bins=10, by_class=True, n_resamples=100)
    for shown, entry in zip(view, scores.classes, strict=True):
        assert (shown["index"], shown["count"]) == (entry.index, entry.count)
        assert shown["ece"] == pytest.approx(entry.ece, abs=1e-7)
        assert shown["gap"] == pytest.approx(entry.signed_gap, abs=1e-7)
        assert shown["error"] == pytest.approx(entry.error, abs=1e-6)


def test_confident_mistakes_come_most_confident_first_with_the_probability_of_the_second_of_two_classes() -> None:
    predictions = Predictions(
        probs=[[0.9, 0.1], [0.2, 0.8], [0.99, 0.01], [0.6, 0.4]], labels=[0, 0, 1, 1], class_names=["x", "y"]
    )
    after = predictions.replace(probs=[[0.8, 0.2], [0.3, 0.7], [0.75, 0.25], [0.55, 0.45]])
    found = confident_mistakes(predictions, after)
    assert [(entry["row"], entry["label"], entry["predicted"]) for entry in found] == [
        (2, "y", "x"),
        (1, "x", "y"),
        (3, "y", "x"),
    ]
    assert [entry["before"] for entry in found] == pytest.approx([0.01, 0.8, 0.4])
    assert [entry["after"] for entry in found] == pytest.approx([0.25, 0.7, 0.45])


@pytest.mark.parametrize("weighted", [False, True])
def test_run_diagram_holds_the_bins_of_every_stop(weighted: bool) -> None:
    probs, labels = mixed_gaps(300)
    weights = torch.linspace(0.5, 1.5, len(labels)) if weighted else None
    test = Predictions(probs=probs, labels=labels, weights=weights)
    diagram = run_diagram(Entry("digits", "ce", measure(test, n_resamples=100), test=test), STOPS)
    assert diagram is not None
    stops = diagram["stops"]
    assert isinstance(stops, list)
    for n_bins, stop in zip(STOPS, stops, strict=True):
        expected = expected_calibration_error(test.probs, test.labels, n_bins=n_bins, weights=test.weights)
        assert stop["ece"] == pytest.approx(expected.item(), abs=1e-9)
        assert sum(stop["rows"][1::6]) == pytest.approx(300, abs=0.5)
    share = test.correct.double() if weights is None else test.correct * weights.double() / weights.double().mean()
    assert diagram["error"] == pytest.approx(1 - share.mean().item(), abs=1e-6)


def test_run_diagram_of_a_record_holds_the_bins_that_it_keeps() -> None:
    probs, labels = mixed_gaps(300)
    test = Predictions(probs=probs, labels=labels)
    run = Entry("digits", "ce", measure(test, n_resamples=100), test=test)
    full, kept = (run_diagram(entry, STOPS) for entry in (run, dataclasses.replace(run, test=None)))
    assert full is not None
    assert isinstance(full["stops"], list)
    at = STOPS.index(15)
    assert kept == {"error": full["error"], "stops": [stop if k == at else None for k, stop in enumerate(full["stops"])]}
    other = measure(test, n_resamples=100, n_bins=7)
    assert run_diagram(dataclasses.replace(run, scores=other, test=None), [10, 15]) is None
