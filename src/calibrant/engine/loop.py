"""The loop over epochs: step, evaluate, select, hand over what happened."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from calibrant.engine.distributed import Group
from calibrant.engine.evaluate import EvalSet, epoch_scores
from calibrant.engine.features import FeatureFunction
from calibrant.engine.optim import set_learning_rate
from calibrant.engine.recipe import OptimPart, Recipe
from calibrant.engine.resolve import resolved
from calibrant.engine.schedule import cosine_rate, multistep_rate, warmed_up
from calibrant.engine.step import Objective, TrainStep
from calibrant.meta.bn import gathering, gathering_norms

# Called with the epoch, its steps done and all its steps.
Tick = Callable[[int, int, int], None]
# Examples that BatchNorm's statistics are computed anew from: then their error no longer shows in error and ECE.
_STATISTICS_EXAMPLES = 2560


@dataclass(frozen=True)
class EpochRecord:
    """One line of the history: what the paper's learning curves show.

    Attributes:
        epoch: Number of the epoch, from 0.
        lr: Its learning rate.
        train_loss: Mean training loss of an example.
        val_error: Validation error; with ``val_nll`` and ``val_ece`` None where the epoch was not evaluated.
        val_nll: Validation NLL.
        val_ece: Validation ECE.
        test_error: Test error; never used to choose anything.
        test_nll: Test NLL.
        test_ece: Test ECE.
        gamma_mean: Mean gamma on the test set, for methods that have one.
        gamma_std: Its standard deviation over examples.
        images_per_second: Training speed, evaluation not counted.
        seconds: Time since the run began.
    """

    epoch: int
    lr: float
    train_loss: float
    val_error: float | None = None
    val_nll: float | None = None
    val_ece: float | None = None
    test_error: float | None = None
    test_nll: float | None = None
    test_ece: float | None = None
    gamma_mean: float | None = None
    gamma_std: float | None = None
    images_per_second: float | None = None
    seconds: float | None = None

    def to_dict(self) -> dict[str, float | int | None]:
        """Return the record as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class LoopParts:
    """Everything an epoch touches; built by `calibrant.engine.setup`.

    Attributes:
        step: The training step.
        plain: Runs a step without a meta update.
        meta: Runs a step with one.
        meta_every: Steps between meta updates.
        model: The network.
        eval_forward: Images → (features, logits) for evaluation.
        val: Validation set on the device.
        test: Test set on the device.
        objective: What is minimised; told of every epoch's beginning and end.
        gamma: Features → gammas, or None.
    """

    step: TrainStep
    plain: Callable[[], None]
    meta: Callable[[], None]
    meta_every: int
    model: nn.Module
    eval_forward: FeatureFunction
    val: EvalSet
    test: EvalSet
    objective: Objective
    gamma: Callable[[Tensor], Tensor] | None


def learning_rate(part: OptimPart, epoch: int, *, epochs: int) -> float:
    """Learning rate of an epoch under a recipe."""
    if part.schedule == "cosine":
        rate = cosine_rate(epoch, lr=part.lr, epochs=epochs)
    elif part.schedule == "multistep":
        rate = multistep_rate(epoch, lr=part.lr, milestones_epochs=_milestones(part, epochs), decay=part.decay)
    else:
        rate = part.lr
    return warmed_up(rate, epoch, warmup_epochs=part.warmup_epochs)


def drops(part: OptimPart, epoch: int, *, epochs: int) -> bool:
    """Whether a milestone of the learning rate is reached with this epoch.

    Example:
        >>> part = OptimPart()
        >>> [epoch for epoch in range(350) if drops(part, epoch, epochs=350)]
        [150, 250]
    """
    return part.schedule == "multistep" and any(epoch - 1 < place <= epoch for place in _milestones(part, epochs))


def _milestones(part: OptimPart, epochs: int) -> Sequence[float]:
    if part.milestones_epochs is not None:
        return part.milestones_epochs
    # The paper drops at 150 and 250 of 350 epochs; other lengths keep the proportions, but the first epoch has the rate that
    # was asked for and no two drops come together.
    first = max(1, round(epochs * 3 / 7))
    return first, max(first + 1, round(epochs * 5 / 7))


def run_epoch(parts: LoopParts, recipe: Recipe, epoch: int, *, started: float, tick: Tick | None = None) -> EpochRecord:
    """Train for one epoch and evaluate if it is due.

    Args:
        parts: What the epoch touches.
        recipe: The run's recipe.
        epoch: Number of the epoch.
        started: When the run began (`time.monotonic`).
        tick: Called after every step; a GPU may still be working on it.

    Returns:
        The epoch's line of history; raises ``FloatingPointError`` if the loss, or what the network predicts, is no longer
        finite.
    """
    step, train = parts.step, resolved(recipe).train
    lr = learning_rate(recipe.optim, epoch, epochs=train.epochs)
    set_learning_rate(step.optimizer, lr)
    parts.objective.begin_epoch(epoch)
    for average in step.averages.values():
        average.begin_epoch(epoch, anew=average.by_phase and drops(recipe.optim, epoch, epochs=train.epochs))
    steps = step.batches.begin_epoch(epoch, kept=parts.objective.kept())
    step.loss_sum.zero_()
    begun = time.monotonic()
    for place in range(steps):
        try:
            (parts.meta if place % parts.meta_every == 0 else parts.plain)()
        except ValueError as error:
            if epoch == place == 0:
                raise
            # What a step before this one took is refused now: a loss may be the first to meet what is no number.
            raise _diverged(f"training broke down in epoch {epoch + 1} ({str(error).rstrip('.')})", train.clip_norm) from error
        if tick is not None:
            tick(epoch, place + 1, steps)
    examples = steps * step.batches.batch_size
    if parts.objective.is_part:
        step.group.add_up([step.loss_sum])
    total = float(step.loss_sum)  # waits for the device: the epoch is over
    speed = examples / (time.monotonic() - begun)
    _level_statistics(parts)
    loss = total / (examples if train.reduction == "sum" else steps)
    if not math.isfinite(loss):
        # Epochs are counted from 1 where they are shown.
        raise _diverged(f"the loss became {loss} in epoch {epoch + 1}", train.clip_norm)
    due = (epoch + 1) % train.eval_every_epochs == 0 or epoch + 1 == train.epochs
    scores = _end_epoch(parts, epoch, due=due, clip_norm=train.clip_norm)
    seconds = time.monotonic() - started
    return EpochRecord(epoch, lr, loss, images_per_second=speed, seconds=seconds, **scores)


def _diverged(what: str, clip_norm: float) -> FloatingPointError:
    clip = "lower `train.clip_norm` too" if clip_norm else "clip the gradient with `train.clip_norm`, which is 0 (off)"
    return FloatingPointError(f"train: {what}. Lower `optim.lr`, or {clip}.")


def _check_finite(logits: Tensor, part: str, epoch: int, clip_norm: float) -> None:
    """Raise if the network predicts no numbers: the last step may be the one that broke it, and no loss shows that."""
    if not bool(torch.isfinite(logits.amax(1)).all()):
        raise _diverged(f"the logits of the {part} part are no longer finite after epoch {epoch + 1}", clip_norm)


def _level_statistics(parts: LoopParts) -> None:
    """Average what each process's BatchNorm has seen, where it was not synchronised: all must predict with one network."""
    seen = [buffer for buffer in parts.model.buffers() if buffer.is_floating_point()]
    _level(seen + [mean for average in parts.step.averages.values() for mean in average.buffer_means], parts.step.group)


def _level(values: list[Tensor], group: Group) -> None:
    if group.world_size > 1:
        group.add_up(values)
        for value in values:
            value /= group.world_size


def _pass_again(parts: LoopParts, epoch: int) -> None:
    """Let the epoch's first batches pass once more, for BatchNorm's statistics alone."""
    step = parts.step
    steps = step.batches.begin_epoch(epoch, kept=parts.objective.kept())
    with gathering(parts.model), torch.autocast(step.device.type, dtype=torch.bfloat16, enabled=step.precision == "bf16"):
        for _ in range(min(steps, -(-_STATISTICS_EXAMPLES // step.batches.batch_size))):
            step.batches.feed()
            parts.eval_forward(parts.objective.inputs(step.batches.next()))


def _end_epoch(parts: LoopParts, epoch: int, *, due: bool, clip_norm: float) -> Mapping[str, float]:
    """End an epoch for the objective, and return its scores where an evaluation is due.

    What the objective learns from the validation part it learns after every epoch: how often one evaluates changes no training.
    """
    if not (due or parts.objective.learns_from_val()):
        parts.objective.end_epoch(None, parts.val.labels)
        return {}
    precision, average = parts.step.precision, parts.step.average
    if average is not None and average.by_phase and gathering_norms(parts.model):
        average.renew(lambda: _pass_again(parts, epoch))
        _level(average.buffer_means, parts.step.group)
    with nullcontext() if average is None else average.applied():
        val = parts.val.run(parts.model, parts.eval_forward, precision=precision)
        _check_finite(val.logits, "validation", epoch, clip_norm)
        parts.objective.end_epoch(val.logits, parts.val.labels)
        if not due:
            return {}
        test = parts.test.run(parts.model, parts.eval_forward, precision=precision, gamma=parts.gamma)
    _check_finite(test.logits, "test", epoch, clip_norm)
    found: dict[str, float] = {}
    for name, outputs, labels in (("val", val, parts.val.labels), ("test", test, parts.test.labels)):
        scores = epoch_scores(outputs.logits, labels)
        found |= {f"{name}_{key}": value for key, value in scores._asdict().items()}
    if test.gammas is not None:
        found |= {"gamma_mean": float(test.gammas.mean()), "gamma_std": float(test.gammas.std(correction=0))}
    return found
