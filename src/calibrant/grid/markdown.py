"""A table as Markdown, its columns padded so that it reads well in a terminal too."""

from __future__ import annotations

import unicodedata

from calibrant.grid.captions import MARK
from calibrant.grid.layout import INFO_NAMES, Cell, Column, Line, Section, Table

EMPTY = "–"


def to_markdown(table: Table, *, heading: str | None = "###") -> str:
    """Write a table as Markdown: a heading, a table for every section, then its notes.

    Args:
        table: The table.
        heading: What stands before the title and, with one more ``#``, before those of the sections; None leaves both out.

    Example:
        >>> from calibrant.grid.layout import Cell, Column, Line, Section, Table
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
        parts.append(_section(table, section))
    if table.notes:
        parts.append("\n".join(table.notes) + "\n")
    return "\n".join(parts)


def _section(table: Table, section: Section) -> str:
    heads = [f"{c.group} {c.heading}".strip() for c in table.columns]
    rows = [["Method", *(INFO_NAMES[name] for name in table.info), *heads]]
    for line in section.lines:
        label = f"*{escape(line.label)}*" if line.kind == "paper" else escape(line.label)
        cells = [_cell(line, column) for column in table.columns]
        rows.append([label, *(line.info(name) for name in table.info), *cells])
    return _grid(rows)


def _grid(rows: list[list[str]]) -> str:
    widths = [max(_width(row[k]) for row in rows) for k in range(len(rows[0]))] if len(rows) > 2 else [0] * len(rows[0])

    def write(row: list[str]) -> str:
        cells = [row[0] + " " * (widths[0] - _width(row[0]))]
        cells += [" " * (width - _width(cell)) + cell for width, cell in zip(widths[1:], row[1:], strict=True)]
        return f"| {' | '.join(cells)} |"

    rule = [":" + "-" * max(widths[0] + 1, 2), *("-" * max(width + 1, 2) + ":" for width in widths[1:])]
    return "\n".join([write(rows[0]), f"|{'|'.join(rule)}|", *(write(row) for row in rows[1:])]) + "\n"


def _cell(line: Line, column: Column) -> str:
    cell = line.cells.get(column.key)
    return EMPTY if cell is None else write_cell(cell, column)


def write_cell(cell: Cell, column: Column) -> str:
    """A number as Markdown: mean ± standard deviation, bold where it is best, marked where it differs."""
    mean, std = cell.shown(column)
    text = mean if std is None else f"{mean} ± {std}"
    return (f"**{text}**" if cell.best else text) + (MARK if cell.differs else "")


def escape(text: str) -> str:
    """Text that Markdown shows as it is, also within a table."""
    return "".join(f"\\{sign}" if sign in "|*_`\\<[]" else sign for sign in text)


def _width(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return sum(0 if unicodedata.combining(s) else 2 if unicodedata.east_asian_width(s) in "WF" else 1 for s in text)
