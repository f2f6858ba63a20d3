"""What all commands share in a terminal: tables that fit, progress bars, where results may be written, how to be stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
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


@contextmanager
def progress_bar(text: str, total: float | None) -> Iterator[Callable[[float], None]]:
    """Show a bar that goes away when done; nothing is shown where standard error is not a terminal.

    Args:
        text: What is being done.
        total: How much there is to do; None for work of unknown size.

    Yields:
        A function to call with the amount just done.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(text, total=total)
        yield lambda amount: bar.advance(task, amount)


def check_destination(out: Path, endings: Collection[str]) -> None:
    """Raise before a long computation if its result could not be written.

    Args:
        out: The file to write.
        endings: Endings that its name may have, with their dots.
    """
    if out.suffix.lower() not in endings:
        raise ValueError(f"{out}: the file name must end in {', '.join(endings)}, got {out.suffix or 'no ending'!r}.")
    folder = out.resolve().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{out}: the folder {out.parent} must exist before a file is written to it. Create it first.")
    if out.is_dir():
        raise IsADirectoryError(f"{out}: must be a file, got a folder. Add a file name to it.")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{out}: the folder {out.parent} must be writable, got one that is not. Choose another.")


@contextmanager
def says_how_to_go_on(so_far: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Leave with a sentence where the block is interrupted (exit code 130) or the process told to terminate (143).

    Args:
        so_far: Says how far it was, as ``", 1 of 2 runs are finished"``.
    """
    told = False

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = True
        # Who asks a second time does not want to wait for anything.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    # Python lets only the main thread set it; elsewhere nobody is there to read the sentence.
    before = signal.signal(signal.SIGTERM, terminate) if threading.current_thread() is threading.main_thread() else None
    try:
        yield
    except KeyboardInterrupt:
        print(f"calibrant: interrupted{so_far()}. The same command goes on.", file=sys.stderr)
        raise typer.Exit(143 if told else 130) from None
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
