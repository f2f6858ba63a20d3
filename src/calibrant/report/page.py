"""One self-contained HTML page from records; what its scripts draw from is in `page_data`, what it says of runs in `page_runs`.

Figures for papers are drawn elsewhere in this room. Writing the page is left to the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from calibrant import __version__
from calibrant.core.entry import Entry
from calibrant.core.summary import summarize
from calibrant.metrics import METRICS
from calibrant.metrics.verdict import direction, judge, table_rows, write_interval, write_p, write_value
from calibrant.report.page_content import Candidate, Examined, FinishedTable, InTable, Repair, calibrator_label
from calibrant.report.page_data import (
    GRID_STOPS,
    REGION_EDGES,
    class_names_of,
    class_view,
    confident_mistakes,
    embed_json,
    examine_stops,
    mean_confidences,
    regions_of,
    risk_curve,
    run_diagram,
    script_hash,
    slider_stops,
)
from calibrant.report.page_runs import RunRow, group_entries, place_of, table_view
from calibrant.report.rows import group_rows
from calibrant.report.verdict import Verdict, give_runs_verdict, give_verdict

_SCRIPTS = ("svg.js", "reliability.js", "shares.js", "classes.js", "runs.js", "main.js")


def render_page(
    examined: Examined | None = None,
    *,
    repaired: Repair | None = None,
    entries: Sequence[Entry] = (),
    best: Sequence[Collection[str]] | None = None,
    told: Sequence[InTable] | None = None,
    tables: Sequence[FinishedTable] = (),
    notes: Sequence[str] = (),
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
        entries: Runs to compare, of any data sets; those that differ only in their seed make one row.
        best: For each entry, the metrics in which its row is the best of those that it may be compared with; by default the
            least value of a data set and network is.
        told: For each entry, what a table says of its row; verdict and table of runs then say the same.
        tables: Finished tables to show before the runs; where one has all that the table of runs has, that can be opened.
        notes: Sentences below the table of runs: how they were trained, tested and marked, and what is doubtful.
        title: Title of the page; made from the file or the data sets by default.
        verdict: What stands at the top, where `verdict_of` was asked for it already.
        n_resamples: Resamples behind what a calibrated model would show for each number of bins; as in `calibrant.measure`.
        seed: Their seed; as in `calibrant.measure`.

    Returns:
        The page. Raises ``ValueError`` if there is nothing to show, or ``best`` or ``told`` is not about these entries.

    Example:
        >>> from calibrant import Predictions, measure
        >>> predictions = Predictions(probs=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]] * 40, labels=[0, 1, 1] * 40)
        >>> page = render_page(Examined(predictions, measure(predictions)), title="Coins")
        >>> page.startswith("<!doctype html>"), "<title>Coins</title>" in page
        (True, True)
    """
    if examined is None and not entries:
        raise ValueError("render_page: `examined` or `entries` must be given, got neither.")
    if repaired is not None and examined is None:
        raise ValueError("render_page: `examined` must be given with `repaired`, got only the latter.")
    for name, given in (("best", best), ("told", told)):
        if given is not None and len(given) != len(entries):
            raise ValueError(f"render_page: `{name}` must have one part an entry, got {len(given)} for {len(entries)}.")
    if verdict is None:
        verdict = verdict_of(examined, repaired=repaired, entries=entries, best=best, told=told)
    rows = group_entries(entries, best=best, told=told)
    view: dict[str, object] = {"verdict": verdict, "version": __version__, "examined": None, "repaired": None, "runs": None}
    view |= {"title": title or _title(examined, rows), "tables": tables}
    data: dict[str, object] = {"runs": [], "predictions": None}
    if examined is not None:
        data["predictions"] = _predictions_data(examined, repaired, n_resamples=n_resamples, seed=seed)
        view |= _predictions_view(examined, repaired)
    if entries:
        places, data["runs"] = _places(entries)
        data["gridStops"] = GRID_STOPS
        view["runs"] = places | table_view(rows, tables) | {"notes": notes, "is_told_best": best is not None}
    return _fill(view, data)


def _places(entries: Sequence[Entry]) -> tuple[dict[str, object], list[dict[str, object]]]:
    """The charts of every data set and network: what the template writes, and what the scripts draw diagrams from."""
    # matplotlib takes a while to load.
    from calibrant.report.figures import page_charts, swatch

    groups = group_rows(entries)
    legends = [
        [(row.label, swatch(row, f"key-{place}-{number}")) for number, row in enumerate(group.rows)]
        for place, group in enumerate(groups)
    ]
    diagrams = [
        {"label": row.label, "place": place, "diagram": run_diagram(row.run(group.common_seed))}
        for place, group in enumerate(groups)
        for row in group.rows
    ]
    view = {
        "places": [place_of(group) for group in groups],
        "legends": legends,
        "charts": page_charts(groups),
        "has_diagram": any(run["diagram"] for run in diagrams),
        "has_common_seed": all(
            group.common_seed is not None for group in groups if any(len(row.runs) > 1 for row in group.rows)
        ),
    }
    return view, diagrams


def _fill(view: dict[str, object], data: dict[str, object]) -> str:
    environment = Environment(
        loader=PackageLoader("calibrant.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, theme, *parts = (environment.loader.get_source(environment, n)[0] for n in ("style.css", "theme.js", *_SCRIPTS))  # type: ignore[union-attr]
    script = '"use strict";\n(() => {\n' + "\n".join(parts) + "\n})();\n"
    return environment.get_template("page.html").render(
        style=style,
        theme=theme,
        script=script,
        policy=f"'{script_hash(theme)}' '{script_hash(script)}'",
        style_policy=f"'{script_hash(style)}'",
        data=embed_json(data),
        **view,
    )


def _predictions_data(examined: Examined, repaired: Repair | None, *, n_resamples: int, seed: int) -> dict[str, object]:
    """What the scripts draw from."""
    n_bins = examined.scores.n_bins
    stops = slider_stops(n_bins)
    sides = [examined] if repaired is None or repaired.name == "none" else [examined, repaired.after]
    return {
        "stops": stops,
        "stop": stops.index(n_bins),
        "classBins": n_bins,
        "regions": REGION_EDGES,
        "names": class_names_of(examined.predictions),
        "named": examined.predictions.class_names is not None,
        "weighted": examined.predictions.weights is not None,
        "sides": [_side(side, stops=stops, n_resamples=n_resamples, seed=seed) for side in sides],
        "calibrators": []
        if repaired is None
        else [_dot(entry, repaired.name) for entry in repaired.candidates if entry.scores],
    }


def _side(examined: Examined, *, stops: list[int], n_resamples: int, seed: int) -> dict[str, object]:
    predictions = examined.predictions
    summary = summarize(predictions, n_bins=examined.scores.n_bins, keep=None)
    top = summary.examples
    right, wrong = mean_confidences(top)
    scores = examined.scores
    return {
        "n": summary.n,
        "error": scores["error"].value,
        "aurc": scores["aurc"].value,
        "confidence": 1 - scores["error"].value + scores["signed_gap"].value,
        "sureRight": right,
        "sureWrong": wrong,
        "bins": examine_stops(summary, top, stops=stops, n_resamples=n_resamples, seed=seed),
        "regions": regions_of(top, scale=summary.effective_n / summary.weight),
        "risk": risk_curve(top),
        "classes": class_view(summary, predictions),
    }


def _dot(candidate: Candidate, chosen: str) -> dict[str, object]:
    assert candidate.scores is not None
    ece, nll = candidate.scores["ece"], candidate.scores["nll"]
    name = calibrator_label(candidate.name)
    idle = candidate.name == "none"
    return {"name": name, "ece": list(ece), "nll": list(nll), "chosen": candidate.name == chosen, "idle": idle}


def _predictions_view(examined: Examined, repaired: Repair | None) -> dict[str, object]:
    """What the template writes."""
    after = None if repaired is None or repaired.name == "none" else repaired.after.predictions
    return {
        "examined": examined,
        "repaired": repaired,
        "has_after": after is not None,
        "repair_label": "" if repaired is None else calibrator_label(repaired.name),
        "figures": key_figures(examined, repaired),
        "metrics": metric_rows(examined, None if after is None else repaired),
        "calibrators": [] if repaired is None else [_calibrator_row(entry, repaired.name) for entry in repaired.candidates],
        "mistakes": confident_mistakes(examined.predictions, after),
    }


def metric_rows(examined: Examined, repaired: Repair | None) -> list[dict[str, object]]:
    """Every metric as ``calibrant measure`` writes it, before and after, with the paired test of the difference."""
    rows: list[dict[str, object]] = []
    for key, metric, begins in table_rows(examined.scores):
        signed = metric.better is None
        row: dict[str, object] = {"key": key, "name": metric.label, "meaning": metric.meaning, "starts_group": begins}
        sides = [("before", examined.scores[key])]
        if repaired is not None:
            test = repaired.paired[key]
            sides.append(("after", repaired.after.scores[key]))
            row["change"] = write_value(test.difference, metric.unit, signed=True)
            row["change_interval"] = write_interval(test, metric.unit, signed=True)
            row |= {"p_value": write_p(test.p_value), "judgement": judge(key, test)}
        for side, estimate in sides:
            row[side] = write_value(estimate.value, metric.unit, signed=signed)
            row[f"{side}_interval"] = write_interval(estimate, metric.unit, signed=signed)
        rows.append(row)
    return rows


def _calibrator_row(candidate: Candidate, chosen: str) -> dict[str, object]:
    """How a calibrator did in the cross-validation and on the test data, as text."""
    row: dict[str, object] = {"name": calibrator_label(candidate.name), "held_out": write_value(candidate.held_out, "nats")}
    row |= {"chosen": candidate.name == chosen, "failure": candidate.failure, "kept": candidate.preserves_accuracy}
    gain = candidate.gain if candidate.name != "none" else None
    row["gain"] = "" if gain is None else write_value(gain.value, "nats", signed=True)
    row["gain_interval"] = "" if gain is None else write_interval(gain, "nats", signed=True)
    for key in ("error", "nll", "ece"):
        unit, scores = METRICS[key].unit, candidate.scores
        row[key] = "" if scores is None else write_value(scores[key].value, unit)
        row[f"{key}_interval"] = "" if scores is None else write_interval(scores[key], unit)
    return row


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
        unit, signed = METRICS[key].unit, key == "signed_gap"
        later = "" if after is None else write_value(after[key].value, unit, signed=signed)
        value = write_value(scores[key].value, unit, signed=signed)
        figures.append({"key": key, "name": names[key], "value": value, "after": "" if later == value else later, "note": note})
    return figures


def _title(examined: Examined | None, rows: Sequence[RunRow]) -> str:
    if examined is not None:
        return Path(examined.scores.file).name if examined.scores.file else "Predictions"
    return ", ".join(dict.fromkeys(row.place for row in rows if row.place)) or "Runs compared"


def verdict_of(
    examined: Examined | None = None,
    *,
    repaired: Repair | None = None,
    entries: Sequence[Entry] = (),
    best: Sequence[Collection[str]] | None = None,
    told: Sequence[InTable] | None = None,
) -> Verdict:
    """Return what stands at the top of the page of these records; see `render_page`."""
    if examined is not None:
        return give_verdict(examined, repaired)
    return give_runs_verdict(group_entries(entries, best=best, told=told), n_runs=len(entries))
