"""From a recipe to a trained network and its predictions. Files of a run folder are not here: see `folder`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from calibrant.core.records import Predictions, Split
from calibrant.data.image_set import ImageSet
from calibrant.engine.assemble import Assembly, assemble
from calibrant.engine.checkpoint import copy_state, load_checkpoint, restore_state, save_atomically
from calibrant.engine.distributed import ALONE_GROUP, Group
from calibrant.engine.evaluate import Outputs
from calibrant.engine.loop import EpochRecord, LoopParts, Tick, run_epoch
from calibrant.engine.meta_objective import MetaObjective
from calibrant.engine.outcome import Outlook
from calibrant.engine.recipe import NEUTRAL, Recipe, TrainPart, load_recipe_text, to_dict, to_toml
from calibrant.engine.resolve import idle_keys, resolved
from calibrant.engine.result import Run
from calibrant.engine.same_data import check_same_data
from calibrant.engine.selection import BestEpoch

Report = Callable[[EpochRecord], None]
# Called once before the first epoch, with what was built and the epochs that a resumed run has behind it.
Begin = Callable[[Assembly, Sequence[EpochRecord]], None]


def run_recipe(
    recipe: Recipe,
    *,
    checkpoint: Path | None = None,
    resume: bool = False,
    report: Report | None = None,
    begin: Begin | None = None,
    tick: Tick | None = None,
    group: Group = ALONE_GROUP,
) -> Run:
    """Train by a recipe.

    Args:
        recipe: What to run.
        checkpoint: File to save the state to, now and then and at the end; None saves nothing.
        resume: Go on from ``checkpoint`` if it exists.
        report: Called with every epoch's record.
        begin: Called before the first epoch.
        tick: Called after every step.
        group: Processes that train together; the first one reads and writes the checkpoint.

    Returns:
        The run, its model at the best epoch. Raises ``ValueError`` if the recipe cannot be run.
    """
    recipe = resolved(recipe)
    assembly = assemble(recipe, group=group)
    parts = assembly.parts
    best = BestEpoch(recipe.train.select, n_val=len(assembly.data.val), within=recipe.train.select_within)
    outlook = Outlook(num_classes=assembly.data.val.num_classes, n_val=len(assembly.data.val), shown=group.leads)
    history: list[EpochRecord] = []
    if resume and checkpoint is not None and group.share(checkpoint.exists()):
        history = _resume(checkpoint, assembly, best, recipe)
    if begin is not None:
        begin(assembly, tuple(history))
    saved = time.monotonic()
    started = saved - (history[-1].seconds or 0.0 if history else 0.0)
    with assembly.hardware.active(), _own_randomness(assembly.hardware.device):
        for epoch in range(len(history), recipe.train.epochs):
            _seed_epoch(recipe.seed, epoch, group)
            record = run_epoch(parts, recipe, epoch, started=started, tick=tick)
            history.append(record)
            best.offer(record, _weights(parts, averaged=True))
            due = time.monotonic() - saved >= recipe.train.checkpoint_every_seconds or epoch + 1 == recipe.train.epochs
            if checkpoint is not None and due and group.leads:
                _save(checkpoint, assembly, best, recipe, history)
                saved = time.monotonic()
            if report is not None:
                report(record)
            if epoch + 1 < recipe.train.epochs:
                outlook.epoch(record)
        outlook.end(history)
        return _finish(assembly, best, recipe, tuple(history))


def _own_randomness(device: torch.device) -> AbstractContextManager[None]:
    """Leave the caller's global generators, which dropout draws from, as they were."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def _seed_epoch(seed: int, epoch: int, group: Group) -> None:
    """Seed what layers draw from the global generators by epoch, so that a resumed run draws the same."""
    torch.manual_seed(((seed * 1_000_003 + epoch) * 65_537 + group.rank) % 2**63)


def _weights(parts: LoopParts, *, averaged: bool = False) -> dict[str, Tensor]:
    """What a best epoch keeps: the network, or the average of its weights, and the hyper-parameters that belong to it."""
    state = parts.step.state()
    found = {name: value for name, value in state.items() if name.startswith(("model.", "objective.hyper."))}
    if averaged and parts.step.average is not None:
        found |= {f"model.{name}": mean for name, mean in parts.step.average.means.items()}
    return found


def _save(path: Path, assembly: Assembly, best: BestEpoch, recipe: Recipe, history: list[EpochRecord]) -> None:
    parts = assembly.parts
    state = {
        "state": copy_state(parts.step.state()),
        "best": best.state(),
        "history": [record.to_dict() for record in history],
        "recipe": to_toml(recipe),
        "learning": learning_of(parts),
        "data": assembly.fingerprint,
    }
    save_atomically(state, path)


def _resume(path: Path, assembly: Assembly, best: BestEpoch, recipe: Recipe) -> list[EpochRecord]:
    group, parts = assembly.group, assembly.parts
    found = group.by_first(lambda: load_checkpoint(path))
    check_same_run(load_recipe_text(found["recipe"], where=str(path)), recipe, where=str(path))
    # Of the data that the first process sees: all must stop, or none.
    check_same_data(found.get("data", {}), group.share(assembly.fingerprint), recipe.data, where=str(path.parent))
    _check_same_learning(found.get("learning"), learning_of(parts), where=str(path))
    restore_state(parts.step.state(), found["state"])
    best.restore(found["best"])
    return [EpochRecord(**record) for record in found["history"]]


def check_same_run(found: Recipe, wanted: Recipe, *, where: str) -> None:
    """Raise unless two recipes describe the same run; where and how fast it is computed may differ."""
    first, second = (_flat(to_dict(_plain(recipe))) for recipe in (found, wanted))
    for key in sorted({*first, *second} - NEUTRAL):
        if first.get(key) != second.get(key):
            there, here = (repr(values[key]) if key in values else "not given" for values in (first, second))
            differ = f"`{key}` is {there} there and {here} here"
            raise ValueError(
                f"train: the recipe must be the one that {where} was made with, but {differ}. Use another folder for it."
            )


def learning_of(parts: LoopParts) -> dict[str, object]:
    """How the hyper-parameters of a run are learned, as plain data; empty where there are none."""
    objective = parts.objective
    return objective.learning if isinstance(objective, MetaObjective) and objective.has_meta else {}


def _check_same_learning(found: dict[str, object] | None, wanted: dict[str, object], *, where: str) -> None:
    """Raise if a run would go on learning its hyper-parameters in another way, as another version of this package may."""
    if found is None and wanted:
        raise ValueError(
            f"train: {where} must be of this version of calibrant, which learns hyper-parameters otherwise than the one that "
            "wrote it. Use another folder."
        )
    for key, value in wanted.items():
        before = (found or {}).get(key)
        # A learning rate is computed on the device, and another device rounds otherwise.
        near = isinstance(before, float) and isinstance(value, float) and math.isclose(before, value, rel_tol=1e-4)
        if before != value and not near:
            raise ValueError(
                f"train: {where} must have been made by this version of calibrant, but `{key}` was {before!r} there and is "
                f"{value!r} here. Use another folder."
            )


def _plain(recipe: Recipe) -> Recipe:
    """The recipe with what its method decides, and without what then does not count."""
    usual, idle = asdict(TrainPart()), [key.removeprefix("train.") for key in idle_keys(recipe)]
    return replace(recipe, train=replace(resolved(recipe).train, **{key: usual[key] for key in idle}))


def _flat(values: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _finish(assembly: Assembly, best: BestEpoch, recipe: Recipe, history: tuple[EpochRecord, ...]) -> Run:
    parts, chosen = assembly.parts, best.best
    restore_state(_weights(parts), chosen.weights)
    precision = assembly.hardware.precision
    val, test = (
        part.run(parts.model, parts.eval_forward, precision=precision, gamma=parts.gamma) for part in (parts.val, parts.test)
    )
    hyper = {name.removeprefix("objective.hyper."): v.cpu() for name, v in chosen.weights.items() if "objective.hyper." in name}
    return Run(
        recipe=recipe,
        history=history,
        best_epoch=chosen.epoch,
        val=_predictions(val, assembly.data.val, Split.VAL),
        test=_predictions(test, assembly.data.test, Split.TEST),
        hyper=hyper,
        network=lambda: parts.model,
    )


def _predictions(outputs: Outputs, data: ImageSet, split: Split) -> Predictions:
    columns = {} if outputs.gammas is None else {"gamma": outputs.gammas.cpu()}
    logits = outputs.logits.cpu()
    return Predictions(logits=logits, labels=data.labels, split=split, class_names=data.class_names, columns=columns)
