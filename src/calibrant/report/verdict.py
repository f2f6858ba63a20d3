"""The verdict at the top of a page: what was found, in words that need no knowledge of calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calibrant.core.scores import Estimate, Scores
from calibrant.metrics.verdict import (
    FEW,
    count_examples,
    direction,
    is_miscalibrated,
    join_words,
    tell_effect,
    write_p,
    write_percent,
)
from calibrant.report.page_content import Examined, Repair, calibrator_label
from calibrant.report.page_runs import RunRow, labels_not_told, leader


@dataclass(frozen=True)
class Verdict:
    """What is said at the top.

    Attributes:
        headline: A few words.
        sentences: What stands behind them, a paragraph each.
        tone: "over", "under", "both", "good" or "unsure", and "runs" for a comparison: decides the colour.
    """

    headline: str
    sentences: tuple[str, ...]
    tone: str


def give_verdict(examined: Examined, repaired: Repair | None) -> Verdict:
    """Say what was found of predictions, and what a repair, if there was one, did for them."""
    scores = examined.scores
    tone = {"over-confident": "over", "under-confident": "under", "both": "both"}.get(direction(scores), "good")
    tone = "unsure" if tone == "good" and scores.n < FEW else tone
    doubts = () if repaired is None else repaired.doubts
    sentences = [_finding(scores), *_caution(scores), _repair(scores, repaired), *doubts]
    return Verdict(_headline(scores, tone), tuple(filter(None, sentences)), tone)


def _headline(scores: Scores, tone: str) -> str:
    if tone in ("over", "under"):
        return f"{tone.capitalize()}-confident by {_points(abs(scores['signed_gap'].value))}"
    if tone == "both":
        return f"Over-confident here, under-confident there: off by {_points(scores['ece'].value)}"
    if scores.n < FEW:
        return "Too few examples to see an error"
    return "Not distinguishable from calibrated"


def _finding(scores: Scores) -> str:
    null, ece, gap = scores.ece_if_calibrated, scores["ece"], scores["signed_gap"]
    accuracy = 1 - scores["error"].value
    sure = f"The model is {write_percent(accuracy + gap.value)} sure on average and {write_percent(accuracy)} right"
    if not is_miscalibrated(scores):
        return (
            f"{sure}. Its calibration error (ECE) of {write_percent(ece.value)} is what chance alone shows: a perfectly "
            f"calibrated model of this size would show {write_percent(null.mean)} on average and rarely more than "
            f"{write_percent(null.p95)} ({write_p(null.p_value)})."
        )
    null_text = f"a perfectly calibrated model of this size would show {write_percent(null.mean)}"
    if direction(scores) == "both":
        return (
            f"{sure}, but too sure in some places and not sure enough in others. Its calibration error (ECE) is "
            f"{write_percent(ece.value)}, 95% interval {_interval(ece)}; {null_text}."
        )
    size = _absolute(gap)
    return (
        f"{sure}: {direction(scores)} by {_points(size.value, digits=_digits(size))}, 95% interval {_interval(size)}. Its "
        f"calibration error (ECE) is {write_percent(ece.value)}; {null_text}."
    )


def _caution(scores: Scores) -> list[str]:
    """What a reader should not conclude."""
    if is_miscalibrated(scores):
        few = f"These are only {count_examples(scores.n)}: the direction is clear, the size of the error is not."
        return [few] if scores.n < FEW else []
    if scores.n < FEW:
        return [
            f"With {count_examples(scores.n)} nothing smaller than {write_percent(scores.ece_if_calibrated.p95)} could have "
            "been seen. Measure more before relying on it."
        ]
    return [f"A calibration error of up to {write_percent(scores['ece'].high)} cannot be excluded."]


def _repair(before: Scores, repaired: Repair | None) -> str:
    if repaired is None:
        return ""
    on = f"{count_examples(repaired.n_fit)}{f' of {repaired.fit_file}' if repaired.fit_file else ''}"
    if repaired.name == "none":
        n_tried = sum(entry.name != "none" and entry.failure is None for entry in repaired.candidates)
        tried = f"Of {n_tried} repairs tried" if n_tried > 1 else "Of the repairs tried"
        told = f"{tried} on {on} none was clearly better than doing nothing: the probabilities are left as they are."
        remains = " The error remains; fit on more examples, of the kind that is to be repaired."
        return told + (remains if is_miscalibrated(before) else "")
    name = calibrator_label(repaired.name)
    is_plain = repaired.name == "temperature" and repaired.temperature is not None
    what = f"Temperature {repaired.temperature:.2f}" if is_plain else f"{name.capitalize()} calibration"
    return f"{what}, fitted on {on}, {tell_effect(before, repaired.after.scores, repaired.paired, it='it')}"


def give_runs_verdict(rows: Sequence[RunRow], *, n_runs: int) -> Verdict:
    """Say what comparing ``n_runs`` runs found, with a paragraph for each data set and network.

    It names the rows of the least calibration error and of the least error, and those that so many runs do not tell from them;
    see `calibrant.report.page_runs.labels_not_told`.
    """
    places = list(dict.fromkeys(row.place for row in rows))
    found = [_tell_place([row for row in rows if row.place == place], rows) for place in places]
    sentences = found[0] if len(found) == 1 else [" ".join(told) for told in found]
    runs = "1 run" if n_runs == 1 else f"{n_runs} runs"
    return Verdict(f"{_tell_rows([row for row in rows if row.place == places[0]], rows)}, {runs}", tuple(sentences), "runs")


def _tell_rows(here: Sequence[RunRow], rows: Sequence[RunRow]) -> str:
    """Say how many methods there are, and on what."""
    methods = len({row.entries[0].method for row in here})
    several = f"{len(here)} methods" if len(here) > 1 else here[0].label
    if methods < len(here):
        several = f"{len(here)} rows of {methods} method{'s' if methods > 1 else ''}"
    data, networks = len({row.data for row in rows}), _count_networks(here[0], rows)
    one = f"{here[0].data} with {networks} networks" if networks > 1 else here[0].place
    return several + (f" on {data} data sets" if data > 1 else f" on {one}" if one else "")


def _count_networks(row: RunRow, rows: Sequence[RunRow]) -> int:
    return len({other.place for other in rows if other.data == row.data})


def _tell_place(here: Sequence[RunRow], rows: Sequence[RunRow]) -> list[str]:
    """What was found on one data set and network."""
    place, data = here[0].place, len({row.data for row in rows})
    on = f"On {place}, " if place else "On data without a name, " if data > 1 else ""
    best, accurate = leader(here, "ece", "error"), leader(here, "error", "ece")
    if best is None or accurate is None:
        return [f"{on}{'no' if on else 'No'} run has both an error and a calibration error (ECE)."]
    known = [row for row in here if math.isfinite(row.mean("error") + row.mean("ece"))]
    held = [row for row in known if not row.size_note] or known
    if len(held) > 1:
        sentences = [_name_leaders(best, accurate, on)]
    else:
        # The headline names a single row of a single place.
        is_named = len(here) == data == _count_networks(here[0], rows) == 1
        name = best.label if not is_named else "it" if on else "It"
        sentences = [
            f"{on}{name} has an error of {_percent(best, 'error')} and a calibration error (ECE) of {_percent(best, 'ece')}."
        ]
    if any(leading.mean(key) != min(row.mean(key) for row in held) for key, leading in (("ece", best), ("error", accurate))):
        sentences.append("Rows that have no run of the same length and settings beside them are left out here.")
    apart = [row.label for row in here if row.size_note]
    if apart:
        is_are = "is" if len(apart) == 1 else "are"
        sentences.append(f"{join_words(apart)} {is_are} of another number of test examples and not compared.")
    same = [row.label for row in held if row.mean("error") == accurate.mean("error") and row is not accurate]
    if same:
        sentences.append(f"{join_words(same)} {'has' if len(same) == 1 else 'have'} the same error.")
    near = labels_not_told(here, {"ece": best, "error": accurate})
    near["error"] = [label for label in near["error"] if label not in same]
    return sentences + _tell_unclear({"ECE": (best, near["ece"]), "error": (accurate, near["error"])}, here)


def _name_leaders(best: RunRow, accurate: RunRow, on: str) -> str:
    if best is accurate:
        return (
            f"{on}{best.label} has both the least calibration error (ECE {_percent(best, 'ece')}) and the least error "
            f"({_percent(best, 'error')})."
        )
    return (
        f"{on}{best.label} has the least calibration error (ECE {_percent(best, 'ece')}, error {_percent(best, 'error')}); "
        f"{accurate.label} errs least ({_percent(accurate, 'error')}, ECE {_percent(accurate, 'ece')})."
    )


def _tell_unclear(unclear: Mapping[str, tuple[RunRow, list[str]]], here: Sequence[RunRow]) -> list[str]:
    """Say of which rows too few runs are known to tell them from the best; a metric has the best row and these."""
    told: dict[tuple[str, str], list[str]] = {}
    for what, (best, names) in unclear.items():
        if names:
            counts = [len(row.entries) for row in here if row is best or row.label in names]
            few, many = min(counts), max(counts)
            number = str(many) if few == many else f"{few} to {many}"
            runs = "One run each is too little" if many == 1 else f"{number} seeds are too few"
            told.setdefault((runs, join_words(names)), []).append(what)
    return [f"{runs} to tell the {join_words(what)} of {names} from the least." for (runs, names), what in told.items()]


def _percent(row: RunRow, key: str) -> str:
    return write_percent(row.mean(key))


def _absolute(estimate: Estimate) -> Estimate:
    value, low, high = estimate
    return estimate if value >= 0 else Estimate(-value, -high, -low)


def _points(value: float, *, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} points"


def _digits(estimate: Estimate) -> int:
    return 2 if estimate.high < 0.1 else 1


def _interval(estimate: Estimate) -> str:
    digits = _digits(estimate)
    return f"{100 * estimate.low:.{digits}f} to {100 * estimate.high:.{digits}f}".replace("-", "−")
