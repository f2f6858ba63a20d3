"""`train`: from a recipe to a trained, measured, saved run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from calibrant.core.records import Predictions, Split
from calibrant.data.image_set import ImageSet
from calibrant.engine.assemble import Assembly, assemble
from calibrant.engine.checkpoint import copy_state, load_checkpoint, restore_state, save_atomically
from calibrant.engine.evaluate import Outputs
from calibrant.engine.loop import BestEpoch, EpochRecord, LoopParts, run_epoch
from calibrant.engine.recipe import Recipe, to_toml

Report = Callable[[EpochRecord], None]


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        recipe: What was run.
        history: One record an epoch.
        best_epoch: Epoch whose weights the model and the predictions have.
        model: The network, in evaluation mode.
        val: Predictions on the validation part.
        test: Predictions on the test set.
        gammas: Gamma of every test example ``[N]``, for methods that have one.
        hyper: The learned hyper-parameters, name → value; empty for methods without.
        folder: Where the run was written, or None.
    """

    recipe: Recipe
    history: tuple[EpochRecord, ...]
    best_epoch: int
    model: nn.Module
    val: Predictions
    test: Predictions
    gammas: Tensor | None
    hyper: dict[str, Tensor]
    folder: Path | None = None


def run_recipe(recipe: Recipe, *, checkpoint: Path | None = None, resume: bool = False, report: Report | None = None) -> Run:
    """Train by a recipe.

    Args:
        recipe: What to run.
        checkpoint: File to save the state to, now and then and at the end; None saves nothing.
        resume: Go on from ``checkpoint`` if it exists.
        report: Called with every epoch's record.

    Returns:
        The run, its model at the best epoch. Raises ``ValueError`` if the recipe cannot be run.
    """
    assembly = assemble(recipe)
    parts = assembly.parts
    best = BestEpoch(recipe.train.select)
    history: list[EpochRecord] = []
    before = 0.0
    if resume and checkpoint is not None and checkpoint.exists():
        history, before = _resume(checkpoint, parts, best, recipe)
        for record in history:
            if report is not None:
                report(record)
    started = time.monotonic() - before
    saved = time.monotonic()
    for epoch in range(len(history), recipe.train.epochs):
        record = run_epoch(parts, recipe, epoch, started=started)
        history.append(record)
        best.offer(record, _weights(parts))
        due = time.monotonic() - saved >= recipe.train.checkpoint_every_seconds or epoch + 1 == recipe.train.epochs
        if checkpoint is not None and due:
            _save(checkpoint, parts, best, recipe, history)
            saved = time.monotonic()
        if report is not None:
            report(record)
    return _finish(assembly, best, recipe, tuple(history))


def _weights(parts: LoopParts) -> dict[str, Tensor]:
    """What a best epoch keeps: the network, and the hyper-parameters that belong to it."""
    state = parts.step.state()
    return {name: value for name, value in state.items() if name.startswith(("model.", "objective.hyper."))}


def _save(path: Path, parts: LoopParts, best: BestEpoch, recipe: Recipe, history: list[EpochRecord]) -> None:
    state = {
        "state": copy_state(parts.step.state()),
        "best": {"value": best.value, "epoch": best.epoch, "weights": copy_state(best.weights)},
        "history": [record.to_dict() for record in history],
        "recipe": to_toml(recipe),
    }
    save_atomically(state, path)


def _resume(path: Path, parts: LoopParts, best: BestEpoch, recipe: Recipe) -> tuple[list[EpochRecord], float]:
    found = load_checkpoint(path)
    if found["recipe"] != to_toml(recipe):
        raise ValueError(f"train: the recipe must be the one that {path} was made with. Use another folder for another recipe.")
    restore_state(parts.step.state(), found["state"])
    best.value, best.epoch = found["best"]["value"], found["best"]["epoch"]
    device = parts.step.device
    best.weights = {name: value.to(device) for name, value in found["best"]["weights"].items()}
    history = [EpochRecord(**record) for record in found["history"]]
    return history, history[-1].seconds or 0.0


def _finish(assembly: Assembly, best: BestEpoch, recipe: Recipe, history: tuple[EpochRecord, ...]) -> Run:
    parts = assembly.parts
    restore_state(_weights(parts), best.weights)
    precision = assembly.hardware.precision
    val = parts.val.run(parts.model, parts.eval_forward, precision=precision)
    test = parts.test.run(parts.model, parts.eval_forward, precision=precision, gamma=parts.gamma)
    hyper = {name.removeprefix("objective.hyper."): v.cpu() for name, v in best.weights.items() if "objective.hyper." in name}
    return Run(
        recipe=recipe,
        history=history,
        best_epoch=best.epoch,
        model=parts.model.eval(),
        val=_predictions(val, assembly.data.val, Split.VAL),
        test=_predictions(test, assembly.data.test, Split.TEST),
        gammas=None if test.gammas is None else test.gammas.cpu(),
        hyper=hyper,
    )


def _predictions(outputs: Outputs, data: ImageSet, split: Split) -> Predictions:
    return Predictions(logits=outputs.logits.cpu(), labels=data.labels, split=split, class_names=data.class_names)


def cuda_device_name() -> str | None:
    """Name of the current CUDA device, or None."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
