from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.core.records import BinSweep
from calibrant.metrics import maximum_calibration_error
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.levels import BIN_COUNTS, bin_sweep, compare_with_null, if_calibrated, null_distribution
from helpers import hard_gaps, mixed_gaps


def test_null_distribution_of_one_confidence_is_a_binomial() -> None:
    from scipy.stats import binom

    probs = torch.tensor([[0.9, 0.1]] * 100)
    drawn = null_distribution(probs, torch.zeros(100, dtype=torch.long), n_resamples=20_000)
    k = np.arange(101)
    size = np.abs(k - 90) / 100
    mean = float((binom.pmf(k, 100, 0.9) * size).sum())
    # The standard error of the mean of 20,000 values with standard deviation 0.018 is 1.3e-4.
    assert float(drawn.mean()) == pytest.approx(mean, abs=5e-4)
    share = float((binom.pmf(k, 100, 0.9) * (size > 0.055)).sum())
    assert float((drawn > 0.055).double().mean()) == pytest.approx(share, abs=0.007)


def test_null_distribution_equals_drawing_labels_one_by_one() -> None:
    probs, labels = mixed_gaps(1000)
    drawn = null_distribution(probs, labels, n_resamples=2000)
    confidence, top = probs.max(1)
    generator = torch.Generator().manual_seed(1)
    slow = []
    for _ in range(300):
        right = torch.rand(1000, generator=generator, dtype=torch.float64) < confidence
        slow.append(float(expected_calibration_error(probs, torch.where(right, top, (top + 1) % 10))))
    # Standard errors: 0.008 / sqrt(300) = 5e-4 of the mean, about 1e-3 of the 95 % quantile.
    assert float(drawn.mean()) == pytest.approx(float(np.mean(slow)), abs=1.5e-3)
    assert float(drawn.quantile(0.95)) == pytest.approx(float(np.quantile(slow, 0.95)), abs=4e-3)


def test_null_distribution_unequal_weights_widen_it() -> None:
    probs, labels = mixed_gaps(1000)
    weights = torch.ones(1000)
    weights[::2] = 0.0
    half = null_distribution(probs, labels, weights=weights)
    # Half the examples, chance larger by sqrt(2).
    ratio = float(half.mean() / null_distribution(probs, labels).mean())
    assert ratio == pytest.approx(2**0.5, rel=0.06)


def test_if_calibrated_over_confident_model_is_found_out() -> None:
    probs = torch.tensor([[0.9, 0.1]] * 100)
    found = if_calibrated(probs, torch.tensor([0] * 60 + [1] * 40), n_resamples=500)
    assert found.p_value == pytest.approx(1 / 501)
    assert found.mean < found.p95 < 0.3


def test_if_calibrated_p_value_is_uniform_for_calibrated_models() -> None:
    generator = torch.Generator().manual_seed(0)
    values = []
    for seed in range(200):
        probs = (2 * torch.randn(300, 5, generator=generator, dtype=torch.float64)).softmax(1)
        labels = torch.multinomial(probs, 1, generator=generator).squeeze(1)
        values.append(if_calibrated(probs, labels, n_resamples=100, seed=seed).p_value)
    # A uniform mean has standard error 0.289 / sqrt(200) = 0.02, a share of 10 % one of 0.021.
    assert float(np.mean(values)) == pytest.approx(0.5, abs=0.07)
    assert float(np.mean(np.array(values) <= 0.1)) == pytest.approx(0.1, abs=0.07)


def test_if_calibrated_with_very_uneven_weights_rejects_about_as_often_as_without() -> None:
    # By the number of examples that all are worth together, instead of those of each level, it rejected 1 % of these.
    generator, hits = np.random.default_rng(0), 0
    for seed in range(150):
        probs = generator.dirichlet([0.3, 0.3], 400)
        labels = (generator.random(400) > probs[:, 0]).astype(int)
        given = Predictions(probs=probs, labels=labels, weights=generator.lognormal(0, 2, 400))
        hits += if_calibrated(given, n_resamples=100, seed=seed).p_value <= 0.1
    # 15 are expected, with a standard deviation of 3.7; by the share of each level in that number, 25 were.
    assert 6 <= hits <= 22


def test_compare_with_null_counts_equal_values_and_adds_one() -> None:
    drawn = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    assert compare_with_null(0.3, drawn).p_value == pytest.approx(3 / 5)
    assert compare_with_null(0.5, drawn).p_value == pytest.approx(1 / 5)
    assert compare_with_null(0.3, drawn).mean == pytest.approx(0.25)


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


def test_bin_sweep_if_calibrated_of_two_examples_gives_values_by_hand() -> None:
    # Right with chances 0.9 and 0.8. Apart, the mean gaps are 2 x 0.9 x 0.1 and 2 x 0.8 x 0.2; the larger of both is 0.2 if
    # both are right (0.72), 0.8 if the second alone is wrong (0.18) and else 0.9. Together, 0, 1 or 2 of them are right with
    # chances 0.02, 0.26 and 0.72, and the mean confidence is 0.85.
    predictions = Predictions(probs=[[0.9, 0.1], [0.8, 0.2]], labels=[0, 1])
    sweep = bin_sweep(predictions, n_bins=(2, 10), n_resamples=40_000)
    together = 0.02 * 0.85 + 0.26 * 0.35 + 0.72 * 0.15
    # The largest standard deviation is 0.31, the standard error of the mean 0.0015.
    assert sweep.ece_if_calibrated == pytest.approx((together, (0.18 + 0.32) / 2), abs=0.006)
    assert sweep.mce_if_calibrated == pytest.approx((together, 0.72 * 0.2 + 0.18 * 0.8 + 0.1 * 0.9), abs=0.006)


def test_bin_sweep_if_calibrated_equals_drawing_labels_one_by_one() -> None:
    probs, labels = mixed_gaps(1000)
    numbers = (10, 70, 1000)
    sweep = bin_sweep(Predictions(probs=probs, labels=labels), n_bins=numbers, n_resamples=1000)
    confidence, top = probs.max(1)
    generator = torch.Generator().manual_seed(1)
    slow = []
    for _ in range(150):
        right = torch.rand(1000, generator=generator, dtype=torch.float64) < confidence
        drawn = Predictions(probs=probs, labels=torch.where(right, top, (top + 1) % 10))
        plain = bin_sweep(drawn, n_bins=numbers, n_resamples=0)
        slow.append([plain.ece, plain.mce])
    values = torch.tensor(slow, dtype=torch.float64)
    # Four standard errors of the difference, of 150 and of 1,000 draws.
    room = 4 * values.std(0) * (1 / 150 + 1 / 1000) ** 0.5
    found = torch.tensor([sweep.ece_if_calibrated, sweep.mce_if_calibrated], dtype=torch.float64)
    assert bool(((found - values.mean(0)).abs() < room).all())


def test_bin_sweep_if_calibrated_repeats_with_its_seed_only_and_leaves_the_errors_alone() -> None:
    probs, labels = mixed_gaps(300)
    test = Predictions(probs=probs, labels=labels)
    first, again, other = (bin_sweep(test, n_bins=(10, 40), seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.ece_if_calibrated != other.ece_if_calibrated
    assert (first.ece, first.mce) == (other.ece, other.mce)
    none = bin_sweep(test, n_bins=(10, 40), n_resamples=0)
    assert none == BinSweep(first.n_bins, first.ece, first.mce)


def test_bin_sweep_if_calibrated_draws_the_effective_number_of_weighted_examples() -> None:
    probs, labels = mixed_gaps(1000)
    plain = bin_sweep(Predictions(probs=probs, labels=labels), n_bins=(10, 100))
    equal = bin_sweep(Predictions(probs=probs, labels=labels, weights=torch.full((1000,), 3.0)), n_bins=(10, 100))
    assert equal.ece_if_calibrated == pytest.approx(plain.ece_if_calibrated, rel=1e-9)
    assert equal.mce_if_calibrated == pytest.approx(plain.mce_if_calibrated, rel=1e-9)
    weights = torch.linspace(0, 2, 1000, dtype=torch.float64)
    weighted = bin_sweep(Predictions(probs=probs, labels=labels, weights=weights), n_bins=(10, 100))
    assert all(0 < mce <= 1 for mce in weighted.mce_if_calibrated)
    # The effective number is 3/4 of all, and chance larger by sqrt(4/3).
    ratio = weighted.ece_if_calibrated[0] / plain.ece_if_calibrated[0]
    assert ratio == pytest.approx((4 / 3) ** 0.5, rel=0.08)


def test_bin_sweep_of_wrong_arguments_raises() -> None:
    predictions = Predictions(probs=[[0.9, 0.1]], labels=[0])
    with pytest.raises(ValueError, match="bin_sweep: `n_bins` must hold at least one number of bins, got none"):
        bin_sweep(predictions, n_bins=())
    with pytest.raises(ValueError, match="bin_sweep: `n_bins` must be a whole number from 1 to 10,000, got 0"):
        bin_sweep(predictions, n_bins=(10, 0))
    with pytest.raises(ValueError, match="bin_sweep: `n_resamples` must be a whole number from 0 to [0-9,]+, got -1"):
        bin_sweep(predictions, n_resamples=-1)
    with pytest.raises(ValueError, match="bin_sweep: `seed` must be a whole number >= 0, got -1"):
        bin_sweep(predictions, seed=-1)
    with pytest.raises(ValueError, match="`Predictions`, got list"):
        bin_sweep([[0.9, 0.1]])  # type: ignore[arg-type]
