from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calibrant.metrics.smooth import smooth_calibration_error
from helpers import golden, hard_gaps, mixed_gaps


def _by_cosines(confidence: np.ndarray, residual: np.ndarray, bandwidth: float, points: int = 20_001) -> float:
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


@pytest.mark.parametrize("bandwidth", [2.0, 0.3, 0.05, 0.01])
def test_smece_exact_equals_its_definition(bandwidth):
    for probs, labels in (hard_gaps(200), mixed_gaps(150)):
        value = smooth_calibration_error(probs, labels, bandwidth=bandwidth, convention="exact").item()
        assert value == pytest.approx(_by_cosines(*_parts(probs, labels), bandwidth), rel=5e-7, abs=1e-9)


def test_smece_exact_bandwidth_solves_its_equation():
    probs, labels = hard_gaps(400)
    value = smooth_calibration_error(probs, labels, convention="exact").item()
    at_value = smooth_calibration_error(probs, labels, convention="exact", bandwidth=value).item()
    assert at_value == pytest.approx(value, abs=1e-8)


def test_smece_one_example_far_from_the_border_is_its_residual():
    value = smooth_calibration_error([[0.6, 0.4]], [0], convention="exact", bandwidth=0.02)
    assert value.item() == pytest.approx(0.4, rel=1e-9)


def test_smece_exact_saturated_examples_count_in_full():
    # One example sure and wrong, one at 0.6 and right: residuals 1 and -0.4, too far apart to cancel.
    probs, labels = [[1.0, 0.0], [0.6, 0.4]], [1, 0]
    exact = smooth_calibration_error(probs, labels, convention="exact", bandwidth=0.02)
    assert exact.item() == pytest.approx(0.7, rel=1e-6)
    assert smooth_calibration_error(probs, labels, bandwidth=0.02).item() == pytest.approx(0.7, rel=0.01)
    # The package's grid counts the first one half: (1 / 2 + 0.4) / (1 / 2 + 1).
    relplot = smooth_calibration_error(probs, labels, bandwidth=0.02, convention="relplot")
    assert relplot.item() == pytest.approx(0.6, rel=0.01)


def test_smece_over_confident_and_saturated_is_the_mean_gap():
    # All residuals have one sign where it matters, so smoothing changes nothing: smECE is the mean residual.
    generator = torch.Generator().manual_seed(0)
    logits = 12 * torch.randn(4000, 10, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / 6).softmax(1), 1, generator=generator).squeeze(1)
    probs = logits.softmax(1)
    gap = float((probs.amax(1) - (probs.argmax(1) == labels).double()).mean())
    assert (probs.amax(1) > 0.999).double().mean() > 0.3
    assert smooth_calibration_error(probs, labels).item() == pytest.approx(gap, rel=0.02)
    assert smooth_calibration_error(probs, labels, convention="exact").item() == pytest.approx(gap, rel=1e-3)


def test_smece_conventions_agree_where_few_saturate():
    probs, labels = mixed_gaps(2000)
    value = smooth_calibration_error(probs, labels).item()
    assert smooth_calibration_error(probs, labels, convention="relplot").item() == pytest.approx(value, rel=1e-12)
    assert smooth_calibration_error(probs, labels, convention="exact").item() == pytest.approx(value, rel=0.01)


@pytest.mark.parametrize("convention", ["grid", "relplot", "exact"])
def test_smece_falls_with_bandwidth(convention):
    probs, labels = hard_gaps(400)
    values = [
        smooth_calibration_error(probs, labels, bandwidth=b, convention=convention).item() for b in (0.005, 0.02, 0.1, 0.4)
    ]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("convention", ["grid", "relplot", "exact"])
def test_smece_perfect_predictions_are_zero(convention):
    value = smooth_calibration_error(torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4), convention=convention)
    assert value.item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("convention", ["grid", "relplot", "exact"])
def test_smece_sample_order_and_weights_behave(convention):
    probs, labels = hard_gaps(200)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    value = smooth_calibration_error(probs, labels, convention=convention).item()
    assert smooth_calibration_error(probs[order], labels[order], convention=convention).item() == pytest.approx(value, rel=1e-9)
    count = torch.arange(200) % 3
    weighted = smooth_calibration_error(probs, labels, convention=convention, weights=count.double() * 0.1)
    repeated = smooth_calibration_error(
        probs.repeat_interleave(count, 0), labels.repeat_interleave(count), convention=convention
    )
    # The package adds 1e-4 to the density whatever the number of examples, so its value feels that number a little.
    assert weighted.item() == pytest.approx(repeated.item(), rel=1e-6)


def test_smece_numpy_and_float32_give_float64():
    probs, labels = mixed_gaps(100, dtype=torch.float32)
    value = smooth_calibration_error(probs.numpy(), labels.numpy())
    assert (value.dtype, value.shape) == (torch.float64, torch.Size([]))


def test_smece_bad_options_raise():
    probs, labels = mixed_gaps(10)
    with pytest.raises(ValueError, match=r"smooth_calibration_error: `bandwidth` must be a finite number > 0, got 0"):
        smooth_calibration_error(probs, labels, bandwidth=0)
    with pytest.raises(ValueError, match=r"`bandwidth` must be >= 1e-05, got 1e-07"):
        smooth_calibration_error(probs, labels, bandwidth=1e-7)
    with pytest.raises(ValueError, match=r"`convention` must be 'grid', 'relplot' or 'exact', got 'paper'"):
        smooth_calibration_error(probs, labels, convention="paper")
