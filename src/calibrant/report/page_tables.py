"""The tables of a page as text: metrics before and after, calibrators, runs. Their layout is in the template."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from calibrant.core.scores import Paired
from calibrant.core.words import METRICS, SIGNIFICANT, direction, metric_of, write_interval, write_p, write_value
from calibrant.report.page_content import Candidate, Examined, Repair, calibrator_label

# A line is drawn above these: top-label calibration, then other views of it.
_NEW_GROUP = ("ece", "classwise_ece")


@dataclass(frozen=True)
class MetricRow:
    """One metric: its names, values and intervals as text, and what the repair did to it in a word."""

    key: str
    name: str
    meaning: str
    before: str
    before_interval: str
    after: str = ""
    after_interval: str = ""
    change: str = ""
    change_interval: str = ""
    p_value: str = ""
    judgement: str = ""
    starts_group: bool = False


@dataclass(frozen=True)
class CalibratorRow:
    """One calibrator: how it did in the cross-validation and on the test data, as text."""

    name: str
    held_out: str
    gain: str
    gain_interval: str
    error: str
    nll: str
    ece: str
    ece_interval: str
    preserves_accuracy: bool
    chosen: bool
    failure: str = ""


def metric_rows(examined: Examined, repaired: Repair | None) -> list[MetricRow]:
    """Every metric as ``calibrant measure`` writes it, before and after, with the paired test of the difference."""
    rows = []
    for key in ordered_keys(examined.scores):
        metric, signed = metric_of(key), key == "signed_gap"
        cells = {
            "before": write_value(examined.scores[key].value, metric.unit, signed=signed),
            "before_interval": write_interval(examined.scores[key], metric.unit, signed=signed),
        }
        if repaired is not None:
            after, test = repaired.after.scores[key], repaired.paired[key]
            cells |= {
                "after": write_value(after.value, metric.unit, signed=signed),
                "after_interval": write_interval(after, metric.unit, signed=signed),
                "change": write_value(test.difference, metric.unit, signed=True),
                "change_interval": write_interval(test, metric.unit, signed=True),
                "p_value": write_p(test.p_value),
                "judgement": judge(key, test),
            }
        rows.append(MetricRow(key, metric.name, metric.meaning, starts_group=key in _NEW_GROUP, **cells))
    return rows


def judge(key: str, test: Paired) -> str:
    """Say in a word or two what a difference means: "better", "worse", "more sure", "less sure", "same" or "unclear"."""
    if test.difference == 0:
        return "same"
    if not test.p_value < SIGNIFICANT:
        return "unclear"
    if key == "signed_gap":
        return "more sure" if test.difference > 0 else "less sure"
    return "better" if test.difference < 0 else "worse"


def ordered_keys(keys: Iterable[str]) -> list[str]:
    """Keys of metrics in the order in which they are shown."""
    given = list(keys)
    return [key for key in METRICS if key in given] + [key for key in given if key not in METRICS]


def calibrator_rows(repaired: Repair) -> list[CalibratorRow]:
    """Every calibrator that was tried, best in the cross-validation first."""
    return [_calibrator_row(candidate, repaired.name) for candidate in repaired.candidates]


def _calibrator_row(candidate: Candidate, chosen: str) -> CalibratorRow:
    scores, gain = candidate.scores, candidate.gain
    is_idle = candidate.name == "none"
    return CalibratorRow(
        name=calibrator_label(candidate.name),
        held_out=write_value(candidate.held_out, "nats"),
        gain="" if gain is None or is_idle else write_value(gain.value, "nats", signed=True),
        gain_interval="" if gain is None or is_idle else write_interval(gain, "nats", signed=True),
        error="" if scores is None else write_value(scores["error"].value, "%"),
        nll="" if scores is None else write_value(scores["nll"].value, "nats"),
        ece="" if scores is None else write_value(scores["ece"].value, "%"),
        ece_interval="" if scores is None else write_interval(scores["ece"], "%"),
        preserves_accuracy=candidate.preserves_accuracy,
        chosen=candidate.name == chosen,
        failure=candidate.failure or "",
    )


def key_figures(examined: Examined, repaired: Repair | None) -> list[dict[str, str]]:
    """The few numbers that stand large under the verdict: name, value, value after a repair, and a note."""
    scores = examined.scores
    after = None if repaired is None or repaired.name == "none" else repaired.after.scores
    null = scores.ece_if_calibrated
    notes = {
        "ece": f"{write_value(null.mean, '%')} if calibrated",
        "signed_gap": direction(scores),
        "error": f"95% interval {write_interval(scores['error'], '%')}",
        "nll": "nats an example",
    }
    names = {"ece": "Calibration error (ECE)", "signed_gap": "Confidence − accuracy", "error": "Error rate"}
    names["nll"] = "Negative log-likelihood"
    figures = []
    for key, note in notes.items():
        unit, signed = metric_of(key).unit, key == "signed_gap"
        later = "" if after is None else write_value(after[key].value, unit, signed=signed)
        value = write_value(scores[key].value, unit, signed=signed)
        figures.append({"key": key, "name": names[key], "value": value, "after": "" if later == value else later, "note": note})
    return figures
