"""What the scripts of a page draw from: bins at every stop of the sliders, regions, risk and coverage, classes.

Rows are flat lists of whole numbers, shares in ten-thousandths, so that a page of a thousand classes stays small.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math

import numpy as np
import torch

from calibrant.core.binning import (
    TopLabel,
    between_cuts,
    equal_width_bins,
    equal_width_edges,
    means_of_sums,
    norm_of_bins,
    top_label,
)
from calibrant.core.entry import Entry
from calibrant.core.records import Bins, Predictions
from calibrant.core.summary import Summary
from calibrant.metrics.chance import compare_with_null, null_of_levels
from calibrant.metrics.intervals import rate_interval
from calibrant.metrics.levels import levels_of
from calibrant.metrics.measure import class_scores
from calibrant.report.reliability import counts_examples, error_and_ece, kept_bins

# Where the slider stops; the number of bins asked for is added. The histogram is drawn from the 20.
_STOPS = (*range(2, 21), 25, 30, 40, 50, 75, 100)
# Where the slider of diagrams of runs stops.
GRID_STOPS = (10, 15, 20, 30, 40, 50, 75, 100)
# Regions in which over- and under-confidence is told: fine near 1, where networks put most of their examples.
REGION_EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
_CURVE_POINTS = 200
# A share of one as it is written into the page.
UNIT = 10_000
# Mistakes that are listed.
_MOST_MISTAKES = 10


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
    """Return a count as an integer where it is one, else with two digits after the point."""
    return int(value) if value == int(value) else round(value, 2)


def examine_stops(summary: Summary, top: TopLabel, *, stops: list[int], n_resamples: int, seed: int) -> list[dict[str, object]]:
    """What ``calibrant measure --n-bins M`` says of bins, for every M in ``stops``, and the bins themselves."""
    scale = summary.effective_n / summary.weight
    found = []
    for n_bins in stops:
        levels = levels_of(summary.cells, size=summary.effective_n, n_bins=n_bins)
        drawn = null_of_levels(levels, n_resamples=n_resamples, rng=np.random.default_rng(seed))
        bins = summary.bins_of(n_bins)
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
    _, sums = top.rising
    points = min(_CURVE_POINTS, top.size)
    coverage = torch.arange(points + 1, dtype=torch.float64) / points
    cuts = ((1 - coverage) * float(sums[0, -1])).flip(0)
    kept, _, right = between_cuts(sums[:3], cuts).flip(1).cumsum(1)
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


def class_names_of(predictions: Predictions) -> list[str]:
    """Names of the classes, or their numbers."""
    return [str(name) for name in predictions.class_names or range(predictions.num_classes)]


def class_view(summary: Summary, predictions: Predictions) -> dict[str, object]:
    """Everything a page shows of classes, by column; each column is in the order of the classes.

    ``ece``, ``gap`` (mean probability minus frequency), ``error`` and ``count`` are those of ``calibrant measure --by-class``;
    ``said``, ``sure`` and ``right`` tell how often a class was predicted, how sure that was and how often it was right;
    ``bins`` are rows as in `bin_rows`; ``order`` ranks classes, worst calibrated first.
    """
    found = class_scores(summary)
    by_index = sorted(found, key=lambda entry: entry.index)
    edges, scale = equal_width_edges(summary.n_bins), summary.effective_n / summary.weight
    rows = [bin_rows(means_of_sums(edges, *sums), scale=scale) for sums in summary.by_class.unbind(1)]
    said, sure, right = _when_predicted(predictions)
    return {
        "order": [entry.index for entry in found],
        "count": [whole(entry.count) for entry in by_index],
        "ece": [round(entry.ece, 7) for entry in by_index],
        "gap": [round(entry.signed_gap, 7) for entry in by_index],
        "error": [None if entry.error != entry.error else round(entry.error, 6) for entry in by_index],
        "said": said,
        "sure": sure,
        "right": right,
        "bins": rows,
    }


def _when_predicted(predictions: Predictions) -> tuple[list[int], list[int], list[int]]:
    """How often each class was predicted, and mean confidence and accuracy there, in ten-thousandths."""
    weights = torch.ones(len(predictions), dtype=torch.float64) if predictions.weights is None else predictions.weights
    predicted, size = predictions.predicted, predictions.num_classes
    mass = torch.bincount(predicted, weights=weights, minlength=size)
    safe = mass.where(mass > 0, torch.ones_like(mass))
    sums = (
        torch.bincount(predicted, weights=weights * v, minlength=size) for v in (predictions.confidence, predictions.correct)
    )
    sure, right = ((UNIT * s / safe).round().long().tolist() for s in sums)
    # Examples are counted as those of a class are, by rows; one of weight zero is left out.
    return torch.bincount(predicted[weights > 0], minlength=size).tolist(), sure, right


def confident_mistakes(predictions: Predictions, after: Predictions | None = None) -> list[dict[str, object]]:
    """The wrong predictions that were most sure of themselves, most confident first.

    Args:
        predictions: The predictions.
        after: The same after a repair, whose confidence in its own prediction is added.

    Returns:
        At most ten mappings with ``row`` (from 0), ``label``, ``predicted``, ``confidence`` and ``after``.
    """
    wrong = (~predictions.correct).nonzero().squeeze(1)
    confidence = predictions.confidence[wrong]
    order = torch.argsort(confidence, descending=True, stable=True)[:_MOST_MISTAKES]
    names, predicted = class_names_of(predictions), predictions.predicted
    later = None if after is None else after.confidence
    return [
        {
            "row": int(row),
            "label": names[int(predictions.labels[row])],
            "predicted": names[int(predicted[row])],
            "confidence": float(sure),
            "after": None if later is None else float(later[row]),
        }
        for row, sure in zip(wrong[order], confidence[order], strict=True)
    ]


def run_diagram(entry: Entry) -> dict[str, object]:
    """Error of one run, and for every stop of the slider the ECE and the rows of `bin_rows`; None where they are not known."""
    top = None if entry.test is None else top_label(entry.test, where="page")
    scale = 1.0
    if top is not None and top.weights is not None:
        scale = float(top.weights.sum()) / float((top.weights**2).sum())
    error = math.nan
    stops: list[dict[str, object] | None] = []
    for n_bins in GRID_STOPS:
        bins = kept_bins(entry, n_bins) if top is None else equal_width_bins(top, n_bins=n_bins)
        # Of examples with weights a record does not tell how many they are worth.
        if bins is None or (top is None and not counts_examples(entry, bins)):
            stops.append(None)
            continue
        error, ece = error_and_ece(entry, bins)
        stops.append({"ece": ece, "rows": bin_rows(bins, scale=scale)})
    return {"error": error, "stops": stops} if any(stops) else {}


def embed_json(data: object) -> str:
    r"""Return data as JSON that is safe between ``<script>`` tags.

    Whatever could end the element or begin a comment in it is written as an escape, which JSON reads back as the same text.
    Numbers that are not finite become null.

    Example:
        >>> print(embed_json({"name": "</script><!--", "value": float("nan")}))
        {"name":"\u003c/script\u003e\u003c!--","value":null}
    """
    text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def script_hash(script: str) -> str:
    """Return what a content security policy calls a script: only the scripts it names may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
