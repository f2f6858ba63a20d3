"""One self-contained HTML page from records; what it computes from them is in its neighbours. Writing it is left to the caller.

Figures for papers are drawn elsewhere in this room.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from calibrant import __version__
from calibrant.core.effect import join_words
from calibrant.core.entry import Entry
from calibrant.core.summary import summarize_with_top
from calibrant.report.page_bins import REGION_EDGES, examine_stops, mean_confidences, regions_of, risk_curve, slider_stops
from calibrant.report.page_chance import labels_not_told
from calibrant.report.page_charts import CURVES, GRID_STOPS, runs_view
from calibrant.report.page_classes import class_names_of, class_view, confident_mistakes
from calibrant.report.page_content import Candidate, Examined, FinishedTable, InTable, Repair, calibrator_label
from calibrant.report.page_embed import embed_json, script_hash
from calibrant.report.page_runs import Group, column_keys, group_entries, info_heads, leader, run_rows, short_name, untested
from calibrant.report.page_tables import calibrator_rows, key_figures, metric_rows
from calibrant.report.page_verdict import Verdict, give_runs_verdict, give_verdict

_SCRIPTS = ("svg.js", "reliability.js", "shares.js", "classes.js", "marks.js", "lines.js", "panels.js", "runs.js", "main.js")


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
    groups = group_entries(entries, best=best, told=told)
    if verdict is None:
        verdict = verdict_of(examined, repaired=repaired, entries=entries, best=best, told=told)
    charts = runs_view(groups)
    data: dict[str, object] = {"runs": charts, "gridStops": GRID_STOPS, "predictions": None}
    view: dict[str, object] = {"title": title or _title(examined, groups), "verdict": verdict, "version": __version__}
    view["examined"] = view["repaired"] = None
    view["tables"], view["run_notes"], view["is_told_best"] = tables, notes, best is not None
    view["is_repeated"] = _is_repeated(groups, tables)
    if examined is not None:
        data["predictions"] = _predictions_data(examined, repaired, n_resamples=n_resamples, seed=seed)
        view |= _predictions_view(examined, repaired)
    return _fill(view | _runs_view(groups, charts), data)


def _runs_view(groups: Sequence[Group], charts: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """What the template writes of runs, and which of their charts there is anything to draw in."""
    view: dict[str, object] = {"has_runs": bool(groups), "places": list(dict.fromkeys(group.place for group in groups))}
    view["run_columns"], rows = run_rows(groups)
    view["run_rows"], view["run_heads"], view["untested"] = rows, info_heads(groups), join_words(untested(groups) or [""])
    view["run_parts"] = [(place, list(part)) for place, part in groupby(rows, key=lambda row: row["place"])]
    for key in ("points", "sweep", "gamma", "dots", "diagram"):
        view[f"has_{key}"] = any(chart[key] for chart in charts)
    curves = [chart["curves"] for chart in charts]
    view["curve_names"] = {key: name for key, name in CURVES.items() if any(isinstance(c, dict) and key in c for c in curves)}
    # One point has nobody to trade with.
    view["has_points"] = sum(bool(chart["points"]) for chart in charts) > 1
    # A single chart of dots leaves room for the other chart of gammas.
    view["gammas_beside"] = bool(view["has_gamma"]) and sum(bool(chart["dots"]) for chart in charts) == 1
    view["has_seeds"] = any(len(group.entries) > 1 for group in groups)
    view["has_common_seed"] = all(group.seed is not None for group in groups if len(group.entries) > 1)
    view["has_single"] = any(len(group.entries) == 1 for group in groups)
    return view


def _is_repeated(groups: Sequence[Group], tables: Sequence[FinishedTable]) -> bool:
    """Whether a finished table shows every metric of the table of runs, but for the Brier score."""
    shown = {short_name(key) for key in column_keys(groups) if key != "brier"}
    return any(shown <= {head.removesuffix(" (%)") for head in table.heads} for table in tables)


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
    summary, top = summarize_with_top(predictions, n_bins=examined.scores.n_bins)
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
    return {
        "name": name,
        "ece": list(ece),
        "nll": list(nll),
        "chosen": candidate.name == chosen,
        "idle": candidate.name == "none",
    }


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
        "calibrators": [] if repaired is None else calibrator_rows(repaired),
        "mistakes": confident_mistakes(examined.predictions, after),
    }


def _title(examined: Examined | None, groups: Sequence[Group]) -> str:
    if examined is not None:
        return Path(examined.scores.file).name if examined.scores.file else "Predictions"
    return ", ".join(dict.fromkeys(group.place for group in groups if group.place)) or "Runs compared"


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
    groups = group_entries(entries, best=best, told=told)
    found = [_place_verdict(groups, place, n_runs=len(entries)) for place in dict.fromkeys(group.place for group in groups)]
    # Of several places each has a paragraph, below a headline about all.
    return found[0] if len(found) == 1 else replace(found[0], sentences=tuple(" ".join(one.sentences) for one in found))


def _place_verdict(groups: Sequence[Group], place: str, *, n_runs: int) -> Verdict:
    here = [group for group in groups if group.place == place]
    calibrated, accurate = leader(here, "ece", "error"), leader(here, "error", "ece")
    leaders = {key: group for key, group in (("ece", calibrated), ("error", accurate)) if group is not None}
    near = labels_not_told(here, leaders)
    return give_runs_verdict(
        [(group.label, group.mean("error"), group.mean("ece")) for group in here],
        n_runs=n_runs,
        data=list(dict.fromkeys(group.data for group in groups)),
        n_methods=len({group.entries[0].method for group in here}),
        place=place,
        n_networks=len({group.place for group in groups if group.data == here[0].data}),
        leaders=None if calibrated is None or accurate is None else (calibrated.label, accurate.label),
        near=near.get("ece", ()),
        near_error=near.get("error", ()),
        apart=[group.label for group in here if group.size_note],
        seeds={group.label: len(group.entries) for group in here},
    )
