"""``calibrant compare``: a grid of data, methods and seeds in, a folder of runs, tables, figures and a report out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from calibrant.cli.grid_display import GridDisplay, show_table
from calibrant.cli.terminal import says_how_to_go_on
from calibrant.cli.train import merge_settings
from calibrant.engine.recipe import load_recipe
from calibrant.grid.compare import Comparison, Failure, compare
from calibrant.grid.paper import NOT_IN_PAPER
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
        methods: Names of methods, with commas; none where what is added is to be compared alone.
        keys: Dotted key of the recipe → value; None where nothing was said.
        settings: Further ones as ``KEY=VALUE``.
        options: Where and how.
    """
    recipe = None if file is None else load_recipe(file)
    if not data and recipe is None:
        raise ValueError("compare: `--data` must name a data set (`calibrant data list`), got none.")
    if not methods.strip() and not options.add:
        raise ValueError("compare: `--methods` must name methods to train, or `--add` predictions to compare, got neither.")
    changes = merge_settings(keys, settings)
    display = GridDisplay()
    with says_how_to_go_on(lambda: _so_far(display)), display:
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
    runs = ["runs/"] if any((found.folder / "runs").glob("*")) else []
    shown = [*runs, *(f"{name}/" if (found.folder / name).is_dir() else name for name in names)]
    if shown:
        console.print(f"written to {found.folder}: {', '.join(shown)}", soft_wrap=True)
    for sentence in failure_words(found.failures):
        print(f"calibrant: {sentence}", file=sys.stderr)


def failure_words(failures: Sequence[Failure]) -> list[str]:
    """Say what failed, each reason once.

    Example:
        >>> failed = [Failure(f"digits-mlp-{name}-seed0", "no room", Path("logs", f"{name}.log")) for name in ("ce", "focal")]
        >>> failure_words(failed)[0]
        '2 runs failed: no room (digits-mlp-ce-seed0 and digits-mlp-focal-seed0; logs in logs)'
    """
    reasons: dict[str, list[Failure]] = {}
    several = sum(failure.log is None for failure in failures) > 1
    for failure in failures:
        # What never began was to be made of a run that failed, each of another.
        made = several and failure.log is None
        reasons.setdefault("the run that each is made of failed" if made else failure.reason, []).append(failure)
    said = []
    for reason, alike in reasons.items():
        first = alike[0]
        if len(alike) == 1:
            said.append(f"{first.name} failed: {reason}{'' if first.log is None else f' (log: {first.log})'}")
        else:
            names = f"{first.name} and {alike[1].name}" if len(alike) == 2 else f"{first.name} to {alike[-1].name}"
            logs = "" if first.log is None else f"; logs in {first.log.parent}"
            said.append(f"{len(alike)} runs failed: {reason} ({names}{logs})")
    if said:
        said.append(
            "the same command tries again what failed; if the reason lies in data, network or settings, change that first."
        )
    return said
