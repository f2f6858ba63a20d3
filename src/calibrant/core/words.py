"""Numbers in words: how a value is written, and what a measurement means in one line."""

from __future__ import annotations

import math
from typing import NamedTuple

from calibrant.core.scores import Estimate, Paired, Scores


class Metric(NamedTuple):
    """How a metric is shown: its name, the unit it is written in, and what it says in a few words."""

    name: str
    unit: str
    meaning: str


# In the order in which they are shown; a key that is not listed here is shown at the end under its own name.
METRICS = {
    "error": Metric("error rate", "%", "wrong predictions"),
    "nll": Metric("negative log-likelihood", "nats", "surprise at the true class, in nats"),
    "brier": Metric("Brier score", "", "squared error, summed over classes"),
    "aurc": Metric("area under risk-coverage", "%", "mean error if the least sure are dropped first"),
    "ece": Metric("expected calibration error", "%", "mean gap between confidence and accuracy"),
    "ece_debiased": Metric("debiased L2 error", "%", "root mean squared gap, noise taken out"),
    "ace": Metric("adaptive calibration error", "%", "mean gap over bins of equal size"),
    "mce": Metric("maximum calibration error", "%", "gap of the worst bin"),
    "sece": Metric("SECE", "%", "mean gap to accuracy smoothed by a kernel"),
    "smece": Metric("smooth ECE", "%", "gap at the scale that its own size sets"),
    "mmce": Metric("MMCE", "%", "kernel distance from calibration"),
    "classwise_ece": Metric("classwise ECE", "%", "mean gap of every class's probability"),
    "signed_gap": Metric("confidence minus accuracy", "%", "above zero: over-confident"),
}
# Below the first an error is called slight, above the second strong; between them it goes without a word.
_SLIGHT, _STRONG = 0.02, 0.10
SIGNIFICANT = 0.05
# Below this many examples, not to see an error says little.
FEW = 200


def count_examples(n: int) -> str:
    """Write how many examples there are."""
    return f"{n:,} example" + ("" if n == 1 else "s")


def metric_of(key: str) -> Metric:
    """Return how the metric ``key`` is shown."""
    return METRICS.get(key, Metric(key.replace("_", " "), "", ""))


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


def write_p(p_value: float) -> str:
    """Write a p-value: never zero, never with digits that mean nothing."""
    if not math.isfinite(p_value):
        return "p = n/a"
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def is_miscalibrated(scores: Scores) -> bool:
    """Whether chance alone would hardly show an ECE as large as this."""
    return scores.ece_if_calibrated.p_value < SIGNIFICANT


def is_too_few(scores: Scores) -> bool:
    """Whether examples are so few that seeing no error among them is no sign of there being none."""
    return scores.n < FEW and not is_miscalibrated(scores)


def direction(scores: Scores) -> str:
    """Return "over-confident", "under-confident", "both" in different places, or "no clear error"."""
    gap = scores["signed_gap"]
    if not is_miscalibrated(scores):
        return "no clear error"
    if gap.low <= 0 <= gap.high:
        return "both"
    return "over-confident" if gap.value > 0 else "under-confident"


def verdict(scores: Scores) -> str:
    """Say in one sentence what the measurement means."""
    null, ece = scores.ece_if_calibrated, scores["ece"]
    ece_text, mean_text, p95_text = (write_value(v, "%") for v in (ece.value, null.mean, null.p95))
    if not is_miscalibrated(scores):
        opening = "Too few examples to see an error" if is_too_few(scores) else "No sign of miscalibration"
        return (
            f"{opening}: an ECE of {ece_text} is what a perfectly calibrated model shows on "
            f"{count_examples(scores.n)} ({mean_text} on average, rarely over {p95_text})."
        )
    accuracy = 1 - scores["error"].value
    confidence = accuracy + scores["signed_gap"].value
    said = direction(scores).replace("both", "over-confident here and under-confident there")
    strength = "slightly " if ece.value < _SLIGHT else "strongly " if ece.value > _STRONG else ""
    opening = strength + said
    return (
        f"{opening[0].upper()}{opening[1:]}: {100 * confidence:.1f}% sure on average, {100 * accuracy:.1f}% right; the ECE is "
        f"{ece_text} where a calibrated model would show {mean_text} ({write_p(null.p_value)})."
    )


def worst_slice(scores: Scores) -> str:
    """Name the group whose ECE stands out most above what a calibrated model would show there."""
    name, worst = max(scores.slices.items(), key=lambda item: item[1]["ece"].value - item[1].ece_if_calibrated.p95)
    if not is_miscalibrated(worst):
        return "none stands out: each could be that of a calibrated model"
    return f"{name} stands out most, with an ECE of {write_value(worst['ece'].value, '%')}"
