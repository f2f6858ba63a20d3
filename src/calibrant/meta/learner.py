"""`MetaLearner`: meta-regularization for one's own training loop."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader

from calibrant.core.checks import check_count
from calibrant.core.registry import lookup
from calibrant.meta.batches import endless, to_device
from calibrant.meta.gamma_net import GammaNet, Params
from calibrant.meta.lookahead import Batch, Hypergradient, MetaObjective, exchange_of, full_hypergradient
from calibrant.meta.network import (
    Inputs,
    call_at,
    capturing,
    find_network,
    labelled,
    logits_tangent,
    meta_mode,
    random_state,
    read_features,
    replayed_randomness,
    rows_of,
)
from calibrant.meta.regularizers import GammaFocal, Regularizer
from calibrant.meta.settings import PRESETS, make_objective, settings_of
from calibrant.meta.step import HeldOut, HyperParameters, leaked_value, meta_step

# Mean |step| / lr of Adam below which hyper-parameters count as frozen. Pure noise gives 0.2 with betas (0.9, 0.999) and 0.6
# with (0.5, 0.9); a gradient that fell a hundredfold within Adam's memory gives less than 0.01.
FROZEN = 0.01


class MetaWarning(RuntimeWarning):
    """The hyper-parameters ran away, froze or missed updates; training goes on."""


@dataclass(frozen=True)
class StepInfo:
    """What a step did. Every number stays a tensor on the device until it is read, so that logging rarely costs a wait.

    Attributes:
        loss: Training loss ``[]``, reduced as the step's.
        logits: Training logits ``[B, C]``, detached.
        meta_value: Meta objective after the virtual step ``[]``, in its own units (nats for the default SECE, which is a
            divergence); None on a step without a meta update.
        hypergradient_norm: Norm of its gradient ``[]``; None likewise.
        values: The regularizer's summary at the last meta update: gamma's mean, spread, extremes, share at the bound.
        stepped: Whether the optimizer stepped (not on the first parts of an accumulated batch).
    """

    loss: Tensor
    logits: Tensor
    meta_value: Tensor | None = None
    hypergradient_norm: Tensor | None = None
    values: Mapping[str, Tensor] = field(default_factory=dict)
    stepped: bool = True

    def to_floats(self) -> dict[str, float]:
        """Return every number by name, for a log; waits for the device."""
        found = {"loss": self.loss, "meta_value": self.meta_value, "hypergradient_norm": self.hypergradient_norm}
        return {name: float(value) for name, value in (found | dict(self.values)).items() if value is not None}


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
        preset: "default" or "paper"; see `calibrant.meta.PRESETS`.
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
        options: Fields of `calibrant.meta.MetaSettings` to override: ``lookahead``, ``lookahead_lr``, ``every``, ...

    Attributes:
        hyper: The hyper-parameters, name → value.

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
        **options: Any,
    ) -> None:
        check_count(accumulate, where="MetaLearner", name="accumulate")
        check_count(monitor_every, where="MetaLearner", name="monitor_every", least=0)
        if amp is not None and not isinstance(amp, torch.dtype):
            raise ValueError(f"MetaLearner: `amp` must be a dtype or None, got {amp!r}. Pass `torch.bfloat16`, for example.")
        chosen = lookup(PRESETS, preset, kind="preset")
        if isinstance(regularizer, str):
            regularizer = lookup(chosen.regularizers, regularizer, kind="regularizer")()
        self.regularizer, self.settings = regularizer, settings_of(chosen, options)
        self.objective = make_objective(objective, variants=chosen.objectives)
        self.network = find_network(model, head)
        group = process_group if process_group is not None else self.network.group
        if ignore_index is not None and group is not None:
            raise ValueError(f"MetaLearner: `ignore_index` must be None with several processes, got {ignore_index}.")
        if self.settings.leak_meta_grad and (group is not None or self.settings.lookahead == "full"):
            raise ValueError(
                'MetaLearner: `leak_meta_grad` must go with a single process and lookahead="head". Pass `leak_meta_grad=False`.'
            )
        self.exchange = exchange_of(group)
        trained = {id(value) for value in self.network.parameters().values()}
        if trained and not trained & {id(value) for group in optimizer.param_groups for value in group["params"]}:
            raise ValueError("MetaLearner: `optimizer` must hold parameters of `model`, got one that holds none of them.")
        self.optimizer, self.scaler, self.backward, self.amp = optimizer, scaler, backward, amp
        self.meta_batches, self.ignore_index = endless(meta_batches), ignore_index
        self.accumulate, self.monitor_every = accumulate, monitor_every
        self._learned = HyperParameters(regularizer, self.settings, self.network.head, group=group, generator=generator)
        self.hyper: Params = self._learned.params
        self.steps, self.meta_updates, self._part = 0, 0, 0
        self._verified = False
        self._leaked: Tensor | None = None
        self._values: Mapping[str, Tensor] = {}
        # Meta updates, and those that Adam took, when the monitor last looked; what it warned of and is not over.
        self._looked, self._warned = (0, 0), frozenset[str]()

    @property
    def meta_lr(self) -> float:
        """Learning rate of the hyper-parameters; set it to follow a schedule."""
        return self._learned.lr

    @meta_lr.setter
    def meta_lr(self, lr: float) -> None:
        self._learned.lr = lr

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
        value = norm = None
        if self.due:
            if x_meta is None or y_meta is None:
                x_meta, y_meta = self.draw()
            # A batch of ignored labels alone says nothing.
            if self.ignore_index is None or all(bool((given != self.ignore_index).any()) for given in (y, y_meta)):
                found = self.meta_update(features, logits, y, x_meta, y_meta, x=x, random=random)
                value, norm = found.value, found.norm()
        loss = self.loss(features, logits, y)
        stepped = self._backward(loss)
        return StepInfo(loss.detach(), logits.detach(), value, norm, self._values, stepped)

    def forward(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """Return the penultimate features ``[B, d]`` and the logits ``[B, C]`` of ``x``, with their graph; tokens are rows."""
        # Compiled code frees what a second backward pass through its graph needs, so where there is one the plain module runs.
        plain = self.settings.lookahead == "full" and self.network.group is None
        with self._autocast(self.amp):
            seen = read_features(self.network, x, inner=plain, verify=not self._verified)
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
        full = self.settings.lookahead == "full"
        if y_meta is None or (x_meta is None and (full or held_out is None)) or (full and x is None):
            wanted = "`x`, `x_meta` and `y_meta`" if full else "`y_meta` and `x_meta` (or `held_out`)"
            raise ValueError(f"MetaLearner.meta_update: {wanted} must be given for this look-ahead, got nothing.")
        labels, kept = labelled(labels, len(logits), self.ignore_index)
        batch = Batch(rows_of(features, kept), _finite(rows_of(logits, kept)), labels)
        lr = _current_lr(self.optimizer, self.network.head.weight)
        if full:
            assert x is not None
            assert x_meta is not None
            found = self._full_hypergradient(batch, kept, x, x_meta, y_meta, lr=lr, random=random)
            self._learned.step(found.grads)
        else:
            found = self._head_step(batch, x_meta, y_meta, held_out, lr=lr)
        self.meta_updates += 1
        with torch.no_grad():
            self._values = self.regularizer.summary(self.hyper, features=batch.features.detach(), head=self.network.head_values)
        self._monitor(found.value)
        return found

    def loss(self, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the training loss ``[]`` with the hyper-parameters as they are; minimise it by the network's parameters.

        With ``leak_meta_grad`` its gradient, though not its value, includes what the last meta update leaks.
        """
        labels, kept = labelled(labels, len(logits), self.ignore_index)
        features, logits = rows_of(features, kept), _finite(rows_of(logits, kept))
        if len(labels) == 0:
            return logits.sum()
        with torch.autocast(logits.device.type, enabled=False):
            values = self.regularizer.loss(self.hyper, features.detach(), logits, labels, self.network.head_values)
        total = values.sum() if self.settings.reduction == "sum" else values.mean()
        leaked, self._leaked = self._leaked, None
        return total if leaked is None else total + (leaked - leaked.detach())

    def draw(self) -> tuple[Inputs, Tensor]:
        """Return the next meta batch of ``meta_batches``, on the model's device; raises where there are none."""
        if self.meta_batches is None:
            raise ValueError(
                f"MetaLearner.step: `x_meta` and `y_meta` must be given when a meta update is due (every "
                f"{self.settings.every}. step), got nothing. Pass them, or `meta_batches=MetaBatches(...)` to the learner."
            )
        x, labels = next(self.meta_batches)
        return to_device(x, self.network.device), labels.to(self.network.device, non_blocking=True)

    def random_state(self) -> Tensor | None:
        """Return the state of the random numbers if a full look-ahead needs it; ask before the forward pass."""
        return random_state(self.network.device) if self.settings.lookahead == "full" else None

    def gamma_net(self) -> GammaNet:
        """Return a copy of the gamma-Net, to look at its heads or to keep; raises where the regularizer has none."""
        if not isinstance(self.regularizer, GammaFocal):
            raise ValueError(f"MetaLearner.gamma_net: the regularizer must be GammaFocal, got {self.regularizer!r}.")
        return self.regularizer.net(self.hyper)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs besides the model's, the optimizer's and the scaler's own state.

        Between the parts of an accumulated batch that includes the gradients of the parts so far.
        """
        adam = {name: self._learned.adam.state[value] for name, value in self.hyper.items()}
        params = self.network.parameters() if self._part else {}
        source: Any = self.meta_batches
        return {
            "hyper": {name: value.clone() for name, value in self.hyper.items()},
            "first": {name: entry["exp_avg"].clone() for name, entry in adam.items()},
            "second": {name: entry["exp_avg_sq"].clone() for name, entry in adam.items()},
            "adam_steps": torch.tensor(float(self._learned.taken)),
            "steps": self.steps,
            "meta_updates": self.meta_updates,
            "part": self._part,
            "meta_lr": self.meta_lr,
            "meta_batches": source.state_dict() if hasattr(source, "state_dict") else None,
            "grads": {name: value.grad.clone() for name, value in params.items() if value.grad is not None},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken; tensors are copied into place."""
        where = "MetaLearner.load_state_dict"
        if missing := [name for name in self.state_dict() if name not in state]:
            raise ValueError(f"{where}: `state` must be what `learner.state_dict()` gave, got one without {missing[0]!r}.")
        shapes, given = ({n: list(v.shape) for n, v in held.items()} for held in (self.hyper, state["hyper"]))
        if shapes != given:
            raise ValueError(f"{where}: hyper-parameters must be {shapes}, got {given}. Use the same regularizer and head.")
        for name, value in self.hyper.items():
            value.copy_(state["hyper"][name])
            for key, saved in (("exp_avg", state["first"][name]), ("exp_avg_sq", state["second"][name])):
                self._learned.adam.state[value][key].copy_(saved)
            self._learned.adam.state[value]["step"].copy_(state["adam_steps"])
        self.steps, self.meta_updates, self._part = int(state["steps"]), int(state["meta_updates"]), int(state["part"])
        self.meta_lr, self._looked = float(state["meta_lr"]), (self.meta_updates, self._learned.taken)
        self._learned.moved.zero_()
        for name, value in self.network.parameters().items() if self._part else ():
            value.grad = state["grads"][name].to(value, copy=True) if name in state["grads"] else None
        source: Any = self.meta_batches
        if state["meta_batches"] is not None and hasattr(source, "load_state_dict"):
            source.load_state_dict(state["meta_batches"])

    def _autocast(self, dtype: torch.dtype | None) -> torch.autocast | nullcontext[None]:
        return nullcontext() if dtype is None else torch.autocast(self.network.device.type, dtype=dtype)

    def _head_step(
        self, batch: Batch, x_meta: Inputs | None, y_meta: Tensor, features: Tensor | None, *, lr: float | Tensor
    ) -> Hypergradient:
        settings, head = self.settings, self.network.head_values
        if features is None:
            assert x_meta is not None
            mode = meta_mode(self.network.inner, settings.meta_bn)
            with torch.set_grad_enabled(settings.leak_meta_grad), mode, self._autocast(self.amp):
                features = read_features(self.network, x_meta, inner=True)[0]
        y_meta, kept = labelled(y_meta, len(features), self.ignore_index)
        held_out = HeldOut(rows_of(features, kept), y_meta)
        if settings.leak_meta_grad:
            with torch.autocast(self.network.device.type, enabled=False):
                value = leaked_value(self._learned, self.objective, head=head, batch=batch, held_out=held_out, lr=lr)
            # The loss of a part is divided by the number of parts; this comes once for all of them.
            self._leaked = value * (self.accumulate if settings.reduction == "mean" else 1)
        return meta_step(
            self._learned, self.objective, head=head, batch=batch, held_out=held_out, lr=lr, exchange=self.exchange
        )

    def _full_hypergradient(
        self,
        batch: Batch,
        kept: Tensor | None,
        x: Inputs,
        x_meta: Inputs,
        y_meta: Tensor,
        *,
        lr: float | Tensor,
        random: Tensor | None,
    ) -> Hypergradient:
        device, params, amp = self.network.device, self.network.parameters(), self.amp
        if amp is None and torch.is_autocast_enabled(device.type):
            # A trainer's autocast around the step is for forward passes, not for the objective and its derivative.
            amp = torch.get_autocast_dtype(device.type)
        y_meta, meta_kept = labelled(y_meta, y_meta.numel(), self.ignore_index)

        def tangent_of(along: Params) -> Tensor:
            with self._autocast(amp), replayed_randomness(random, device):
                return rows_of(logits_tangent(self.network, x, params, along), kept)

        def meta_logits_of(virtual: Params) -> Tensor:
            with meta_mode(self.network.inner, self.settings.meta_bn), self._autocast(amp):
                return rows_of(call_at(self.network, virtual, x_meta), meta_kept)

        return full_hypergradient(
            self.regularizer,
            self.objective,
            self.hyper,
            params=params,
            head=self.network.head_names(),
            batch=batch,
            tangent_of=tangent_of,
            meta_logits_of=meta_logits_of,
            meta_labels=y_meta,
            step=self.settings.virtual_step(lr),
            exchange=self.exchange,
            loss_scale=self._loss_scale(),
        )

    def _loss_scale(self) -> float | Tensor:
        # Scaling a one reads the scale without waiting for the device, as `get_scale` would.
        return 1.0 if self.scaler is None else self.scaler.scale(torch.ones((), device=self.network.device))

    def _backward(self, loss: Tensor) -> bool:
        """Add the gradient of one part; after the last, clip and step. Returns whether it was the last."""
        share = loss / self.accumulate if self.settings.reduction == "mean" else loss
        # A trainer's backward scales by itself, and its optimizer unscales.
        scaler = self.scaler if self.backward is None else None
        if self.backward is not None:
            self.backward(share)
        else:
            (share if scaler is None else scaler.scale(share)).backward()
        self._part = (self._part + 1) % self.accumulate
        if self._part:
            return False
        if self.settings.clip is not None:
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            # What a trainer has yet to unscale is clipped at a limit that is scaled likewise.
            limit = self.settings.clip * (1.0 if scaler is not None else self._loss_scale())
            nn.utils.clip_grad_norm_(list(self.network.parameters().values()), float(limit))
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.steps += 1
        return True

    def _monitor(self, value: Tensor) -> None:
        """Refuse a first held-out value that is not finite; later look, now and then, for trouble and warn of it."""
        # With a scaler a full virtual step overflows until the scale is found.
        scaled = self.scaler is not None and self.settings.lookahead == "full"
        if not self.monitor_every or capturing(value.device):
            return
        if self.meta_updates == 1 and not scaled and not math.isfinite(value):
            self.meta_updates = 0
            raise ValueError(
                f"MetaLearner: the objective on the first held-out batch must be finite, got {float(value)}. "
                "Look for NaN or inf in the held-out data."
            )
        if self.meta_updates % self.monitor_every:
            return
        updates, taken = self.meta_updates - self._looked[0], self._learned.taken - self._looked[1]
        pace, trouble = float(self._learned.moved) / max(taken, 1), {}
        # A scaler looks for the largest scale that does not overflow, and so finds some that do.
        if taken < updates and (self.scaler is None or 2 * taken < updates):
            trouble["missed"] = (
                f"{updates - taken} of the last {updates} meta updates changed nothing, as their hypergradient was not finite. "
                "Look for NaN or inf in the held-out data."
            )
        if said := self.regularizer.alarm({name: float(number) for name, number in self._values.items()}):
            trouble["runaway"] = said
        if taken and pace < FROZEN:
            trouble["frozen"] = (
                f"the hyper-parameters are frozen: Adam moved them by {pace:.2g} of its learning rate in each of the last "
                f"{updates} meta updates. Use betas (0.5, 0.9), a smaller `eps`, or a constant `lookahead_lr`."
            )
        for kind in trouble.keys() - self._warned:
            warnings.warn(f"MetaLearner: {trouble[kind]}", MetaWarning, stacklevel=4)
        self._looked, self._warned = (self.meta_updates, self._looked[1] + taken), frozenset(trouble)
        self._learned.moved.zero_()


def _finite(logits: Tensor) -> Tensor:
    """The logits, refused where they are NaN or inf; on a GPU a look would wait."""
    if logits.device.type == "cpu" and not bool((logits < math.inf).all()):
        raise ValueError(
            "MetaLearner: the network's `logits` must be finite, got NaN or inf. Look for such values in the input, or lower "
            "the learning rate."
        )
    return logits


def _current_lr(optimizer: torch.optim.Optimizer, weight: Tensor) -> float | Tensor:
    """Learning rate of the parameter group that holds ``weight`` (of the first group if none does)."""
    groups = [group for group in optimizer.param_groups if any(value is weight for value in group["params"])]
    lr: float | Tensor = (groups or optimizer.param_groups)[0]["lr"]
    return lr
