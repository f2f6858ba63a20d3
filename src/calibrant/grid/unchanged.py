"""Whether data named by a path are still those that the runs of a grid were trained on, before more runs join them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from calibrant.data.image_set import difference, fingerprint
from calibrant.engine.folder import is_finished, read_facts
from calibrant.engine.recipe import DataPart, load_recipe
from calibrant.engine.setup import Reader, is_own, known_data, load_data
from calibrant.grid.collect import data_label, is_run
from calibrant.grid.plan import Cell


class _Known(NamedTuple):
    """A run that lies in the folder of a grid, and what it knows its data by."""

    folder: Path
    data: dict[str, object]


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
    known = _known_runs(runs) if own else {}
    for key, part in own.items():
        if key not in known:
            continue
        try:
            now = fingerprint(read(part))
        except (OSError, ValueError):
            continue
        for run in known[key]:
            if differ := difference(run.data, now):
                raise ValueError(
                    f"compare: `data` must be what the runs in {runs} were trained on, got other data in {part.name} than "
                    f"{run.folder.name} had: {differ}. Put the old data back, or choose another folder with `--out`."
                )


def check_alike(cells: Sequence[Cell], runs: Path) -> None:
    """Raise ``ValueError`` if finished runs of a grid had different data, as when these changed while it went on."""
    parts = [cell for cell in cells if is_own(cell.recipe.data)]
    for key in dict.fromkeys(_key(cell.recipe.data) for cell in parts):
        folders = [runs / cell.name for cell in parts if _key(cell.recipe.data) == key]
        found = [_Known(folder, known_data(read_facts(folder))) for folder in folders]
        # Older runs know less.
        best = max(found, key=lambda run: len(run.data))
        for run in found:
            differ = difference(best.data, run.data, when=(f"in {best.folder.name}", f"in {run.folder.name}"))
            if differ:
                raise ValueError(
                    f"compare: runs of one table must have the same data, got {differ} ({best.folder} and {run.folder}). "
                    "Delete those of the data that you do not mean; the same command then makes them anew."
                )


def _key(part: DataPart) -> tuple[str, int | None]:
    return data_label(part.name), part.size


def _known_runs(runs: Path) -> dict[tuple[str, int | None], list[_Known]]:
    """What the runs in a folder know of their data, by its name and the size of its pictures."""
    found: dict[tuple[str, int | None], list[_Known]] = {}
    for folder in sorted(runs.iterdir()) if runs.is_dir() else ():
        if not is_run(folder):
            continue
        # What cannot be read is no cell of this grid, or was refused for it.
        with suppress(ValueError):
            if is_finished(folder) or (folder / "state.pt").exists():
                key = _key(load_recipe(folder / "recipe.toml").data)
                found.setdefault(key, []).append(_Known(folder, known_data(read_facts(folder))))
    return found
