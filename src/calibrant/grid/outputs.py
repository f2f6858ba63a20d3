"""What a comparison leaves besides its runs: tables, figures and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calibrant.core.entry import Entry
from calibrant.grid.export import write_table
from calibrant.grid.layout import Table
from calibrant.grid.tables import compare_table
from calibrant.io.atomic import atomic_writer


def write_outputs(entries: Sequence[Entry], folder: Path, *, paper: bool = False) -> tuple[Table, tuple[Path, ...]]:
    """Write ``table.*`` (Markdown, LaTeX, CSV, JSON), ``figures/`` and ``report.html`` into a folder.

    Args:
        entries: The rows, in their order.
        folder: Where to; files of an older comparison are replaced.
        paper: Put the paper's numbers below ours.

    Returns:
        The table, and the files.
    """
    from calibrant.report.page import render_page

    table = compare_table(entries, paper=paper, calibrated=True, name="table")
    files = write_table(table, folder)
    page = folder / "report.html"
    with atomic_writer(page) as handle:
        # A name read from a file may hold half a surrogate pair, which UTF-8 has no bytes for.
        handle.write(render_page(entries=entries).encode(errors="replace"))
    return table, (*files, page)
