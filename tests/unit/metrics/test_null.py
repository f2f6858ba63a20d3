from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.null import compare_with_null, if_calibrated, null_distribution
from helpers import mixed_gaps


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


def test_null_distribution_repeats_with_its_seed_only() -> None:
    probs, labels = mixed_gaps(200)
    first, again, other = (null_distribution(probs, labels, n_resamples=20, seed=s) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_null_distribution_in_chunks_has_the_same_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.metrics.null._CHUNK_DRAWS", 1000)
    probs, labels = mixed_gaps(200)
    assert null_distribution(probs, labels, n_resamples=25).shape == (25,)


def test_null_distribution_equal_weights_change_nothing() -> None:
    probs, labels = mixed_gaps(200)
    weighted = null_distribution(probs, labels, n_resamples=50, weights=torch.full((200,), 3.0))
    torch.testing.assert_close(weighted, null_distribution(probs, labels, n_resamples=50))


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
        values.append(if_calibrated(probs, labels, n_resamples=99, seed=seed).p_value)
    # A uniform mean has standard error 0.289 / sqrt(200) = 0.02, a share of 10 % one of 0.021.
    assert float(np.mean(values)) == pytest.approx(0.5, abs=0.07)
    assert float(np.mean(np.array(values) <= 0.1)) == pytest.approx(0.1, abs=0.07)


def test_compare_with_null_counts_equal_values_and_adds_one() -> None:
    drawn = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    assert compare_with_null(0.3, drawn).p_value == pytest.approx(3 / 5)
    assert compare_with_null(0.5, drawn).p_value == pytest.approx(1 / 5)
    assert compare_with_null(0.3, drawn).mean == pytest.approx(0.25)


@pytest.mark.parametrize("function", [null_distribution, if_calibrated])
def test_null_wrong_counts_raise(function: object) -> None:
    probs, labels = mixed_gaps(20)
    with pytest.raises(ValueError, match="`n_bins` must be a whole number >= 1, got 0"):
        function(probs, labels, n_bins=0)  # type: ignore[operator]
    with pytest.raises(ValueError, match="`n_resamples` must be a whole number >= 1, got 0"):
        function(probs, labels, n_resamples=0)  # type: ignore[operator]
    with pytest.raises(ValueError, match="`seed` must be a whole number >= 0, got -1"):
        function(probs, labels, seed=-1)  # type: ignore[operator]


@pytest.mark.parametrize(("observed", "as_large"), [(0.5, 51), (0.0, 101), (2.0, 0)])
def test_compare_with_null_by_hand(observed: float, as_large: int) -> None:
    # 0, 0.01, ..., 1: half of them on average, and one in twenty above 0.95.
    found = compare_with_null(observed, torch.linspace(0, 1, 101, dtype=torch.float64))
    assert found == pytest.approx((0.5, 0.95, (1 + as_large) / 102))
