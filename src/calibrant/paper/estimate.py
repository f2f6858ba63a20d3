"""How long a grid will take on this machine: a few real steps of each kind of run are timed, on made-up images.

The data need not be there: images of the same size and number of classes train just as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from calibrant.data import DATASETS, Shape
from calibrant.engine.folder import device_name
from calibrant.engine.hardware import choose_hardware
from calibrant.engine.loop import held_out, load_data
from calibrant.engine.methods import MetaPlan, facts_of, learns, make_plan
from calibrant.engine.recipe import DataPart, Recipe
from calibrant.engine.result import EpochRecord
from calibrant.engine.train import train
from calibrant.grid.local import make_places
from calibrant.grid.plan import Cell


@dataclass(frozen=True)
class Speed:
    """How fast runs of one kind go.

    Attributes:
        name: Which kind: data set, network, and whether it learns on held-out data.
        train: Images a second in training.
        runs: Runs of this kind that are left to train.
        seconds: What one of them takes.
    """

    name: str
    train: float
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


# A batch costs a CPU in proportion to its size, so an eighth of one is enough; a GPU must be kept as busy as in the real run.
_STEPS, _PARTS = {"cpu": 4, "cuda": 100}, {"cpu": 8, "cuda": 1}
# Epochs of so few pixels are mostly overhead, so a whole one is timed.
_SMALL = 400_000
# Compiling, which is left out here, makes a long run on a GPU about a fifth faster; runs that share a machine disturb each
# other. Measured on an H200: four runs on one GPU together are a fifth faster than in turn.
_GAIN, _LOSS = 0.75, 1.35
# Seconds. Loading torch, and tables in the end; around the epochs of a run: its files, capturing or compiling on a GPU,
# measuring with intervals.
_REST, _AROUND = 15.0, {"cpu": 1.5, "cuda": 5.0}


def forecast(
    cells: Sequence[Cell], *, jobs: int | None = None, threads: int = 1, report: Callable[[str], None] | None = None
) -> Forecast:
    """Time a few steps of each kind of run and add up what a grid takes.

    Args:
        cells: The runs that are left; those made of others without training take next to no time.
        jobs: Runs at a time; by default as many as `compare` would start.
        threads: Threads of a run on the CPU.
        report: Called with the kind of run that is timed next.

    Returns:
        A range: a run of the same kind may be faster when compiled and slower beside others.
    """
    kinds: dict[str, list[Recipe]] = {}
    for cell in cells:
        if cell.base is None:
            kinds.setdefault(kind_of(cell.recipe), []).append(cell.recipe)
    speeds: list[Speed] = []
    for name, recipes in kinds.items():
        if report is not None:
            report(name)
        rate, seconds = time_run(recipes[0], threads=threads)
        speeds.append(Speed(name, rate, len(recipes), seconds))
    device = cells[0].recipe.train.device if cells else "auto"
    places = make_places(device=device, jobs=jobs, threads=threads)
    trained = max(1, sum(speed.runs for speed in speeds))
    at_once = min(sum(place.most for place in places), trained)
    # Runs on one GPU take turns; only further GPUs, or cores, work at the same time.
    beside = at_once if places[0].gpu is None else min(len(places), trained)
    total = sum(speed.runs * speed.seconds for speed in speeds) / beside
    spent = max([total, *(speed.seconds for speed in speeds)])
    where = device_name(choose_hardware(device=device).device)
    return Forecast(_GAIN * spent + _REST, _LOSS * spent + 2 * _REST, where, at_once, tuple(speeds))


def kind_of(recipe: Recipe) -> str:
    """Return which kind of run a recipe is: those of one kind take equally long.

    Example:
        >>> from calibrant.engine.recipe import override
        >>> kind_of(override(Recipe(), {"method.name": "focal"})), kind_of(Recipe())
        ('cifar10, resnet18, a loss', 'cifar10, resnet18, learning on held-out data (default)')
    """
    family = f"learning on held-out data ({recipe.method.preset})" if learns(recipe) else "a loss"
    return f"{Path(recipe.data.name).name}, {recipe.backbone.name}, {family}"


def time_run(recipe: Recipe, *, threads: int = 1) -> tuple[float, float]:
    """Train a few steps by a recipe on made-up images of its data's size.

    Returns:
        Images a second in training, and the seconds of a whole run.
    """
    shape, place = shape_of(recipe.data), choose_hardware(device=recipe.train.device).device.type
    val, meta = held_out(shape.train, recipe)
    left = shape.train - val - meta
    batch, steps, tested = max(recipe.train.batch_size // _PARTS[place], 2), _STEPS[place], 0
    if left * math.prod(shape.size) <= _SMALL:
        batch, tested = recipe.train.batch_size, val + shape.test
        steps = max(left // batch, 1)
    records: list[EpochRecord] = []
    before = torch.get_num_threads()
    with TemporaryDirectory() as folder:
        short, seen = _short_recipe(recipe, shape, Path(folder) / "images.npz", batch=batch, steps=steps, tested=tested)
        try:
            torch.set_num_threads(threads)
            train(short, report=records.append)
        finally:
            torch.set_num_threads(before)
    # The first epoch warms up.
    first, last = records
    rate = last.images_per_second or 1.0
    testing = max((last.seconds or 0.0) - (first.seconds or 0.0) - steps * batch / rate, 1e-4)
    looks = -(-recipe.train.epochs // recipe.train.eval_every_epochs)
    return rate, recipe.train.epochs * left / rate + looks * (val + shape.test) * testing / seen + _AROUND[place]


def shape_of(part: DataPart) -> Shape:
    """Sizes of a data set, read only if they are not known by name."""
    if part.name in DATASETS:
        return DATASETS[part.name].shape
    data = load_data(part)
    return Shape(len(data.train), len(data.test), data.train.size, data.train.channels, data.train.num_classes)


def _short_recipe(recipe: Recipe, shape: Shape, file: Path, *, batch: int, steps: int, tested: int) -> tuple[Recipe, int]:
    """Two epochs of a few steps; also the number of images that each evaluation sees, two batches twice if ``tested`` is 0."""
    meta, options = 0, dict(recipe.method.options)
    plan = make_plan(recipe.method.name, recipe.method.options, facts_of(recipe))
    if isinstance(plan, MetaPlan):
        # About what a bank renews in a long run on CIFAR.
        renewed = options.pop("refresh", None)
        passed = plan.meta_batch_size or (renewed if isinstance(renewed, int) and renewed else 256)
        meta = options["meta_batch_size"] = max(passed * batch // recipe.train.batch_size, 2)
    val, test = (2, max(tested - 2, 2)) if tested else (2 * batch, 2 * batch)
    count = steps * batch + val + 2 * meta
    images = np.random.default_rng(0).integers(0, 256, (count + test, *shape.size, shape.channels), dtype=np.uint8)
    # A few steps may take fewer images than there are classes; no class may be tested that is not trained on.
    labels = np.arange(count) % shape.num_classes
    names = np.array([str(k) for k in range(shape.num_classes)])
    held = {"test_images": images[count:], "test_labels": np.resize(labels, test), "class_names": names}
    np.savez(file, images=images[:count], labels=labels, **held)  # type: ignore[arg-type]
    short = replace(
        recipe,
        data=DataPart(name=str(file), val=val, meta=2 * meta, augment=recipe.data.augment),
        method=replace(recipe.method, options=options),
        train=replace(recipe.train, epochs=2, batch_size=batch, eval_every_epochs=1, compile="no", select="last"),
    )
    return short, val + test
