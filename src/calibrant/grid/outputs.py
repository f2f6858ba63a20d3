"""What a comparison leaves besides its runs: tables, figures and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calibrant.core.entry import Entry
from calibrant.grid.export import write_table
from calibrant.grid.layout import Table
from calibrant.grid.rows import tell_apart
from calibrant.grid.tables import compare_table
from calibrant.io.atomic import atomic_writer


def write_outputs(
    entries: Sequence[Entry], folder: Path, *, paper: bool = False, figures: bool = True
) -> tuple[Table, tuple[Path, ...]]:
    """Write ``table.*`` (Markdown, LaTeX, CSV, JSON), ``figures/`` and ``report.html`` into a folder.

    Args:
        entries: The rows, in their order.
        folder: Where to; files of an older comparison are replaced.
        paper: Put the paper's numbers below ours.
        figures: Whether to draw figures.

    Returns:
        The table, and the files.
    """
    # matplotlib takes a while to load, and is not needed until the last run has ended.
    from calibrant.grid.page_table import to_page_table
    from calibrant.report.figures import draw_all
    from calibrant.report.page import render_page

    table = compare_table(entries, paper=paper, calibrated=True, name="table")
    files = write_table(table, folder)
    # The page has a table of its own, without the paper's numbers.
    shown, rows = [to_page_table(table)] if paper else [], tell_apart(entries)
    page = folder / "report.html"
    with atomic_writer(page) as handle:
        # A name read from a file may hold half a surrogate pair, which UTF-8 has no bytes for.
        handle.write(render_page(entries=rows, tables=shown).encode(errors="replace"))
    drawn = draw_all(rows, folder / "figures").files if figures else []
    return table, (*files, page, *drawn)
