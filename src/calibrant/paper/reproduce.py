"""The paper's experiments by name: which grid each table takes, its report, and how long it will take on this machine.

For the time a few real steps of each kind of run are timed on made-up images, so the data need not be there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch

from calibrant.core.registry import lookup
from calibrant.core.scores import Entry
from calibrant.data import DATASETS, Shape
from calibrant.engine.folder import device_name, is_finished
from calibrant.engine.hardware import choose_hardware
from calibrant.engine.loop import held_out, load_data
from calibrant.engine.methods import MetaPlan, facts_of, learns, make_plan
from calibrant.engine.recipe import DataPart, Recipe, override
from calibrant.engine.result import EpochRecord
from calibrant.engine.train import train
from calibrant.grid.compare import Comparison, compare
from calibrant.grid.export import page_rows, to_page_table, write_page, write_table
from calibrant.grid.local import make_places
from calibrant.grid.paper import load_paper, paper_table
from calibrant.grid.schedule import Cell, Watch, parse_seeds, plan_cells
from calibrant.grid.tables import Table, compare_table
from calibrant.paper.tables import has_differences, make_paper_table

# Methods of the paper's reliability diagrams and learning curves.
_DRAWN: tuple[str, ...]
_DRAWN = ("ce", "ce+ts", "focal", "flsd", "ls-0.05", "mmce", "ce-dece", "flgamma-dece", "ce-sece", "flgamma-sece")
_DRAWN_DATA = ("cifar10", "cifar100")
# Bins of the paper's reliability diagrams.
_BINS = (10, 20, 50, 100)
_QUICK_DATA, _QUICK_SEEDS = "mixture", 3
# Long enough for a small network to become over-confident; the protocol of the paper is not made for 1,600 images.
_QUICK: dict[str, object] = {"train.epochs": 40, "train.batch_size": 50, "train.reduction": "mean", "train.clip_norm": 0.0}
_QUICK |= {"train.select": "last", "train.average": "no", "optim.lr": 0.05, "optim.weight_decay": 5e-3, "data.meta": 200}
# For the other embedded set, which the paper's protocol may suit.
_SHORT: dict[str, object] = {"train.epochs": 20}
# For sets of real size: one to three minutes a run on CIFAR-10 on one core, where an epoch of ResNet-18 takes an hour.
_SMALL: dict[str, object] = {"train.epochs": 3, "backbone.name": "convnet"}
# What the title of Table 4 calls its network.
_DENSENET = "DenseNet (100 layers)"
_QUICK_NOTE = (
    "Quick version: a small network and a short schedule, on small data unless others were named, to see that everything "
    "works. Nothing here can be held against the paper or against full runs."
)
_ALIKE_NOTE = (
    "All methods predict with the weights of the last epoch as they are (train.average=no, train.select=last), also those "
    "whose preset averages weights and chooses an epoch."
)


@dataclass(frozen=True)
class Reproduction:
    """One of the paper's experiments, ready to be run; see `plan_reproduction`.

    ``recipe`` is what all runs have in common, None for the small networks of embedded data; ``settings`` come on top.
    """

    name: str
    title: str
    data: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    recipe: Recipe | None
    settings: Mapping[str, object]
    quick: bool = False

    def cells(self) -> tuple[Cell, ...]:
        """All of its runs."""
        return plan_cells(self.data, self.methods, self.seeds, recipe=self.recipe, settings=self.settings)

    def left(self, out: str | Path) -> tuple[Cell, ...]:
        """Those that are not finished in ``out``."""
        return tuple(cell for cell in self.cells() if not is_finished(Path(out) / "runs" / cell.name))


def plan_reproduction(
    name: str,
    *,
    data: Sequence[str] = (),
    seeds: int | str | Sequence[int] | None = None,
    quick: bool = False,
    preset: str = "default",
    settings: Mapping[str, object] | None = None,
) -> Reproduction:
    """Say which grid one of the paper's experiments takes.

    Args:
        name: ``"table1"`` to ``"table5"``, or ``"figures"``.
        data: Data sets, in place of the paper's.
        seeds: How many, from 0, or which; five for a table and one for the figures by default.
        quick: A small version: a few epochs of a small network, three seeds, on embedded data unless others are named. It is
            labelled in all that it writes.
        preset: Settings of methods that learn on held-out data: "default" is what works best, "paper" the most literal reading.
        settings: Dotted recipe keys on top, as ``{"train.device": "cpu"}``.

    Returns:
        The plan. Raises ``ValueError`` if the name is unknown.

    Example:
        >>> plan = plan_reproduction("table2", seeds=2)
        >>> plan.data, plan.methods, len(plan.cells())
        (('cifar10', 'cifar100'), ('flgamma', 'flgamma-sece'), 8)
    """
    lookup(dict.fromkeys([*load_paper().tables, "figures"]), name, kind="experiment of the paper")
    usual = _QUICK_SEEDS if quick else 1 if name == "figures" else 5
    table = None if name == "figures" else paper_table(name)
    methods = _DRAWN if table is None else table.methods
    sets = _DRAWN_DATA if table is None else tuple(table.rows)
    model = (table and table.model) or "resnet18"
    full = override(Recipe(), {"backbone.name": model})
    plan = Reproduction(
        name=name,
        title="The paper's figures" if table is None else table.title,
        data=tuple(data) or ((_QUICK_DATA,) if quick else sets),
        methods=("ce", *methods) if name == "table5" else methods,
        seeds=tuple(parse_seeds(usual if seeds is None else seeds)),
        # Without a recipe, embedded data get a small network; the paper's protocol is asked for by name.
        recipe=None if quick else full,
        settings={"method.preset": preset} | (_quick_settings(data) if quick else {}) | dict(settings or {}),
        quick=quick,
    )
    # Where the title names the paper's network and others are trained, these are named.
    networks = dict.fromkeys(cell.recipe.backbone.name for cell in plan.cells())
    named = plan.title if table is None or [*networks] == [table.model] else plan.title.replace(_DENSENET, ", ".join(networks))
    return replace(plan, title=named)


def _quick_settings(data: Sequence[str]) -> dict[str, object]:
    if set(data) <= {_QUICK_DATA}:
        return _QUICK
    return _SHORT if all(name in DATASETS and DATASETS[name].embedded for name in data) else _SMALL


def run_reproduction(plan: Reproduction, *, out: str | Path, jobs: int | None = None, watch: Watch | None = None) -> Comparison:
    """Run what is left of an experiment, and write its table, its figures and ``report.html``; arguments as of `compare`."""
    grid = {"methods": plan.methods, "seeds": plan.seeds, "recipe": plan.recipe, "settings": plan.settings}
    return compare(plan.data, out=out, jobs=jobs, watch=watch, write=partial(write_report, plan), **grid)  # type: ignore[arg-type]


def write_report(
    plan: Reproduction, entries: Sequence[Entry], folder: Path, missing: Sequence[str] = ()
) -> tuple[Table, tuple[Path, ...]]:
    """Write the table (four forms), ``figures/`` and ``report.html`` of an experiment's runs, as `compare` wants it."""
    from calibrant.report.page_runs import columns_of

    shown = [replace(entry, data=f"{entry.data} (quick)") for entry in entries] if plan.quick else list(entries)
    table = _table(plan, shown)
    table = replace(table, remarks=(*missing, *table.remarks))
    files = write_table(table, folder)
    rows = page_rows(compare_table(shown, metrics=columns_of(shown), calibrated=True))
    heading = plan.title if plan.name == "figures" else f"Table {plan.name.removeprefix('table')}: {plan.title}"
    title = f"{heading}, quick version" if plan.quick else heading
    bins = _BINS if plan.name == "figures" else (15,)
    return table, (*files, *write_page(rows, folder, tables=[to_page_table(table)], title=title, bins=bins))


def _table(plan: Reproduction, entries: Sequence[Entry]) -> Table:
    # Where runs of cross-entropy failed there may be no differences to it, but there are still results.
    alone = plan.name == "table5" and not has_differences(entries)
    if plan.name == "figures" or alone:
        table = compare_table(entries, paper=not plan.quick, calibrated=True, labels="name", name=plan.name, title=plan.title)
    else:
        made = make_paper_table(plan.name, entries, paper=not plan.quick, calibrated=True, any_model=True)
        table = replace(made, title=plan.title)
    if not plan.quick:
        return table
    quick = f"{table.title} (quick version)"
    alike = (plan.settings.get("train.average"), plan.settings.get("train.select")) == ("no", "last")
    remarks = (_QUICK_NOTE, *([_ALIKE_NOTE] if alike else []), *table.remarks)
    return replace(table, name=f"{table.name}-quick", title=quick, remarks=remarks)


class Speed(NamedTuple):
    """How fast runs of one kind go: images a second in training, how many are left to train, and the seconds of one."""

    name: str
    train: float
    runs: int
    seconds: float


class Forecast(NamedTuple):
    """How long a grid takes: seconds if all goes well and if not, where, how many runs at a time, and what was measured."""

    low: float
    high: float
    device: str
    at_once: int
    speeds: list[Speed]


# A batch of images costs a CPU in proportion to its size, so an eighth of one is enough; a GPU must be kept busy.
_STEPS, _PARTS = {"cpu": 4, "cuda": 100}, {"cpu": 8, "cuda": 1}
# A step on so few pixels is mostly overhead: whole batches are timed, and more of them.
_FEW_PIXELS, _FEW_STEPS = 400_000, 32
# A forward pass takes about a third of a training step.
_FORWARD = 1 / 3
# Compiling, which is left out here, makes a long run on a GPU about a fifth faster; runs that share a machine disturb each
# other. Measured on an H200: four runs on one GPU together are a fifth faster than in turn.
_GAIN, _LOSS = 0.75, 1.35
# Seconds. Loading torch, and tables in the end; around the epochs of a run: its files, capturing or compiling on a GPU,
# measuring with intervals.
_REST, _AROUND = 15.0, {"cpu": 1.5, "cuda": 5.0}


def forecast(cells: Sequence[Cell], *, jobs: int | None = None, report: Callable[[str], None] = lambda kind: None) -> Forecast:
    """Time a few steps of each kind of run and add up what a grid takes.

    Args:
        cells: The runs that are left; those made of others without training take next to no time.
        jobs: Runs at a time; by default as many as `compare` would start.
        report: Called with the kind of run that is timed next.

    Returns:
        A range: a run may be faster when compiled and slower beside others.
    """
    kinds: dict[str, list[Recipe]] = {}
    for cell in cells:
        if cell.base is None:
            kinds.setdefault(kind_of(cell.recipe), []).append(cell.recipe)
    speeds: list[Speed] = []
    for name, recipes in kinds.items():
        report(name)
        rate, seconds = time_run(recipes[0])
        speeds.append(Speed(name, rate, len(recipes), seconds))
    device = cells[0].recipe.train.device if cells else "auto"
    places = make_places(device=device, jobs=jobs, threads=1)
    trained = max(1, sum(speed.runs for speed in speeds))
    at_once = min(sum(place.most for place in places), trained)
    # Runs on one GPU take turns; only further GPUs, or cores, work at the same time.
    parallel = at_once if places[0].gpu is None else min(len(places), trained)
    total = sum(speed.runs * speed.seconds for speed in speeds) / parallel
    spent = max([total, *(speed.seconds for speed in speeds)])
    where = device_name(choose_hardware(device=device).device)
    return Forecast(_GAIN * spent + _REST, _LOSS * spent + 2 * _REST, where, at_once, speeds)


def kind_of(recipe: Recipe) -> str:
    """Return which kind of run a recipe is: those of one kind take equally long."""
    family = f"learning on held-out data ({recipe.method.preset})" if learns(recipe) else "a loss"
    return f"{Path(recipe.data.name).name}, {recipe.backbone.name}, {family}"


def time_run(recipe: Recipe) -> tuple[float, float]:
    """Train a few steps on made-up images; return images a second in training, and the seconds of a whole run."""
    shape, place = shape_of(recipe.data), choose_hardware(device=recipe.train.device).device.type
    few = shape.train * math.prod(shape.size) <= _FEW_PIXELS
    batch = max(recipe.train.batch_size // (1 if few else _PARTS[place]), 2)
    records: list[EpochRecord] = []
    before = torch.get_num_threads()
    with TemporaryDirectory() as folder:
        short = _short_recipe(recipe, shape, Path(folder) / "images.npz", batch, _FEW_STEPS if few else _STEPS[place])
        try:
            torch.set_num_threads(1)
            train(short, report=records.append)
        finally:
            torch.set_num_threads(before)
    # The first epoch warms up.
    rate = records[-1].images_per_second or 1.0
    val, meta = held_out(shape.train, recipe)
    looks = -(-recipe.train.epochs // recipe.train.eval_every_epochs)
    images = recipe.train.epochs * (shape.train - val - meta) + looks * (val + shape.test) * _FORWARD
    return rate, images / rate + _AROUND[place]


def shape_of(part: DataPart) -> Shape:
    """Sizes of a data set, read only if they are not known by name."""
    if part.name in DATASETS:
        return DATASETS[part.name].shape
    data = load_data(part)
    return Shape(len(data.train), len(data.test), data.train.size, data.train.channels, data.train.num_classes)


def _short_recipe(recipe: Recipe, shape: Shape, file: Path, batch: int, steps: int) -> Recipe:
    """Two epochs of a few steps on made-up images, which are written to a file."""
    meta, options = 0, dict(recipe.method.options)
    plan = make_plan(recipe.method.name, recipe.method.options, facts_of(recipe))
    if isinstance(plan, MetaPlan):
        # About what a bank renews in a long run on CIFAR.
        renewed = options.pop("refresh", None)
        passed = plan.meta_batch_size or (renewed if isinstance(renewed, int) and renewed else 256)
        meta = options["meta_batch_size"] = max(passed * batch // recipe.train.batch_size, 2)
    # Two images each to validate and to test; there may be fewer images to train on than classes.
    count = steps * batch + 2 + 2 * meta
    images = np.zeros((count + 2, *shape.size, shape.channels), dtype=np.uint8)
    labels = np.arange(count) % shape.num_classes
    names = np.array([str(k) for k in range(shape.num_classes)])
    np.savez(file, images=images[:-2], labels=labels, test_images=images[-2:], test_labels=labels[:2], class_names=names)
    return replace(
        recipe,
        data=DataPart(name=str(file), val=2, meta=2 * meta, augment=recipe.data.augment),
        method=replace(recipe.method, options=options),
        train=replace(recipe.train, epochs=2, batch_size=batch, eval_every_epochs=1, compile="no", select="last"),
    )
