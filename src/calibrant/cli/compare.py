"""``calibrant compare``: a grid of data, methods and seeds in, a folder of runs, tables, figures and a report out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from calibrant.cli.grid_display import GridDisplay
from calibrant.cli.grid_table import show_table
from calibrant.cli.train import parse_settings
from calibrant.engine.recipe import load_recipe
from calibrant.grid.captions import NOT_IN_PAPER
from calibrant.grid.compare import Comparison, compare
from calibrant.grid.schedule import Stage


@dataclass(frozen=True)
class Options:
    """The options of the command that say where and how the grid is run, as typed."""

    out: Path
    seeds: str = "1"
    jobs: int | None = None
    threads: int = 1
    on: str = "local"
    ray_address: str | None = None
    retries: int = 1
    add: Sequence[str] = ()
    paper: bool = False
    figures: bool = True


def compare_methods(
    file: Path | None,
    *,
    data: Sequence[str],
    methods: str,
    keys: Mapping[str, object],
    settings: Sequence[str],
    options: Options,
) -> None:
    """Run a grid, show it while it goes on, and print the table.

    Args:
        file: Recipe that the runs have in common, or None.
        data: Names or paths of data sets; the recipe's own by default.
        methods: Names of methods, with commas.
        keys: Dotted key of the recipe → value; None where nothing was said.
        settings: Further ones as ``KEY=VALUE``.
        options: Where and how.
    """
    recipe = None if file is None else load_recipe(file)
    if not data and recipe is None:
        raise ValueError("compare: `--data` must name a data set (`calibrant data list`), got none.")
    changes = {key: value for key, value in keys.items() if value is not None} | parse_settings(settings)
    display = GridDisplay()
    try:
        with display:
            found = compare(
                data or [recipe.data.name if recipe is not None else ""],
                methods=methods,
                out=options.out,
                seeds=options.seeds,
                recipe=recipe,
                settings=changes,
                jobs=options.jobs,
                threads=options.threads,
                on=options.on,
                ray_address=options.ray_address,
                retries=options.retries,
                add=options.add,
                paper=options.paper,
                figures=options.figures,
                watch=display.watch,
            )
    except KeyboardInterrupt:
        print(f"calibrant: interrupted{_so_far(display)}. The same command goes on.", file=sys.stderr)
        raise typer.Exit(130) from None
    summarize(found)
    if found.failures:
        raise typer.Exit(1)


def _so_far(display: GridDisplay) -> str:
    board = display.board
    return "" if board is None else f", {board.count(Stage.DONE)} of {len(board.states)} runs are finished"


def summarize(found: Comparison) -> None:
    """Print the table of a grid, what was written, and what failed."""
    console = Console(highlight=False)
    if found.table is not None:
        show_table(found.table, console=console)
    for note in [*found.notes, *(note for note in (found.table.notes if found.table else ()) if note == NOT_IN_PAPER)]:
        console.print(note, soft_wrap=True)
    names = dict.fromkeys(file.relative_to(found.folder).parts[0] for file in found.files)
    shown = ["runs/", *(f"{name}/" if (found.folder / name).is_dir() else name for name in names)]
    console.print(f"written to {found.folder}: {', '.join(shown)}", soft_wrap=True)
    for failure in found.failures:
        said = "" if failure.log is None else f" (log: {failure.log})"
        print(f"calibrant: {failure.name} failed: {failure.reason}{said}", file=sys.stderr)
    if found.failures:
        print("calibrant: the same command tries again what failed.", file=sys.stderr)
