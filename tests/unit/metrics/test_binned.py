from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.metrics.binned import (
    average_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    reliability_bins,
)
from helpers import golden, mixed_gaps

Metric = Callable[..., torch.Tensor]
METRICS: list[Metric] = [expected_calibration_error, maximum_calibration_error, average_calibration_error]

# Confidences 0.9, 0.8, 0.6, 0.55 in ten bins; right, wrong, right, wrong.
PROBS = [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.45, 0.55]]
LABELS = [0, 1, 1, 0]


def two_columns(confidence: list[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    top = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([top, 1 - top], 1).to(dtype)


@pytest.mark.parametrize(
    ("metric", "n_bins", "value"),
    [
        (expected_calibration_error, 15, 0.268477),
        (maximum_calibration_error, 15, 0.559181),
        (maximum_calibration_error, 10, 0.417924),
        (average_calibration_error, 15, 0.267593),
    ],
)
def test_golden_values_hold(metric: Metric, n_bins: int, value: float) -> None:
    logits, labels = golden()
    assert float(metric(logits.softmax(1), labels, n_bins=n_bins)) == pytest.approx(value, abs=5.1e-7)


def test_ece_by_hand_in_every_norm() -> None:
    # Bins of a tenth: {0.9 right}, {0.8 wrong}, {0.6 right, 0.55 wrong}: gaps 0.1, 0.8, 0.075 with shares 1/4, 1/4, 1/2.
    assert float(expected_calibration_error(PROBS, LABELS, n_bins=10)) == pytest.approx(0.1 / 4 + 0.8 / 4 + 0.075 / 2)
    squares = 0.01 / 4 + 0.64 / 4 + 0.075**2 / 2
    assert float(expected_calibration_error(PROBS, LABELS, n_bins=10, p=2)) == pytest.approx(math.sqrt(squares))
    cubes = 0.001 / 4 + 0.512 / 4 + 0.075**3 / 2
    assert float(expected_calibration_error(PROBS, LABELS, n_bins=10, p=3)) == pytest.approx(cubes ** (1 / 3))
    assert float(expected_calibration_error(PROBS, LABELS, n_bins=10, p=math.inf)) == pytest.approx(0.8)


def test_mce_and_average_by_hand() -> None:
    assert float(maximum_calibration_error(PROBS, LABELS, n_bins=10)) == pytest.approx(0.8)
    assert float(average_calibration_error(PROBS, LABELS, n_bins=10)) == pytest.approx((0.1 + 0.8 + 0.075) / 3)


def test_ece_confidence_one_falls_in_last_bin() -> None:
    # A library that opens a bin of its own for 1.0 gives 0.525.
    assert float(expected_calibration_error(two_columns([0.95, 1.0]), [0, 1])) == pytest.approx(0.475)


def test_ece_confidence_on_an_edge_falls_in_the_bin_below() -> None:
    probs = two_columns([0.6, 0.61])
    assert float(expected_calibration_error(probs, [0, 1], n_bins=5)) == pytest.approx((0.4 + 0.61) / 2)
    assert float(expected_calibration_error(two_columns([0.6, 0.59]), [0, 1], n_bins=5)) == pytest.approx(abs(0.595 - 0.5))


@pytest.mark.parametrize("metric", METRICS)
def test_perfect_predictions_have_no_error(metric: Metric) -> None:
    assert float(metric([[1.0, 0.0], [0.0, 1.0]], [0, 1])) == 0.0


@pytest.mark.parametrize("metric", METRICS)
def test_worst_predictions_have_error_one(metric: Metric) -> None:
    assert float(metric([[1.0, 0.0], [0.0, 1.0]], [1, 0])) == 1.0


@pytest.mark.parametrize("metric", METRICS)
def test_calibrated_bin_has_no_error(metric: Metric) -> None:
    probs = two_columns([0.75] * 8)
    assert float(metric(probs, [0, 0, 0, 0, 0, 0, 1, 1])) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("metric", METRICS)
def test_result_is_a_float64_scalar_on_the_cpu_for_every_input(metric: Metric) -> None:
    probs, labels = mixed_gaps(200)
    expected = float(metric(probs, labels))
    for given_probs, given_labels in (
        (probs.numpy(), labels.numpy()),
        (probs.tolist(), labels.tolist()),
        (probs.clone().requires_grad_(), labels.int()),
    ):
        value = metric(given_probs, given_labels)
        assert value.shape == ()
        assert value.dtype == torch.float64
        assert value.device.type == "cpu"
        assert not value.requires_grad
        assert float(value) == expected


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 6e-3)])
def test_ece_low_precision_stays_near_the_float64_value(dtype: torch.dtype, tolerance: float) -> None:
    probs, labels = mixed_gaps(20_000)
    assert float(expected_calibration_error(probs.to(dtype), labels)) == pytest.approx(
        float(expected_calibration_error(probs, labels)), abs=tolerance
    )


def test_ece_float16_counts_do_not_saturate() -> None:
    probs = two_columns([0.75, 0.75, 0.75, 0.75], torch.float16).repeat(25_000, 1)
    labels = torch.tensor([0, 0, 0, 1]).repeat(25_000)
    assert float(expected_calibration_error(probs, labels)) == 0.0
    assert float(expected_calibration_error(probs, torch.zeros_like(labels))) == 0.25


@pytest.mark.parametrize("metric", METRICS)
def test_dense_input_equals_its_flattened_form(metric: Metric) -> None:
    probs, labels = mixed_gaps(24, 4)
    dense = probs.reshape(2, 3, 4, 4).movedim(-1, 1)
    assert dense.shape == (2, 4, 3, 4)
    assert float(metric(dense, labels.reshape(2, 3, 4))) == float(metric(probs, labels))


@pytest.mark.parametrize("metric", METRICS)
def test_ignored_examples_do_not_count(metric: Metric) -> None:
    probs, labels = mixed_gaps(100)
    marked = labels.clone()
    marked[::3] = 255
    kept = marked != 255
    assert float(metric(probs, marked, ignore_index=255)) == float(metric(probs[kept], labels[kept]))


@pytest.mark.parametrize("metric", METRICS)
def test_integer_weights_equal_repetition(metric: Metric) -> None:
    probs, labels = mixed_gaps(60)
    weights = torch.arange(60) % 4
    repeated = metric(probs.repeat_interleave(weights, 0), labels.repeat_interleave(weights))
    assert float(metric(probs, labels, weights=weights)) == pytest.approx(float(repeated), rel=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_scaled_weights_change_nothing(metric: Metric) -> None:
    probs, labels = mixed_gaps(60)
    weights = torch.linspace(0.1, 3, 60, dtype=torch.float64)
    first, second = (float(metric(probs, labels, weights=w)) for w in (weights, weights / 1000))
    assert first == pytest.approx(second, rel=1e-12)


def test_mce_min_count_leaves_small_bins_out() -> None:
    assert float(maximum_calibration_error(PROBS, LABELS, n_bins=10, min_count=2)) == pytest.approx(0.075)
    with pytest.raises(ValueError, match=r"`min_count` must be reached by some bin, got 3 where the largest holds 2"):
        maximum_calibration_error(PROBS, LABELS, n_bins=10, min_count=3)


def test_mce_min_count_counts_examples_of_positive_weight() -> None:
    weights = [5.0, 5.0, 0.1, 0.1]
    assert float(maximum_calibration_error(PROBS, LABELS, n_bins=10, min_count=2, weights=weights)) == pytest.approx(0.075)
    with pytest.raises(ValueError, match="got 2 where the largest holds 1"):
        maximum_calibration_error(PROBS, LABELS, n_bins=10, min_count=2, weights=[1, 1, 1, 0])
    with pytest.raises(ValueError, match="`min_count` must be a whole number >= 1, got 0.5"):
        maximum_calibration_error(PROBS, LABELS, min_count=0.5)  # type: ignore[arg-type]


def test_ece_fewer_samples_than_bins_and_an_absent_class_work() -> None:
    assert float(expected_calibration_error([[0.2, 0.7, 0.1]], [1], n_bins=100)) == pytest.approx(0.3)


def test_ece_one_bin_is_the_overall_gap() -> None:
    probs, labels = mixed_gaps(300)
    gap = (probs.amax(1).mean() - (probs.argmax(1) == labels).double().mean()).abs()
    assert float(expected_calibration_error(probs, labels, n_bins=1)) == pytest.approx(float(gap), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000), st.integers(1, 40), st.integers(2, 8), st.integers(1, 60), st.sampled_from([1, 1.5, 2, math.inf])
)
def test_ece_range_order_and_norms_hold(seed: int, n: int, num_classes: int, n_bins: int, p: float) -> None:
    probs, labels = mixed_gaps(n, num_classes, seed=seed)
    value = float(expected_calibration_error(probs, labels, n_bins=n_bins, p=p))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    assert 0 <= value <= 1
    assert float(expected_calibration_error(probs[order], labels[order], n_bins=n_bins, p=p)) == pytest.approx(value, abs=1e-12)
    assert float(expected_calibration_error(probs, labels, n_bins=n_bins)) <= value + 1e-12


def test_reliability_bins_carry_the_ece() -> None:
    probs, labels = mixed_gaps(500)
    bins = reliability_bins(probs, labels, n_bins=15)
    assert float(bins.weight @ bins.gap.abs()) == pytest.approx(float(expected_calibration_error(probs, labels)), rel=1e-12)
    assert float(bins.count.sum()) == 500
    assert bins.edges.tolist() == pytest.approx(np.linspace(0, 1, 16).tolist())


def test_reliability_bins_by_mass_hold_equal_counts() -> None:
    probs, labels = mixed_gaps(500)
    bins = reliability_bins(probs, labels, n_bins=10, binning="mass")
    assert bins.count.tolist() == [50.0] * 10
    assert float(bins.edges[0]) == float(probs.amax(1).min())
    assert float(bins.edges[-1]) == float(probs.amax(1).max())


def test_reliability_bins_unknown_binning_raises() -> None:
    with pytest.raises(ValueError, match="^reliability_bins: `binning` must be 'width' or 'mass', got 'depth'"):
        reliability_bins(PROBS, LABELS, n_bins=2, binning="depth")  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", METRICS)
def test_messages_name_the_metric(metric: Metric) -> None:
    name = metric.__name__
    with pytest.raises(ValueError, match=f"^{name}: `n_bins` must be a whole number >= 1, got 0"):
        metric(PROBS, LABELS, n_bins=0)
    with pytest.raises(ValueError, match=rf"^{name}: `labels` must be \[N\] = \[4\], got \[3\]"):
        metric(PROBS, LABELS[:3])


@pytest.mark.parametrize("p", [0, 0.5, -1, float("nan"), "2", True])
def test_ece_what_is_no_norm_raises(p: object) -> None:
    with pytest.raises(ValueError, match="^expected_calibration_error: `p` must be a number >= 1"):
        expected_calibration_error(PROBS, LABELS, p=p)  # type: ignore[arg-type]


def test_metrics_leave_their_arguments_alone() -> None:
    probs, labels = mixed_gaps(100, dtype=torch.float32)
    before = probs.clone()
    for metric in METRICS:
        metric(probs, labels)
    assert torch.equal(probs, before)


@pytest.mark.cuda
@pytest.mark.parametrize("metric", METRICS)
def test_cuda_input_gives_the_same_number_on_the_cpu(metric: Metric) -> None:
    probs, labels = mixed_gaps(5000, dtype=torch.float32)
    value = metric(probs.cuda(), labels.cuda())
    assert value.device.type == "cpu"
    assert float(value) == float(metric(probs, labels))
