from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.core.summary import Summary, summarize
from calibrant.metrics import intervals as module
from calibrant.metrics.intervals import binned_intervals, classwise_interval, score_intervals
from calibrant.metrics.levels import levels_of
from calibrant.metrics.null import null_of_levels
from calibrant.metrics.ordinary import Range
from calibrant.metrics.values import KEYS, values_of_summary
from calibrant.metrics.worlds import worlds_by_mean_gap
from helpers import mixed_gaps

ERRORS = ("ece", "mce", "ace", "classwise_ece", "sece", "smece", "mmce", "ece_debiased")


def intervals(summary: Summary, *, seed: int = 0, n_resamples: int = 200) -> dict[str, Range]:
    rng = np.random.default_rng(seed)
    levels = levels_of(summary.grid, size=summary.effective_n, n_bins=summary.n_bins, within_bins=True)
    null = null_of_levels(levels, n_resamples=n_resamples, rng=rng)
    return score_intervals(summary, values=values_of_summary(summary), null=null, n_resamples=n_resamples, rng=rng)


def calibrated(n: int, num_classes: int = 5, *, scale: float = 1.0) -> Predictions:
    """Labels drawn from the softmax of logits; probabilities from ``scale`` times as much."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, num_classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return Predictions(logits=scale * logits, labels=labels)


def test_intervals_of_calibrated_predictions_begin_at_zero() -> None:
    found = intervals(summarize(calibrated(2000)))
    assert set(found) == set(KEYS)
    for key in ERRORS:
        assert found[key].low == 0, key
        assert 0 < found[key].high < (0.5 if key == "mce" else 0.1), key
    assert found["signed_gap"].low < 0 < found["signed_gap"].high


def test_intervals_of_over_confident_predictions_exclude_zero() -> None:
    summary = summarize(calibrated(2000, scale=2.0))
    found, values = intervals(summary), values_of_summary(summary)
    # The largest gap may be that of a bin with few examples, which excludes nothing.
    for key in set(ERRORS) - {"mce"}:
        assert 0 < found[key].low < found[key].high, key
        assert found[key].low < values[key], key
    assert found["signed_gap"].low > 0
    # Chance adds little to an error this large, so the interval surrounds the value.
    assert found["ece"].low < values["ece"] < found["ece"].high


def test_intervals_of_the_largest_gap_do_not_begin_below_those_of_the_mean_gap() -> None:
    # Bins with few examples hide the largest gap; that the mean gap is 20 % or more cannot be hidden by them.
    confidence = torch.cat([torch.linspace(0.6, 0.9, 1000), torch.tensor([0.2, 0.21, 0.3])]).double()
    rest = ((1 - confidence) / 9).unsqueeze(1).expand(-1, 9)
    labels = torch.cat([torch.arange(1000) % 2, torch.ones(3, dtype=torch.long)])
    summary = summarize(Predictions(probs=torch.cat([confidence.unsqueeze(1), rest], dim=1), labels=labels))
    found = intervals(summary)
    assert 0.2 < found["ece"].low <= found["mce"].low < found["mce"].high


def binned(confidence: torch.Tensor, labels: torch.Tensor) -> dict[str, Range]:
    summary = summarize(Predictions(probs=torch.stack([confidence, 1 - confidence], dim=1), labels=labels))
    levels = levels_of(summary.grid, size=summary.effective_n, n_bins=summary.n_bins, within_bins=True)
    null = null_of_levels(levels, n_resamples=400, rng=np.random.default_rng(1))
    return binned_intervals(levels, null=null, n_resamples=200, rng=np.random.default_rng(0))


def test_intervals_of_few_predictions_begin_lower_by_even_gaps_and_end_where_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    confidence, labels = torch.tensor([0.95] * 40 + [0.6] * 5).double(), torch.tensor([0] * 40 + [1] * 5)
    found = binned(confidence, labels)["ece"]
    monkeypatch.setattr(module, "worlds_of_even_gaps", worlds_by_mean_gap)
    alone = binned(confidence, labels)["ece"]
    assert 0 < found.low < 0.8 * alone.low
    assert found.high == alone.high


def test_intervals_of_the_largest_gap_end_where_their_bin_does() -> None:
    # Confidences of this bin are at most 0.6, and accuracy at least 0.
    found = binned(torch.full((6,), 0.598).double(), torch.ones(6, dtype=torch.long))
    assert found["mce"].high == pytest.approx(0.6)


def test_intervals_of_sure_predictions_are_as_wide_for_the_mmce_as_for_the_others() -> None:
    # Confidences within 1e-9 of 1: if calibrated there would be no error but for rounding.
    sure = 1e-9 * torch.linspace(0.5, 1, 1000, dtype=torch.float64)
    predictions = Predictions(probs=torch.stack([1 - sure, sure], dim=1), labels=(torch.arange(1000) % 10 > 0).long())
    found = intervals(summarize(predictions))
    for key in ERRORS:
        assert 0.85 < found[key].low < 0.9 < found[key].high < 0.95, key


@pytest.mark.parametrize("right", [1.0, 0.0])
def test_intervals_of_predictions_all_right_or_all_wrong_are_as_wide_as_that_of_the_signed_gap(right: float) -> None:
    # Gaps have one sign everywhere, so these errors are the size of the signed gap; labels do not vary, confidences do.
    confidence = torch.linspace(0.55, 0.9, 1000, dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    found = intervals(summarize(Predictions(probs=probs, labels=torch.full((1000,), int(1 - right)))), n_resamples=300)
    gap = sorted(abs(end) for end in found["signed_gap"])
    for key in ("ece", "ace", "sece", "smece"):
        assert found[key] == pytest.approx(gap, abs=0.008), key
    for key in ERRORS:
        assert found[key].high - found[key].low > 0.003, key


def test_intervals_of_predictions_all_right_whose_shares_round_past_one() -> None:
    # Shares of these levels add up to 1 + 2e-16.
    rng = np.random.default_rng(72)
    logits = 3 * rng.standard_normal((int(rng.integers(10, 3000)), 5))
    found = intervals(summarize(Predictions(logits=logits, labels=logits.argmax(1))), n_resamples=20)
    assert found["signed_gap"].low < found["signed_gap"].high < -0.2
    assert found["error"].low == 0


def test_intervals_shrink_with_more_data() -> None:
    few, many = (intervals(summarize(calibrated(n, scale=1.5))) for n in (500, 8000))
    for key in set(KEYS) - {"mce"}:
        assert many[key].high - many[key].low < 0.5 * (few[key].high - few[key].low), key


def test_intervals_repeat_with_their_seed() -> None:
    summary = summarize(calibrated(300))
    assert intervals(summary, seed=4, n_resamples=40) == intervals(summary, seed=4, n_resamples=40)


def test_intervals_of_the_ece_vary_little_between_seeds() -> None:
    summary = summarize(calibrated(2000, scale=1.3))
    ends = np.array([intervals(summary, seed=s, n_resamples=400)["ece"] for s in range(6)])
    # The ends should be known far better than the interval is wide.
    assert ends.std(0).max() < 0.06 * (ends[:, 1] - ends[:, 0]).mean()


def test_intervals_equal_weights_change_nothing() -> None:
    plain = calibrated(300)
    weighted = Predictions(logits=plain.logits, labels=plain.labels, weights=torch.full((300,), 2.5))
    one, two = intervals(summarize(plain), n_resamples=40), intervals(summarize(weighted), n_resamples=40)
    for key in KEYS:
        assert one[key] == pytest.approx(two[key], rel=1e-6), key


def test_intervals_unequal_weights_are_those_of_the_effective_number() -> None:
    plain = calibrated(4000, scale=1.5)
    weights = torch.ones(4000)
    weights[1000:] = 1e-9
    weighted = Predictions(logits=plain.logits, labels=plain.labels, weights=weights)
    one = intervals(summarize(weighted))
    two = intervals(summarize(plain.subset(torch.arange(1000))))
    for key in ("error", "nll", "brier", "ece", "signed_gap"):
        assert one[key] == pytest.approx(two[key], rel=0.1, abs=0.003), key


def test_classwise_interval_of_two_classes_is_that_of_the_positive_class() -> None:
    # Two classes mirror each other, so the classwise error is the error of either.
    summary = summarize(calibrated(3000, 2, scale=1.6))
    found = classwise_interval(summary, n_resamples=300, rng=np.random.default_rng(0))
    value = values_of_summary(summary)["classwise_ece"]
    assert 0 < found.low < value < found.high
    # Chance: sqrt(p (1 - p) / N) of about 0.4 / sqrt(3000) = 0.007 on either side, twice.
    assert 0.015 < found.high - found.low < 0.045


def test_classwise_interval_many_classes_needs_little_memory_and_holds() -> None:
    probs, labels = mixed_gaps(1000, 300)
    found = classwise_interval(
        summarize(Predictions(probs=probs, labels=labels)), n_resamples=200, rng=np.random.default_rng(0)
    )
    assert 0 <= found.low < found.high < 0.01
