"""``calibrant report``: files and runs in, one HTML file out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from calibrant.calibrators.repair import calibrator_of
from calibrant.cli.page import show_prose
from calibrant.cli.terminal import check_destination, progress_bar
from calibrant.cli.tried import Precision, load_fit_data, repair_predictions
from calibrant.core.entry import Entry
from calibrant.grid.collect import load_entries, name_apart, seed_notes
from calibrant.grid.export import PageRows, page_rows
from calibrant.grid.others import check_same_labels, once_by_path
from calibrant.grid.rows import catalogue_order
from calibrant.grid.tables import compare_table
from calibrant.io import load_class_names, load_predictions
from calibrant.io.files import atomic_writer
from calibrant.report.page import render_page, verdict_of
from calibrant.report.page_content import Examined
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
