"""`MetaLearner`: meta-regularization for one's own training loop. The only object in this room that holds state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader

from calibrant.core.checks import check_count
from calibrant.core.registry import lookup
from calibrant.losses.base import check_ignore_index
from calibrant.meta.adam import AdamState, init_adam
from calibrant.meta.batches import endless, to_device
from calibrant.meta.ddp import broadcast, exchange_of, group_of
from calibrant.meta.gamma_net import GammaNet
from calibrant.meta.info import StepInfo, overwrite, pack, pack_grads, unpack, unpack_grads
from calibrant.meta.monitor import Watch
from calibrant.meta.network import (
    Inputs,
    capturing,
    check_optimizer,
    explained,
    find_network,
    labelled,
    random_state,
    read_features,
    rows_of,
)
from calibrant.meta.objectives import make_objective
from calibrant.meta.presets import PRESETS, MetaSettings, Options, regularizer_of, settings_of
from calibrant.meta.regularizers import GammaFocal, Regularizer
from calibrant.meta.regularizers.base import Params
from calibrant.meta.update import Plan, current_lr, full_update, head_update, leaked, meta_features, next_hyper
from calibrant.meta.virtual import Batch, Hypergradient, MetaObjective


class MetaLearner:
    """Trains a classifier with a loss that learns, on held-out data, how to keep it calibrated.

    A `step` takes the place of a training loop's forward, backward and optimizer step. Those who keep their own call
    `meta_update` between forward and backward and minimise `loss`.

    Args:
        model: Any module that ends in an ``nn.Linear``; also wrapped in ``DistributedDataParallel``.
        optimizer: Any optimizer of its parameters, or of those that are to be trained.
        regularizer: "gamma-focal", "unitwise-l2", "label-smoothing", "label-smoothing-per-class",
            "label-smoothing-non-uniform", or a `Regularizer`.
        objective: What meta updates minimise: "sece", "dece", "skce", "nll", any other loss or penalty by name, a mapping of
            names to weights, or a function ``(logits, labels) -> []``.
        preset: "default" or "paper"; see `calibrant.meta.presets`.
        head: Name of the last linear layer, or the layer; found if None.
        meta_batches: What to draw (x, labels) from when a meta update is due: `MetaBatches` or another endless iterator, or a
            ``DataLoader`` that shuffles.
        accumulate: Calls of `step` to one optimizer step.
        amp: Autocast type of the forward passes (``torch.bfloat16``, ``torch.float16``), or None.
        scaler: Gradient scaler, for float16.
        backward: What a trainer calls in place of ``loss.backward()`` (``self.manual_backward``, ``accelerator.backward``). It
            scales the loss where that is needed, and ``optimizer`` is the trainer's wrapper, which steps by the scaler.
        process_group: Processes that share the meta updates, where a trainer and not ``model`` itself holds the
            ``DistributedDataParallel`` wrapper.
        ignore_index: Label of the samples or tokens to leave out (-100 where text is padded), or None. Steps with one wait for
            the device, and are for a single process.
        monitor_every: Meta updates between two looks at the hyper-parameters for trouble, after one at the first held-out
            value; 0 never looks.
        generator: Source of the gamma-Net's draw.
        options: Fields of `calibrant.meta.presets.MetaSettings` to override: ``lookahead``, ``lookahead_lr``, ``every``, ...

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> learner = MetaLearner(model, torch.optim.SGD(model.parameters(), lr=0.1), every=1)
        >>> x, y = torch.randn(16, 4), torch.arange(16) % 3
        >>> info = learner.step(x, y, torch.randn(32, 4), torch.arange(32) % 3)
        >>> sorted(info.values)
        ['gamma_at_bound', 'gamma_max', 'gamma_mean', 'gamma_min', 'gamma_std']

    Reference:
        Wang and Golebiowski, "Towards unbiased calibration using meta-regularization", TMLR 2024, algorithm 1; order of the
        two updates as in Bohdal, Yang and Hospedales, TMLR 2023.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        regularizer: str | Regularizer = "gamma-focal",
        objective: str | Mapping[str, float] | MetaObjective = "sece",
        preset: str = "default",
        head: str | nn.Module | None = None,
        meta_batches: Iterator[tuple[Any, Tensor]] | DataLoader[Any] | None = None,
        accumulate: int = 1,
        amp: torch.dtype | None = None,
        scaler: torch.amp.GradScaler | None = None,
        backward: Callable[[Tensor], object] | None = None,
        process_group: dist.ProcessGroup | None = None,
        ignore_index: int | None = None,
        monitor_every: int = 100,
        generator: torch.Generator | None = None,
        **options: Unpack[Options],
    ) -> None:
        check_count(accumulate, where="MetaLearner", name="accumulate")
        check_count(monitor_every, where="MetaLearner", name="monitor_every", least=0)
        self.ignore_index = check_ignore_index(ignore_index, where="MetaLearner")
        chosen = lookup(PRESETS, preset, kind="preset")
        group = process_group if process_group is not None else group_of(model)
        if ignore_index is not None and group is not None:
            raise ValueError(
                f"MetaLearner: `ignore_index` must be None with several processes, whose meta batches would differ in size, "
                f"got {ignore_index}."
            )
        self.plan = Plan(
            network=find_network(model, head),
            regularizer=regularizer_of(chosen, regularizer),
            objective=make_objective(objective, variants=chosen.objectives),
            settings=settings_of(chosen, options),
            exchange=exchange_of(group),
            amp=amp,
        )
        if self.settings.leak_meta_grad and (group is not None or self.settings.lookahead == "full"):
            raise ValueError(
                'MetaLearner: `leak_meta_grad` must go with a single process and lookahead="head". Pass `leak_meta_grad=False`.'
            )
        check_optimizer(self.plan.network, optimizer)
        self.optimizer, self.scaler, self.backward = optimizer, scaler, backward
        self.meta_batches = endless(meta_batches)
        self.accumulate, self.monitor_every = accumulate, monitor_every
        self.hyper = self._start(generator)
        if group is not None:
            broadcast(self.hyper, group)
        lr = self.settings.meta_lr
        self.meta_lr = float(self.regularizer.pace / self.regularizer.speed(self.hyper)) if lr is None else lr
        self.adam: AdamState = init_adam(self.hyper)
        self.steps, self.meta_updates = 0, 0
        self._part, self._verified, self._watch, self._missed = 0, False, Watch(), 0
        self._values: Mapping[str, Tensor] = {}

    @property
    def settings(self) -> MetaSettings:
        """How steps are taken."""
        return self.plan.settings

    @property
    def regularizer(self) -> Regularizer:
        """The training loss with hyper-parameters."""
        return self.plan.regularizer

    @property
    def due(self) -> bool:
        """Whether the next call of `step` makes a meta update, and so needs a meta batch."""
        return self._part == 0 and self.steps % self.settings.every == 0

    def step(self, x: Inputs, y: Tensor, x_meta: Inputs | None = None, y_meta: Tensor | None = None) -> StepInfo:
        """Train on one batch: forward, meta update if due, backward, clipping, optimizer step.

        Args:
            x: Input of the model: a tensor, a tuple of positional or a mapping of keyword arguments.
            y: Labels ``[B]``, or ``[B, T]`` where the model returns logits ``[B, T, C]``: then every token is a sample.
            x_meta: Held-out input; needed when `due`, unless ``meta_batches`` was given.
            y_meta: Its labels ``[M]``.

        Returns:
            What was done.
        """
        if self._part == 0:
            self.optimizer.zero_grad(set_to_none=True)
        random = self.random_state() if self.due else None
        features, logits = self.forward(x)
        found = None
        if self.due:
            if x_meta is None or y_meta is None:
                x_meta, y_meta = self.draw()
            # A batch of ignored labels alone says nothing.
            if self.ignore_index is None or all(bool((given != self.ignore_index).any()) for given in (y, y_meta)):
                found = self.meta_update(features, logits, y, x_meta, y_meta, x=x, random=random)
        loss = self.loss(features, logits, y)
        stepped = self._backward(loss)
        value, norm = (None, None) if found is None else (found.value, found.norm())
        return StepInfo(loss.detach(), logits.detach(), value, norm, self._values, stepped)

    def forward(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """Return the penultimate features ``[B, d]`` and the logits ``[B, C]`` of ``x``, with their graph; tokens are rows."""
        # Compiled code frees what a second backward pass through its graph needs, so where there is one the plain module runs.
        twice = self.settings.lookahead == "full" or self.settings.leak_meta_grad
        plain = twice and group_of(self.plan.network.model) is None
        with self.plan.autocast():
            seen = read_features(self.plan.network, x, inner=plain, verify=not self._verified)
        self._verified = True
        return seen

    def meta_update(
        self,
        features: Tensor,
        logits: Tensor,
        labels: Tensor,
        x_meta: Inputs | None = None,
        y_meta: Tensor | None = None,
        *,
        held_out: Tensor | None = None,
        x: Inputs | None = None,
        random: Tensor | None = None,
    ) -> Hypergradient:
        """Improve the hyper-parameters by one step; call it between the forward and the backward pass.

        Args:
            features: Penultimate features ``[B, d]`` of the training batch.
            logits: Its logits ``[B, C]``, with their graph if the look-ahead is full.
            labels: Its labels ``[B]``.
            x_meta: Held-out input.
            y_meta: Its labels ``[M]``.
            held_out: Penultimate features ``[M, d]`` of the held-out input in its place, for a look-ahead of the head.
            x: Input of the training batch, for a full look-ahead.
            random: State of the random numbers before its forward pass, so that the tangent repeats its dropout.

        Returns:
            Value of the objective and hypergradient.
        """
        if y_meta is None or (x_meta is None and held_out is None):
            raise ValueError("MetaLearner.meta_update: `y_meta` and `x_meta` (or `held_out`) must be given, got nothing.")
        labels, kept = labelled(labels, logits, self.ignore_index)
        batch = Batch(rows_of(features, kept), rows_of(logits, kept), labels)
        lr = current_lr(self.optimizer, self.plan.network.head.weight)
        if self.settings.lookahead == "full":
            if x is None or x_meta is None:
                raise ValueError("MetaLearner.meta_update: `x` and `x_meta` must be given for a full look-ahead, got nothing.")
            with explained(logits=logits):
                found = self._full_update(batch, x, x_meta, y_meta, lr=lr, random=random, kept=kept)
                self._check_first(found)
        else:
            if held_out is None:
                assert x_meta is not None
                held_out = meta_features(self.plan, x_meta, keep_graph=self.settings.leak_meta_grad)
            y_meta, kept = labelled(y_meta, held_out, self.ignore_index)
            held_out = rows_of(held_out, kept)
            with explained(logits=logits, features_of_held_out_data=held_out):
                found = head_update(self.plan, self.hyper, batch, held_out, y_meta, lr=lr)
                self._check_first(found)
            if self.settings.leak_meta_grad:
                self._leak(batch, held_out, y_meta, lr)
        self._apply(found, batch.features)
        return found

    def loss(self, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the training loss ``[]`` with the hyper-parameters as they are; minimise it by the network's parameters."""
        labels, kept = labelled(labels, logits, self.ignore_index)
        features, logits = rows_of(features, kept), rows_of(logits, kept)
        if len(labels) == 0:
            return logits.sum()
        with torch.autocast(logits.device.type, enabled=False), explained(logits=logits):
            values = self.regularizer.loss(self.hyper, features.detach(), logits, labels, self.plan.network.head_values)
        return values.sum() if self.settings.reduction == "sum" else values.mean()

    def draw(self) -> tuple[Inputs, Tensor]:
        """Return the next meta batch of ``meta_batches``, on the model's device; raises where there are none."""
        if self.meta_batches is None:
            raise ValueError(
                f"MetaLearner.step: `x_meta` and `y_meta` must be given when a meta update is due (every "
                f"{self.settings.every}. step), got nothing. Pass them, or `meta_batches=MetaBatches(...)` to the learner."
            )
        x, labels = next(self.meta_batches)
        device = self.plan.network.head.weight.device
        return to_device(x, device), labels.to(device, non_blocking=True)

    def random_state(self) -> Tensor | None:
        """Return the state of the random numbers if a full look-ahead needs it; ask before the forward pass."""
        return random_state(self.plan.network.head.weight.device) if self.settings.lookahead == "full" else None

    def gamma_net(self) -> GammaNet:
        """Return a copy of the gamma-Net, to look at its heads or to keep; raises where the regularizer has none."""
        if not isinstance(self.regularizer, GammaFocal):
            raise ValueError(f"MetaLearner.gamma_net: the regularizer must be GammaFocal, got {self.regularizer!r}.")
        return self.regularizer.net(self.hyper)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs besides the model's, the optimizer's and the scaler's own state.

        Between the parts of an accumulated batch that includes the gradients of the parts so far.
        """
        source: Any = self.meta_batches
        batches = source.state_dict() if hasattr(source, "state_dict") else None
        counts = {"steps": self.steps, "meta_updates": self.meta_updates, "part": self._part}
        grads = pack_grads(self.plan.network.parameters()) if self._part else {}
        return {**pack(self.hyper, self.adam), **counts, "meta_lr": self.meta_lr, "meta_batches": batches, "grads": grads}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken; tensors are copied into place."""
        unpack(state, self.hyper, self.adam)
        self.steps, self.meta_updates, self._part = int(state["steps"]), int(state["meta_updates"]), int(state["part"])
        self._watch, self._missed = Watch(), self.meta_updates - int(self.adam.steps)
        self.meta_lr = float(state["meta_lr"])
        if self._part:
            unpack_grads(state["grads"], self.plan.network.parameters())
        source: Any = self.meta_batches
        if state["meta_batches"] is not None and hasattr(source, "load_state_dict"):
            source.load_state_dict(state["meta_batches"])

    def _start(self, generator: torch.Generator | None) -> Params:
        layer = self.plan.network.head
        start = self.regularizer.init(layer.in_features, layer.out_features, bias=layer.bias is not None, generator=generator)
        dtype = torch.promote_types(layer.weight.dtype, torch.float32)
        return {name: value.to(layer.weight.device, dtype) for name, value in start.items()}

    def _full_update(
        self,
        batch: Batch,
        x: Inputs,
        x_meta: Inputs,
        y_meta: Tensor,
        *,
        lr: float | Tensor,
        random: Tensor | None,
        kept: Tensor | None,
    ) -> Hypergradient:
        plan, device = self.plan, self.plan.network.head.weight.device.type
        if plan.amp is None and torch.is_autocast_enabled(device):
            # A trainer's autocast around the step is for forward passes, not for the objective and its derivative.
            plan = replace(plan, amp=torch.get_autocast_dtype(device))
        y_meta, meta_kept = labelled(y_meta, y_meta.reshape(-1), self.ignore_index)
        with torch.autocast(device, enabled=False):
            scale = self._loss_scale()
            return full_update(
                plan, self.hyper, batch, x, x_meta, y_meta, lr=lr, random=random, loss_scale=scale, kept=(kept, meta_kept)
            )

    def _loss_scale(self) -> float | Tensor:
        if self.scaler is None:
            return 1.0
        # Scaling a one reads the scale without waiting for the device, as `get_scale` would.
        return self.scaler.scale(torch.ones((), device=self.plan.network.head.weight.device))

    def _apply(self, found: Hypergradient, features: Tensor) -> None:
        hyper, adam, moved = next_hyper(self.plan, self.hyper, found.grads, self.adam, lr=self.meta_lr)
        overwrite(self.hyper, hyper)
        overwrite(self.adam.first, adam.first)
        overwrite(self.adam.second, adam.second)
        self.adam.steps.copy_(adam.steps)
        self.meta_updates += 1
        head = self.plan.network.head_values
        with torch.no_grad():
            self._values = self.regularizer.summary(self.hyper, features=features.detach(), head=head)
        self._watch = self._watch.add(moved, self._values)
        if self.monitor_every and self.meta_updates % self.monitor_every == 0:
            # Adam counts the updates it took, which are all but those that were not finite.
            before, self._missed = self._missed, self.meta_updates - int(self.adam.steps)
            missed = self._missed - before
            # A scaler looks for the largest scale that does not overflow, and so finds some that do.
            rare = self.scaler is not None and 2 * missed <= self._watch.updates
            self._watch = self._watch.look(self.regularizer, missed=0 if rare else missed)

    def _check_first(self, found: Hypergradient) -> None:
        """Refuse a first held-out value that is no number; later ones are counted where the monitor looks."""
        # With a scaler a full virtual step overflows until the scale is found.
        scaled = self.scaler is not None and self.settings.lookahead == "full"
        if self.meta_updates or not self.monitor_every or scaled or capturing(found.value.device):
            return
        if not math.isfinite(value := float(found.value)):
            raise ValueError(
                f"MetaLearner: the objective on the first held-out batch must be finite, got {value}. "
                "Look for NaN or inf in the held-out data."
            )

    def _leak(self, batch: Batch, held_out: Tensor, labels: Tensor, lr: float | Tensor) -> None:
        scale, params = self._loss_scale(), self.plan.network.parameters()
        grads = leaked(self.plan, self.hyper, batch, held_out, labels, lr=lr, loss_scale=scale)
        for name, grad in grads.items():
            value = params[name]
            value.grad = grad if value.grad is None else value.grad + grad

    def _backward(self, loss: Tensor) -> bool:
        """Add the gradient of one part; after the last, clip and step. Returns whether it was the last."""
        share = loss / self.accumulate if self.settings.reduction == "mean" else loss
        if self.backward is not None:
            self.backward(share)
        else:
            (share if self.scaler is None else self.scaler.scale(share)).backward()
        self._part = (self._part + 1) % self.accumulate
        if self._part:
            return False
        if self.settings.clip is not None:
            limit: float | Tensor = self.settings.clip
            if self.scaler is not None and self.backward is None:
                self.scaler.unscale_(self.optimizer)
            elif self.scaler is not None:
                # The trainer's optimizer will unscale, which must happen once: here the limit is scaled instead.
                limit = self.settings.clip * self._loss_scale()
            nn.utils.clip_grad_norm_(list(self.plan.network.parameters().values()), float(limit))
        if self.scaler is None or self.backward is not None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.steps += 1
        return True
