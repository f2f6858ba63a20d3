"""One training step, captured or not, and the loop over an epoch: step, evaluate, hand over what happened.

The same lines of a step run eagerly on any device and, captured once, as a CUDA graph. Nothing in them waits for the device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from calibrant.engine.average import WeightAverage
from calibrant.engine.batches import TrainBatches
from calibrant.engine.distributed import Group
from calibrant.engine.evaluate import EvalSet, epoch_scores
from calibrant.engine.hardware import Hardware
from calibrant.engine.network import FeatureFunction
from calibrant.engine.objective import Objective
from calibrant.engine.optim import drops, learning_rate, set_learning_rate
from calibrant.engine.recipe import Recipe
from calibrant.engine.result import EpochRecord
from calibrant.meta.network import gathering, gathering_norms

# Called with the epoch, its steps done and all its steps.
Tick = Callable[[int, int, int], None]
# Examples that BatchNorm's statistics are computed anew from: then their error no longer shows in error and ECE.
_STATISTICS_EXAMPLES = 2560


class TrainStep:
    """A step of one run, holding references to everything it changes.

    ``forward`` maps images to (features, logits) and may be compiled; the optimizer's state is allocated. Of the ``averages``
    of the weights "average" predicts, and meta batches go through "watch" where that is another one.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        forward: FeatureFunction,
        batches: TrainBatches,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        hardware: Hardware,
        clip_norm: float | None,
        averages: Mapping[str, WeightAverage],
    ) -> None:
        self.model, self.forward, self.batches, self.objective, self.optimizer = model, forward, batches, objective, optimizer
        self.hardware, self.group, self.clip_norm, self.averages = hardware, hardware.group, clip_norm, averages
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.parameters[0].device)

    def run(self, *, with_meta: bool) -> None:
        """Take one step on the next batch."""
        self.optimizer.zero_grad(set_to_none=True)
        batch = self.batches.next()
        with self.hardware.autocast():
            features, logits = self.forward(self.objective.inputs(batch))
        if self.hardware.precision == "bf16":
            features, logits = features.float(), logits.float()
        if with_meta:
            self.objective.meta_update(batch, features, logits)
        loss = self.objective.loss(batch, features, logits)
        loss.backward()
        self.group.add_up([p.grad for p in self.parameters if p.grad is not None])
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm, foreach=True)
        self.optimizer.step()
        for average in self.averages.values():
            average.update()
        self.loss_sum += loss.detach()

    def state(self) -> dict[str, Tensor]:
        """Every tensor that `run` changes: weights, statistics, momentum, hyper-parameters, cursors; by name."""
        kept = {f"model.{name}": value for name, value in self.model.state_dict(keep_vars=False).items()}
        names: dict[Tensor, str] = {value: name for name, value in self.model.named_parameters()}
        for value, entries in self.optimizer.state.items():
            kept |= {f"optimizer.{names[value]}.{key}": entry for key, entry in entries.items() if isinstance(entry, Tensor)}
        parts: dict[str, Objective | TrainBatches | WeightAverage] = {
            "objective": self.objective,
            "batches": self.batches,
            **self.averages,
        }
        kept |= {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state().items()}
        return kept | {"loss_sum": self.loss_sum}


def steppers(step: TrainStep, *, capture: bool) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return functions that take a step without and with a meta update; captured as CUDA graphs if asked.

    A method without a meta update gets the same function twice. Images that do not lie on the device are sent there before the
    step, never as a part of it.
    """
    kinds = (False, True) if step.objective.has_meta else (False,)
    runs: list[Callable[[], None]] = [partial(step.run, with_meta=kind) for kind in kinds]
    if capture:
        state = list(step.state().values())
        runs = [capture_step(run, state=state) for run in runs]
    if step.batches.fed:
        runs = [partial(_feed_and_run, step, run, with_meta=kind) for run, kind in zip(runs, kinds, strict=True)]
    return runs[0], runs[-1]


def _feed_and_run(step: TrainStep, run: Callable[[], None], *, with_meta: bool) -> None:
    step.batches.feed()
    if with_meta:
        step.objective.feed()
    run()


def capture_step(step: Callable[[], None], *, state: Sequence[Tensor], warmup: int = 3) -> Callable[[], None]:
    """Record ``step`` as a CUDA graph and return a function that replays it.

    Capturing needs a few ordinary runs first (lazy initialisation, autotuning, compilation). They change the state, so it is
    saved before and put back after: training starts from the same point as without a graph.

    Args:
        step: A step that takes everything from, and leaves everything in, tensors of fixed address, and never waits
            for the device.
        state: Every tensor that the step changes.
        warmup: Ordinary runs before the capture.

    Returns:
        A function without arguments that runs the step.
    """
    saved = [tensor.detach().clone() for tensor in state]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    with torch.no_grad():
        for tensor, value in zip(state, saved, strict=True):
            tensor.copy_(value)
    torch.cuda.synchronize()
    return graph.replay


@dataclass(frozen=True)
class LoopParts:
    """Everything an epoch touches; every ``meta_every``-th step is taken by ``meta``, the others by ``plain``."""

    step: TrainStep
    plain: Callable[[], None]
    meta: Callable[[], None]
    meta_every: int
    eval_forward: FeatureFunction
    val: EvalSet
    test: EvalSet

    @property
    def model(self) -> nn.Module:
        """The network."""
        return self.step.model

    @property
    def objective(self) -> Objective:
        """What is minimised; told of every epoch's beginning and end."""
        return self.step.objective


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
    step, train = parts.step, recipe.train
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
            # A loss may be the first to meet, and refuse, what an earlier step has made of the network.
            raise _diverged(f"training broke down in epoch {epoch + 1} ({str(error).rstrip('.')})", recipe) from error
        if tick is not None:
            tick(epoch, place + 1, steps)
    if parts.objective.is_part:
        step.group.add_up([step.loss_sum])
    total = float(step.loss_sum)  # waits for the device: the epoch is over
    examples = steps * step.batches.batch_size
    speed = examples / (time.monotonic() - begun)
    # Average what each process's BatchNorm has seen, where it was not synchronised: all must predict with one network.
    seen = [buffer for buffer in parts.model.buffers() if buffer.is_floating_point()]
    _level(seen + [mean for average in step.averages.values() for mean in average.buffer_means], step.group)
    loss = total / (examples if train.reduction == "sum" else steps)
    if not math.isfinite(loss):
        raise _diverged(f"the loss became {loss} in epoch {epoch + 1}", recipe)
    scores = _end_epoch(parts, recipe, epoch)
    return EpochRecord(epoch, lr, loss, images_per_second=speed, seconds=time.monotonic() - started, **scores)


def _diverged(what: str, recipe: Recipe) -> FloatingPointError:
    """Epochs in ``what`` are counted from 1, as wherever they are shown."""
    off = not recipe.train.clip_norm
    clip = "clip the gradient with `train.clip_norm`, which is 0 (off)" if off else "lower `train.clip_norm` too"
    return FloatingPointError(f"train: {what}. Lower `optim.lr`, or {clip}.")


def _level(values: list[Tensor], group: Group) -> None:
    if group.world_size > 1:
        group.add_up(values)
        for value in values:
            value /= group.world_size


def _end_epoch(parts: LoopParts, recipe: Recipe, epoch: int) -> Mapping[str, float]:
    """End an epoch for the objective, and return its scores where an evaluation is due.

    What the objective learns from the validation part it learns after every epoch: how often one evaluates changes no training.
    """
    train, average = recipe.train, parts.step.averages.get("average")
    due = (epoch + 1) % train.eval_every_epochs == 0 or epoch + 1 == train.epochs
    if not (due or parts.objective.learns_from_val()):
        parts.objective.end_epoch(None, parts.val.labels)
        return {}
    if average is not None and average.by_phase and gathering_norms(parts.model):
        average.renew(lambda: _pass_again(parts, epoch))
        _level(average.buffer_means, parts.step.group)
    with nullcontext() if average is None else average.applied():
        val = parts.val.run(parts.model, parts.eval_forward)
        _check_finite(val.logits, "validation", epoch, recipe)
        parts.objective.end_epoch(val.logits, parts.val.labels)
        if not due:
            return {}
        test = parts.test.run(parts.model, parts.eval_forward, gamma=parts.objective.gamma)
    _check_finite(test.logits, "test", epoch, recipe)
    found: dict[str, float] = {}
    for name, outputs, labels in (("val", val, parts.val.labels), ("test", test, parts.test.labels)):
        scores = epoch_scores(outputs.logits, labels)
        found |= {f"{name}_{key}": value for key, value in scores._asdict().items()}
    if test.gammas is not None:
        found |= {"gamma_mean": float(test.gammas.mean()), "gamma_std": float(test.gammas.std(correction=0))}
    return found


def _check_finite(logits: Tensor, part: str, epoch: int, recipe: Recipe) -> None:
    """Raise if the network predicts no numbers: the last step may be the one that broke it, and no loss shows that."""
    if not bool(torch.isfinite(logits.amax(1)).all()):
        raise _diverged(f"the logits of the {part} part are no longer finite after epoch {epoch + 1}", recipe)


def _pass_again(parts: LoopParts, epoch: int) -> None:
    """Let the epoch's first batches pass once more, for BatchNorm's statistics alone."""
    step = parts.step
    steps = step.batches.begin_epoch(epoch, kept=parts.objective.kept())
    with gathering(parts.model), step.hardware.autocast():
        for _ in range(min(steps, -(-_STATISTICS_EXAMPLES // step.batches.batch_size))):
            step.batches.feed()
            parts.eval_forward(parts.objective.inputs(step.batches.next()))
