from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.core.binning import TopLabel, mass_curve
from calibrant.metrics.adaptive import (
    adaptive_calibration_error,
    debiased_calibration_error,
    kolmogorov_smirnov_error,
    sweep_bins,
    sweep_calibration_error,
)
from helpers import golden, mixed_gaps

Metric = Callable[..., torch.Tensor]
METRICS: list[Metric] = [
    adaptive_calibration_error,
    debiased_calibration_error,
    sweep_calibration_error,
    kolmogorov_smirnov_error,
]


def rounded(n: int = 300, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities with many tied confidences."""
    probs, labels = mixed_gaps(n, 4, seed=seed)
    coarse = (probs * 8).round() + 0.5
    return coarse / coarse.sum(1, keepdim=True), labels


@pytest.mark.parametrize(
    ("metric", "options", "value"),
    [
        (adaptive_calibration_error, {}, 0.334314),
        (adaptive_calibration_error, {"n_bins": 5, "p": 2}, 0.304345),
        (debiased_calibration_error, {"n_bins": 5}, 0.201351),
    ],
)
def test_golden_values_hold(metric: Metric, options: dict[str, float], value: float) -> None:
    logits, labels = golden()
    assert float(metric(logits.softmax(1), labels, **options)) == pytest.approx(value, abs=5.1e-7)


def test_adaptive_by_hand_in_every_norm() -> None:
    # Sorted confidences 0.55 wrong, 0.6 right | 0.8 wrong, 0.9 right: gaps 0.075 and 0.35.
    probs, labels = [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.45, 0.55]], [0, 1, 1, 0]
    assert float(adaptive_calibration_error(probs, labels, n_bins=2)) == pytest.approx((0.075 + 0.35) / 2)
    assert float(adaptive_calibration_error(probs, labels, n_bins=2, p=2)) == pytest.approx(math.sqrt((0.075**2 + 0.35**2) / 2))
    assert float(adaptive_calibration_error(probs, labels, n_bins=2, p=math.inf)) == pytest.approx(0.35)


def test_adaptive_all_confidences_tied_is_the_overall_gap() -> None:
    # Rules that cut at confidences lose every example here and report zero.
    probs = torch.tensor([[0.95, 0.05]], dtype=torch.float64).repeat(7, 1)
    assert float(adaptive_calibration_error(probs, torch.ones(7, dtype=torch.long))) == pytest.approx(0.95)
    assert float(adaptive_calibration_error(probs, torch.tensor([1, 0, 0, 0, 0, 0, 0]))) == pytest.approx(0.95 - 6 / 7)


def test_adaptive_as_many_bins_as_examples_is_the_mean_absolute_error() -> None:
    probs, labels = mixed_gaps(50)
    residual = probs.amax(1) - (probs.argmax(1) == labels).double()
    for n_bins in (50, 80):
        value = float(adaptive_calibration_error(probs, labels, n_bins=n_bins))
        assert value == pytest.approx(float(residual.abs().mean()), rel=1e-12)


def test_debiased_by_hand() -> None:
    # Two bins: {0.6 wrong, 0.7 right}: gap 0.15, variance 0.25; {0.8 wrong, 0.9 wrong}: gap 0.85, no variance.
    probs = [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]]
    expected = math.sqrt(0.5 * (0.15**2 - 0.25) + 0.5 * 0.85**2)
    assert float(debiased_calibration_error(probs, [1, 1, 0, 1], n_bins=2)) == pytest.approx(expected)


def test_debiased_negative_estimate_is_clipped_to_zero() -> None:
    probs = torch.tensor([[0.5, 0.5]], dtype=torch.float64).repeat(4, 1)
    assert float(debiased_calibration_error(probs, [0, 1, 0, 1], n_bins=1)) == 0.0


def test_debiased_bins_of_one_example_count_nothing() -> None:
    assert float(debiased_calibration_error([[0.9, 0.1], [0.2, 0.8]], [1, 0], n_bins=2)) == 0.0


def test_debiased_weights_enter_by_their_effective_number() -> None:
    # One bin, weights 1 and 3: accuracy 3/4, confidence 0.725, effective number 16 / 10.
    probs, labels = [[0.8, 0.2], [0.3, 0.7]], [1, 1]
    assert float(debiased_calibration_error(probs, labels, n_bins=1, weights=[1, 3])) == 0.0  # fewer than two examples
    probs, labels, weights = [*probs, [0.6, 0.4]], [1, 1, 1], [1.0, 3.0, 2.0]
    accuracy, confidence, effective = 3 / 6, (0.8 + 2.1 + 1.2) / 6, 36 / 14
    expected = max((accuracy - confidence) ** 2 - accuracy * (1 - accuracy) / (effective - 1), 0) ** 0.5
    assert float(debiased_calibration_error(probs, labels, n_bins=1, weights=weights)) == pytest.approx(expected)


@pytest.mark.parametrize("weight", [0.1, 0.3, 0.7, 1.1, 1e-3])
def test_debiased_bins_of_two_count_whatever_their_weight(weight: float) -> None:
    probs, labels = mixed_gaps(30)
    plain = debiased_calibration_error(probs, labels)
    weighted = debiased_calibration_error(probs, labels, weights=torch.full((30,), weight, dtype=torch.float64))
    assert float(weighted) == pytest.approx(float(plain), rel=1e-9)
    assert float(plain) > 0


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
    assert sweep_bins(mass_curve(top)) == expected


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
    assert sweep_bins(mass_curve(top)) == slow_sweep(top)


def test_sweep_error_is_the_adaptive_error_with_the_swept_number() -> None:
    probs, labels = mixed_gaps(1000)
    top = TopLabel(probs.amax(1), (probs.argmax(1) == labels).double())
    n_bins = sweep_bins(mass_curve(top))
    assert n_bins > 1
    for p in (1, 2):
        expected = float(adaptive_calibration_error(probs, labels, n_bins=n_bins, p=p))
        assert float(sweep_calibration_error(probs, labels, p=p)) == pytest.approx(expected, rel=1e-12)


def test_sweep_perfect_predictions_take_no_sweep() -> None:
    top = 0.5 + 0.5 * torch.rand(50_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = time.process_time()
    value = float(sweep_calibration_error(torch.stack([top, 1 - top], 1), torch.zeros(50_000, dtype=torch.long)))
    # Checking every number of bins would take a minute of processor time, and this takes milliseconds.
    assert time.process_time() - start < 10
    assert value == pytest.approx(float((1 - top).mean()))


def test_ks_by_hand() -> None:
    # Cumulated residuals a - c over 0.6 wrong, 0.7 right, 0.9 wrong: -0.6, -0.3, -1.2, divided by three.
    probs = [[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]]
    assert float(kolmogorov_smirnov_error(probs, [1, 0, 1])) == pytest.approx(0.4)


def test_ks_tied_confidences_enter_together() -> None:
    probs = [[0.5, 0.5]] * 2
    assert float(kolmogorov_smirnov_error(probs, [0, 1])) == pytest.approx(0.0)
    assert float(kolmogorov_smirnov_error(probs, [1, 0])) == pytest.approx(0.0)


def test_ks_one_sided_gap_is_the_overall_gap() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], dtype=torch.float64)
    assert float(kolmogorov_smirnov_error(probs, [1, 1, 1])) == pytest.approx(0.8)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_order_of_tied_samples_does_not_matter(metric: Metric, dtype: torch.dtype) -> None:
    probs, labels = rounded()
    probs = probs.to(dtype)
    value = float(metric(probs, labels))
    for seed in range(3):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        assert float(metric(probs[order], labels[order])) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_unit_weights_change_nothing_and_scale_does_not_matter(metric: Metric) -> None:
    probs, labels = rounded()
    plain = float(metric(probs, labels))
    for weights in (torch.ones(300), torch.full((300,), 0.25)):
        assert float(metric(probs, labels, weights=weights)) == pytest.approx(plain, abs=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_zero_weight_is_absence(metric: Metric) -> None:
    probs, labels = mixed_gaps(200)
    weights = (torch.arange(200) % 3 > 0).double()
    kept = weights > 0
    assert float(metric(probs, labels, weights=weights)) == pytest.approx(float(metric(probs[kept], labels[kept])), abs=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_perfect_predictions_have_no_error(metric: Metric) -> None:
    assert float(metric([[1.0, 0.0]] * 20, [0] * 20)) == 0.0


@pytest.mark.parametrize("metric", METRICS)
def test_worst_predictions_have_error_one(metric: Metric) -> None:
    assert float(metric([[1.0, 0.0]] * 40, [1] * 40)) == pytest.approx(1.0)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("n", [1, 2, 3, 16])
def test_few_samples_give_a_finite_number_in_range(metric: Metric, n: int) -> None:
    probs, labels = mixed_gaps(n)
    value = metric(probs, labels)
    assert value.dtype == torch.float64
    assert value.shape == ()
    assert 0 <= float(value) <= 1


@pytest.mark.parametrize("metric", METRICS)
def test_dense_input_and_ignored_examples(metric: Metric) -> None:
    probs, labels = mixed_gaps(60, 4)
    dense, marked = probs.reshape(3, 20, 4).movedim(-1, 1), labels.reshape(3, 20).clone()
    marked[0, :5] = -1
    assert float(metric(dense, marked, ignore_index=-1)) == pytest.approx(float(metric(probs[5:], labels[5:])), abs=1e-14)


def test_messages_name_the_metric() -> None:
    with pytest.raises(ValueError, match="^adaptive_calibration_error: `n_bins` must be a whole number >= 1, got 0"):
        adaptive_calibration_error([[0.5, 0.5]], [0], n_bins=0)
    with pytest.raises(ValueError, match="^adaptive_calibration_error: `p` must be a number >= 1"):
        adaptive_calibration_error([[0.5, 0.5]], [0], p=0)
    with pytest.raises(ValueError, match="^debiased_calibration_error: `n_bins` must be a whole number >= 1, got 1.5"):
        debiased_calibration_error([[0.5, 0.5]], [0], n_bins=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^sweep_calibration_error: `p` must be a number >= 1"):
        sweep_calibration_error([[0.5, 0.5]], [0], p=0.5)
    with pytest.raises(ValueError, match="^kolmogorov_smirnov_error: `probs` must be finite, got NaN in row 0"):
        kolmogorov_smirnov_error([[float("nan"), 0.5]], [0])
