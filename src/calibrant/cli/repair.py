"""``calibrant repair``, ``apply``, ``decide`` and ``report``: fit on one file, and repair, decide or report on another."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from calibrant.calibrators import (
    CALIBRATORS,
    AutoCalibrator,
    CalibrationWarning,
    Calibrator,
    Identity,
    Repaired,
)
from calibrant.calibrators.auto import measure_repair
from calibrant.calibrators.base import check_same_classes
from calibrant.cli.measure import Request, predictions_in, say_json, show_parts, show_side_by_side
from calibrant.cli.terminal import Row, Terminal, check_destination, fit_table, progress_bar, say, show_heading, show_prose
from calibrant.core.checks import FitError
from calibrant.core.records import Predictions, Scores, refuse_test_split
from calibrant.decisions import promise_table
from calibrant.grid.collect import catalogue_order, check_same_labels, load_entries, without_repeats
from calibrant.grid.tables import compare_table
from calibrant.io import rewrite_predictions, save_predictions
from calibrant.io.files import write_file
from calibrant.io.predictions import FORMATS
from calibrant.metrics import METRICS
from calibrant.metrics.measure import measure
from calibrant.metrics.verdict import join_words, tell_effect, write_estimate, write_value
from calibrant.report.page import Examined, Repair, give_runs_verdict, give_verdict, render_page
from calibrant.report.rows import columns_of

# Between two lines about progress where standard error is no terminal.
_SILENT_SECONDS = 10.0


def repair_file(
    fit: Path, file: Path, *, out: Path, method: str, calibrator: Path | None, floor: float | None, as_json: bool, **how: Any
) -> None:
    """Fit on ``fit``, repair ``file``, write the repaired predictions and print what changed; ``how`` as in `Request`.

    With ``as_json`` one object is printed: ``method``, ``chosen``, ``learned`` (without what is large), ``before`` and
    ``after`` as in ``calibrant measure --json``, ``paired`` (after minus before) and, for several methods, ``ranking``.
    """
    file = predictions_in(file)
    check_destination(out, FORMATS)
    if calibrator is not None:
        check_destination(calibrator, (".json", ".onnx"))
        if calibrator.suffix.lower() == ".onnx" and find_spec("onnxscript") is None:
            raise ImportError(f"{calibrator}: an ONNX model needs onnxscript. Run `pip install 'calibrant[onnx]'`.")
    if out.resolve() in (fit.resolve(), file.resolve()):
        raise ValueError(f"{out}: the result must not replace the predictions it is made from. Give it another name.")
    request = Request(**how)
    fit_data, given = load_pair(fit, file, request)
    done = fit_and_measure(method, fit_data, given, request, floor=floor)
    done = replace(done, before=replace(done.before, file=str(file)), after=replace(done.after, file=str(out)))
    save_predictions(done.predictions, out, like=file, **request.columns)
    if calibrator is not None:
        save_calibrator(done.calibrator, calibrator)
    if as_json:
        say_json(_to_dict(done, method))
    else:
        _show(done, f"fitted on {len(fit_data):,} examples of {fit.name}, applied to {len(given):,} of {file.name}")


def save_calibrator(calibrator: Calibrator, path: Path) -> None:
    """Write a fitted calibrator as JSON, or as an ONNX model from logits ``[N, C]`` to log-probabilities."""
    if path.suffix.lower() == ".json":
        calibrator.save(path)
        return
    layer, example = calibrator.as_layer().eval(), torch.zeros(2, calibrator.num_classes_)
    given, found, shapes = ["logits"], ["log_probs"], ({0: torch.export.Dim("batch")},)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells everyone that torchvision is not installed
    with warnings.catch_warnings(action="ignore"):
        program = torch.onnx.export(
            layer, (example,), input_names=given, output_names=found, dynamo=True, dynamic_shapes=shapes, verbose=False
        )
    assert program is not None
    write_file(path, program.model_proto.SerializeToString())


def apply_calibrator(calibrator: Path, file: Path, *, out: Path, **columns: str | None) -> None:
    """Write to ``out`` what a saved calibrator makes of the predictions in ``file``; ``columns`` as `rewrite_predictions`."""
    check_destination(out, FORMATS)
    rewrite_predictions(predictions_in(file), out, Calibrator.load(calibrator).apply, **columns)
    say(f"The calibrated predictions are in {out}.")


def load_pair(fit: Path, file: Path, request: Request) -> tuple[Predictions, Predictions]:
    """Read predictions to fit on and to repair; raise with one sentence if they do not go together."""
    fit_data, given = request.load(fit), request.load(file)
    refuse_test_split(fit_data, where=str(fit))
    check_same_classes(fit_data, given, what=f"{fit}:", of=str(file))
    return fit_data, given


def fit_and_measure(
    method: str, fit_data: Predictions, given: Predictions, request: Request, *, floor: float | None = None
) -> Repaired:
    """Fit ``method``, apply it, and measure before and after, with progress on standard error."""
    calibrator, terminal = CALIBRATORS[method](), Terminal(stderr=True)
    start = told = time.monotonic()

    def tell(name: str, part: int, parts: int) -> None:
        nonlocal told
        now, tried = time.monotonic(), [*calibrator.candidates_]
        done = part - 1 + tried.index(name) / len(tried)
        left = f", at most about {(now - start) * (parts - done) / done:.0f} s left" if done else ""
        text = f"trying {name}, part {part} of {parts}{left}"
        status.update(text)
        if not terminal.is_terminal and now - told > _SILENT_SECONDS:
            say(text, error=True)
            told = now

    with terminal.status("fitting") as status:
        if isinstance(calibrator, AutoCalibrator):
            calibrator.on_progress(tell)
        calibrator.fit(fit_data, floor=floor)
        status.update("measuring before and after")
        return measure_repair(calibrator, given, slice_by=request.slice_by, **request.bootstrap)


def _show(done: Repaired, data: str) -> None:
    console = Terminal()
    show_heading(console, "Repair", data)
    show_prose(console, done.advice, style="bold")
    if isinstance(done.calibrator, AutoCalibrator):
        console.print()
        console.print(ranking_table(done.calibrator, width=console.width))
        for why in dict.fromkeys(entry.failure for entry in done.calibrator.ranking_ if entry.failure):
            names = [entry.name for entry in done.calibrator.ranking_ if entry.failure == why]
            show_prose(console, f"Not used: {join_words(names)}: {why}", style="dim")
    if isinstance(done.fitted, Identity):
        how = "as they were"
        show_heading(console, "Unchanged", "")
        show_side_by_side(console, {"before": done.before}, {})
    else:
        how = f"repaired by {done.fitted.label}"
        show_heading(console, "Before and after", "best values in bold")
        show_side_by_side(console, {"before": done.before, "after": done.after}, {"after": done.paired})
        console.print()
        show_prose(console, f"The repair {tell_effect(done.before, done.after, done.paired)}", style="bold")
    floor = f", with probabilities of at least {done.calibrator.floor_:.3g}" if done.calibrator.floor_ else ""
    console.print(f"\n{done.after.file} holds the predictions {how}{floor}.\n", soft_wrap=True)


def ranking_table(auto: AutoCalibrator, *, width: int) -> Table:
    """Methods by their held-out score, best first, how each changes that of doing nothing, and why it was chosen or not."""
    rows: list[Row] = []
    for entry in auto.ranking_:
        name = Identity.label if entry.name == "none" else entry.name
        style = "dim" if entry.failure else "bold green" if entry.note == "chosen" else ""
        told = ("", "") if entry.name == "none" or entry.failure else write_estimate(entry.change, METRICS["nll"], signed=True)
        cells = (name, write_value(entry.score, ""), *told, entry.note)
        rows.append([Text(cell, style=style) for cell in cells])
    headers = ("Method", f"Held-out {auto.scoring.upper()}", "Change", "95% interval", "")
    return fit_table(headers, rows, width=width, drop=(3, 4))


def _to_dict(done: Repaired, method: str) -> dict[str, object]:
    data: dict[str, object] = {"method": method, "out": done.after.file, "chosen": method}
    if isinstance(done.calibrator, AutoCalibrator):
        ranking = [entry._asdict() for entry in done.calibrator.ranking_]
        data |= {"ranking": ranking, "advice": done.calibrator.advice_, "chosen": done.calibrator.best_name_}
    learned = {name: value.tolist() for name, value in done.fitted.learned_values().items() if value.numel() <= 100}
    paired = {key: test._asdict() for key, test in done.paired.items()}
    sides = {"before": done.before.to_dict(), "after": done.after.to_dict(), "paired": paired}
    return data | {"learned": learned, "preserves_accuracy": done.fitted.preserves_accuracy, **sides}


def decide(fit: Path, file: Path, *, max_errors: Sequence[float] | None, delta: float, as_json: bool, **how: Any) -> None:
    """Learn thresholds on ``fit``, try them on ``file`` and print both; ``max_errors`` as in `promise_table`."""
    given, tried = load_pair(fit, predictions_in(file), Request(**how))
    promises = promise_table(given, tried, max_errors=max_errors, delta=delta)
    if as_json:
        say_json([asdict(promise) for promise in promises])
        return
    console = Terminal()
    show_heading(console, "Answer only when sure", f"learned on {len(given):,} examples of {fit.name}, tried on {file.name}")
    rows: list[Row] = []
    for promise in promises:
        found = ["cannot be guaranteed", "", ""]
        if promise.threshold is not None:
            shares = [write_value(share, "%") for share in (promise.coverage, promise.error)]
            found = [f"{100 * promise.threshold:.6g}%", *shares]
        rows.append([f"{100 * promise.max_error:.4g}%", *found])
    console.print(fit_table(("Error at most", "If surer than", "Answered", "Error here"), rows, width=console.width))
    console.print()
    for promise in promises:
        if promise.reason:
            show_prose(console, f"Nothing guarantees {100 * promise.max_error:.4g}%: {promise.reason}")
    if any(promise.threshold is not None for promise in promises):
        sure = f"With {100 * (1 - delta):g}% probability for each row, the error among its answers is at most the first column"
        show_prose(console, f"{sure}, as long as examples are drawn like those of {fit.name}.")


def write_report(
    file: Path | None, *, out: Path, fit: Path | None, runs: Sequence[Path] | None, method: str, title: str | None, **how: Any
) -> None:
    """Measure ``file``, repair it if there is something to fit on, read the runs, and write the page; ``how`` as in `Request`.

    The folder of a run may stand for its test predictions; the page is then about the run too. Any other folder is one of runs.
    """
    folders = [*(runs or ())]
    if file is not None and file.is_dir():
        inside = predictions_in(file)
        folders, file = [file, *folders], None if inside == file else inside
    check_destination(out, (".html", ".htm"))
    CALIBRATORS[method]  # a wrong name is told before anything is read
    if file is None and (fit is not None or not folders):
        raise ValueError("report: a file of test predictions must be given, or runs (`--run FOLDER`) without `--fit`.")
    # As in a comparison: folders as they are named, the runs of each as methods are listed.
    entries = without_repeats([entry for folder in folders for entry in sorted(load_entries(folder), key=catalogue_order)])
    check_same_labels(entries, where="report: `--run`")
    request = Request(**how)
    examined, repaired = None, None
    if file is not None and fit is not None:
        examined, repaired = _repair(fit, file, method, request)
    elif file is not None:
        examined = Examined(*request.measure(file))
    with progress_bar("drawing the page", None):
        table = compare_table(entries, metrics=columns_of(entries), calibrated=True) if entries else None
        verdict = give_verdict(examined.scores, repaired) if examined else give_runs_verdict(table.sections if table else ())
        how = {"n_resamples": request.resamples, "seed": request.seed}
        page = render_page(examined, repaired=repaired, table=table, title=title, verdict=verdict, **how)
    write_file(out, page)
    console = Terminal()
    show_prose(console, f"{verdict.headline}.", style="bold")
    for sentence in verdict.sentences:
        show_prose(console, sentence)
    if examined is not None:
        show_parts(console, examined.scores, 0)
    console.print(f"The report is in {out} ({out.stat().st_size / 1e6:.2f} MB).", soft_wrap=True)


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
    return Examined(given, replace(done.before, file=str(file))), Repair(
        done,
        n_fit=len(fit_data),
        fit_file=fit.name,
        tried=_try_all(done, fit_data, given, request),
        doubts=tuple(doubt[:1].upper() + doubt[1:] for doubt in doubts),
        # Nothing can be guaranteed of examples that do not count alike.
        promises=promise_table(fit_data, given) if fit_data.weights is None else (),
    )


def _try_all(done: Repaired, fit_data: Predictions, given: Predictions, request: Request) -> dict[str, Scores | str]:
    """Fit every method of a ranking on all fit data, and return what it scores on the test data, or why it fails."""
    auto = done.calibrator
    if not isinstance(auto, AutoCalibrator):
        return {}
    found: dict[str, Scores | str] = {"none": done.before, auto.best_name_: done.after}
    left = [name for name in auto.candidates_ if name not in found]
    # The chosen one has warned already; what the others would warn of is of no use.
    quiet = warnings.catch_warnings(action="ignore", category=CalibrationWarning)
    with quiet, progress_bar("measuring every calibrator", len(left)) as advance:
        for name in left:
            try:
                found[name] = measure(auto.candidates_[name].fit(fit_data).apply(given), **request.bootstrap)
            except FitError as error:
                found[name] = str(error)
            advance(1)
    return found
