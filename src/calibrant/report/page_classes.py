"""The classes of one set of predictions: how each is calibrated, and the bins of its own probability."""

from __future__ import annotations

import torch

from calibrant.core.binning import equal_width_edges, means_of_sums
from calibrant.core.records import Predictions
from calibrant.core.summary import Summary
from calibrant.metrics.measure import class_scores
from calibrant.report.page_bins import UNIT, bin_rows, whole

# Mistakes that are listed.
MOST_MISTAKES = 10


def class_names_of(predictions: Predictions) -> list[str]:
    """Names of the classes, or their numbers."""
    return [str(name) for name in predictions.class_names or range(predictions.num_classes)]


def class_view(summary: Summary, predictions: Predictions) -> dict[str, object]:
    """Everything a page shows of classes, by column; each column is in the order of the classes.

    ``ece``, ``gap`` (mean probability minus frequency), ``error`` and ``count`` are those of ``calibrant measure --by-class``;
    ``said``, ``sure`` and ``right`` tell how often a class was predicted, how sure that was and how often it was right;
    ``bins`` are rows as in `calibrant.report.page_bins.bin_rows`; ``order`` ranks classes, worst calibrated first.
    """
    found = class_scores(summary)
    by_index = sorted(found, key=lambda entry: entry.index)
    edges, scale = equal_width_edges(summary.n_bins), summary.effective_n / summary.weight
    bins = summary.class_bins
    rows = [
        bin_rows(means_of_sums(edges, bins.weight[k], bins.confidence[k], bins.correct[k]), scale=scale)
        for k in range(summary.num_classes)
    ]
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
    order = torch.argsort(confidence, descending=True, stable=True)[:MOST_MISTAKES]
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
