"""A table as Markdown, LaTeX, CSV, JSON and on a page, and all that a comparison writes besides its runs."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from calibrant.core.records import Entry, without_nan
from calibrant.grid.tables import MARK, compare_table
from calibrant.io.files import write_file
from calibrant.metrics.levels import bin_sweep
from calibrant.report.figures import FIGURES, GRID_BINS, draw_all
from calibrant.report.page import render_page
from calibrant.report.rows import EMPTY, Column, Row, Table, columns_of
from calibrant.report.save import clear_figures

CSV_COLUMNS = (
    *("table", "data", "model", "source", "method", "preset", "epochs", "settings", "metric"),
    *("mean", "std", "runs", "seeds", "values", "best", "p_value", "test_over", "examples"),
)
# How a metric is called in the CSV for the p-values of "could a calibrated model have this ECE?".
CALIBRATED = "p_if_calibrated"

# Six metrics with their spread are wider than many a page; what fits keeps its size.
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
# Columns of a table that a column of a page has room for.
_NARROW = 4
# Signs that LaTeX reads otherwise, and those of our own captions that pdflatex has no letter for.
_SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SIGNS |= {sign: f"\\{sign}" for sign in "{}&%$#_"} | {sign: f"${sign}$" for sign in "<>|"}
_SIGNS |= {"−": "$-$", "–": "--", MARK: r"$^{\dagger}$", "‡": r"$^{\ddagger}$", "±": r"$\pm$", "≤": r"$\le$", "≥": r"$\ge$"}
_SIGNS |= {"α": r"$\alpha$", "γ": r"$\gamma$", "λ": r"$\lambda$", "Δ": r"$\Delta$", "\0": "{}"}


def to_markdown(table: Table, *, heading: str | None = "###") -> str:
    """Write a table as Markdown: a heading, a table for every section, padded to read well in a terminal, then its notes.

    Args:
        table: The table.
        heading: What stands before the title and, with one more ``#``, before those of the sections; None leaves both out.

    Example:
        >>> from calibrant.report.rows import Mean, Section
        >>> row = Row("CE", "ce", {"ece": Mean(0.0418, best=True)}, n_runs=1)
        >>> table = Table("t", "One row", (Column("ece", "ECE"),), (Section("CIFAR-10", (row,)),))
        >>> print(to_markdown(table, heading=None))
        | Method | Seeds | ECE (%) |
        |:--|--:|--:|
        | CE | 1 | **4.180** |
        <BLANKLINE>
    """
    parts = [f"{heading} {table.title}\n"] if heading else []
    for section in table.sections:
        if heading and section.title:
            parts.append(f"{heading}# {section.title}\n")
        lines = [table.heads]
        for row in section.rows:
            label = f"*{escape_markdown(row.label)}*" if row.kind == "paper" else escape_markdown(row.label)
            lines.append([label, *map(row.info, table.info), *(write_number(row, c, best="**{}**") for c in table.columns)])
        parts.append(_grid(lines))
    return "\n".join([*parts, *(["\n".join(table.notes) + "\n"] if table.notes else [])])


def to_latex(table: Table) -> str:
    r"""Write a table as a LaTeX ``table`` environment; the document needs ``\usepackage{booktabs,graphicx}``.

    One too wide for a column becomes a ``table*``, which goes over both columns of a page and is the same in documents of one.

    Args:
        table: The table. Its title and its first note become the caption, the others stand below the table; its name, data
            and networks become the label, ``tab:NAME-DATA-MODEL``, so that those of two comparisons differ in one document.
            A table wider than the page shrinks.

    Example:
        >>> from calibrant.report.rows import Mean, Section
        >>> row = Row("FLγ-SECE", "flgamma-sece", {"ece": Mean(0.0214, 0.0082)}, n_runs=5)
        >>> columns, section = (Column("ece", "ECE"),), Section("CIFAR-10", (row,), "cifar10")
        >>> table = Table("t", "A 100% test", columns, (section,), notes=("Of 5 seeds.",))
        >>> print(to_latex(table).splitlines()[12])
        FL$_{\gamma}$-SECE & 5 & 2.140 $\pm$ 0.820 \\
    """
    width, others = len(table.heads), table.notes[1:]
    kind, place = ("table", "htb") if width <= _NARROW else ("table*", "tb")
    lines = [
        r"% needs \usepackage{booktabs,graphicx}",
        rf"\begin{{{kind}}}[{place}]",
        r"\centering",
        r"\footnotesize",
        rf"\caption{{{escape_latex('. '.join([table.title, *table.notes[:1]]))}}}",
        rf"\label{{tab:{_label(table)}}}",
        _FIT,
        rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}",
        r"\toprule",
        _latex_row([escape_latex(name) for name in table.heads]),
    ]
    for section in table.sections:
        lines.append(r"\midrule")
        lines += [rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(section.title)}}} \\"] if section.title else []
        for row in section.rows:
            label = rf"\quad \textit{{{escape_latex(row.label)}}}" if row.kind == "paper" else escape_latex(row.label)
            info = [escape_latex(row.info(name)) for name in table.info]
            lines.append(_latex_row([label, *info, *(write_number(row, column, latex=True) for column in table.columns)]))
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
        >>> from calibrant.report.rows import Mean, Section
        >>> row = Row("CE", "ce", {"ece": Mean(0.0418, values=(0.0418,))}, n_runs=1, seeds=(0,))
        >>> table = Table("t", "One row", (Column("ece", "ECE"),), (Section("CIFAR-10", (row,), "cifar10"),))
        >>> to_csv(table).splitlines()[1]
        't,cifar10,,ours,ce,,,,ece,0.0418,,1,0,0.0418,false,,,'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for section in table.sections:
        for row in section.rows:
            common = _facts(row) | {"table": table.name, "source": row.kind, "data": section.data}
            lines = [
                common | vars(cell) | {"metric": column.key, "test_over": cell.over}
                for column in table.columns
                if (cell := row.cells.get(column.key)) is not None
            ]
            if "calibrated" in table.info and row.runs:
                lines.append(common | {"metric": CALIBRATED, "values": _calibrated(row)})
            writer.writerows([_written(line.get(name)) for name in CSV_COLUMNS] for line in lines)
    return text.getvalue()


def to_json(table: Table) -> str:
    """Write a table as strict JSON: its columns, sections, rows and cells as they are, rates as fractions.

    Example:
        >>> from calibrant.report.rows import Mean, Section
        >>> row = Row("CE", "ce", {"ece": Mean(0.0418)}, n_runs=1)
        >>> table = Table("t", "One row", (Column("ece", "ECE"),), (Section("CIFAR-10", (row,)),))
        >>> json.loads(to_json(table))["sections"][0]["lines"][0]["cells"]["ece"]["mean"]
        0.0418
    """

    def plain(row: Row) -> dict[str, object]:
        cells = {column.key: vars(row.cells[column.key]) for column in table.columns if column.key in row.cells}
        return {"label": row.label, "kind": row.kind, **_facts(row), "calibrated_p": _calibrated(row), "cells": cells}

    sections = [
        {"title": part.title, "data": part.data, "model": part.model, "lines": [plain(row) for row in part.rows]}
        for part in table.sections
    ]
    data = {key: getattr(table, key) for key in ("name", "title", "notes")}
    data |= {"columns": [*map(vars, table.columns)], "sections": sections}
    return json.dumps(without_nan(data), indent=1, ensure_ascii=False) + "\n"


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
        write_file(files[-1], form(table))
    return files


def write_outputs(
    entries: Sequence[Entry],
    folder: Path,
    missing: Sequence[str] = (),
    *,
    paper: bool = False,
    table: Table | None = None,
    title: str | None = None,
    bins: Sequence[int] = GRID_BINS,
) -> tuple[Table, tuple[Path, ...]]:
    """Write a table (Markdown, LaTeX, CSV, JSON), ``figures/`` and ``report.html``; return the table and the files.

    Files of an older comparison in the folder are replaced, and its figures removed. ``missing`` are notes on rows that should
    be there and are not. A ``table`` is written in place of that of the comparison, and shown before it on the page. ``bins``
    are those of reliability diagrams; without any, there are no figures.
    """
    # Page and figures would both work out the errors by number of bins.
    rows = [run if run.sweep or run.test is None else replace(run, sweep=bin_sweep(run.test)) for run in entries]
    # The page shows the Brier score, too.
    wide = compare_table(rows, metrics=columns_of(rows), paper=paper, calibrated=True, name="table")
    wide = replace(wide, notes=(*missing, *wide.notes))
    written = table or replace(wide, columns=tuple(column for column in wide.columns if column.key != "brier"))
    files = [*write_table(written, folder), folder / "report.html"]
    write_file(files[-1], render_page(table=wide, above=table, title=title))
    clear_figures(folder / "figures", FIGURES)
    if bins:
        runs = [run for row in wide.rows for run in row.runs]
        files += draw_all(runs, folder / "figures", n_bins=bins).files
    return written, tuple(files)


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, also within a table."""
    return "".join(f"\\{sign}" if sign in "|*_`\\<[]" else sign for sign in text)


def escape_latex(text: str) -> str:
    r"""Text that LaTeX prints as it is; an FL with its gamma is set as the paper does."""
    # Hyphens that LaTeX would join to a dash are held apart.
    held = re.sub("-(?=-)", "-\0", text)
    return "".join(_SIGNS.get(sign, sign) for sign in held).replace(r"FL$\gamma$", r"FL$_{\gamma}$")


def write_number(row: Row, column: Column, *, digits: int = 3, best: str = "{}", latex: bool = False) -> str:
    """A number as text: mean ± standard deviation, marked if it differs."""
    cell = row.cells.get(column.key)
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
    words = [
        table.name,
        *(section.data for section in table.sections),
        *(row.model for row in table.rows if row.kind != "paper"),
    ]
    return re.sub(r"[^A-Za-z0-9:.]+", "-", "-".join(dict.fromkeys(word for word in words if word))).strip("-")


def _facts(row: Row) -> dict[str, object]:
    """What is known of a row besides its numbers."""
    known = ("method", "preset", "epochs", "trained", "model", "seeds", "examples", "choices")
    found = {key: getattr(row, key) for key in known}
    return found | {"runs": row.n_runs, "settings": tuple(f"{key}={value}" for key, value in row.settings.items())}


def _calibrated(row: Row) -> tuple[float, ...]:
    return tuple(run.scores.ece_if_calibrated.p_value for run in row.runs)


def _written(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    text = " ".join(map(str, value)) if isinstance(value, tuple) else value
    is_name = isinstance(value, str) or isinstance(value, tuple) and all(isinstance(part, str) for part in value)
    # A spreadsheet would run a name that begins like a formula.
    return f"'{text}" if is_name and isinstance(text, str) and text.startswith(tuple("=+-@\t\r")) else text
