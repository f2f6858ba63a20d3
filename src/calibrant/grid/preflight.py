"""What can be known of a grid before its first run: its folder, its finished runs, its data, and the rows added to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from calibrant.core.entry import Entry
from calibrant.core.registry import lookup
from calibrant.data.image_set import fingerprint
from calibrant.engine.batches import check_batch_size
from calibrant.engine.folder import check_same_run, is_finished, read_facts, read_recipe
from calibrant.engine.loop import check_same_data, divide_rows, is_own, load_data
from calibrant.grid.collect import UNKNOWN, check_same_labels, is_run, load_entries, load_run_entry, once
from calibrant.grid.plan import Cell
from calibrant.grid.rows import catalogue_order, flat_recipe, group_rows, identity


def check_out(folder: Path) -> None:
    """Raise ``ValueError`` if a folder is, lies in, or holds a run: a comparison would be lost there."""
    place = folder.expanduser().resolve()
    for other in (place, *place.parents, *(file.parent for file in place.glob("*/recipe.toml"))):
        if is_run(other):
            raise ValueError(
                f"compare: `out` must not lie in a run or be a folder of runs, got {folder} and the run {other}. "
                "Choose another with `--out`."
            )


def load_finished(cells: Sequence[Cell], runs: Path) -> dict[str, Entry]:
    """Read the finished runs of a grid that its table shows, by name, so that damage is found before hours of training.

    Raises ``ValueError`` if one cannot be read, or if a folder holds a run by another recipe than its cell's.
    """
    found = {}
    for cell in cells:
        folder = runs / cell.name
        try:
            recipe = read_recipe(folder) if (folder / "recipe.toml").exists() else cell.recipe
            if is_finished(folder) and cell.shown:
                found[cell.name] = load_run_entry(folder)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"compare: `{folder}` must hold what a run wrote, got: {error} Put it back, or remove the folder of the run, "
                "which is then run again."
            ) from None
        check_same_run(recipe, cell.recipe, where=str(folder))
    return found


def check_data(left: Sequence[Cell], cells: Sequence[Cell], runs: Path) -> None:
    """Raise if data are missing, too few for a batch, or have changed since a run of the grid was trained on them.

    Args:
        left: The runs that are to be made.
        cells: The whole grid. Data that only its finished runs need may be gone.
        runs: Folder of its runs.

    Example:
        >>> from calibrant.grid.plan import plan_cells
        >>> cells = plan_cells(["mixture"], ["ce"], [0], settings={"train.batch_size": 5000})
        >>> check_data(cells, cells, Path("runs"))
        Traceback (most recent call last):
        ...
        ValueError: train: `train.batch_size` must be at most the 1800 training examples, ...
    """
    for part in dict.fromkeys(cell.recipe.data for cell in cells):
        here = [cell for cell in left if cell.base is None and cell.recipe.data == part]
        done = [runs / cell.name for cell in cells if cell.recipe.data == part and is_finished(runs / cell.name)]
        if not here and not (done and is_own(part)):
            continue
        try:
            data = load_data(part)
        except (OSError, ValueError):
            if here:
                raise
            continue
        now = fingerprint(data) if done and is_own(part) else {}
        for folder in done:
            check_same_data(read_facts(folder), part, where=str(folder), now=now)
        for cell in here:
            parts = divide_rows(len(data.train), cell.recipe)
            check_batch_size(cell.recipe.train.batch_size, examples=len(parts.train))


def load_added(
    add: Sequence[str | Path], cells: Sequence[Cell], *, finished: Mapping[str, Entry], sets: Sequence[str]
) -> list[Entry]:
    """Read the rows to put below those of a grid; what is given twice with the same numbers is taken once.

    Args:
        add: Paths, or ``DATA=PATH`` with one of the grid's data sets.
        cells: The grid; none if only added rows are compared.
        finished: Its finished runs by name.
        sets: Names of its data sets.

    Returns:
        The rows. Raises ``ValueError`` if one is of another test set, or a run that the grid has with other numbers.
    """
    given = [entry for path in add for entry in _load(path, sets)]
    found = once([*finished.values(), *given])[len(finished) :]
    tests = {entry.data: entry.test for entry in finished.values() if entry.test is not None}
    for cell in cells:
        if cell.data not in tests and any(entry.data == cell.data for entry in found):
            tests[cell.data] = load_data(cell.recipe.data).test  # type: ignore[assignment]
    check_same_labels(found, where="compare: `add`", tests=tests)
    for cell in cells:
        if found and cell.shown and cell.name not in finished:
            recipe = cell.recipe
            what = (recipe.method.preset, recipe.backbone.name, recipe.train.epochs, recipe.seed)
            planned = Entry(cell.data, cell.method, found[0].scores, *what, recipe=flat_recipe(recipe))
            if twice := [entry.folder for entry in found if identity(entry) == identity(planned)]:
                raise ValueError(f"compare: `add` must not hold a run that the grid makes, {cell.name}, got {twice[0]}.")
    group_rows([*finished.values(), *found])
    return found


def _load(given: str | Path, sets: Sequence[str]) -> list[Entry]:
    name, equals, path = str(given).partition("=")
    if not equals or Path(given).exists():
        name, path = sets[0] if len(sets) == 1 else "", str(given)
    else:
        lookup(dict.fromkeys(sets), name, kind="data set of the grid")
    entries = load_entries(path, data=name or None)
    if any(entry.data == UNKNOWN for entry in entries):
        raise ValueError(f"compare: `add` must say of which data set {path} is, got no name. Write `{sets[0]}={path}`.")
    return sorted(entries, key=catalogue_order)
