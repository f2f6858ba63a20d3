"""``calibrant report``: files and runs in, one HTML file out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from calibrant.calibrators import AutoCalibrator, CalibrationWarning, Calibrator, Ranked, name_of
from calibrant.calibrators.fit_data import refuse_other_names, refuse_test_split
from calibrant.calibrators.repair import calibrator_of, measure_repair
from calibrant.cli.page import show_prose
from calibrant.cli.terminal import check_destination, progress_bar
from calibrant.core.checks import FitError
from calibrant.core.entry import Entry
from calibrant.core.records import Predictions
from calibrant.core.scores import Estimate, Scores
from calibrant.grid.collect import load_entries, name_apart, seed_notes
from calibrant.grid.export import PageRows, page_rows
from calibrant.grid.others import check_same_labels, once_by_path
from calibrant.grid.rows import catalogue_order
from calibrant.grid.tables import compare_table
from calibrant.io import load_class_names, load_predictions
from calibrant.io.files import atomic_writer
from calibrant.metrics.measure import measure
from calibrant.report.page import render_page, verdict_of
from calibrant.report.page_content import Candidate, Examined, Repair
from calibrant.report.page_runs import COLUMNS

ENDINGS = (".html", ".htm")


@dataclass(frozen=True)
class Options:
    """The options of the command, as typed."""

    out: Path
    fit: Path | None = None
    runs: Sequence[Path] = ()
    method: str = "auto"
    class_names: Path | None = None
    ignore_index: int | None = None
    title: str | None = None
    n_bins: int = 15
    resamples: int = 1000
    seed: int = 0


def write_report(test: Path | None, options: Options) -> None:
    """Measure ``test``, repair it if there is something to fit on, read the runs, and write the page.

    The folder of a run may stand for its test predictions; the page is then about the run too.
    """
    if test is not None and (test / "test.npz").is_file():
        options = replace(options, runs=[test, *options.runs])
        test = test / "test.npz"
    elif test is not None and test.is_dir():
        raise ValueError(
            f"report: the first argument must be a file or a finished run, got {test}. For its runs: `--run {test}`."
        )
    check_destination(options.out, ENDINGS)
    calibrator_of(options.method)  # a wrong name is told before anything is read
    if test is None and not options.runs:
        raise ValueError("report: a file of predictions or `--run FOLDER` must be given, got neither.")
    if test is None and options.fit is not None:
        raise ValueError("report: `--fit` must come with a file of test predictions, got none. Name it before the options.")
    precision = Precision(options.n_bins, options.resamples, options.seed)
    examined, repaired = None, None
    if test is not None:
        names = None if options.class_names is None else load_class_names(options.class_names)
        predictions = load_predictions(test, ignore_index=options.ignore_index, class_names=names)
        fit_data = None
        if options.fit is not None:
            fit_data = load_fit_data(options.fit, test, predictions, ignore_index=options.ignore_index, class_names=names)
        entries = _load_runs(options.runs)
        with progress_bar(f"measuring {test.name}", None):
            examined = Examined(predictions, precision.measure(predictions, file=str(test)))
        if fit_data is not None and options.fit is not None:
            repaired = repair_predictions(fit_data, examined, method=options.method, file=options.fit, precision=precision)
    else:
        entries = _load_runs(options.runs)
    with progress_bar("drawing the page", None):
        rows = PageRows([], [], [], [])
        if entries:
            rows = page_rows(compare_table(entries, metrics=COLUMNS, calibrated=True))
        verdict = verdict_of(examined, repaired=repaired, entries=rows.entries, best=rows.best, told=rows.told)
        page = render_page(
            examined,
            repaired=repaired,
            entries=rows.entries,
            best=rows.best,
            told=rows.told,
            title=options.title,
            verdict=verdict,
            notes=rows.notes,
            n_resamples=options.resamples,
            seed=options.seed,
        )
    save_page(options.out, page)
    console = Console(highlight=False)
    show_prose(console, f"{verdict.headline}.", style="bold")
    for sentence in verdict.sentences:
        show_prose(console, sentence)
    for note in seed_notes(entries):
        console.print(note, soft_wrap=True)
    console.print(f"The report is in {options.out} ({options.out.stat().st_size / 1e6:.2f} MB).", soft_wrap=True)


def save_page(out: Path, page: str) -> None:
    """Write a page so that nobody ever sees half of it."""
    with atomic_writer(out) as handle:
        # A name read from a file may hold half a surrogate pair, which UTF-8 has no bytes for.
        handle.write(page.encode(errors="replace"))


def _load_runs(folders: Sequence[Path]) -> list[Entry]:
    # As in a comparison: folders as they are named, the runs of each as methods are listed.
    found = [entry for folder in folders for entry in sorted(load_entries(folder), key=catalogue_order)]
    entries = once_by_path(found)
    check_same_labels(entries, where="report: `--run`")
    return name_apart(entries)


@dataclass(frozen=True)
class Precision:
    """How the intervals are made: bins, resamples and seed, as in ``calibrant measure``."""

    n_bins: int
    n_resamples: int
    seed: int

    def measure(self, predictions: Predictions, *, file: str | None = None) -> Scores:
        """Measure predictions."""
        return measure(predictions, n_bins=self.n_bins, n_resamples=self.n_resamples, seed=self.seed, file=file)


def load_fit_data(
    path: Path,
    test_path: Path,
    test: Predictions,
    *,
    ignore_index: int | None = None,
    class_names: Sequence[str] | None = None,
) -> Predictions:
    """Read the predictions to fit on; raise with one sentence if they are those of the test data or of other classes."""
    if path.exists() and path.resolve() == test_path.resolve():
        raise ValueError(
            f"{path}: the file to fit on must not be the test file. Measured on the data it was fitted on, any repair looks "
            "better than it is."
        )
    fit_data = load_predictions(path, ignore_index=ignore_index, class_names=class_names)
    refuse_test_split(fit_data, where=str(path))
    if fit_data.num_classes != test.num_classes:
        raise ValueError(f"{path}: must have the {test.num_classes} classes of {test_path}, got {fit_data.num_classes}.")
    refuse_other_names(fit_data, test, what=f"{path}:", of=str(test_path))
    return fit_data


def repair_predictions(fit_data: Predictions, given: Examined, *, method: str, file: Path, precision: Precision) -> Repair:
    """Fit ``method`` on ``fit_data`` and say what it does to ``given``; with "auto", what every other method would do too."""
    calibrator = calibrator_of(method)
    total = calibrator.n_methods if isinstance(calibrator, AutoCalibrator) else None
    with _doubts() as doubts:
        with progress_bar("trying calibrators" if total else "fitting", total) as advance:
            if isinstance(calibrator, AutoCalibrator):
                calibrator.on_progress(lambda name, done, of: advance(1))
            calibrator.fit(fit_data)
        with progress_bar("measuring the repair", None):
            done = measure_repair(
                calibrator,
                given.predictions,
                n_bins=precision.n_bins,
                n_resamples=precision.n_resamples,
                seed=precision.seed,
            )
    best, after = done.fitted, Examined(done.predictions, done.after)
    made = Repair(
        name=name_of(best),
        after=after,
        paired=done.paired,
        n_fit=len(fit_data),
        fit_file=file.name,
        temperature=float(getattr(best, "temperature_", 1.0)) if best.learned == ("temperature",) else None,
        preserves_accuracy=best.preserves_accuracy,
        doubts=tuple(doubts),
    )
    if isinstance(calibrator, AutoCalibrator):
        tried = _try_all(calibrator, fit_data, given, after, precision)
        made = replace(made, advice=calibrator.advice_, candidates=tried)
    return made


def _try_all(
    auto: AutoCalibrator, fit_data: Predictions, given: Examined, after: Examined, precision: Precision
) -> tuple[Candidate, ...]:
    """Fit every method on all fit data and measure what it does to the test data."""
    found = []
    with progress_bar("measuring every calibrator", len(auto.ranking_)) as advance, _quietly():
        for entry in auto.ranking_:
            scores: Scores | None = None
            calibrator = auto.settled_.get(entry.name)
            if entry.name == auto.best_name_:
                scores = after.scores
            elif entry.name == "none":
                scores = given.scores
            elif calibrator is not None:
                try:
                    scores = precision.measure(calibrator.fit(fit_data).apply(given.predictions))
                except FitError as error:
                    entry = entry._replace(failure=str(error))
            found.append(_candidate(entry, scores, calibrator))
            advance(1)
    return tuple(found)


def _candidate(entry: Ranked, scores: Scores | None, calibrator: Calibrator | None) -> Candidate:
    gain = None if entry.failure else Estimate(entry.gain, entry.gain_low, entry.gain_high)
    keeps = entry.name == "none" or (calibrator is not None and calibrator.preserves_accuracy)
    return Candidate(entry.name, entry.score, gain, scores, keeps, entry.failure)


@contextmanager
def _doubts() -> Iterator[list[str]]:
    """Collect what calibrators warn of, without the name of the function: the page says it, and what is printed of it."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrationWarning)
        yield found
    for entry in caught:
        if issubclass(entry.category, CalibrationWarning):
            where, _, what = str(entry.message).partition(": ")
            found.append(f"{(what or where)[0].upper()}{(what or where)[1:]}")
        else:
            warnings.warn_explicit(entry.message, entry.category, entry.filename, entry.lineno)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the warnings of calibrators that nobody will use; the chosen one has given its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        yield
