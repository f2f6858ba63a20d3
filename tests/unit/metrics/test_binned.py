from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.core.binning import TopLabel
from calibrant.metrics.binned import (
    _monotone_bins,
    adaptive_calibration_error,
    average_calibration_error,
    binary_adaptive_calibration_error,
    binary_expected_calibration_error,
    binary_maximum_calibration_error,
    debiased_calibration_error,
    expected_calibration_error,
    kolmogorov_smirnov_error,
    maximum_calibration_error,
    reliability_bins,
    thresholded_adaptive_calibration_error,
)
from calibrant.metrics.conventions import explain
from calibrant.metrics.kernel import (
    kde_calibration_error,
    maximum_mean_calibration_error,
    smooth_calibration_error,
    smooth_expected_calibration_error,
    squared_kernel_calibration_error,
)
from helpers import golden, mixed_gaps

Metric = Callable[..., torch.Tensor]


# Confidences 0.9, 0.8, 0.6, 0.55 in ten bins; right, wrong, right, wrong.
PROBS = [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.45, 0.55]]


LABELS = [0, 1, 1, 0]


def two_columns(confidence: list[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    top = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([top, 1 - top], 1).to(dtype)


@pytest.mark.parametrize(
    ("metric", "options", "value"),
    [
        (expected_calibration_error, {}, 0.268477),
        (maximum_calibration_error, {}, 0.559181),
        (maximum_calibration_error, {"n_bins": 10}, 0.417924),
        (average_calibration_error, {}, 0.267593),
        (adaptive_calibration_error, {}, 0.334314),
        (adaptive_calibration_error, {"n_bins": 5, "p": 2}, 0.304345),
        (debiased_calibration_error, {"n_bins": 5}, 0.201351),
    ],
)
def test_golden_values_hold(metric: Metric, options: dict[str, float], value: float) -> None:
    logits, labels = golden()
    assert float(metric(logits.softmax(1), labels, **options)) == pytest.approx(value, abs=5.1e-7)


def test_ece_by_hand_in_every_norm() -> None:
    # Bins of a tenth: {0.9 right}, {0.8 wrong}, {0.6 right, 0.55 wrong}: gaps 0.1, 0.8, 0.075 with shares 1/4, 1/4, 1/2.
    assert float(expected_calibration_error(PROBS, LABELS, n_bins=10)) == pytest.approx(0.1 / 4 + 0.8 / 4 + 0.075 / 2)
    squares = 0.01 / 4 + 0.64 / 4 + 0.075**2 / 2
    assert float(expected_calibration_error(PROBS, LABELS, n_bins=10, p=2)) == pytest.approx(math.sqrt(squares))
    cubes = 0.001 / 4 + 0.512 / 4 + 0.075**3 / 2
    assert float(expected_calibration_error(PROBS, LABELS, n_bins=10, p=3)) == pytest.approx(cubes ** (1 / 3))
    assert float(expected_calibration_error(PROBS, LABELS, n_bins=10, p=math.inf)) == pytest.approx(0.8)
    assert float(maximum_calibration_error(PROBS, LABELS, n_bins=10)) == pytest.approx(0.8)
    assert float(average_calibration_error(PROBS, LABELS, n_bins=10)) == pytest.approx((0.1 + 0.8 + 0.075) / 3)


def test_ece_confidence_one_falls_in_last_bin() -> None:
    # A library that opens a bin of its own for 1.0 gives 0.525.
    assert float(expected_calibration_error(two_columns([0.95, 1.0]), [0, 1])) == pytest.approx(0.475)


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


def test_reliability_bins_carry_the_ece() -> None:
    probs, labels = mixed_gaps(500)
    bins = reliability_bins(probs, labels, n_bins=15)
    assert float(bins.weight @ bins.gap.abs()) == pytest.approx(float(expected_calibration_error(probs, labels)), rel=1e-12)
    assert float(bins.count.sum()) == 500
    assert bins.edges.tolist() == pytest.approx(np.linspace(0, 1, 16).tolist())


@pytest.mark.parametrize("p", [0, 0.5, -1, float("nan"), "2", True])
def test_ece_what_is_no_norm_raises(p: object) -> None:
    with pytest.raises(ValueError, match="^expected_calibration_error: `p` must be a number >= 1"):
        expected_calibration_error(PROBS, LABELS, p=p)  # type: ignore[arg-type]


def test_adaptive_by_hand_in_every_norm() -> None:
    # Sorted confidences 0.55 wrong, 0.6 right | 0.8 wrong, 0.9 right: gaps 0.075 and 0.35.
    probs, labels = [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.45, 0.55]], [0, 1, 1, 0]
    assert float(adaptive_calibration_error(probs, labels, n_bins=2)) == pytest.approx((0.075 + 0.35) / 2)
    assert float(adaptive_calibration_error(probs, labels, n_bins=2, p=2)) == pytest.approx(math.sqrt((0.075**2 + 0.35**2) / 2))
    assert float(adaptive_calibration_error(probs, labels, n_bins=2, p=math.inf)) == pytest.approx(0.35)


def test_debiased_by_hand() -> None:
    # Two bins: {0.6 wrong, 0.7 right}: gap 0.15, variance 0.25; {0.8 wrong, 0.9 wrong}: gap 0.85, no variance.
    probs = [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]]
    expected = math.sqrt(0.5 * (0.15**2 - 0.25) + 0.5 * 0.85**2)
    assert float(debiased_calibration_error(probs, [1, 1, 0, 1], n_bins=2)) == pytest.approx(expected)


def test_debiased_weights_enter_by_their_effective_number() -> None:
    # One bin, weights 1 and 3: accuracy 3/4, confidence 0.725, effective number 16 / 10.
    probs, labels = [[0.8, 0.2], [0.3, 0.7]], [1, 1]
    assert float(debiased_calibration_error(probs, labels, n_bins=1, weights=[1, 3])) == 0.0  # fewer than two examples
    probs, labels, weights = [*probs, [0.6, 0.4]], [1, 1, 1], [1.0, 3.0, 2.0]
    accuracy, confidence, effective = 3 / 6, (0.8 + 2.1 + 1.2) / 6, 36 / 14
    expected = max((accuracy - confidence) ** 2 - accuracy * (1 - accuracy) / (effective - 1), 0) ** 0.5
    assert float(debiased_calibration_error(probs, labels, n_bins=1, weights=weights)) == pytest.approx(expected)


def test_debiased_calibrated_model_is_nearer_zero_than_the_plain_one() -> None:
    generator = torch.Generator().manual_seed(0)
    plain, debiased = [], []
    for _ in range(30):
        top = 0.5 + 0.5 * torch.rand(500, generator=generator, dtype=torch.float64)
        labels = (torch.rand(500, generator=generator, dtype=torch.float64) > top).long()
        probs = torch.stack([top, 1 - top], 1)
        plain.append(float(adaptive_calibration_error(probs, labels, p=2)))
        debiased.append(float(debiased_calibration_error(probs, labels)))
    # The plug-in estimate of a calibrated model is about sqrt(M * mean variance / N) = 0.07; the debiased square has mean zero.
    assert np.mean(plain) > 0.06
    assert np.mean(np.square(debiased)) < 0.25 * np.mean(np.square(plain))


@pytest.mark.parametrize(
    ("confidence", "correct", "expected"),
    [
        ([0.5, 0.6, 0.7, 0.8], [0, 0, 1, 1], 4),  # rises throughout
        ([0.5, 0.6, 0.7, 0.8], [1, 1, 1, 1], 4),
        ([0.5, 0.6, 0.7, 0.8], [1, 1, 0, 0], 1),
        ([0.5, 0.6, 0.7, 0.8], [0, 1, 0, 1], 2),  # three bins: 1/2, 0, 1
        ([0.5, 0.6, 0.6, 0.8], [0, 1, 0, 1], 4),  # the tied pair shares one half
        # Three bins: 1/4, then 3/7 twice, whose sums are rounded differently; four: 1/3, 2/7.
        ([0.5] * 2 + [0.6] * 2 + [0.7] * 7, [1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1], 3),
        ([0.7], [0], 1),
    ],
)
def test_sweep_bins_by_hand(confidence: list[float], correct: list[int], expected: int) -> None:
    top = TopLabel(torch.tensor(confidence, dtype=torch.float64), torch.tensor(correct, dtype=torch.float64))
    assert _monotone_bins(top) == expected


def slow_sweep(top: TopLabel) -> int:
    """Largest number of bins reached by adding one at a time while accuracies of array_split parts do not fall."""
    order = np.argsort(top.confidence.numpy(), kind="stable")
    confidence, correct = top.confidence.numpy()[order], top.correct.numpy()[order]
    shared = np.array([correct[confidence == c].mean() for c in confidence])
    for n_bins in range(2, len(top) + 1):
        rates = [part.mean() for part in np.array_split(shared, n_bins)]
        if any(later < earlier - 1e-12 for earlier, later in zip(rates[:-1], rates[1:], strict=True)):
            return n_bins - 1
    return len(top)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 40)), min_size=1, max_size=60))
def test_sweep_bins_agree_with_the_slow_reference(pairs: list[tuple[int, int]]) -> None:
    confidence = torch.tensor([a / 30 for a, _ in pairs], dtype=torch.float64)
    # Rising accuracy, so that the sweep goes on for a while.
    correct = torch.tensor([float(b < a) for a, b in pairs], dtype=torch.float64)
    top = TopLabel(confidence, correct)
    assert _monotone_bins(top) == slow_sweep(top)


def test_ks_by_hand() -> None:
    # Cumulated residuals a - c over 0.6 wrong, 0.7 right, 0.9 wrong: -0.6, -0.3, -1.2, divided by three.
    probs = [[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]]
    assert float(kolmogorov_smirnov_error(probs, [1, 0, 1])) == pytest.approx(0.4)


BINARY: list[Metric] = [
    binary_expected_calibration_error,
    binary_maximum_calibration_error,
    binary_adaptive_calibration_error,
]


POSITIVE, HAPPENED = [0.05, 0.15, 0.15, 0.9], [1, 0, 0, 1]


def test_binary_errors_by_hand() -> None:
    # Ten bins: {0.05 positive}, {0.15, 0.15 negative}, {0.9 positive}: gaps 0.95, 0.15, 0.1.
    assert float(binary_expected_calibration_error(POSITIVE, HAPPENED, n_bins=10)) == pytest.approx((0.95 + 0.3 + 0.1) / 4)
    squares = (0.95**2 + 2 * 0.15**2 + 0.1**2) / 4
    assert float(binary_expected_calibration_error(POSITIVE, HAPPENED, n_bins=10, p=2)) == pytest.approx(math.sqrt(squares))
    assert float(binary_maximum_calibration_error(POSITIVE, HAPPENED, n_bins=10)) == pytest.approx(0.95)
    assert float(binary_maximum_calibration_error(POSITIVE, HAPPENED, n_bins=10, min_count=2)) == pytest.approx(0.15)
    # Two halves: {0.05 positive, half of the tied pair} and {half of it, 0.9 positive}.
    assert float(binary_adaptive_calibration_error(POSITIVE, HAPPENED, n_bins=2)) == pytest.approx((0.4 + 0.025) / 2)
    assert float(binary_adaptive_calibration_error(POSITIVE, HAPPENED, n_bins=2, p=math.inf)) == pytest.approx(0.4)


def test_binary_zero_and_one_belong_to_the_outer_bins() -> None:
    assert float(binary_expected_calibration_error([0.0, 0.05, 1.0, 0.95], [0, 0, 1, 1], n_bins=10)) == pytest.approx(0.025)
    assert float(binary_maximum_calibration_error([0.0, 0.05], [1, 0], n_bins=10)) == pytest.approx(0.475)


def test_binary_takes_lists_booleans_and_any_shape() -> None:
    probs, labels = torch.linspace(0.1, 0.9, 60, dtype=torch.float64), torch.arange(60) % 3 == 0
    for metric in (binary_expected_calibration_error, binary_maximum_calibration_error, binary_adaptive_calibration_error):
        value = float(metric(probs, labels))
        assert float(metric(probs.tolist(), labels.long().tolist())) == value
        assert float(metric(probs.reshape(3, 4, 5), labels.reshape(3, 4, 5))) == value
        with pytest.raises(ValueError, match=rf"^{metric.__name__}: `probs` must lie in \[0, 1\]"):
            metric([0.1, 1.5], [0, 1])


@pytest.mark.parametrize(
    ("metric", "options", "name"),
    [
        (thresholded_adaptive_calibration_error, {"threshold": 1.0}, "threshold"),
        (smooth_expected_calibration_error, {"bandwidth": 0}, "bandwidth"),
        (smooth_expected_calibration_error, {"accuracy": "top"}, "accuracy"),
        (smooth_calibration_error, {"bandwidth": 1e-7}, "bandwidth"),
        (smooth_calibration_error, {"convention": "paper"}, "convention"),
        (maximum_mean_calibration_error, {"scale": -1}, "scale"),
        (squared_kernel_calibration_error, {"weights": [1.0, 0.0, 0.0, 0.0]}, "probs"),
        (kde_calibration_error, {"p": 0.5, "bandwidth": 0.1}, "p"),
        (kde_calibration_error, {"bandwidth": -1}, "bandwidth"),
        (explain, {"binning": "x"}, "binning"),
        (explain, {"n_bins": 0}, "n_bins"),
    ],
)
def test_options_out_of_range_are_named(metric: Metric, options: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{metric.__name__}: `{name}` must "):
        metric(PROBS, LABELS, **options)
