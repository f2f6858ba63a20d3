"""``calibrant report``: files and runs in, one HTML file out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibrant.calibrators import CALIBRATORS, AutoCalibrator, CalibrationWarning, Repaired, name_of
from calibrant.cli.measure import Request, parts_table, predictions_in
from calibrant.cli.repair import fit_and_measure, load_pair
from calibrant.cli.terminal import Terminal, check_destination, progress_bar, show_heading, show_prose
from calibrant.core.checks import FitError
from calibrant.core.records import Entry, Estimate, Predictions
from calibrant.decisions import promise_table
from calibrant.grid.collect import catalogue_order, check_same_labels, load_entries, once
from calibrant.grid.tables import compare_table
from calibrant.io.files import atomic_writer
from calibrant.metrics.measure import measure
from calibrant.metrics.verdict import worst_slice
from calibrant.report.page import Candidate, Examined, Repair, render_page, verdict_of
from calibrant.report.rows import columns_of


def write_report(
    file: Path | None, *, out: Path, fit: Path | None, runs: Sequence[Path] | None, method: str, title: str | None, **how: Any
) -> None:
    """Measure ``file``, repair it if there is something to fit on, read the runs, and write the page; ``how`` as in `Request`.

    The folder of a run may stand for its test predictions; the page is then about the run too.
    """
    folders = [*(runs or ())]
    if file is not None and (inside := predictions_in(file)) != file:
        folders, file = [file, *folders], inside
    elif file is not None and file.is_dir():
        raise ValueError(
            f"report: the first argument must be a file or a finished run, got {file}. For its runs: `--run {file}`."
        )
    check_destination(out, (".html", ".htm"))
    CALIBRATORS[method]  # a wrong name is told before anything is read
    if file is None and not folders:
        raise ValueError("report: a file of predictions or `--run FOLDER` must be given, got neither.")
    if file is None and fit is not None:
        raise ValueError("report: `--fit` must come with a file of test predictions, got none. Name it before the options.")
    entries = _load_runs(folders)
    request = Request(**how)
    examined, repaired = None, None
    if file is not None and fit is not None:
        examined, repaired = _repair(fit, file, method, request)
    elif file is not None:
        predictions = request.load(file)
        with progress_bar(f"measuring {file.name}", None):
            examined = Examined(predictions, request.measure(predictions, file=file))
    with progress_bar("drawing the page", None):
        table = compare_table(entries, metrics=columns_of(entries), calibrated=True) if entries else None
        verdict = verdict_of(examined, repaired=repaired, table=table)
        how = {"n_resamples": request.resamples, "seed": request.seed}
        page = render_page(examined, repaired=repaired, table=table, title=title, verdict=verdict, **how)
    with atomic_writer(out) as handle:
        # A name read from a file may hold half a surrogate pair, which UTF-8 has no bytes for.
        handle.write(page.encode(errors="replace"))
    console = Terminal()
    show_prose(console, f"{verdict.headline}.", style="bold")
    for sentence in verdict.sentences:
        show_prose(console, sentence)
    if examined is not None and examined.scores.slices:
        show_heading(console, "Groups", worst_slice(examined.scores))
        console.print(parts_table("Group", examined.scores.slices, width=console.width))
    console.print(f"The report is in {out} ({out.stat().st_size / 1e6:.2f} MB).", soft_wrap=True)


def _load_runs(folders: Sequence[Path]) -> list[Entry]:
    # As in a comparison: folders as they are named, the runs of each as methods are listed.
    found = [entry for folder in folders for entry in sorted(load_entries(folder), key=catalogue_order)]
    entries = once(found)
    check_same_labels(entries, where="report: `--run`")
    return entries


def _repair(fit: Path, file: Path, method: str, request: Request) -> tuple[Examined, Repair]:
    """Fit ``method`` and measure what it does to ``file``; with "auto", what every other method would do too."""
    if fit.exists() and fit.resolve() == file.resolve():
        raise ValueError(
            f"{fit}: the file to fit on must not be the test file. Measured on the data it was fitted on, any repair looks "
            "better than it is."
        )
    fit_data, given = load_pair(fit, file, request)
    with warnings.catch_warnings(record=True, action="always", category=CalibrationWarning) as caught:
        done = fit_and_measure(method, fit_data, given, request)
    # The page need not name the function that warned.
    doubts = [str(w.message).partition(": ")[2] for w in caught if issubclass(w.category, CalibrationWarning)]
    auto = done.calibrator if isinstance(done.calibrator, AutoCalibrator) else None
    return Examined(given, replace(done.before, file=str(file))), Repair(
        name=name_of(done.fitted),
        label=done.fitted.label,
        after=Examined(done.predictions, done.after),
        paired=done.paired,
        n_fit=len(fit_data),
        fit_file=fit.name,
        temperature=float(getattr(done.fitted, "temperature_", 1.0)) if done.fitted.learned == ("temperature",) else None,
        advice="" if auto is None else auto.advice_,
        candidates=() if auto is None else _try_all(auto, fit_data, given, done, request),
        doubts=tuple(doubt[:1].upper() + doubt[1:] for doubt in doubts),
        # Nothing can be guaranteed of examples that do not count alike.
        promises=promise_table(fit_data, given) if fit_data.weights is None else (),
    )


def _try_all(
    auto: AutoCalibrator, fit_data: Predictions, given: Predictions, done: Repaired, request: Request
) -> tuple[Candidate, ...]:
    """Fit every method on all fit data and measure what it does to the test data."""
    known = {"none": done.before, auto.best_name_: done.after}
    found = []
    # The chosen one has warned already; what the others would warn of is of no use.
    quiet = warnings.catch_warnings(action="ignore", category=CalibrationWarning)
    with quiet, progress_bar("measuring every calibrator", len(auto.ranking_)) as advance:
        for entry in auto.ranking_:
            scores, failure, calibrator = known.get(entry.name), entry.failure, auto.candidates_.get(entry.name)
            if scores is None and calibrator is not None:
                try:
                    scores = measure(calibrator.fit(fit_data).apply(given), **request.bootstrap)
                except FitError as error:
                    failure = str(error)
            change = None if failure else Estimate(-entry.gain, -entry.gain_high, -entry.gain_low)
            keeps = entry.name == "none" or (calibrator is not None and calibrator.preserves_accuracy)
            found.append(Candidate(entry.name, entry.score, change, scores, keeps, failure))
            advance(1)
    return tuple(found)
