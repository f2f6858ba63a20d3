"""The numbers behind the diagrams of one set of predictions: bins at every stop of the slider, regions, risk and coverage.

Rows are flat lists of whole numbers, shares in ten-thousandths, so that a page of a thousand classes stays small.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from calibrant.core.binning import equal_width_bins, mass_curve, means_of_sums, norm_of_bins
from calibrant.core.records import Bins
from calibrant.core.summary import Summary
from calibrant.core.top_label import TopLabel
from calibrant.metrics.levels import levels_of
from calibrant.metrics.null import compare_with_null, null_of_levels
from calibrant.metrics.ordinary import rate_interval

# Where the slider stops; the number of bins asked for is added. The histogram is drawn from the 20.
_STOPS = (*range(2, 21), 25, 30, 40, 50, 75, 100)
# Regions in which over- and under-confidence is told: fine near 1, where networks put most of their examples.
REGION_EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
_CURVE_POINTS = 200
# A share of one as it is written into the page.
UNIT = 10_000


def slider_stops(n_bins: int) -> list[int]:
    """Numbers of bins between which a reader can choose, ``n_bins`` among them."""
    return sorted({*_STOPS, n_bins})


def bin_rows(bins: Bins, *, scale: float = 1.0) -> list[float]:
    """Content of the bins that hold examples, as flat rows of six numbers.

    Args:
        bins: The bins.
        scale: Independent examples to a unit of ``bins.count``: below one for examples of unequal weight.

    Returns:
        Index of the bin, examples, confidence, accuracy and the two ends of its 95 % interval, bin after bin; all but the
        first two in ten-thousandths.

    Example:
        >>> half = torch.tensor([0.5, 0.0])
        >>> bin_rows(Bins(torch.tensor([0, 0.5, 1]), torch.tensor([10.0, 0.0]), half, half))
        [0, 10, 5000, 5000, 2366, 7634]
    """
    rows: list[float] = []
    for index in (bins.count > 0).nonzero().squeeze(1).tolist():
        count, confidence = float(bins.count[index]), float(bins.confidence[index])
        accuracy = min(max(float(bins.accuracy[index]), 0.0), 1.0)
        ends = rate_interval(accuracy, size=count * scale)
        rows += [index, whole(count), *(round(UNIT * share) for share in (confidence, accuracy, ends.low, ends.high))]
    return rows


def whole(value: float) -> float:
    """Return a count as an integer where it is one, else with two digits after the point.

    Example:
        >>> whole(3.0), whole(3.14159)
        (3, 3.14)
    """
    return int(value) if value == int(value) else round(value, 2)


def examine_stops(summary: Summary, top: TopLabel, *, stops: list[int], n_resamples: int, seed: int) -> list[dict[str, object]]:
    """What ``calibrant measure --n-bins M`` says of bins, for every M in ``stops``, and the bins themselves."""
    scale = summary.effective_n / summary.weight
    found = []
    for n_bins in stops:
        levels = levels_of(summary.grid, size=summary.effective_n, n_bins=n_bins, within_bins=True)
        drawn = null_of_levels(levels, n_resamples=n_resamples, rng=np.random.default_rng(seed))
        bins = equal_width_bins(top, n_bins=n_bins)
        ece, parts = float(norm_of_bins(bins)), bins.weight * bins.gap
        null = compare_with_null(ece, drawn)
        found.append(
            {
                "ece": ece,
                "mce": float(bins.gap.abs().amax()),
                "null": null.mean,
                "p95": null.p95,
                "over": float(parts.clamp(min=0).sum()),
                "under": float((-parts).clamp(min=0).sum()),
                "overShare": float(bins.weight[bins.gap > 0].sum()),
                "underShare": float(bins.weight[bins.gap < 0].sum()),
                "rows": bin_rows(bins, scale=scale),
            }
        )
    return found


def regions_of(top: TopLabel, *, scale: float = 1.0) -> list[float]:
    """Rows of `bin_rows` for the wide regions of confidence between `REGION_EDGES`, right-closed as bins are."""
    edges = torch.tensor(REGION_EDGES, dtype=torch.float64)
    index = torch.bucketize(top.confidence, edges[1:-1].to(top.dtype).double())
    weights = torch.ones_like(top.confidence) if top.weights is None else top.weights
    parts = (weights, weights * top.confidence, weights * top.correct)
    sums = (torch.bincount(index, weights=part, minlength=len(edges) - 1) for part in parts)
    return bin_rows(means_of_sums(edges, *sums), scale=scale)


def risk_curve(top: TopLabel) -> list[int]:
    """Error among the most confident examples against the share of examples kept, as flat pairs in ten-thousandths.

    Examples of equal confidence have no order: a share that ends within such a group takes its mean error.
    """
    curve = mass_curve(top)
    points = min(_CURVE_POINTS, curve.size)
    coverage = torch.arange(points + 1, dtype=torch.float64) / points
    cuts = ((1 - coverage) * float(curve.mass[-1])).flip(0)
    kept, right = (curve.between(cuts, sums).flip(0).cumsum(0) for sums in (curve.mass, curve.correct))
    risk = (1 - right / kept).clamp(0, 1)
    return [round(UNIT * value) for pair in zip(coverage[1:].tolist(), risk.tolist(), strict=True) for value in pair]


def mean_confidences(top: TopLabel) -> tuple[float, float]:
    """Mean confidence of the right and of the wrong predictions; nan where there are none."""
    weights = torch.ones_like(top.confidence) if top.weights is None else top.weights
    means = []
    for kept in (weights * top.correct, weights * (1 - top.correct)):
        total = float(kept.sum())
        means.append(float(kept @ top.confidence) / total if total > 0 else math.nan)
    return means[0], means[1]
