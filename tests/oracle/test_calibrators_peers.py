"""Calibrators against scikit-learn, netcal and plain loops, where their definitions agree with ours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant.calibrators import (
    BayesianBinning,
    BetaCalibration,
    HistogramBinning,
    IsotonicCalibration,
    JointIsotonicCalibration,
    PlattScaling,
    TemperatureScaling,
    TopLabelBinning,
)
from helpers import mixed_gaps

N, C = 3000, 4

pytestmark = pytest.mark.usefixtures("quiet")


def data(num_classes: int = C, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels and fresh logits whose gaps have both signs."""
    probs, labels = mixed_gaps(N, num_classes, seed=seed)
    fresh, _ = mixed_gaps(500, num_classes, seed=seed + 1)
    return probs.log().numpy(), labels.numpy(), fresh.log().numpy()


def softmax(logits: np.ndarray) -> np.ndarray:
    return torch.from_numpy(logits).softmax(1).numpy()


@pytest.mark.parametrize("num_classes", [2, 4, 30])
def test_temperature_agrees_with_sklearn_and_a_grid(num_classes: int) -> None:
    from sklearn import calibration

    logits, labels, _ = data(num_classes)
    # scikit-learn guesses from the values whether it has logits: these are no probabilities.
    logits = 2 * logits + 1
    ours = TemperatureScaling().fit(logits, labels).temperature_
    # Its scalar minimiser compares values of the loss, and so stops at the root of their rounding.
    assert ours == pytest.approx(1 / calibration._TemperatureScaling().fit(logits, labels).beta_, rel=1e-6)
    grid = np.arange(ours - 5e-3, ours + 5e-3, 1e-4)
    torch_logits, torch_labels = torch.from_numpy(logits), torch.from_numpy(labels)
    losses = [float(torch.nn.functional.cross_entropy(torch_logits / t, torch_labels)) for t in grid]
    assert ours == pytest.approx(grid[int(np.argmin(losses))], abs=1e-4)


@pytest.mark.parametrize("num_classes", [2, 4])
def test_isotonic_agrees_with_sklearn(num_classes: int) -> None:
    from sklearn.isotonic import IsotonicRegression

    logits, labels, fresh = data(num_classes)
    weights = 1.0 + np.arange(N) % 3
    columns = []
    for k in range(num_classes):
        fitted = IsotonicRegression(out_of_bounds="clip").fit(softmax(logits)[:, k], labels == k, sample_weight=weights)
        columns.append(fitted.predict(softmax(fresh)[:, k]))
    # Of two classes one question is asked, that of the second.
    expected = np.stack(columns if num_classes > 2 else [1 - columns[1], columns[1]], 1)
    expected /= expected.sum(1, keepdims=True)
    found = IsotonicCalibration().fit(logits, labels, weights=weights).predict_proba(fresh)
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_joint_isotonic_agrees_with_sklearn_on_all_pairs() -> None:
    from sklearn.isotonic import IsotonicRegression

    logits, labels, fresh = data()
    fitted = IsotonicRegression(out_of_bounds="clip").fit(softmax(logits).ravel(), np.eye(C)[labels].ravel())
    expected = fitted.predict(softmax(fresh).ravel()).reshape(fresh.shape) + 1e-6 * softmax(fresh)
    expected /= expected.sum(1, keepdims=True)
    # Where the map makes two top classes equal, the one that was on top is kept there by 2e-6 of itself.
    np.testing.assert_allclose(JointIsotonicCalibration().fit(logits, labels).predict_proba(fresh), expected, atol=1e-6)


@pytest.mark.parametrize("num_classes", [2, 4])
def test_platt_agrees_with_sklearn(num_classes: int) -> None:
    from sklearn.calibration import _SigmoidCalibration

    logits, labels, fresh = data(num_classes)
    odds, fresh_odds = (np.log(softmax(part) / (1 - softmax(part))) for part in (logits, fresh))
    classes = [1] if num_classes == 2 else range(num_classes)
    expected = np.stack(
        [_SigmoidCalibration().fit(odds[:, k], (labels == k).astype(int)).predict(fresh_odds[:, k]) for k in classes], 1
    )
    expected = np.concatenate([1 - expected, expected], 1) if num_classes == 2 else expected
    expected /= expected.sum(1, keepdims=True)
    # Its L-BFGS stops earlier than our Newton.
    np.testing.assert_allclose(PlattScaling().fit(logits, labels).predict_proba(fresh), expected, atol=2e-5)


def test_beta_agrees_with_an_unpenalised_logistic_regression() -> None:
    from scipy.optimize import minimize

    logits, labels, fresh = data(2)
    s, fresh_s = softmax(logits)[:, 1], softmax(fresh)[:, 1]

    def score(theta: np.ndarray, p: np.ndarray) -> np.ndarray:
        return theta[0] * np.log(p) - theta[1] * np.log1p(-p) + theta[2]

    def loss(theta: np.ndarray) -> float:
        return float(np.mean(np.logaddexp(0, score(theta, s)) - labels * score(theta, s)))

    theta = minimize(loss, np.array([1.0, 1.0, 0.0]), method="BFGS", options={"gtol": 1e-8}).x
    assert (theta[:2] > 0).all()
    expected = 1 / (1 + np.exp(-score(theta, fresh_s)))
    found = np.asarray(BetaCalibration(ridge=1e-6).fit(logits, labels).predict_proba(fresh))[:, 1]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_histogram_of_two_classes_agrees_with_netcal() -> None:
    from netcal import binning

    logits, labels, fresh = data(2)
    peer = binning.HistogramBinning(15).fit(softmax(logits)[:, 1], labels)
    found = np.asarray(HistogramBinning().fit(logits, labels).predict_proba(fresh))[:, 1]
    np.testing.assert_allclose(found, peer.transform(softmax(fresh)[:, 1]), atol=1e-8)


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_histogram_agrees_with_a_loop(binning: str) -> None:
    logits, labels, fresh = data()
    columns = []
    for k in range(C):
        p, q = softmax(logits)[:, k], softmax(fresh)[:, k]
        edges = np.arange(1, 10) / 10
        if binning == "mass":
            edges = np.sort(p)[[N * m // 10 - 1 for m in range(1, 10)]]
        ends = [0.0, *edges, 1.0]
        column = np.empty(len(q))
        for low, high in zip(ends[:-1], ends[1:], strict=True):
            mine, theirs = (p > low) & (p <= high), (q > low) & (q <= high)
            column[theirs] = np.mean(labels[mine] == k) if mine.any() else (low + high) / 2
        columns.append(column)
    expected = np.stack(columns, 1)
    expected /= expected.sum(1, keepdims=True)
    found = HistogramBinning(n_bins=10, binning=binning).fit(logits, labels).predict_proba(fresh)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_bbq_agrees_with_a_loop() -> None:
    from math import ceil, exp, floor, lgamma

    logits, labels, fresh = data(2)
    logits, labels = logits[:200], labels[:200]
    p, q = softmax(logits)[:, 1], softmax(fresh)[:, 1]
    order = np.argsort(p)
    root = 200 ** (1 / 3)
    scores, models = [], []
    for size in range(max(1, floor(root / 10)), min(ceil(200 / 5), ceil(10 * root)) + 1):
        cuts = [0, *(ceil(200 * m / size - 1e-9) for m in range(1, size)), 200]
        evidence, steps = 0.0, []
        for first, last in zip(cuts[:-1], cuts[1:], strict=True):
            low = 0.0 if first == 0 else p[order][first - 1]
            high = 1.0 if last == 200 else p[order][last - 1]
            rows = order[first:last]
            n, n1, m = len(rows), int(labels[rows].sum()), min(max((low + high) / 2, 0.005), 0.995)
            evidence += lgamma(2) - lgamma(n + 2) + lgamma(n1 + 2 * m) - lgamma(2 * m)
            evidence += lgamma(n - n1 + 2 * (1 - m)) - lgamma(2 * (1 - m))
            p0 = (p[rows][labels[rows] == 1].sum() + m) / (n1 + 1)
            steps.append((low, high, (n1 + p0) / (n + 1)))
        scores.append(evidence)
        models.append(steps)
    expected = np.zeros(len(q))
    weights = [exp(score - max(scores)) for score in scores]
    weights = [weight if weight >= 1e-3 else 0.0 for weight in weights]
    for weight, steps in zip(weights, models, strict=True):
        for low, high, value in steps:
            expected[(q > low) & (q <= high)] += weight / sum(weights) * value
    found = np.asarray(BayesianBinning().fit(logits, labels).predict_proba(fresh))[:, 1]
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_top_label_binning_agrees_with_a_loop() -> None:
    logits, labels, fresh = data()
    found = np.asarray(TopLabelBinning(points_per_bin=100).fit(logits, labels).predict_proba(fresh))
    p, q = softmax(logits), softmax(fresh)
    for k in range(C):
        mine = p.argmax(1) == k
        confidence, right = np.sort(p.max(1)[mine]), labels[mine][np.argsort(p.max(1)[mine])] == k
        n_bins = mine.sum() // 100
        cuts = [0, *(int(np.ceil(mine.sum() * m / n_bins - 1e-9)) for m in range(1, n_bins)), mine.sum()]
        for i in np.flatnonzero(q.argmax(1) == k):
            place = next((b for b in range(n_bins - 1) if q[i].max() <= confidence[cuts[b + 1] - 1]), n_bins - 1)
            accuracy = right[cuts[place] : cuts[place + 1]].mean()
            second = np.sort(q[i])[-2]
            least = second / (second + 1 - q[i].max())
            assert found[i].max() == pytest.approx(max(accuracy, least), abs=1e-6)
