"""Progress on standard error, where a person is watching."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


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
