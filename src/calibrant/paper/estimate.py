"""How long a grid will take on this machine: a few real steps of each kind of run are timed, on made-up images.

The data need not be there: images of the same size and number of classes train just as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch

from calibrant.data import DATASETS, Shape
from calibrant.engine.folder import device_name
from calibrant.engine.hardware import choose_hardware
from calibrant.engine.methods import MetaPlan, facts_of, learns, make_plan
from calibrant.engine.recipe import DataPart, Recipe
from calibrant.engine.result import EpochRecord
from calibrant.engine.setup import held_out, load_data
from calibrant.engine.train import train
from calibrant.grid.local import make_places
from calibrant.grid.plan import Cell


@dataclass(frozen=True)
class Speed:
    """How fast runs of one kind go.

    Attributes:
        name: What kind: data set, network, and whether it learns on held-out data.
        train: Images a second in training.
        test: Images a second in evaluation.
        runs: Runs of this kind that are left to train.
        seconds: What one of them takes.
    """

    name: str
    train: float
    test: float
    runs: int
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """How long a grid will take: seconds if all goes well and if not, where, how many runs at a time, and what was measured."""

    low: float
    high: float
    device: str
    at_once: int
    speeds: tuple[Speed, ...]


class _Probe(NamedTuple):
    """Steps to time, after as many to warm up; the part of a batch that each takes; images to evaluate, two batches if 0."""

    steps: int
    share: int
    tested: int = 0


# A batch costs a CPU in proportion to its size, so an eighth of one is enough; a GPU must be kept as busy as in the real run.
_PROBES = {"cpu": _Probe(4, 8), "cuda": _Probe(100, 1)}
# Compiling, which is left out of the probe, makes a long run on a GPU about a fifth faster; runs that share a machine disturb
# each other. Measured on an H200: four runs on one GPU together are a fifth faster than in turn.
_GAIN, _LOSS = 0.75, 1.35
_TOO_SHORT = 0.2
# Seconds. Loading torch, once for every process that runs cells; around the epochs of a run: its files, capturing or compiling
# on a GPU, measuring with intervals; making and measuring a run of another (+ts).
_LOADING, _AROUND, _MADE = 5.0, {"cpu": 1.5, "cuda": 5.0}, 0.6
# In the end: tables and figures of a data set, and what each of their rows adds.
_SET, _ROW = 5.0, 0.7


def forecast(
    cells: Sequence[Cell], *, jobs: int | None = None, threads: int = 1, report: Callable[[str], None] | None = None
) -> Forecast:
    """Time a few steps of each kind of run and add up what a grid takes.

    Args:
        cells: The runs that are left; those made of others without training cost only their measuring.
        jobs: Runs at a time; by default as many as `compare` would start.
        threads: Threads of a run on the CPU.
        report: Called with the kind of run that is timed next.

    Returns:
        A range: a run of the same kind may be faster when compiled and slower beside others.
    """
    device = cells[0].recipe.train.device if cells else "auto"
    speeds = _time_kinds(cells, threads=threads, report=report)
    places = make_places(device=device, jobs=jobs, threads=threads)
    trained = sum(speed.runs for speed in speeds)
    at_once = max(1, min(sum(place.most for place in places), trained))
    # Runs on one GPU take turns; only further GPUs, or cores, work at the same time.
    beside = max(1, min(len(places) if places[0].gpu is not None else at_once, trained))
    total = sum(speed.runs * speed.seconds for speed in speeds) + _MADE * (len(cells) - trained)
    spent = max(total / beside, max((speed.seconds for speed in speeds), default=0.0))
    rows = {(cell.data, cell.method) for cell in cells}
    rest = (_LOADING + _SET * len({data for data, _ in rows}) + _ROW * len(rows)) if cells else 0.0
    where = device_name(choose_hardware(device=device).device)
    return Forecast(_GAIN * spent + rest, _LOSS * spent + 2 * rest, where, at_once, tuple(speeds))


def _time_kinds(cells: Sequence[Cell], *, threads: int, report: Callable[[str], None] | None) -> list[Speed]:
    kinds: dict[str, list[Recipe]] = {}
    for cell in cells:
        if cell.base is None:
            kinds.setdefault(kind_of(cell.recipe), []).append(cell.recipe)
    speeds: list[Speed] = []
    alike: dict[tuple[object, ...], Speed] = {}
    for name, recipes in kinds.items():
        shape = shape_of(recipes[0].data)
        # The number of classes hardly matters, so that sets of equal pictures are timed once.
        key = (shape.size, shape.channels, recipes[0].train.batch_size, name.partition(", ")[2])
        if key not in alike and report is not None:
            report(name)
        alike[key] = measure_speed(recipes[0], name=name, runs=len(recipes), threads=threads, known=alike.get(key))
        speeds.append(alike[key])
    return speeds


def kind_of(recipe: Recipe) -> str:
    """What kind of run a recipe is: those of one kind take equally long.

    Example:
        >>> from calibrant.engine.recipe import override
        >>> kind_of(override(Recipe(), {"method.name": "focal"})), kind_of(Recipe())
        ('cifar10, resnet18, a loss', 'cifar10, resnet18, learning on held-out data (default)')
    """
    family = f"learning on held-out data ({recipe.method.preset})" if learns(recipe) else "a loss"
    return f"{Path(recipe.data.name).name}, {recipe.backbone.name}, {family}"


def measure_speed(recipe: Recipe, *, name: str = "", runs: int = 1, threads: int = 1, known: Speed | None = None) -> Speed:
    """Train a few steps by a recipe on made-up images of its data's size, and say how long a whole run takes.

    Args:
        recipe: What is to be run.
        name: What to call it.
        runs: How many of its kind there are.
        threads: Threads of a run on the CPU.
        known: What was measured of equal steps; then nothing is trained.
    """
    shape, place = shape_of(recipe.data), choose_hardware(device=recipe.train.device).device.type
    val, meta = held_out(shape.train, recipe)
    left = shape.train - val - meta
    if known is not None:
        train, test = known.train, known.test
    else:
        timed = _time(recipe, shape, _PROBES[place], threads=threads)
        if timed.train_seconds + timed.test_seconds < _TOO_SHORT:
            # So short an epoch is mostly overhead, which must be in the right proportion: take whole batches and the test set.
            steps = max(min(left // recipe.train.batch_size, 100), 1)
            timed = _time(recipe, shape, _Probe(steps, 1, min(val + shape.test, 10_000)), threads=threads)
        train, test = timed.trained / timed.train_seconds, timed.tested / timed.test_seconds
    looks = -(-recipe.train.epochs // recipe.train.eval_every_epochs)
    seconds = recipe.train.epochs * left / train + looks * (val + shape.test) / test + _AROUND[place]
    return Speed(name, train, test, runs, seconds)


class _Timed(NamedTuple):
    trained: int
    train_seconds: float
    tested: int
    test_seconds: float


def _time(recipe: Recipe, shape: Shape, probe: _Probe, *, threads: int) -> _Timed:
    records: list[EpochRecord] = []
    before = torch.get_num_threads()
    with TemporaryDirectory() as folder:
        short, tested = _short_recipe(recipe, shape, probe, Path(folder) / "images.npz")
        try:
            torch.set_num_threads(threads)
            train(short, report=records.append)
        finally:
            torch.set_num_threads(before)
    first, last = records
    trained = probe.steps * short.train.batch_size
    seconds = trained / (last.images_per_second or 1.0)
    return _Timed(trained, seconds, tested, max((last.seconds or 0.0) - (first.seconds or 0.0) - seconds, 1e-4))


def shape_of(part: DataPart) -> Shape:
    """Sizes of a data set, read only where they are not known by name."""
    if part.name in DATASETS:
        return DATASETS[part.name].shape
    data = load_data(part)
    return Shape(len(data.train), len(data.test), data.train.size, data.train.channels, data.train.num_classes)


def _short_recipe(recipe: Recipe, shape: Shape, probe: _Probe, file: Path) -> tuple[Recipe, int]:
    """Two epochs of a few steps: the first warms up. Also the number of images that each evaluation sees."""
    batch, meta, options = max(recipe.train.batch_size // probe.share, 2), 0, dict(recipe.method.options)
    plan = make_plan(recipe.method.name, recipe.method.options, facts_of(recipe))
    if isinstance(plan, MetaPlan):
        # About what a bank renews in a long run on CIFAR.
        passed = plan.meta_batch_size or options.pop("refresh", None) or 256
        meta = options["meta_batch_size"] = max(passed // probe.share, 2)
    val, test = (2 * batch, 2 * batch) if not probe.tested else (2, max(probe.tested - 2, 2))
    train = probe.steps * batch + val + 2 * meta
    images = np.random.default_rng(0).integers(0, 256, (train + test, *shape.size, shape.channels), dtype=np.uint8)
    # A few steps may take fewer images than there are classes; no class may be tested that is not trained on.
    labels = np.arange(train) % shape.num_classes
    names = np.array([str(k) for k in range(shape.num_classes)])
    tested = {"test_images": images[train:], "test_labels": np.resize(labels, test), "class_names": names}
    np.savez(file, images=images[:train], labels=labels, **tested)  # type: ignore[arg-type]
    short = replace(
        recipe,
        data=DataPart(name=str(file), val=val, meta=2 * meta, augment=recipe.data.augment),
        method=replace(recipe.method, options=options),
        train=replace(recipe.train, epochs=2, batch_size=batch, eval_every_epochs=1, compile="no", select="last"),
    )
    return short, val + test
