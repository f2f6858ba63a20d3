"""`compare`: a grid of data, methods and seeds in; run folders, tables, figures and a report out.

What can be known before the first run is checked before it: folders, finished runs, data, and the rows added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from calibrant.core.checks import lookup
from calibrant.core.records import Entry
from calibrant.data.image_set import ImageSet, fingerprint
from calibrant.data.sets import set_name
from calibrant.engine.batches import check_batch_size, check_same_data, is_own, load_data
from calibrant.engine.recipe import Recipe
from calibrant.engine.run import check_same_run, is_finished, lock_folder, read_facts, read_recipe
from calibrant.engine.train import divide_rows
from calibrant.grid.collect import (
    UNKNOWN,
    catalogue_order,
    check_same_labels,
    load_entries,
    load_run_entry,
    without_repeats,
)
from calibrant.grid.executors import LocalExecutor, RayExecutor, run_cells
from calibrant.grid.export import write_outputs
from calibrant.grid.schedule import Board, Cell, Watch, parse_seeds, plan_cells, split_names
from calibrant.report.figures import GRID_BINS
from calibrant.report.rows import Table, group_rows

# Entries, a folder, and notes on rows that are missing → the table of them, and the files that were written.
Write = Callable[[Sequence[Entry], Path, Sequence[str]], tuple[Table, tuple[Path, ...]]]


@dataclass(frozen=True)
class Comparison:
    """The result of a grid.

    Attributes:
        folder: Where everything was written.
        entries: Its rows: the grid's finished runs in its order, then what was added.
        failures: The cells that failed: each has a ``name``, the reason as ``text``, and, if it began, a ``log``.
        table: The comparison; None where nothing was finished.
        files: What was written besides the runs.
    """

    folder: Path
    entries: tuple[Entry, ...] = field(repr=False)
    failures: tuple[Cell, ...]
    table: Table | None = field(repr=False)
    files: tuple[Path, ...] = field(repr=False)


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

    Every run has a folder of its own below ``out/runs``. Finished runs are not repeated, interrupted ones continue, and one
    that fails does not stop the others. On the CPU the numbers do not depend on ``jobs``, nor on where the grid runs.

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
        add: Other run folders, predictions or records to put below; see `calibrant.grid.load_entries`. Predictions are
            taken to be of the grid's data set; where it has several, ``"DATA=PATH"`` says of which.
        paper: Put the paper's numbers below ours.
        figures: Whether to draw figures, which takes some seconds.
        write: Writes what is made of the entries into ``out``, in place of the usual table, figures and report.
        watch: Called with the board and what happened on it, and at the end before tables are made; see
            `calibrant.grid.schedule`.

    Returns:
        The comparison. Raises ``ValueError`` or ``OSError`` with one sentence, before anything is run, if a name is unknown,
        data are missing or too few for a batch, or a folder holds a run by another recipe, of other data under the same path,
        or one that was finished and can no longer be read.

    Example:
        >>> from tempfile import mkdtemp
        >>> short = {"train.epochs": 1, "train.batch_size": 400}
        >>> found = compare("mixture", methods="ce,ce+ts", out=mkdtemp(), settings=short, jobs=1, figures=False)
        >>> [(entry.method, entry.scores.n) for entry in found.entries], found.failures
        ([('ce', 4000), ('ce+ts', 4000)], ())
    """
    if jobs is not None and jobs < 1 or threads < 1 or retries < 0:
        raise ValueError(f"compare: `jobs` and `threads` must be >= 1 and `retries` >= 0, got {jobs}, {threads} and {retries}.")
    if on not in ("local", "ray") or (ray_address is not None and on == "local"):
        raise ValueError(
            f"compare: `on` must be 'local', or 'ray' with or without a `ray_address`, got {on!r} and {ray_address!r}."
        )
    folder, names, parts = Path(out), split_names(data), split_names(methods)
    others = [add] if isinstance(add, (str, Path)) else list(add)
    cells: tuple[Cell, ...] = ()
    if parts or not others:
        cells = plan_cells(names, parts, parse_seeds(seeds), out=folder, recipe=recipe, settings=settings)
    elif recipe is not None or settings:
        raise ValueError("compare: `methods` must be named if a recipe or settings are given, as nothing is trained without.")
    found = load_finished(cells)
    board = Board(cells)
    board.note_finished()
    tests = check_data(cells)
    added = load_added(others, finished=[*found.values()], sets=[set_name(name) for name in names], tests=tests)
    executor: LocalExecutor | RayExecutor | None = None
    if board.count("waiting"):
        device = cells[0].recipe.train.device
        if on == "ray":
            executor = RayExecutor(device=device, jobs=jobs, threads=threads, address=ray_address)
        else:
            executor = LocalExecutor(device=device, jobs=jobs, threads=threads)
    folder.mkdir(parents=True, exist_ok=True)
    tell = watch or (lambda board, event: None)
    tell(board, None)
    with lock_folder(folder, where="compare"):
        if executor is not None:
            run_cells(board, executor, retries=retries, watch=tell)
        tell(board, None)
        done = [cell for cell in cells if cell.stage == "done" and cell.shown]
        # Runs go seed by seed, rows as data and methods were named: the first is what the others are tested against.
        done.sort(key=lambda cell: (names.index(cell.recipe.data.name), parts.index(cell.method)))
        entries = [*(found.get(cell.name) or load_run_entry(cell.folder) for cell in done), *added]
        failures = tuple(cell for cell in cells if cell.stage == "failed")
        # Who is handed the table alone sees that it is not whole.
        lost = ", ".join(cell.name for cell in failures if cell.shown)
        missing = [f"Missing, as their runs failed: {lost}."] if lost else []
        make = write or partial(write_outputs, paper=paper, bins=GRID_BINS if figures else ())
        table, files = make(entries, folder, missing) if entries else (None, ())
    return Comparison(folder, tuple(entries), failures, table, tuple(files))


def load_finished(cells: Sequence[Cell]) -> dict[str, Entry]:
    """Read the finished runs of a grid that its table shows, by name, so that damage is found before hours of training.

    Raises ``ValueError`` if one cannot be read, or if a folder holds a run by another recipe than its cell's.
    """
    found = {}
    for cell in cells:
        if (cell.folder / "recipe.toml").exists():
            check_same_run(read_recipe(cell.folder), cell.recipe, where=str(cell.folder))
        if is_finished(cell.folder) and cell.shown:
            found[cell.name] = load_run_entry(cell.folder)
    return found


def check_data(cells: Sequence[Cell]) -> dict[str, ImageSet]:
    """Read the data of a grid before it is run, and return the test sets, by name.

    Raises ``ValueError`` or ``OSError`` if data are missing, too few for a batch, or not those that a run of the grid was
    trained on. Data that only finished runs need may be gone.
    """
    tests = {}
    for part in dict.fromkeys(cell.recipe.data for cell in cells):
        mine = [cell for cell in cells if cell.recipe.data == part]
        left = [cell for cell in mine if cell.stage == "waiting" and cell.base is None]
        done = [cell.folder for cell in mine if is_finished(cell.folder)] if is_own(part) else []
        try:
            data = load_data(part) if left or done else None
        except (OSError, ValueError):
            if left:
                raise
            continue
        if data is not None:
            tests[mine[0].data] = data.test
            now = fingerprint(data) if done else {}
            for folder in done:
                check_same_data(read_facts(folder), part, where=str(folder), now=now)
            for cell in left:
                train = divide_rows(len(data.train), cell.recipe)[0]
                check_batch_size(cell.recipe.train.batch_size, examples=len(train))
    return tests


def load_added(
    add: Sequence[str | Path], *, finished: Sequence[Entry], sets: Sequence[str], tests: Mapping[str, ImageSet]
) -> list[Entry]:
    """Read the rows to put below those of a grid; what is given twice with the same numbers is taken once.

    ``sets`` are the names of the grid's data sets. Raises ``ValueError`` if a row is of another test set, or a run that is
    there with other numbers.
    """
    found = without_repeats([*finished, *(entry for path in add for entry in _load(path, sets))])[len(finished) :]
    check_same_labels([*finished, *found], where="compare: `add`", tests=tests)
    if found:
        group_rows([*finished, *found])
    return found


def _load(given: str | Path, sets: Sequence[str]) -> list[Entry]:
    name, equals, path = str(given).partition("=")
    if not equals or Path(given).exists():
        name, path = sets[0] if len(sets) == 1 else "", str(given)
    else:
        lookup(dict.fromkeys(sets), name, kind="data set of the grid")
    entries = load_entries(path, data=name or None)
    if any(entry.data == UNKNOWN for entry in entries):
        hint = f"Name it with `data`; of several write `NAME={path}`."
        raise ValueError(f"compare: `add` must say of which data set {path} is, got no name. {hint}")
    return sorted(entries, key=catalogue_order)
