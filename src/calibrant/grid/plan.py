"""The grid as data: one cell for every data set, method and seed. What can be known before the first run is in `preflight`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from calibrant.backbones import BACKBONES
from calibrant.core.registry import lookup
from calibrant.data import DATASETS, is_path
from calibrant.engine.methods import facts_of, find_method, make_plan, resolved, split_name
from calibrant.engine.recipe import Recipe, check_recipe, override
from calibrant.grid.collect import data_label

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
        # Small sets have settings of their own, used where nothing else is said.
        small = DATASETS[name].settings if recipe is None and name in DATASETS else {}
        start = override(recipe or Recipe(), {"data.name": name, **small} | common)
        for seed in seeds:
            for method in methods:
                base, scaled = split_name(method)
                changed = resolved(override(start, {"seed": seed, "method.name": base} | own[base]))
                _check(changed)
                trained = Cell(cell_name(changed), changed, shown=base in methods)
                cells.setdefault(trained.name, trained)
                if scaled:
                    after = replace(changed, method=replace(changed.method, name=method))
                    cells[cell_name(after)] = Cell(cell_name(after), after, base=trained.name)
    return tuple(cells.values())


def cell_name(recipe: Recipe) -> str:
    """Return the name of a run: ``DATA-MODEL-METHOD-seedN``, with ``-paper`` behind the method for that preset."""
    method = recipe.method.name + ("" if recipe.method.preset == "default" else f"-{recipe.method.preset}")
    words = (data_label(recipe.data.name), recipe.backbone.name.rpartition(":")[2], method, f"seed{recipe.seed}")
    return _in_names("-".join(words))


def split_names(names: str | Sequence[str]) -> list[str]:
    """Return names given as a list or as text with commas, each once."""
    parts = names.split(",") if isinstance(names, str) else [part for name in names for part in str(name).split(",")]
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def parse_seeds(seeds: int | str | Sequence[int]) -> list[int]:
    """Return seeds: a number of them counts from 0, a list, or text with commas, is taken as it is.

    Example:
        >>> parse_seeds(3), parse_seeds("0,3,7"), parse_seeds("5,")
        ([0, 1, 2], [0, 3, 7], [5])
    """
    try:
        if isinstance(seeds, str):
            seeds = [int(part) for part in seeds.split(",") if part.strip()] if "," in seeds else int(seeds)
        if isinstance(seeds, int) and seeds > _MOST_SEEDS:
            raise ValueError
        found = list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds]
    except (ValueError, TypeError):
        found = []
    if not found or min(found) < 0:
        raise ValueError(
            f"compare: `seeds` must be how many, at most {_MOST_SEEDS:,}, or a list of numbers >= 0, as 0,3,7, got {seeds!r}. "
            "A comma makes one number a list: `7,` is seed 7 alone."
        )
    return list(dict.fromkeys(found))


def _in_names(text: str) -> str:
    return re.sub(r"[^\w.+-]", "-", text)


def _check_axes(data: Sequence[str], methods: Sequence[str], seeds: Sequence[int]) -> None:
    for what, values in (("data", data), ("methods", methods), ("seeds", seeds)):
        if not values:
            raise ValueError(f"compare: `{what}` must hold at least one, got none.")
    for name in data:
        if not is_path(name):
            DATASETS[name]  # an unknown name is answered with the nearest
    for method in methods:
        find_method(method)
    if len({_in_names(data_label(name)) for name in data}) < len(data):
        raise ValueError(
            f"compare: `data` must have different last parts of paths, which name the runs, got {', '.join(data)}."
        )


def _split_settings(
    settings: Mapping[str, object], methods: Sequence[str]
) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
    """Part the settings of all runs from those of one method."""
    common: dict[str, object] = {}
    own: dict[str, dict[str, object]] = {split_name(method)[0]: {} for method in methods}
    for key, value in settings.items():
        method, colon, rest = key.rpartition(":")
        if key in ("seed", "data.name", "method.name"):
            raise ValueError(f"compare: `{key}` is what the grid varies. Use `--seeds`, `--data` and `--methods`.")
        if colon:
            lookup(own, method, kind="method of this grid")[rest] = value
        else:
            common[key] = value
    return common, own


def _check(recipe: Recipe) -> None:
    """Raise with one sentence where the engine would, once it came to this run."""
    check_recipe(recipe)
    make_plan(recipe.method.name, recipe.method.options, facts_of(recipe))
    if ":" not in recipe.backbone.name:
        lookup(BACKBONES, recipe.backbone.name, kind="backbone")
