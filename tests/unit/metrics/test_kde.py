from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import beta

from calibrant.metrics.kde import BANDWIDTHS, kde_calibration_error
from helpers import golden, hard_gaps, mixed_gaps


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


@pytest.mark.parametrize(("bandwidth", "value"), [(0.01, 0.286856), (0.1, 0.259015)])
def test_kde_golden_input_gives_golden_value(bandwidth, value):
    logits, labels = golden()
    assert kde_calibration_error(logits.softmax(1), labels, bandwidth=bandwidth).item() == pytest.approx(value, abs=6e-7)


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


def test_kde_two_examples_take_each_others_correctness():
    value = kde_calibration_error([[0.9, 0.1], [0.3, 0.7]], [0, 0], bandwidth=0.1)
    assert value.item() == pytest.approx((0.9 + 0.3) / 2, rel=1e-12)


def test_kde_isolated_example_takes_its_nearest_neighbour():
    # At this bandwidth every kernel but the nearest underflows, which naive sums would make 0/0.
    probs = torch.tensor([[0.99, 0.01], [0.98, 0.02], [0.55, 0.45]], dtype=torch.float64)
    value = kde_calibration_error(probs, torch.tensor([0, 1, 0]), bandwidth=1e-5)
    assert value.item() == pytest.approx((0.99 + 0.02 + 0.55) / 3, rel=1e-9)


def test_kde_all_confidences_one_is_finite():
    value = kde_calibration_error([[1.0, 0.0]] * 4, [0, 0, 0, 1], bandwidth=0.01)
    assert value.item() == pytest.approx((3 * (1 - 2 / 3) + 0) / 4, rel=1e-9)


def test_kde_bandwidth_not_given_is_the_likeliest():
    probs, labels = mixed_gaps(150)
    confidence = probs.amax(1).numpy()
    best = max(BANDWIDTHS, key=lambda b: _likelihood_by_loops(confidence, b))
    assert min(BANDWIDTHS) < best < max(BANDWIDTHS)
    assert kde_calibration_error(probs, labels).item() == kde_calibration_error(probs, labels, bandwidth=best).item()


def test_kde_blocks_of_any_size_give_the_same(monkeypatch):
    probs, labels = hard_gaps(120)
    whole = kde_calibration_error(probs, labels, bandwidth=0.05).item()
    monkeypatch.setattr("calibrant.metrics.kde._BLOCK", 7)
    assert kde_calibration_error(probs, labels, bandwidth=0.05).item() == pytest.approx(whole, rel=1e-13)


def test_kde_order_and_zero_weights_do_not_matter():
    probs, labels = hard_gaps(120)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(1))
    value = kde_calibration_error(probs, labels, bandwidth=0.05).item()
    assert kde_calibration_error(probs[order], labels[order], bandwidth=0.05).item() == pytest.approx(value, rel=1e-10)
    kept = torch.arange(120) % 3 > 0
    left_out = kde_calibration_error(probs, labels, bandwidth=0.05, weights=kept).item()
    assert left_out == pytest.approx(kde_calibration_error(probs[kept], labels[kept], bandwidth=0.05).item(), rel=1e-12)


def test_kde_numpy_and_float32_give_float64():
    probs, labels = mixed_gaps(60, dtype=torch.float32)
    value = kde_calibration_error(probs.numpy(), labels.numpy(), bandwidth=0.05)
    assert (value.dtype, value.shape) == (torch.float64, torch.Size([]))


def test_kde_bad_arguments_raise():
    probs, labels = mixed_gaps(5)
    with pytest.raises(ValueError, match=r"kde_calibration_error: `bandwidth` must be a finite number > 0, got -1"):
        kde_calibration_error(probs, labels, bandwidth=-1)
    with pytest.raises(ValueError, match=r"`p` must be a finite number >= 1, got 0.5"):
        kde_calibration_error(probs, labels, bandwidth=0.1, p=0.5)
    with pytest.raises(ValueError, match=r"`probs` must hold N >= 2 examples of positive weight, got 1"):
        kde_calibration_error(probs[:1], labels[:1], bandwidth=0.1)
