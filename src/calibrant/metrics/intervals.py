"""The 95 % interval of every score, from a summary of constant size.

Calibration errors are found by test inversion (`worlds`), the other scores by ordinary statistics (`ordinary`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from calibrant.core.summary import Summary
from calibrant.metrics.batched import BATCHED, Batched, batched_debiased
from calibrant.metrics.levels import Levels, levels_of, merge_bins
from calibrant.metrics.ordinary import Range, aurc_interval, mean_interval, rate_interval, signed_gap_interval
from calibrant.metrics.worlds import (
    WORLDS,
    accepted_range,
    draw_from,
    draw_labels,
    draw_right,
    spread_of_confidences,
    worlds_by_embedding,
    worlds_by_largest_gap,
    worlds_by_mean_gap,
    worlds_of_even_gaps,
    worlds_of_few_gaps,
)

# Worlds of the ECE get all resamples asked for, being cheap to draw; those of other errors a fifth as many.
_PER_WORLD = 0.2
_MORE = 3
# Draws for the classwise error: with many classes its spread is known from few resamples, being a sum of many parts.
_CLASS_DRAWS = 300_000
_LEAST_PER_WORLD = 40
# Metrics of equal-mass bins and of kernels, whose worlds have one gap per equal-mass bin.
_OF_BINS, _OF_KERNELS = ("ace", "ece_debiased"), ("sece", "smece", "mmce")
# Where bins are more than this, kernels, which see none of them, get so many gaps and the ECE fewer resamples: with 1,000 bins
# all would take twenty times as long as with 15.
_MANY = 128
# A value further off than by this ratio is small, and differs by the coarseness of its own search (smECE).
_FAR = 1.25


def score_intervals(
    summary: Summary, *, values: Mapping[str, float], null: Tensor, n_resamples: int, rng: np.random.Generator
) -> dict[str, Range]:
    """Return the 95 % interval of each of the thirteen scores.

    Args:
        summary: What is known of the data.
        values: The scores. Resamples know confidence by levels only, and smECE by its definition; intervals are stretched by
            the ratio of the value given here to that of the levels.
        null: ECE of calibrated data ``[R]`` (`calibrant.metrics.null_distribution`), so that the interval of the ECE begins
            above zero exactly if its p-value is at most 0.05.
        n_resamples: Number of resamples.
        rng: Source of randomness.

    Returns:
        Key → interval. It says which true values are compatible with the data; near perfect calibration the observed value,
        which chance pushes up, may lie above it.
    """
    size = summary.effective_n
    levels = levels_of(summary.grid, size=size, n_bins=summary.n_bins)
    within = levels_of(summary.grid, size=size, n_bins=summary.n_bins, within_bins=True)
    coarse = levels if summary.n_bins <= _MANY else levels_of(summary.grid, size=size, n_bins=_MANY)
    few = _fewer(n_resamples)
    aurc, level_aurc = aurc_interval(coarse, n_resamples=n_resamples, rng=rng)
    binned = binned_intervals(within, null=null, n_resamples=n_resamples, rng=rng)
    plans = [(levels, _OF_BINS + _OF_KERNELS)] if coarse is levels else [(levels, _OF_BINS), (coarse, _OF_KERNELS)]
    by_mass = [_mass_intervals(given, keys=keys, values=values, n_resamples=few, rng=rng) for given, keys in plans]
    return {
        "error": rate_interval(values["error"], size=size),
        "nll": mean_interval(summary.nll, weight=summary.weight, size=size),
        "brier": mean_interval(summary.brier, weight=summary.weight, size=size, most=2.0),
        **binned,
        **{key: found for part in by_mass for key, found in part.items()},
        "classwise_ece": classwise_interval(summary, n_resamples=few, rng=rng),
        "signed_gap": signed_gap_interval(levels),
        "aurc": _stretch(aurc, values["aurc"], level_aurc),
    }


def _fewer(n_resamples: int) -> int:
    return max(math.ceil(_PER_WORLD * n_resamples), 2)


def binned_intervals(
    levels: Levels, *, null: Tensor, n_resamples: int, rng: np.random.Generator, keys: Sequence[str] = ("ece", "mce")
) -> dict[str, Range]:
    """Intervals of ECE and MCE, of levels within bins."""
    bins = merge_bins(levels)
    if len(bins) > _MANY:
        n_resamples = max(n_resamples * _MANY // len(bins), _fewer(n_resamples))
    families = {"ece": (worlds_by_mean_gap, worlds_of_even_gaps), "mce": (worlds_by_largest_gap,)}
    found = {}
    for key in keys:
        parts = []
        for family in families[key]:
            worlds = family(bins, bins.bin_index)
            data = draw_from(worlds, bins, n_resamples=n_resamples, rng=rng)
            if key == "mce":
                data = _vary_within_bins(data, levels, bins, n_resamples=n_resamples, rng=rng)
            parts.append(_invert(bins, worlds, data, BATCHED[key], null=null if key == "ece" else None))
        # The second family is there for what the first overlooks where data are few: smaller errors.
        found[key] = Range(min(part.low for part in parts), parts[0].high)
    if "ece" in found and "mce" in found:
        # The largest of gaps is at least their mean: what all bins together rule out for the one is ruled out for the other.
        low = max(found["mce"].low, found["ece"].low)
        found["mce"] = Range(low, max(min(found["mce"].high, _widest_gap(bins)), low))
    return found


def _vary_within_bins(
    data: tuple[Tensor, Tensor], levels: Levels, bins: Levels, *, n_resamples: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Let the mean confidence of bins vary in ``data`` drawn from worlds on ``bins``, but for the first, calibrated one.

    Drawn are numbers of examples and of right ones in each bin; a gap of one bin also varies with where in it examples lie,
    and if all are right with nothing else. It is taken from what is right, from which only the gap is computed. As much as
    two examples spread evenly over the bin are added to those seen.
    """
    mass, right = data
    index = torch.searchsorted(bins.bin_index, levels.bin_index)
    from_mean = (levels.confidence - bins.confidence[index]).square()
    squares = torch.zeros_like(bins.share).index_add_(0, index, levels.share * from_mean) * bins.size
    variance = (squares + 2 / (12 * bins.n_bins**2)) / (bins.share * bins.size + 2)
    varied: list[Tensor] = []
    for part, hits in zip(mass.split(n_resamples), right.split(n_resamples), strict=True):
        moved = (part * variance / bins.size).sqrt() * torch.from_numpy(rng.standard_normal(part.shape))
        varied.append(hits - moved if varied else hits)
    return mass, torch.cat(varied)


def _widest_gap(bins: Levels) -> float:
    """The largest gap that confidence and accuracy can have in the bins in use."""
    return float(torch.maximum(bins.bin_index + 1, bins.n_bins - bins.bin_index).max()) / bins.n_bins


def _mass_intervals(
    levels: Levels, *, keys: Sequence[str], values: Mapping[str, float], n_resamples: int, rng: np.random.Generator
) -> dict[str, Range]:
    """Intervals of the errors over equal-mass bins or kernels, from two families of worlds."""
    debiased, in_truth = (partial(batched_debiased, size=size) for size in (levels.size, math.inf))
    # Whether an interval begins at zero is the calibrated world's to say, so more is drawn from that one.
    calibrated = draw_labels(levels.confidence.unsqueeze(0), levels, n_resamples=_MORE * n_resamples, rng=rng)
    plans: list[tuple[Callable[[Levels, Tensor], Tensor], dict[str, Batched]]] = [
        (worlds_by_mean_gap, {**{key: BATCHED[key] for key in ("ace", "sece", "smece")}, "ece_debiased": debiased}),
        (worlds_by_embedding, {"mmce": BATCHED["mmce"]}),
    ]
    found = {}
    for family, all_metrics in plans:
        metrics = {key: metric for key, metric in all_metrics.items() if key in keys}
        if not metrics:
            continue
        worlds = family(levels, levels.mass_index)
        data = draw_labels(worlds, levels, n_resamples=n_resamples, rng=rng)
        for key, metric in metrics.items():
            truly = in_truth if key == "ece_debiased" else metric
            null = metric(levels, *calibrated)
            spread = spread_of_confidences(worlds, levels, truly, n_resamples=max(n_resamples // 2, 2), rng=rng)
            noise = spread.unsqueeze(1) * torch.from_numpy(rng.standard_normal((len(worlds), n_resamples)))
            found[key] = _invert(levels, worlds, data, metric, in_truth=truly, value=values[key], null=null, noise=noise)
    return found


def _invert(
    levels: Levels,
    worlds: Tensor,
    data: tuple[Tensor, Tensor],
    metric: Batched,
    *,
    value: float | None = None,
    in_truth: Batched | None = None,
    null: Tensor | None = None,
    noise: Tensor | None = None,
) -> Range:
    """Interval of a metric from data drawn from worlds; ``in_truth`` is the metric of infinitely many examples.

    It is stretched to an exact ``value``, where one is given.
    """
    observed = float(metric(levels, *_as_row(levels, levels.accuracy)))
    truth = (in_truth or metric)(levels, *_as_row(levels, worlds))
    drawn = metric(levels, *data).view(len(worlds), -1) + (0.0 if noise is None else noise)
    low, high = accepted_range(truth, drawn, observed, null=null)
    found = Range(low, min(high, 1.0))
    return found if value is None else _stretch(found, value, observed)


def _stretch(given: Range, value: float, observed: float) -> Range:
    """Stretch an interval from the ``observed`` value of the levels to the exact ``value``, if that is near."""
    ratio = value / observed if observed > 0 else 1.0
    return Range(given.low * ratio, min(given.high * ratio, 1.0)) if 1 / _FAR < ratio < _FAR else given


def _as_row(levels: Levels, accuracy: Tensor) -> tuple[Tensor, Tensor]:
    """Expected shares of a known accuracy ``[..., G]``, as rows ``mass, right [R, G]``."""
    right = torch.atleast_2d(levels.share * accuracy)
    return levels.share.expand_as(right), right


def classwise_interval(summary: Summary, *, n_resamples: int, rng: np.random.Generator) -> Range:
    """Interval of the classwise ECE: every bin of every class is a piece of its own.

    With so many pieces it matters whether the true error is spread over all or sits in few of them: both families of worlds
    are tried, and the interval holds the true errors of either that fit the data.
    """
    cells = summary.class_bins
    held = cells.weight > 0
    weight = cells.weight[held]
    levels = Levels(
        share=weight / weight.sum(),
        confidence=(cells.confidence[held] / weight).clamp(0, 1),
        accuracy=(cells.correct[held] / weight).clamp(0, 1),
        bin_index=torch.arange(len(weight)),
        last_cell=torch.arange(len(weight)),
        size=max(round(summary.effective_n), 1) * summary.num_classes,
        n_bins=summary.n_bins,
    )
    budget = max(_CLASS_DRAWS // (WORLDS * len(levels)), _LEAST_PER_WORLD)
    of_class = held.nonzero()[:, 0]
    found = [
        _invert_classwise(levels, family(levels, levels.bin_index), of_class, min(n_resamples, budget), rng)
        for family in (worlds_by_mean_gap, worlds_of_few_gaps)
    ]
    return Range(min(r.low for r in found), max(r.high for r in found))


def _invert_classwise(levels: Levels, worlds: Tensor, of_class: Tensor, n_resamples: int, rng: np.random.Generator) -> Range:
    num_classes = int(of_class.max()) + 1
    truth = (levels.share * (levels.confidence - worlds)).abs().sum(1)
    drawn = []
    for world in worlds:
        count, right = draw_right(levels, world, n_resamples=n_resamples, rng=rng)
        drawn.append((count * levels.confidence - right).abs().sum(1) / levels.size)
    values = torch.stack(drawn)
    # Which probabilities a class has varies as well, and with them its mean gap, independent of how many examples are right.
    gap, share = (levels.confidence - worlds).abs(), levels.share * num_classes
    mean, square = (truth.new_zeros(len(worlds), num_classes).index_add_(1, of_class, share * g) for g in (gap, gap**2))
    spread = ((square - mean**2).clamp_min(0).sum(1, keepdim=True) / (num_classes * levels.size)).sqrt()
    values = values + spread * torch.from_numpy(rng.standard_normal(values.shape))
    # Bins are drawn independently. In truth what one class gains another loses: residuals of two of C classes are correlated
    # by -1 / (C - 1) on average. Their sizes are by about its square while chance decides the signs, and fully, in pairs,
    # once true gaps do; so the variance is up to twice that of independent bins (exactly twice for two classes).
    middle = values.mean(1, keepdim=True)
    alike = (truth.unsqueeze(1) / middle.clamp_min(1e-300)).square().clamp(1 / (num_classes - 1), 1)
    values = middle + (values - middle) * (1 + alike).sqrt()
    observed = float((levels.share * (levels.confidence - levels.accuracy)).abs().sum())
    low, high = accepted_range(truth, values, observed)
    return Range(low, min(high, 2 / num_classes))
