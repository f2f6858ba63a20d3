from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from calibrant.metrics.adaptive import adaptive_calibration_error
from calibrant.metrics.binary import binary_adaptive_calibration_error, binary_expected_calibration_error
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.conventions import CONVENTIONS
from calibrant.metrics.explain import explain
from helpers import mixed_gaps

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


def test_explain_by_mass_is_the_adaptive_error_and_its_conventions() -> None:
    probs, labels = mixed_gaps(300)
    told = explain(probs, labels, binning="mass")
    assert told.metric == "adaptive_calibration_error"
    assert told.value == pytest.approx(float(adaptive_calibration_error(probs, labels)), rel=1e-12)
    assert set(told.others) == {name for name, entry in CONVENTIONS.items() if entry.mass}
    assert told.empty_bins == 0
    assert told.smallest_bin == 20


def test_explain_source_that_fails_has_no_value() -> None:
    told = explain([[0.9, 0.05, 0.05]] * 3, [0, 1, 1])
    assert told.others["netcal"] is None
    assert told.others["guo2017"] == pytest.approx(0.9 - 1 / 3)
    assert "netcal                   none" in str(told)


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


def test_explain_record_is_frozen() -> None:
    told = explain(PROBS, LABELS)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'value'"):
        told.value = 0.0  # type: ignore[misc]
    with pytest.raises(TypeError, match="does not support item assignment"):
        told.others["guo2017"] = 0.0  # type: ignore[index]


def test_explain_wrong_options_are_named() -> None:
    with pytest.raises(ValueError, match="^explain: `binning` must be 'width' or 'mass', got 'x'"):
        explain(PROBS, LABELS, binning="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^explain: `n_bins` must be a whole number >= 1, got 0"):
        explain(PROBS, LABELS, n_bins=0)
    with pytest.raises(ValueError, match="^explain: `p` must be a number >= 1"):
        explain(PROBS, LABELS, p=0)
    with pytest.raises(ValueError, match="^explain: `labels` must lie in"):
        explain(PROBS, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("confidence", "told"),
    [
        (0.75, "+0.000000 (no direction on average)"),
        (0.8, "+0.050000 (over-confident on average)"),
        (0.7, "-0.050000 (under-confident on average)"),
    ],
)
def test_explain_tells_a_direction_only_where_there_is_one(confidence: float, told: str) -> None:
    assert told in str(explain([[confidence, 1 - confidence]] * 4, [0, 0, 0, 1]))


def test_explain_counts_as_saturated_what_is_one_alone() -> None:
    assert explain([[1.0, 0.0], [0.9999, 0.0001], [1.0, 0.0]], [0, 0, 0]).saturated == 2
