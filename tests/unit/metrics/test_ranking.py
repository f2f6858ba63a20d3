from __future__ import annotations

import itertools
import math

import pytest
import torch

from calibrant.core.top_label import TopLabel
from calibrant.metrics.ranking import (
    _harmonic_difference,
    area_under_risk_coverage,
    failure_detection_auroc,
    risk_coverage_area,
)
from helpers import hard_gaps, mixed_gaps


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


def test_aurc_all_tied_is_the_error_rate():
    value = area_under_risk_coverage(_two_columns([0.8] * 10), torch.tensor([0] * 7 + [1] * 3))
    assert value.item() == pytest.approx(0.3, rel=1e-13)


def test_aurc_all_right_is_zero_and_all_wrong_is_one():
    probs = _two_columns([0.6, 0.7, 0.7, 0.9])
    assert area_under_risk_coverage(probs, torch.zeros(4, dtype=torch.long)).item() == 0
    assert area_under_risk_coverage(probs, torch.ones(4, dtype=torch.long)).item() == pytest.approx(1, rel=1e-13)


def test_aurc_many_examples_equal_the_plain_sum():
    # More than a thousand, where harmonic differences are expanded.
    probs, labels = mixed_gaps(5000)
    confidence, predicted = probs.max(1)
    wrong = (predicted != labels).double()[confidence.argsort(descending=True)]
    expected = (wrong.cumsum(0) / torch.arange(1, 5001)).mean().item()
    assert area_under_risk_coverage(probs, labels).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("metric", [area_under_risk_coverage, failure_detection_auroc])
def test_ranking_metric_sample_order_does_not_matter(metric):
    probs, labels = hard_gaps(400)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    assert metric(probs[order], labels[order]).item() == pytest.approx(metric(probs, labels).item(), rel=1e-12)


@pytest.mark.parametrize("metric", [area_under_risk_coverage, failure_detection_auroc])
def test_ranking_metric_increasing_transform_of_confidence_changes_nothing(metric):
    top = torch.linspace(0.51, 0.99, 60, dtype=torch.float64)
    labels = (torch.arange(60) * 7 % 5 == 0).long()
    squeezed = 0.5 + (top - 0.5) ** 2
    assert metric(_two_columns(squeezed.tolist()), labels).item() == pytest.approx(
        metric(_two_columns(top.tolist()), labels).item(), rel=1e-12
    )


@pytest.mark.parametrize("metric", [area_under_risk_coverage, failure_detection_auroc])
def test_ranking_metric_weights_of_any_scale_and_zero_weights_behave(metric):
    probs, labels = hard_gaps(400)
    plain = metric(probs, labels).item()
    assert metric(probs, labels, weights=torch.full((400,), 0.01)).item() == pytest.approx(plain, rel=1e-11)
    kept = torch.arange(400) % 3 > 0
    left_out = metric(probs, labels, weights=kept.double() * 3)
    assert left_out.item() == pytest.approx(metric(probs[kept], labels[kept]).item(), rel=1e-11)


def test_risk_coverage_area_counts_as_weights_equal_the_examples_they_stand_for():
    probs, labels = hard_gaps(400)
    confidence, predicted = probs.max(1)
    right = (predicted == labels).double()
    cells, group = confidence.unique(return_inverse=True)
    count = torch.bincount(group).double()
    joined = TopLabel(cells, torch.bincount(group, weights=right) / count, count)
    expected = area_under_risk_coverage(probs, labels).item()
    assert risk_coverage_area(joined, size=400).item() == pytest.approx(expected, rel=1e-12)


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


def test_auroc_ties_count_half():
    # Right at 0.9 and 0.7; wrong at 0.7 and 0.6: three wins and one tie of four pairs.
    value = failure_detection_auroc(_two_columns([0.9, 0.7, 0.7, 0.6]), torch.tensor([0, 0, 1, 1]))
    assert value.item() == pytest.approx(3.5 / 4, rel=1e-13)


def test_auroc_perfect_separation_is_one():
    assert failure_detection_auroc(_two_columns([0.9, 0.8, 0.6]), torch.tensor([0, 0, 1])).item() == 1


@pytest.mark.parametrize("label", [0, 1])
def test_auroc_nothing_to_separate_is_nan(label):
    assert math.isnan(failure_detection_auroc(_two_columns([0.9, 0.8, 0.8]), torch.full((3,), label)).item())


@pytest.mark.parametrize("metric", [area_under_risk_coverage, failure_detection_auroc])
def test_ranking_metric_numpy_float32_and_ignored_examples_work(metric):
    probs, labels = mixed_gaps(120, dtype=torch.float32)
    value = metric(probs.numpy(), labels.numpy())
    assert (value.dtype, value.shape) == (torch.float64, torch.Size([]))
    marked = torch.where(torch.arange(120) < 20, -1, labels)
    assert metric(probs, marked, ignore_index=-1).item() == metric(probs[20:], labels[20:]).item()


@pytest.mark.parametrize("metric", [area_under_risk_coverage, failure_detection_auroc])
def test_ranking_metric_one_hot_labels_raise(metric):
    with pytest.raises(ValueError, match=rf"{metric.__name__}: `labels` must be \[N\] = \[4\].*one-hot"):
        metric(torch.eye(4), torch.eye(4).long())
