"""From a recipe to a run ready to start, its step, captured or not, and the loop over an epoch: step, evaluate, record.

The same lines of a step run eagerly on any device and, captured once, as a CUDA graph. Nothing in them waits for the device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.data import DATASETS, DEFAULT_ROOT, is_path, load_path
from calibrant.data.image_set import DataSet, ImageSet, difference, fingerprint, split_indices
from calibrant.engine.batches import RunData, TrainBatches
from calibrant.engine.hardware import ALONE_GROUP, Group, Hardware, choose_hardware
from calibrant.engine.methods import Plan, facts_of, learns, make_plan, resolved
from calibrant.engine.network import FeatureFunction, build_network, feature_function
from calibrant.engine.objective import Objective
from calibrant.engine.optim import build_averages, build_optimizer, drops, learning_rate, set_learning_rate
from calibrant.engine.recipe import DataPart, Recipe, check_recipe
from calibrant.engine.result import EpochRecord, EvalSet, epoch_scores
from calibrant.meta.network import gathering_norms, meta_mode

# Called with the epoch, its steps done and all its steps.
Tick = Callable[[int, int, int], None]
# Examples that BatchNorm's statistics are computed anew from: then their error no longer shows in error and ECE.
_STATISTICS_EXAMPLES = 2560


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


def divide(data: DataSet, recipe: Recipe) -> RunData:
    """Split a data set as a recipe says; the test set is never divided."""
    train, val, meta = (data.train.pick(rows) for rows in divide_rows(len(data.train), recipe))
    return RunData(train, val, meta if len(meta) else None, data.test)


def divide_rows(n: int, recipe: Recipe) -> tuple[Tensor, Tensor, Tensor]:
    """Return which of ``n`` images are for training, validation and meta steps; raises ``ValueError`` if there are too few."""
    val, meta = held_out(n, recipe)
    return split_indices(n, val=val, meta=meta, seed=recipe.seed)


def held_out(n: int, recipe: Recipe) -> tuple[int, int]:
    """Return how many of ``n`` images are for validation, and how many more are held out.

    The published protocol holds a tenth out for methods that learn; by default these learn on the validation part.
    """
    part, apart = recipe.data, learns(recipe) and recipe.method.preset == "paper"
    val = n // 10 if part.val is None else part.val
    return val, (n // 10 if apart else 0) if part.meta is None else part.meta


def augmented(train: ImageSet, part: DataPart) -> ImageSet:
    """Return the training part with crops and mirroring as a recipe says; the set's own where it says nothing."""
    if not part.augment:
        return replace(train, pad=0, flip=False)
    pad, flip = train.pad if part.pad is None else part.pad, train.flip if part.flip is None else part.flip
    return replace(train, pad=pad, flip=flip)


def fits_on_device(data: RunData, part: DataPart, *, device: torch.device) -> bool:
    """Whether the images of a run are to lie on the device.

    They may take a third of the memory that is free, and a half with padding; the network and its activations need the rest.
    """
    if part.place != "auto" or device.type != "cuda":
        return part.place != "host"
    parts = (data.train, data.val, data.test, *([] if data.meta is None else [data.meta]))
    free, _ = torch.cuda.mem_get_info(device)
    return sum(part.images.numel() for part in parts) <= free // 3


def check_same_data(facts: Mapping[str, Any], part: DataPart, *, where: str, now: Mapping[str, object] | None = None) -> None:
    """Raise ``ValueError`` if the data of a run are no longer those that it was trained on.

    Published sets do not change, and a finished run may outlive its data. ``now`` is the data's fingerprint, if they were read.
    """
    if not is_own(part):
        return
    try:
        now = fingerprint(load_data(part)) if now is None else now
    except (OSError, ValueError):
        return
    if differ := difference(facts.get("data") or {}, now):
        raise ValueError(
            f"train: `data` must be what {where} was trained on, got other data in {part.name}: {differ}. Put the old data "
            "back, or use another folder."
        )


class Assembly:
    """A run ready to start: everything that its steps read and change, and the steps themselves.

    The ``fingerprint`` is that of the data before they were divided; ``resident`` images lie on the device all along.

    Attributes:
        forward: Images → (features, logits), compiled where that is asked for; ``eval_forward`` never is.
        averages: Of the weights: "average" predicts, and meta batches go through "watch" where that is another one.
        objective: What is minimised; it learns when an epoch begins and ends.
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
        loss = self.objective.loss(batch, features, logits, with_meta=with_meta)
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

    def take(self, *, with_meta: bool) -> None:
        """Take a step on the next batch, as captured where the hardware says so; with a meta step if the method has any.

        One is due every ``objective.every`` steps. Images that do not lie on the device are sent there before the step.
        """
        with_meta = with_meta and self.objective.has_meta
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
        parts = {"objective": self.objective.state(), "batches": self.batches.state()}
        parts |= {name: average.state() for name, average in self.averages.items()}
        kept |= {f"{name}.{key}": value for name, state in parts.items() for key, value in state.items()}
        return kept | {"loss_sum": self.loss_sum}


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
    data = divide(whole, recipe)
    data = replace(data, train=augmented(data.train, recipe.data))
    plan = make_plan(part.name, part.options, facts_of(recipe, num_train=len(data.train)))
    steps = train.epochs * (len(data.train) // train.batch_size)
    compiled = train.compile if plan.compilable else "no"
    hardware = choose_hardware(
        device=train.device, precision=train.precision, compiled=compiled, graph=train.graph, steps=steps, group=group
    )
    model = build_network(recipe, data.train, hardware, uses_head=learns(recipe))
    with hardware.active():
        resident = fits_on_device(data, recipe.data, device=hardware.device)
        return Assembly(
            recipe, plan, data=data, fingerprint=fingerprint(whole), model=model, hardware=hardware, resident=resident
        )


def capture_step(step: Callable[[], None], *, state: Sequence[Tensor]) -> Callable[[], None]:
    """Record ``step`` as a CUDA graph and return a function that replays it.

    Capturing needs a few ordinary runs first (lazy initialisation, autotuning, compilation), which change the ``state``: it is
    saved before and put back after.
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
            assembly.take(with_meta=place % objective.every == 0)
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
        test, gammas = assembly.test.run(model, forward, gamma=objective.gamma)
    scores = {f"val_{name}": value for name, value in epoch_scores(logits, val.labels).items()}
    scores |= {f"test_{name}": value for name, value in epoch_scores(test, assembly.test.labels).items()}
    if gammas is not None:
        scores |= {"gamma_mean": float(gammas.mean()), "gamma_std": float(gammas.std(correction=0))}
    return scores


def validate(assembly: Assembly, epoch: int) -> Tensor:
    """Return the validation logits of the network as it is."""
    logits, _ = assembly.val.run(assembly.model, assembly.eval_forward)
    # The last step may be the one that broke the network, and no loss shows that.
    if not bool(torch.isfinite(logits.amax(1)).all()):
        raise _diverged(f"the logits are no longer finite after epoch {epoch + 1}", assembly.recipe)
    return logits


@torch.no_grad()
def _pass_again(assembly: Assembly, epoch: int) -> None:
    """Let the epoch's first batches pass once more, for BatchNorm's statistics alone."""
    batches, objective = assembly.batches, assembly.objective
    steps = batches.begin_epoch(epoch, kept=objective.kept())
    with meta_mode(assembly.model, "gather"), assembly.hardware.autocast():
        for _ in range(min(steps, -(-_STATISTICS_EXAMPLES // batches.batch_size))):
            batches.feed()
            assembly.eval_forward(objective.inputs(batches.next()))
