"""Everything there is to say about a set of predictions, in one record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from calibrant.core.binning import norm_of_bins
from calibrant.core.checks import ArrayLike
from calibrant.core.records import Predictions, as_predictions, one_of
from calibrant.core.scores import ClassScore, Estimate, IfCalibrated, PositiveClass, Scores
from calibrant.core.slices import Slices, column_names
from calibrant.core.summary import Summary, summarize
from calibrant.metrics.chance import check_draws, compare_with_null
from calibrant.metrics.intervals import NORMAL_95, Evidence, bias_corrected, resampled_values, value_of
from calibrant.metrics.levels import ece_of_levels
from calibrant.metrics.table import METRICS, score_metrics


def measure(
    predictions: Predictions | ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    probs: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    n_bins: int = 15,
    by_class: bool = False,
    slice_by: str | Sequence[str] | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
    file: str | None = None,
) -> Scores:
    """Measure how good and how well calibrated predictions are, and how sure that is.

    The scores are ``error``, ``nll`` (nats), ``brier`` (summed over classes), ``ece`` (equal-width bins), ``mce``, ``ace``
    (top-label, equal-mass bins), ``classwise_ece``, ``sece`` (hard accuracy, bandwidth 0.05), ``smece``, ``mmce`` (with root,
    kernel width 0.4), ``ece_debiased`` (L2, equal-mass bins), ``signed_gap`` (confidence minus accuracy) and ``aurc``.

    A value is the usual one, so that it can be compared with published ones. Its 95 % interval is for the *true* value,
    that of infinitely many examples. Chance pushes calibration errors up: near perfect calibration the value lies at the
    upper end of its interval, and the interval begins at 0 where the data do not contradict perfect calibration. See
    ``docs/intervals.md`` for the method and its measured coverage.

    Args:
        predictions: N examples of C classes; sample weights are respected. Or probabilities ``[N, C]``, or of a binary problem
            ``[N]``, those of the positive class.
        labels: Class indices ``[N]``, unless ``predictions`` has its own.
        probs: Probabilities, in place of ``predictions``.
        logits: Or logits; ``[N]`` are the log-odds of the positive class.
        n_bins: Number of bins of the binned metrics.
        by_class: Whether to add a table of the classes, worst calibrated first.
        slice_by: Columns of the predictions; the same scores are added for the groups of each. ``"site,light"`` groups by both
            together. A column of more than 20 different numbers or dates is cut into five ranges.
        n_resamples: Number of resamples behind the intervals and the p-value.
        seed: Of the random draws; the same seed gives the same numbers.
        file: Where the predictions came from, for the record.

    Returns:
        The scores. Raises ``ValueError`` if there is no such column.

    Example:
        >>> predictions = Predictions(probs=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]] * 40, labels=[0, 1, 1] * 40)
        >>> scores = measure(predictions)
        >>> round(scores["ece"].value, 3), scores["ece"].low < scores["ece"].value, scores.ece_if_calibrated.p_value < 0.01
        (0.333, True, True)

    Reference:
        Chuang and Lai, Statistica Sinica 10, 2000 (intervals); Bröcker and Smith, Weather and Forecasting 22, 2007 (p-value).
    """
    if probs is not None or logits is not None:
        if predictions is not None or labels is None:
            raise ValueError("measure: `probs` or `logits` must be given with `labels`, in place of `predictions`.")
        make = Predictions.from_binary if np.ndim(one_of(probs=probs, logits=logits, where="measure")[0]) == 1 else Predictions
        predictions, labels = make(probs=probs, logits=logits, labels=labels), None
    elif labels is not None and not isinstance(predictions, Predictions) and np.ndim(predictions) == 1:  # type: ignore[arg-type]
        predictions, labels = Predictions.from_binary(probs=predictions, labels=labels), None
    predictions = as_predictions(predictions, labels, where="measure")
    check_draws(n_bins, n_resamples, seed, where="measure")
    where = file or "the predictions"
    by = Slices(column_names(slice_by, [*predictions.columns], where=where), predictions.columns, where=where)
    groups = sorted(by.split(predictions), key=lambda group: group[0])
    slices = {by.title(name): measure(part, n_bins=n_bins, n_resamples=n_resamples, seed=seed) for name, part in groups}
    summary = summarize(predictions, n_bins=n_bins, keep=None)
    names = predictions.class_names
    scores = measure_summary(
        summary, predictions=predictions, by_class=by_class, class_names=names, n_resamples=n_resamples, seed=seed, file=file
    )
    return replace(scores, slices=slices)


def measure_summary(
    summary: Summary,
    *,
    predictions: Predictions | None = None,
    by_class: bool = False,
    class_names: Sequence[str] | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
    file: str | None = None,
) -> Scores:
    """Measure predictions of which only a summary of constant size was kept; see `measure`.

    The arguments are those of `measure`, and ``class_names``, C names for the table of classes. With the ``predictions``
    themselves metrics are measured, too, that cannot be read from sums.

    Returns:
        The scores: exact up to 65,536 examples; beyond, means, binned and classwise errors are (for a number of bins that
        divides 3,000), the others are within 1e-3 of those of `measure`.

    Example:
        >>> from calibrant.core.summary import summarize
        >>> parts = [summarize(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, k])) for k in (0, 1)]
        >>> measure_summary(parts[0] + parts[1])["error"].value
        0.25
    """
    check_draws(summary.n_bins, n_resamples, seed, where="measure_summary")
    evidence = Evidence(summary, n_resamples=n_resamples, seed=seed)
    second = None if summary.positive is None else Evidence(summary.positive, n_resamples=n_resamples, seed=seed)
    values = values_of(summary, predictions)
    metrics = {}
    for key, value in values.items():
        metric = METRICS[key]
        if metric.interval is not None:
            low, high = metric.interval(second if metric.positive and second else evidence, value)
        else:
            assert predictions is not None
            drawn = resampled_values(metric, predictions, n_resamples, seed=seed, n_bins=summary.n_bins)
            low, high = bias_corrected(drawn, value) if bool(drawn.isfinite().all()) else (value, value)
        # The usual value is reported whatever its bias; where that carries it past the interval, the interval reaches to it.
        metrics[key] = Estimate(value, min(low, value), max(high, value))
    return Scores(
        n=summary.n,
        num_classes=summary.num_classes,
        n_bins=summary.n_bins,
        metrics=metrics,
        ece_if_calibrated=_if_calibrated(evidence),
        bins=summary.bins,
        classes=class_scores(summary, names=class_names) if by_class else (),
        file=file,
        weight=summary.weight if summary.is_weighted else None,
        positive=_positive_class(second, class_names),
    )


def values_of(summary: Summary, predictions: Predictions | None = None) -> dict[str, float]:
    """The value of every score that can be read from the sums; with ``predictions`` of the others, too."""
    values = {}
    for key, metric in score_metrics(positive=summary.positive is not None).items():
        if metric.read is not None and not (metric.classwise and summary.class_bins is None):
            values[key] = float(metric.read(summary.positive if metric.positive and summary.positive else summary))
        elif metric.read is None and predictions is not None:
            values[key] = float(value_of(metric, predictions, n_bins=summary.n_bins))
    return values


def _if_calibrated(evidence: Evidence) -> IfCalibrated:
    drawn = ece_of_levels(evidence.levels, *evidence.calibrated)
    return compare_with_null(float(norm_of_bins(evidence.summary.bins)), drawn)


def _positive_class(evidence: Evidence | None, names: Sequence[str] | None) -> PositiveClass | None:
    if evidence is None:
        return None
    bins = evidence.summary.bins
    return PositiveClass(
        name=None if names is None else str(names[1]),
        predicted=float(bins.weight @ bins.confidence),
        observed=float(bins.weight @ bins.accuracy),
        if_calibrated=_if_calibrated(evidence),
        bins=bins,
    )


def class_scores(summary: Summary, *, names: Sequence[str] | None = None) -> tuple[ClassScore, ...]:
    """How each class is calibrated, worst first."""
    if names is not None and len(names) != summary.num_classes:
        raise ValueError(f"class_scores: `names` must hold C = {summary.num_classes} names, got {len(names)}.")
    count, confidence, correct = summary.by_class
    residual = (confidence - correct) / summary.weight
    error, gap = residual.abs().sum(1), residual.sum(1)
    # Labels of calibrated examples with probability p vary by p (1 - p); that of a bin's mean is hardly larger.
    variance = (confidence - confidence.square() / count.where(count > 0, 1.0)).clamp_min(0).sum(1)
    chance = NORMAL_95 * (variance / summary.weight / summary.effective_n).sqrt()
    assert summary.class_counts is not None
    weight, (right, counted) = summary.class_count, summary.class_counts
    rows = counted if summary.is_weighted else None
    wrong = torch.where(weight > 0, 1 - right / weight.where(weight > 0, 1.0), torch.nan)
    order = torch.argsort(error, descending=True, stable=True).tolist()
    return tuple(
        ClassScore(
            index=k,
            name=str(k) if names is None else str(names[k]),
            count=float((weight if rows is None else rows)[k]),
            ece=float(error[k]),
            signed_gap=float(gap[k]),
            error=float(wrong[k]),
            weight=None if rows is None else float(weight[k]),
            chance=float(chance[k]),
        )
        for k in order
    )
