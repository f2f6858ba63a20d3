"""What commands share: options, tables that fit, progress bars, where results may be written, how to be stopped."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

Row = Sequence[str | Text]
# What moves the cursor, changes colours or the direction of text: control characters but tab and newline.
_CONTROLS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")
_GAP = 2
_LEAST_NAME = 10
# Lines of prose longer than this are hard to read, however wide the terminal is.
_PROSE_WIDTH = 100


@dataclass(frozen=True)
class Options:
    """Options of commands that read predictions: how to read and to measure them."""

    slice_by: Annotated[
        list[str] | None,
        typer.Option("--slice", metavar="COLUMN", help="Measure each group of this column too; A,B crosses two."),
    ] = None
    class_names: Annotated[Path | None, typer.Option(metavar="FILE", help="Names of the classes, one per line or JSON.")] = None
    ignore_index: Annotated[
        int | None, typer.Option(min=-(10**9), max=10**9, metavar="LABEL", help="Leave out examples with this label.")
    ] = None
    prob_column: Annotated[str | None, typer.Option(metavar="NAME", help="Table column with P(positive), for two classes.")] = (
        None
    )
    label_column: Annotated[str | None, typer.Option(metavar="NAME", help="Table column with the labels.")] = None
    n_bins: Annotated[int, typer.Option(min=1, max=3000, metavar="M", help="Bins of the binned metrics.")] = 15
    resamples: Annotated[
        int, typer.Option(min=100, max=100_000, metavar="N", help="Bootstrap resamples for the intervals.")
    ] = 1000
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the bootstrap.")] = 0


class Terminal(Console):
    """Where all commands print. Names of files, classes and groups are no markup here and cannot steer the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Leave out control characters; rich adds its own later."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_CONTROLS.sub("", segment.text), segment.style)


def say(*lines: object, error: bool = False) -> None:
    """Print lines as they are, but for control characters."""
    text = "\n".join(map(str, lines))
    print(_CONTROLS.sub("", text), file=sys.stderr if error else sys.stdout, flush=True)


def fit_table(headers: Sequence[str], rows: Sequence[Row], *, width: int, drop: Sequence[int] = ()) -> Table:
    """Lay out a table whose first column holds names, which may be folded, and the others numbers or, under no header, words.

    Where it is wider than ``width``, columns at the positions ``drop`` are left out in this order, each with all others of its
    name, which then stands below.
    """
    # What a name holds is never read as markup.
    texts = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    sizes = [max([len(header), *(row[k].cell_len for row in texts)]) for k, header in enumerate(headers)]
    kept = list(range(len(headers)))
    for place in drop:
        if sum(sizes[k] + _GAP for k in kept) - _GAP > width:
            kept = [k for k in kept if headers[k] != headers[place]]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", padding=(0, _GAP - 1, 0, 0))
    if missing := dict.fromkeys(name for k, name in enumerate(headers) if name and k not in kept):
        table.caption = Text(f"not shown for want of room: {', '.join(missing)}", "dim", justify="left")
    table.add_column(headers[0], overflow="fold", min_width=min(sizes[0], _LEAST_NAME))
    for k in kept[1:]:
        table.add_column(headers[k], justify="right" if headers[k] else "left", no_wrap=True, min_width=sizes[k])
    for row in texts:
        table.add_row(*(row[k] for k in kept))
    return table


def show_heading(console: Console, title: str, rest: str) -> None:
    """Print the heading of a part, with a remark beside it."""
    console.print()
    console.print(Text.assemble((title, "bold cyan"), (f"  {rest}" if rest else "", "dim")), soft_wrap=False)


def show_prose(console: Console, text: str, *, style: str = "") -> None:
    """Print a paragraph in lines of a length that is easy to read."""
    console.print(Text(text, style=style), width=min(console.width, _PROSE_WIDTH))


def make_bar(console: Console, *, shown: bool = True) -> Progress:
    """Make a bar that a terminal shows while it is open, and that leaves nothing behind."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))


@contextmanager
def progress_bar(text: str, total: float | None) -> Iterator[Callable[[float], None]]:
    """Show a bar on standard error; yield a function that moves it on by an amount of ``total``, if known."""
    with make_bar(Terminal(stderr=True)) as bar:
        task = bar.add_task(text, total=total)
        yield lambda amount: bar.advance(task, amount)


def check_destination(out: Path, endings: Collection[str]) -> None:
    """Raise before a long computation if its result could not be written to ``out``, whose name may have these endings."""
    from calibrant.io.files import check_ending  # with all of `io`, which takes a while

    check_ending(out, endings)
    if not out.resolve().parent.is_dir():
        raise FileNotFoundError(f"{out}: the folder {out.parent} must exist before a file is written to it. Create it first.")


@contextmanager
def says_how_to_go_on(so_far: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Leave with a sentence, and how far it was, where the block is interrupted (exit code 130) or told to end (143)."""
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    except KeyboardInterrupt as stop:
        say(f"calibrant: interrupted{so_far()}. The same command goes on.", error=True)
        raise typer.Exit(143 if stop.args else 130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(number: int, frame: FrameType | None) -> None:
    # Who asks a second time does not want to wait for anything.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise KeyboardInterrupt(number)
