from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import beta

from calibrant.metrics.kernel import (
    _BANDWIDTHS,
    kde_calibration_error,
    maximum_mean_calibration_error,
    smooth_calibration_error,
    smooth_expected_calibration_error,
    squared_kernel_calibration_error,
)
from helpers import golden, hard_gaps, mixed_gaps

Metric = Callable[..., torch.Tensor]


# Confidences 0.9 (right), 0.8 (wrong), 0.6 (right).
PROBS = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], dtype=torch.float64)


LABELS = torch.tensor([0, 0, 1])


@pytest.mark.parametrize(
    ("accuracy", "bandwidth", "value"),
    [
        ("hard", 0.01, 0.352170),
        ("hard", 0.05, 0.272692),
        ("hard", 0.1, 0.260245),
        ("hard", 1e-6, 0.469532),
        ("hard", 10, 0.203091),
        ("soft", 0.01, 0.330263),
        ("soft", 0.05, 0.249719),
        ("soft", 0.1, 0.237284),
        ("soft", 1e-6, 0.434057),
        ("soft", 10, 0.206366),
    ],
)
def test_sece_golden_input_gives_golden_value(accuracy, bandwidth, value):
    logits, labels = golden()
    sece = smooth_expected_calibration_error(logits.softmax(1), labels, bandwidth=bandwidth, accuracy=accuracy)
    assert sece.item() == pytest.approx(value, abs=6e-7)  # printed to six digits


def test_sece_three_examples_match_hand_computation():
    near, mid, far = math.exp(-0.5), math.exp(-2.0), math.exp(-4.5)
    smooth = [(1 + far) / (1 + near + far), (near + mid) / (1 + near + mid), (far + 1) / (1 + mid + far)]
    expected = (abs(smooth[0] - 0.9) + abs(smooth[1] - 0.8) + abs(smooth[2] - 0.6)) / 3
    assert smooth_expected_calibration_error(PROBS, LABELS, bandwidth=0.1).item() == pytest.approx(expected, rel=1e-12)


def test_sece_tiny_bandwidth_is_mean_absolute_error():
    probs, labels = mixed_gaps(3000)
    confidence, predicted = probs.max(1)
    expected = ((predicted == labels).double() - confidence).abs().mean()
    assert smooth_expected_calibration_error(probs, labels, bandwidth=1e-12).item() == pytest.approx(expected.item(), rel=1e-12)


def test_mmce_three_examples_match_hand_computation():
    residual = [0.1, -0.8, 0.4]
    near, mid, far = math.exp(-0.1 / 0.4), math.exp(-0.2 / 0.4), math.exp(-0.3 / 0.4)
    square = sum(r * r for r in residual)
    square += 2 * (residual[0] * residual[1] * near + residual[1] * residual[2] * mid + residual[0] * residual[2] * far)
    assert maximum_mean_calibration_error(PROBS, LABELS).item() == pytest.approx(math.sqrt(square) / 3, rel=1e-12)


def test_skce_three_examples_match_hand_computation():
    residual = [0.1, -0.8, 0.4]
    near, mid, far = math.exp(-0.5), math.exp(-2.0), math.exp(-4.5)
    pairs = residual[0] * residual[1] * near + residual[1] * residual[2] * mid + residual[0] * residual[2] * far
    assert squared_kernel_calibration_error(PROBS, LABELS).item() == pytest.approx(pairs / 3, rel=1e-12)


def test_skce_calibrated_labels_scatter_around_zero():
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(50, 4, generator=generator, dtype=torch.float64).softmax(1)
    values = torch.stack(
        [
            squared_kernel_calibration_error(probs, torch.multinomial(probs, 1, generator=generator).squeeze(1))
            for _ in range(300)
        ]
    )
    # Unbiased: the mean of 300 draws lies within four standard errors of zero, and draws of both signs occur.
    assert abs(values.mean()) < 4 * values.std() / math.sqrt(300)
    assert values.min() < 0 < values.max()


@pytest.mark.parametrize("metric", [smooth_expected_calibration_error, maximum_mean_calibration_error])
def test_kernel_metric_whole_weights_equal_repeated_examples(metric):
    probs, labels = mixed_gaps(200)
    count = torch.arange(200) % 4
    repeated = metric(probs.repeat_interleave(count, 0), labels.repeat_interleave(count))
    assert metric(probs, labels, weights=count).item() == pytest.approx(repeated.item(), rel=1e-12)


def _by_loops(
    confidence: np.ndarray, correct: np.ndarray, bandwidth: float, weights: np.ndarray | None = None, p: float = 1
) -> float:
    """The definition, example by example, with scipy's density."""
    weights = np.ones(len(confidence)) if weights is None else weights
    centre = confidence.clip(1e-7, 1 - 1e-7)
    gaps = []
    for i in range(len(centre)):
        others = np.arange(len(centre)) != i
        kernel = beta.logpdf(centre[i], centre[others] / bandwidth + 1, (1 - centre[others]) / bandwidth + 1)
        kernel = weights[others] * np.exp(kernel - kernel.max())
        gaps.append(abs(kernel @ correct[others] / kernel.sum() - confidence[i]) ** p)
    return float(np.average(gaps, weights=weights))


def _likelihood_by_loops(confidence: np.ndarray, bandwidth: float) -> float:
    total = 0.0
    for i in range(len(confidence)):
        others = np.delete(confidence, i)
        total += np.log(beta.pdf(confidence[i], others / bandwidth + 1, (1 - others) / bandwidth + 1).mean())
    return total / len(confidence)


@pytest.mark.parametrize("data", [mixed_gaps, hard_gaps])
@pytest.mark.parametrize(("bandwidth", "p"), [(1e-3, 1), (0.02, 2), (0.5, 1)])
def test_kde_equals_loops_also_with_ties_and_saturation(data, bandwidth, p):
    probs, labels = data(200)
    confidence, predicted = probs.max(1)
    weights = 1 + torch.arange(200) % 3
    args = (confidence.numpy(), (predicted == labels).double().numpy())
    value = kde_calibration_error(probs, labels, bandwidth=bandwidth, p=p).item()
    assert value == pytest.approx(_by_loops(*args, bandwidth, p=p), rel=1e-8)
    weighted = kde_calibration_error(probs, labels, bandwidth=bandwidth, p=p, weights=weights).item()
    assert weighted == pytest.approx(_by_loops(*args, bandwidth, weights.double().numpy(), p=p), rel=1e-8)


def test_kde_isolated_example_takes_its_nearest_neighbour():
    # At this bandwidth every kernel but the nearest underflows, which naive sums would make 0/0.
    probs = torch.tensor([[0.99, 0.01], [0.98, 0.02], [0.55, 0.45]], dtype=torch.float64)
    value = kde_calibration_error(probs, torch.tensor([0, 1, 0]), bandwidth=1e-5)
    assert value.item() == pytest.approx((0.99 + 0.02 + 0.55) / 3, rel=1e-9)


def test_kde_bandwidth_not_given_is_the_likeliest():
    probs, labels = mixed_gaps(150)
    confidence = probs.amax(1).numpy()
    best = max(_BANDWIDTHS, key=lambda b: _likelihood_by_loops(confidence, b))
    assert min(_BANDWIDTHS) < best < max(_BANDWIDTHS)
    assert kde_calibration_error(probs, labels).item() == kde_calibration_error(probs, labels, bandwidth=best).item()


def _by_cosines(confidence: np.ndarray, residual: np.ndarray, bandwidth: float, points: int = 2001) -> float:
    """The definition by another way: the reflected Gaussian as a cosine series, integrated on a fine grid."""
    at = np.linspace(0, 1, points)
    total = np.full(points, residual.mean())
    for k in range(1, math.ceil(9 / (math.pi * bandwidth)) + 1):
        damping = math.exp(-((k * math.pi * bandwidth) ** 2) / 2)
        total += 2 * damping * np.mean(residual * np.cos(k * math.pi * confidence)) * np.cos(k * math.pi * at)
    size = np.abs(total)
    return float((size.sum() - (size[0] + size[-1]) / 2) / (points - 1))


def _parts(probs: torch.Tensor, labels: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    confidence, predicted = probs.max(1)
    return confidence.double().numpy(), (confidence - (predicted == labels).double()).numpy()


@pytest.mark.parametrize(("bandwidth", "value"), [(None, 0.197073), (0.05, 0.265135)])
def test_smece_golden_input_gives_golden_value(bandwidth, value):
    logits, labels = golden()
    assert smooth_calibration_error(logits.softmax(1), labels, bandwidth=bandwidth).item() == pytest.approx(value, abs=6e-7)


@pytest.mark.parametrize("data", [hard_gaps(400), mixed_gaps(300), mixed_gaps(2000)])
def test_smece_solves_its_equation_as_near_as_its_grid(data):
    parts = _parts(*data)
    expected = brentq(lambda bandwidth: _by_cosines(*parts, bandwidth) - bandwidth, 1e-3, 1.0, xtol=1e-6)
    assert smooth_calibration_error(*data).item() == pytest.approx(expected, rel=0.01, abs=1 / 1024)


def test_smece_over_confident_and_saturated_is_the_mean_gap():
    # All residuals have one sign where it matters, so smoothing changes nothing: smECE is the mean residual.
    generator = torch.Generator().manual_seed(0)
    logits = 12 * torch.randn(4000, 10, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / 6).softmax(1), 1, generator=generator).squeeze(1)
    probs = logits.softmax(1)
    gap = float((probs.amax(1) - (probs.argmax(1) == labels).double()).mean())
    assert (probs.amax(1) > 0.999).double().mean() > 0.3
    assert smooth_calibration_error(probs, labels).item() == pytest.approx(gap, rel=0.02)
