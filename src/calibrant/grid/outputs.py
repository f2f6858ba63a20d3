"""What a comparison leaves besides its runs: tables, figures and a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.core.entry import Entry
from calibrant.grid.captions import notes_of, size_notes
from calibrant.grid.export import write_table
from calibrant.grid.layout import INFO_NAMES, Line, Table
from calibrant.grid.rows import Row, group_rows, tell_apart
from calibrant.grid.tables import Style, by_section, compare_table, line_of, mark_best, metric_column
from calibrant.io.atomic import atomic_writer

if TYPE_CHECKING:
    from calibrant.report.page_content import InTable


def write_outputs(
    entries: Sequence[Entry], folder: Path, missing: Sequence[str] = (), *, paper: bool = False, figures: bool = True
) -> tuple[Table, tuple[Path, ...]]:
    """Write ``table.*`` (Markdown, LaTeX, CSV, JSON), ``figures/`` and ``report.html`` into a folder.

    Args:
        entries: The rows, in their order.
        folder: Where to; files of an older comparison are replaced, and its figures removed.
        missing: Notes on rows that should be there and are not.
        paper: Put the paper's numbers below ours.
        figures: Whether to draw figures.

    Returns:
        The table, and the files.
    """
    # matplotlib takes a while to load, and is not needed until the last run has ended.
    from calibrant.grid.page_table import name_methods, to_page_table
    from calibrant.report.figures import FIGURES, draw_all
    from calibrant.report.page import render_page
    from calibrant.report.save import clear_figures

    table = with_notes(compare_table(entries, paper=paper, calibrated=True, name="table"), missing)
    files = write_table(table, folder)
    # The page has a table of its own, without the paper's numbers.
    rows, best = with_sweeps(label_rows(table, entries)), best_metrics(entries)
    shown = [to_page_table(with_notes(name_methods(table), missing))] if paper else []
    notes = [] if paper else [*missing, *page_notes(table)]
    page = folder / "report.html"
    with atomic_writer(page) as handle:
        # A name read from a file may hold half a surrogate pair, which UTF-8 has no bytes for.
        text = render_page(entries=rows, best=best, told=told_by(table, entries), tables=shown, notes=notes)
        handle.write(text.encode(errors="replace"))
    clear_figures(folder / "figures", FIGURES)
    drawn = draw_all(rows, folder / "figures").files if figures else []
    return table, (*files, page, *drawn)


def with_notes(table: Table, first: Sequence[str]) -> Table:
    """Return the table with further notes, before its own."""
    return replace(table, notes=(*first, *table.notes))


def with_sweeps(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with their errors against the number of bins, which page and figures would both work out."""
    from calibrant.metrics.sweep import bin_sweep

    return [
        replace(entry, sweep=bin_sweep(entry.test)) if entry.sweep is None and entry.test is not None else entry
        for entry in entries
    ]


def page_notes(table: Table) -> list[str]:
    """Return the notes of a comparison for a page's table of runs, which says itself of how many examples its rows are."""
    from calibrant.grid.page_table import name_methods

    named = name_methods(table)
    known = size_notes(named)
    return [note for note in notes_of(named, tested=True) if note not in known]


def told_by(table: Table, entries: Sequence[Entry]) -> list[InTable]:
    """Return for each entry what its comparison says of its row.

    Args:
        table: What `calibrant.grid.tables.compare_table` made of the entries.
        entries: The entries, in the same order.
    """
    from calibrant.report.page_content import InTable

    found: dict[int, InTable] = {}
    for number, rows in enumerate(_rows_of(table, entries)):
        for place, (line, row) in enumerate(rows):
            tested = {key: cell.p_value for key, cell in line.cells.items() if cell.p_value is not None}
            info = {INFO_NAMES[name]: line.info(name) for name in table.info if name != "seeds"}
            found |= {id(entry): InTable(number, place == 0, tested, info) for entry in row.runs}
    return [found[id(entry)] for entry in entries]


def label_rows(table: Table, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with presets that name the settings which their comparison names, for the labels of figures and pages.

    Args:
        table: What `calibrant.grid.tables.compare_table` made of the entries.
        entries: The entries, in the same order.

    Returns:
        The entries. Rows that would have the same label in a figure are told apart as by `calibrant.grid.rows.tell_apart`.
    """
    apart = {id(entry): told for entry, told in zip(entries, tell_apart(entries), strict=True)}
    labels: list[tuple[Row, str | None]] = []
    for line, row in chain.from_iterable(_rows_of(table, entries)):
        settings = line.label.removeprefix(line.method).removeprefix(" (").removesuffix(")")
        said = [text for text in (row.preset, settings) if text and text != "default"]
        labels.append((row, ", ".join(said) if settings else apart[id(row.runs[0])].preset))
    # A row that was told what another one of its method chooses by itself has the same settings in a table.
    count = Counter((row.data, row.model, row.method, row.epochs, text) for row, text in labels)
    alike = {place[:3] for place, number in count.items() if number > 1}
    named = {id(entry): text for row, text in labels if (row.data, row.model, row.method) not in alike for entry in row.runs}
    return [replace(told, preset=named.get(place, told.preset)) for place, told in apart.items()]


def _rows_of(table: Table, entries: Sequence[Entry]) -> list[list[tuple[Line, Row]]]:
    """The lines of every part of a comparison of these entries, with their rows."""
    parts = by_section(group_rows(entries)).values()
    ours = ([line for line in section.lines if line.kind == "ours"] for section in table.sections)
    return [list(zip(lines, rows, strict=True)) for lines, rows in zip(ours, parts, strict=True)]


def best_metrics(entries: Sequence[Entry]) -> list[frozenset[str]]:
    """Return for each entry the metrics in which its row is the best, by the rule of tables.

    Example:
        >>> from calibrant import Predictions, measure
        >>> tests = (Predictions(probs=[[p, 1 - p], [1 - p, p]] * 20, labels=[0, 0] * 20) for p in (0.9, 0.6))
        >>> runs = [Entry("coins", name, measure(test), epochs=3) for name, test in zip(("ce", "focal"), tests)]
        >>> [sorted(keys & {"error", "nll"}) for keys in best_metrics(runs)]
        [['error'], ['error', 'nll']]
    """
    from calibrant.report.page_runs import COLUMNS

    columns = [metric_column(key) for key in COLUMNS]
    found: dict[int, frozenset[str]] = {}
    for rows in by_section(group_rows(entries)).values():
        lines = [line_of(row, columns, Style()) for row in rows]
        for column in columns:
            mark_best(lines, rows, column)
        for row, line in zip(rows, lines, strict=True):
            keys = frozenset(key for key, cell in line.cells.items() if cell.best)
            found |= {id(entry): keys for entry in row.runs}
    return [found[id(entry)] for entry in entries]
