"""What can be known of a grid before its first run: its folder, its data, its batches, its networks, and the runs it has."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

from calibrant.core.entry import Entry
from calibrant.data import DATASETS
from calibrant.data.image_set import DataSet, difference, fingerprint
from calibrant.engine.batches import check_batch_size
from calibrant.engine.folder import check_same_run, is_finished, read_facts, read_recipe
from calibrant.engine.hardware import choose_hardware
from calibrant.engine.methods import facts_of, learns, make_plan
from calibrant.engine.network import build_network
from calibrant.engine.recipe import DataPart, Recipe
from calibrant.engine.setup import Reader, augmented, divide_rows, is_own, load_data
from calibrant.grid.collect import data_label, is_run, load_run_entry
from calibrant.grid.local import visible_gpus
from calibrant.grid.plan import Cell

# What a comparison writes beside its runs.
_WRITTEN = ("table.md", "table.tex", "table.csv", "table.json", "report.html")


def check_out(folder: Path) -> None:
    """Raise ``ValueError`` unless a folder is a place for a comparison.

    A run, what lies in one, and a folder of runs are none: the comparison would be lost among them. Nor is a folder with files
    of somebody else's under the names that it will write.
    """
    place = folder.expanduser().resolve()
    run = next((above for above in (place, *place.parents) if is_run(above)), None)
    if run is not None:
        raise ValueError(
            f"compare: `out` must not lie in a run, got {folder} and the run folder {run}. Choose another with `--out`."
        )
    if (place / "runs").exists() or _is_table(place / "table.json"):
        return
    if any(is_run(below.parent) for below in place.glob("*/recipe.toml")):
        raise ValueError(
            f"compare: `out` must not be a folder of runs, got {folder}. Choose the folder above, {folder.parent}, or another."
        )
    for name in _WRITTEN:
        if (place / name).exists():
            raise ValueError(
                f"compare: `out` must be new, or hold a comparison, got {folder} with a {name} of another origin, "
                "which would be lost. Choose another with `--out`."
            )


def make_out(folder: Path) -> None:
    """Make the folder of a comparison; raises ``OSError`` with one sentence where that, or writing into it, cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise type(error)(
            f"compare: the folder {folder} cannot be written to ({error.strerror}). Choose another with `--out`."
        ) from None


def load_finished(cells: Sequence[Cell], runs: Path) -> dict[str, Entry]:
    """Read the runs of a grid that are finished and shown, by name: what is damaged is said now, not after hours of training.

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


def check_data(cells: Sequence[Cell]) -> None:
    """Raise with one sentence if a data set of the grid is not there."""
    for part in {cell.recipe.data.name: cell.recipe.data for cell in cells}.values():
        there = part.name in DATASETS and DATASETS[part.name].is_there(part.root)
        if not there and not Path(part.name).expanduser().exists():
            # Nothing is there to be read: what is left is the loader's own sentence.
            load_data(part)


def check_unchanged(cells: Sequence[Cell], runs: Path, *, read: Reader = load_data) -> None:
    """Raise if a grid's data are others than those that runs in its folder were trained on: they would become one table.

    Published sets are taken to be what they are. Runs that have not come to a checkpoint begin anew, and are not looked at.
    Data that can no longer be read are not compared, as a finished grid needs none.

    Args:
        cells: The grid.
        runs: Folder of its runs; also those of other methods and seeds count.
        read: Reads data; one that remembers them spares the next check a second time.

    Returns:
        Nothing. Raises ``ValueError`` that names a run and what differs.
    """
    own = {_key(cell.recipe.data): cell.recipe.data for cell in cells if is_own(cell.recipe.data)}
    fingerprint_of = cache(lambda part: fingerprint(read(part)))
    for folder in sorted(runs.iterdir()) if own and runs.is_dir() else ():
        differ = ""
        # What cannot be read is no cell of this grid, or was refused for it; a finished grid may outlive its data.
        with suppress(OSError, ValueError):
            facts = read_facts(folder)
            counts = is_run(folder) and (facts.get("finished") is not None or (folder / "state.pt").exists())
            part = own.get(_key(read_recipe(folder).data)) if counts else None
            differ = "" if part is None else difference(facts.get("data") or {}, fingerprint_of(part))
        if differ:
            raise ValueError(
                f"compare: `data` must be what the runs in {runs} were trained on, got other data than {folder.name} had: "
                f"{differ}. Put the old data back, or choose another folder with `--out`."
            )


def check_alike(entries: Sequence[Entry]) -> None:
    """Raise ``ValueError`` if finished runs had different data of one name, as when these changed while a grid went on."""
    first: dict[str, Entry] = {}
    for entry in entries:
        data = entry.facts.get("data")
        if isinstance(data, dict):
            other = first.setdefault(entry.data, entry)
            if differ := difference(other.facts["data"], data, when=("in the first", "in the second")):  # type: ignore[arg-type]
                raise ValueError(
                    f"compare: runs of one table must have the same data, got {differ} ({other.folder} and {entry.folder}). "
                    "Delete those of the data that you do not mean; the same command then makes them anew."
                )


def check_ready(cells: Sequence[Cell], *, on: str = "local", read: Reader = load_data) -> None:
    """Raise ``ValueError`` or ``OSError`` with one sentence if a run of a grid could not begin, which no other seed would help.

    Every data set is read once; every network is built for it once and tried with two images on the CPU. A network of one's own
    that is to run on a GPU is not tried, as it may need one.

    Args:
        cells: The runs that are left; those made of others without training need nothing.
        on: Where they are to run. On a Ray cluster a network of one's own may be found that is not here: it is not built.
        read: Reads data; one that remembers them has perhaps done so for another check.

    Example:
        >>> from calibrant.grid.plan import plan_cells
        >>> check_ready(plan_cells(["mixture"], ["ce"], [0], settings={"train.batch_size": 5000}))
        Traceback (most recent call last):
        ...
        ValueError: compare, ce on mixture: ... `train.batch_size` must be at most the 1800 training examples, ...
    """
    # Of a grid's runs by one method on one set only the seeds differ.
    kinds = {(cell.recipe.data, cell.method): cell for cell in reversed(cells) if cell.base is None}
    built: set[tuple[object, ...]] = set()
    read = cache(read)
    for cell in reversed(kinds.values()):
        data = read(cell.recipe.data)
        try:
            uses_head = _check_batches(cell.recipe, data)
            kind = (cell.recipe.data, cell.recipe.backbone, cell.recipe.train.precision, uses_head)
            if kind not in built:
                _check_network(cell.recipe, data, uses_head=uses_head, on=on)
            built.add(kind)
        except ValueError as error:
            raise ValueError(f"compare, {cell.method} on {cell.data}: {error}") from error


def _check_batches(recipe: Recipe, data: DataSet) -> bool:
    """Raise if the images are too few for the run's parts and batches; return whether its method learns on held-out data."""
    method = recipe.method
    parts = divide_rows(len(data.train), recipe)
    check_batch_size(recipe.train.batch_size, examples=len(parts.train))
    augmented(data.train, recipe.data)
    make_plan(method.name, method.options, facts_of(recipe, num_train=len(parts.train)))
    return learns(recipe)


def _check_network(recipe: Recipe, data: DataSet, *, uses_head: bool, on: str) -> None:
    name, train = recipe.backbone.name, recipe.train
    own = ":" in name
    if own and on != "local":
        return
    on_gpu = bool(visible_gpus(train.device)) if on == "local" else train.device != "cpu"
    usual = choose_hardware(device="cpu", precision="float32")
    hardware = usual if on_gpu else choose_hardware(device="cpu", precision=train.precision, graph=train.graph)
    # What there is to be warned of is said by the run itself.
    with warnings.catch_warnings(action="ignore"), _own_modules(name):
        build_network(recipe, data.train, hardware, uses_head=uses_head, tried=not (own and on_gpu))


@contextmanager
def _own_modules(name: str) -> Iterator[None]:
    """Look for a user's module where runs will, and forget it: it may have changed before the next grid of this process."""
    module = name.partition(":")[0]
    loaded = module in sys.modules
    sys.path.insert(0, "")
    try:
        yield
    except ValueError:
        # What was loaded earlier may be older than the file that runs will load.
        if not loaded:
            raise
    finally:
        sys.path.remove("")
        if ":" in name and not loaded:
            sys.modules.pop(module, None)


def _is_table(file: Path) -> bool:
    """Whether a file is a table that a comparison wrote."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"name", "title", "notes"} <= set(found)


def _key(part: DataPart) -> tuple[str, int | None]:
    return data_label(part.name), part.size
