"""The values of the thirteen scores, exact from predictions, and nearly so from a summary."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from calibrant.core.binning import (
    MassCurve,
    bins_of_curve,
    equal_width_bins,
    equal_width_edges,
    mass_curve,
    means_of_sums,
    norm_of_bins,
)
from calibrant.core.grid import WIDTH_CELLS, fold_to_bins
from calibrant.core.records import Bins, Predictions
from calibrant.core.summary import Summary, summarize_with_top
from calibrant.core.top_label import TopLabel
from calibrant.metrics.adaptive import debiased_error
from calibrant.metrics.kernel import mean_embedding_norm, smoothed_accuracy_gap
from calibrant.metrics.ranking import risk_coverage_area
from calibrant.metrics.smooth import smoothed_residual

# The scores of a report, in its order.
KEYS = (
    "error",
    "nll",
    "brier",
    "ece",
    "mce",
    "ace",
    "classwise_ece",
    "sece",
    "smece",
    "mmce",
    "ece_debiased",
    "signed_gap",
    "aurc",
)


def score_values(predictions: Predictions, *, n_bins: int) -> dict[str, float]:
    """Return the value of every score, by key."""
    summary, top = summarize_with_top(predictions, n_bins=n_bins)
    return values_of_top(summary, top)


def values_of_top(summary: Summary, top: TopLabel) -> dict[str, float]:
    """Exact values from the confidence and correctness of every example, and the sums of the other scores."""
    return _values(summary, top, bins=equal_width_bins(top, n_bins=summary.n_bins), curve=mass_curve(top))


def values_of_summary(summary: Summary) -> dict[str, float]:
    """Values from a summary alone: examples of one cell are taken to share their mean confidence and correctness.

    Exact for the binned metrics whose number of bins divides the cells, for means and for the classwise error; the others are
    within 1e-3.
    """
    used = summary.grid.weight > 0
    weight, confidence, correct = (s[used] for s in (summary.grid.weight, summary.grid.confidence, summary.grid.correct))
    top = TopLabel((confidence / weight).clamp(0, 1), (correct / weight).clamp(0, 1), weight)
    sums = torch.stack([weight, confidence, correct, weight * (summary.weight_squares / summary.weight)])
    rising = torch.nn.functional.pad(sums.cumsum(1), (1, 0))
    curve = MassCurve(summary.n, top.confidence, *rising)
    return _values(summary, top, bins=bins_of_summary(summary), curve=curve)


def bins_of_summary(summary: Summary) -> Bins:
    """Content of the reliability diagram."""
    grid, n_bins = summary.grid, summary.n_bins
    if WIDTH_CELLS % n_bins == 0:
        sums = (fold_to_bins(s, n_bins) for s in (grid.weight, grid.confidence, grid.correct))
        return means_of_sums(equal_width_edges(n_bins), *sums)
    used = grid.weight > 0
    weight = grid.weight[used]
    return equal_width_bins(TopLabel(grid.confidence[used] / weight, grid.correct[used] / weight, weight), n_bins=n_bins)


def _values(summary: Summary, top: TopLabel, *, bins: Bins, curve: MassCurve) -> dict[str, float]:
    n_bins, total = summary.n_bins, summary.weight
    cells = summary.class_bins
    held = torch.stack([summary.grid.confidence, summary.grid.correct]).sum(1) / total
    readers: dict[str, Callable[[], Tensor]] = {
        "error": lambda: 1 - held[1],
        "nll": lambda: summary.nll[0] / total,
        "brier": lambda: summary.brier[0] / total,
        "ece": lambda: norm_of_bins(bins),
        "mce": lambda: bins.gap.abs().amax(),
        "ace": lambda: norm_of_bins(bins_of_curve(curve, curve.cuts(n_bins))),
        "classwise_ece": lambda: (cells.confidence - cells.correct).abs().sum() / (total * summary.num_classes),
        "sece": lambda: smoothed_accuracy_gap(top, bandwidth=0.05),
        "smece": lambda: smoothed_residual(top),
        "mmce": lambda: mean_embedding_norm(top, scale=0.4),
        "ece_debiased": lambda: debiased_error(curve, n_bins=n_bins),
        "signed_gap": lambda: held[0] - held[1],
        "aurc": lambda: risk_coverage_area(top, size=summary.n),
    }
    return {key: float(readers[key]()) for key in KEYS}
