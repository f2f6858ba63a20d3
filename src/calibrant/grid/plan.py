"""The grid as data: one cell for every data set, method and seed, checked before anything starts. Running it is elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from calibrant.backbones import BACKBONES
from calibrant.core.registry import lookup
from calibrant.data import DATASETS
from calibrant.engine.folder import check_same_run, is_finished
from calibrant.engine.methods import check_idle, facts_of, find_method, make_plan, resolved, split_name
from calibrant.engine.recipe import Recipe, check_recipe, load_recipe, override
from calibrant.engine.setup import load_data
from calibrant.grid.collect import data_label, is_run
from calibrant.io.predictions import load_predictions

# What a table is made of, and how it is read.
_READ: dict[str, Callable[[Path], object]] = {
    "recipe.toml": load_recipe,
    "test.npz": load_predictions,
    "history.jsonl": lambda file: [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()],
}

# What a comparison writes beside its runs.
_WRITTEN = ("table.md", "table.tex", "table.csv", "table.json", "report.html")
_REMEDY = "Put it back, or remove the folder of the run, which is then run again."
# More than this is a seed that was meant, not a number of them.
_MOST_SEEDS = 1000


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes:
        name: Its name, which is that of its folder.
        recipe: What is run.
        base: Name of the cell whose run it is made of without training (``+ts``), or None.
        shown: Whether it belongs to the table; a base run that nobody asked for does not.
    """

    name: str
    recipe: Recipe
    base: str | None = None
    shown: bool = True

    @property
    def data(self) -> str:
        """What the data set is called in tables."""
        return data_label(self.recipe.data.name)

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.recipe.method.name

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.recipe.seed


def plan_cells(
    data: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    recipe: Recipe | None = None,
    settings: Mapping[str, object] | None = None,
) -> tuple[Cell, ...]:
    """Lay out a grid: seed by seed, so that a table of the first seeds is complete early.

    Args:
        data: Names or paths of data sets.
        methods: Names of methods; one with ``+ts`` is made of the run without, which is added where it is missing.
        seeds: Seeds.
        recipe: What the runs have in common; the paper's protocol by default.
        settings: Dotted key of the recipe → value for all runs, or, as ``METHOD:KEY``, for those of one method.

    Returns:
        The cells, each base before what is made of it. Raises ``ValueError`` with one sentence if a name is unknown, a value
        cannot be, or two data sets would have the same name.

    Example:
        >>> cells = plan_cells(["digits"], ["ce+ts", "focal"], [0])
        >>> [(cell.name, cell.shown) for cell in cells]
        [('digits-convnet-ce-seed0', False), ('digits-convnet-ce+ts-seed0', True), ('digits-convnet-focal-seed0', True)]
    """
    _check_axes(data, methods, seeds)
    common, own = _split_settings(settings or {}, methods)
    cells: dict[str, Cell] = {}
    for name in data:
        start = override(recipe or Recipe(), {"data.name": name} | _small(name, recipe) | common)
        for seed in seeds:
            for method in methods:
                base, scaled = split_name(method)
                changed = override(start, {"seed": seed, "method.name": base} | own.get(base, {}))
                changed = resolved(changed)
                _check(changed)
                trained = Cell(cell_name(changed), changed, shown=base in methods)
                cells.setdefault(trained.name, trained)
                if scaled:
                    after = replace(changed, method=replace(changed.method, name=method))
                    cells[cell_name(after)] = Cell(cell_name(after), after, base=trained.name)
    _check_settings(tuple(cells.values()), common, own)
    return tuple(cells.values())


def cell_name(recipe: Recipe) -> str:
    """Return the name of a run: ``DATA-MODEL-METHOD-seedN``, with ``-paper`` behind the method for that preset."""
    method = recipe.method.name + ("" if recipe.method.preset == "default" else f"-{recipe.method.preset}")
    words = (data_label(recipe.data.name), recipe.backbone.name.rpartition(":")[2], method, f"seed{recipe.seed}")
    return _in_names("-".join(words))


def _in_names(text: str) -> str:
    return re.sub(r"[^\w.+-]", "-", text)


def parse_seeds(seeds: int | str | Sequence[int]) -> list[int]:
    """Return seeds: a number of them counts from 0, a list, or text with commas, is taken as it is.

    Example:
        >>> parse_seeds(3), parse_seeds("0,3,7"), parse_seeds("5,")
        ([0, 1, 2], [0, 3, 7], [5])
    """
    count = seeds if isinstance(seeds, int) else int(seeds) if isinstance(seeds, str) and seeds.strip().isdecimal() else 0
    if count > _MOST_SEEDS:
        raise ValueError(
            f"compare: `seeds` must be at most {_MOST_SEEDS:,} where it says how many, got {count}. "
            f"A comma makes one number a list: `{count},` is seed {count} alone."
        )
    try:
        if isinstance(seeds, str):
            parts = [int(part) for part in seeds.split(",") if part.strip()]
            found = parts if "," in seeds else list(range(parts[0]))
        else:
            found = list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds]
    except (ValueError, TypeError, IndexError):
        found = []
    if not found or min(found) < 0:
        raise ValueError(
            f"compare: `seeds` must be how many, as 5, or a list of numbers >= 0, as 0,3,7, got {seeds!r}. "
            "A comma makes one number a list: `7,` is seed 7 alone."
        )
    return list(dict.fromkeys(found))


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
    if not (place / "runs").exists() and any(is_run(below.parent) for below in place.glob("*/recipe.toml")):
        raise ValueError(
            f"compare: `out` must not be a folder of runs, got {folder}. Choose the folder above, {folder.parent}, or another."
        )
    own = next((name for name in _WRITTEN if (place / name).exists()), None)
    if own is not None and not (place / "runs").exists() and not _is_table(place / "table.json"):
        raise ValueError(
            f"compare: `out` must be new, or hold a comparison, got {folder} with a {own} of another origin, "
            "which would be lost. Choose another with `--out`."
        )


def _is_table(file: Path) -> bool:
    """Whether a file is a table that a comparison wrote."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"name", "title", "notes"} <= set(found)


def check_folders(cells: Sequence[Cell], runs: Path) -> None:
    """Raise ``ValueError`` if a folder below ``runs`` holds a run by another recipe than its cell's."""
    for cell in cells:
        file = runs / cell.name / "recipe.toml"
        if file.exists():
            try:
                known = load_recipe(file)
            except ValueError as error:
                raise ValueError(f"compare: {str(error).removeprefix('recipe: ')} {_REMEDY}") from None
            try:
                check_same_run(known, cell.recipe, where=str(file.parent))
            except ValueError as error:
                raise ValueError(str(error).replace("train:", "compare:", 1)) from None


def check_finished(cells: Sequence[Cell], runs: Path) -> None:
    """Raise ``ValueError`` if a file of a finished run is missing or damaged: said now, not after hours of training others."""
    for cell in cells:
        folder, name = runs / cell.name, "run.json"
        try:
            # What is not finished goes on, or is run from its beginning; what no table shows need not be read for one.
            for name, read in _READ.items() if is_finished(folder) and cell.shown else ():
                read(folder / name)
        except (FileNotFoundError, ValueError):
            got = "one that is damaged" if (folder / name).exists() else "none there"
            raise ValueError(f"compare: `{folder / name}` must be what a finished run wrote, got {got}. {_REMEDY}") from None


def _check_axes(data: Sequence[str], methods: Sequence[str], seeds: Sequence[int]) -> None:
    for what, values in (("data", data), ("methods", methods), ("seeds", seeds)):
        if not values:
            raise ValueError(f"compare: `{what}` must hold at least one, got none.")
    for method in methods:
        find_method(method)
    labels: dict[str, str] = {}
    for name in data:
        # Run folders that only an odd sign tells apart would be one.
        other = labels.setdefault(_in_names(data_label(name)), name)
        if other != name:
            raise ValueError(
                f"compare: the last part of paths must differ, by which data and runs are called, got {other} and {name}. "
                "Rename one; in a name of a run, signs and spaces are dashes."
            )


def _split_settings(
    settings: Mapping[str, object], methods: Sequence[str]
) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
    """Part the settings of all runs from those of one method."""
    common: dict[str, object] = {}
    own: dict[str, dict[str, object]] = {}
    bases = dict.fromkeys(split_name(method)[0] for method in methods)
    for key, value in settings.items():
        method, colon, rest = key.rpartition(":")
        if key in ("seed", "data.name", "method.name"):
            raise ValueError(f"compare: `{key}` is what the grid varies. Use `--seeds`, `--data` and `--methods`.")
        if not colon:
            common[key] = value
        else:
            base = split_name(method)[0]
            if method != base and base in bases:
                raise ValueError(
                    f"compare: `{method}` is made from the runs of {base} and has none of its own. Set `{base}:{rest}`."
                )
            lookup(bases, method, kind="method of this grid")
            own.setdefault(method, {})[rest] = value
    return common, own


def _check_settings(cells: Sequence[Cell], common: Mapping[str, object], own: Mapping[str, Mapping[str, object]]) -> None:
    """Raise if a setting says nothing about any run that it was made for; of several methods it may be about one."""
    check_idle([cell.recipe for cell in cells], common)
    for method, settings in own.items():
        check_idle([cell.recipe for cell in cells if split_name(cell.method)[0] == method], settings)


def _small(name: str, recipe: Recipe | None) -> dict[str, object]:
    return dict(DATASETS[name].settings) if recipe is None and name in DATASETS else {}


def _check(recipe: Recipe) -> None:
    """Raise with one sentence where the engine would, once it came to this run."""
    check_recipe(recipe)
    make_plan(recipe.method.name, recipe.method.options, facts_of(recipe))
    if ":" not in recipe.backbone.name:
        lookup(BACKBONES, recipe.backbone.name, kind="backbone")


def check_data(cells: Sequence[Cell]) -> None:
    """Raise with one sentence if a data set of the grid is not there."""
    for part in {cell.recipe.data.name: cell.recipe.data for cell in cells}.values():
        there = part.name in DATASETS and DATASETS[part.name].is_there(part.root)
        if not there and not Path(part.name).expanduser().exists():
            # Nothing is there to be read: what is left is the loader's own sentence.
            load_data(part)
