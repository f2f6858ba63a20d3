"""The 95 % interval of every score, from a summary of constant size.

Calibration errors are found by test inversion (`worlds`), the other scores by ordinary statistics (`ordinary`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from calibrant.core.summary import Summary
from calibrant.metrics.batched import BATCHED, batched_debiased
from calibrant.metrics.levels import Levels, levels_of, merge_bins
from calibrant.metrics.ordinary import Range, aurc_interval, mean_interval, rate_interval, signed_gap_interval
from calibrant.metrics.worlds import (
    WORLDS,
    accepted_range,
    draw_from,
    draw_right,
    worlds_by_largest_gap,
    worlds_by_mean_gap,
)

# Worlds of the ECE get all resamples asked for, being cheap to draw; those of other errors a fifth as many.
_PER_WORLD = 0.2
# Draws for the classwise error: with many classes its spread is known from few resamples, being a sum of many parts.
_CLASS_DRAWS = 400_000
_LEAST_PER_WORLD = 40
# Metrics of equal-mass bins and of kernels, whose worlds have one gap per equal-mass bin.
_BY_MASS = ("ace", "sece", "smece", "mmce")
# A value further off than by this ratio is small, and differs by the coarseness of its own search (smECE).
_FAR = 1.25

Metric = Callable[[Levels, Tensor, Tensor], Tensor]


def score_intervals(
    summary: Summary, *, values: Mapping[str, float], null: Tensor, n_resamples: int, rng: np.random.Generator
) -> dict[str, Range]:
    """Return the 95 % interval of each of the thirteen scores.

    Args:
        summary: What is known of the data.
        values: The scores. Resamples know confidence by levels only, and smECE by its definition; intervals are stretched by
            the ratio of the value given here to that of the levels.
        null: ECE of calibrated data ``[R]`` (`calibrant.metrics.null_distribution`), so that the interval of the ECE begins
            above zero exactly if no more than 5 % of those reach the observed ECE.
        n_resamples: Number of resamples.
        rng: Source of randomness.

    Returns:
        Key → interval. It says which true values are compatible with the data; near perfect calibration the observed value,
        which chance pushes up, may lie above it.
    """
    size = summary.effective_n
    levels = levels_of(summary.grid, size=size, n_bins=summary.n_bins)
    few = max(math.ceil(_PER_WORLD * n_resamples), 2)
    aurc, level_aurc = aurc_interval(levels, n_resamples=n_resamples, rng=rng)
    return {
        "error": rate_interval(min(max(values["error"], 0.0), 1.0), size=size),
        "nll": mean_interval(summary.nll, weight=summary.weight, size=size),
        "brier": mean_interval(summary.brier, weight=summary.weight, size=size, most=2.0),
        **_binned_intervals(summary, values=values, null=null, n_resamples=n_resamples, rng=rng),
        **_mass_intervals(levels, values=values, n_resamples=few, rng=rng),
        "classwise_ece": classwise_interval(summary, n_resamples=few, rng=rng),
        "signed_gap": signed_gap_interval(levels),
        "aurc": _stretch(aurc, values["aurc"], level_aurc),
    }


def _binned_intervals(
    summary: Summary, *, values: Mapping[str, float], null: Tensor, n_resamples: int, rng: np.random.Generator
) -> dict[str, Range]:
    """Intervals of ECE and MCE."""
    fine = levels_of(summary.grid, size=summary.effective_n, n_bins=summary.n_bins, within_bins=True)
    levels = merge_bins(fine)
    found = {}
    for key, family in (("ece", worlds_by_mean_gap), ("mce", worlds_by_largest_gap)):
        worlds = family(levels, levels.bin_index)
        data = draw_from(worlds, levels, n_resamples=n_resamples, rng=rng)
        found[key] = _invert(levels, worlds, data, BATCHED[key], value=values[key], null=null if key == "ece" else None)
    return found


def _mass_intervals(
    levels: Levels, *, values: Mapping[str, float], n_resamples: int, rng: np.random.Generator
) -> dict[str, Range]:
    """Intervals of the errors over equal-mass bins or kernels, from one family of worlds."""
    worlds = worlds_by_mean_gap(levels, levels.mass_index)
    data = draw_from(worlds, levels, n_resamples=n_resamples, rng=rng)
    found = {key: _invert(levels, worlds, data, BATCHED[key], value=values[key]) for key in _BY_MASS}
    key = "ece_debiased"
    sized, unsized = partial(batched_debiased, size=levels.size), partial(batched_debiased, size=math.inf)
    return {**found, key: _invert(levels, worlds, data, sized, in_truth=unsized, value=values[key])}


def _invert(
    levels: Levels,
    worlds: Tensor,
    data: tuple[Tensor, Tensor],
    metric: Metric,
    *,
    value: float,
    in_truth: Metric | None = None,
    null: Tensor | None = None,
) -> Range:
    """Interval of a metric from data drawn from worlds; ``in_truth`` is the metric of infinitely many examples."""
    observed = float(metric(levels, *_as_row(levels, levels.accuracy)))
    truth = (in_truth or metric)(levels, *_as_row(levels, worlds))
    drawn = metric(levels, *data).view(len(worlds), -1)
    return _stretch(Range(*accepted_range(truth, drawn, observed, null=null)), value, observed)


def _stretch(given: Range, value: float, observed: float) -> Range:
    """Stretch an interval from the ``observed`` value of the levels to the exact ``value``, if that is near."""
    ratio = value / observed if observed > 0 else 1.0
    return Range(given.low * ratio, given.high * ratio) if 1 / _FAR < ratio < _FAR else given


def _as_row(levels: Levels, accuracy: Tensor) -> tuple[Tensor, Tensor]:
    """Expected shares of a known accuracy ``[..., G]``, as rows ``mass, right [R, G]``."""
    right = torch.atleast_2d(levels.share * accuracy)
    return levels.share.expand_as(right), right


def classwise_interval(summary: Summary, *, n_resamples: int, rng: np.random.Generator) -> Range:
    """Interval of the classwise ECE: every bin of every class is a piece of its own.

    Bins are drawn independently. In truth one example is in a bin of every class; the residuals of two of C classes are then
    correlated by -1 / (C - 1) on average, their sizes by about its square, and C - 1 others spread a sum by 1 + 1 / (C - 1)
    times the variance of independent ones (exact for two classes, which mirror each other).
    """
    cells = summary.class_bins
    held = cells.weight > 0
    weight = cells.weight[held]
    share = weight / weight.sum()
    levels = Levels(
        share=share,
        confidence=(cells.confidence[held] / weight).clamp(0, 1),
        accuracy=(cells.correct[held] / weight).clamp(0, 1),
        bin_index=torch.arange(len(share)),
        last_cell=torch.arange(len(share)),
        size=max(round(summary.effective_n), 1) * summary.num_classes,
        n_bins=summary.n_bins,
    )
    worlds = worlds_by_mean_gap(levels, levels.bin_index)
    budget = max(_CLASS_DRAWS // (WORLDS * len(levels)), _LEAST_PER_WORLD)
    drawn = torch.stack([_draw_classwise(levels, world, min(n_resamples, budget), rng) for world in worlds])
    middle = drawn.mean(1, keepdim=True)
    drawn = middle + (drawn - middle) * math.sqrt(1 + 1 / (summary.num_classes - 1))
    truth = (share * (levels.confidence - worlds)).abs().sum(1)
    observed = float((share * (levels.confidence - levels.accuracy)).abs().sum())
    return Range(*accepted_range(truth, drawn, observed))


def _draw_classwise(levels: Levels, world: Tensor, n_resamples: int, rng: np.random.Generator) -> Tensor:
    count, right = draw_right(levels, world, n_resamples=n_resamples, rng=rng)
    return (count * levels.confidence - right).abs().sum(1) / levels.size
