"""One training step, captured or not, and the loop over an epoch: step, evaluate, hand over what happened.

The same lines of a step run eagerly on any device and, captured once, as a CUDA graph. Nothing in them waits for the device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from calibrant.engine.batches import RunData, TrainBatches
from calibrant.engine.hardware import Hardware
from calibrant.engine.methods import Plan
from calibrant.engine.network import FeatureFunction, feature_function
from calibrant.engine.objective import Objective
from calibrant.engine.optim import WeightAverage, build_averages, build_optimizer, drops, learning_rate, set_learning_rate
from calibrant.engine.recipe import Recipe
from calibrant.engine.result import EpochRecord, EvalSet, epoch_scores
from calibrant.meta.network import gathering, gathering_norms

# Called with the epoch, its steps done and all its steps.
Tick = Callable[[int, int, int], None]
# Examples that BatchNorm's statistics are computed anew from: then their error no longer shows in error and ECE.
_STATISTICS_EXAMPLES = 2560


class Assembly:
    """A run ready to start: everything that its steps read and change, and the steps themselves.

    The ``fingerprint`` is that of the data before they were divided; ``resident`` images lie on the device all along.

    Attributes:
        forward: Images → (features, logits), compiled where that is asked for; ``eval_forward`` never is.
        averages: Of the weights: "average" predicts, and meta batches go through "watch" where that is another one.
        objective: What is minimised; told of every epoch's beginning and end.
    """

    def __init__(
        self,
        recipe: Recipe,
        plan: Plan,
        *,
        data: RunData,
        fingerprint: dict[str, int | str],
        model: nn.Module,
        hardware: Hardware,
        resident: bool,
    ) -> None:
        self.recipe, self.data, self.fingerprint, self.model, self.hardware = recipe, data, fingerprint, model, hardware
        train = recipe.train
        self.batches = TrainBatches(data.train, hardware, batch_size=train.batch_size, seed=recipe.seed, resident=resident)
        self.val, self.test = (EvalSet(part, hardware, resident=resident) for part in (data.val, data.test))
        self.steps = train.epochs * self.batches.steps_per_epoch
        self.forward, self.eval_forward = self.compiled(model), feature_function(model)
        self.optimizer = build_optimizer(model.parameters(), recipe.optim)
        self.averages = build_averages(model, train, steps=self.steps, watched=plan.watched)
        self._average = torch.compile(self._follow_weights) if hardware.compiled else self._follow_weights
        self.objective: Objective = plan.build(self)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=hardware.device)
        kinds = {False, self.objective.has_meta} if hardware.captured else ()
        self._replay = {
            kind: capture_step(partial(self.step, with_meta=kind), state=list(self.state().values())) for kind in sorted(kinds)
        }

    def compiled(self, model: nn.Module) -> FeatureFunction:
        """Images → (features, logits) of a network, compiled where that is asked for."""
        plain = feature_function(model)
        return torch.compile(plain) if self.hardware.compiled else plain

    def step(self, *, with_meta: bool) -> None:
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
        self.hardware.group.add_up([p.grad for p in self.parameters if p.grad is not None])
        if self.recipe.train.clip_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.recipe.train.clip_norm, foreach=True)
        self.optimizer.step()
        self._average()
        self.loss_sum += loss.detach()

    def _follow_weights(self) -> None:
        """Take the weights into every average; compiled, one kernel reads them once for all averages."""
        for average in self.averages.values():
            average.update()

    def plain(self) -> None:
        """Take a step on the next batch, as captured where the hardware says so."""
        self._take(with_meta=False)

    def meta(self) -> None:
        """Take one that also moves the hyper-parameters; due every ``objective.every`` steps."""
        self._take(with_meta=self.objective.has_meta)

    def _take(self, *, with_meta: bool) -> None:
        # Images that do not lie on the device are sent there before the step, never as a part of it.
        self.batches.feed()
        if with_meta:
            self.objective.feed()
        if with_meta in self._replay:
            self._replay[with_meta]()
        else:
            self.step(with_meta=with_meta)

    def state(self) -> dict[str, Tensor]:
        """Every tensor that steps change: weights, statistics, momentum, hyper-parameters, cursors; by name."""
        kept = {f"model.{name}": value for name, value in self.model.state_dict(keep_vars=False).items()}
        for name, value in self.model.named_parameters():
            entries = self.optimizer.state.get(value, {})
            kept |= {f"optimizer.{name}.{key}": entry for key, entry in entries.items() if isinstance(entry, Tensor)}
        parts: dict[str, Objective | TrainBatches | WeightAverage] = {
            "objective": self.objective,
            "batches": self.batches,
            **self.averages,
        }
        kept |= {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state().items()}
        return kept | {"loss_sum": self.loss_sum}


def capture_step(step: Callable[[], None], *, state: Sequence[Tensor]) -> Callable[[], None]:
    """Record ``step`` as a CUDA graph and return a function that replays it.

    The step takes everything from, and leaves everything in, tensors of fixed address, and never waits for the device.
    Capturing needs a few ordinary runs first (lazy initialisation, autotuning, compilation). They change the ``state``, so all
    of it is saved before and put back after: training starts from the same point as without a graph.
    """
    saved = [tensor.detach().clone() for tensor in state]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
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


def run_epoch(assembly: Assembly, epoch: int, *, started: float, tick: Tick | None = None) -> EpochRecord:
    """Train for one epoch, evaluate if it is due, and return the epoch's line of history.

    ``started`` is when the run began (`time.monotonic`). Raises ``FloatingPointError`` if the loss, or what the network
    predicts, is no longer finite.
    """
    objective, recipe, batches = assembly.objective, assembly.recipe, assembly.batches
    train, averages, group = recipe.train, assembly.averages.values(), assembly.hardware.group
    lr = learning_rate(recipe.optim, epoch, epochs=train.epochs)
    set_learning_rate(assembly.optimizer, lr)
    objective.begin_epoch(epoch)
    for average in averages:
        if average.by_phase and drops(recipe.optim, epoch, epochs=train.epochs):
            average.forget()
    steps = batches.begin_epoch(epoch, kept=objective.kept())
    assembly.loss_sum.zero_()
    begun = time.monotonic()
    for place in range(steps):
        try:
            (assembly.meta if place % objective.every == 0 else assembly.plain)()
        except ValueError as error:
            if epoch == place == 0:
                raise
            # A loss may be the first to meet, and refuse, what an earlier step has made of the network.
            raise _diverged(f"training broke down in epoch {epoch + 1} ({str(error).rstrip('.')})", recipe) from error
        if tick is not None:
            tick(epoch, place + 1, steps)
    if objective.is_part:
        group.add_up([assembly.loss_sum])
    total = float(assembly.loss_sum)  # waits for the device: the epoch is over
    examples = steps * batches.batch_size
    speed = examples / (time.monotonic() - begun)
    # Average what each process's BatchNorm has seen, where it was not synchronised: all must predict with one network.
    seen = [buffer for buffer in assembly.model.buffers() if buffer.is_floating_point()]
    group.average(seen + [mean for average in averages for mean in average.buffer_means])
    loss = total / (examples if train.reduction == "sum" else steps)
    if not math.isfinite(loss):
        raise _diverged(f"the loss became {loss} in epoch {epoch + 1}", recipe)
    scores = _end_epoch(assembly, epoch)
    return EpochRecord(epoch, lr, loss, images_per_second=speed, seconds=time.monotonic() - started, **scores)


def _diverged(what: str, recipe: Recipe) -> FloatingPointError:
    """Epochs in ``what`` are counted from 1, as wherever they are shown."""
    off = not recipe.train.clip_norm
    clip = "clip the gradient with `train.clip_norm`, which is 0 (off)" if off else "lower `train.clip_norm` too"
    return FloatingPointError(f"train: {what}. Lower `optim.lr`, or {clip}.")


def _end_epoch(assembly: Assembly, epoch: int) -> dict[str, float]:
    """End an epoch for the objective, and return its scores where an evaluation is due.

    What the objective learns from the validation part it learns after every epoch: how often one evaluates changes no training.
    """
    model, objective, forward, val = assembly.model, assembly.objective, assembly.eval_forward, assembly.val
    train, average = assembly.recipe.train, assembly.averages.get("average")
    due = (epoch + 1) % train.eval_every_epochs == 0 or epoch + 1 == train.epochs
    if not (due or objective.learns_from_val()):
        objective.end_epoch(None, val.labels)
        return {}
    if average is not None and average.by_phase and gathering_norms(model):
        with average.applied(keep=True):
            _pass_again(assembly, epoch)
        assembly.hardware.group.average(average.buffer_means)
    with nullcontext() if average is None else average.applied():
        logits = validate(assembly, epoch)
        objective.end_epoch(logits, val.labels)
        if not due:
            return {}
        test = assembly.test.run(model, forward, gamma=objective.gamma)
    scores = {f"val_{name}": value for name, value in epoch_scores(logits, val.labels).items()}
    scores |= {f"test_{name}": value for name, value in epoch_scores(test.logits, assembly.test.labels).items()}
    if test.gammas is not None:
        scores |= {"gamma_mean": float(test.gammas.mean()), "gamma_std": float(test.gammas.std(correction=0))}
    return scores


def validate(assembly: Assembly, epoch: int) -> Tensor:
    """Return the validation logits of the network as it is."""
    logits = assembly.val.run(assembly.model, assembly.eval_forward).logits
    # The last step may be the one that broke the network, and no loss shows that.
    if not bool(torch.isfinite(logits.amax(1)).all()):
        raise _diverged(f"the logits are no longer finite after epoch {epoch + 1}", assembly.recipe)
    return logits


@torch.no_grad()
def _pass_again(assembly: Assembly, epoch: int) -> None:
    """Let the epoch's first batches pass once more, for BatchNorm's statistics alone."""
    batches, objective = assembly.batches, assembly.objective
    steps = batches.begin_epoch(epoch, kept=objective.kept())
    with gathering(assembly.model), assembly.hardware.autocast():
        for _ in range(min(steps, -(-_STATISTICS_EXAMPLES // batches.batch_size))):
            batches.feed()
            assembly.eval_forward(objective.inputs(batches.next()))
