"""`compare`: a grid of data, methods and seeds in; run folders, tables, figures and a report out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryFile

from calibrant.core.effect import join_words
from calibrant.core.entry import Entry, data_name
from calibrant.engine.folder import is_finished, lock_folder
from calibrant.engine.recipe import Recipe
from calibrant.engine.setup import load_data
from calibrant.grid.added import Added, load_added
from calibrant.grid.collect import data_label, load_run_entry, test_numbers
from calibrant.grid.layout import Table
from calibrant.grid.local import LocalExecutor, visible_gpus
from calibrant.grid.outputs import write_outputs
from calibrant.grid.plan import Cell, check_data, check_finished, check_folders, check_out, parse_seeds, plan_cells
from calibrant.grid.ready import check_ready
from calibrant.grid.schedule import Board, CellState, Executor, Stage, Watch, run_cells
from calibrant.grid.unchanged import check_alike, check_unchanged

# Entries, a folder, and notes on rows that are missing → the table of them, and the files that were written.
Write = Callable[[Sequence[Entry], Path, Sequence[str]], tuple[Table, tuple[Path, ...]]]


@dataclass(frozen=True)
class Failure:
    """A cell that could not be run.

    Attributes:
        name: Its name.
        reason: Why, in one sentence.
        log: What its run said, or None if it never began.
    """

    name: str
    reason: str
    log: Path | None


@dataclass(frozen=True)
class Comparison:
    """What came of a grid.

    Attributes:
        folder: Where everything was written.
        entries: Its rows: the grid's finished runs in its order, then what was added.
        failures: What could not be run.
        table: The comparison; None where nothing was finished.
        files: What was written besides the runs.
        notes: What is to be said of what was added.
    """

    folder: Path
    entries: tuple[Entry, ...] = field(repr=False)
    failures: tuple[Failure, ...]
    table: Table | None = field(repr=False)
    files: tuple[Path, ...] = field(repr=False)
    notes: tuple[str, ...] = ()


def compare(
    data: str | Sequence[str],
    *,
    methods: str | Sequence[str] = (),
    out: str | Path,
    seeds: int | str | Sequence[int] = 1,
    recipe: Recipe | None = None,
    settings: Mapping[str, object] | None = None,
    jobs: int | None = None,
    threads: int = 1,
    on: str = "local",
    ray_address: str | None = None,
    retries: int = 1,
    add: str | Path | Sequence[str | Path] = (),
    paper: bool = False,
    figures: bool = True,
    write: Write | None = None,
    watch: Watch | None = None,
) -> Comparison:
    """Train every method on every data set from every seed, and compare what they predict.

    Every run has a folder of its own below ``out/runs``. Finished runs are not repeated, interrupted ones go on, and one that
    fails does not stop the others. On the CPU the numbers do not depend on ``jobs``, nor on where the grid runs.

    Args:
        data: Names or paths of data sets, as a list or as text with commas.
        methods: Names of methods; ``+ts`` behind one makes its run without training again. The first is what others are
            tested against. Without any, nothing is trained and what is added is compared; the first of that is the first row.
        out: Folder for everything.
        seeds: How many, from 0, or which.
        recipe: What the runs have in common; the paper's protocol by default, on embedded data a small network and few epochs.
        settings: Dotted keys of the recipe → value, ``{"train.epochs": 10}``; as ``METHOD:KEY`` for one method only.
        jobs: Runs at a time; by default as many as there are cores, or as fit on the GPUs.
        threads: Threads of a run on the CPU; another number rounds differently.
        on: "local" for this machine, "ray" for a Ray cluster.
        ray_address: Address of a running cluster; Ray is started on this machine if not given.
        retries: How often a run that was killed, or failed for want of memory or disk, is tried again.
        add: Other run folders, predictions or records to put below; see `calibrant.grid.collect.load_entries`. Predictions are
            taken to be of the grid's data set; where it has several, ``"DATA=PATH"`` says of which.
        paper: Put the paper's numbers below ours.
        figures: Whether to draw figures, which takes some seconds.
        write: Writes what is made of the entries into ``out``, in place of the usual table, figures and report.
        watch: Called with the board and what happened on it, and at the end before tables are made; see
            `calibrant.grid.schedule`.

    Returns:
        The comparison. Raises ``ValueError`` or ``OSError`` with one sentence, before anything is run, if a name is unknown,
        data are missing or cannot be used, a network cannot be built, a batch cannot be filled, or a folder holds a run by
        another recipe, of other data under the same path, or one that was finished and can no longer be read.

    Example:
        >>> from tempfile import mkdtemp
        >>> short = {"train.epochs": 1, "train.batch_size": 400}
        >>> found = compare("mixture", methods="ce,ce+ts", out=mkdtemp(), settings=short, jobs=1, figures=False)
        >>> [(entry.method, entry.scores.n) for entry in found.entries], found.failures
        ([('ce', 4000), ('ce+ts', 4000)], ())
    """
    folder = Path(out)
    if jobs is not None and jobs < 1 or threads < 1 or retries < 0:
        raise ValueError(f"compare: `jobs` and `threads` must be >= 1 and `retries` >= 0, got {jobs}, {threads} and {retries}.")
    names, parts = split_names(data), split_names(methods)
    others = [add] if isinstance(add, (str, Path)) else list(add)
    cells = _plan(names, parts, seeds, recipe=recipe, settings=settings, alone=bool(others))
    check_out(folder)
    check_folders(cells, folder / "runs")
    check_finished(cells, folder / "runs")
    # What two checks look at is read once, and let go before the first run.
    read = cache(load_data)
    check_unchanged(cells, folder / "runs", read=read)
    added = load_added(others, cells, runs=folder / "runs", sets=[data_label(name) for name in names])
    board = _board(cells, folder / "runs")
    left = [state.cell for state in board.states.values() if state.stage is Stage.WAITING]
    check_data(left)
    start = _executor(cells, on=on, jobs=jobs, threads=threads, address=ray_address)
    check_ready(left, on=on, read=read)
    read.cache_clear()
    _make(folder, runs=bool(cells))
    if watch is not None:
        watch(board, None)
    with closing(lock_folder(folder, where="compare")):
        if board.count(Stage.WAITING):
            run_cells(board, start(), runs=folder / "runs", logs=folder / "logs", retries=retries, watch=watch)
        if watch is not None:
            watch(board, None)
        usual = partial(write_outputs, paper=paper, figures=figures)
        return _finish(board, folder, added, methods=parts, write=write or usual)


def split_names(names: str | Sequence[str]) -> list[str]:
    """Return names given as a list or as text with commas, each once."""
    parts = names.split(",") if isinstance(names, str) else [part for name in names for part in str(name).split(",")]
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _plan(
    names: Sequence[str],
    methods: Sequence[str],
    seeds: int | str | Sequence[int],
    *,
    recipe: Recipe | None,
    settings: Mapping[str, object] | None,
    alone: bool,
) -> tuple[Cell, ...]:
    """Lay out the grid; without methods there is none, where what is added is to be compared ``alone``."""
    if methods or not alone:
        return plan_cells(names, methods, parse_seeds(seeds), recipe=recipe, settings=settings)
    if recipe is not None or settings:
        told = "a recipe" if recipe is not None else f"`{next(iter(settings or {}))}`"
        raise ValueError(f"compare: {told} says nothing where no method is named, as then nothing is trained. Leave it out.")
    return ()


def _board(cells: Sequence[Cell], runs: Path) -> Board:
    board = Board(cells)
    for name, state in board.states.items():
        if is_finished(runs / name):
            state.stage, state.epochs, state.found = Stage.DONE, float(state.total), True
            state.numbers = test_numbers(runs / name)
    for state in board.states.values():
        # A base run that nobody asked for, and nothing waits for, need not be there.
        waited = [s for s in board.states.values() if s.cell.base == state.cell.name and s.stage is Stage.WAITING]
        if not state.cell.shown and state.stage is Stage.WAITING and not waited:
            state.stage, state.found = Stage.DONE, True
    return board


def _executor(cells: Sequence[Cell], *, on: str, jobs: int | None, threads: int, address: str | None) -> Callable[[], Executor]:
    """Choose where to run; what is missing for it is said now, while processes are started when it is called."""
    device = cells[0].recipe.train.device if cells else "auto"
    if address is not None and on != "ray":
        raise ValueError(f"compare: `ray_address` must come with on='ray' (`--on ray`), got {address!r} with on={on!r}.")
    if on == "ray":
        from calibrant.grid.ray import RayExecutor, require_ray

        require_ray()
        return lambda: RayExecutor(device=device, jobs=jobs, threads=threads, address=address)
    if on != "local":
        raise ValueError(f"compare: `on` must be 'local' or 'ray', got {on!r}.")
    visible_gpus(device)
    return lambda: LocalExecutor(device=device, jobs=jobs, threads=threads)


def _make(folder: Path, *, runs: bool) -> None:
    """Make the folder of a comparison; raises ``OSError`` with one sentence where that, or writing into it, cannot be done."""
    place, what = folder / "runs" if runs else folder, "made"
    try:
        place.mkdir(parents=True, exist_ok=True)
        place, what = folder, "written to"
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise type(error)(
            f"compare: the folder {place} cannot be {what} ({error.strerror}). Choose another with `--out`."
        ) from None


def _finish(board: Board, folder: Path, added: Added, *, methods: Sequence[str], write: Write) -> Comparison:
    states = board.states.values()
    done = [state for state in states if state.stage is Stage.DONE and state.cell.shown]
    # Runs go seed by seed, rows as the methods were named: the first is what the others are tested against.
    sets = list(dict.fromkeys(state.cell.data for state in states))
    done.sort(key=lambda state: (sets.index(state.cell.data), methods.index(state.cell.method)))
    check_alike([state.cell for state in done], folder / "runs")
    entries = [load_run_entry(folder / "runs" / state.cell.name) for state in done]
    failures = tuple(Failure(s.cell.name, s.text, s.log) for s in states if s.stage is Stage.FAILED)
    entries += added.entries
    table, files = write(entries, folder, _missing(states)) if entries else (None, ())
    return Comparison(folder, tuple(entries), failures, table, tuple(files), added.notes)


def _missing(states: Iterable[CellState]) -> list[str]:
    """Tell who reads the tables which rows are not, or not whole, in them."""
    failed: dict[tuple[str, str], list[int]] = {}
    for state in states:
        if state.stage is Stage.FAILED and state.cell.shown:
            failed.setdefault((state.cell.data, state.cell.method), []).append(state.cell.seed)
    said = [
        f"{method} on {data_name(data)} (seed{'' if len(seeds) == 1 else 's'} {join_words([str(seed) for seed in seeds])})"
        for (data, method), seeds in failed.items()
    ]
    return [f"Missing, as their runs failed: {join_words(said)}."] if said else []
