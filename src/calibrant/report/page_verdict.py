"""The verdict at the top of a page: what was found, in words that need no knowledge of calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calibrant.core.effect import join_words, tell_effect, write_percent
from calibrant.core.scores import Estimate, Scores
from calibrant.core.words import FEW, count_examples, direction, is_miscalibrated, write_p
from calibrant.report.page_content import Examined, Repair, calibrator_label


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
    """Say what was found of predictions, and what a repair did for them.

    Args:
        examined: The predictions and their scores.
        repaired: What a repair did, or None if there was none.

    Returns:
        The verdict.
    """
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


def give_runs_verdict(
    rows: Sequence[tuple[str, float, float]],
    *,
    n_runs: int,
    data: Sequence[str],
    n_methods: int | None = None,
    place: str | None = None,
    n_networks: int = 1,
    leaders: tuple[str, str] | None = None,
    near: Sequence[str] = (),
    near_error: Sequence[str] = (),
    apart: Sequence[str] = (),
    seeds: Mapping[str, int] | None = None,
) -> Verdict:
    """Say what comparing runs found.

    Args:
        rows: Label, mean error and mean ECE of each row of one place. A number that is not known is nan.
        n_runs: Number of runs in all.
        data: Names of the data sets; an empty one is unknown.
        n_methods: Number of methods that the rows are of; one a row by default.
        place: Data set and network of the rows; the first data set by default.
        n_networks: Number of networks on that data set.
        leaders: Labels of the rows to name as those of the least ECE and of the least error; by default those that have it.
        near: Labels of the rows whose ECE these runs do not tell from the least one.
        near_error: Labels of those whose error they do not tell from the least one.
        apart: Labels of the rows of another number of test examples, which are not compared.
        seeds: Label → number of runs; one each by default.

    Returns:
        The verdict.
    """
    runs = "1 run" if n_runs == 1 else f"{n_runs} runs"
    several = f"{len(rows)} methods" if len(rows) > 1 else rows[0][0]
    if n_methods is not None and n_methods < len(rows):
        several = f"{len(rows)} rows of {n_methods} method{'s' if n_methods > 1 else ''}"
    here = data[0] if place is None else place
    one = f"{data[0]} with {n_networks} networks" if n_networks > 1 else here
    where = f" on {len(data)} data sets" if len(data) > 1 else f" on {one}" if one else ""
    on = f"On {here}, " if here else "On data without a name, " if len(data) > 1 else ""
    known = {row[0]: row for row in rows if math.isfinite(row[1] + row[2])}
    if not known:
        nothing = f"{on}{'no' if on else 'No'} run has both an error and a calibration error (ECE)."
        return Verdict(f"{several}{where}, {runs}", (nothing,), "runs")
    held = [row for row in known.values() if row[0] not in apart] or list(known.values())
    least = (min(held, key=lambda row: (row[2], row[1])), min(held, key=lambda row: (row[1], row[2])))
    best, accurate = least if leaders is None else (known[leaders[0]], known[leaders[1]])
    # The headline names a single row of a single place.
    alone = len(held) == 1
    name = "it" if len(rows) == len(data) == n_networks == 1 else best[0]
    sentences = [_tell_alone(best, on, name) if alone else _name_leaders(best, accurate, on)]
    if (best[2], accurate[1]) != (least[0][2], least[1][1]):
        sentences.append("Rows that have no run of the same length and settings beside them are left out here.")
    if apart:
        is_are = "is" if len(apart) == 1 else "are"
        sentences.append(f"{join_words(apart)} {is_are} of another number of test examples and not compared.")
    same = [row[0] for row in held if row[1] == accurate[1] and row[0] != accurate[0]]
    if same:
        sentences.append(f"{join_words(same)} {'has' if len(same) == 1 else 'have'} the same error.")
    unclear = {"ECE": (best[0], list(near)), "error": (accurate[0], [label for label in near_error if label not in same])}
    sentences += _tell_unclear(unclear, seeds or {})
    return Verdict(f"{several}{where}, {runs}", tuple(sentences), "runs")


def _tell_alone(row: tuple[str, float, float], on: str, name: str) -> str:
    subject = "It" if name == "it" and not on else name
    return f"{on}{subject} has an error of {write_percent(row[1])} and a calibration error (ECE) of {write_percent(row[2])}."


def _name_leaders(best: tuple[str, float, float], accurate: tuple[str, float, float], on: str) -> str:
    if best[0] == accurate[0]:
        return (
            f"{on}{best[0]} has both the least calibration error (ECE {write_percent(best[2])}) and the least error "
            f"({write_percent(best[1])})."
        )
    return (
        f"{on}{best[0]} has the least calibration error (ECE {write_percent(best[2])}, error {write_percent(best[1])}); "
        f"{accurate[0]} errs least ({write_percent(accurate[1])}, ECE {write_percent(accurate[2])})."
    )


def _tell_unclear(unclear: Mapping[str, tuple[str, list[str]]], seeds: Mapping[str, int]) -> list[str]:
    """Say of which rows too few runs are known to tell them from the best; a metric has the best row and these."""
    told: dict[tuple[str, str], list[str]] = {}
    for what, (best, names) in unclear.items():
        if names:
            counts = [seeds.get(name, 1) for name in (best, *names)]
            few, many = min(counts), max(counts)
            number = str(many) if few == many else f"{few} to {many}"
            runs = "One run each is too little" if many == 1 else f"{number} seeds are too few"
            told.setdefault((runs, join_words(names)), []).append(what)
    return [f"{runs} to tell the {join_words(what)} of {names} from the least." for (runs, names), what in told.items()]


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
