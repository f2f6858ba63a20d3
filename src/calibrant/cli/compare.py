"""``calibrant compare``, ``reproduce`` and ``results``: a grid of runs in; tables, figures, a report and records out.

A grid is shown live while it runs; where nobody watches, in one line for every run that ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table as Shown
from rich.text import Text

from calibrant.calibrators.auto import calibrator_of
from calibrant.cli.terminal import Row, Terminal, duration_words, fit_table, fits, say, says_how_to_go_on, show_heading
from calibrant.cli.train import merge_settings
from calibrant.engine.folder import is_finished
from calibrant.engine.recipe import load_recipe
from calibrant.grid.collect import find_runs, load_variants, save_results
from calibrant.grid.compare import Comparison, compare
from calibrant.grid.export import write_number
from calibrant.grid.paper import NOT_IN_PAPER
from calibrant.grid.schedule import Board, Cell, Event, Stage, split_names
from calibrant.grid.tables import MARK
from calibrant.metrics.verdict import SIGNIFICANT
from calibrant.paper.reproduce import Reproduction, plan_reproduction, run_reproduction
from calibrant.paper.tables import write_results_page
from calibrant.report.rows import INFO_NAMES, Table
from calibrant.report.rows import Row as TableRow

_MAKING = "making tables and the report"
_LEGEND = "done: test error / ECE in %; running: epoch, validation error"
# In place of bold, where there is none.
_BEST = "*"
# Left out first where a terminal is narrow. Error and ECE stay, and what tells rows of one method apart.
_DROP = ("p if calibrated", "Classwise ECE", "MCE", "ACE", "NLL", "Seeds")


def compare_methods(
    recipe: Path | None,
    *,
    methods: str,
    data: Sequence[str] | None,
    settings: Sequence[str] | None,
    add: Sequence[str] | None,
    options: Mapping[str, object],
    **how: Any,
) -> None:
    """Run a grid, show it while it goes on, and print the table; ``how`` are further arguments of `calibrant.compare`."""
    common = None if recipe is None else load_recipe(recipe)
    if not data and common is None:
        raise ValueError("compare: `--data` must name a data set (`calibrant data list`), got none.")
    if not methods.strip() and not add:
        raise ValueError("compare: `--methods` must name methods to train, or `--add` predictions to compare, got neither.")
    display = GridDisplay()
    with display.open():
        found = compare(
            data or [common.data.name if common is not None else ""],
            methods=methods,
            recipe=common,
            settings=merge_settings(options, settings or []),
            add=add or (),
            watch=display.watch,
            **how,
        )
    summarize(found)


def summarize(found: Comparison) -> None:
    """Print the table of a grid, what was written, and what failed; leave with exit code 1 if anything did."""
    console = Terminal()
    if found.table is not None:
        show_table(found.table, console=console)
    if found.table is not None and NOT_IN_PAPER in found.table.notes:
        console.print(NOT_IN_PAPER, soft_wrap=True)
    names = ["runs"] if any((found.folder / "runs").glob("*")) else []
    names += dict.fromkeys(file.relative_to(found.folder).parts[0] for file in found.files)
    if names:
        shown = [f"{name}/" if (found.folder / name).is_dir() else name for name in names]
        console.print(f"written to {found.folder}: {', '.join(shown)}", soft_wrap=True)
    for sentence in failure_words(found.failures):
        say(f"calibrant: {sentence}", error=True)
    if found.failures:
        raise typer.Exit(1)


def failure_words(failures: Sequence[Cell]) -> list[str]:
    """Say what failed, each reason once."""
    reasons: dict[str, list[Cell]] = {}
    for cell in failures:
        # What has no log never began: the run it was to be made of failed, each another.
        reasons.setdefault(cell.text if cell.log else "the run it is made of failed", []).append(cell)
    said = [
        f"{first.name}{f' and {len(others)} more' if others else ''} failed: {reason}"
        + (f" (log: {first.log})" if first.log else "")
        for reason, (first, *others) in reasons.items()
    ]
    again = "the same command tries again what failed; if the reason lies in data, network or settings, change that first."
    return [*said, again] if said else []


class GridDisplay:
    """Shows a board as it changes; its `watch` is what a grid is to be run with, inside `open`."""

    def __init__(self, *, console: Console | None = None) -> None:
        self.console = Terminal(soft_wrap=True) if console is None else console
        self.board: Board | None = None
        self._is_over = False

    @contextmanager
    def open(self) -> Iterator[None]:
        """Draw the board, where that is a terminal, and say how far it was where the block is interrupted."""
        live = (
            Live(console=self.console, transient=True, get_renderable=self._draw) if self.console.is_terminal else nullcontext()
        )
        with says_how_to_go_on(self._so_far), live:
            yield

    def watch(self, board: Board, event: Event | None) -> None:
        """Show what happened."""
        first, self.board = self.board is None, board
        if self.console.is_terminal:
            return
        if first:
            left = "; a line for each that ends" if board.count(Stage.WAITING) else ""
            self.console.print(f"{board.count(Stage.DONE)} of {len(board.cells)} runs are finished{left}")
        if event is not None and event.kind != "step":
            self.console.print(ended_words(board, board.cells[event.name]))
        elif is_over(board) and not self._is_over:
            self._is_over = True
            self.console.print(_MAKING)

    def _draw(self) -> RenderableType:
        return "" if self.board is None else draw_board(self.board, width=self.console.width)

    def _so_far(self) -> str:
        board = self.board
        return "" if board is None else f", {board.count(Stage.DONE)} of {len(board.cells)} runs are finished"


def is_over(board: Board) -> bool:
    """Whether no run of a grid is left."""
    return not board.count(Stage.WAITING, Stage.RUNNING)


def draw_board(board: Board, *, width: int) -> RenderableType:
    """Return the grid as tables, one for every data set: methods down, seeds across; above them how far it is."""
    parts: list[RenderableType] = []
    shown = [cell for cell in board.cells.values() if cell.shown or cell.stage in (Stage.RUNNING, Stage.FAILED)]
    for data in dict.fromkeys(cell.data for cell in shown):
        parts += [Text(), _seed_table(data, [cell for cell in shown if cell.data == data], width=width)]
    # Above the tables, where a terminal too low for all of them does not cut it off.
    above = ((total_words(board), ""), (_LEGEND, "dim"))
    return Group(*(Text(words, style=style, no_wrap=False, overflow="fold") for words, style in above), *parts)


def _seed_table(data: str, cells: Sequence[Cell], *, width: int) -> Shown:
    seeds = list(dict.fromkeys(cell.seed for cell in cells))
    methods = list(dict.fromkeys(cell.method for cell in cells))
    texts = {(cell.method, cell.seed): cell_text(cell) for cell in cells}
    rows: list[Row] = [[m, *(texts.get((m, seed), "") for seed in seeds)] for m in methods]
    table = fit_table((data, *(f"seed {seed}" for seed in seeds)), rows, width=width)
    if fits(table, width):
        return table
    # No room for every seed: count those in each stage.
    counts = {m: [sum(c.stage is stage for c in cells if c.method == m) for stage in Stage] for m in methods}
    rows = [[m, *(str(number or "") for number in counts[m])] for m in methods]
    return fit_table((data, *Stage), rows, width=width, drop=(1,))


def cell_text(cell: Cell) -> Text:
    """Return what a cell shows: error and ECE of the test set at its end; epoch and validation error on its way."""
    if cell.stage is Stage.DONE:
        return Text(" / ".join(_numbers(cell).values()) or "done", style="dim" if cell.found else "green")
    if cell.stage is Stage.FAILED:
        return Text("failed", style="bold red")
    if cell.stage is Stage.WAITING:
        return Text("once more", style="yellow") if cell.text else Text("·", style="dim")
    if cell.total == 0 or not cell.epochs:
        return Text("scaling" if cell.total == 0 else "starting", style="cyan")
    error = cell.numbers.get("val_error")
    return Text(f"{int(cell.epochs)}/{cell.total}{'' if error is None else f' {100 * error:.1f}%'}", style="cyan")


def _numbers(cell: Cell) -> dict[str, str]:
    """Test error and ECE in per cent, where known."""
    known = {"error": cell.numbers.get("error"), "ECE": cell.numbers.get("ece")}
    return {name: f"{100 * value:.2f}" for name, value in known.items() if value is not None}


def total_words(board: Board) -> str:
    """Say how far a grid is and how long the rest will take."""
    words = [f"{board.count(Stage.DONE)}/{len(board.cells)} runs done"]
    words += [f"{board.count(stage)} {stage}" for stage in (Stage.RUNNING, Stage.FAILED) if board.count(stage)]
    words += [f"{duration_words(board.clock() - board.started)} passed", *_time_left(board)]
    return ", ".join([*words, *([_MAKING] if is_over(board) else [])])


def _time_left(board: Board) -> list[str]:
    left = board.seconds_left()
    return [f"about {duration_words(left)} left"] if left else []


def ended_words(board: Board, cell: Cell) -> str:
    """Say in one line what became of a run."""
    done = board.count(Stage.DONE, Stage.FAILED)
    place = f"[{done}/{len(board.cells)}] {cell.data} {cell.method} seed {cell.seed}"
    if cell.stage is not Stage.DONE:
        return f"{place}: {'failed' if cell.stage is Stage.FAILED else 'to be tried again'}, {cell.text}"
    said = [f"{name} {number}%" for name, number in _numbers(cell).items()] or ["done"]
    return f"{place}: {', '.join([*said, *_time_left(board)])}"


def show_table(table: Table, *, console: Console) -> None:
    """Print every section of a comparison's table, as wide as the terminal allows, and what its signs mean."""
    units = [f"{column.name} %" if column.percent else column.name for column in table.columns]
    names = ["Method", *(INFO_NAMES[name] for name in table.info), *units]
    drop = [place for word in _DROP for place, name in enumerate(names) if name.removesuffix(" %") == word]
    # Bold is nothing but a word where the terminal, or a file, has none.
    plain = console.color_system is None
    dropped: dict[str, None] = {}
    for section in table.sections:
        rows: list[Row] = [_row(table, row, plain=plain) for row in section.rows]
        fitted = fit_table(names, rows, width=console.width, drop=drop)
        show_heading(console, section.title, "")
        console.print(fitted)
        shown = {str(column.header) for column in fitted.columns}
        dropped |= {name.removesuffix(" %"): None for name in names if name not in shown}
    console.print()
    left_out = [f"not shown for want of room, but in {table.name}.md: {', '.join(dropped)}"] if dropped else []
    for note in [*_signs(table, plain=plain), *left_out]:
        console.print(Text(note, style="dim"))


def _signs(table: Table, *, plain: bool) -> list[str]:
    """What the numbers and their signs are, in one sentence; none where there is nothing to say."""
    cells = [cell for row in table.rows for cell in row.cells.values()]
    legend = ["mean ± standard deviation over seeds"] if any(cell.std is not None for cell in cells) else []
    if all(row.kind != "ours" for row in table.rows):
        legend.insert(0, f"method minus {table.base}, negative is better")
    legend += [f"{_BEST if plain else 'bold'}: the lowest comparable"] if any(cell.best for cell in cells) else []
    legend += [f"{MARK}: differs from {table.base}, p < {SIGNIFICANT}"] if any(cell.differs for cell in cells) else []
    return ["; ".join(legend)] if legend else []


def _row(table: Table, row: TableRow, *, plain: bool) -> list[str | Text]:
    style = "dim" if row.kind == "paper" else ""
    found: list[str | Text] = [Text(text, style=style) for text in (row.label, *map(row.info, table.info))]
    for column in table.columns:
        # A digit less than in the files, so that six columns find room.
        text = write_number(row, column, digits=2 if column.percent else 3, best=f"{{}}{_BEST}" if plain else "{}")
        is_best = column.key in row.cells and row.cells[column.key].best
        found.append(Text(text, style="bold" if is_best else style))
    return found


def reproduce(
    name: str,
    *,
    data: Sequence[str] | None,
    seeds: str | None,
    quick: bool,
    out: Path | None,
    jobs: int | None,
    settings: Sequence[str] | None,
    dry_run: bool,
    options: Mapping[str, object],
) -> None:
    """Say what an experiment takes, then run what is left of it and print its table; arguments as those of the command."""
    changes = merge_settings(options, settings or [])
    plan = plan_reproduction(name, data=split_names(data or []), seeds=seeds, quick=quick, settings=changes)
    folder = Path("reproduce", f"{name}-quick" if quick else name) if out is None else out
    _say_plan(plan, folder)
    if not dry_run:
        display = GridDisplay()
        with display.open():
            found = run_reproduction(plan, out=folder, jobs=jobs, watch=display.watch)
        summarize(found)


def _say_plan(plan: Reproduction, folder: Path) -> None:
    cells = plan.cells()
    first = cells[0].recipe
    size = f"{len(plan.data)} x {len(plan.methods)} x {len(plan.seeds)} = {sum(cell.shown for cell in cells)}"
    trained = sum(cell.base is None for cell in cells)
    left = sum(not is_finished(folder / "runs" / cell.name) for cell in cells)
    say(
        f"{plan.name}: {plan.title}",
        f"  data     {', '.join(plan.data)}",
        f"  methods  {', '.join(plan.methods)}",
        f"  seeds    {', '.join(map(str, plan.seeds))}",
        f"  network  {', '.join(dict.fromkeys(cell.recipe.backbone.name for cell in cells))}, {first.train.epochs} epochs, "
        f"preset {first.method.preset}",
        f"  runs     {size}, of which {trained} are trained; {left} are left in {folder}",
    )


def add_results(runs: Sequence[Path], *, to: Path, repair: Sequence[str] | None, note: str | None) -> None:
    """Keep finished runs, their alternatives and repairs as records in the folder ``to``, and print their names."""
    for name in repair or ():
        calibrator_of(name)  # a wrong name is told before anything is measured
    found = {path: find_runs(path) for path in runs}
    for path, there in found.items():
        if not there.finished:
            got = f"{len(there.unfinished)} not finished" if there.unfinished else "none" if path.exists() else "nothing there"
            raise ValueError(f"{path}: must hold finished runs, got {got}. Name a folder that was `--out` of train or compare.")
    folders = dict.fromkeys(folder for there in found.values() for folder in there.finished)
    rows = [row for folder in folders for row in load_variants(folder, repairs=repair or ())]
    say(*save_results(rows, to, note=note))


def render_results(folder: Path, *, out: Path, figures: Path | None) -> None:
    """Make one page of all records in a folder, and print what was written."""
    say(*write_results_page(folder, out=out, figures=figures))
