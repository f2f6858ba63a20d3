"""A table as Markdown, LaTeX, CSV, JSON and on a page, and all that a comparison writes besides its runs."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from calibrant.core.scores import Entry, without_nan
from calibrant.grid.tables import (
    EMPTY,
    INFO_NAMES,
    MARK,
    STALE,
    Column,
    Line,
    Section,
    Table,
    compare_table,
    name_methods,
    notes_of,
)
from calibrant.io.files import atomic_writer

if TYPE_CHECKING:
    from calibrant.report.page_runs import FinishedTable, InTable

CSV_COLUMNS = (
    *("table", "data", "model", "source", "method", "preset", "epochs", "settings", "metric"),
    *("mean", "std", "runs", "seeds", "values", "best", "p_value", "test_over", "examples"),
)
# How a metric is called in the CSV for the p-values of "could a calibrated model have this ECE?".
CALIBRATED = "p_if_calibrated"
# What JSON leaves out: what other keys of a line say, too.
_NOT_IN_JSON = ("row", "shown", "cells")

# Six metrics with their spread are wider than many a page; what fits keeps its size.
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
# Columns of a table that a column of a page has room for.
_NARROW = 4
# Signs that LaTeX reads otherwise, and those of our own captions that pdflatex has no letter for.
_SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SIGNS |= {sign: f"\\{sign}" for sign in "{}&%$#_"} | {sign: f"${sign}$" for sign in "<>|"}
_SIGNS |= {"−": "$-$", "–": "--", MARK: r"$^{\dagger}$", STALE: r"$^{\ddagger}$", "±": r"$\pm$", "≤": r"$\le$", "≥": r"$\ge$"}
_SIGNS |= {"α": r"$\alpha$", "γ": r"$\gamma$", "λ": r"$\lambda$", "Δ": r"$\Delta$", "\0": "{}"}


def to_markdown(table: Table, *, heading: str | None = "###", notes: Sequence[str] | None = None) -> str:
    """Write a table as Markdown: a heading, a table for every section, padded to read well in a terminal, then its notes.

    Args:
        table: The table.
        heading: What stands before the title and, with one more ``#``, before those of the sections; None leaves both out.
        notes: Sentences below; by default those of the table.

    Example:
        >>> from calibrant.grid.tables import Cell
        >>> line = Line("CE", "ce", {"ece": Cell(0.0418, best=True)}, runs=1)
        >>> table = Table("t", "One row", (Column("ece", "ECE", "ece"),), (Section("CIFAR-10", (line,)),))
        >>> print(to_markdown(table, heading=None, notes=()))
        | Method | Seeds | ECE (%) |
        |:--|--:|--:|
        | CE | 1 | **4.180** |
        <BLANKLINE>
    """
    parts = [f"{heading} {table.title}\n"] if heading else []
    for section in table.sections:
        if heading and section.title:
            parts.append(f"{heading}# {section.title}\n")
        rows = [table.heads]
        for line in section.lines:
            label = f"*{escape_markdown(line.label)}*" if line.kind == "paper" else escape_markdown(line.label)
            rows.append(
                [label, *_describe(table, line), *(write_number(line, column, best="**{}**") for column in table.columns)]
            )
        parts.append(_grid(rows))
    below = table.notes if notes is None else notes
    if below:
        parts.append("\n".join(below) + "\n")
    return "\n".join(parts)


def to_latex(table: Table) -> str:
    r"""Write a table as a LaTeX ``table`` environment; the document needs ``\usepackage{booktabs,graphicx}``.

    One too wide for a column becomes a ``table*``, which goes over both columns of a page and is the same in documents of one.

    Args:
        table: The table. Its title and its first note become the caption, the others stand below the table; its name, data
            and networks become the label, ``tab:NAME-DATA-MODEL``, so that those of two comparisons differ in one document.
            A table wider than the page shrinks.

    Example:
        >>> from calibrant.grid.tables import Cell
        >>> line = Line("FLγ-SECE", "flgamma-sece", {"ece": Cell(0.0214, 0.0082)}, runs=5)
        >>> table = Table("t", "A 100% test", (Column("ece", "ECE", "ece"),), (Section("CIFAR-10", (line,), "cifar10"),))
        >>> print(to_latex(table))
        % needs \usepackage{booktabs,graphicx}
        \begin{table}[htb]
        \centering
        \footnotesize
        \caption{A 100\% test. Mean $\pm$ standard deviation over runs of different seeds (n $-$ 1); Seeds is their number.}
        \label{tab:t-cifar10}
        \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%
        \begin{tabular}{lrr}
        \toprule
        Method & Seeds & ECE (\%) \\
        \midrule
        \multicolumn{3}{c}{CIFAR-10} \\
        FL$_{\gamma}$-SECE & 5 & 2.140 $\pm$ 0.820 \\
        \bottomrule
        \end{tabular}}
        \end{table}
        <BLANKLINE>
    """
    width, (first, *others) = len(table.heads), table.notes
    kind, place = ("table", "htb") if width <= _NARROW else ("table*", "tb")
    lines = [
        r"% needs \usepackage{booktabs,graphicx}",
        rf"\begin{{{kind}}}[{place}]",
        r"\centering",
        r"\footnotesize",
        rf"\caption{{{escape_latex(f'{table.title}. {first}')}}}",
        rf"\label{{tab:{_label(table)}}}",
        _FIT,
        rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}",
        r"\toprule",
        _latex_row([escape_latex(name) for name in table.heads]),
    ]
    for section in table.sections:
        lines.append(r"\midrule")
        lines += [rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(section.title)}}} \\"] if section.title else []
        for line in section.lines:
            label = rf"\quad \textit{{{escape_latex(line.label)}}}" if line.kind == "paper" else escape_latex(line.label)
            info = [escape_latex(text) for text in _describe(table, line)]
            lines.append(_latex_row([label, *info, *(write_number(line, column, latex=True) for column in table.columns)]))
    below = [r"\par\smallskip", r"\begin{minipage}{\linewidth}\footnotesize"]
    below += [*map(escape_latex, others), r"\end{minipage}"]
    lines += [r"\bottomrule", r"\end{tabular}}", *(below if others else ()), rf"\end{{{kind}}}"]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """Write a table as tidy CSV: one line for every row and metric, full precision, rates as fractions.

    ``source`` is "ours", "paper" or "difference"; ``seeds`` and ``values`` are lists separated by spaces; ``p_value`` is the
    corrected one of the difference to the first row and ``test_over`` what it sampled; ``examples`` is how many test examples
    there were. What is unknown is empty. A name that a spreadsheet would run as a formula has an apostrophe in front.

    Example:
        >>> from calibrant.grid.tables import Cell
        >>> line = Line("CE", "ce", {"ece": Cell(0.0418, values=(0.0418,))}, runs=1, seeds=(0,))
        >>> table = Table("t", "One row", (Column("ece", "ECE", "ece"),), (Section("CIFAR-10", (line,), "cifar10"),))
        >>> to_csv(table).splitlines()[1]
        't,cifar10,,ours,ce,,,,ece,0.0418,,1,0,0.0418,false,,,'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for section in table.sections:
        for line in section.lines:
            writer.writerows([_written(found.get(name)) for name in CSV_COLUMNS] for found in _tidy(table, section, line))
    return text.getvalue()


def to_json(table: Table) -> str:
    """Write a table as strict JSON: its columns, sections, lines and cells as they are, rates as fractions.

    Example:
        >>> from calibrant.grid.tables import Cell
        >>> line = Line("CE", "ce", {"ece": Cell(0.0418)}, runs=1)
        >>> table = Table("t", "One row", (Column("ece", "ECE", "ece"),), (Section("CIFAR-10", (line,)),))
        >>> json.loads(to_json(table))["sections"][0]["lines"][0]["cells"]["ece"]["mean"]
        0.0418
    """

    def plain(line: Line) -> dict[str, object]:
        found = {key: value for key, value in vars(line).items() if key not in _NOT_IN_JSON}
        return found | {"cells": {key: vars(cell) for key, cell in line.cells.items()}}

    columns = [{key: value for key, value in vars(column).items() if key != "data"} for column in table.columns]
    sections = [
        {"title": part.title, "data": part.data, "model": part.model, "lines": [plain(line) for line in part.lines]}
        for part in table.sections
    ]
    data = {"name": table.name, "title": table.title, "notes": table.notes, "columns": columns, "sections": sections}
    return json.dumps(without_nan(data), indent=1, ensure_ascii=False) + "\n"


def to_page_table(table: Table) -> FinishedTable:
    """Write the numbers of a table as text for the page of a report."""
    from calibrant.report.page_runs import FinishedTable, TableRow

    def row(line: Line) -> TableRow:
        info = [(text, False) for text in _describe(table, line)]
        cells = [(write_number(line, c), c.key in line.cells and line.cells[c.key].best) for c in table.columns]
        return TableRow(line.label, (*info, *cells), line.kind == "paper")

    parts = tuple((section.title, tuple(map(row, section.lines))) for section in table.sections)
    return FinishedTable(table.title, tuple(table.heads), parts, table.notes)


def write_table(table: Table, folder: str | Path) -> list[Path]:
    """Write a table as ``NAME.md``, ``NAME.tex``, ``NAME.csv`` and ``NAME.json`` into a folder, which is made if needed.

    Returns:
        The files. Raises ``OSError`` with one sentence where that cannot be.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    files = []
    for ending, form in {"md": to_markdown, "tex": to_latex, "csv": to_csv, "json": to_json}.items():
        files.append(place / f"{table.name}.{ending}")
        with atomic_writer(files[-1]) as handle:
            # A name read from a file may hold half a surrogate pair, which UTF-8 has no bytes for.
            handle.write(form(table).encode(errors="replace"))
    return files


class PageRows(NamedTuple):
    """Runs as a page and figures show them: presets name what rows are told apart by; what the table says of each; notes."""

    entries: list[Entry]
    told: list[InTable]
    notes: list[str]


def page_rows(table: Table) -> PageRows:
    """Return the runs of a comparison, with every metric that a page shows, for `render_page` and for figures."""
    from calibrant.report.page_runs import InTable

    found = PageRows([], [], [])
    for number, section in enumerate(table.sections):
        rows = [(line, line.row) for line in section.lines if line.row is not None]
        for line, row in rows:
            tested = {key: cell.p_value for key, cell in line.cells.items() if cell.p_value is not None}
            info = {INFO_NAMES[name]: line.info(name) for name in table.info if name != "seeds"}
            # Figures tell rows of one method apart by the preset and the settings that the table names.
            preset = [line.preset] if line.preset not in (None, "default") else []
            variant = ", ".join([*preset, *line.shown]) if line.shown else line.preset
            best = frozenset(key for key, cell in line.cells.items() if cell.best)
            found.entries.extend(replace(entry, preset=variant) for entry in row.runs)
            found.told.extend([InTable(number, row is rows[0][1], tested, info, best)] * len(row.runs))
    # The page says itself of how many examples its rows are.
    found.notes.extend(notes_of(name_methods(table), sizes=False))
    return found


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
    from calibrant.report.page_runs import columns_of

    # The page shows the Brier score, too.
    wide = compare_table(entries, metrics=columns_of(entries), paper=paper, calibrated=True, name="table")
    wide = replace(wide, remarks=(*missing, *wide.remarks))
    table = replace(wide, columns=tuple(column for column in wide.columns if column.metric != "brier"))
    files, rows = write_table(table, folder), page_rows(wide)
    # The page has a table of its own, without the paper's numbers.
    quoted = [to_page_table(name_methods(table))] if paper else []
    bins = (10, 15, 20, 50, 100) if figures else ()
    return table, (*files, *write_page(rows, folder, tables=quoted, notes=[] if paper else rows.notes, bins=bins))


def write_page(
    rows: PageRows,
    folder: Path,
    *,
    tables: Sequence[FinishedTable] = (),
    notes: Sequence[str] = (),
    title: str | None = None,
    bins: Sequence[int] = (15,),
) -> list[Path]:
    """Write ``report.html`` and, with so many ``bins`` in their reliability diagrams, ``figures/``; none draws no figures."""
    # matplotlib takes a while to load, and is not needed until the last run has ended.
    from calibrant.metrics.chance import bin_sweep
    from calibrant.report.figures import FIGURES, draw_all
    from calibrant.report.page import render_page
    from calibrant.report.save import clear_figures

    # Page and figures would both work them out.
    entries = [
        replace(entry, sweep=bin_sweep(entry.test)) if entry.sweep is None and entry.test is not None else entry
        for entry in rows.entries
    ]
    page = folder / "report.html"
    text = render_page(entries=entries, told=rows.told, tables=tables, notes=notes, title=title)
    with atomic_writer(page) as handle:
        handle.write(text.encode(errors="replace"))
    clear_figures(folder / "figures", FIGURES)
    return [page, *(draw_all(entries, folder / "figures", n_bins=tuple(bins)).files if bins else ())]


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, also within a table."""
    return "".join(f"\\{sign}" if sign in "|*_`\\<[]" else sign for sign in text)


def escape_latex(text: str) -> str:
    r"""Text that LaTeX prints as it is; an FL with its gamma is set as the paper does.

    Example:
        >>> escape_latex("50% of_it & FLγ, --set")
        '50\\% of\\_it \\& FL$_{\\gamma}$, -{}-set'
    """
    # Hyphens that LaTeX would join to a dash are held apart.
    held = re.sub("-(?=-)", "-\0", text)
    return "".join(_SIGNS.get(sign, sign) for sign in held).replace(r"FL$\gamma$", r"FL$_{\gamma}$")


def _describe(table: Table, line: Line) -> list[str]:
    return [line.info(name) for name in table.info]


def write_number(line: Line, column: Column, *, digits: int = 3, best: str = "{}", latex: bool = False) -> str:
    """A number as text: mean ± standard deviation, marked if it differs."""
    cell = line.cells.get(column.key)
    if cell is None:
        return escape_latex(EMPTY) if latex else EMPTY
    text = " ± ".join(filter(None, cell.shown(column, digits=digits)))
    if latex:
        text, best = escape_latex(text.replace("-", "−")), r"\textbf{{{}}}"
    return (best.format(text) if cell.best else text) + ((_SIGNS[MARK] if latex else MARK) if cell.differs else "")


def _grid(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) if len(rows) > 2 else 0 for column in zip(*rows, strict=True)]
    lines = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    rule = [":" + "-" * max(widths[0] + 1, 2), *("-" * max(width + 1, 2) + ":" for width in widths[1:])]
    head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, f"|{'|'.join(rule)}|", *body]) + "\n"


def _latex_row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _label(table: Table) -> str:
    """Name, data sets and networks of a table, in letters that a reference may have."""
    data = [*(section.data for section in table.sections), *(column.data for column in table.columns)]
    words = [table.name, *data, *(line.model for line in table.lines if line.kind != "paper")]
    return re.sub(r"[^A-Za-z0-9:.]+", "-", "-".join(dict.fromkeys(word for word in words if word))).strip("-")


def _tidy(table: Table, section: Section, line: Line) -> Iterator[dict[str, object]]:
    common = vars(line) | {"table": table.name, "source": line.kind, "data": section.data}
    for column in table.columns:
        cell = line.cells.get(column.key)
        if cell is not None:
            own = {"data": column.data or section.data, "metric": column.metric, "test_over": cell.over}
            yield common | vars(cell) | own
    if "calibrated" in table.info and line.calibrated_p:
        yield common | {"metric": CALIBRATED, "values": line.calibrated_p}


def _written(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    text = " ".join(map(str, value)) if isinstance(value, tuple) else value
    is_name = isinstance(value, str) or isinstance(value, tuple) and all(isinstance(part, str) for part in value)
    # A spreadsheet would run a name that begins like a formula.
    return f"'{text}" if is_name and isinstance(text, str) and text.startswith(tuple("=+-@\t\r")) else text
