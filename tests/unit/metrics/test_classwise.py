from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.metrics.binned import (
    class_calibration_errors,
    classwise_calibration_error,
    nixon_adaptive_calibration_error,
    thresholded_adaptive_calibration_error,
)
from helpers import golden, mixed_gaps

Metric = Callable[..., torch.Tensor]


@pytest.mark.parametrize(
    ("metric", "options", "value"),
    [
        (classwise_calibration_error, {}, 0.174134),
        (nixon_adaptive_calibration_error, {"n_bins": 6}, 0.138739),
        (thresholded_adaptive_calibration_error, {"n_bins": 6}, 0.235565),
    ],
)
def test_golden_values_hold(metric: Metric, options: dict[str, int], value: float) -> None:
    logits, labels = golden()
    assert float(metric(logits.softmax(1), labels, **options)) == pytest.approx(value, abs=5.1e-7)


# Three classes, three examples, two bins per class split at one half.
PROBS = [[0.6, 0.3, 0.1], [0.2, 0.8, 0.0], [0.1, 0.3, 0.6]]
LABELS = [0, 0, 2]


def test_classwise_terms_by_hand() -> None:
    # Class 0: (0, .5]: 0.2 hit, 0.1 miss -> |0.3 - 1|; (.5, 1]: 0.6 hit -> 0.4. Class 1: 0.3, 0.3 miss; 0.8 miss.
    # Class 2: 0.1, 0.0 miss -> 0.1; 0.6 hit -> 0.4. All divided by N = 3.
    terms = class_calibration_errors(PROBS, LABELS, n_bins=2)
    assert terms.tolist() == pytest.approx([1.1 / 3, 1.4 / 3, 0.5 / 3])
    assert float(classwise_calibration_error(PROBS, LABELS, n_bins=2)) == pytest.approx(3.0 / 9)


def test_classwise_norms_by_hand() -> None:
    # Gaps and counts per class: (0.35, 2), (0.4, 1); (0.3, 2), (0.8, 1); (0.05, 2), (0.4, 1).
    squares = [(2 * 0.35**2 + 0.4**2) / 3, (2 * 0.3**2 + 0.8**2) / 3, (2 * 0.05**2 + 0.4**2) / 3]
    terms = class_calibration_errors(PROBS, LABELS, n_bins=2, p=2)
    assert terms.tolist() == pytest.approx([math.sqrt(s) for s in squares])
    assert float(classwise_calibration_error(PROBS, LABELS, n_bins=2, p=2)) == pytest.approx(math.sqrt(sum(squares) / 3))
    assert class_calibration_errors(PROBS, LABELS, n_bins=2, p=math.inf).tolist() == pytest.approx([0.4, 0.8, 0.4])
    assert float(classwise_calibration_error(PROBS, LABELS, n_bins=2, p=math.inf)) == pytest.approx(0.8)


def test_classwise_absent_class_is_one_of_the_columns() -> None:
    terms = class_calibration_errors([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]], [0, 1])
    assert terms.shape == (3,)
    assert float(terms[2]) == pytest.approx(0.25)


def slow_terms(probs: np.ndarray, labels: np.ndarray, weights: np.ndarray, n_bins: int, p: float) -> list[float]:
    """One class, one bin, one example at a time."""
    edges = (np.arange(n_bins + 1) / n_bins).astype(probs.dtype)
    terms = []
    for k in range(probs.shape[1]):
        term, largest = 0.0, 0.0
        for m in range(n_bins):
            inside = (probs[:, k] > edges[m]) & (probs[:, k] <= edges[m + 1])
            if m == 0:
                inside |= probs[:, k] == 0
            mass = weights[inside].sum()
            if mass > 0:
                gap = abs((weights[inside] * (probs[inside, k].astype(float) - (labels[inside] == k))).sum() / mass)
                largest = max(largest, gap)
                term += mass / weights.sum() * gap**p if math.isfinite(p) else 0.0
        terms.append(largest if math.isinf(p) else term ** (1 / p))
    return terms


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1000),
    st.integers(1, 30),
    st.integers(2, 6),
    st.sampled_from([1, 2, 3, 10, 15, 40]),
    st.sampled_from([1, 2, math.inf]),
    st.sampled_from([torch.float64, torch.float32]),
    st.booleans(),
)
def test_classwise_terms_agree_with_the_slow_reference(
    seed: int, n: int, num_classes: int, n_bins: int, p: float, dtype: torch.dtype, weighted: bool
) -> None:
    probs, labels = mixed_gaps(n, num_classes, seed=seed)
    probs[::3] = torch.eye(num_classes, dtype=torch.float64)[labels[::3] % num_classes].roll(1, 1)
    probs = probs.to(dtype)
    weights = 0.1 + torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    given_weights = weights if weighted else torch.ones(n, dtype=torch.float64)
    expected = slow_terms(probs.numpy(), labels.numpy(), given_weights.numpy(), n_bins, p)
    terms = class_calibration_errors(probs, labels, n_bins=n_bins, p=p, weights=weights if weighted else None)
    assert terms.tolist() == pytest.approx(expected, abs=1e-12)


def test_nixon_by_hand() -> None:
    # Two ranges of two examples; class 0: {0.1 miss, 0.2 hit}, {0.6 hit, 0.9 hit}; class 1: the mirror image.
    probs, labels = [[0.6, 0.4], [0.9, 0.1], [0.2, 0.8], [0.1, 0.9]], [0, 0, 0, 1]
    assert float(nixon_adaptive_calibration_error(probs, labels, n_bins=2)) == pytest.approx((0.35 + 0.25) / 2)


def test_tace_drops_what_does_not_exceed_the_threshold() -> None:
    probs, labels = [[0.995, 0.005], [0.8, 0.2]], [0, 1]
    # Class 0: 0.995 hit, 0.8 miss; class 1: only 0.2 hit is left, in one range.
    assert float(thresholded_adaptive_calibration_error(probs, labels, n_bins=2)) == pytest.approx((0.005 + 0.8 + 0.8) / 3)
    equal = thresholded_adaptive_calibration_error(probs, labels, n_bins=2, threshold=0.2)
    assert float(equal) == pytest.approx((0.005 + 0.8) / 2)


@pytest.mark.parametrize("p", [2, math.inf])
def test_classwise_weights_and_an_empty_first_bin_leave_no_gap_of_rounding(p: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        # All probabilities exceed 1/15; what rounding leaves of the weights in the first bin must not become a gap of its own.
        high = 0.2 + 0.6 * torch.rand(50, generator=generator, dtype=torch.float64)
        weights = torch.rand(50, generator=generator, dtype=torch.float64)
        labels = torch.randint(2, (50,), generator=generator)
        expected = []
        for column, hit in ((high, labels == 0), (1 - high, labels == 1)):
            index = (column * 15).ceil().long() - 1
            held = torch.bincount(index, weights, 15)
            gap = torch.bincount(index, weights * (column - hit.double()), 15).abs() / held.clamp(min=1e-300)
            expected.append(gap.max() if math.isinf(p) else (held * gap**p).sum() / weights.sum())
        both = torch.stack(expected)
        value = classwise_calibration_error(torch.stack([high, 1 - high], 1), labels, p=p, weights=weights)
        assert float(value) == pytest.approx(float(both.max() if math.isinf(p) else both.mean() ** (1 / p)), rel=1e-9)
