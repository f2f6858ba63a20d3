"""`train`: a recipe in, a trained network and, where asked for, a run folder out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from calibrant.core.records import Predictions, Split
from calibrant.data.image_set import ImageSet
from calibrant.engine.distributed import ALONE_GROUP, Group, joined_group
from calibrant.engine.evaluate import Outputs
from calibrant.engine.folder import (
    RunFolder,
    check_same_run,
    is_finished,
    load_checkpoint,
    load_run,
    read_facts,
    restore_state,
    save_checkpoint,
)
from calibrant.engine.loop import LoopParts, Tick, run_epoch
from calibrant.engine.methods import resolved, split_name
from calibrant.engine.recipe import Recipe, load_recipe, load_recipe_text, recipe_of, to_toml
from calibrant.engine.result import BestEpoch, EpochRecord, Run, copy_state, warn_of
from calibrant.engine.setup import Assembly, assemble, check_data_now, check_same_data
from calibrant.engine.shift import evaluate_shift, save_shift

Report = Callable[[EpochRecord], None]
# Called once before the first epoch, with what was built and the epochs that a resumed run has behind it.
Begin = Callable[[Assembly, Sequence[EpochRecord]], None]


def train(
    recipe: Recipe | Mapping[str, object] | str | Path,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    report: Report | None = None,
    tick: Tick | None = None,
) -> Run:
    """Train a classifier by a recipe.

    The run folder holds the resolved recipe, versions, the history of all epochs, TensorBoard events, the best epoch's weights,
    validation and test predictions and what was measured of the latter. Every file is complete or absent at any moment, so a
    run killed at any moment can go on. Under ``torchrun`` all processes call this function; the first one writes.

    Args:
        recipe: What to run: a `Recipe`, nested plain data, or the path of a TOML file.
        out: Run folder; None writes nothing.
        resume: Go on with the run in ``out`` if there is one; a finished one is read and returned (and evaluated under shift,
            if that is asked for only now). Data named by a path must still be those that it was trained on.
        report: Called with every epoch's record, in the first process.
        tick: Called after every step with the epoch, its steps done and all its steps, in the first process.

    Returns:
        The run, its model at the best epoch. Raises ``ValueError`` or ``OSError`` with one sentence if the recipe cannot be
        run or the folder not be written to.

    Example:
        >>> parts = {"data": "mixture", "backbone": "mlp", "method": "ce"}
        >>> recipe = {key: {"name": name} for key, name in parts.items()} | {"train": {"epochs": 2}}
        >>> run = train(recipe)
        >>> len(run.history), len(run.test)
        (2, 4000)
    """
    if isinstance(recipe, (str, Path)):
        recipe = load_recipe(recipe)
    elif not isinstance(recipe, Recipe):
        recipe = recipe_of(recipe)
    recipe = resolved(recipe)
    with joined_group(recipe.train.device) as group:
        if not group.leads:
            report = tick = None
        if out is None:
            return _completed(run_recipe(recipe, report=report, tick=tick, group=group), group)
        return _train_in_folder(recipe, Path(out), group, resume=resume, report=report, tick=tick)


def _train_in_folder(recipe: Recipe, out: Path, group: Group, *, resume: bool, report: Report | None, tick: Tick | None) -> Run:
    folder: RunFolder | None = None

    def begin() -> None:
        nonlocal folder
        folder = RunFolder(out, recipe, resume=resume)

    group.by_first(begin)

    def write(record: EpochRecord) -> None:
        if folder is not None:
            folder.epoch(record)
        if report is not None:
            report(record)

    try:
        if group.share(is_finished(out)):
            return group.by_first(lambda: _finished(recipe, out))
        run = run_recipe(
            recipe,
            checkpoint=out / "state.pt",
            resume=resume,
            report=write,
            begin=None if folder is None else folder.begin,
            tick=tick,
            group=group,
        )
        run = _completed(run, group)
        return run if folder is None else folder.finish(run)
    except (ValueError, FloatingPointError):
        if folder is not None:
            folder.abandon()
        raise
    finally:
        if folder is not None:
            folder.close()


def _completed(run: Run, group: Group) -> Run:
    """What is done once with a trained network: temperature scaling and evaluation under shift, where the recipe asks."""
    return _with_shift(with_temperature(run) if split_name(run.recipe.method.name)[1] else run, group)


def _with_shift(run: Run, group: Group = ALONE_GROUP) -> Run:
    return replace(run, shift=evaluate_shift(run, group=group)) if run.recipe.data.shift else run


def _finished(recipe: Recipe, out: Path) -> Run:
    """Read a finished run; what it was not asked for at the time is added to its folder."""
    run = load_run(out)
    check_data_now(read_facts(out), recipe.data, where=str(out))
    if recipe.data.shift and not run.shift:
        # The recipe at hand says where the data lie and what to compute on; else the two are the same.
        run = _with_shift(replace(run, recipe=recipe))
        save_shift(out / "shift.json", run.shift)
    return run


def with_temperature(run: Run) -> Run:
    """Return the run with its predictions after temperature scaling, fitted on its validation part.

    Args:
        run: A run of a method without ``+ts``, or the same one with it. Nothing is trained again, so one base run serves both.

    Returns:
        The run of the method with ``+ts``; weights and history are the base run's. It lies in no folder yet.
    """
    from calibrant.calibrators.temperature import TemperatureScaling

    if run.temperature is not None:
        return run
    temperature = float(TemperatureScaling().fit(run.val).temperature_)
    name = split_name(run.recipe.method.name)[0]
    recipe = replace(run.recipe, method=replace(run.recipe.method, name=f"{name}+ts"))
    val, test = (part.replace(logits=part.logits / temperature) for part in (run.val, run.test))
    return replace(run, recipe=recipe, val=val, test=test, temperature=temperature, folder=None, shift={})


def scale_run(base: str | Path, *, out: str | Path, resume: bool = False) -> Run:
    """Make the run of a method with ``+ts`` from a finished run of the method without, and write it to a folder of its own.

    Args:
        base: Folder of the finished run.
        out: Folder of the new run; what `train` would write for the method with ``+ts``.
        resume: Read and return a finished run that is there.

    Returns:
        The run after temperature scaling. Raises ``ValueError`` if ``base`` holds no finished run.
    """
    found = load_run(base)
    scaled = with_temperature(found)
    folder = RunFolder(out, scaled.recipe, resume=resume)
    try:
        if is_finished(out):
            return load_run(out)
        run = _with_shift(scaled)
        folder.begin_from(found)
        return folder.finish(run)
    finally:
        folder.close()


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
    """Train by a recipe, without a run folder and without what follows training.

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
    assembly = assemble(recipe, group=group)
    recipe, parts, val = assembly.recipe, assembly.parts, assembly.data.val
    best = BestEpoch(recipe.train.select, n_val=len(val), within=recipe.train.select_within)
    history: list[EpochRecord] = []
    if resume and checkpoint is not None and group.share(checkpoint.exists()):
        history = _resume(checkpoint, assembly, best)
    if begin is not None:
        begin(assembly, tuple(history))
    saved, warned = time.monotonic(), False
    started = saved - (history[-1].seconds or 0.0 if history else 0.0)
    device = assembly.hardware.device
    # The caller's global generators, which dropout draws from, stay as they were.
    with assembly.hardware.active(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for epoch in range(len(history), recipe.train.epochs):
            _seed_epoch(recipe.seed, epoch, group)
            record = run_epoch(parts, recipe, epoch, started=started, tick=tick)
            history.append(record)
            best.offer(record, _weights(parts, averaged=True))
            ended = epoch + 1 == recipe.train.epochs
            due = ended or time.monotonic() - saved >= recipe.train.checkpoint_every_seconds
            if checkpoint is not None and due and group.leads:
                _save(checkpoint, assembly, best, history)
                saved = time.monotonic()
            if report is not None:
                report(record)
            if group.leads and not (ended or warned):
                warned = warn_of(history, num_classes=val.num_classes, n_val=len(val), ended=False)
        if group.leads:
            warn_of(history, num_classes=val.num_classes, n_val=len(val), ended=True)
        return _finish(assembly, best, tuple(history))


def _seed_epoch(seed: int, epoch: int, group: Group) -> None:
    """Seed what layers draw from the global generators by epoch, so that a resumed run draws the same."""
    torch.manual_seed(((seed * 1_000_003 + epoch) * 65_537 + group.rank) % 2**63)


def _weights(parts: LoopParts, *, averaged: bool = False) -> dict[str, Tensor]:
    """What a best epoch keeps: the network, or the average of its weights, and the hyper-parameters that belong to it."""
    state, average = parts.step.state(), parts.step.averages.get("average")
    found = {name: value for name, value in state.items() if name.startswith(("model.", "objective.hyper."))}
    if averaged and average is not None:
        found |= {f"model.{name}": mean for name, mean in average.means.items()}
    return found


def _save(path: Path, assembly: Assembly, best: BestEpoch, history: list[EpochRecord]) -> None:
    state = {
        "state": copy_state(assembly.parts.step.state()),
        "best": best.state(),
        "history": [record.to_dict() for record in history],
        "recipe": to_toml(assembly.recipe),
        "learning": assembly.parts.objective.learning,
        "data": assembly.fingerprint,
    }
    save_checkpoint(state, path)


def _resume(path: Path, assembly: Assembly, best: BestEpoch) -> list[EpochRecord]:
    group, recipe = assembly.hardware.group, assembly.recipe
    found = group.by_first(lambda: load_checkpoint(path))
    check_same_run(load_recipe_text(found["recipe"], where=str(path)), recipe, where=str(path))
    # Of the data that the first process sees: all must stop, or none.
    check_same_data(found.get("data", {}), group.share(assembly.fingerprint), recipe.data, where=str(path.parent))
    _check_same_learning(found.get("learning"), assembly.parts.objective.learning, where=str(path))
    restore_state(assembly.parts.step.state(), found["state"])
    best.restore(found["best"])
    return [EpochRecord(**record) for record in found["history"]]


def _check_same_learning(found: dict[str, object] | None, wanted: dict[str, object], *, where: str) -> None:
    """Raise if a run would go on learning its hyper-parameters in another way, as another version of this package may."""
    must = f"train: {where} must have been made by this version of calibrant, which learns hyper-parameters differently"
    if found is None and wanted:
        raise ValueError(f"{must}. Use another folder.")
    for key, value in wanted.items():
        before = (found or {}).get(key)
        # A learning rate is computed on the device, and another device rounds otherwise.
        near = isinstance(before, float) and isinstance(value, float) and math.isclose(before, value, rel_tol=1e-4)
        if before != value and not near:
            raise ValueError(f"{must}: `{key}` was {before!r} there and is {value!r} here. Use another folder.")


def _finish(assembly: Assembly, best: BestEpoch, history: tuple[EpochRecord, ...]) -> Run:
    parts, chosen, data = assembly.parts, best.best, assembly.data
    restore_state(_weights(parts), chosen.weights)
    val, test = (part.run(parts.model, parts.eval_forward, gamma=parts.objective.gamma) for part in (parts.val, parts.test))
    hyper = {name.removeprefix("objective.hyper."): v.cpu() for name, v in chosen.weights.items() if "objective.hyper." in name}
    return Run(
        recipe=assembly.recipe,
        history=history,
        best_epoch=chosen.epoch,
        val=_predictions(val, data.val, Split.VAL),
        test=_predictions(test, data.test, Split.TEST),
        hyper=hyper,
        network=lambda: parts.model,
    )


def _predictions(outputs: Outputs, data: ImageSet, split: Split) -> Predictions:
    columns = {} if outputs.gammas is None else {"gamma": outputs.gammas.cpu()}
    logits = outputs.logits.cpu()
    return Predictions(logits=logits, labels=data.labels, split=split, class_names=data.class_names, columns=columns)
