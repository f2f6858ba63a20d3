from __future__ import annotations

import pytest
import torch

from calibrant.core.binning import mass_curve
from calibrant.core.grid import grid_of
from calibrant.core.top_label import TopLabel, top_label
from calibrant.metrics.adaptive import adaptive_calibration_error, debiased_error
from calibrant.metrics.batched import (
    BATCHED,
    batched_ace,
    batched_aurc,
    batched_debiased,
    batched_ece,
    batched_mce,
    batched_mmce,
    batched_sece,
    batched_smece,
)
from calibrant.metrics.binned import expected_calibration_error, maximum_calibration_error
from calibrant.metrics.kernel import mean_embedding_norm, smoothed_accuracy_gap
from calibrant.metrics.levels import Levels, levels_of
from calibrant.metrics.ranking import risk_coverage_area
from calibrant.metrics.smooth import smoothed_residual
from helpers import golden, mixed_gaps


def as_row(top: TopLabel) -> tuple[Levels, torch.Tensor, torch.Tensor]:
    levels = levels_of(grid_of(top.confidence, top.correct), size=len(top), n_bins=15, within_bins=True)
    return levels, levels.share.unsqueeze(0), (levels.share * levels.accuracy).unsqueeze(0)


def test_batched_golden_input_gives_golden_values() -> None:
    logits, labels = golden()
    row = as_row(top_label(logits.softmax(1), labels, where="test"))
    # Golden values were printed from float32. That of smECE stems from a search in steps of 1/1024; by definition it is 0.1950.
    assert float(batched_ece(*row)) == pytest.approx(0.268477, rel=2e-6)
    assert float(batched_mce(*row)) == pytest.approx(0.559181, rel=2e-6)
    assert float(batched_ace(*row)) == pytest.approx(0.334314, rel=2e-6)
    assert float(batched_sece(*row)) == pytest.approx(0.272692, rel=2e-6)
    assert float(batched_mmce(*row)) == pytest.approx(0.140817, rel=5e-6)
    assert float(batched_smece(*row)) == pytest.approx(0.1950, rel=2e-3)


def test_batched_many_examples_are_near_the_exact_metrics() -> None:
    probs, labels = mixed_gaps(4000)
    top = top_label(probs, labels, where="test")
    levels, mass, right = as_row(top)
    exact = {
        "ece": (expected_calibration_error(probs, labels), 1e-9),
        "mce": (maximum_calibration_error(probs, labels), 1e-9),
        # The others see levels of up to 0.0125, through which equal-mass cuts go.
        "ace": (adaptive_calibration_error(probs, labels), 0.03),
        "sece": (smoothed_accuracy_gap(top, bandwidth=0.05), 0.01),
        "smece": (smoothed_residual(top, convention="exact"), 0.01),
        "mmce": (mean_embedding_norm(top, scale=0.4), 0.01),
    }
    for key, (value, tolerance) in exact.items():
        assert float(BATCHED[key](levels, mass, right)) == pytest.approx(float(value), rel=tolerance), key
    debiased = debiased_error(mass_curve(top), n_bins=15)
    assert float(batched_debiased(levels, mass, right, size=4000)) == pytest.approx(float(debiased), rel=0.03)
    assert float(batched_aurc(levels, mass, right)) == pytest.approx(float(risk_coverage_area(top)), rel=0.01)


def test_batched_equal_mass_bins_beyond_the_examples_are_empty() -> None:
    top = top_label(*mixed_gaps(40), where="test")
    grid = grid_of(top.confidence, top.correct)
    values = []
    for n_bins in (40, 100_000):
        levels = levels_of(grid, size=40, n_bins=n_bins)
        row = levels, levels.share.unsqueeze(0), (levels.share * levels.accuracy).unsqueeze(0)
        values.append((float(batched_ace(*row)), float(batched_debiased(*row, size=40))))
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    assert values[0][0] == pytest.approx(float(adaptive_calibration_error(*mixed_gaps(40), n_bins=40)))


def test_batched_rows_are_scored_one_by_one() -> None:
    levels, mass, right = as_row(top_label(*mixed_gaps(1000), where="test"))
    generator = torch.Generator().manual_seed(0)
    other = mass * torch.rand(5, len(levels), generator=generator, dtype=torch.float64)
    other = other / other.sum(1, keepdim=True)
    hits = other * torch.rand(5, len(levels), generator=generator, dtype=torch.float64)
    for key, metric in BATCHED.items():
        together = metric(levels, other, hits)
        alone = torch.cat([metric(levels, other[k : k + 1], hits[k : k + 1]) for k in range(5)])
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-9, msg=key)


def test_batched_calibrated_row_has_no_error() -> None:
    levels, mass, _ = as_row(top_label(*mixed_gaps(1000), where="test"))
    right = mass * levels.confidence
    for key in ("ece", "mce", "ace", "smece", "mmce"):
        assert float(BATCHED[key](levels, mass, right)) == pytest.approx(0, abs=1e-7), key
    assert float(batched_debiased(levels, mass, right, size=float("inf"))) == pytest.approx(0, abs=1e-9)


def test_batched_smece_of_one_sign_is_the_mean_gap_at_every_size() -> None:
    # A residual of one sign keeps its integral under smoothing; rows of very different size need other rungs of the ladder.
    levels, mass, _ = as_row(top_label(*mixed_gaps(1000), where="test"))
    gaps = torch.tensor([[1e-6], [1e-4], [0.01], [0.1], [0.3]], dtype=torch.float64)
    right = mass * (levels.confidence - gaps)
    found = batched_smece(levels, mass.expand_as(right), right)
    torch.testing.assert_close(found, gaps.squeeze(1), rtol=1e-4, atol=1e-7)


def test_batched_smece_rows_beyond_the_scouts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    levels, mass, _ = as_row(top_label(*mixed_gaps(1000), where="test"))
    gaps = torch.full((40, 1), 0.01, dtype=torch.float64)
    gaps[7], gaps[9] = 0.4, 1e-5
    # Only the first row is looked at beforehand.
    monkeypatch.setattr("calibrant.metrics.batched._SCOUTS", 1)
    right = mass * (levels.confidence - gaps)
    torch.testing.assert_close(batched_smece(levels, mass.expand_as(right), right), gaps.squeeze(1), rtol=1e-4, atol=1e-7)


def test_batched_smece_row_of_both_signs_below_the_scouts_is_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    # Gaps of both signs cancel under smoothing, so that the size of a small error depends on the rung it is read at.
    levels, mass, _ = as_row(top_label(*mixed_gaps(1000), where="test"))
    sign = torch.where(torch.arange(len(levels)) % 2 == 0, 1.0, -1.0).double()
    gaps = torch.full((40, 1), 0.2, dtype=torch.float64) * torch.ones_like(sign)
    gaps[9] = 0.01 * sign
    monkeypatch.setattr("calibrant.metrics.batched._SCOUTS", 1)
    right = mass * (levels.confidence - gaps)
    alone = batched_smece(levels, mass, right[9:10])
    torch.testing.assert_close(batched_smece(levels, mass.expand_as(right), right)[9:10], alone, rtol=1e-5, atol=1e-9)


def test_batched_debiased_of_two_examples_a_bin_is_the_exact_one() -> None:
    top = top_label(*mixed_gaps(30), where="test")
    levels = levels_of(grid_of(top.confidence, top.correct), size=30, n_bins=15)
    mass, right = levels.share.unsqueeze(0), (levels.share * levels.accuracy).unsqueeze(0)
    expected = debiased_error(mass_curve(top), n_bins=15)
    assert float(batched_debiased(levels, mass, right, size=30)) == pytest.approx(float(expected), rel=1e-9)
    assert float(expected) > 0


def test_batched_aurc_of_two_levels_gives_hand_computed_area() -> None:
    levels = levels_of(grid_of(torch.tensor([0.9, 0.6]).double(), torch.tensor([1.0, 0.0]).double()), size=2, n_bins=15)
    # The surer half is right: risk 0, then (0.5 / 2) / (0.5 + 0.5 / 2) in the middle of the other half.
    mass, right = torch.tensor([[0.5, 0.5]]).double(), torch.tensor([[0.0, 0.5]]).double()
    assert float(batched_aurc(levels, mass, right)) == pytest.approx(0.5 * 0.25 / 0.75)
