"""From a recipe to a run ready to start: data, network, batches, objective, optimizer, captured step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from calibrant.data import DATASETS, DEFAULT_ROOT, is_path, load_path
from calibrant.data.image_set import DataSet, ImageSet, Parts, difference, fingerprint, split_indices
from calibrant.engine.average import WeightAverage
from calibrant.engine.batches import MetaBatches, TrainBatches
from calibrant.engine.distributed import ALONE_GROUP, Group
from calibrant.engine.evaluate import EvalSet
from calibrant.engine.hardware import Hardware, choose_hardware
from calibrant.engine.loop import LoopParts, TrainStep, steppers
from calibrant.engine.meta_objective import MetaObjective, Watched
from calibrant.engine.methods import facts_of, learns, make_plan, resolved
from calibrant.engine.network import FeatureFunction, build_network, feature_function, find_head
from calibrant.engine.objective import LossObjective, LossPlan, MetaPlan, MixupObjective, Objective, Plan
from calibrant.engine.optim import build_optimizer, cosine_rate, learning_rate
from calibrant.engine.recipe import DataPart, Recipe, TrainPart, check_recipe
from calibrant.meta.network import gathering_norms
from calibrant.meta.settings import words_of
from calibrant.meta.step import HyperParameters

# What a recipe says of data → the data.
Reader: TypeAlias = Callable[[DataPart], DataSet]
# Of the memory that is free, the share that images may take; the network and its activations need the rest.
_SHARE = 0.5


@dataclass(frozen=True)
class RunData:
    """The four parts of the data of a run; ``meta`` is None for methods that need none."""

    train: ImageSet
    val: ImageSet
    meta: ImageSet | None
    test: ImageSet


def is_own(part: DataPart) -> bool:
    """Whether a recipe names no published set but a path, where other images may come to lie."""
    return part.name not in DATASETS


def load_data(part: DataPart) -> DataSet:
    """Read the data set that a recipe names, by its name or its path."""
    if is_own(part) and is_path(part.name):
        return load_path(part.name, size=part.size)
    try:
        source = DATASETS[part.name]
    except ValueError as error:
        # A run in another folder that names its data by a relative path meets this too.
        raise ValueError(f"{error} Name images of your own by their path; nothing lies at {part.name!r} here.") from None
    if part.size is not None:
        raise ValueError(f"train: `data.size` must be left out for {part.name}; only pictures of a folder are resized.")
    return source.load(Path(part.root or DEFAULT_ROOT).expanduser())


def divide(data: DataSet, part: DataPart, *, seed: int, with_meta: bool) -> RunData:
    """Split a data set as a recipe says; the test set is never divided."""
    parts = divide_rows(len(data.train), part, seed=seed, with_meta=with_meta)
    held = data.train.pick(parts.meta) if with_meta else None
    return RunData(data.train.pick(parts.train), data.train.pick(parts.val), held, data.test)


def divide_rows(n: int, part: DataPart, *, seed: int, with_meta: bool) -> Parts:
    """Return which of ``n`` images each part of a run gets; raises ``ValueError`` if there are too few."""
    if n < 10 and (part.val is None or (with_meta and part.meta is None)):
        settings = "`--set data.val=1`" + (" and `--set data.meta=1`" if with_meta else "")
        raise ValueError(
            f"train: `data` must hold at least 10 images to train on, for a tenth of them is held out, got {n}. "
            f"Add images, or say how many to hold out with {settings}."
        )
    val = n // 10 if part.val is None else part.val
    meta = n // 10 if part.meta is None else part.meta
    if with_meta and meta == 0:
        raise ValueError("train: `data.meta` must be > 0 for a method that learns on held-out data, got 0.")
    return split_indices(n, val=val, meta=meta, seed=seed, keep_meta_out=part.same_data, with_meta=with_meta)


def augmented(train: ImageSet, part: DataPart) -> ImageSet:
    """Return the training part with crops and mirroring as a recipe says; the set's own where it says nothing."""
    if not part.augment:
        return replace(train, pad=0, flip=False)
    pad, flip = train.pad if part.pad is None else part.pad, train.flip if part.flip is None else part.flip
    if part.pad and pad >= min(train.size):
        raise ValueError(f"train: `data.pad` must be less than the side of the images, {min(train.size)} pixels, got {pad}.")
    return replace(train, pad=pad, flip=flip)


def fits_on_device(data: RunData, part: DataPart, *, device: torch.device) -> bool:
    """Whether the images of a run are to lie on the device."""
    if part.place != "auto" or device.type != "cuda":
        return part.place != "host"
    parts = (data.train, data.val, data.test, *([] if data.meta is None else [data.meta]))
    height, width = data.train.size
    padded = (height + 2 * data.train.pad) * (width + 2 * data.train.pad) / (height * width)
    needed = sum(part.images.numel() for part in parts) + data.train.images.numel() * (padded - 1)
    free, _ = torch.cuda.mem_get_info(device)
    return bool(needed <= _SHARE * free)


def known_data(facts: Mapping[str, object]) -> dict[str, object]:
    """What ``run.json`` says of the data of a run, in the form of `fingerprint`; old ones say less."""
    kept = facts.get("data")
    if isinstance(kept, Mapping):
        return dict(kept)
    found: dict[str, object] = {}
    for key, place, name in (("num_classes", "inputs", "num_classes"), ("test_examples", "examples", "test")):
        values = facts.get(place)
        if isinstance(values, Mapping) and name in values:
            found[key] = values[name]
    return found


def check_same_data(then: Mapping[str, object], now: Mapping[str, object], part: DataPart, *, where: str) -> None:
    """Raise ``ValueError`` if a run would go on with other data than it began with.

    Args:
        then: Fingerprint of the data that it began with; empty where that was not kept.
        now: Fingerprint of the data at hand.
        part: What the recipe says of the data; published sets are taken to be what they are.
        where: What the run is kept in.
    """
    if is_own(part) and (differ := difference(then, now)):
        raise ValueError(
            f"train: `data` must be what {where} was trained on, got other data in {part.name}: {differ}. Put the old data "
            "back, or use another folder."
        )


def check_data_now(facts: Mapping[str, object], part: DataPart, *, where: str) -> None:
    """Read the data as they are now and compare them with those of ``run.json``; a finished run may outlive its data."""
    if not is_own(part):
        return
    try:
        now = fingerprint(load_data(part))
    except (OSError, ValueError):
        return
    check_same_data(known_data(facts), now, part, where=where)


@dataclass(frozen=True)
class Assembly:
    """A run ready to start: its recipe with nothing left open, and what was built from it."""

    recipe: Recipe
    parts: LoopParts
    data: RunData
    hardware: Hardware
    plan: Plan
    fingerprint: dict[str, int | str]


def assemble(recipe: Recipe, *, group: Group = ALONE_GROUP) -> Assembly:
    """Build everything that a recipe describes, for one of a group of processes.

    Raises ``ValueError`` or ``OSError`` with one sentence if something cannot be.
    """
    recipe = resolved(recipe)
    check_recipe(recipe)
    part, train = recipe.method, recipe.train
    # Wrong options are found before the data are read; then some plans need the size of the training part.
    make_plan(part.name, part.options, facts_of(recipe))
    whole = load_data(recipe.data)
    data = divide(whole, recipe.data, seed=recipe.seed, with_meta=learns(recipe))
    data = replace(data, train=augmented(data.train, recipe.data))
    plan = make_plan(part.name, part.options, facts_of(recipe, num_train=len(data.train)))
    steps = train.epochs * (len(data.train) // train.batch_size)
    hardware = choose_hardware(
        device=train.device, precision=train.precision, compiled=train.compile, graph=train.graph, steps=steps, group=group
    )
    model = build_network(recipe, data.train, hardware, uses_head=learns(recipe), group=group)
    with hardware.active():
        parts = _loop_parts(_Given(recipe, data, model, hardware), plan)
    return Assembly(recipe, parts, data, hardware, plan, fingerprint(whole))


class _Given(NamedTuple):
    """What the parts of a run are built from."""

    recipe: Recipe
    data: RunData
    model: nn.Module
    hardware: Hardware

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.recipe.train.epochs * (len(self.data.train) // self.recipe.train.batch_size)

    def forward(self, model: nn.Module) -> FeatureFunction:
        """Images → (features, logits), compiled where that is asked for."""
        plain = feature_function(model)
        return torch.compile(plain) if self.hardware.compiled else plain


def _loop_parts(given: _Given, plan: Plan) -> LoopParts:
    recipe, data, model, hardware = given
    resident = fits_on_device(data, recipe.data, device=hardware.device)
    forward = given.forward(model)
    size, seed = recipe.train.batch_size, recipe.seed
    batches = TrainBatches(data.train, hardware, batch_size=size, seed=seed, resident=resident)
    optimizer = build_optimizer(model.parameters(), recipe.optim)
    averages = _averages(given, plan)
    objective: Objective
    if isinstance(plan, MetaPlan):
        objective = _meta_objective(given, plan, _watched(given, plan, forward, averages), batches, optimizer)
    else:
        objective = _loss_objective(given, plan, batches)
    step = TrainStep(
        model=model,
        forward=forward,
        batches=batches,
        objective=objective,
        optimizer=optimizer,
        hardware=hardware,
        clip_norm=recipe.train.clip_norm or None,
        averages=averages,
    )
    plain, meta = steppers(step, capture=hardware.captured)
    every = plan.settings.every if isinstance(plan, MetaPlan) else 1
    val, test = (EvalSet(part, hardware, resident=resident) for part in (data.val, data.test))
    return LoopParts(step, plain, meta, every, feature_function(model), val, test)


def _loss_objective(given: _Given, plan: LossPlan, batches: TrainBatches) -> LossObjective:
    device, group = given.hardware.device, given.hardware.group
    loss = plan.loss.to(device)
    if plan.mixup_alpha is None:
        return LossObjective(loss, pruner=None if plan.pruner is None else plan.pruner.to(device), group=group)
    return MixupObjective(loss, batches, alpha=plan.mixup_alpha, device=device, group=group)


def _averages(given: _Given, plan: Plan) -> dict[str, WeightAverage]:
    """Make the averages of a run: the one that predicts and, where it must be another, the one that meta batches go through.

    The longer an average's memory, the later it shows what gamma has done; what steers by it then swings.
    """
    train, model = given.recipe.train, given.model
    if train.average == "no":
        return {}
    # The paper's last drop of the learning rate is at 250 of 350 epochs; what comes before it is too far from the end.
    usual = train.epochs * 5 // 7 if train.average == "uniform" else 0
    first = usual if train.average_from_epoch is None else train.average_from_epoch
    if train.average == "uniform":
        return {"average": WeightAverage(model, decay=None, first_epoch=first)}
    decay = 1 - 1 / _memory(given)
    if train.average == "ema":
        return {"average": WeightAverage(model, decay=decay, first_epoch=first)}
    found = {"average": WeightAverage(model, decay=None, share=train.average_share, first_epoch=first, by_phase=True)}
    if isinstance(plan, MetaPlan) and not (plan.frozen or plan.settings.leak_meta_grad):
        found["watch"] = WeightAverage(model, decay=decay, first_epoch=first, own_statistics=True)
    return found


def _memory(given: _Given) -> float:
    """Steps that an exponential average remembers in a run; also where there is none, or a uniform one.

    Three epochs of CIFAR-10 are long enough to even the steps out; in a short run that would reach back to its beginning.
    """
    train: TrainPart = given.recipe.train
    if train.average in ("ema", "phase") and train.average_decay is not None:
        return 1 / (1 - train.average_decay)
    return min(max(given.steps / 50, 1.0), 1000.0)


def _watched(given: _Given, plan: MetaPlan, forward: FeatureFunction, averages: Mapping[str, WeightAverage]) -> Watched:
    """What steers the hyper-parameters should see an average where one predicts; a gradient that leaks needs the network."""
    shown = averages.get("watch") or averages.get("average")
    if shown is None or plan.settings.leak_meta_grad or plan.frozen:
        return Watched(given.model, forward, find_head(given.model)[1])
    averaged = shown.network(given.model)
    # The short average learns BatchNorm's statistics from what passes through it; others have them averaged.
    learns = "watch" in averages and plan.settings.meta_bn == "frozen"
    own = _learn_statistics(averaged, given, plan) if learns else 0
    return Watched(averaged, given.forward(averaged), find_head(averaged)[1], own)


def _learn_statistics(averaged: nn.Module, given: _Given, plan: MetaPlan) -> int:
    """Training images of a meta step that BatchNorm learns from: a batch every fourth step, or as much less of one oftener."""
    norms, local = gathering_norms(averaged), given.recipe.train.batch_size // given.hardware.group.world_size
    images = min(local, max(8, -(-local * plan.settings.every // 4))) if norms else 0
    for norm in norms:
        # Statistics that remember longer than the weights would belong to others.
        usual = (0.1 if norm.momentum is None else norm.momentum) * images / local
        norm.momentum = min(1.0, max(usual, plan.settings.every / _memory(given)))
    return images


def _meta_objective(
    given: _Given, plan: MetaPlan, watched: Watched, batches: TrainBatches, optimizer: Optimizer
) -> MetaObjective:
    recipe, data, model, hardware = given
    _, head = find_head(model)
    assert data.meta is not None
    drawn = MetaBatches(
        data.meta,
        hardware,
        batch_size=plan.meta_batch_size,
        steps_per_epoch=-(-batches.steps_per_epoch // plan.settings.every),
        seed=recipe.seed,
        resident=not batches.fed,
    )
    pace = plan.pace or plan.regularizer.pace * _speed_up(_memory(given) / plan.settings.every)
    generator = torch.Generator().manual_seed(recipe.seed)
    learned = HyperParameters(plan.regularizer, plan.settings, head, pace=pace, generator=generator)
    return MetaObjective(
        plan,
        learned,
        head=head,
        watched=watched,
        batches=drawn,
        optimizer=optimizer,
        reduction=recipe.train.reduction,
        hardware=hardware,
        schedule=_meta_schedule(recipe, plan, learned.lr),
        learning={} if plan.frozen else _learning(plan, learned.lr, meta_examples=len(data.meta)),
    )


def _learning(plan: MetaPlan, meta_lr: float, *, meta_examples: int) -> dict[str, object]:
    """How the hyper-parameters are learned, as plain data: what the recipe says of it, its preset and its length."""
    settings = {name: value for name, value in asdict(plan.settings).items() if name not in ("reduction", "clip")}
    own = {"meta_lr": meta_lr, "meta_schedule": plan.meta_schedule, "meta_batch_size": min(plan.meta_batch_size, meta_examples)}
    return settings | {"betas": list(plan.settings.betas), "objective": words_of(plan.objective)} | own


def _speed_up(memory: float) -> float:
    """How many times faster than usual the hyper-parameters move, where averaged weights remember so many meta steps.

    What gamma does to the averaged network shows after about as many, and what moves far before that swings: on CIFAR-100 at
    the usual pace and 250 meta steps gamma went between 0.3 and 5 every 20 epochs, and ECE between 1.5 and 4.5 %. So gamma may
    move by about 0.6 in that time: on small images of CIFAR-10 it then rose steadily, where with 1.0 it went to and fro. In a
    short run it must be able to cross its range at all: on scikit-learn's digits, 60 meta steps in the whole run, four times
    the usual pace brought ECE from 2.5 to 1.5 %. More was never tried.
    """
    return min(4.0, 24 / memory)


def _meta_schedule(recipe: Recipe, plan: MetaPlan, meta_lr: float) -> Callable[[int], float] | None:
    """Epoch → learning rate of the hyper-parameters; None where it stays."""
    epochs, optim = recipe.train.epochs, recipe.optim
    schedules: dict[str, Callable[[int], float] | None] = {
        "constant": None,
        "cosine": lambda epoch: cosine_rate(epoch, lr=meta_lr, epochs=epochs),
        "network": lambda epoch: meta_lr * learning_rate(optim, epoch, epochs=epochs) / optim.lr,
        # Averaged weights follow gamma within their memory down to a tenth of the first rate; below it the network is slower.
        "slowing": lambda epoch: meta_lr * min(1.0, math.sqrt(10 * learning_rate(optim, epoch, epochs=epochs) / optim.lr)),
    }
    return schedules[plan.meta_schedule]
