"""Do the intervals hold the truth as often as they say? Data sets are drawn from worlds whose true ECE is planted."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant import Predictions
from calibrant.core.binning import TopLabel, cells_of, summarize
from calibrant.metrics.intervals import ECE_INVERSION, Evidence
from calibrant.metrics.levels import Levels, ece_of_levels, levels_of
from calibrant.metrics.measure import measure

N = 10_000
N_BINS = 15
# Evidence is handed the levels of a data set in place of a summary.
NOTHING = summarize(Predictions(probs=[[0.9, 0.1]], labels=[0]))


@lru_cache
def confidences(kind: str) -> Tensor:
    """20,000 confidences: "peaked" as of a CIFAR-10 network (63 % above 0.99), "broad" as of a hard problem."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, 10, generator=generator, dtype=torch.float64)
    lead = torch.randn(20_000, generator=generator, dtype=torch.float64)
    logits[:, 0] += (9 + 5 * lead).abs() if kind == "peaked" else 2 + 1.6 * lead
    return logits.softmax(1).amax(1)


def planted(kind: str, gaps: str, error: float) -> Levels:
    """A world on fine levels with gaps of the given size: all of one sign, or alternating from bin to bin; its ECE is known."""
    confidence = confidences(kind)
    index = (confidence * N_BINS).ceil().long() - 1
    sign = torch.ones_like(confidence) if gaps == "one sign" else 1 - 2.0 * ((N_BINS - 1 - index) % 2)
    accuracy = confidence - error * sign
    assert bool(((accuracy >= 0) & (accuracy <= 1)).all())
    return levels_of(cells_of(TopLabel(confidence, accuracy)), size=N, n_bins=N_BINS)


def draw_examples(levels: Levels, *, n_resamples: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Data sets of the observed size drawn from the observed data: rows ``mass, right [R, G]``."""
    right = levels.share * levels.accuracy
    chances = torch.cat([right, (levels.share - right).clamp_min(0)])
    counts = torch.from_numpy(rng.multinomial(levels.size, (chances / chances.sum()).numpy(), size=n_resamples)).double()
    hits, misses = (counts / levels.size).split(len(levels), 1)
    return hits + misses, hits


def draw(world: Levels, rng: np.random.Generator) -> Levels:
    """A data set of N examples as levels."""
    mass, right = (drawn[0] for drawn in draw_examples(world, n_resamples=1, rng=rng))
    # Confidences keep their place, so the levels are cells of a grid of their own.
    used = mass > 0
    return Levels(
        share=mass[used],
        confidence=world.confidence[used],
        accuracy=right[used] / mass[used],
        bin_index=world.bin_index[used],
        last_cell=world.last_cell[used],
        count=mass[used] * N,
        size=N,
        n_bins=N_BINS,
    )


def covered(world: Levels, truth: float, *, data_sets: int, seed: int) -> list[bool]:
    """Whether the interval of the ECE, as `measure` reports it, holds the truth in each of some data sets."""
    rng = np.random.default_rng(seed)
    held = []
    for _ in range(data_sets):
        levels = draw(world, rng)
        evidence = Evidence(NOTHING, n_resamples=100, seed=int(rng.integers(2**31)))
        evidence.levels = levels
        value = float(ece_of_levels(levels, *levels.row(levels.accuracy)))
        low, high = ECE_INVERSION(evidence, value)
        held.append(min(low, value) <= truth + 1e-12 and truth <= max(high, value) + 1e-12)
    return held


def test_coverage_planted_worlds_have_the_planted_error() -> None:
    for kind in ("peaked", "broad"):
        for gaps in ("one sign", "mixed signs"):
            world = planted(kind, gaps, 0.02)
            value = ece_of_levels(world, *world.row(world.accuracy))
            assert float(value) == pytest.approx(0.02, abs=1e-9)


@pytest.mark.parametrize("error", [0.0, 0.005, 0.05])
def test_coverage_of_the_ece_is_at_least_90_percent(error: float) -> None:
    # A calibrated world has no signs; four worlds otherwise. In all 160 data sets, 1.7 % standard error at 95 %.
    shapes = ("one sign",) if error == 0 else ("one sign", "mixed signs")
    worlds = [(kind, gaps) for kind in ("peaked", "broad") for gaps in shapes]
    data_sets = 160 // len(worlds)
    held = [covered(planted(*world, error), error, data_sets=data_sets, seed=k) for k, world in enumerate(worlds)]
    # Between a calibrated model and a clear error, both kinds of truth allow for zero and for more than was seen.
    assert 0.90 <= np.mean(held) <= (1.0 if error == 0.005 else 0.99)
    # Each world for itself has 3.5 % standard error; three of them below 94 %.
    assert min(np.mean(part) for part in held) >= 0.83


def test_coverage_of_percentile_intervals_is_nil_near_zero() -> None:
    # Why the intervals are made as they are: resampling the data adds chance to chance and never comes near a true zero.
    world, rng = planted("peaked", "one sign", 0.0), np.random.default_rng(0)
    lows = []
    for _ in range(30):
        levels = draw(world, rng)
        resampled = ece_of_levels(levels, *draw_examples(levels, n_resamples=200, rng=rng))
        lows.append(float(resampled.quantile(0.025)))
    assert min(lows) > 0.002


@pytest.mark.parametrize("error", [0.0, 0.02])
def test_coverage_of_the_other_errors_is_at_least_80_percent(error: float) -> None:
    confidence = confidences("peaked")
    rng = np.random.default_rng(1)
    truth = {key: 0.0 if error == 0 else error for key in ("ace", "mce", "smece", "ece_debiased")}
    held: dict[str, list[bool]] = {key: [] for key in truth}
    for _ in range(30):
        drawn = confidence[torch.from_numpy(rng.integers(0, len(confidence), 2000))]
        right = torch.from_numpy(rng.random(2000)) < drawn - error
        predictions = Predictions(probs=torch.stack([drawn, 1 - drawn], 1), labels=(~right).long())
        # Two columns suffice for the top label, wherever it is above one half.
        predictions = predictions.subset(drawn > 0.5)
        found = measure(predictions, n_resamples=100, seed=len(held["ace"]))
        for key, value in truth.items():
            held[key].append(found[key].low <= value <= found[key].high + 1e-12)
    # 30 data sets: three standard errors below 94 % are 81 %.
    for key, parts in held.items():
        assert np.mean(parts) >= 0.8, key


def test_coverage_of_measure_itself_for_an_over_confident_classifier() -> None:
    # The whole road once, from probabilities: the true ECE of 4 % lies in most intervals, zero in none.
    rng = np.random.default_rng(0)
    held, zero = [], []
    for seed in range(15):
        confidence = torch.from_numpy(rng.uniform(0.55, 0.999, 1500))
        right = torch.from_numpy(rng.random(1500)) < confidence - 0.04
        predictions = Predictions(probs=torch.stack([confidence, 1 - confidence], 1), labels=(~right).long())
        _, low, high = measure(predictions, n_resamples=100, seed=seed)["ece"]
        held.append(low <= 0.04 <= high)
        zero.append(low == 0)
    # 15 data sets: 12 of them are three standard errors below 95 %.
    assert np.sum(held) >= 12
    assert np.mean(zero) < 0.6


@pytest.mark.parametrize("accuracy", [1.0, 0.999])
def test_coverage_of_an_under_confident_classifier_that_is_hardly_ever_wrong(accuracy: float) -> None:
    # Labels hardly vary; what varies is which confidences are drawn. Gaps have one sign, so that errors are their mean.
    truth = accuracy - 0.725
    held: dict[str, list[bool]] = {key: [] for key in ("ece", "ace", "sece", "smece", "classwise_ece")}
    rng = np.random.default_rng(3)
    for seed in range(30):
        confidence = torch.from_numpy(rng.uniform(0.55, 0.9, 1000))
        wrong = torch.from_numpy(rng.random(1000)) >= accuracy
        predictions = Predictions(probs=torch.stack([confidence, 1 - confidence], 1), labels=wrong.long())
        found = measure(predictions, n_resamples=100, seed=seed)
        for key, parts in held.items():
            parts.append(found[key].low <= truth <= found[key].high)
    # 30 data sets: three standard errors below 92 % are 77 %. They were 3 to 60 % with confidences left as they are.
    for key, parts in held.items():
        assert np.mean(parts) >= 0.77, key
