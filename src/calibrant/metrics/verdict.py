"""Numbers in words: how a value is written, what a measurement means in one line, and what a repair did."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from calibrant.core.scores import Estimate, IfCalibrated, Paired, PositiveClass, Scores
from calibrant.metrics.table import METRICS, Metric

# Below the first an error is called slight, above the second strong; between them it goes without a word.
_SLIGHT, _STRONG = 0.02, 0.10
SIGNIFICANT = 0.05
# Below this many examples, not to see an error says little.
FEW = 200
# What makes one of these worse has its price; what makes two worse does harm, whatever becomes of the calibration error.
_PRICES = ("error", "nll", "brier")
_UNLIKE = "The examples it was fitted on seem to be unlike these, or too few"


def count_examples(n: int) -> str:
    """Write how many examples there are."""
    return f"{n:,} example" + ("" if n == 1 else "s")


def metric_of(key: str) -> Metric:
    """Return the metric ``key``; one that is no longer known (in an old record) is shown under its own name."""
    return METRICS[key] if key in METRICS else Metric(lambda *_: torch.tensor(math.nan), label=key.replace("_", " "))


def table_rows(keys: Iterable[str]) -> list[tuple[str, Metric, bool]]:
    """Key and metric in the order of tables, and whether a new group of metrics begins; unknown ones come last."""
    given = list(keys)
    metrics = {key: metric_of(key) for key in sorted(given, key=[*METRICS, *given].index)}
    groups = [metric.group for metric in metrics.values()]
    begins = [before != group for before, group in zip(groups[:1] + groups, groups, strict=False)]
    return list(zip(metrics, metrics.values(), begins, strict=True))


def judge(key: str, test: Paired) -> str:
    """Say in a word or two what a difference means: "better", "worse", "more sure", "less sure", "same" or "unclear"."""
    if test.low == test.high == 0:
        return "same"
    if test.difference == 0 or not test.p_value < SIGNIFICANT:
        return "unclear"
    words = {"lower": ("better", "worse"), "higher": ("worse", "better"), None: ("less sure", "more sure")}
    return words[metric_of(key).better][test.difference > 0]


def write_value(value: float, unit: str, *, signed: bool = False) -> str:
    """Write a fraction in per cent, any other number with four digits after the point."""
    sign = "+" if signed else ""
    if not math.isfinite(value):
        return {math.inf: f"{sign}inf", -math.inf: "−inf"}.get(value, "n/a")
    text = f"{100 * value:{sign}.2f}%" if unit == "%" else f"{value:{sign}.4f}"
    # What rounds to nothing has no direction.
    return text.replace("-", "−") if any(digit in text for digit in "123456789") else text.lstrip("+-")


def write_interval(estimate: Estimate | Paired, unit: str, *, signed: bool = False) -> str:
    """Write the two ends of an interval, in the unit of its value."""
    ends = [write_value(end, unit, signed=signed).removesuffix("%") for end in (estimate.low, estimate.high)]
    return f"{ends[0]} – {ends[1]}"


def write_estimate(estimate: Estimate | Paired, metric: Metric, *, signed: bool = False) -> tuple[str, str]:
    """Write a value, or a difference, and the ends of its interval; with its sign also where the sign is the direction."""
    signed = signed or metric.better is None
    return write_value(estimate[0], metric.unit, signed=signed), write_interval(estimate, metric.unit, signed=signed)


def write_p(p_value: float) -> str:
    """Write a p-value: never zero, never with digits that mean nothing."""
    if not math.isfinite(p_value):
        return "p = n/a"
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def main_error(scores: Scores) -> tuple[str, IfCalibrated]:
    """Key of the calibration error that decides, and what to expect of it: of two classes that of the positive one."""
    return ("ece", scores.ece_if_calibrated) if scores.positive is None else ("binary_ece", scores.positive.if_calibrated)


def is_miscalibrated(scores: Scores) -> bool:
    """Whether chance alone would hardly show a calibration error as large as this."""
    return main_error(scores)[1].p_value < SIGNIFICANT


def direction(scores: Scores) -> str:
    """Return "over-confident", "under-confident", "both" in different places, or "no clear error".

    Of two classes: whether the positive one is predicted "too often" or "too rarely".
    """
    gap = scores["signed_gap" if scores.positive is None else "binary_gap"]
    if not is_miscalibrated(scores):
        return "no clear error"
    if gap.low <= 0 <= gap.high:
        return "both"
    words = ("under-confident", "over-confident") if scores.positive is None else ("too rarely", "too often")
    return words[gap.value > 0]


def verdict(scores: Scores) -> str:
    """Say in one sentence what the measurement means."""
    (key, null), positive, said = main_error(scores), scores.positive, direction(scores)
    ece, mean, p95 = (write_value(value, "%") for value in (scores[key].value, null.mean, null.p95))
    what = "ECE" if positive is None else f"calibration error of {positive.probability}"
    if not is_miscalibrated(scores):
        opening = "Too few examples to see an error" if scores.n < FEW else "No sign of miscalibration"
        shown = f"a perfectly calibrated model shows on {count_examples(scores.n)} ({mean} on average, rarely over {p95})"
        return f"{opening}: {'a' if positive else 'an'} {what} of {ece} is what {shown}."
    chance = f"{ece} where a calibrated model would show {mean} ({write_p(null.p_value)})."
    if positive is not None:
        return f"{_tell_place(positive, said)} The {what} is {chance}"
    accuracy = 1 - scores["error"].value
    sure, right = (f"{100 * value:.1f}%" for value in (accuracy + scores["signed_gap"].value, accuracy))
    strength = "slightly " if scores[key].value < _SLIGHT else "strongly " if scores[key].value > _STRONG else ""
    opening = strength + said.replace("both", "over-confident here and under-confident there")
    return f"{opening.capitalize()}: {sure} sure on average, {right} right; the ECE is {chance}"


def _tell_place(positive: PositiveClass, said: str) -> str:
    """Say how the predictions of the positive class are off on average, and where most; ``said`` is of `direction`."""
    predicted, observed = write_percent(positive.predicted), write_percent(positive.observed)
    how = said.replace("both", "too often here and too rarely there")
    told = f"Predicts {positive.name or 'the positive class'} {how}: {predicted} on average, {observed} observed"
    if said == "too often" and positive.predicted >= 1.1 * positive.observed > 0:
        told += f" ({positive.predicted / positive.observed:.1f} times as much)"
    bins = positive.bins
    if not bins.count.numel():
        return f"{told}."
    worst = int((bins.weight * bins.gap.abs()).argmax())
    low, high = (f"{100 * float(edge):.0f}" for edge in bins.edges[worst : worst + 2])
    there, happens = (write_percent(float(part[worst])) for part in (bins.confidence, bins.accuracy))
    return f"{told}. The error is largest between {low} and {high}%: {there} predicted, {happens} observed."


def worst_slice(scores: Scores) -> str:
    """Name the group whose ECE stands out most above what a calibrated model would show there."""
    key, _ = main_error(scores)
    name, worst = max(scores.slices.items(), key=lambda item: item[1][key].value - main_error(item[1])[1].p95)
    if not is_miscalibrated(worst):
        return "none stands out: each could be that of a calibrated model"
    return f"{name} stands out most, with {metric_of(key).short or metric_of(key).label} {write_value(worst[key].value, '%')}"


def tell_effect(before: Scores, after: Scores, paired: Mapping[str, Paired], *, it: str) -> str:
    """Say what a repair did to the calibration error: what follows its name, with a full stop, and perhaps a sentence more."""
    was, to = (write_percent(scores["ece"].value) for scores in (before, after))
    clear, p = was != to and paired["ece"].p_value < SIGNIFICANT, write_p(paired["ece"].p_value)
    if clear and paired["ece"].difference > 0:
        return f"makes {it} worse here: {to} ({p}). {_UNLIKE}; do not use it."
    if clear:
        told = f"brings {it} to {to}" + ("" if is_miscalibrated(after) else ", which can no longer be told from calibrated")
    else:
        told = f"leaves {it} at {to}" if was == to else f"changes {it} to {to}, a difference that chance explains ({p})"
    worse = [key for key in _PRICES if key in paired and judge(key, paired[key]) == "worse"]
    for metric, key in ((metric_of(key), key) for key in worse or ["error"]):
        old, new = (write_value(scores[key].value, metric.unit) for scores in (before, after))
        told += f"; the {metric.label} goes from {old} to {new}" if old != new else ""
    if len(worse) > 1:
        return f"{told}: this repair does harm. {_UNLIKE}; do not use it."
    if clear:
        return f"{told}."
    if not is_miscalibrated(before):
        return f"{told}: no repair is needed."
    return f"{told}: this repair does not help. {_UNLIKE}; fit on examples of the kind that is to be repaired."


def write_percent(value: float) -> str:
    """Write a share in percent: two digits for small ones, where they matter, else one.

    Example:
        >>> write_percent(0.0412), write_percent(0.412)
        ('4.12%', '41.2%')
    """
    return f"{100 * value:.{2 if abs(value) < 0.1 else 1}f}%"


def join_words(words: Sequence[str]) -> str:
    """Write an enumeration.

    Example:
        >>> join_words(["a", "b", "c"])
        'a, b and c'
    """
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]
