"""One training step: batch, forward, meta update where there is one, backward, clipping, optimizer.

The same lines run eagerly on any device and, captured once, as a CUDA graph. Nothing in them waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from calibrant.engine.average import WeightAverage
from calibrant.engine.batches import Batch, TrainBatches
from calibrant.engine.distributed import ALONE_GROUP, Group
from calibrant.engine.features import FeatureFunction
from calibrant.engine.graph import capture_step

Precision = Literal["bf16", "float32", "float64"]


class Objective(Protocol):
    """What a method makes of a batch; see `calibrant.engine.objectives`."""

    has_meta: bool
    # Whether `loss` is this process's part of the sum over processes, and not the whole.
    is_part: bool

    def begin_epoch(self, epoch: int) -> None:
        """Draw the epoch's randomness."""
        ...

    def learns_from_val(self) -> bool:
        """Whether `end_epoch` of the epoch that was begun learns from validation logits."""
        ...

    def end_epoch(self, logits: Tensor | None, labels: Tensor) -> None:
        """Count an epoch, and learn from validation logits; None where nothing asks for them."""
        ...

    def kept(self) -> Tensor | None:
        """Training examples still in use; None for all."""
        ...

    def inputs(self, batch: Batch) -> Tensor:
        """Images that enter the network (mixed ones for mixup)."""
        ...

    def feed(self) -> None:
        """Bring the next meta batch to the device, where there is one that does not lie there."""
        ...

    def meta_update(self, batch: Batch, features: Tensor, logits: Tensor) -> None:
        """Move the hyper-parameters by one step on held-out data; before the network's own step."""
        ...

    def loss(self, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Reduced training loss ``[]``; its gradient, summed over the processes, is that of the global batch."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a step or an epoch changes, by name."""
        ...


class TrainStep:
    """A step of one run, holding references to everything it changes.

    Args:
        model: The network, in training mode while it steps.
        forward: Images → (features, logits) of that network, possibly compiled.
        batches: Where batches come from.
        objective: What is minimised.
        optimizer: Optimizer of the network's parameters, its state already allocated.
        precision: Arithmetic of the forward pass.
        clip_norm: Largest norm of the gradient, or None.
        group: Processes that share a batch.
        average: Average of the weights that predicts, or None.
        watch: Average that meta batches go through, where it is another one.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        forward: FeatureFunction,
        batches: TrainBatches,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        clip_norm: float | None,
        group: Group = ALONE_GROUP,
        average: WeightAverage | None = None,
        watch: WeightAverage | None = None,
    ) -> None:
        self.model, self.forward, self.batches, self.objective, self.optimizer = model, forward, batches, objective, optimizer
        self.precision, self.clip_norm, self.group, self.average = precision, clip_norm, group, average
        named = {"average": average, "watch": watch}
        self.averages = {name: kept for name, kept in named.items() if kept is not None}
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)

    def feed(self, *, with_meta: bool) -> None:
        """Bring what the next step reads to the device, where it does not lie there; never part of a captured step."""
        self.batches.feed()
        if with_meta:
            self.objective.feed()

    def run(self, *, with_meta: bool) -> None:
        """Take one step on the next batch."""
        self.optimizer.zero_grad(set_to_none=True)
        batch = self.batches.next()
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            features, logits = self.forward(self.objective.inputs(batch))
        if self.precision == "bf16":
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
        kept |= {f"objective.{name}": value for name, value in self.objective.state().items()}
        kept |= {f"batches.{name}": value for name, value in self.batches.state().items()}
        for name, average in self.averages.items():
            kept |= {f"{name}.{key}": value for key, value in average.state().items()}
        return kept | {"loss_sum": self.loss_sum}


def steppers(step: TrainStep, *, capture: bool) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return functions that take a step without and with a meta update; captured as CUDA graphs if asked.

    A method without a meta update gets the same function twice.
    """

    def plain() -> None:
        step.run(with_meta=False)

    def meta() -> None:
        step.run(with_meta=True)

    has_meta = step.objective.has_meta
    runs = (plain, meta) if has_meta else (plain, plain)
    if capture:
        state = list(step.state().values())
        fast = capture_step(plain, state=state)
        runs = (fast, capture_step(meta, state=state) if has_meta else fast)
    if not step.batches.fed:
        return runs

    def feed_and_plain() -> None:
        step.feed(with_meta=False)
        runs[0]()

    def feed_and_meta() -> None:
        step.feed(with_meta=has_meta)
        runs[1]()

    return feed_and_plain, feed_and_meta
