"""A table as Markdown, LaTeX, CSV, JSON and on a page, and all that a comparison writes besides its runs."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from calibrant.core.entry import Entry
from calibrant.grid.layout import EMPTY, INFO_NAMES, MARK, Column, Line, Section, Table, notes_of, size_notes
from calibrant.grid.tables import compare_table, name_methods
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
# Letters that a column of a page has at this size, and that the room between two columns of a table takes.
_COLUMN, _BETWEEN = 57, 3
# Signs that LaTeX reads otherwise, or pdflatex has no letter for.
_SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", '"': "''", "`": "{}`"}
_SIGNS |= {sign: f"\\{sign}" for sign in "{}&%$#_"} | {sign: f"${sign}$" for sign in "<>|"}
_SIGNS |= {"−": "$-$", "–": "--", "—": "---", "“": "``", "”": "''", "‘": "`", "’": "'", "…": r"\dots{}", "\u200b": ""}
_SIGNS |= {MARK: r"$^{\dagger}$", "‡": r"$^{\ddagger}$"}
_MATHS = "± pm × times ÷ div · cdot √ surd ∞ infty ≤ le ≥ ge ≠ ne ≈ approx ∼ sim → rightarrow ← leftarrow ↑ uparrow ↓ downarrow"
_MATHS += " • bullet ∘ circ ∆ Delta ∇ nabla ∑ sum ∏ prod ∈ in ℓ ell ★ star ✓ surd"
_SIGNS |= {sign: rf"$\{name}$" for sign, name in zip(_MATHS.split()[::2], _MATHS.split()[1::2], strict=True)}
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa mu nu xi pi rho sigma tau upsilon phi chi psi omega".split()
_CAPITALS = ("gamma", "delta", "theta", "xi", "pi", "sigma", "upsilon", "phi", "psi", "omega")
_SIGNS |= {unicodedata.lookup(f"GREEK SMALL LETTER {name}"): rf"$\{name}$" for name in _GREEK} | {"λ": r"$\lambda$"}
_SIGNS |= {unicodedata.lookup(f"GREEK CAPITAL LETTER {n}"): rf"$\{n.capitalize()}$" for n in _CAPITALS} | {"Λ": r"$\Lambda$"}
# Of these letters LaTeX's first encoding of fonts has not all.
_MISSING = "«»ÐÞðþĄąĐđĘęĦħĮįĸĿŀŉŊŋŦŧŲų"


def to_markdown(table: Table, *, heading: str | None = "###") -> str:
    """Write a table as Markdown: a heading, a table for every section, padded to read well in a terminal, then its notes.

    Args:
        table: The table.
        heading: What stands before the title and, with one more ``#``, before those of the sections; None leaves both out.

    Example:
        >>> from calibrant.grid.layout import Cell
        >>> line = Line("CE", "ce", {"ece": Cell(0.0418, best=True)}, runs=1)
        >>> table = Table("t", "One row", (Column("ece", "ECE", "ece"),), (Section("CIFAR-10", (line,)),))
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
        rows = [table.heads]
        for line in section.lines:
            label = f"*{escape_markdown(line.label)}*" if line.kind == "paper" else escape_markdown(line.label)
            rows.append([label, *_describe(table, line), *(_marked(line, column, "**{}**") for column in table.columns)])
        parts.append(_grid(rows))
    if table.notes:
        parts.append("\n".join(table.notes) + "\n")
    return "\n".join(parts)


def to_latex(table: Table) -> str:
    r"""Write a table as a LaTeX ``table`` environment; the document needs ``\usepackage{booktabs,graphicx}``.

    One too wide for a column becomes a ``table*``, which goes over both columns of a page and is the same in documents of one.

    Args:
        table: The table. Its title and its first note become the caption, the others stand below the table; its name, data
            and networks become the label, ``tab:NAME-DATA-MODEL``, so that those of two comparisons differ in one document.
            What is wider than the page shrinks.

    Example:
        >>> from calibrant.grid.layout import Cell
        >>> line = Line("FLγ-SECE", "flgamma-sece", {"ece": Cell(0.0214, 0.0082, best=True)}, runs=5)
        >>> table = Table("t", "A 100% test", (Column("ece", "ECE", "ece"),), (Section("CIFAR-10", (line,), "cifar10"),))
        >>> print(to_latex(table))
        % needs \usepackage{booktabs,graphicx}
        \begin{table}[htb]
        \centering
        \footnotesize
        \caption{A 100\% test.}
        \label{tab:t-cifar10}
        \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%
        \begin{tabular}{lrr}
        \toprule
        Method & Seeds & ECE (\%) \\
        \midrule
        \multicolumn{3}{c}{CIFAR-10} \\
        FL$_{\gamma}$-SECE & 5 & \textbf{2.140 $\pm$ 0.820} \\
        \bottomrule
        \end{tabular}}
        \end{table}
        <BLANKLINE>
    """
    kind, place = ("table*", "tb") if _is_wide(table) else ("table", "htb")
    width = len(table.heads)
    lines = [
        r"% needs \usepackage{booktabs,graphicx}",
        rf"\begin{{{kind}}}[{place}]",
        r"\centering",
        r"\footnotesize",
        rf"\caption{{{escape_latex(' '.join([f'{table.title}.', *table.notes[:1]]))}}}",
        rf"\label{{tab:{_label(table)}}}",
        _FIT,
        rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}",
        r"\toprule",
        *_latex_heads(table),
    ]
    for section in table.sections:
        lines.append(r"\midrule")
        lines += [rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(section.title)}}} \\"] if section.title else []
        for line in section.lines:
            label = rf"\quad \textit{{{escape_latex(line.label)}}}" if line.kind == "paper" else escape_latex(line.label)
            info = [escape_latex(text) for text in _describe(table, line)]
            lines.append(_latex_row([label, *info, *(_latex_cell(line, column) for column in table.columns)]))
    below = [r"\par\smallskip", r"\begin{minipage}{\linewidth}\footnotesize"]
    below += [*map(escape_latex, table.notes[1:]), r"\end{minipage}"]
    lines += [r"\bottomrule", r"\end{tabular}}", *(below if table.notes[1:] else ()), rf"\end{{{kind}}}"]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """Write a table as tidy CSV: one line for every row and metric, full precision, rates as fractions.

    ``source`` is "ours", "paper" or "difference"; ``seeds`` and ``values`` are lists separated by spaces; ``p_value`` is the
    corrected one of the difference to the first row and ``test_over`` what it sampled; ``examples`` is how many test examples
    there were. What is unknown is empty.

    Example:
        >>> from calibrant.grid.layout import Cell
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
        >>> from calibrant.grid.layout import Cell
        >>> line = Line("CE", "ce", {"ece": Cell(0.0418)}, runs=1)
        >>> table = Table("t", "One row", (Column("ece", "ECE", "ece"),), (Section("CIFAR-10", (line,)),))
        >>> json.loads(to_json(table))["sections"][0]["lines"][0]["cells"]["ece"]["mean"]
        0.0418
    """
    columns = [{key: value for key, value in vars(column).items() if key != "data"} for column in table.columns]
    sections = [
        {"title": part.title, "data": part.data, "model": part.model, "lines": [_plain_line(line) for line in part.lines]}
        for part in table.sections
    ]
    data = {"name": table.name, "title": table.title, "notes": table.notes, "columns": columns, "sections": sections}
    return json.dumps(_finite(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_page_table(table: Table) -> FinishedTable:
    """Write the numbers of a table as text for the page of a report.

    Example:
        >>> from calibrant.grid.layout import Cell
        >>> line = Line("CE", "ce", {"ece": Cell(0.0418, best=True)}, runs=1)
        >>> table = Table("t", "One row", (Column("ece", "ECE", "ece"),), (Section("CIFAR-10", (line,)),))
        >>> found = to_page_table(table)
        >>> found.heads, found.parts[0][1][0].cells
        (('Method', 'Seeds', 'ECE (%)'), (('1', False), ('4.180', True)))
    """
    from calibrant.report.page_runs import FinishedTable, TableRow

    def row(line: Line) -> TableRow:
        info = [(text, False) for text in _describe(table, line)]
        cells = [(_marked(line, c), c.key in line.cells and line.cells[c.key].best) for c in table.columns]
        return TableRow(line.label, (*info, *cells), line.kind == "paper")

    parts = tuple((section.title, tuple(map(row, section.lines))) for section in table.sections)
    return FinishedTable(table.title, tuple(table.heads), parts, table.notes)


def write_table(table: Table, folder: str | Path) -> list[Path]:
    """Write a table as ``NAME.md``, ``NAME.tex``, ``NAME.csv`` and ``NAME.json`` into a folder, which is made if need be.

    Returns:
        The files. Raises ``OSError`` with one sentence where that cannot be.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    forms = {"md": to_markdown, "tex": to_latex, "csv": to_csv, "json": to_json}
    files = {ending: place / f"{table.name}.{ending}" for ending in forms}
    # JSON comes first: by it a folder is known as that of a comparison, also where writing was cut off.
    for ending, form in reversed(forms.items()):
        with atomic_writer(files[ending]) as handle:
            # A name read from a file may hold half a surrogate pair, which UTF-8 has no bytes for.
            handle.write(form(table).encode(errors="replace"))
    return list(files.values())


class PageRows(NamedTuple):
    """Runs as a page and figures show them: presets name what rows are told apart by; what the table says of each; notes."""

    entries: list[Entry]
    told: list[InTable]
    notes: list[str]


def page_rows(table: Table) -> PageRows:
    """Return the runs of a comparison, with every metric that a page shows, for `render_page` and for figures."""
    from calibrant.report.page_runs import InTable

    found = PageRows([], [], [])
    variants = _variants([line for line in table.lines if line.row is not None])
    for number, section in enumerate(table.sections):
        for place, line in enumerate(line for line in section.lines if line.row is not None):
            tested = {key: cell.p_value for key, cell in line.cells.items() if cell.p_value is not None}
            info = {INFO_NAMES[name]: line.info(name) for name in table.info if name != "seeds"}
            variant = next(variants)
            for entry in line.row.runs if line.row is not None else ():
                found.entries.append(replace(entry, preset=variant))
                best = frozenset(key for key, cell in line.cells.items() if cell.best)
                found.told.append(InTable(number, place == 0, tested, info, best))
    named = name_methods(table)
    # The page says itself of how many examples its rows are.
    found.notes.extend(note for note in notes_of(named, tested=True) if note not in size_notes(named))
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

    wide = compare_table(entries, metrics=columns_of(entries), paper=paper, calibrated=True, name="table")
    table = add_notes(narrow_table(wide, paper=paper), missing)
    files = write_table(table, folder)
    rows = page_rows(wide)
    # The page has a table of its own, without the paper's numbers.
    named = name_methods(narrow_table(wide, paper=paper))
    named = add_notes(replace(named, notes=notes_of(named, tested=True, paper=True)), missing)
    shown, notes = ([to_page_table(named)], []) if paper else ([], [*missing, *rows.notes])
    return table, (*files, *write_page(rows, folder, tables=shown, notes=notes, bins=(10, 15, 20, 50, 100) if figures else ()))


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


def add_notes(table: Table, first: Sequence[str]) -> Table:
    """Return the table with further notes, before its own."""
    return replace(table, notes=(*first, *table.notes))


def narrow_table(table: Table, *, paper: bool = False) -> Table:
    """Return a comparison without the Brier score, which a page shows: the paper's Table 1 and scores of other packages."""
    columns = tuple(column for column in table.columns if column.metric != "brier")
    kept = {column.key for column in columns}
    found = replace(table, columns=columns).each_line(
        lambda line: replace(line, cells={key: cell for key, cell in line.cells.items() if key in kept})
    )
    return replace(found, notes=notes_of(found, tested=True, paper=paper))


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, also within a table."""
    return "".join(f"\\{sign}" if sign in "|*_`\\<[]" else sign for sign in text)


def escape_latex(text: str) -> str:
    r"""Text that pdflatex prints as it is, or the nearest to it; an FL with its gamma is set as the paper does.

    Signs that stand for nothing in LaTeX's own fonts lose their accents, or become a question mark.

    Example:
        >>> escape_latex("50% of_it & FLγ")
        '50\\% of\\_it \\& FL$_{\\gamma}$'
        >>> escape_latex("∆ ≤ 1, naïve, --set, 中")
        '$\\Delta$ $\\le$ 1, naïve, -{}-set, ?'
    """
    words = re.sub(r"\s", " ", text).split("FLγ")
    # Hyphens that LaTeX would join to a dash are held apart.
    written = ("{}".join("".join(map(_sign, part)) for part in re.split("(?<=-)(?=-)", word)) for word in words)
    return r"FL$_{\gamma}$".join(written)


def _sign(sign: str) -> str:
    if sign in _SIGNS:
        return _SIGNS[sign]
    if sign.isascii():
        return sign if sign.isprintable() else "?"
    if "¡" <= sign <= "ž" and sign not in _MISSING:
        return sign
    parts = unicodedata.normalize("NFKD", sign)
    plain = "".join(_SIGNS.get(part, part if part.isascii() and part.isprintable() else "") for part in parts)
    return plain or ("" if unicodedata.combining(sign) else "?")


def _variants(lines: Sequence[Line]) -> Iterator[str | None]:
    """What tells rows of one method apart in figures: the preset and the settings that the table names."""

    def say(line: Line, settings: Sequence[str], *, usual: tuple[str | None, ...]) -> str | None:
        return ", ".join([*([] if line.preset in usual else [str(line.preset)]), *settings]) if settings else line.preset

    rows = [line.row for line in lines if line.row is not None]
    said = [say(line, line.shown, usual=(None, "default")) for line in lines]
    places = [(row.data, row.model, row.method, row.epochs, text) for row, text in zip(rows, said, strict=True)]
    for line, row, place in zip(lines, rows, places, strict=True):
        # A row that was told what another one of its method chooses by itself has the same settings in a table.
        own = [f"{key}={value}" for key, value in row.settings.items()]
        yield place[-1] if places.count(place) == 1 else say(line, own, usual=(None,))


def _describe(table: Table, line: Line) -> list[str]:
    return [line.info(name) for name in table.info]


def _marked(line: Line, column: Column, best: str = "{}") -> str:
    """A number as text: mean ± standard deviation, marked where it differs."""
    cell = line.cells.get(column.key)
    if cell is None:
        return EMPTY
    text = " ± ".join(filter(None, cell.shown(column)))
    return (best.format(text) if cell.best else text) + (MARK if cell.differs else "")


def _grid(rows: list[list[str]]) -> str:
    widths = [max(_width(row[k]) for row in rows) for k in range(len(rows[0]))] if len(rows) > 2 else [0] * len(rows[0])

    def write(row: list[str]) -> str:
        cells = [row[0] + " " * (widths[0] - _width(row[0]))]
        cells += [" " * (width - _width(cell)) + cell for width, cell in zip(widths[1:], row[1:], strict=True)]
        return f"| {' | '.join(cells)} |"

    rule = [":" + "-" * max(widths[0] + 1, 2), *("-" * max(width + 1, 2) + ":" for width in widths[1:])]
    return "\n".join([write(rows[0]), f"|{'|'.join(rule)}|", *(write(row) for row in rows[1:])]) + "\n"


def _width(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return sum(0 if unicodedata.combining(s) else 2 if unicodedata.east_asian_width(s) in "WF" else 1 for s in text)


def _is_wide(table: Table) -> bool:
    """Whether a column of a page is too narrow for a table, by the number of its letters."""
    rows = [[line.label, *_describe(table, line), *(_marked(line, column) for column in table.columns)] for line in table.lines]
    rows.append(["Method", *(INFO_NAMES[name] for name in table.info), *(column.heading for column in table.columns)])
    return sum(max(map(len, column)) + _BETWEEN for column in zip(*rows, strict=True)) > _COLUMN


def _latex_heads(table: Table) -> list[str]:
    first, lines = 2 + len(table.info), []
    if any(column.group for column in table.columns):
        cells, rules, place = [""] * (first - 1), [], first
        for group, columns in groupby(table.columns, key=lambda column: column.group):
            size = len(list(columns))
            cells.append(rf"\multicolumn{{{size}}}{{c}}{{{escape_latex(group)}}}")
            rules.append(rf"\cmidrule(lr){{{place}-{place + size - 1}}}")
            place += size
        lines += [_latex_row(cells), " ".join(rules)]
    names = ["Method", *(INFO_NAMES[name] for name in table.info), *(column.heading for column in table.columns)]
    return [*lines, _latex_row([escape_latex(name) for name in names])]


def _latex_cell(line: Line, column: Column) -> str:
    if column.key not in line.cells:
        return "--"
    cell = line.cells[column.key]
    text = escape_latex(" ± ".join(filter(None, cell.shown(column))).replace("-", "−"))
    return (rf"\textbf{{{text}}}" if cell.best else text) + (_SIGNS[MARK] if cell.differs else "")


def _latex_row(cells: list[str]) -> str:
    # At the beginning of a row, LaTeX takes these for a length or a star that belongs to the end of the one before.
    start = "{}" if cells[0].startswith(("[", "*")) else ""
    return start + " & ".join(cells) + r" \\"


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


def _plain_line(line: Line) -> dict[str, object]:
    found = {key: value for key, value in vars(line).items() if key not in _NOT_IN_JSON}
    return found | {"cells": {key: vars(cell) for key, cell in line.cells.items()}}


def _written(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(_written(item) for item in value)
    return repr(value) if isinstance(value, float) else str(value)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
