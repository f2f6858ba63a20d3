"""The values of the thirteen scores, exact from predictions, and nearly so from a summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

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
from calibrant.core.grid import WIDTH_CELLS, fold_to_bins, grid_edges
from calibrant.core.records import Bins, Predictions
from calibrant.core.summary import Summary, summarize_with_top
from calibrant.core.top_label import TopLabel
from calibrant.metrics.adaptive import debiased_error
from calibrant.metrics.kernel import mean_embedding_norm, smoothed_accuracy_gap
from calibrant.metrics.ranking import risk_coverage_area
from calibrant.metrics.smooth import smoothed_residual


class Known(Protocol):
    """What the scores are read from; a stream computes the parts of it when they are asked for."""

    @property
    def n_bins(self) -> int:
        """Number of bins M."""

    @property
    def bins(self) -> Bins:
        """Equal-width confidence bins."""

    @property
    def top(self) -> TopLabel:
        """Confidence, correctness and weight of the examples, or of cells of a histogram."""

    @property
    def curve(self) -> MassCurve:
        """The same sorted by confidence and added up."""

    @property
    def nll(self) -> Tensor:
        """Mean negative log-likelihood ``[]``."""

    @property
    def brier(self) -> Tensor:
        """Mean Brier score ``[]``."""

    @property
    def class_gaps(self) -> Tensor:
        """Summed probability less summed label by class and bin ``[C, M]``, over the weight of all examples."""


# The scores of a report, in its order: key → how to read it.
READERS: Mapping[str, Callable[[Known], Tensor]] = {
    "error": lambda known: (known.curve.mass[-1] - known.curve.correct[-1]) / known.curve.mass[-1],
    "nll": lambda known: known.nll,
    "brier": lambda known: known.brier,
    "ece": lambda known: norm_of_bins(known.bins),
    "mce": lambda known: known.bins.gap.abs().amax(),
    "ace": lambda known: norm_of_bins(bins_of_curve(known.curve, known.curve.cuts(known.n_bins))),
    "classwise_ece": lambda known: known.class_gaps.abs().sum() / len(known.class_gaps),
    "sece": lambda known: smoothed_accuracy_gap(known.top, bandwidth=0.05),
    "smece": lambda known: smoothed_residual(known.top),
    "mmce": lambda known: mean_embedding_norm(known.top, scale=0.4),
    "ece_debiased": lambda known: debiased_error(known.curve, n_bins=known.n_bins),
    "signed_gap": lambda known: (known.curve.confidence[-1] - known.curve.correct[-1]) / known.curve.mass[-1],
    "aurc": lambda known: risk_coverage_area(known.top, size=known.curve.size),
}
KEYS = tuple(READERS)


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
        rows = None if grid.rows is None else fold_to_bins(grid.rows, n_bins)
        return means_of_sums(equal_width_edges(n_bins), *sums, rows=rows)
    used = grid.weight > 0
    weight = grid.weight[used]
    top = TopLabel(grid.confidence[used] / weight, grid.correct[used] / weight, weight)
    bins = equal_width_bins(top, n_bins=n_bins)
    if grid.rows is None:
        return bins
    # Examples of weight zero leave no mean confidence in their cell: they are counted at its middle.
    edges, held = grid_edges(), grid.rows > 0
    middle = (edges[1:] + edges[:-1]) / 2
    place = torch.where(used, grid.confidence / grid.weight.where(used, 1.0), middle)[held]
    counted = equal_width_bins(TopLabel(place, torch.zeros_like(place), grid.rows[held]), n_bins=n_bins)
    return replace(bins, rows=counted.count)


@dataclass(frozen=True)
class _Read:
    n_bins: int
    bins: Bins
    top: TopLabel
    curve: MassCurve
    nll: Tensor
    brier: Tensor
    class_gaps: Tensor


def _values(summary: Summary, top: TopLabel, *, bins: Bins, curve: MassCurve) -> dict[str, float]:
    total, classes = summary.weight, summary.class_bins
    known = _Read(
        n_bins=summary.n_bins,
        bins=bins,
        top=top,
        curve=curve,
        nll=summary.nll[0] / total,
        brier=summary.brier[0] / total,
        class_gaps=(classes.confidence - classes.correct) / total,
    )
    return {key: float(read(known)) for key, read in READERS.items()}
