"""One self-contained HTML page: what was measured of predictions, what a repair did for them, and runs compared.

The charts of runs are the figures of this room. Writing the file is left to the caller.
Its scripts draw from flat lists of whole numbers, shares in ten-thousandths, so that a page of a thousand classes stays small.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from calibrant import __version__
from calibrant.calibrators import CALIBRATORS, AutoCalibrator, Repaired, TemperatureScaling, name_of
from calibrant.calibrators.auto import Ranked
from calibrant.core.binning import Summary, TopLabel, between_cuts, equal_width_edges, means_of_sums, norm_of_bins, summarize
from calibrant.core.records import Bins, Entry, Predictions, Promise, Scores, without_nan
from calibrant.metrics import METRICS
from calibrant.metrics.levels import compare_with_null, draw_calibrated, ece_of_levels, levels_of
from calibrant.metrics.measure import class_scores
from calibrant.metrics.paired import compare_runs, holm
from calibrant.metrics.verdict import (
    FEW,
    SIGNIFICANT,
    count_examples,
    direction,
    intervals_of,
    join_words,
    judge,
    table_rows,
    tell_effect,
    verdict,
    write_estimate,
    write_interval,
    write_p,
    write_percent,
    write_value,
)
from calibrant.report.figures import page_charts, panel_of_run, swatch
from calibrant.report.rows import Row, Section, Table, comparable, trained_alike

_SCRIPTS = ("svg.js", "reliability.js", "shares.js", "classes.js", "runs.js", "main.js")
# Where sliders stop; the number of bins asked for is added.
STOPS = (*range(2, 21), 25, 30, 40, 50, 75, 100)
# Regions in which the gap is told: of confidence fine near 1, where networks put most of their examples; of the probability of
# a positive class fine at both ends, as it may be rare.
REGION_EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
POSITIVE_EDGES = (0.0, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 1.0)
# A share of one as it is written into the page.
UNIT = 10_000


@dataclass(frozen=True)
class Examined:
    """Predictions and what `calibrant.measure` says of them."""

    predictions: Predictions = field(repr=False)
    scores: Scores


@dataclass(frozen=True)
class Repair:
    """A repair, and what a page says of it besides."""

    done: Repaired
    n_fit: int  # examples it was fitted on
    fit_file: str | None = None  # where they came from
    tried: Mapping[str, Scores | str] = field(default_factory=dict)  # calibrator → scores on the test data, or why it failed
    doubts: tuple[str, ...] = ()  # why the repair may not be trusted
    promises: tuple[Promise, ...] = ()  # what thresholds learned on the fit data guarantee without the repair

    @property
    def name(self) -> str:
        """Name of the calibrator that was applied; "none" if doing nothing was best."""
        return name_of(self.done.fitted)

    @property
    def ranking(self) -> list[tuple[Ranked, Scores | None]]:
        """The calibrators that were tried, best first, with their scores on the test data; none where one was given."""
        if not isinstance(self.done.calibrator, AutoCalibrator):
            return []
        found = [(entry, self.tried.get(entry.name)) for entry in self.done.calibrator.ranking_]
        return [(entry._replace(failure=out), None) if isinstance(out, str) else (entry, out) for entry, out in found]


class Verdict(NamedTuple):
    """What stands at the top of a page: a few words, paragraphs, and the tone that decides the colour.

    The tone is "over", "under", "both", "good" or "unsure", and "runs" for a comparison.
    """

    headline: str
    sentences: tuple[str, ...]
    tone: str


def render_page(
    examined: Examined | None = None,
    *,
    repaired: Repair | None = None,
    table: Table | None = None,
    above: Table | None = None,
    title: str | None = None,
    verdict: Verdict | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
) -> str:
    """Make the HTML page of one set of predictions, of runs, or of both.

    The page needs no network and no second file; names from the user's files are escaped, and only its own scripts may run.

    Args:
        examined: Predictions and their scores; None for a page of runs only.
        repaired: What a repair did for them.
        table: Runs to compare, as of `calibrant.grid.compare_table`.
        above: Another table, to show before the runs.
        title: Title of the page; made from the file or the data sets by default.
        verdict: What stands at the top, where it is known already; see `give_verdict` and `give_runs_verdict`.
        n_resamples: Resamples behind what a calibrated model would show for each number of bins; as in `calibrant.measure`.
        seed: Their seed; as in `calibrant.measure`.

    Returns:
        The page. Raises ``ValueError`` if there is nothing to show.

    Example:
        >>> from calibrant import Predictions, measure
        >>> predictions = Predictions(probs=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]] * 40, labels=[0, 1, 1] * 40)
        >>> page = render_page(Examined(predictions, measure(predictions)), title="Coins")
        >>> page.startswith("<!doctype html>"), "<title>Coins</title>" in page
        (True, True)
    """
    if examined is None and (repaired is not None or table is None):
        raise ValueError("render_page: `examined` or `table` must be given, got neither.")
    sections = table.sections if table else ()
    verdict = verdict or (give_verdict(examined.scores, repaired) if examined else give_runs_verdict(sections))
    names = [Path(examined.scores.file or "Predictions").name] if examined else [section.title for section in sections]
    view: dict[str, object] = {"verdict": verdict, "title": title or "; ".join(names), "version": __version__}
    view |= {"examined": examined, "repaired": repaired, "runs": None, "table": table, "above": above}
    n_bins = 15 if examined is None else examined.scores.n_bins
    stops = sorted({*STOPS, n_bins})
    data: dict[str, object] = {
        "runs": [],
        "predictions": None,
        "stops": stops,
        "stop": stops.index(n_bins),
    }
    done = repaired.done if repaired is not None and repaired.name != "none" else None
    view["after"] = after = None if done is None else Examined(done.predictions, done.after)
    if examined is not None:
        how = {"n_resamples": n_resamples, "seed": seed}
        data["predictions"] = _predictions_data(examined, after, repaired, stops=stops, **how)
        view["mistakes"] = confident_mistakes(examined.predictions, None if after is None else after.predictions)
    if sections:
        view["runs"], data["runs"] = _run_charts(sections, stops)
    return _fill(view, data)


def give_verdict(scores: Scores, repaired: Repair | None) -> Verdict:
    """Say what was found of predictions, and what a repair, if there was one, did for them."""
    key, null = scores.main_error
    few, ece, said = scores.n < FEW, scores[key], direction(scores)
    tones = {"over-confident": "over", "too often": "over", "under-confident": "under", "too rarely": "under"}
    tone = tones.get(said, "both" if " and " in said else "unsure" if few else "good")
    headline = {
        "both": f"Over-confident here, under-confident there: off by {100 * ece.value:.1f} points",
        "unsure": "Too few examples to see an error",
        "good": "Not distinguishable from calibrated",
    }.get(tone, f"{tone.capitalize()}-confident by {100 * abs(scores['signed_gap'].value):.1f} points")
    name = scores.positive and (scores.positive.name or "the positive class")
    if name and said in ("too often", "too rarely"):
        points = 100 * abs(scores["binary_gap"].value)
        headline = f"Predicts {name} {said}, by {points:.{1 if points >= 1 else 2}f} points"
    elif name and tone == "both":
        headline = f"Predicts {name} too often here, too rarely there: off by {100 * ece.value:.1f} points"
    n, seen = count_examples(scores.n), write_percent(null.p95)
    caution = {
        "good": f"A calibration error of up to {write_percent(ece.high)} cannot be excluded.",
        "unsure": f"With {n}, an error below {seen} could not have been seen. Measure more before relying on it.",
    }.get(tone, f"These are only {n}: the direction is clear, the size of the error is not." if few else "")
    repair = () if repaired is None else (_tell_repair(scores, repaired), *repaired.doubts)
    return Verdict(headline, tuple(filter(None, (verdict(scores), caution, *repair))), tone)


def _tell_repair(before: Scores, repaired: Repair) -> str:
    on = f"{count_examples(repaired.n_fit)}{f' of {repaired.fit_file}' if repaired.fit_file else ''}"
    if repaired.name == "none":
        return f"Of the repairs tried on {on}, none was clearly better than doing nothing. The probabilities stay as they are."
    fitted = repaired.done.fitted
    what = fitted.label[:1].upper() + fitted.label[1:]
    if isinstance(fitted, TemperatureScaling):
        what = f"Temperature {fitted.temperature_:.2f}"
    return f"{what}, fitted on {on}, {tell_effect(before, repaired.done.after, repaired.done.paired)}"


def give_runs_verdict(sections: Sequence[Section]) -> Verdict:
    """Say what comparing runs found: for each data set and network the rows of the lowest ECE and error, and who is close."""
    rows = [row for section in sections for row in section.rows]
    methods, runs = len({row.label for row in rows if row.runs}), sum(len(row.runs) for row in rows)
    headline = f"{methods} method{'s' * (methods > 1)} compared in {runs} run{'s' * (runs > 1)}"
    return Verdict(headline, tuple(map(_tell, sections)), "runs")


def _tell(section: Section) -> str:
    rows = [row for row in section.rows if row.runs and all(math.isfinite(row.mean(key)) for key in ("ece", "error"))]
    if not rows:
        return f"{section.title}: no run has both an error and a calibration error (ECE)."
    best, accurate = (_leader(rows, *keys) for keys in (("ece", "error"), ("error", "ece")))
    ece, error = (write_percent(row.mean(key)) for row, key in ((best, "ece"), (accurate, "error")))
    if len(rows) == 1:
        return f"{section.title}: {best.label} has an ECE of {ece} and an error of {error}."
    second = "" if best is accurate else f"{accurate.label} has "
    lower = any(row.mean(key) < leader.mean(key) for row in rows for leader, key in ((best, "ece"), (accurate, "error")))
    among = "of the rows that may be compared, " if lower else ""
    told = f"{section.title}: {among}{best.label} has the lowest ECE ({ece}), and {second}the lowest error ({error})."
    tests = {"ECE": _tests(best, rows, "ece"), "error": _tests(accurate, rows, "error")}
    close = {what: [label for label, p in of.items() if p is not None and p >= SIGNIFICANT] for what, of in tests.items()}
    said = [f"the {what} of {join_words(labels)}" for what, labels in close.items() if labels]
    told += f" Too close to call: {'; '.join(said)}." if said else ""
    return told + " Some differences were not tested." * any(None in of.values() for of in tests.values())


def _leader(rows: Sequence[Row], key: str, then: str) -> Row:
    """The row with the lowest mean of a metric among those marked as best, which have something to be compared with."""
    marked = [row for row in rows if row.cells[key].best]
    return min(marked or rows, key=lambda row: (row.mean(key), row.mean(then)))


def _tests(best: Row, rows: Sequence[Row], key: str) -> dict[str, float | None]:
    """P-value of each rival's difference to the best; single runs whose intervals do not meet need no test."""
    rivals = [row for row in rows if row is not best and comparable(best, row) and trained_alike(best, row)]
    rivals = [row for row in rivals if not _are_apart(best, row, key)]
    tests = holm([compare_runs(best.runs, row.runs, [key])[key].p_value for row in rivals])
    return {row.label: p for row, p in zip(rivals, tests, strict=True)}


def _are_apart(best: Row, row: Row, key: str) -> bool:
    return len(best.runs) == len(row.runs) == 1 and best.runs[0].scores[key].high < row.runs[0].scores[key].low


def _label(name: str) -> str:
    """How a calibrator is called in tables and charts."""
    return "doing nothing" if name == "none" else name


def _run_charts(sections: Sequence[Section], stops: Sequence[int]) -> tuple[dict[str, object], list[dict[str, object]]]:
    """The charts of every data set and network: what the template writes, and what the scripts draw diagrams from."""
    ours = [replace(section, rows=tuple(row for row in section.rows if row.runs)) for section in sections]
    legends = [
        [(row.label, swatch(row, f"key-{place}-{number}")) for number, row in enumerate(section.rows)]
        for place, section in enumerate(ours)
    ]
    diagrams: list[dict[str, object]] = [
        {"label": row.label, "place": place, "diagram": run_diagram(row.run(section.common_seed), stops)}
        for place, section in enumerate(ours)
        for row in section.rows
    ]
    view = {"places": [section.title for section in ours], "legends": legends, "charts": page_charts(ours)}
    return view | {"has_diagram": any(run["diagram"] for run in diagrams)}, diagrams


def _fill(view: dict[str, object], data: dict[str, object]) -> str:
    environment = Environment(
        loader=PackageLoader("calibrant.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    writers = (direction, judge, table_rows, write_estimate, write_interval, write_p, write_value)
    environment.globals |= {
        "METRICS": METRICS,
        "CALIBRATORS": CALIBRATORS,
        "name_of": _label,
        **{writer.__name__: writer for writer in writers},
    }
    style, *parts = (environment.loader.get_source(environment, name)[0] for name in ("style.css", *_SCRIPTS))  # type: ignore[union-attr]
    script = '"use strict";\n(() => {\n' + "\n".join(parts) + "\n})();\n"
    return environment.get_template("page.html").render(
        style=style,
        script=script,
        policy=f"'{script_hash(script)}'",
        style_policy=f"'{script_hash(style)}'",
        # Numbers that are not finite become null.
        data=without_nan(data),
        **view,
    )


def script_hash(script: str) -> str:
    """Return what a content security policy calls a script: only the scripts it names may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _predictions_data(
    examined: Examined, after: Examined | None, repaired: Repair | None, *, stops: Sequence[int], n_resamples: int, seed: int
) -> dict[str, object]:
    """What the scripts draw from."""
    predictions = examined.predictions
    return {
        "classBins": examined.scores.n_bins,
        "regions": REGION_EDGES if examined.scores.positive is None else POSITIVE_EDGES,
        "names": class_names_of(predictions),
        "named": predictions.class_names is not None,
        "weighted": predictions.weights is not None,
        "sides": [_side(side, stops=stops, n_resamples=n_resamples, seed=seed) for side in (examined, after) if side],
        "calibrators": [
            {
                "name": _label(entry.name),
                "ece": scores[examined.scores.main_error[0]],
                "nll": scores["nll"],
                "chosen": entry.note == "chosen",
                "idle": entry.name == "none",
            }
            for entry, scores in (repaired.ranking if repaired else ())
            if scores
        ],
    }


def _side(examined: Examined, *, stops: Sequence[int], n_resamples: int, seed: int) -> dict[str, object]:
    scores = examined.scores
    summary = summarize(examined.predictions, n_bins=scores.n_bins, keep=None)
    scale = summary.effective_n / summary.weight
    # Mean confidence of the right and of the wrong predictions, or probability of the positive class of examples that are
    # and are not of it; nan where there are none.
    shown = (summary.positive or summary).examples
    parts = (shown.mass * shown.correct, shown.mass * (1 - shown.correct))
    right, wrong = (float(part @ shown.confidence / part.sum()) for part in parts)
    return {
        "error": scores["error"].value,
        "aurc": scores["aurc"].value,
        "sureRight": right,
        "sureWrong": wrong,
        "bins": examine_stops(summary.positive or summary, stops=stops, n_resamples=n_resamples, seed=seed),
        "regions": bin_rows(regions_of(shown, POSITIVE_EDGES if summary.positive else REGION_EDGES), scale=scale),
        "risk": risk_curve(summary.examples),
        "classes": class_view(summary),
    }


def bin_rows(bins: Bins, intervals: Tensor | None = None, *, scale: float = 1.0) -> list[float]:
    """Six numbers for every bin that holds examples, one after the other.

    These are its index, examples, confidence, accuracy, and the ends of its 95 % interval; all but the first two in
    ten-thousandths. ``scale`` is below one for examples of unequal weight: independent examples to a unit of ``bins.count``.
    """
    ends = intervals_of(bins, scale=scale) if intervals is None else intervals
    shares = UNIT * torch.column_stack([bins.confidence, bins.accuracy, ends])
    rows: list[float] = []
    for index in (bins.count > 0).nonzero().flatten().tolist():
        rows += [index, round(float(bins.count[index]), 2), *map(round, shares[index].tolist())]
    return rows


def examine_stops(summary: Summary, *, stops: Sequence[int], n_resamples: int, seed: int) -> list[dict[str, object]]:
    """What ``calibrant measure --n-bins M`` says of bins, for every M in ``stops``, and the bins themselves."""
    found = []
    for n_bins in stops:
        levels = levels_of(summary.cells, size=summary.effective_n, n_bins=n_bins)
        drawn = ece_of_levels(levels, *draw_calibrated(levels, n_resamples=n_resamples, seed=seed))
        bins = summary.bins_of(n_bins)
        ece, mce = float(norm_of_bins(bins)), float(bins.gap.abs().amax())
        null, rows = compare_with_null(ece, drawn), bin_rows(bins, scale=summary.effective_n / summary.weight)
        found.append({"ece": ece, "mce": mce, "null": null.mean, "p95": null.p95, "rows": rows})
    return found


def regions_of(top: TopLabel, between: Sequence[float]) -> Bins:
    """The wide regions between some values, right-closed as bins are."""
    edges = torch.tensor(between, dtype=torch.float64)
    index = torch.bucketize(top.confidence, edges[1:-1].to(top.dtype).double())
    parts = (top.mass, top.mass * top.confidence, top.mass * top.correct)
    return means_of_sums(edges, *(torch.bincount(index, weights=part, minlength=len(edges) - 1) for part in parts))


def risk_curve(top: TopLabel) -> list[int]:
    """Error among the most confident examples against the share of examples kept, as flat pairs in ten-thousandths."""
    _, sums = top.rising
    points = min(200, top.size)
    coverage = torch.arange(points + 1, dtype=torch.float64) / points
    cuts = ((1 - coverage) * float(sums[0, -1])).flip(0)
    kept, _, right = between_cuts(sums[:3], cuts).flip(1).cumsum(1)
    risk = (1 - right / kept).clamp(0, 1)
    return [round(UNIT * value) for pair in zip(coverage[1:].tolist(), risk.tolist(), strict=True) for value in pair]


def class_names_of(predictions: Predictions) -> list[str]:
    """Names of the classes, or their numbers."""
    return [str(name) for name in predictions.class_names or range(predictions.num_classes)]


def class_view(summary: Summary) -> list[dict[str, object]]:
    """What ``calibrant measure --by-class`` says of classes, worst calibrated first, and their bins."""
    edges, scale = equal_width_edges(summary.n_bins), summary.effective_n / summary.weight
    return [
        {
            "index": entry.index,
            "count": entry.count,
            "ece": round(entry.ece, 7),
            "gap": round(entry.signed_gap, 7),
            "error": round(entry.error, 6),
            "rows": bin_rows(means_of_sums(edges, *summary.by_class[:, entry.index]), scale=scale),
        }
        for entry in class_scores(summary)
    ]


def confident_mistakes(predictions: Predictions, after: Predictions | None = None) -> list[dict[str, object]]:
    """The ten wrong predictions that were most sure of themselves, most confident first.

    ``before`` and ``after`` a repair stands the confidence, or of two classes the probability of the second.
    """
    wrong = (~predictions.correct).nonzero().squeeze(1)
    order = torch.argsort(predictions.confidence[wrong], descending=True, stable=True)[:10]
    predicted, names = predictions.predicted, class_names_of(predictions)
    before, then = ((side.probs[:, 1] if len(names) == 2 else side.confidence) for side in (predictions, after or predictions))
    return [
        {
            "row": row,
            "label": names[int(predictions.labels[row])],
            "predicted": names[int(predicted[row])],
            "before": float(before[row]),
            "after": float(then[row]),
        }
        for row in wrong[order].tolist()
    ]


def run_diagram(entry: Entry, stops: Sequence[int]) -> dict[str, object] | None:
    """Error of one run, and for every stop the ECE and the rows of `bin_rows`, None where unknown; None if all are."""
    panels = [panel_of_run(entry, n_bins) for n_bins in stops]
    errors = [panel.error for panel in panels if panel]
    if not errors:
        return None
    shown = [panel and {"ece": panel.ece, "rows": bin_rows(panel.bins, panel.ends)} for panel in panels]
    return {"error": errors[0], "stops": shown}
