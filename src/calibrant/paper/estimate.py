"""How long a grid will take on this machine: a few real steps of each kind of run are timed, on made-up images.

The data need not be there: images of the same size and number of classes train just as fast.
"""

from __future__ import annotations

import time
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
from calibrant.engine.methods import facts_of, make_plan
from calibrant.engine.objective import LossObjective, MetaPlan, Plan
from calibrant.engine.recipe import DataPart, Recipe
from calibrant.engine.result import EpochRecord
from calibrant.engine.setup import load_data
from calibrant.engine.train import run_recipe
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
    """How long a grid will take.

    Attributes:
        low: Seconds, if all goes well.
        high: Seconds, if not.
        device: Where it was measured.
        at_once: Runs at a time.
        speeds: What was measured of each kind of run.
    """

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
# Seconds of CPU, on an otherwise idle machine. Loading torch, once for every process that runs cells; around the epochs of a
# run: its files, capturing or compiling on a GPU, measuring with intervals; making and measuring a run of another (+ts).
_LOADING, _AROUND, _MADE = 5.0, {"cpu": 1.5, "cuda": 5.0}, 0.6
# In the end: tables and figures of a data set, and what each of their rows adds.
_SET, _ROW = 5.0, 0.7


def forecast(
    cells: Sequence[Cell],
    *,
    jobs: int | None = None,
    threads: int = 1,
    report: Callable[[str], None] | None = None,
) -> Forecast:
    """Time a few steps of each kind of run and add up what a grid takes.

    Args:
        cells: The runs that are left; those made of others without training cost only their measuring.
        jobs: Runs at a time; by default as many as `compare` would start.
        threads: Threads of a run on the CPU.
        report: Called with the kind of run that is timed next.

    Returns:
        A range: a run of the same kind may be faster when compiled and slower beside others. How busy the machine is while
        steps are timed counts for what is not timed, too: loading, measuring, tables and figures.
    """
    device = cells[0].recipe.train.device if cells else "auto"
    place = choose_hardware(device=device).device
    wall, cpu = time.perf_counter(), time.process_time()
    speeds = _time_kinds(cells, threads=threads, report=report)
    # Steps on a GPU are waited for, whoever else uses the cores.
    load = 1.0 if place.type == "cuda" else slowed_by(time.perf_counter() - wall, time.process_time() - cpu)
    speeds = [replace(speed, seconds=speed.seconds + (load - 1) * _AROUND[place.type]) for speed in speeds]
    places = make_places(device=device, jobs=jobs, threads=threads)
    trained = sum(speed.runs for speed in speeds)
    at_once = max(1, min(sum(place.most for place in places), trained))
    # Runs on one GPU take turns; only further GPUs, or cores, work at the same time.
    beside = max(1, min(len(places) if places[0].gpu is not None else at_once, trained))
    total = sum(speed.runs * speed.seconds for speed in speeds) + load * _MADE * (len(cells) - trained)
    spent = max(total / beside, max((speed.seconds for speed in speeds), default=0.0))
    rest = load * (_LOADING + _after(cells)) if cells else 0.0
    return Forecast(_GAIN * spent + rest, _LOSS * spent + 2 * rest, device_name(place), at_once, tuple(speeds))


def slowed_by(wall: float, cpu: float) -> float:
    """How many times longer than alone work takes beside what else the machine does, by the time and CPU time of some.

    Example:
        >>> slowed_by(3.0, 1.5), slowed_by(1.0, 1.1), slowed_by(0.1, 0.001)
        (2.0, 1.0, 1.0)
    """
    return max(1.0, wall / cpu) if cpu >= _TOO_SHORT else 1.0


def _after(cells: Sequence[Cell]) -> float:
    rows = {(cell.data, cell.method) for cell in cells}
    return _SET * len({data for data, _ in rows}) + _ROW * len(rows)


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
        speed = measure_speed(recipes[0], name=name, runs=len(recipes), threads=threads, known=alike.get(key))
        alike[key] = speed
        speeds.append(speed)
    return speeds


def kind_of(recipe: Recipe) -> str:
    """What kind of run a recipe is: those of one kind take equally long.

    Example:
        >>> from calibrant.engine.recipe import override
        >>> kind_of(override(Recipe(), {"method.name": "focal"})), kind_of(Recipe())
        ('cifar10, resnet18, a loss', 'cifar10, resnet18, learning on held-out data (default)')
    """
    family = f"learning on held-out data ({recipe.method.preset})" if isinstance(_plan(recipe), MetaPlan) else "a loss"
    more = _looks(recipe).val_alone
    family += f" that looks at validation data {more} times more" if more else ""
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
    shape = shape_of(recipe.data)
    left = _left_out(recipe, shape)
    train, test = (known.train, known.test) if known else _images_per_second(recipe, shape, left, threads=threads)
    looks = _looks(recipe)
    looked_at = looks.all * (left.val + shape.test) + looks.val_alone * left.val
    around = _AROUND[choose_hardware(device=recipe.train.device).device.type]
    return Speed(name, train, test, runs, recipe.train.epochs * left.train / train + looked_at / test + around)


def _images_per_second(recipe: Recipe, shape: Shape, left: _Left, *, threads: int) -> tuple[float, float]:
    """Speed of training and of evaluation."""
    probe = _PROBES[choose_hardware(device=recipe.train.device).device.type]
    timed = _time(recipe, shape, probe, threads=threads)
    if timed.train_seconds + timed.test_seconds < _TOO_SHORT:
        # So short an epoch is mostly overhead, which must be in the right proportion: take whole batches and the real test set.
        steps = max(min(left.train // recipe.train.batch_size, 100), 1)
        timed = _time(recipe, shape, _Probe(steps, 1, min(left.val + shape.test, 10_000)), threads=threads)
    return timed.trained / timed.train_seconds, timed.tested / timed.test_seconds


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
            run_recipe(short, report=records.append)
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


def _plan(recipe: Recipe) -> Plan:
    return make_plan(recipe.method.name, recipe.method.options, facts_of(recipe))


class _Looks(NamedTuple):
    """How often a run evaluates, and how often it passes over the validation part alone."""

    all: int
    val_alone: int


def _looks(recipe: Recipe) -> _Looks:
    plan, (every, epochs) = _plan(recipe), (recipe.train.eval_every_epochs, recipe.train.epochs)
    due = {epoch for epoch in range(epochs) if (epoch + 1) % every == 0 or epoch + 1 == epochs}
    if isinstance(plan, MetaPlan) or len(due) == epochs:
        return _Looks(len(due), 0)
    objective, alone = LossObjective(plan.loss), 0
    for epoch in range(epochs):
        # What a loss learns from validation data it learns after every epoch, however seldom the run is evaluated.
        objective.begin_epoch(epoch)
        alone += epoch not in due and objective.learns_from_val()
    return _Looks(len(due), alone)


class _Left(NamedTuple):
    train: int
    val: int


def _left_out(recipe: Recipe, shape: Shape) -> _Left:
    meta = isinstance(_plan(recipe), MetaPlan)
    val = shape.train // 10 if recipe.data.val is None else recipe.data.val
    held = (shape.train // 10 if recipe.data.meta is None else recipe.data.meta) if meta or recipe.data.same_data else 0
    return _Left(shape.train - val - held, val)


def _short_recipe(recipe: Recipe, shape: Shape, probe: _Probe, file: Path) -> tuple[Recipe, int]:
    """Two epochs of a few steps: the first warms up. Also the number of images that each evaluation sees."""
    batch = max(recipe.train.batch_size // probe.share, 2)
    plan = _plan(recipe)
    options = dict(recipe.method.options)
    meta = 0
    if isinstance(plan, MetaPlan):
        meta = max(plan.meta_batch_size // probe.share, 2)
        options["meta_batch_size"] = meta
    val, test = (2 * batch, 2 * batch) if not probe.tested else (2, max(probe.tested - 2, 2))
    _save_images(file, shape, train=probe.steps * batch + val + 2 * meta, test=test)
    short = replace(
        recipe,
        data=DataPart(name=str(file), val=val, meta=2 * meta, augment=recipe.data.augment),
        method=replace(recipe.method, options=options),
        train=replace(recipe.train, epochs=2, batch_size=batch, eval_every_epochs=1, compile="no", select="last"),
    )
    return short, val + test


def _save_images(file: Path, shape: Shape, *, train: int, test: int) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (train + test, *shape.size, shape.channels), dtype=np.uint8)
    # A few steps may take fewer images than there are classes; no class may be tested that is not trained on.
    trained = np.arange(train) % shape.num_classes
    np.savez(
        file,
        images=images[:train],
        labels=trained,
        test_images=images[train:],
        test_labels=np.resize(trained, test),
        class_names=np.array([str(k) for k in range(shape.num_classes)]),
    )
