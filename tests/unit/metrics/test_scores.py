from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from calibrant.core.binning import TopLabel
from calibrant.core.records import Predictions
from calibrant.metrics import METRICS
from calibrant.metrics.scores import (
    BrierParts,
    _harmonic_difference,
    area_under_risk_coverage,
    brier_decomposition,
    brier_score,
    error_rate,
    failure_detection_auroc,
    negative_log_likelihood,
    signed_calibration_gap,
)
from helpers import golden, hard_gaps, mixed_gaps

Metric = Callable[..., torch.Tensor]


PROBS = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], dtype=torch.float64)


LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (negative_log_likelihood, 1.209579),
        (brier_score, 0.601093),
        (error_rate, 1 / 3),
        (signed_calibration_gap, 0.678025 - 2 / 3),
    ],
)
def test_score_golden_input_gives_golden_value(metric, value):
    logits, labels = golden()
    assert metric(logits.softmax(1), labels).item() == pytest.approx(value, abs=6e-7)
    assert metric(Predictions(logits=logits, labels=labels)).item() == pytest.approx(value, abs=6e-7)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (negative_log_likelihood, -(math.log(0.7) + math.log(0.3)) / 2),
        (brier_score, (0.09 + 0.04 + 0.01 + 0.01 + 0.49 + 0.36) / 2),
        (error_rate, 0.5),
        (signed_calibration_gap, (0.7 + 0.6 - 1) / 2),
    ],
)
def test_score_two_examples_match_hand_computation(metric, value):
    assert metric(PROBS, LABELS).item() == pytest.approx(value, rel=1e-12)


def test_nll_saturated_logits_stay_exact():
    predictions = Predictions(logits=torch.tensor([[0.0, 2000.0], [-3000.0, 0.0]]), labels=[0, 1])
    assert negative_log_likelihood(predictions).item() == pytest.approx(1000.0, rel=1e-12)
    assert negative_log_likelihood(Predictions(logits=torch.tensor([[0.0, 40.0]]), labels=[1])).item() == pytest.approx(
        math.exp(-40), rel=1e-12
    )


def test_nll_label_of_probability_zero_is_infinite():
    assert negative_log_likelihood([[1.0, 0.0]], [1]).item() == math.inf
    assert negative_log_likelihood(Predictions(logits=[[0.0, -math.inf]], labels=[1])).item() == math.inf


def test_error_rate_logits_decide_where_probabilities_tie():
    logits = torch.tensor([[1e20, 1.1e20, 0.0]], dtype=torch.float64)
    assert error_rate(Predictions(logits=logits, labels=[1])).item() == 0
    # 800 below the top is probability zero for both; the larger logit is still the prediction.
    near = torch.tensor([[0.0, 1e-17]], dtype=torch.float64)
    assert error_rate(Predictions(logits=near, labels=[1])).item() == 0


def _two_columns(confidence: list[float]) -> torch.Tensor:
    top = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([top, 1 - top], 1)


def _plain_aurc(errors: list[float]) -> float:
    """Mean selective risk of errors given in falling order of confidence."""
    return sum(sum(errors[:k]) / k for k in range(1, len(errors) + 1)) / len(errors)


def test_aurc_distinct_confidences_match_hand_computation():
    # Falling: 0.9 right, 0.8 wrong, 0.7 right, 0.6 wrong.
    value = area_under_risk_coverage(_two_columns([0.7, 0.9, 0.6, 0.8]), torch.tensor([0, 0, 1, 1]))
    assert value.item() == pytest.approx((0 + 1 / 2 + 1 / 3 + 2 / 4) / 4, rel=1e-13)


def test_aurc_ties_are_the_mean_over_their_orders():
    errors = [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    tied = [errors[:1] + list(p) + errors[4:] for p in itertools.permutations(errors[1:4])]
    expected = sum(_plain_aurc(e) for e in tied) / len(tied)
    value = area_under_risk_coverage(_two_columns([0.95, 0.8, 0.8, 0.8, 0.7, 0.6]), torch.tensor(errors).long())
    assert value.item() == pytest.approx(expected, rel=1e-13)


def test_aurc_many_examples_equal_the_plain_sum():
    # More than a thousand, where harmonic differences are expanded.
    probs, labels = mixed_gaps(5000)
    confidence, predicted = probs.max(1)
    wrong = (predicted != labels).double()[confidence.argsort(descending=True)]
    expected = (wrong.cumsum(0) / torch.arange(1, 5001)).mean().item()
    assert area_under_risk_coverage(probs, labels).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("metric", [area_under_risk_coverage, failure_detection_auroc])
def test_ranking_metric_increasing_transform_of_confidence_changes_nothing(metric):
    top = torch.linspace(0.51, 0.99, 60, dtype=torch.float64)
    labels = (torch.arange(60) * 7 % 5 == 0).long()
    squeezed = 0.5 + (top - 0.5) ** 2
    assert metric(_two_columns(squeezed.tolist()), labels).item() == pytest.approx(
        metric(_two_columns(top.tolist()), labels).item(), rel=1e-12
    )


def test_risk_coverage_area_counts_as_weights_equal_the_examples_they_stand_for():
    probs, labels = hard_gaps(400)
    confidence, predicted = probs.max(1)
    right = (predicted == labels).double()
    cells, group = confidence.unique(return_inverse=True)
    count = torch.bincount(group).double()
    joined = TopLabel(cells, torch.bincount(group, weights=right) / count, count, examples=400)
    expected = area_under_risk_coverage(probs, labels).item()
    assert METRICS["aurc"](joined).item() == pytest.approx(expected, rel=1e-12)


def test_harmonic_difference_is_the_sum_near_and_far():
    start = torch.tensor([0.0, 1.0, 9.0, 10.0, 100.0, 999.0, 1000.0, 5000.0], dtype=torch.float64)
    for width in (1, 3, 400):
        exact = [math.fsum(1 / k for k in range(int(s) + 1, int(s) + width + 1)) for s in start]
        # Digamma is good to a few units of rounding of its own size, the difference to more of its smaller one.
        found = _harmonic_difference(start, torch.full_like(start, width))
        torch.testing.assert_close(found, torch.tensor(exact, dtype=torch.float64), rtol=2e-12, atol=0)


@pytest.mark.parametrize("metric", [area_under_risk_coverage, failure_detection_auroc])
def test_ranking_metric_confidences_that_differ_by_rounding_are_tied(metric):
    votes = torch.tensor([0.7, 0.7, 0.7, 0.7, 0.9, 0.9], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 0, 1])
    rounded = votes + torch.tensor([2, 1, -2, -1, 3, -3], dtype=torch.float64) * 2**-53
    assert len(rounded.unique()) == 6
    found, expected = (float(metric(torch.stack([p, 1 - p], dim=1), labels)) for p in (rounded, votes))
    assert found == pytest.approx(expected, rel=1e-12)
    # What is further apart is told apart.
    apart = torch.stack([votes + torch.tensor([2, 1, -2, -1, 3, -3]) * 1e-12, 1 - votes], dim=1)
    assert abs(float(metric(apart, labels)) - expected) > 0.05


@pytest.mark.parametrize("label", [0, 1])
def test_auroc_nothing_to_separate_is_nan(label):
    assert math.isnan(failure_detection_auroc(_two_columns([0.9, 0.8, 0.8]), torch.full((3,), label)).item())


def _total(parts: BrierParts) -> float:
    return parts.reliability - parts.resolution + parts.uncertainty + parts.within_variance - parts.within_covariance


@pytest.mark.parametrize("n_bins", [1, 2, 15, 100])
@pytest.mark.parametrize("data", [mixed_gaps, hard_gaps])
def test_brier_parts_add_up_to_the_score(n_bins, data):
    probs, labels = data(400)
    for weights in (None, torch.arange(400).double()):
        parts = brier_decomposition(probs, labels, n_bins=n_bins, weights=weights)
        assert _total(parts) == pytest.approx(parts.score, abs=1e-15)


def test_brier_parts_constant_confidence_inside_bins_is_murphys():
    # Confidence 0.9 with accuracy 1/2, confidence 0.6 with accuracy 1; overall 3/4.
    probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]], dtype=torch.float64)
    parts = brier_decomposition(probs, torch.tensor([0, 1, 0, 0]))
    assert parts.reliability == pytest.approx((0.4**2 + 0.4**2) / 2)
    assert parts.resolution == pytest.approx(0.25**2)
    assert parts.uncertainty == pytest.approx(0.75 * 0.25)
    assert parts.within_variance == pytest.approx(0, abs=1e-16)
    assert parts.within_covariance == pytest.approx(0, abs=1e-16)
