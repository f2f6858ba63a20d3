"""Kernel metrics, scores and rankings against other packages, and against loops written from the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import relplot
import torch
from netcal.metrics import MMCE
from relplot.metrics import smECE_sigma
from sklearn.metrics import auc, log_loss, roc_auc_score
from torch import Tensor

from calibrant.core.kernels import all_pairs_accuracy
from calibrant.metrics.kernel import (
    maximum_mean_calibration_error,
    smooth_calibration_error,
    smooth_expected_calibration_error,
    squared_kernel_calibration_error,
)
from calibrant.metrics.scores import (
    area_under_risk_coverage,
    brier_score,
    error_rate,
    failure_detection_auroc,
    negative_log_likelihood,
)
from helpers import hard_gaps, mixed_gaps

Data = tuple[Tensor, Tensor]


def _saturated(n: int = 400) -> Data:
    """float32 probabilities of which a tenth are exactly one, as networks give."""
    probs, labels = mixed_gaps(n)
    return (probs.log() * 8).softmax(1).float(), labels


DATA = [mixed_gaps(500), mixed_gaps(2000, 10, seed=1), mixed_gaps(300, 3, dtype=torch.float32), hard_gaps(400), _saturated()]


def _top(data: Data) -> tuple[np.ndarray, np.ndarray]:
    probs = data[0].double().numpy()
    return probs.max(1), (probs.argmax(1) == data[1].numpy()).astype(float)


@pytest.mark.parametrize("data", DATA)
def test_mmce_equals_netcal(data):
    expected = MMCE().measure(data[0].double().numpy(), data[1].numpy())
    assert maximum_mean_calibration_error(*data).item() == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("data", DATA)
def test_smece_equals_relplot(data):
    value = smooth_calibration_error(*data, convention="relplot")
    assert value.item() == pytest.approx(float(relplot.smECE(*_top(data))), rel=1e-9)


@pytest.mark.parametrize("bandwidth", [0.7, 0.05, 0.0123, 0.004])
@pytest.mark.parametrize("data", DATA)
def test_smece_fixed_bandwidth_equals_relplot(data, bandwidth):
    expected = float(smECE_sigma(*_top(data), bandwidth))
    value = smooth_calibration_error(*data, bandwidth=bandwidth, convention="relplot")
    assert value.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("data", DATA)
def test_auroc_equals_sklearn_with_and_without_weights(data):
    confidence, correct = _top(data)
    weights = 1 + np.arange(len(correct)) % 5
    assert failure_detection_auroc(*data).item() == pytest.approx(roc_auc_score(correct, confidence), rel=1e-10)
    expected = roc_auc_score(correct, confidence, sample_weight=weights)
    assert failure_detection_auroc(*data, weights=weights).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("data", DATA[:3])
def test_aurc_of_many_examples_is_near_the_area_by_trapezoids(data):
    confidence, correct = _top(data)
    wrong = 1 - correct[np.argsort(-confidence)]
    coverage = np.arange(1, len(wrong) + 1) / len(wrong)
    area = auc(coverage, wrong.cumsum() / np.arange(1, len(wrong) + 1))
    # Trapezoids halve the two ends: the difference is below one over N.
    assert area_under_risk_coverage(*data).item() == pytest.approx(area, abs=1 / len(wrong))


@pytest.mark.parametrize("data", DATA[:3])
def test_proper_scores_equal_sklearn(data):
    probs = data[0].double()
    probs = (probs / probs.sum(1, keepdim=True)).numpy()
    labels, classes = data[1].numpy(), np.arange(data[0].shape[1])
    weights = 1 + np.arange(len(labels)) % 5
    nll = log_loss(labels, probs, labels=classes, sample_weight=weights)
    assert negative_log_likelihood(probs, labels, weights=weights).item() == pytest.approx(nll, rel=1e-9)
    one_hot = np.eye(len(classes))[labels]
    squares = np.average(((probs - one_hot) ** 2).sum(1), weights=weights)
    assert brier_score(probs, labels, weights=weights).item() == pytest.approx(squares, rel=1e-12)
    assert error_rate(probs, labels, weights=weights).item() == pytest.approx(
        1 - np.average(probs.argmax(1) == labels, weights=weights), rel=1e-12
    )


def _sece_by_loops(confidence: np.ndarray, accuracy: np.ndarray, bandwidth: float) -> float:
    total = 0.0
    for i in range(len(confidence)):
        top = bottom = 0.0
        for j in range(len(confidence)):
            kernel = math.exp(-((confidence[i] - confidence[j]) ** 2) / (2 * bandwidth**2))
            top += accuracy[j] * kernel
            bottom += kernel
        total += abs(top / bottom - confidence[i])
    return total / len(confidence)


@pytest.mark.parametrize("accuracy", ["hard", "soft"])
@pytest.mark.parametrize("data", [mixed_gaps(150), hard_gaps(160), _saturated(150)])
def test_sece_equals_loops(data, accuracy):
    confidence, correct = _top(data)
    right = correct if accuracy == "hard" else all_pairs_accuracy(data[0].double(), data[1]).numpy()
    for bandwidth in (0.2, 0.05):
        expected = _sece_by_loops(confidence, right, bandwidth)
        value = smooth_expected_calibration_error(*data, bandwidth=bandwidth, accuracy=accuracy).item()
        assert value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("data", [mixed_gaps(1500), hard_gaps(1500)])
def test_skce_of_many_examples_equals_the_matrix_of_pairs(data):
    confidence, correct = _top(data)
    weights = 1.0 + np.arange(len(correct)) % 4
    kernel = np.exp(-((confidence[:, None] - confidence) ** 2) / (2 * 0.1**2))
    np.fill_diagonal(kernel, 0)
    for weight in (np.ones(len(correct)), weights):
        residual = weight * (correct - confidence)
        pairs = weight.sum() ** 2 - (weight**2).sum()
        value = squared_kernel_calibration_error(*data, weights=weight).item()
        assert value == pytest.approx(residual @ kernel @ residual / pairs, rel=1e-10)
