from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from calibrant.metrics.binary import (
    binary_adaptive_calibration_error,
    binary_expected_calibration_error,
    binary_maximum_calibration_error,
)
from calibrant.metrics.binned import expected_calibration_error

Metric = Callable[..., torch.Tensor]
METRICS: list[Metric] = [
    binary_expected_calibration_error,
    binary_maximum_calibration_error,
    binary_adaptive_calibration_error,
]
PROBS, LABELS = [0.05, 0.15, 0.15, 0.9], [1, 0, 0, 1]


def sample(n: int = 200, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(n, generator=generator, dtype=torch.float64)
    return probs, (torch.rand(n, generator=generator, dtype=torch.float64) < probs**2).long()


def test_binary_errors_by_hand() -> None:
    # Ten bins: {0.05 positive}, {0.15, 0.15 negative}, {0.9 positive}: gaps 0.95, 0.15, 0.1.
    assert float(binary_expected_calibration_error(PROBS, LABELS, n_bins=10)) == pytest.approx((0.95 + 0.3 + 0.1) / 4)
    squares = (0.95**2 + 2 * 0.15**2 + 0.1**2) / 4
    assert float(binary_expected_calibration_error(PROBS, LABELS, n_bins=10, p=2)) == pytest.approx(math.sqrt(squares))
    assert float(binary_maximum_calibration_error(PROBS, LABELS, n_bins=10)) == pytest.approx(0.95)
    assert float(binary_maximum_calibration_error(PROBS, LABELS, n_bins=10, min_count=2)) == pytest.approx(0.15)
    # Two halves: {0.05 positive, half of the tied pair} and {half of it, 0.9 positive}.
    assert float(binary_adaptive_calibration_error(PROBS, LABELS, n_bins=2)) == pytest.approx((0.4 + 0.025) / 2)
    assert float(binary_adaptive_calibration_error(PROBS, LABELS, n_bins=2, p=math.inf)) == pytest.approx(0.4)


def test_binary_is_not_the_top_label_error_of_two_columns() -> None:
    probs, labels = sample()
    columns = torch.stack([1 - probs, probs], 1)
    binary = float(binary_expected_calibration_error(probs, labels))
    top = float(expected_calibration_error(columns, labels))
    assert binary > 1.5 * top


def test_binary_equals_the_top_label_error_where_the_positive_class_leads() -> None:
    probs, labels = sample()
    probs = 0.5 + probs / 2 + 1e-9
    columns = torch.stack([1 - probs.clamp(max=1), probs.clamp(max=1)], 1)
    expected = float(expected_calibration_error(columns, labels))
    assert float(binary_expected_calibration_error(columns[:, 1], labels)) == pytest.approx(expected, rel=1e-12)


def test_binary_zero_and_one_belong_to_the_outer_bins() -> None:
    assert float(binary_expected_calibration_error([0.0, 0.05, 1.0, 0.95], [0, 0, 1, 1], n_bins=10)) == pytest.approx(0.025)
    assert float(binary_maximum_calibration_error([0.0, 0.05], [1, 0], n_bins=10)) == pytest.approx(0.475)


@pytest.mark.parametrize("metric", METRICS)
def test_binary_lists_arrays_booleans_and_any_shape_agree(metric: Metric) -> None:
    probs, labels = sample(60)
    value = float(metric(probs, labels))
    assert float(metric(probs.numpy(), labels.numpy())) == value
    assert float(metric(probs.tolist(), labels.bool())) == value
    assert float(metric(probs.reshape(3, 4, 5), labels.reshape(3, 4, 5))) == value
    assert metric(probs, labels).dtype == torch.float64


@pytest.mark.parametrize("metric", METRICS)
def test_binary_ignored_and_weightless_examples_do_not_count(metric: Metric) -> None:
    probs, labels = sample(60)
    marked = labels.clone()
    marked[:10] = -100
    expected = float(metric(probs[10:], labels[10:]))
    assert float(metric(probs, marked, ignore_index=-100)) == pytest.approx(expected, rel=1e-12)
    weights = (torch.arange(60) >= 10).double()
    assert float(metric(probs, labels, weights=weights)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_binary_half_precision_counts_do_not_saturate(metric: Metric) -> None:
    probs = torch.full((100_000,), 0.25, dtype=torch.float16)
    labels = (torch.arange(100_000) % 4 == 0).long()
    assert float(metric(probs, labels)) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        ([1, 0], [0.2, 0.8], "`probs` must be floating point, got torch.int64. The arguments look swapped"),
        ([1, 0], [1, 0], r"`probs` must be floating point, got torch.int64\.$"),
        ([[0.1, 0.9]], [1], r"`labels` must be \[1, 2\] as the probs, got \[1\]. Pass `probs\[:, 1\]` of two columns"),
        ([0.1, 0.9], [1], r"`labels` must be \[2\] as the probs, got \[1\]\.$"),
        ([0.1], [0.5], r"`labels` must be class indices 0, 1, 2, …, got 0\.5 in row 0"),
        (np.zeros(0), np.zeros(0, dtype=int), r"`probs` must hold at least one example, got \[0\]"),
        ([0.1, 0.9], [0, 2], r"`labels` must lie in \[0, 1\], got 2"),
        ([0.1, float("nan")], [0, 1], "`probs` must be finite, got NaN in row 1"),
        ([0.1, 1.5], [0, 1], r"`probs` must lie in \[0, 1\], got values from 0.1 to 1.5. They look like logits"),
        ([-0.5, 0.5], [0, 1], r"`probs` must lie in \[0, 1\], got values from -0.5 to 0.5"),
    ],
)
@pytest.mark.parametrize("metric", METRICS)
def test_binary_each_mistake_is_named(metric: Metric, probs: object, labels: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{metric.__name__}: {message}"):
        metric(probs, labels)


@pytest.mark.parametrize("metric", METRICS)
def test_binary_wrong_options_are_named(metric: Metric) -> None:
    with pytest.raises(ValueError, match=f"^{metric.__name__}: `n_bins` must be a whole number >= 1, got 0"):
        metric([0.5], [1], n_bins=0)
    with pytest.raises(ValueError, match=rf"^{metric.__name__}: `weights` must be \[1\] as the labels, got \[2\]"):
        metric([0.5], [1], weights=[1, 2])
    with pytest.raises(ValueError, match=f"^{metric.__name__}: `weights` must have a positive sum"):
        metric([0.5, 0.5], [1, -1], weights=[0, 2], ignore_index=-1)
    with pytest.raises(ValueError, match=f"^{metric.__name__}: `labels` must hold at least one example that is not ignored"):
        metric([0.5], [-1], ignore_index=-1)


@pytest.mark.parametrize("metric", [binary_expected_calibration_error, binary_adaptive_calibration_error])
def test_binary_what_is_no_norm_raises(metric: Metric) -> None:
    with pytest.raises(ValueError, match=f"^{metric.__name__}: `p` must be a number >= 1"):
        metric([0.5], [1], p=0.9)
