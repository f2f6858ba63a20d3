"""Tables that fit: where a terminal is narrow, columns are left out and names cut, never numbers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

Row = Sequence[str | Text] | None
_GAP = 2
_LEAST_NAME = 10


def fit_table(headers: Sequence[str], rows: Sequence[Row], *, width: int, drop: Sequence[int] = ()) -> Table:
    """Lay out a table whose first column holds names and the others numbers or, under no header, words.

    Args:
        headers: Names of the columns.
        rows: Cells of each row; None leaves a line free.
        width: Columns of the terminal.
        drop: Positions of columns to leave out where the room is short, in this order.

    Returns:
        A table at most ``width`` wide, unless that cuts numbers. Names that are too long are cut, or folded where cutting would
        make two of them the same.
    """
    texts = [None if row is None else [cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    filled = [row for row in texts if row is not None]
    sizes = [max([len(header), *(row[k].cell_len for row in filled)]) for k, header in enumerate(headers)]
    kept = list(range(len(headers)))
    for place in drop:
        if total_width([sizes[k] for k in kept]) > width:
            kept.remove(place)
    room = max(width - total_width([sizes[k] for k in kept[1:]]) - _GAP, _LEAST_NAME)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", padding=(0, _GAP - 1, 0, 0))
    names = {row[0].plain for row in filled}
    folded = len({name[: room - 1] if len(name) > room else name for name in names}) < len(names)
    table.add_column(headers[0], no_wrap=not folded, overflow="fold" if folded else "ellipsis", width=min(sizes[0], room))
    for k in kept[1:]:
        table.add_column(headers[k], justify="right" if headers[k] else "left", no_wrap=True, min_width=sizes[k])
    for row in texts:
        if row is None:
            table.add_section()
        else:
            table.add_row(*(row[k] for k in kept))
    return table


def total_width(sizes: Sequence[int]) -> int:
    """Width of columns of these sizes side by side."""
    return sum(sizes) + _GAP * (len(sizes) - 1)
