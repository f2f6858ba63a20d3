"""A table as LaTeX with the rules of booktabs, ready to be read into a document."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from calibrant.grid.latex_signs import DAGGER, escape
from calibrant.grid.layout import INFO_NAMES, Cell, Column, Line, Section, Table

# Six metrics with their spread are wider than many a page; what fits keeps its size.
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
# Points that a column of a page has at this size, that a letter takes on average, and that stand between two columns.
_COLUMN, _LETTER, _BETWEEN = 240, 4.2, 12


def to_latex(table: Table) -> str:
    r"""Write a table as a LaTeX ``table`` environment; the document needs ``\usepackage{booktabs,graphicx}``.

    One too wide for a column becomes a ``table*``, which goes over both columns of a page and is the same in documents of one.

    Args:
        table: The table. Its title and its first note become the caption, the others stand below the table; its name, data
            and networks become the label, ``tab:NAME-DATA-MODEL``, so that those of two comparisons differ in one document.
            What is wider than the page shrinks.

    Example:
        >>> from calibrant.grid.layout import Cell, Column, Line, Section, Table
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
    width = 1 + len(table.info) + len(table.columns)
    kind, place = ("table*", "tb") if _is_wide(table) else ("table", "htb")
    caption = " ".join([f"{table.title}.", *table.notes[:1]])
    lines = [
        r"% needs \usepackage{booktabs,graphicx}",
        rf"\begin{{{kind}}}[{place}]",
        r"\centering",
        r"\footnotesize",
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{tab:{_label(table)}}}",
        _FIT,
        rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}",
        r"\toprule",
        *_heads(table),
    ]
    for section in table.sections:
        lines += [r"\midrule", *_section(table, section, width)]
    lines += [r"\bottomrule", r"\end{tabular}}", *_below(table.notes[1:]), rf"\end{{{kind}}}"]
    return "\n".join(lines) + "\n"


def _below(notes: Sequence[str]) -> list[str]:
    """Sentences under the table: a caption of twenty lines nobody reads."""
    if not notes:
        return []
    return [r"\par\smallskip", r"\begin{minipage}{\linewidth}\footnotesize", *map(escape, notes), r"\end{minipage}"]


def _is_wide(table: Table) -> bool:
    """Whether a column of a page is too narrow for a table, by the number of its letters."""
    heads = ["Method", *(INFO_NAMES[name] for name in table.info), *(column.heading for column in table.columns)]
    widths = [len(head) for head in heads]
    for line in table.lines:
        texts = [line.label, *(line.info(name) for name in table.info)]
        cells = [(line.cells.get(column.key), column) for column in table.columns]
        texts += ["" if cell is None else " ± ".join(filter(None, cell.shown(column))) for cell, column in cells]
        widths = [max(width, len(text)) for width, text in zip(widths, texts, strict=True)]
    return _LETTER * sum(widths) + _BETWEEN * len(widths) > _COLUMN


def _heads(table: Table) -> list[str]:
    first = 2 + len(table.info)
    lines = []
    if any(column.group for column in table.columns):
        cells, rules, place = [""] * (first - 1), [], first
        for group, columns in groupby(table.columns, key=lambda column: column.group):
            size = len(list(columns))
            cells.append(rf"\multicolumn{{{size}}}{{c}}{{{escape(group)}}}")
            rules.append(rf"\cmidrule(lr){{{place}-{place + size - 1}}}")
            place += size
        lines += [_row(cells), " ".join(rules)]
    names = ["Method", *(INFO_NAMES[name] for name in table.info), *(column.heading for column in table.columns)]
    return [*lines, _row([escape(name) for name in names])]


def _section(table: Table, section: Section, width: int) -> list[str]:
    lines = [rf"\multicolumn{{{width}}}{{c}}{{{escape(section.title)}}} \\"] if section.title else []
    for line in section.lines:
        label = escape(line.label)
        label = rf"\quad \textit{{{label}}}" if line.kind == "paper" else label
        info = [escape(line.info(name)) for name in table.info]
        lines.append(_row([label, *info, *(_cell(line, column) for column in table.columns)]))
    return lines


def _cell(line: Line, column: Column) -> str:
    cell = line.cells.get(column.key)
    return "--" if cell is None else _number(cell, column)


def _number(cell: Cell, column: Column) -> str:
    mean, std = cell.shown(column)
    mean = mean.replace("-", "$-$")
    text = mean if std is None else rf"{mean} $\pm$ {std}"
    return (rf"\textbf{{{text}}}" if cell.best else text) + (DAGGER if cell.differs else "")


def _row(cells: list[str]) -> str:
    # At the beginning of a row, LaTeX takes these for a length or a star that belongs to the end of the one before.
    start = "{}" if cells[0].startswith(("[", "*")) else ""
    return start + " & ".join(cells) + r" \\"


def _label(table: Table) -> str:
    """Name, data sets and networks of a table, in letters that a reference may have."""
    data = [section.data for section in table.sections]
    data += [column.key.rpartition(":")[0] for column in table.columns if column.group]
    words = [table.name, *data, *(line.model for line in table.lines if line.kind != "paper")]
    return re.sub(r"[^A-Za-z0-9:.]+", "-", "-".join(dict.fromkeys(word for word in words if word))).strip("-")
