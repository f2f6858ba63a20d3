"""A comparison's table in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from calibrant.cli.terminal import Row, fit_table
from calibrant.grid.layout import INFO_NAMES, MARK, Cell, Column, Line, Table, row_notes, several_best
from calibrant.metrics.verdict import SIGNIFICANT

# In place of bold, where there is none.
_BEST = "*"
# Left out first where a terminal is narrow; error and ECE stay.
_DROP = ("p if calibrated", "Classwise ECE", "MCE", "ACE", "NLL", "Preset", "Epochs", "Seeds")


def show_table(table: Table, *, console: Console) -> None:
    """Print every section of a table, as wide as the terminal allows, and what its signs mean.

    Args:
        table: The table; its files hold what a narrow terminal has no room for.
        console: Where to.
    """
    names = ["Method", *(INFO_NAMES[name] for name in table.info), *(_heading(column) for column in table.columns)]
    drop = [place for word in _DROP for place, name in enumerate(names) if name.removesuffix(" %") == word]
    # Bold is nothing but a word where the terminal, or a file, has none.
    plain = console.color_system is None
    dropped: dict[str, None] = {}
    for section in table.sections:
        rows: list[Row] = [_row(table, line, plain=plain) for line in section.lines]
        telling = _telling(table, section.lines)
        fitted = fit_table(names, rows, width=console.width, drop=[place for place in drop if names[place] not in telling])
        console.print()
        console.print(Text(section.title, style="bold cyan"))
        console.print(fitted)
        shown = {str(column.header) for column in fitted.columns}
        dropped |= {name.removesuffix(" %"): None for name in names if name not in shown}
    console.print()
    cells = [cell for line in table.lines for cell in line.cells.values()]
    legend = ["mean ± standard deviation over seeds"] if any(cell.std is not None for cell in cells) else []
    if all(line.kind != "ours" for line in table.lines):
        legend.insert(0, f"method minus {table.base}, negative is better")
    lowest = "the lowest of rows that may be compared" if several_best(table) else "the lowest"
    legend += [f"{_BEST if plain else 'bold'}: {lowest}"] if any(cell.best for cell in cells) else []
    legend += [f"{MARK}: differs from {table.base}, p < {SIGNIFICANT}"] if any(cell.differs for cell in cells) else []
    if legend:
        console.print(Text("; ".join(legend), style="dim"))
    if dropped:
        console.print(Text(f"not shown for want of room, but in {table.name}.md: {', '.join(dropped)}", style="dim"))
    for note in row_notes(table):
        console.print(Text(note, style="dim"))


def _telling(table: Table, lines: Sequence[Line]) -> set[str]:
    """Columns without which rows of one name could not be told apart: of runs of 10 and of 3 epochs, say."""
    ours = [line for line in lines if line.kind != "paper"]
    labels = {line.label for line in ours}
    may = [name for name in table.info if name in ("preset", "epochs")]
    return {INFO_NAMES[name] for name in may if len({(line.label, line.info(name)) for line in ours}) > len(labels)}


def _heading(column: Column) -> str:
    return " ".join(part for part in (column.group, column.name, "%" if column.percent else "") if part)


def _row(table: Table, line: Line, *, plain: bool) -> list[str | Text]:
    style = "dim" if line.kind == "paper" else ""
    infos: list[str | Text] = [Text(line.info(name), style=style) for name in table.info]
    cells = [_cell(line.cells.get(c.key), c, style=style, plain=plain) for c in table.columns]
    return [Text(line.label, style=style), *infos, *cells]


def _cell(cell: Cell | None, column: Column, *, style: str, plain: bool) -> Text:
    if cell is None:
        return Text("–", style="dim")
    # A digit less than in the files, so that six columns find room.
    scale, digits = (100, 2) if column.percent else (1, 3)
    spread = "" if cell.std is None else f" ± {scale * cell.std:.{digits}f}"
    mean = f"{scale * cell.mean:.{digits}f}"
    # What rounds to zero has no sign.
    text = (mean.removeprefix("-") if float(mean) == 0 else mean) + spread
    signs = (_BEST if plain and cell.best else "") + (MARK if cell.differs else "")
    return Text(text + signs, style="bold" if cell.best else style)
