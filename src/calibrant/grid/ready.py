"""What can be known of a grid before its first run: that its data can be read, its batches filled and its networks built."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from calibrant.data.image_set import DataSet
from calibrant.engine.batches import check_batch_size
from calibrant.engine.hardware import choose_hardware
from calibrant.engine.methods import facts_of, make_plan
from calibrant.engine.network import build_network
from calibrant.engine.objective import MetaPlan
from calibrant.engine.recipe import Recipe
from calibrant.engine.setup import Reader, augmented, divide_rows, load_data
from calibrant.grid.local import visible_gpus
from calibrant.grid.plan import Cell


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
        ValueError: compare: ce on mixture: `train.batch_size` must be at most the 1800 training examples, got 5000. Lower ...
    """
    sets: dict[tuple[object, ...], dict[str, Cell]] = {}
    for cell in cells:
        if cell.base is None:
            part = cell.recipe.data
            # Of a grid's runs by one method on one set only the seeds differ.
            sets.setdefault((part.name, part.root, part.size), {}).setdefault(cell.method, cell)
    for alike in sets.values():
        data = read(next(iter(alike.values())).recipe.data)
        built: set[tuple[object, ...]] = set()
        for cell in alike.values():
            with _named(cell):
                uses_head = _check_batches(cell.recipe, data)
                kind = (cell.recipe.backbone, cell.recipe.train.precision, uses_head)
                if kind not in built:
                    _check_network(cell.recipe, data, uses_head=uses_head, on=on)
                built.add(kind)


@contextmanager
def _named(cell: Cell) -> Iterator[None]:
    """Say of which runs a sentence is that would be said of each of them."""
    try:
        yield
    except ValueError as error:
        whose = f"compare: {cell.method} on {cell.data}:"
        raise ValueError(re.sub(r"^(train|split_indices):", lambda _: whose, str(error))) from error


def _check_batches(recipe: Recipe, data: DataSet) -> bool:
    """Raise if the images are too few for the run's parts and batches; return whether its method learns on held-out data."""
    method = recipe.method
    learns = isinstance(make_plan(method.name, method.options, facts_of(recipe)), MetaPlan)
    parts = divide_rows(len(data.train), recipe.data, seed=recipe.seed, with_meta=learns)
    check_batch_size(recipe.train.batch_size, examples=len(parts.train))
    augmented(data.train, recipe.data)
    make_plan(method.name, method.options, facts_of(recipe, num_train=len(parts.train)))
    return learns


def _check_network(recipe: Recipe, data: DataSet, *, uses_head: bool, on: str) -> None:
    name, train = recipe.backbone.name, recipe.train
    own = ":" in name
    if own and on != "local":
        return
    on_gpu = bool(visible_gpus(train.device)) if on == "local" else train.device != "cpu"
    usual = choose_hardware(device="cpu", precision="float32")
    hardware = usual if on_gpu else choose_hardware(device="cpu", precision=train.precision, graph=train.graph)
    with _own_modules(name) if own else _quietly():
        build_network(recipe, data.train, hardware, uses_head=uses_head, tried=not (own and on_gpu))


@contextmanager
def _quietly() -> Iterator[None]:
    # What there is to be warned of is said by the run itself.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _own_modules(name: str) -> Iterator[None]:
    """Look for a user's module where runs will, and forget it: it may have changed before the next grid of this process."""
    module = name.partition(":")[0]
    loaded = module in sys.modules
    sys.path.insert(0, "")
    try:
        with _quietly():
            yield
    except ValueError:
        # What was loaded earlier may be older than the file that runs will load.
        if not loaded:
            raise
    finally:
        sys.path.remove("")
        if not loaded:
            sys.modules.pop(module, None)
