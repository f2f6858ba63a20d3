from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from calibrant.metrics.binned import (
    adaptive_calibration_error,
    average_calibration_error,
    binary_adaptive_calibration_error,
    binary_expected_calibration_error,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
)
from calibrant.metrics.conventions import CONVENTIONS, explain
from helpers import golden, hard_gaps, mixed_gaps


def two_columns(confidence: list[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    top = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([top, 1 - top], 1).to(dtype)


def three_columns(confidence: list[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    top = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([top, (1 - top) / 2, (1 - top) / 2], 1).to(dtype)


def confidence_of(probs: torch.Tensor, labels: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    return probs.amax(1).numpy(), (probs.argmax(1) == labels).double().numpy()


def error_of(groups: list[np.ndarray], confidence: np.ndarray, correct: np.ndarray) -> float:
    """Sum over groups (boolean masks) of their share of all examples times their gap."""
    wide = confidence.astype(np.float64)
    return sum(m.mean() * abs(wide[m].mean() - correct[m].mean()) for m in groups if m.any())


@pytest.mark.parametrize(
    ("metric", "n_bins", "value"),
    [
        (expected_calibration_error, 15, 0.268477),
        (adaptive_calibration_error, 15, 0.334274),
        (classwise_calibration_error, 15, 0.174134),
        (maximum_calibration_error, 15, 0.559181),
        (maximum_calibration_error, 10, 0.417924),
        (average_calibration_error, 15, 0.267593),
    ],
)
def test_focal_calibration_golden_values_of_the_original_hold(
    metric: Callable[..., torch.Tensor], n_bins: int, value: float
) -> None:
    logits, labels = golden()
    probs = logits.float().softmax(1)
    # The originals ran in float32.
    result = metric(probs, labels, n_bins=n_bins, convention="focal_calibration")
    assert float(result) == pytest.approx(value, abs=1e-6)


def test_uncertainty_calibration_golden_equal_mass_holds() -> None:
    logits, labels = golden()
    value = adaptive_calibration_error(logits.softmax(1), labels, convention="uncertainty_calibration")
    assert float(value) == pytest.approx(0.334314, abs=5.1e-7)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_every_convention_agrees_with_ours_where_no_edge_is_touched(name: str) -> None:
    probs, labels = mixed_gaps(500)
    n_bins = 16 if name == "mapie" else 15
    value = expected_calibration_error(probs, labels, n_bins=n_bins, convention=name)
    assert value.dtype == torch.float64
    # torchmetrics and its kin round confidences to float32.
    assert float(value) == pytest.approx(float(expected_calibration_error(probs, labels)), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("guo2017", 0.475),
        ("focal_calibration", 0.475),
        ("uncertainty_calibration", 0.475),
        ("pycalib", 0.475),
        ("caltrain", 0.475),
        ("netcal", 0.475),
        ("torchmetrics", 0.525),
        ("torch_uncertainty", 0.525),
        ("relplot", 0.525),
    ],
)
def test_confidence_one_is_in_the_bin_of_the_source(name: str, expected: float) -> None:
    probs = three_columns([0.95, 1.0, 0.42])
    labels = torch.tensor([0, 1, 2])
    # The third example, wrong at 0.42, keeps three distinct labels, which netcal needs; its bin adds 0.42 / 3.
    value = float(expected_calibration_error(probs, labels, convention=name))
    assert value == pytest.approx((2 * expected + 0.42) / 3, abs=1e-6)


def test_torchmetrics_value_above_one_is_taken_for_a_logit() -> None:
    probs = torch.tensor([[1.0000001, 0.0], [0.5, 0.5]])
    shown = float(expected_calibration_error(probs, [0, 0], convention="torchmetrics"))
    assert shown == pytest.approx(float(expected_calibration_error(probs.softmax(1), [0, 0], convention="torchmetrics")))


def test_left_closed_sources_put_an_edge_above() -> None:
    probs, labels = three_columns([0.75, 0.74, 0.45]), [0, 1, 2]
    below, above = (abs(0.75 + 0.74 - 1) + 0.45) / 3, (0.25 + 0.74 + 0.45) / 3
    for name in ("guo2017", "uncertainty_calibration", "pycalib"):
        assert float(expected_calibration_error(probs, labels, n_bins=4, convention=name)) == pytest.approx(below, abs=1e-12)
    for name in ("netcal", "torchmetrics", "relplot", "caltrain"):
        assert float(expected_calibration_error(probs, labels, n_bins=4, convention=name)) == pytest.approx(above, abs=1e-6)


def test_focal_calibration_adaptive_loses_tied_confidences() -> None:
    probs = two_columns([0.95] * 6)
    assert float(adaptive_calibration_error(probs, [1] * 6, convention="focal_calibration")) == 0.0
    assert float(adaptive_calibration_error(probs, [1] * 6)) == pytest.approx(0.95)


def test_focal_calibration_classwise_drops_zeros_and_unseen_classes() -> None:
    probs = torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    assert float(classwise_calibration_error(probs, [0, 0], convention="focal_calibration")) == 0.0
    assert float(classwise_calibration_error(probs, [0, 0])) == 1.0


def test_netcal_two_columns_mean_the_second_alone() -> None:
    probs, labels = two_columns([0.8, 0.2]), [1, 1]
    assert float(expected_calibration_error(probs, labels, convention="netcal")) == pytest.approx(0.5)
    assert float(expected_calibration_error(probs, labels)) == pytest.approx(0.3)


def test_netcal_example_on_an_edge_is_counted_in_one_bin_and_averaged_in_the_next() -> None:
    # 0.7 is below itself in float32: counted below the float64 edge, where the mean of nothing is 0, and averaged above.
    probs, labels = three_columns([0.7, 0.95, 0.42], torch.float32), [0, 1, 2]
    value = float(expected_calibration_error(probs, labels, n_bins=10, convention="netcal"))
    assert value == pytest.approx((0.95 + 0.42) / 3, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("n_bins", [2, 5, 10, 15, 20, 49])
def test_guo2017_agrees_with_a_loop(n_bins: int, dtype: torch.dtype) -> None:
    probs, labels = hard_gaps(dtype=dtype)
    confidence, correct = confidence_of(probs, labels)
    edges = torch.linspace(0, 1, n_bins + 1).tolist()
    groups = [
        (confidence > np.float64(lo)) & (confidence <= np.float64(hi)) for lo, hi in zip(edges[:-1], edges[1:], strict=True)
    ]
    shown = float(expected_calibration_error(probs, labels, n_bins=n_bins, convention="guo2017"))
    assert shown == pytest.approx(error_of(groups, confidence, correct), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("n_bins", [2, 5, 10, 15, 49])
def test_focal_calibration_adaptive_agrees_with_a_loop(n_bins: int, dtype: torch.dtype) -> None:
    probs, labels = hard_gaps(dtype=dtype)
    confidence, correct = confidence_of(probs, labels)
    ranks = np.linspace(0, len(confidence), n_bins + 1)
    edges = np.interp(ranks, np.arange(len(confidence)), np.sort(confidence)).astype(confidence.dtype)
    groups = [(confidence > lo) & (confidence <= hi) for lo, hi in zip(edges[:-1], edges[1:], strict=True)]
    shown = float(adaptive_calibration_error(probs, labels, n_bins=n_bins, convention="focal_calibration"))
    assert shown == pytest.approx(error_of(groups, confidence, correct), abs=1e-12)
    assert sum(m.sum() for m in groups) < len(confidence)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("n_bins", [2, 5, 7, 10, 15, 20, 49])
def test_pycalib_agrees_with_a_loop(n_bins: int, dtype: torch.dtype) -> None:
    probs, labels = hard_gaps(dtype=dtype)
    confidence, correct = confidence_of(probs, labels)
    size = 1 / n_bins
    groups = []
    for upper in np.arange(size, 1 + size, size):
        lower = upper - size
        groups.append(np.array([(c > lower or lower == 0) and c <= upper for c in confidence]))
    shown = float(expected_calibration_error(probs, labels, n_bins=n_bins, convention="pycalib"))
    assert shown == pytest.approx(error_of(groups, confidence, correct), abs=1e-12)


@pytest.mark.parametrize("binning", ["width", "mass"])
@pytest.mark.parametrize("n_bins", [3, 10, 16])
def test_mapie_agrees_with_a_loop(n_bins: int, binning: str) -> None:
    probs, labels = hard_gaps()
    confidence, correct = confidence_of(probs, labels)
    if binning == "width":
        edges, metric = np.linspace(0, 1, n_bins), expected_calibration_error
    else:
        edges, metric = np.quantile(confidence, np.linspace(0, 1, n_bins)), adaptive_calibration_error
    found = np.digitize(confidence, edges, right=True)
    groups = [found == k for k in range(n_bins)]
    shown = float(metric(probs, labels, n_bins=n_bins, convention="mapie"))
    assert shown == pytest.approx(error_of(groups, confidence, correct), abs=1e-12)


@pytest.mark.parametrize("n_bins", [2, 5, 10, 15, 49])
def test_caltrain_agrees_with_a_loop(n_bins: int) -> None:
    probs, labels = hard_gaps()
    confidence, correct = confidence_of(probs, labels)
    edges = np.linspace(0, 1, n_bins + 1)
    edges[-1] = np.inf
    groups = [(confidence >= lo) & (confidence < hi) for lo, hi in zip(edges[:-1], edges[1:], strict=True)]
    shown = float(expected_calibration_error(probs, labels, n_bins=n_bins, convention="caltrain"))
    assert shown == pytest.approx(error_of(groups, confidence, correct), abs=1e-12)


def test_convention_without_the_metric_names_those_that_have_it() -> None:
    message = r"^adaptive_calibration_error: `convention` must be one that has this metric, got 'relplot'. These do: focal_cal"
    with pytest.raises(ValueError, match=message):
        adaptive_calibration_error([[0.5, 0.5]], [0], convention="relplot")
    with pytest.raises(ValueError, match="^classwise_calibration_error: .*got 'netcal'. These do: focal_calibration, "):
        classwise_calibration_error([[0.5, 0.5]], [0], convention="netcal")


def test_convention_with_weights_or_min_count_raises() -> None:
    with pytest.raises(ValueError, match=r"^expected_calibration_error: `weights` must be None with a `convention`, got \[1\]"):
        expected_calibration_error([[0.5, 0.5]], [0], convention="guo2017", weights=[1])
    with pytest.raises(ValueError, match="^maximum_calibration_error: `min_count` must be 1 with a `convention`, got 2"):
        maximum_calibration_error([[0.5, 0.5]], [0], convention="guo2017", min_count=2)


PROBS = [[0.95, 0.05, 0.0], [1.0, 0.0, 0.0], [0.2, 0.2, 0.6], [0.2, 0.2, 0.6]]


LABELS = [0, 1, 2, 2]


def test_explain_counts_by_hand() -> None:
    told = explain(PROBS, LABELS)
    assert told.n == 4
    assert told.num_classes == 3
    assert told.n_bins == 15
    assert told.empty_bins == 13
    assert told.smallest_bin == 2
    assert told.saturated == 1
    assert told.distinct == 3
    assert told.signed_gap == pytest.approx((0.95 + 1 + 1.2) / 4 - 0.75)
    assert told.binary is None


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_explain_values_are_those_of_the_metrics(p: float) -> None:
    probs, labels = mixed_gaps(300, dtype=torch.float32)
    told = explain(probs, labels, n_bins=10, p=p)
    assert told.value == pytest.approx(float(expected_calibration_error(probs, labels, n_bins=10, p=p)), rel=1e-12)
    assert set(told.others) == set(CONVENTIONS)
    for name, value in told.others.items():
        expected = float(expected_calibration_error(probs, labels, n_bins=10, p=p, convention=name))
        assert value == expected
    assert told.metric == "expected_calibration_error"
    assert "edges k/10 in float32" in told.rule


def test_explain_two_classes_show_the_binary_number() -> None:
    probs, labels = mixed_gaps(300, 2)
    told = explain(probs, labels)
    assert told.binary == pytest.approx(float(binary_expected_calibration_error(probs[:, 1], labels)), rel=1e-12)
    assert told.binary != pytest.approx(told.value, rel=0.01)
    by_mass = explain(probs, labels, binning="mass")
    assert by_mass.binary == pytest.approx(float(binary_adaptive_calibration_error(probs[:, 1], labels)), rel=1e-12)


def test_explain_weights_are_used_and_silence_the_other_sources() -> None:
    probs, labels = mixed_gaps(100, 2)
    weights = torch.linspace(0, 1, 100)
    told = explain(probs, labels, weights=weights)
    assert told.value == pytest.approx(float(expected_calibration_error(probs, labels, weights=weights)), rel=1e-12)
    assert told.binary == pytest.approx(
        float(binary_expected_calibration_error(probs[:, 1], labels, weights=weights)), rel=1e-12
    )
    assert set(told.others.values()) == {None}


def test_explain_text_says_everything() -> None:
    text = str(explain(PROBS, LABELS, p=2))
    for part in (
        "expected_calibration_error = ",
        "top-label: the highest probability against whether its class is right, norm of order 2",
        "15 equal-width bins (lo, hi], edges k/15 in float64, 0 in the first and 1 in the last",
        "4 of 3 classes; 3 different confidences",
        "13 of 15 bins; the smallest of the others holds 2",
        "1 confidences are exactly 1",
        "+0.037500 (over-confident on average)",
        "exactly 1 in a bin of its own beyond the last",
    ):
        assert part in text, part
    assert "binary" not in text
    assert "under-confident" in str(explain([[0.4, 0.6]], [1]))
    assert "edges are quantiles" in str(explain(*mixed_gaps(100), binning="mass"))
