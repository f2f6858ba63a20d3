"""A grid as cells, one for every data set, method and seed; what runs next, and retries.

What runs them is in `calibrant.grid.executors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Literal

from calibrant.backbones import BACKBONES
from calibrant.core.checks import lookup
from calibrant.data import DATASETS, is_path
from calibrant.data.sets import set_name
from calibrant.engine.methods import make_plan, resolved, run_name, split_name
from calibrant.engine.recipe import Recipe, check_recipe, override
from calibrant.engine.run import is_finished

# How far a cell is.
Stage = Literal["waiting", "running", "done", "failed"]


@dataclass
class Cell:
    """One run of a grid, and how far it is; what is told of it is as in `Event`."""

    name: str  # that of its folder
    recipe: Recipe
    out: Path  # folder of the grid
    base: str | None = None  # the cell whose run it is made of without training (``+ts``)
    shown: bool = True  # in the table; a base that nobody asked for is not
    stage: Stage = "waiting"
    epochs: float = 0.0
    numbers: Mapping[str, float] = field(default_factory=dict)
    text: str = ""
    tries: int = 0  # without those that lacked memory beside others

    @property
    def folder(self) -> Path:
        """The folder of its run."""
        return self.out / "runs" / self.name

    @property
    def log(self) -> Path:
        """Where its run says more, if it began."""
        return self.out / "logs" / f"{self.name}.log"

    @property
    def data(self) -> str:
        """What the data set is called in tables."""
        return set_name(self.recipe.data.name)

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.recipe.method.name

    @property
    def total(self) -> int:
        """Epochs to train: none for a cell that is made of another."""
        return 0 if self.base is not None else self.recipe.train.epochs


def plan_cells(
    data: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    out: Path = Path(),
    recipe: Recipe | None = None,
    settings: Mapping[str, object] | None = None,
) -> tuple[Cell, ...]:
    """Lay out a grid: seed by seed, so that a table of the first seeds is complete early.

    A method with ``+ts`` is made of the run without, which is added where it is missing and comes first; other arguments are
    as in `calibrant.compare`. Raises ``ValueError`` if a name is unknown, a value cannot be, or two data sets would have the
    same name.
    """
    for what, values in (("data", data), ("methods", methods), ("seeds", seeds)):
        if not values:
            raise ValueError(f"compare: `{what}` must hold at least one, got none.")
    bases = dict.fromkeys(split_name(method)[0] for method in methods)
    for key in settings or ():
        if key in ("seed", "data.name", "method.name"):
            raise ValueError(f"compare: `{key}` is what the grid varies. Use `--seeds`, `--data` and `--methods`.")
        if ":" in key:
            lookup(bases, key.partition(":")[0], kind="method of this grid")
    # What is said of one method comes after what is said of all.
    told = sorted((settings or {}).items(), key=lambda pair: ":" in pair[0])
    cells: dict[str, Cell] = {}
    for name, seed, method in product(data, seeds, methods):
        base, scaled = split_name(method)
        # Small sets have settings of their own, used where nothing else is said.
        small = {} if recipe is not None or is_path(name) else DATASETS[name].settings
        own = {key.partition(":")[2] or key: value for key, value in told if key.startswith(f"{base}:") or ":" not in key}
        changed = {"data.name": name, "seed": seed, "method.name": base, **small, **own}
        run = resolved(override(recipe or Recipe(), changed))
        # Said here is what the engine would say once it came to this run.
        check_recipe(run)
        make_plan(run)
        if ":" not in run.backbone.name:
            lookup(BACKBONES, run.backbone.name, kind="backbone")
        trained = Cell(run_name(run), run, out, shown=base in methods)
        if cells.setdefault(trained.name, trained).recipe != run:
            raise ValueError(
                f"compare: `data` must have different last parts of paths, as these name runs, got {', '.join(data)}."
            )
        if scaled:
            after = replace(run, method=replace(run.method, name=method))
            cells[run_name(after)] = Cell(run_name(after), after, out, base=trained.name)
    return tuple(cells.values())


def split_names(names: str | Sequence[str]) -> list[str]:
    """Return names given as a list or as text with commas, each once."""
    parts = names.split(",") if isinstance(names, str) else [part for name in names for part in str(name).split(",")]
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def parse_seeds(seeds: int | str | Sequence[int]) -> list[int]:
    """Return seeds: a number of them counts from 0, a list, or text with commas, is taken as it is."""
    try:
        listed = isinstance(seeds, str) and "," in seeds
        given = [part for part in str(seeds).split(",") if part.strip()] if listed else seeds
        found = [int(seed) for seed in (range(int(given))[:1001] if isinstance(given, (int, str)) else given)]
    except (ValueError, TypeError):
        found = []
    if not 1 <= len(found) <= 1000 or min(found) < 0:
        raise ValueError(
            f"compare: `seeds` must be how many, at most 1,000, or a list of numbers >= 0, as 0,3,7, got {seeds!r}. "
            "A comma makes one number a list: `7,` is seed 7 alone."
        )
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Event:
    """What a process says of the cell that it runs."""

    name: str
    kind: Literal["step", "done", "failed"]
    epochs: float = 0.0  # done, with the part of the current one
    numbers: Mapping[str, float] = field(default_factory=dict)  # validation error and ECE; in the end those of the test set
    gpu: tuple[int, int] | None = None  # bytes that the process needs on its GPU, and that are free there
    text: str = ""  # why it failed
    again: bool = True  # whether another try may help
    crowded: bool = False  # whether it lacked memory; of an executor, beside other cells, which does not count as a try


class Board:
    """The cells of a grid, each base before what is made of it, and how far they are."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = {cell.name: cell for cell in cells}

    def count(self, *stages: Stage) -> int:
        """How many cells are in some stages."""
        return sum(cell.stage in stages for cell in self.cells.values())

    def note_finished(self) -> None:
        """Mark the cells whose runs are finished, and bases that nobody asked for and nothing waits for."""
        for cell in self.cells.values():
            if is_finished(cell.folder):
                cell.stage = "done"
        needed = {cell.base for cell in self.cells.values() if cell.stage == "waiting"}
        for name, cell in self.cells.items():
            if not cell.shown and name not in needed:
                cell.stage = "done"

    def next_ready(self) -> Cell | None:
        """The first waiting cell whose base, if it has one, is done."""
        waiting = (cell for cell in self.cells.values() if cell.stage == "waiting")
        return next((cell for cell in waiting if cell.base is None or self.cells[cell.base].stage == "done"), None)

    def start(self, cell: Cell) -> None:
        """Note that a cell is being run."""
        cell.stage, cell.tries, cell.text = "running", cell.tries + 1, ""

    def note(self, event: Event, *, retries: int) -> None:
        """Note what happened. A failed cell waits while it has tries left; else the cells made of it fail too."""
        cell = self.cells[event.name]
        if event.kind == "step":
            cell.epochs, cell.numbers = event.epochs, {**cell.numbers, **event.numbers}
        elif event.kind == "done":
            cell.stage, cell.epochs, cell.numbers = "done", float(cell.total), event.numbers
        else:
            cell.text, cell.tries = event.text, cell.tries - event.crowded
            cell.stage = "waiting" if event.again and cell.tries <= retries else "failed"
            for other in self.cells.values() if cell.stage == "failed" else ():
                if other.base == event.name:
                    other.stage, other.text = "failed", f"{event.name}, which it is made of, failed"


# Called with the board and what has just changed on it; with None when only time has passed.
Watch = Callable[[Board, Event | None], None]
