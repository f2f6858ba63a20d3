from __future__ import annotations

import pytest
import torch

from calibrant import Predictions
from calibrant.metrics import expected_calibration_error, maximum_calibration_error
from calibrant.metrics.sweep import BIN_COUNTS, bin_sweep
from helpers import hard_gaps, mixed_gaps


def test_bin_sweep_of_two_examples_gives_values_by_hand() -> None:
    # One bin above 1/2 holds both: |0.85 - 0.5|. Apart, the gaps are 0.1 (right at 0.9) and 0.8 (wrong at 0.8).
    sweep = bin_sweep(Predictions(probs=[[0.9, 0.1], [0.8, 0.2]], labels=[0, 1]), n_bins=(2, 10, 1000))
    assert sweep.n_bins == (2, 10, 1000)
    assert sweep.ece == pytest.approx((0.35, 0.45, 0.45))
    assert sweep.mce == pytest.approx((0.35, 0.8, 0.8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bin_sweep_equals_the_single_metrics_at_every_number(dtype: torch.dtype) -> None:
    probs, labels = hard_gaps(dtype=dtype)
    sweep = bin_sweep(Predictions(probs=probs, labels=labels))
    assert sweep.n_bins == BIN_COUNTS
    for number, ece, mce in zip(sweep.n_bins, sweep.ece, sweep.mce, strict=True):
        assert ece == pytest.approx(float(expected_calibration_error(probs, labels, n_bins=number)), abs=1e-12)
        assert mce == pytest.approx(float(maximum_calibration_error(probs, labels, n_bins=number)), abs=1e-12)


def test_bin_sweep_respects_weights() -> None:
    probs, labels = mixed_gaps(300)
    weights = torch.linspace(0, 3, 300, dtype=torch.float64)
    sweep = bin_sweep(Predictions(probs=probs, labels=labels, weights=weights), n_bins=(10, 40))
    expected = [float(expected_calibration_error(probs, labels, n_bins=m, weights=weights)) for m in (10, 40)]
    largest = [float(maximum_calibration_error(probs, labels, n_bins=m, weights=weights)) for m in (10, 40)]
    assert sweep.ece == pytest.approx(expected, abs=1e-12)
    assert sweep.mce == pytest.approx(largest, abs=1e-12)


def test_bin_sweep_sorts_the_numbers_and_drops_repeated_ones() -> None:
    predictions = Predictions(probs=[[0.9, 0.1]], labels=[0])
    assert bin_sweep(predictions, n_bins=[50, 10, 50]).n_bins == (10, 50)


def test_bin_sweep_of_nested_bins_never_falls() -> None:
    # Splitting a bin cannot lower the sum of absolute gaps: the triangle inequality.
    probs, labels = mixed_gaps(1000)
    ece = bin_sweep(Predictions(probs=probs, labels=labels), n_bins=(5, 10, 20, 40, 80)).ece
    assert list(ece) == sorted(ece)


def test_bin_sweep_of_wrong_arguments_raises() -> None:
    predictions = Predictions(probs=[[0.9, 0.1]], labels=[0])
    with pytest.raises(ValueError, match="bin_sweep: `n_bins` must hold at least one number of bins, got none"):
        bin_sweep(predictions, n_bins=())
    with pytest.raises(ValueError, match="bin_sweep: `n_bins` must be a whole number >= 1, got 0"):
        bin_sweep(predictions, n_bins=(10, 0))
    with pytest.raises(ValueError, match="bin_sweep: `predictions` must be a `Predictions`, got list"):
        bin_sweep([[0.9, 0.1]])  # type: ignore[arg-type]
