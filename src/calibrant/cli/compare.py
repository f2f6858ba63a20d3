"""``calibrant compare``, ``reproduce`` and ``results``: a grid of runs in; tables, figures, a report and records out.

While a grid runs, there is a line for every run that ends; a terminal shows those that go on, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from calibrant.cli.terminal import Terminal, fit_table, make_bar, say, says_how_to_go_on, show_heading
from calibrant.cli.train import merge_settings
from calibrant.engine.recipe import load_recipe
from calibrant.engine.run import is_finished
from calibrant.grid.collect import finished_runs, load_variants, save_results
from calibrant.grid.compare import Comparison, compare
from calibrant.grid.export import write_number
from calibrant.grid.schedule import Board, Cell, Event, Watch, split_names
from calibrant.grid.tables import MARK
from calibrant.metrics.verdict import SIGNIFICANT
from calibrant.paper.reproduce import Reproduction, plan_reproduction, run_reproduction, write_duration, write_results_page
from calibrant.report.rows import INFO_NAMES, Row, Table

# Left out where a terminal is narrow, after what packages add. Error and ECEs stay, and what tells rows of one method apart.
_DROP = ("calibrated", "trained", "classwise_ece", "mce", "ace", "nll", "seeds")


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
    with show_grid() as watch:
        found = compare(
            data or ([] if common is None else [common.data.name]),
            methods=methods,
            recipe=common,
            settings=merge_settings(options, settings or []),
            add=add or (),
            watch=watch,
            **how,
        )
    summarize(found)


def summarize(found: Comparison) -> None:
    """Print the table of a grid, what was written, and what failed; leave with exit code 1 if anything did."""
    console = Terminal()
    if found.table is not None:
        show_table(found.table, console=console)
    names = dict.fromkeys(file.relative_to(found.folder).parts[0] for file in found.files)
    if names:
        console.print(f"written to {found.folder}: {', '.join(names)}", soft_wrap=True)
    for cell in found.failures:
        say(f"calibrant: {cell.name} failed: {cell.text}{f' (log: {cell.log})' if cell.tries else ''}", error=True)
    if found.failures:
        again = "the same command tries again what failed; if the reason lies in data or settings, change that first."
        say(f"calibrant: {again}", error=True)
        raise typer.Exit(1)


@contextmanager
def show_grid(console: Terminal | None = None) -> Iterator[Watch]:
    """Yield what a grid is to be run with: it writes a line for every run that ends; a terminal shows bars of those that go on.

    Where the block is interrupted, it says how far the grid was.
    """
    console = console or Terminal(soft_wrap=True)
    bar, boards = make_bar(console), list[Board]()
    whole = bar.add_task("all runs")

    def watch(board: Board, event: Event | None) -> None:
        cells = board.cells.values()
        if not boards:
            boards.append(board)
            for cell in cells:
                bar.add_task(_called(cell), total=cell.total, visible=False)
            console.print(f"{done_words(board)}{'; a line for each that ends' if board.count('waiting') else ''}")
        elif event is None and not board.count("waiting", "running"):
            console.print("making tables and the report")
        elif event is not None and event.kind != "step":
            console.print(ended_words(board, board.cells[event.name], bar.tasks[0].time_remaining))
        ended = sum(cell.total if cell.stage in ("done", "failed") else cell.epochs for cell in cells)
        bar.update(whole, total=sum(cell.total for cell in cells), completed=ended)
        for task, cell in zip(bar.task_ids[1:], cells, strict=True):
            bar.update(task, completed=cell.epochs, visible=cell.stage == "running")

    with says_how_to_go_on(lambda: "".join(f", {done_words(board)}" for board in boards)), bar:
        yield watch


def done_words(board: Board) -> str:
    """Say how many runs of a grid are finished."""
    return f"{board.count('done')} of {len(board.cells)} runs are finished"


def ended_words(board: Board, cell: Cell, left: float | None) -> str:
    """Say in one line what became of a run, and how many seconds are ``left``, if that is known."""
    said = f"[{board.count('done', 'failed')}/{len(board.cells)}] {_called(cell)}"
    if cell.stage != "done":
        return f"{said}: {'failed' if cell.stage == 'failed' else 'to be tried again'}, {cell.text}"
    numbers = f"error {100 * cell.numbers['error']:.2f}%, ECE {100 * cell.numbers['ece']:.2f}%"
    return f"{said}: {numbers}{f', about {write_duration(left)} left' if left else ''}"


def _called(cell: Cell) -> str:
    return f"{cell.data} {cell.method} seed {cell.recipe.seed}"


def show_table(table: Table, *, console: Terminal) -> None:
    """Print every section of a comparison's table, as wide as the terminal allows, and what its signs mean."""
    units = [f"{column.name} %" if column.percent else column.name for column in table.columns]
    names = ["Method", *(INFO_NAMES[name] for name in table.info), *units]
    keys = ["", *table.info, *(column.key for column in table.columns)]
    added = [column.key for column in table.columns if column.key not in ("error", "ece", "binary_ece", *_DROP)]
    drop = [keys.index(key) for key in (*added, *_DROP) if key in keys]
    # A sign in place of bold, where the terminal, or a file, has none.
    best = "*" if console.color_system is None else ""
    for section in table.sections:
        rows = [_row(table, row, best=best) for row in section.rows]
        show_heading(console, section.title, "")
        console.print(fit_table(names, rows, width=console.width, drop=drop))
    console.print()
    if signs := _signs(table, best=best):
        console.print(Text(signs, "dim"))


def _signs(table: Table, *, best: str) -> str:
    """What the numbers and their signs are, in one sentence."""
    cells = [cell for row in table.rows for cell in row.cells.values()]
    legend = ["mean ± standard deviation over seeds"] if any(cell.std is not None for cell in cells) else []
    if all(row.kind != "ours" for row in table.rows):
        legend.insert(0, f"method minus {table.base}, negative is better")
    legend += [f"{best or 'bold'}: the best comparable"] if any(cell.best for cell in cells) else []
    legend += [f"{MARK}: differs from {table.base}, p < {SIGNIFICANT}"] if any(cell.differs for cell in cells) else []
    return "; ".join(legend)


def _row(table: Table, row: Row, *, best: str) -> list[str | Text]:
    style = "dim" if row.kind == "paper" else ""
    found: list[str | Text] = [Text(text, style=style) for text in (row.label, *map(row.info, table.info))]
    for column in table.columns:
        # A digit less than in the files, so that six columns find room.
        text = write_number(row, column, digits=2 if column.percent else 3, best=f"{{}}{best}")
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
        with show_grid() as watch:
            found = run_reproduction(plan, out=folder, jobs=jobs, watch=watch)
        summarize(found)


def _say_plan(plan: Reproduction, folder: Path) -> None:
    cells = plan.cells(folder)
    first = cells[0].recipe
    size = f"{len(plan.data)} x {len(plan.methods)} x {len(plan.seeds)} = {sum(cell.shown for cell in cells)}"
    trained = sum(cell.base is None for cell in cells)
    left = sum(not is_finished(cell.folder) for cell in cells)
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
    found = [folder for path in runs for folder in finished_runs(path)]
    rows = [row for folder in dict.fromkeys(found) for row in load_variants(folder, repairs=repair or ())]
    say(*save_results(rows, to, note=note))


def render_results(folder: Path, *, out: Path, figures: Path | None) -> None:
    """Make one page of all records in a folder, and print what was written."""
    say(*write_results_page(folder, out=out, figures=figures))
