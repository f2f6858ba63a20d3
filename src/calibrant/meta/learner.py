"""`MetaLearner`: meta-regularization for your own training loop, the batches that it draws, and the network as it sees it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, SequentialSampler

from calibrant.core.checks import check_count, lookup
from calibrant.core.collect import find_logits, move, split_batch
from calibrant.meta.regularizers import GammaFocal, GammaNet, Params, Regularizer, Values
from calibrant.meta.step import (
    PRESETS,
    Batch,
    HeldOut,
    Hypergradient,
    MetaObjective,
    Network,
    find_network,
    full_hypergradient,
    head_hypergradient,
    leaked_value,
    make_objective,
    meta_mode,
    own_randomness,
    set_learning_rate,
    settings_of,
    total_norm,
    untracked,
)

__all__ = ["LoaderBatches", "MetaBatches", "MetaLearner", "MetaWarning", "StepInfo"]

Inputs: TypeAlias = "Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]"
# Mean |step| / lr of Adam below which hyper-parameters count as frozen: noise gives 0.2 with betas (0.9, 0.999) and 0.6 with
# (0.5, 0.9), a gradient that fell a hundredfold within Adam's memory less than 0.01.
FROZEN = 0.01


class MetaBatches(Iterator[tuple[Any, Tensor]]):
    """Endless batches of held-out tensors.

    Every pass takes a new order. Samples that do not fill a batch at its end wait for another pass: the calibration error of
    a few samples is noise.

    Args:
        x: Inputs ``[N, ...]``, or a mapping of the model's keyword arguments to such tensors.
        labels: Class indices ``[N]``.
        batch_size: Samples of a batch; all N where there are fewer.
        generator: Source of the orders. Under distributed training seed it differently in every process, or give every
            process its own part of the data.

    Example:
        >>> batches = MetaBatches(torch.arange(5.0), torch.arange(5), batch_size=2)
        >>> x, labels = next(batches)
        >>> x.shape, bool((x == labels).all())
        (torch.Size([2]), True)
    """

    def __init__(
        self,
        x: Tensor | Mapping[str, Tensor],
        labels: Tensor,
        *,
        batch_size: int = 1024,
        generator: torch.Generator | None = None,
    ) -> None:
        check_count(batch_size, where="MetaBatches", name="batch_size")
        for part in x.values() if isinstance(x, Mapping) else (x,):
            if len(part) != len(labels) or len(labels) == 0:
                raise ValueError(f"MetaBatches: `labels` must be [N] = [{len(part)}] with N >= 1, got {list(labels.shape)}.")
        self.x, self.labels, self.batch_size = x, labels, min(batch_size, len(labels))
        self.generator = generator if generator is not None else torch.Generator().manual_seed(torch.initial_seed())
        self._order = torch.empty(0, dtype=torch.int64)
        self._place = 0

    def __next__(self) -> tuple[Any, Tensor]:
        if self._place + self.batch_size > len(self._order):
            self._order, self._place = torch.randperm(len(self.labels), generator=self.generator), 0
        index = self._order[self._place : self._place + self.batch_size]
        self._place += self.batch_size
        x = {name: part[index] for name, part in self.x.items()} if isinstance(self.x, Mapping) else self.x[index]
        return x, self.labels[index]

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to draw the same batches."""
        return {"order": self._order, "place": self._place, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken."""
        self._order, self._place = state["order"].cpu().clone(), int(state["place"])
        self.generator.set_state(state["generator"].cpu())


class LoaderBatches(Iterator[tuple[Any, Tensor]]):
    """Endless batches of a `DataLoader`, which starts again in every pass; batches shorter than its ``batch_size`` are skipped.

    ``itertools.cycle`` would replay one cached pass for ever.

    Args:
        loader: Loader of the held-out data, which must shuffle. Its batches are (x, labels), or mappings of the model's keyword
            arguments with the labels under "labels". A ``DistributedSampler`` gets the number of every new pass.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        if isinstance(loader.sampler, SequentialSampler):
            raise ValueError(
                "LoaderBatches: `loader` must shuffle, got a sequential one. Pass `DataLoader(..., shuffle=True)`."
            )
        self.loader, self.passes, self._taken = loader, 0, 0
        self._current: Iterator[Any] = iter(())

    def __next__(self) -> tuple[Any, Tensor]:
        for begin in (False, True):
            if begin:
                self._begin()
            for batch in self._current:
                self._taken += 1
                x, labels = split_batch(batch, where="LoaderBatches")
                if self.loader.batch_size is None or len(labels) >= self.loader.batch_size:
                    return x, labels
        raise ValueError(
            f"LoaderBatches: `loader` must hold at least one full batch of {self.loader.batch_size}, got none in a whole pass. "
            "Lower its `batch_size`."
        )

    def _begin(self) -> None:
        sampler: Any = self.loader.sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.passes)
        self.passes, self._taken = self.passes + 1, 0
        self._current = iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of passes begun, and of batches taken in the last."""
        return {"passes": self.passes, "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken if the sampler can repeat a pass (`set_epoch`), else with the next pass."""
        self.passes, self._current, self._taken = int(state["passes"]), iter(()), 0
        if state["taken"] and hasattr(self.loader.sampler, "set_epoch"):
            # What the samples of the batches passed over draw was drawn before.
            with torch.random.fork_rng(devices=[]):
                self.passes -= 1
                self._begin()
                for _ in range(int(state["taken"])):
                    next(self._current, None)
            self._taken = int(state["taken"])


def labelled_rows(labels: Tensor, ignore_index: int | None, *values: Tensor) -> tuple[Tensor, ...]:
    """Labels, one for each row of ``values [N, ...]``, and these, without the rows to ignore (for which it waits)."""
    rows = len(values[0])
    if labels.ndim > 1 and labels.numel() == rows:
        labels = labels.reshape(-1)
    if ignore_index is None:
        return labels, *values
    if list(labels.shape) != [rows]:
        got = list(labels.shape)
        raise ValueError(f"MetaLearner: `labels` must be one for each of {rows} rows of logits, got {got}. Shift both alike.")
    kept = (labels.long() != ignore_index).nonzero().squeeze(1)
    return labels[kept], *(value.index_select(0, kept) for value in values)


def read_features(
    network: Network, x: Inputs, *, params: Values | None = None, inner: bool = False, verify: bool = False
) -> tuple[Tensor, Tensor]:
    """Run the model and return the input of its head, ``[B, d]``, and its logits, ``[B, C]``; of tokens one row each.

    ``params`` replace the model's own; ``inner`` calls the module inside the wrappers, which are for training passes only;
    ``verify`` raises if the head's output is not the model's (and waits for the device).
    """
    seen: list[tuple[Tensor, Tensor]] = []
    args = () if isinstance(x, Mapping) else tuple(x) if isinstance(x, tuple | list) else (x,)
    kwargs = dict(x) if isinstance(x, Mapping) else {}
    with network.head.register_forward_hook(lambda module, given, made: seen.append((given[0], made))):
        if params is not None:
            output = functional_call(network.inner, dict(params), args, kwargs)
        else:
            output = (network.inner if inner else network.model)(*args, **kwargs)
    logits = find_logits(output, where="MetaLearner").flatten(0, -2)
    where = f"MetaLearner: `head` must be the layer whose output the model returns, but `{network.head_name}`"
    if len(seen) != 1:
        raise ValueError(
            f"{where} ran {len(seen)} times. Name the last linear layer; if the model was compiled and called before, call "
            "`torch.compiler.reset()`."
        )
    features, made = (value.flatten(0, -2) for value in seen[0])
    if len(features) != len(logits):
        raise ValueError(f"{where} takes {list(seen[0][0].shape)}, not [B, d]. Pool or flatten before it.")
    # Trainers of mixed precision widen what the model returns, which does not change a number. NaN is for losses to refuse.
    if verify and not torch.equal(made.detach().to(logits.dtype).nan_to_num(), logits.detach().nan_to_num()):
        raise ValueError(f"{where} makes something else. Name the last linear layer, and return its output unchanged.")
    return features, logits


def logits_tangent(network: Network, x: Inputs, params: Values, along: Values) -> Tensor:
    """Derivative ``[B, C]`` of the logits at ``params`` along a direction, by one forward-mode pass.

    Running statistics stay as they are. Raises ``NotImplementedError`` if a layer has no forward-mode derivative.
    """
    # Fused attention kernels have no forward-mode derivative; the plain one has, and gives the same numbers.
    with (
        torch.no_grad(),
        untracked(network.inner),
        sdpa_kernel(SDPBackend.MATH),
        warnings.catch_warnings(),
        forward_ad.dual_level(),
    ):
        # The first use of forward mode makes PyTorch 2.13 load rules by `torch.jit.script`, which warns that it is deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        duals = {name: forward_ad.make_dual(value.detach(), along[name].to(value.dtype)) for name, value in params.items()}
        logits = read_features(network, x, params=duals)[1]
        tangent = forward_ad.unpack_dual(logits).tangent
        return torch.zeros_like(logits) if tangent is None else tangent


def random_state(device: torch.device) -> Tensor | None:
    """State of the random numbers of ``device``; None while a CUDA graph is captured, where it cannot be read."""
    if device.type != "cuda":
        return torch.get_rng_state()
    return None if torch.cuda.is_current_stream_capturing() else torch.cuda.get_rng_state(device)


@contextmanager
def replayed_randomness(state: Tensor | None, device: torch.device) -> Iterator[None]:
    """Draw the same dropout masks as when `random_state` gave ``state``; the present state is put back."""
    with nullcontext() if state is None else own_randomness(device):
        if state is not None and device.type == "cuda":
            torch.cuda.set_rng_state(state, device)
        elif state is not None:
            torch.set_rng_state(state)
        yield


class MetaWarning(RuntimeWarning):
    """The hyper-parameters ran away or froze; training goes on."""


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

    `step` replaces a training loop's forward, backward and optimizer step. To keep your own, call `meta_update` between
    forward and backward, and minimise `loss`.

    Args:
        model: Any module that ends in an ``nn.Linear``; also wrapped in ``DistributedDataParallel``.
        optimizer: Any optimizer of its parameters, or of those you train.
        regularizer: "gamma-focal", "unitwise-l2", "label-smoothing", "label-smoothing-per-class", or a `Regularizer`.
        objective: What meta updates minimise: "sece", "dece", "skce", "nll", any other loss or penalty by name, a mapping of
            names to weights, or a function ``(logits, labels) -> []``.
        preset: "default" or "paper"; see `calibrant.meta.PRESETS`.
        head: Name of the last linear layer, or the layer; found if None.
        average: The network with averaged weights, if these will make the predictions: held-out data pass through it, and the
            look-ahead is of its head. You keep it up to date, for instance with ``torch.optim.swa_utils.AveragedModel``.
        average_share: Returns what the average takes of the weights after a step (one minus its decay), for a full look-ahead.
        bank: Held-out samples whose features are kept: the objective reads all of them, while each meta update passes only a
            batch through the network, which replaces the oldest. It needs an ``average``, whose features age slowly.
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
        monitor_every: Meta updates between two checks of the hyper-parameters, after one of the first held-out value; 0 never
            checks.
        generator: Source of the gamma-Net's random start.
        options: Fields of `calibrant.meta.MetaSettings` to override: ``lookahead``, ``lookahead_lr``, ``every``, ...

    Attributes:
        hyper: The hyper-parameters, name → value.
        bank: Features and labels of held-out data, the newest first; set it to None after a drop of the learning rate, and it
            fills anew.

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
        average: nn.Module | None = None,
        average_share: Callable[[], float | Tensor] | None = None,
        bank: int = 0,
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
        check_count(bank, where="MetaLearner", name="bank", least=0)
        chosen = lookup(PRESETS, preset, kind="preset")
        if isinstance(regularizer, str):
            regularizer = lookup(chosen.regularizers, regularizer, kind="regularizer")()
        self.regularizer, self.settings = regularizer, settings_of(chosen, options)
        self.objective = make_objective(objective, variants=chosen.objectives)
        self.network = find_network(model, head)
        self.shown = self.network if average is None else find_network(average, self.network.head_name)
        self.average_share = average_share
        self.group = process_group if process_group is not None else self.network.group
        self.full = self.settings.lookahead == "full"
        averaged, leaks = average is not None, self.settings.leak_meta_grad
        for wrong, rule in (
            (self.group is not None and ignore_index is not None, "`ignore_index` must not be given with several processes"),
            (
                self.full and averaged != (average_share is not None),
                "`average_share` must go with `average` and a full look-ahead",
            ),
            (bank and (self.full or not averaged), '`bank` must go with an `average` and lookahead="head"'),
            (leaks and (self.full or averaged), '`leak_meta_grad` must go with lookahead="head" and without `average`'),
        ):
            if wrong:
                raise ValueError(f"MetaLearner: {rule}.")
        self.optimizer, self.scaler, self.backward, self.amp = optimizer, scaler, backward, amp
        self.meta_batches = LoaderBatches(meta_batches) if isinstance(meta_batches, DataLoader) else meta_batches
        self.ignore_index, self.accumulate, self.monitor_every = ignore_index, accumulate, monitor_every
        self.hyper: Params = self._start(generator)
        self._lr = self.settings.meta_lr or regularizer.pace / float(regularizer.speed(self.hyper))
        self.adam = self._optimizer()
        self.steps, self.meta_updates, self._part = 0, 0, 0
        self._verified = False
        # Before the last forward pass, so that a full look-ahead repeats its dropout.
        self._random: Tensor | None = None
        self._leaked: Tensor | None = None
        self._bank_size = bank
        self.bank: HeldOut | None = None
        self._values: Mapping[str, Tensor] = {}
        # The monitor has warned of something that is not over.
        self._warned = False

    def _start(self, generator: torch.Generator | None) -> Params:
        """Draw the hyper-parameters, of the head's device and at least float32; all processes have the first one's."""
        head = self.network.head
        start = self.regularizer.init(head.in_features, head.out_features, bias=head.bias is not None, generator=generator)
        dtype = torch.promote_types(head.weight.dtype, torch.float32)
        found = {name: value.to(head.weight.device, dtype) for name, value in start.items()}
        if self.group is not None:
            for value in found.values():
                dist.broadcast(value, src=dist.get_global_rank(self.group, 0), group=self.group)
        return found

    def _optimizer(self) -> torch.optim.Adam:
        """Make the optimizer of the hyper-parameters; on CUDA its learning rate is a tensor."""
        values, captured = list(self.hyper.values()), _capturable(self.network.device)
        found = torch.optim.Adam(values, lr=self._lr, betas=self.settings.betas, eps=self.settings.eps, capturable=captured)
        if captured:
            found.param_groups[0]["lr"] = torch.tensor(self._lr, device=self.network.device)
        for value in values:
            # Adam would make its state in the first step; a captured one must find it in place.
            count = torch.zeros((), device=value.device if captured else "cpu")
            found.state[value] = {"step": count, "exp_avg": torch.zeros_like(value), "exp_avg_sq": torch.zeros_like(value)}
        return found

    @property
    def meta_lr(self) -> float:
        """Learning rate of the hyper-parameters; set it to follow a schedule. A captured step learns of it, too."""
        return self._lr

    @meta_lr.setter
    def meta_lr(self, lr: float) -> None:
        self._lr = lr
        set_learning_rate(self.adam, lr)

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
        features, logits = self.forward(x)
        if not self.due:
            loss = self.loss(features, logits, y)
            return StepInfo(loss.detach(), logits.detach(), values=self._values, stepped=self._backward(loss))
        if x_meta is None or y_meta is None:
            x_meta, y_meta = self.draw()
        loss, found = self.update_and_loss(features, logits, y, x_meta, y_meta, x=x)
        stepped = self._backward(loss)
        return StepInfo(loss.detach(), logits.detach(), found.value, found.norm(), self._values, stepped)

    def update_and_loss(
        self, features: Tensor, logits: Tensor, labels: Tensor, *held_out: Any, **more: Any
    ) -> tuple[Tensor, Hypergradient]:
        """Do `meta_update`, with its arguments, and `loss`, in the order of the settings; return both."""
        if self.settings.network_first:
            plain = self.loss(features, logits, labels)
            found = self.meta_update(features, logits, labels, *held_out, **more)
            return self._with_leak(plain), found
        found = self.meta_update(features, logits, labels, *held_out, **more)
        return self.loss(features, logits, labels), found

    def forward(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """Return the penultimate features ``[B, d]`` and the logits ``[B, C]`` of ``x``, with their graph; tokens are rows."""
        self.remember_randomness()
        # Compiled code frees what a second backward pass through its graph needs, so where there is one the plain module runs.
        with self._autocast(self.amp):
            seen = read_features(self.network, x, inner=self.full and self.network.group is None, verify=not self._verified)
        self._verified = True
        return seen

    def remember_randomness(self) -> None:
        """Keep the random state: a full look-ahead repeats the dropout of the forward pass to come."""
        self._random = random_state(self.network.device) if self.full else None

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

        Returns:
            Value of the objective and hypergradient.
        """
        if y_meta is None or (x_meta is None and (self.full or held_out is None)) or (self.full and x is None):
            wanted = "`x`, `x_meta` and `y_meta`" if self.full else "`y_meta` and `x_meta` (or `held_out`)"
            raise ValueError(f"MetaLearner.meta_update: {wanted} must be given for this look-ahead, got nothing.")
        kept, features, logits = labelled_rows(labels, self.ignore_index, features, logits)
        batch = Batch(features, logits, kept)
        if self.full:
            found = self._full_hypergradient(batch, labels, x, x_meta, y_meta)
        else:
            found = self._head_hypergradient(batch, self._held_out(x_meta, y_meta, held_out))
        self.move(found.grads)
        self.meta_updates += 1
        with torch.no_grad():
            self._values = self.regularizer.summary(self.hyper, features=features.detach(), head=self.network.head_values)
        self._monitor(found.value)
        return found

    @torch.no_grad()
    def move(self, grads: Values) -> None:
        """Take Adam's step down ``grads`` and project; where they are not finite (an overflow, a bad batch) nothing changes."""
        finite = torch.isfinite(total_norm(grads))
        for name, value in self.hyper.items():
            value.grad = grads[name]
        state = list(self.tensors().values())
        before = [value.clone() for value in state]
        self.adam.step()
        for value, old in zip(state, before, strict=True):
            torch.where(finite, value, old, out=value)
        for name, allowed in self.regularizer.project(self.hyper).items():
            self.hyper[name].copy_(allowed)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that `move` changes, by name; the hyper-parameters themselves come first."""
        kept = {f"hyper.{name}": value for name, value in self.hyper.items()}
        for name, value in self.hyper.items():
            kept |= {f"adam.{name}.{key}": entry for key, entry in self.adam.state[value].items()}
        return kept

    def loss(self, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the training loss ``[]`` with the hyper-parameters as they are, to minimise by the network's parameters.

        With ``leak_meta_grad`` its gradient, though not its value, includes what the last meta update leaks.
        """
        labels, features, logits = labelled_rows(labels, self.ignore_index, features, logits)
        with torch.autocast(logits.device.type, enabled=False):
            values = self.regularizer.loss(self.hyper, features.detach(), logits, labels, self.network.head_values)
        total = values.sum() if self.settings.reduction == "sum" else values.mean()
        return self._with_leak(total)

    def _with_leak(self, loss: Tensor) -> Tensor:
        """Add the gradient that the last meta update leaks, if it does, to that of the loss; its value stays."""
        leaked, self._leaked = self._leaked, None
        if leaked is None:
            return loss
        # A mean is divided by the number of parts and of processes; this comes once for all of them.
        processes = 1 if self.group is None else dist.get_world_size(self.group)
        leaked = leaked * (self.accumulate * processes if self.settings.reduction == "mean" else 1)
        return loss + (leaked - leaked.detach())

    def draw(self) -> tuple[Inputs, Tensor]:
        """Return the next meta batch of ``meta_batches``, on the model's device and of its type; raises without them."""
        if self.meta_batches is None:
            raise ValueError(
                f"MetaLearner.step: `x_meta` and `y_meta` must be given when a meta update is due (every "
                f"{self.settings.every} steps), got nothing. Pass them, or `meta_batches=MetaBatches(...)` to the learner."
            )
        x, labels = move(next(self.meta_batches), self.network.device, self.network.head.weight.dtype)
        return x, labels

    def gamma_net(self) -> GammaNet:
        """Return a copy of the gamma-Net, to look at its heads or to keep; raises if the regularizer has none."""
        if not isinstance(self.regularizer, GammaFocal):
            raise ValueError(f"MetaLearner.gamma_net: the regularizer must be GammaFocal, got {self.regularizer!r}.")
        return self.regularizer.net(self.hyper)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs beyond the state of model, optimizer and scaler.

        Between the parts of an accumulated batch that includes the gradients of the parts so far.
        """
        params = self.network.parameters() if self._part else {}
        source: Any = self.meta_batches
        return {
            "tensors": {name: value.clone() for name, value in self.tensors().items()},
            "steps": self.steps,
            "meta_updates": self.meta_updates,
            "part": self._part,
            "meta_lr": self.meta_lr,
            "bank": None if self.bank is None else list(self.bank),
            "meta_batches": source.state_dict() if hasattr(source, "state_dict") else None,
            "grads": {name: value.grad.clone() for name, value in params.items() if value.grad is not None},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken; tensors are copied into place."""
        own, given = self.tensors(), state["tensors"]
        wanted, got = ({name: list(value.shape) for name, value in held.items()} for held in (own, given))
        if wanted != got:
            raise ValueError(f"MetaLearner: `state` must hold {wanted}, got {got}. Use the same regularizer and head.")
        for name, value in own.items():
            value.copy_(given[name])
        self.steps, self.meta_updates, self._part = int(state["steps"]), int(state["meta_updates"]), int(state["part"])
        self.meta_lr = float(state["meta_lr"])
        bank = state.get("bank")
        self.bank = None if bank is None else HeldOut(*(value.to(self.network.device) for value in bank))
        for name, value in self.network.parameters().items() if self._part else ():
            value.grad = state["grads"][name].to(value, copy=True) if name in state["grads"] else None
        source: Any = self.meta_batches
        if state["meta_batches"] is not None and hasattr(source, "load_state_dict"):
            source.load_state_dict(state["meta_batches"])

    def _autocast(self, dtype: torch.dtype | None) -> torch.autocast | nullcontext[None]:
        return nullcontext() if dtype is None else torch.autocast(self.network.device.type, dtype=dtype)

    def _current_lr(self) -> float | Tensor:
        """Learning rate of the parameter group that holds the head (of the first group if none does)."""
        groups, head = self.optimizer.param_groups, self.network.head.weight
        lr: float | Tensor = next((g for g in groups if any(value is head for value in g["params"])), groups[0])["lr"]
        return lr

    def _held_out(self, x_meta: Any, y_meta: Tensor, features: Tensor | None) -> HeldOut:
        """What the look-ahead of the head reads: features of the held-out input, by a pass through the network if need be."""
        if features is None:
            mode = meta_mode(self.shown.inner, self.settings.meta_bn)
            with torch.set_grad_enabled(self.settings.leak_meta_grad), mode, self._autocast(self.amp):
                features = read_features(self.shown, x_meta, inner=True)[0]
        labels, features = labelled_rows(y_meta, self.ignore_index, features)
        seen = HeldOut(features, labels)
        if self._bank_size:
            kept = [seen] if self.bank is None else [seen, self.bank]
            seen = self.bank = HeldOut(*(torch.cat(parts)[: self._bank_size] for parts in zip(*kept, strict=True)))
        return seen

    def _head_hypergradient(self, batch: Batch, held_out: HeldOut) -> Hypergradient:
        given: dict[str, Any] = {
            "batch": batch,
            "meta_features": held_out.features,
            "meta_labels": held_out.labels,
            "step": self.settings.virtual_step(self._current_lr()),
            "group": self.group,
        }
        if self.settings.leak_meta_grad:
            with torch.autocast(self.network.device.type, enabled=False):
                self._leaked = leaked_value(
                    self.regularizer, self.objective, self.hyper, head=self.network.head_values, **given
                )
        return head_hypergradient(self.regularizer, self.objective, self.hyper, head=self.shown.head_values, **given)

    def _full_hypergradient(self, batch: Batch, labels: Tensor, x: Any, x_meta: Any, y_meta: Tensor) -> Hypergradient:
        device, params, amp = self.network.device, self.network.parameters(), self.amp
        if amp is None and torch.is_autocast_enabled(device.type):
            # A trainer's autocast around the step is for forward passes, not for the objective and its derivative.
            amp = torch.get_autocast_dtype(device.type)

        def tangent_of(along: Params) -> Tensor:
            with self._autocast(amp), replayed_randomness(self._random, device):
                tangent = logits_tangent(self.network, x, params, along)
            return labelled_rows(labels, self.ignore_index, tangent)[1]

        def meta_logits_of(virtual: Params) -> Tensor:
            with meta_mode(self.shown.inner, self.settings.meta_bn), self._autocast(amp):
                logits = read_features(self.shown, x_meta, params=virtual)[1]
            return labelled_rows(y_meta, self.ignore_index, logits)[1]

        return full_hypergradient(
            self.regularizer,
            self.objective,
            self.hyper,
            params=params,
            head=self.network.head_names(),
            batch=batch,
            tangent_of=tangent_of,
            meta_logits_of=meta_logits_of,
            meta_labels=labelled_rows(y_meta, self.ignore_index, y_meta.reshape(-1))[0],
            step=self.settings.virtual_step(self._current_lr()),
            average=None if self.average_share is None else dict(self.shown.inner.named_parameters()),
            share=1.0 if self.average_share is None else self.average_share(),
            group=self.group,
            loss_scale=self._loss_scale(),
        )

    def _loss_scale(self) -> float | Tensor:
        # Scaling a one reads the scale without waiting for the device, as `get_scale` would.
        return 1.0 if self.scaler is None else self.scaler.scale(torch.ones((), device=self.network.device))

    def _backward(self, loss: Tensor) -> bool:
        """Add the gradient of one part; after the last, clip and step. Returns whether it was the last."""
        share = loss / self.accumulate if self.settings.reduction == "mean" else loss
        # A trainer's backward scales by itself, and its optimizer unscales.
        scaler = self.scaler if self.scaler is not None and self.backward is None else torch.amp.GradScaler(enabled=False)
        (self.backward or Tensor.backward)(scaler.scale(share))
        self._part = (self._part + 1) % self.accumulate
        if self._part:
            return False
        if self.settings.clip is not None:
            scaler.unscale_(self.optimizer)
            # What a trainer has yet to unscale is clipped at a limit that is scaled likewise.
            limit = self.settings.clip * (1.0 if self.backward is None else self._loss_scale())
            nn.utils.clip_grad_norm_(list(self.network.parameters().values()), float(limit))
        scaler.step(self.optimizer)
        scaler.update()
        self.steps += 1
        return True

    def _monitor(self, value: Tensor) -> None:
        """Refuse a first held-out value that is not finite; later look, now and then, for trouble and warn of it."""
        if not self.monitor_every:
            return
        # With a scaler, steps overflow until the scale is found.
        if self.meta_updates == 1 and self.scaler is None and not math.isfinite(value):
            raise ValueError(f"MetaLearner: the objective on the first held-out batch must be finite, got {float(value)}.")
        if self.meta_updates % self.monitor_every:
            return
        moments = [(entry["exp_avg"], entry["exp_avg_sq"].sqrt() + self.settings.eps) for entry in self.adam.state.values()]
        # Mean size of Adam's last step in units of its learning rate, after many steps.
        pace = float(torch.cat([(mean.abs() / spread).reshape(-1) for mean, spread in moments]).mean())
        trouble = self.regularizer.alarm({name: float(number) for name, number in self._values.items()})
        if pace < FROZEN:
            trouble = (
                f"the hyper-parameters are frozen: Adam moves them by {pace:.2g} of its learning rate in a meta update. Look "
                "for NaN or inf in the held-out data; else use betas (0.5, 0.9), a smaller `eps`, or a constant `lookahead_lr`."
            )
        if trouble and not self._warned:
            warnings.warn(f"MetaLearner: {trouble}", MetaWarning, stacklevel=4)
        self._warned = bool(trouble)


def _capturable(device: torch.device) -> bool:
    return device.type == "cuda"
