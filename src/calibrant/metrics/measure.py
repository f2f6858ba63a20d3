"""Measuring everything at once: a set of predictions, its slices and classes, and the windows of a stream."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.core.binning import Summary, norm_of_bins, summarize
from calibrant.core.checks import ArrayLike, check_choice, check_share, lookup
from calibrant.core.records import (
    ClassScore,
    Column,
    Estimate,
    IfCalibrated,
    PositiveClass,
    Predictions,
    Scores,
    as_record,
)
from calibrant.metrics.intervals import NORMAL_95, Evidence, bias_corrected, resampled_values, value_of
from calibrant.metrics.levels import check_draws, compare_with_null, ece_of_levels
from calibrant.metrics.table import METRICS, score_metrics

__all__ = ["CalibrationMonitor"]

# More different numbers or dates than the first are cut into as many ranges as the second, of about equal size.
_MOST_VALUES, _RANGES = 20, 5
_MOST_GROUPS = 1000
Length = Literal["hour", "day", "week", "month"]
_UNITS = {"hour": "h", "day": "D", "week": "D", "month": "M"}
_MOST_WINDOWS = 1000
# How a model may have changed: its log-odds are stretched and shifted.
_STRETCHES, _SHIFTS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0), (-0.8, -0.4, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
_SUREST = 1e-7


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

    Values are the usual ones, to be compared with published ones. A 95 % interval is for the *true* value, that of infinitely
    many examples. Chance pushes calibration errors up: near perfect calibration the value lies at the upper end of its
    interval, which begins at 0 if the data do not contradict perfect calibration. See ``docs/intervals.md``.

    Args:
        predictions: N examples of C classes; sample weights are respected. Or probabilities ``[N, C]``, or of a binary problem
            ``[N]`` or ``[N, 1]``, those of the positive class.
        labels: Class indices ``[N]``, unless ``predictions`` has its own.
        probs: Probabilities, in place of ``predictions``.
        logits: Or logits; ``[N]`` are the log-odds of the positive class.
        n_bins: Number of bins of the binned metrics.
        by_class: Whether to add a table of the classes, worst calibrated first.
        slice_by: Columns of the predictions; each of their values gets scores of its own, and ``"site,light"`` each pair of
            values. A column of more than 20 different numbers or dates is cut into five ranges.
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
        predictions, labels = as_record(probs, labels, logits=logits, where="measure"), None
    predictions = as_record(predictions, labels, where="measure")
    check_draws(n_bins, n_resamples, seed, where="measure")
    where = file or "the predictions"
    by = Slices(column_names(slice_by, [*predictions.columns], where=where), predictions.columns, where=where)
    parts = sorted(by.split(predictions), key=lambda found: found[0])
    slices = {group.title: measure(part, n_bins=n_bins, n_resamples=n_resamples, seed=seed) for group, part in parts}
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
    """Measure predictions of which only a summary was kept; see `measure`.

    The arguments are those of `measure`, and ``class_names``, C names for the table of classes. Metrics that cannot be read
    from sums need the ``predictions`` as well.

    Returns:
        The scores: exact up to 65,536 examples; beyond, means, binned and classwise errors are (for a number of bins that
        divides 3,000), the others are within 1e-3 of those of `measure`.
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
        # Where its bias carries the usual value past the interval, the interval reaches to it.
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
    """The value of every score that can be read from the sums; with ``predictions``, of the others too."""
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
    weight, (right, counted) = correct.sum(1), summary.class_counts
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


def column_names(slice_by: str | Sequence[str] | None, known: Sequence[str], *, where: str) -> list[tuple[str, ...]]:
    """Take ``slice_by`` apart: one or several columns, where ``"site,light"`` means every pair of values of the two."""
    given = [slice_by] if isinstance(slice_by, str) else list(slice_by or ())
    found = [(text,) if text in known else tuple(name.strip() for name in text.split(",")) for text in dict.fromkeys(given)]
    for name in (name for names in found for name in names):
        lookup(dict.fromkeys(known), name, kind=f"column of {where}")
    return found


class Slice(NamedTuple):
    """A group of examples: its place among the groups, by which they are sorted, and its name."""

    place: tuple[object, ...]
    title: str


class Slices:
    """How to group examples, learned from the columns of all of them or of a random part.

    Args:
        slice_by: As `column_names` gives it.
        columns: Column → values, at least of those that are sliced by.
        where: Where the columns come from, for messages.
    """

    def __init__(self, slice_by: Sequence[tuple[str, ...]], columns: Mapping[str, Column], *, where: str) -> None:
        self.slice_by, self.where = list(slice_by), where
        self._cuts = {name: _cuts(columns[name]) for names in slice_by for name in names}
        self._seen: set[Slice] = set()

    def split(self, predictions: Predictions) -> Iterator[tuple[Slice, Predictions]]:
        """Yield the examples of every group."""
        for place, names in enumerate(self.slice_by):
            coded = [self._code(name, predictions.columns[name]) for name in names]
            keys, index = np.unique(np.stack([codes for codes, _ in coded]), axis=1, return_inverse=True)
            for number, key in enumerate(keys.T):
                values = [ranked[code] for code, (_, ranked) in zip(key, coded, strict=True)]
                group = Slice((place, *values), self._title(names, [text for _, text in values]))
                self._seen.add(group)
                if len(self._seen) > _MOST_GROUPS:
                    raise ValueError(f"{self.where}: columns to slice by must make at most {_MOST_GROUPS} groups, got more.")
                yield group, predictions.subset(index.reshape(-1) == number)

    def _title(self, names: Sequence[str], texts: Sequence[str]) -> str:
        """The value, or where several columns are sliced by, the values with the names of their columns."""
        is_only = len(self.slice_by) == len(names) == 1
        return texts[0] if is_only else ", ".join(f"{name}: {text}" for name, text in zip(names, texts, strict=True))

    def _code(self, name: str, values: Column) -> tuple[Column, list[tuple[int, str]]]:
        """Whole numbers for the values of a column; and for each of these its rank among the values, and its text."""
        found = self._cuts[name]
        if found is None:
            texts, codes = np.unique(values.astype(str), return_inverse=True)
            return codes, [(0, text or "(empty)") for text in texts.tolist()]
        cuts, ranges = found
        numbers, _ = as_numbers(values)
        return np.where(np.isnan(numbers), len(cuts) + 1, np.searchsorted(cuts, numbers)), list(enumerate(ranges))


def _cuts(values: Column) -> tuple[NDArray[np.float64], list[str]] | None:
    """Where to cut a column of many numbers or dates, and the names of the ranges; None for any other column."""
    numbers, are_dates = as_numbers(values)
    if len(np.unique(numbers)) <= _MOST_VALUES:
        return None
    cuts = np.unique(np.nanquantile(numbers, np.arange(1, _RANGES) / _RANGES, method="nearest"))
    if are_dates:
        texts = [str(moment).removesuffix("T00:00:00") for moment in cuts.astype("int64").astype("M8[s]")]
    else:
        # As many digits as tell the cuts apart.
        texts = next(t for d in range(4, 18) if len({*(t := [f"{cut:.{d}g}" for cut in cuts])}) == len(cuts))
    between = [f"{low} – {high}" for low, high in zip(texts, texts[1:], strict=False)]
    return cuts, [f"up to {texts[0]}", *between, f"over {texts[-1]}", "missing"]


def as_numbers(values: Column) -> tuple[NDArray[np.float64], bool]:
    """Numbers, and dates in seconds, even if written as text, and whether they are dates; anything else is NaN."""
    kind = values.dtype.kind
    for dtype, missing in (("f8", "nan"), ("M8[s]", "NaT")):
        if kind in ("iufU" if dtype == "f8" else "UM"):
            with warnings.catch_warnings(action="ignore"), suppress(ValueError):
                found = (np.where(values == "", missing, values) if kind == "U" else values).astype(dtype)
                return np.where(np.isnan(found), np.nan, found.astype("f8")), dtype != "f8"
    return np.full(len(values), np.nan), False


@dataclass(frozen=True)
class Window:
    """What was measured in a window of time.

    Attributes:
        name: When it begins, or the value that its examples share.
        scores: What `calibrant.measure` says of its examples.
        evidence: How many times better a change explains the examples up to here than a calibrated model does.
        alarm: Whether that is enough for an alarm.
    """

    name: str
    scores: Scores
    evidence: float
    alarm: bool

    @property
    def bias(self) -> Estimate:
        """Confidence minus accuracy; with two classes, mean probability of class 1 minus its frequency."""
        return self.scores["signed_gap" if self.scores.positive is None else "binary_gap"]


@dataclass(frozen=True)
class Watched:
    """What a `CalibrationMonitor` found in a stream of predictions.

    Attributes:
        windows: The windows in the order of time.
        tolerance: How far probabilities may be off without an alarm.
        false_alarms: Probability of an alarm in any window, however many there will be, if none is due.
    """

    windows: tuple[Window, ...]
    tolerance: float
    false_alarms: float

    @property
    def first_alarm(self) -> Window | None:
        """The first window with an alarm."""
        return next((window for window in self.windows if window.alarm), None)

    def to_dict(self) -> dict[str, object]:
        """Return plain data in the schema of ``calibrant monitor --json``."""
        first = self.first_alarm
        return {
            "tolerance": self.tolerance,
            "false_alarms": self.false_alarms,
            "first_alarm": None if first is None else first.name,
            "windows": [
                {"window": window.name, "evidence": window.evidence, "alarm": window.alarm, **window.scores.to_dict()}
                for window in self.windows
            ],
        }


class CalibrationMonitor:
    r"""Measures a stream of predictions in windows of time, and raises an alarm when the model is no longer calibrated.

    The alarm is for probabilities :math:`c_i` of events :math:`a_i` (that the prediction is right; with two classes, that the
    class is 1) that are off by more than a tolerance :math:`\epsilon`. Each of 76 ways k in which they may be off,
    :math:`q_{ik} = \sigma(b_k \operatorname{logit} c_i + a_k)`, is compared with the nearest probability that is no cause for
    alarm, :math:`p_{ik}` in :math:`[c_i - \epsilon, c_i + \epsilon]`:

    .. math::
        E_{tk} = \prod_{i \in \text{window } t}
            \Bigl(\frac{q_{ik}}{p_{ik}}\Bigr)^{a_i} \Bigl(\frac{1 - q_{ik}}{1 - p_{ik}}\Bigr)^{1 - a_i},
        \qquad A_{tk} = E_{tk} \Bigl(A_{t-1,k} + \frac{1}{t (t + 1)}\Bigr),
        \qquad A_t = \frac{1}{K} \sum_k A_{tk}

    While no alarm is due each :math:`E_{tk}` is at most 1 on average, whatever came before, so :math:`A_t` plus the weights
    :math:`1 / (t (t + 1))` of windows to come is a supermartingale that begins at 1. By Ville's inequality :math:`A_t` ever
    reaches :math:`1 / \alpha` with probability :math:`\alpha` at most, over all windows, however many. The weights let a change
    begin at any window.

    Args:
        window: Length of a window; None makes a window of each distinct value.
        tolerance: How far probabilities may be off without an alarm, since no model is calibrated exactly.
        false_alarms: Probability :math:`\alpha` of any alarm while none is due.
        n_bins: Number of bins of the binned metrics.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> monitor = CalibrationMonitor(window="month")
        >>> for month, right in (("2024-01", 0.9), ("2024-02", 0.9), ("2024-03", 0.7)):
        ...     labels = (torch.rand(500, generator=generator) > right).long()
        ...     monitor.update(Predictions(probs=torch.tensor([[0.9, 0.1]] * 500), labels=labels), [month] * 500)
        >>> [(window.name, window.alarm) for window in monitor.result().windows]
        [('2024-01', False), ('2024-02', False), ('2024-03', True)]

    Reference:
        Shafer, "Testing by betting", JRSS A 184, 2021; Ramdas, Grünwald, Vovk and Shafer, Statistical Science 38, 2023; Shin,
        Ramdas and Rinaldo, "E-detectors", 2024 (changes at any time).
    """

    def __init__(
        self, *, window: Length | None = "day", tolerance: float = 0.02, false_alarms: float = 0.05, n_bins: int = 15
    ) -> None:
        where = "CalibrationMonitor"
        check_choice(window, (*_UNITS, None), where=where, name="window")
        check_share(tolerance, where=where, name="tolerance")
        check_share(false_alarms, where=where, name="false_alarms", zero=False)
        self.window, self.tolerance, self.false_alarms, self.n_bins = window, tolerance, false_alarms, n_bins
        self._seen: dict[Any, tuple[Summary, Tensor]] = {}

    def update(self, predictions: Predictions, times: ArrayLike) -> None:
        """Add examples, in any order.

        Args:
            predictions: N examples.
            times: When each was predicted ``[N]``: dates, or text such as "2024-05-31 17:00"; with ``window=None`` any values.
        """
        begins, index = np.unique(self._windows_of(np.asarray(times), len(predictions)), return_inverse=True)
        keys = begins.tolist() if self.window is None else begins.astype(str).tolist()
        if len({*self._seen, *keys}) > _MOST_WINDOWS:
            raise ValueError(
                f"CalibrationMonitor: `times` must fall into {_MOST_WINDOWS} windows at most, got more. Choose longer windows."
            )
        ratios = log_ratios(predictions, torch.from_numpy(index), len(keys), tolerance=self.tolerance)
        for number, key in enumerate(keys):
            found = summarize(predictions.subset(index == number), n_bins=self.n_bins), ratios[:, number]
            if key in self._seen:
                found = self._seen[key][0] + found[0], self._seen[key][1] + found[1]
            self._seen[key] = found

    def result(self, *, n_resamples: int = 1000, seed: int = 0) -> Watched:
        """Measure every window; ``n_resamples`` and ``seed`` as in `calibrant.measure`."""
        keys = sorted(self._seen)
        evidence = running_evidence([self._seen[key][1] for key in keys])
        windows = []
        for key, value in zip(keys, evidence, strict=True):
            total = self._seen[key][0]
            scores = measure_summary(total, n_resamples=n_resamples, seed=seed)
            windows.append(Window(str(key), scores, value, alarm=value >= 1 / self.false_alarms))
        return Watched(tuple(windows), self.tolerance, self.false_alarms)

    def _windows_of(self, times: Column, size: int) -> Column:
        where = "CalibrationMonitor.update"
        if times.shape != (size,):
            raise ValueError(f"{where}: `times` must be [N] = [{size}], got {list(times.shape)}.")
        if self.window is None:
            return times
        with warnings.catch_warnings(action="ignore"):  # that times of a zone become UTC
            try:
                dates = times if times.dtype.kind == "M" else times.astype(str).astype("datetime64[s]")
            except ValueError:
                dates = np.array(["NaT"], dtype="datetime64[s]")
        if bool(np.isnat(dates).any()):
            raise ValueError(f"{where}: `times` must be dates such as 2024-05-31, got {times[:1].tolist()} or other values.")
        begins = dates.astype(f"datetime64[{_UNITS[self.window]}]")
        # Days are counted from a Thursday; weeks begin on Monday.
        return begins - (begins.astype(int) + 3) % 7 if self.window == "week" else begins


def log_ratios(predictions: Predictions, index: Tensor, n_windows: int, *, tolerance: float) -> Tensor:
    """How much better each way of being off explains the examples of a window than probabilities within the tolerance do.

    Args:
        predictions: N examples.
        index: Window of each ``[N]``.
        n_windows: Number of windows T.
        tolerance: How far probabilities may be off.

    Returns:
        Logarithms of likelihood ratios ``[K, T]``.
    """
    if predictions.num_classes == 2:
        probs, happened = predictions.probs[:, 1].double(), predictions.labels == 1
    else:
        probs, happened = predictions.confidence, predictions.correct
    odds, low, high = torch.logit(probs, eps=_SUREST), (probs - tolerance).clamp_min(0), (probs + tolerance).clamp_max(1)
    ways = [(stretch, shift) for stretch in _STRETCHES for shift in _SHIFTS if (stretch, shift) != (1.0, 0.0)]
    found = torch.zeros(len(ways), n_windows, dtype=torch.float64)
    for total, (stretch, shift) in zip(found, ways, strict=True):
        q = torch.sigmoid(stretch * odds + shift)
        p = q.clamp(low, high)
        total.index_add_(0, index, torch.where(happened, q.log() - p.log(), torch.log1p(-q) - torch.log1p(-p)))
    return found


def running_evidence(ratios: Sequence[Tensor]) -> list[float]:
    """The evidence :math:`A_t` for a change up to each window, from its `log_ratios`."""
    found, logs = [], torch.full_like(ratios[0], -math.inf) if ratios else torch.empty(0)
    for t, values in enumerate(ratios, 1):
        logs = values + torch.logaddexp(logs, torch.full_like(logs, -math.log(t * (t + 1))))
        found.append(math.exp(min(float(torch.logsumexp(logs, 0)) - math.log(len(logs)), 700.0)))
    return found
