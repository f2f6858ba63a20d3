"""Putting the parts of a run together: network, batches, objective, optimizer, captured step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from calibrant.data.image_set import fingerprint
from calibrant.engine.average import WeightAverage
from calibrant.engine.batches import MetaBatches, TrainBatches
from calibrant.engine.distributed import ALONE_GROUP, Group
from calibrant.engine.evaluate import EvalSet
from calibrant.engine.features import FeatureFunction, feature_function, find_head
from calibrant.engine.hardware import Hardware, choose_hardware
from calibrant.engine.limits import check_recipe
from calibrant.engine.loop import LoopParts, learning_rate
from calibrant.engine.meta_objective import MetaObjective, Watched
from calibrant.engine.methods import make_plan
from calibrant.engine.network import build_network
from calibrant.engine.objectives import LossObjective, MixupObjective
from calibrant.engine.optim import build_optimizer
from calibrant.engine.plans import LossPlan, MetaPlan, Plan
from calibrant.engine.recipe import Recipe, TrainPart
from calibrant.engine.resolve import facts_of, resolved
from calibrant.engine.schedule import cosine_rate
from calibrant.engine.setup import RunData, augmented, divide, fits_on_device, load_data
from calibrant.engine.step import TrainStep, steppers
from calibrant.meta.bn import gathering_norms
from calibrant.meta.objectives import words_of
from calibrant.meta.virtual import VirtualStep


@dataclass(frozen=True)
class Assembly:
    """A run ready to start: its parts, its data, by what these are known again, and the hardware it runs on."""

    parts: LoopParts
    data: RunData
    hardware: Hardware
    plan: Plan
    fingerprint: dict[str, int | str]
    group: Group = ALONE_GROUP


def assemble(recipe: Recipe, *, group: Group = ALONE_GROUP) -> Assembly:
    """Build everything that a recipe describes, for one of a group of processes.

    Raises ``ValueError`` or ``OSError`` with one sentence if something cannot be.
    """
    recipe = resolved(recipe)
    check_recipe(recipe)
    part, train = recipe.method, recipe.train
    # The plan says whether there is a meta part, and some plans need the size of the training part.
    probe = make_plan(part.name, part.options, facts_of(recipe))
    whole = load_data(recipe.data)
    known = fingerprint(whole)
    data = divide(whole, recipe.data, seed=recipe.seed, with_meta=isinstance(probe, MetaPlan))
    data = replace(data, train=augmented(data.train, recipe.data))
    plan = make_plan(part.name, part.options, facts_of(recipe, num_train=len(data.train)))
    steps = train.epochs * (len(data.train) // train.batch_size)
    hardware = choose_hardware(
        device=train.device, precision=train.precision, compiled=train.compile, graph=train.graph, steps=steps, group=group
    )
    model = build_network(recipe, data.train, hardware, group=group, uses_head=isinstance(plan, MetaPlan))
    with hardware.active():
        parts = _loop_parts(_Scene(recipe, data, model, hardware, group), plan)
    return Assembly(parts, data, hardware, plan, known, group)


class _Scene(NamedTuple):
    """What the parts of a run are built from."""

    recipe: Recipe
    data: RunData
    model: nn.Module
    hardware: Hardware
    group: Group


def _loop_parts(scene: _Scene, plan: Plan) -> LoopParts:
    recipe, data, model, hardware, group = scene
    resident = fits_on_device(data, recipe.data, device=hardware.device)
    plain_forward = feature_function(model)
    forward: FeatureFunction = torch.compile(plain_forward) if hardware.compiled else plain_forward
    batches = _train_batches(scene, resident=resident)
    optimizer = _optimizer(scene)
    averages = _averages(recipe, model, plan, steps=recipe.train.epochs * batches.steps_per_epoch)
    objective = (
        _meta_objective(scene, plan, _watched(scene, plan, forward, averages), batches, optimizer)
        if isinstance(plan, MetaPlan)
        else _loss_objective(scene, plan, batches)
    )
    step = TrainStep(
        model=model,
        forward=forward,
        batches=batches,
        objective=objective,
        optimizer=optimizer,
        precision=hardware.precision,
        clip_norm=recipe.train.clip_norm or None,
        group=group,
        average=averages.average,
        watch=averages.watch,
    )
    plain, meta = steppers(step, capture=hardware.captured)
    val, test = (
        EvalSet(part, device=hardware.device, dtype=hardware.dtype, group=group, resident=resident)
        for part in (data.val, data.test)
    )
    return LoopParts(
        step=step,
        plain=plain,
        meta=meta,
        meta_every=plan.settings.every if isinstance(plan, MetaPlan) else 1,
        model=model,
        eval_forward=plain_forward,
        val=val,
        test=test,
        objective=objective,
        gamma=_gamma_rule(objective),
    )


class _Averages(NamedTuple):
    """Averages of the weights: the one that predicts, and the one that meta batches go through where it must be another."""

    average: WeightAverage | None = None
    watch: WeightAverage | None = None


def _watched(scene: _Scene, plan: MetaPlan, forward: FeatureFunction, averages: _Averages) -> Watched:
    """What steers the hyper-parameters should see an average where one predicts; a gradient that leaks needs the network."""
    shown = averages.watch or averages.average
    if shown is None or plan.settings.leak_meta_grad or plan.frozen:
        return Watched(scene.model, forward, find_head(scene.model)[1])
    averaged = shown.network(scene.model)
    through = feature_function(averaged)
    # The short average learns BatchNorm's statistics from what passes through it; others have them averaged.
    learns = averages.watch is not None and plan.settings.meta_bn == "frozen"
    own = _learn_statistics(averaged, scene, plan) if learns else 0
    return Watched(averaged, torch.compile(through) if scene.hardware.compiled else through, find_head(averaged)[1], own)


def _learn_statistics(averaged: nn.Module, scene: _Scene, plan: MetaPlan) -> int:
    """Training images of a meta step that BatchNorm learns from: a batch every fourth step, or as much less of one oftener."""
    norms, local = gathering_norms(averaged), scene.recipe.train.batch_size // scene.group.world_size
    images = min(local, max(8, -(-local * plan.settings.every // 4))) if norms else 0
    train = scene.recipe.train
    memory = _memory(train, train.epochs * (len(scene.data.train) // train.batch_size))
    for norm in norms:
        # Statistics that remember longer than the weights would belong to others.
        usual = (0.1 if norm.momentum is None else norm.momentum) * images / local
        norm.momentum = min(1.0, max(usual, plan.settings.every / memory))
    return images


def _averages(recipe: Recipe, model: nn.Module, plan: Plan, *, steps: int) -> _Averages:
    """Make the averages of a run.

    The longer an average's memory, the later it shows what gamma has done; what steers by it then swings.
    """
    train = recipe.train
    # The paper's last drop of the learning rate is at 250 of 350 epochs; what comes before it is too far from the end.
    usual = train.epochs * 5 // 7 if train.average == "uniform" else 0
    first = usual if train.average_from_epoch is None else train.average_from_epoch
    learns = isinstance(plan, MetaPlan) and not (plan.frozen or plan.settings.leak_meta_grad)
    if train.average == "no":
        return _Averages()
    if train.average == "uniform":
        return _Averages(WeightAverage(model, decay=None, first_epoch=first))
    decay = 1 - 1 / _memory(train, steps)
    if train.average == "ema":
        return _Averages(WeightAverage(model, decay=decay, first_epoch=first))
    watch = WeightAverage(model, decay=decay, first_epoch=first, own_statistics=True) if learns else None
    return _Averages(WeightAverage(model, decay=None, share=train.average_share, first_epoch=first, by_phase=True), watch)


def _memory(train: TrainPart, steps: int) -> float:
    """Steps that an exponential average remembers in a run of so many; also where there is none, or a uniform one.

    Three epochs of CIFAR-10 are long enough to even the steps out; in a short run that would reach back to its beginning.
    """
    if train.average in ("ema", "phase") and train.average_decay is not None:
        return 1 / (1 - train.average_decay)
    return min(max(steps / 50, 1.0), 1000.0)


def _train_batches(scene: _Scene, *, resident: bool) -> TrainBatches:
    return TrainBatches(
        scene.data.train,
        batch_size=scene.recipe.train.batch_size,
        device=scene.hardware.device,
        seed=scene.recipe.seed,
        dtype=scene.hardware.dtype,
        rank=scene.group.rank,
        world_size=scene.group.world_size,
        resident=resident,
    )


def _optimizer(scene: _Scene) -> Optimizer:
    optim = scene.recipe.optim
    return build_optimizer(
        scene.model.parameters(),
        name=optim.name,
        lr=optim.lr,
        momentum=optim.momentum,
        weight_decay=optim.weight_decay,
        nesterov=optim.nesterov,
    )


def _loss_objective(scene: _Scene, plan: LossPlan, batches: TrainBatches) -> LossObjective:
    device = scene.hardware.device
    loss = plan.loss.to(device)
    if plan.mixup_alpha is None:
        return LossObjective(loss, pruner=None if plan.pruner is None else plan.pruner.to(device), group=scene.group)
    return MixupObjective(
        loss,
        alpha=plan.mixup_alpha,
        steps_per_epoch=batches.steps_per_epoch,
        batch_size=scene.recipe.train.batch_size,
        device=device,
        seed=scene.recipe.seed,
        group=scene.group,
    )


def _meta_objective(
    scene: _Scene, plan: MetaPlan, watched: Watched, batches: TrainBatches, optimizer: Optimizer
) -> MetaObjective:
    recipe, _, model, hardware, group = scene
    settings = plan.settings
    _, head = find_head(model)
    generator = torch.Generator().manual_seed(recipe.seed)
    hyper = plan.regularizer.init(head.in_features, head.out_features, bias=head.bias is not None, generator=generator)
    hyper = {name: value.to(hardware.device, hardware.dtype) for name, value in hyper.items()}
    drawn = _meta_batches(scene, plan, batches)
    memory = _memory(recipe.train, recipe.train.epochs * batches.steps_per_epoch) / settings.every
    pace = plan.pace or plan.regularizer.pace * _haste(memory)
    meta_lr = settings.meta_lr or pace / float(plan.regularizer.speed(hyper))
    schedule = _meta_schedule(recipe, plan, meta_lr)
    fixed = recipe.optim.lr if isinstance(settings.lookahead_lr, str) else settings.lookahead_lr

    def rate() -> float | Tensor:
        found: float | Tensor = optimizer.param_groups[0]["lr"]
        return found

    def adam(values: list[Tensor]) -> Adam:
        changes = schedule is not None and hardware.captured
        lr: float | Tensor = torch.tensor(meta_lr, device=hardware.device) if changes else meta_lr
        return Adam(values, lr=lr, betas=settings.betas, eps=settings.eps, capturable=hardware.captured)

    return MetaObjective(
        plan.regularizer,
        plan.objective,
        hyper=hyper,
        head=head,
        watched=watched,
        batches=drawn,
        step=VirtualStep(lr=fixed, reduction=settings.lookahead_reduction, clip=settings.lookahead_clip),
        optimizer=adam,
        reduction=recipe.train.reduction,
        precision=hardware.precision,
        meta_bn=settings.meta_bn,
        leak=settings.leak_meta_grad,
        frozen=plan.frozen,
        clip=settings.meta_clip,
        rate=rate if settings.lookahead_lr == "current" else None,
        schedule=schedule,
        group=group,
        learning=_learning(plan, meta_lr, meta_examples=len(scene.data.meta or ())),
    )


def _learning(plan: MetaPlan, meta_lr: float, *, meta_examples: int) -> dict[str, object]:
    """How the hyper-parameters are learned, as plain data: what the recipe says of it, its preset and its length."""
    settings = {name: value for name, value in asdict(plan.settings).items() if name not in ("reduction", "clip")}
    own = {"meta_lr": meta_lr, "meta_schedule": plan.meta_schedule, "meta_batch_size": min(plan.meta_batch_size, meta_examples)}
    return settings | {"betas": list(plan.settings.betas), "objective": words_of(plan.objective)} | own


def _haste(memory: float) -> float:
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


def _meta_batches(scene: _Scene, plan: MetaPlan, batches: TrainBatches) -> MetaBatches:
    assert scene.data.meta is not None
    return MetaBatches(
        scene.data.meta,
        batch_size=plan.meta_batch_size,
        steps_per_epoch=-(-batches.steps_per_epoch // plan.settings.every),
        device=scene.hardware.device,
        seed=scene.recipe.seed,
        dtype=scene.hardware.dtype,
        rank=scene.group.rank,
        world_size=scene.group.world_size,
        resident=not batches.fed,
    )


def _gamma_rule(objective: LossObjective | MetaObjective) -> Callable[[Tensor], Tensor] | None:
    if isinstance(objective, MetaObjective) and hasattr(objective.regularizer, "gamma"):
        return objective.gamma
    return None
