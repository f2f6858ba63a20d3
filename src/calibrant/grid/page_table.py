"""A table as the page of a report shows it."""

from __future__ import annotations

from dataclasses import replace

from calibrant.grid.captions import MARK, notes_of
from calibrant.grid.layout import INFO_NAMES, Line, Table
from calibrant.grid.markdown import EMPTY
from calibrant.report.page_content import FinishedTable, TableRow
from calibrant.report.style import method_name


def to_page_table(table: Table) -> FinishedTable:
    """Write the numbers of a table as text: mean ± standard deviation, marked where they differ from its base.

    Example:
        >>> from calibrant.grid.layout import Cell, Column, Line, Section, Table
        >>> line = Line("CE", "ce", {"ece": Cell(0.0418, best=True)}, runs=1)
        >>> table = Table("t", "One row", (Column("ece", "ECE", "ece"),), (Section("CIFAR-10", (line,)),))
        >>> found = to_page_table(table)
        >>> found.heads, found.parts[0][1][0].cells
        (('Method', 'Seeds', 'ECE (%)'), (('1', False), ('4.180', True)))
    """
    heads = ("Method", *(INFO_NAMES[name] for name in table.info), *(f"{c.group} {c.heading}".strip() for c in table.columns))
    parts = tuple((section.title, tuple(_row(table, line) for line in section.lines)) for section in table.sections)
    return FinishedTable(table.title, heads, parts, table.notes)


def name_methods(table: Table) -> Table:
    """Return a comparison with its methods named as figures and pages do, where it names them as they are typed.

    Its notes are made anew, as of a table with tests and with the paper's numbers.

    Example:
        >>> from calibrant.grid.layout import Column, Section
        >>> lines = (Line("ce+ts (optim.lr=0.2)", "ce+ts", {}), Line("in the paper", "ce+ts", {}, "paper"))
        >>> table = Table("t", "Two rows", (Column("ece", "ECE", "ece"),), (Section("CIFAR-10", lines),))
        >>> [line.label for line in name_methods(table).lines]
        ['CE (TS) (optim.lr=0.2)', 'in the paper']
    """
    sections = tuple(replace(part, lines=tuple(_named(line) for line in part.lines)) for part in table.sections)
    named = replace(table, sections=sections)
    return replace(named, notes=notes_of(named, tested=True, paper=True))


def _named(line: Line) -> Line:
    if line.kind == "paper" or not line.label.startswith(line.method):
        return line
    return replace(line, label=method_name(line.method) + line.label.removeprefix(line.method))


def _row(table: Table, line: Line) -> TableRow:
    cells = [(line.info(name), False) for name in table.info]
    for column in table.columns:
        cell = line.cells.get(column.key)
        if cell is None:
            cells.append((EMPTY, False))
            continue
        mean, std = cell.shown(column)
        text = mean if std is None else f"{mean} ± {std}"
        cells.append((text + (MARK if cell.differs else ""), cell.best))
    return TableRow(line.label, tuple(cells), line.kind == "paper")
