"""The numbers behind the charts of a page are those of ``calibrant measure``."""

from __future__ import annotations

import math

import pytest
import torch

from calibrant import Predictions, measure
from calibrant.core.binning import equal_width_bins
from calibrant.core.summary import summarize_with_top
from calibrant.core.top_label import TopLabel
from calibrant.metrics import area_under_risk_coverage
from calibrant.report.page_bins import (
    REGION_EDGES,
    UNIT,
    bin_rows,
    examine_stops,
    mean_confidences,
    regions_of,
    risk_curve,
    slider_stops,
)
from helpers import hard_gaps, mixed_gaps


def rows_of(flat: list[float]) -> list[list[float]]:
    return [flat[k : k + 6] for k in range(0, len(flat), 6)]


def test_slider_stops_hold_the_bins_asked_for() -> None:
    assert 15 in slider_stops(15)
    assert slider_stops(1) == sorted({1, *slider_stops(15)})
    assert slider_stops(37).count(37) == 1


@pytest.mark.parametrize("n_bins", [2, 15, 17, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stops_equal_measure_with_as_many_bins(n_bins: int, dtype: torch.dtype) -> None:
    probs, labels = hard_gaps(dtype=dtype)
    predictions = Predictions(probs=probs, labels=labels)
    summary, top = summarize_with_top(predictions, n_bins=15)
    (found,) = examine_stops(summary, top, stops=[n_bins], n_resamples=60, seed=3)
    scores = measure(predictions, n_bins=n_bins, n_resamples=60, seed=3)
    assert found["ece"] == scores["ece"].value
    assert found["mce"] == scores["mce"].value
    assert found["null"] == scores.ece_if_calibrated.mean
    assert found["p95"] == scores.ece_if_calibrated.p95
    assert float(str(found["over"])) + float(str(found["under"])) == pytest.approx(scores["ece"].value)


def test_stops_say_how_much_of_the_error_and_of_the_examples_is_over_and_under_confident() -> None:
    # Six examples sure to 0.75 of which three are right, two sure to 0.6 and right.
    predictions = Predictions(probs=[[0.75, 0.25]] * 6 + [[0.6, 0.4]] * 2, labels=[0, 1] * 3 + [0, 0])
    summary, top = summarize_with_top(predictions, n_bins=10)
    (found,) = examine_stops(summary, top, stops=[10], n_resamples=20, seed=0)
    shares = [found[name] for name in ("over", "under", "overShare", "underShare")]
    assert shares == pytest.approx([0.75 * 0.25, 0.25 * 0.4, 0.75, 0.25])


def test_stops_with_weights_equal_measure() -> None:
    probs, labels = mixed_gaps(300)
    predictions = Predictions(probs=probs, labels=labels, weights=torch.linspace(0, 2, 300, dtype=torch.float64))
    summary, top = summarize_with_top(predictions, n_bins=15)
    (found,) = examine_stops(summary, top, stops=[10], n_resamples=50, seed=0)
    scores = measure(predictions, n_bins=10, n_resamples=50, seed=0)
    assert found["ece"] == pytest.approx(scores["ece"].value, abs=1e-12)
    assert found["null"] == scores.ece_if_calibrated.mean


def test_bin_rows_hold_what_the_bins_hold() -> None:
    # Four of five right at a confidence of 0.9: Wilson's interval is 0.3755 to 0.9638.
    top = TopLabel(torch.full((5,), 0.9, dtype=torch.float64), torch.tensor([1.0, 1, 1, 1, 0], dtype=torch.float64))
    assert bin_rows(equal_width_bins(top, n_bins=5)) == [4, 5, 9000, 8000, 3755, 9638]


def test_bin_rows_of_fewer_independent_examples_are_less_sure() -> None:
    top = TopLabel(torch.full((8,), 0.9, dtype=torch.float64), torch.tensor([1.0, 0] * 4, dtype=torch.float64))
    sure, unsure = (bin_rows(equal_width_bins(top, n_bins=2), scale=scale) for scale in (1.0, 0.25))
    assert unsure[4] < sure[4] < 5000 < sure[5] < unsure[5]


def test_regions_of_float32_end_where_its_numbers_do() -> None:
    # 0.8 is rounded up to float32, and belongs to the region that ends there all the same.
    confidence = torch.tensor([0.8], dtype=torch.float32).double()
    top = TopLabel(confidence, torch.ones(1, dtype=torch.float64), None, torch.float32)
    assert [row[0] for row in rows_of(regions_of(top))] == [REGION_EDGES.index(0.8) - 1]


def test_regions_are_right_closed_and_hold_every_example() -> None:
    confidence = torch.tensor([0.3, 0.5, 0.51, 0.99, 0.991, 1.0], dtype=torch.float64)
    rows = rows_of(regions_of(TopLabel(confidence, torch.ones(6, dtype=torch.float64))))
    assert [(row[0], row[1]) for row in rows] == [(0, 2), (1, 1), (5, 1), (6, 2)]
    assert rows[-1][2] == round(UNIT * 0.9955)
    assert len(REGION_EDGES) == 8


def test_risk_curve_gives_values_by_hand() -> None:
    # The most confident is right, the next wrong, the third right, the least confident wrong.
    top = TopLabel(torch.tensor([0.9, 0.8, 0.7, 0.6]).double(), torch.tensor([1.0, 0, 1, 0]).double())
    assert risk_curve(top) == [2500, 0, 5000, 5000, 7500, 3333, 10000, 5000]


def test_risk_curve_shares_ties() -> None:
    top = TopLabel(torch.full((4,), 0.8).double(), torch.tensor([1.0, 0, 0, 1]).double())
    assert risk_curve(top)[1::2] == [5000] * 4


def test_risk_curve_ends_at_the_error_and_has_the_area_of_aurc() -> None:
    probs, labels = mixed_gaps(4000)
    predictions = Predictions(probs=probs, labels=labels)
    top = TopLabel(predictions.confidence, predictions.correct.double())
    curve = risk_curve(top)
    assert curve[-2] == UNIT
    assert curve[-1] == pytest.approx(UNIT * (1 - float(predictions.correct.double().mean())), abs=1)
    # 200 of 4,000 points: their mean is the area to the width of one of the steps.
    assert sum(curve[1::2]) / UNIT / (len(curve) / 2) == pytest.approx(float(area_under_risk_coverage(probs, labels)), abs=3e-3)


def test_mean_confidences_of_right_and_wrong() -> None:
    top = TopLabel(torch.tensor([0.9, 0.7, 0.6]).double(), torch.tensor([1.0, 1, 0]).double())
    assert mean_confidences(top) == pytest.approx((0.8, 0.6))
    right, wrong = mean_confidences(TopLabel(torch.tensor([0.9]).double(), torch.tensor([1.0]).double()))
    assert right == pytest.approx(0.9)
    assert math.isnan(wrong)
