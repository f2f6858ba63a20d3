from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.metrics.kernel import (
    maximum_mean_calibration_error,
    smooth_expected_calibration_error,
    squared_kernel_calibration_error,
)
from helpers import golden, hard_gaps, mixed_gaps

Metric = Callable[..., torch.Tensor]
METRICS: list[Metric] = [
    smooth_expected_calibration_error,
    maximum_mean_calibration_error,
    squared_kernel_calibration_error,
]

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


def test_sece_leave_one_out_matches_hand_computation():
    near, mid, far = math.exp(-0.5), math.exp(-2.0), math.exp(-4.5)
    smooth = [far / (near + far), 1.0, far / (mid + far)]
    expected = (abs(smooth[0] - 0.9) + abs(smooth[1] - 0.8) + abs(smooth[2] - 0.6)) / 3
    value = smooth_expected_calibration_error(PROBS, LABELS, bandwidth=0.1, leave_one_out=True)
    assert value.item() == pytest.approx(expected, rel=1e-12)


def test_sece_tiny_bandwidth_is_mean_absolute_error():
    probs, labels = mixed_gaps(3000)
    confidence, predicted = probs.max(1)
    expected = ((predicted == labels).double() - confidence).abs().mean()
    assert smooth_expected_calibration_error(probs, labels, bandwidth=1e-12).item() == pytest.approx(expected.item(), rel=1e-12)


def test_sece_huge_bandwidth_compares_confidence_with_overall_accuracy():
    probs, labels = mixed_gaps(3000)
    confidence, predicted = probs.max(1)
    expected = ((predicted == labels).double().mean() - confidence).abs().mean()
    assert smooth_expected_calibration_error(probs, labels, bandwidth=1e6).item() == pytest.approx(expected.item(), rel=1e-9)


def test_sece_constant_confidence_equal_to_accuracy_is_zero():
    probs = torch.tensor([[0.75, 0.25]], dtype=torch.float64).repeat(400, 1)
    labels = torch.tensor([0, 0, 0, 1]).repeat(100)
    assert smooth_expected_calibration_error(probs, labels).item() == pytest.approx(0, abs=1e-12)


def test_mmce_golden_input_gives_golden_value():
    logits, labels = golden()
    assert maximum_mean_calibration_error(logits.softmax(1), labels).item() == pytest.approx(0.140817, abs=6e-7)


def test_mmce_three_examples_match_hand_computation():
    residual = [0.1, -0.8, 0.4]
    near, mid, far = math.exp(-0.1 / 0.4), math.exp(-0.2 / 0.4), math.exp(-0.3 / 0.4)
    square = sum(r * r for r in residual)
    square += 2 * (residual[0] * residual[1] * near + residual[1] * residual[2] * mid + residual[0] * residual[2] * far)
    assert maximum_mean_calibration_error(PROBS, LABELS).item() == pytest.approx(math.sqrt(square) / 3, rel=1e-12)


def test_mmce_huge_scale_is_size_of_mean_residual():
    probs, labels = mixed_gaps(500)
    confidence, predicted = probs.max(1)
    expected = ((predicted == labels).double() - confidence).mean().abs()
    assert maximum_mean_calibration_error(probs, labels, scale=1e9).item() == pytest.approx(expected.item(), rel=1e-6)


def test_mmce_perfect_predictions_are_zero():
    assert maximum_mean_calibration_error(torch.eye(4).repeat(5, 1), torch.arange(4).repeat(5)).item() == 0


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


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("data", [mixed_gaps, hard_gaps])
def test_kernel_metric_sample_order_does_not_matter(metric, data):
    probs, labels = data(1200)
    order = torch.randperm(1200, generator=torch.Generator().manual_seed(1))
    assert metric(probs[order], labels[order]).item() == pytest.approx(metric(probs, labels).item(), rel=1e-11)


@pytest.mark.parametrize("metric", METRICS)
def test_kernel_metric_weights_of_any_common_scale_change_nothing(metric):
    probs, labels = hard_gaps(400)
    plain = metric(probs, labels).item()
    assert metric(probs, labels, weights=torch.full((400,), 7.5)).item() == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_kernel_metric_weight_zero_leaves_an_example_out(metric):
    probs, labels = mixed_gaps(300)
    weights = (torch.arange(300) % 3 > 0).double()
    kept = weights > 0
    assert metric(probs, labels, weights=weights).item() == pytest.approx(metric(probs[kept], labels[kept]).item(), rel=1e-12)


@pytest.mark.parametrize("metric", [smooth_expected_calibration_error, maximum_mean_calibration_error])
def test_kernel_metric_whole_weights_equal_repeated_examples(metric):
    probs, labels = mixed_gaps(200)
    count = torch.arange(200) % 4
    repeated = metric(probs.repeat_interleave(count, 0), labels.repeat_interleave(count))
    assert metric(probs, labels, weights=count).item() == pytest.approx(repeated.item(), rel=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_kernel_metric_ignored_and_dense_examples_equal_the_plain_ones(metric):
    probs, labels = mixed_gaps(240)
    dense = probs.view(4, 60, 10).movedim(2, 1)
    marked = labels.clone()
    marked[::5] = -1
    kept = marked != -1
    assert metric(dense, labels.view(4, 60)).item() == pytest.approx(metric(probs, labels).item(), rel=1e-12)
    ignored = metric(probs, marked, ignore_index=-1)
    assert ignored.item() == pytest.approx(metric(probs[kept], labels[kept]).item(), rel=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_kernel_metric_numpy_and_float32_give_float64_on_the_cpu(metric):
    probs, labels = mixed_gaps(100, dtype=torch.float32)
    value = metric(probs.numpy(), labels.numpy())
    assert (value.dtype, value.shape, value.device.type) == (torch.float64, torch.Size([]), "cpu")
    assert value.item() == metric(probs, labels).item()


@pytest.mark.parametrize("metric", [smooth_expected_calibration_error, maximum_mean_calibration_error])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_kernel_metric_any_input_stays_in_unit_interval(metric, data):
    top = data.draw(st.lists(st.floats(0.5, 1), min_size=1, max_size=30))
    labels = data.draw(st.lists(st.integers(0, 1), min_size=len(top), max_size=len(top)))
    confidence = torch.tensor(top, dtype=torch.float64)
    value = metric(torch.stack([confidence, 1 - confidence], 1), torch.tensor(labels)).item()
    assert 0 <= value <= 1 + 1e-12


@pytest.mark.parametrize("metric", METRICS)
def test_kernel_metric_logits_as_probs_raise(metric):
    with pytest.raises(ValueError, match=r"`probs` must lie in \[0, 1\].*They look like logits"):
        metric(torch.randn(10, 3) * 5, torch.zeros(10, dtype=torch.long))


def test_kernel_metric_bad_options_raise():
    with pytest.raises(ValueError, match=r"smooth_expected_calibration_error: `bandwidth` must be a finite number > 0, got 0"):
        smooth_expected_calibration_error(PROBS, LABELS, bandwidth=0)
    with pytest.raises(ValueError, match=r"`accuracy` must be 'hard' or 'soft', got 'top'"):
        smooth_expected_calibration_error(PROBS, LABELS, accuracy="top")
    with pytest.raises(ValueError, match=r"`leave_one_out` must have N >= 2 examples of positive weight, got 1"):
        smooth_expected_calibration_error(PROBS[:1], LABELS[:1], leave_one_out=True)
    with pytest.raises(ValueError, match=r"maximum_mean_calibration_error: `scale` must be a finite number > 0"):
        maximum_mean_calibration_error(PROBS, LABELS, scale=-1)
    with pytest.raises(ValueError, match=r"squared_kernel_calibration_error: `probs` must hold N >= 2 examples"):
        squared_kernel_calibration_error(PROBS, LABELS, weights=[1.0, 0.0, 0.0])
