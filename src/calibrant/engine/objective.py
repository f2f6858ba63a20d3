"""What a method trains with: its plan, made from the facts of a run, and the objective that a step minimises.

Every objective has every hook; most do nothing. Hyper-parameters learned on held-out data are in `meta_objective`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.engine.batches import Batch, TrainBatches
from calibrant.engine.hardware import ALONE_GROUP, Group
from calibrant.losses import ConfidencePruner
from calibrant.losses import Objective as LossFunction

if TYPE_CHECKING:
    from calibrant.engine.loop import TrainStep


class Facts(NamedTuple):
    """What a method may need to know of a run: training examples, how losses are reduced, the preset."""

    num_train: int
    reduction: Literal["sum", "mean"]
    preset: Literal["default", "paper"] = "default"


@dataclass(frozen=True)
class LossPlan:
    """Train with a loss.

    Attributes:
        loss: The loss, reduced.
        mixup_alpha: Parameter of mixup's Beta distribution, or None.
        pruner: Drops training examples between epochs, or None.
    """

    loss: nn.Module
    mixup_alpha: float | None = None
    pruner: ConfidencePruner | None = None
    watched: ClassVar[bool] = False

    def build(self, step: TrainStep) -> Objective:
        """Return the objective of a run's step."""
        device, group = step.hardware.device, step.hardware.group
        loss = self.loss.to(device)
        if self.mixup_alpha is not None:
            return MixupObjective(loss, step.batches, alpha=self.mixup_alpha, device=device, group=group)
        return LossObjective(loss, pruner=None if self.pruner is None else self.pruner.to(device), group=group)


class Objective:
    """What a step minimises, and what is told to it around the step. This one's hooks do nothing.

    Attributes:
        has_meta: Whether some steps also move hyper-parameters.
        every: Steps from one of those to the next.
        is_part: Whether `loss` is this process's part of the sum over processes, and not the whole.
        gamma: Features → the gamma of every sample, for methods that have one.
    """

    has_meta = False
    every = 1
    is_part = False
    gamma: Callable[[Tensor], Tensor] | None = None

    @property
    def learning(self) -> dict[str, object]:
        """How hyper-parameters are learned, as plain data; empty where none are."""
        return {}

    def begin_epoch(self, epoch: int) -> None:
        """Draw the epoch's randomness."""

    def learns_from_val(self) -> bool:
        """Whether `end_epoch` of the epoch that was begun learns from validation logits."""
        return False

    def end_epoch(self, logits: Tensor | None, labels: Tensor) -> None:
        """Count an epoch, and learn from validation logits; None where nothing asks for them."""

    def kept(self) -> Tensor | None:
        """Training examples still in use; None for all."""
        return None

    def inputs(self, batch: Batch) -> Tensor:
        """Images that enter the network."""
        return batch.images

    def feed(self) -> None:
        """Bring the next meta batch to the device, where there is one that does not lie there."""

    def meta_update(self, batch: Batch, features: Tensor, logits: Tensor) -> None:
        """Move the hyper-parameters by one step on held-out data; before the network's own step."""

    def loss(self, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Reduced training loss ``[]``; its gradient, summed over the processes, is that of the global batch."""
        raise TypeError(f"{type(self).__name__} must define `loss(batch, features, logits)`.")

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a step or an epoch changes, by name."""
        return {}


class LossObjective(Objective):
    """Minimise a reduced loss of `calibrant.losses`, and feed back to it what it asks for.

    The loss and what it remembers see the batch of all processes.
    """

    def __init__(self, loss: nn.Module, *, pruner: ConfidencePruner | None = None, group: Group = ALONE_GROUP) -> None:
        self.module, self.pruner, self.group = loss, pruner, group
        self._members = [member for member in loss.modules() if isinstance(member, LossFunction)]
        self._indexed = any("indices" in member.inputs for member in self._members)
        self._epoch = 0

    def begin_epoch(self, epoch: int) -> None:
        """Tell the loss which epoch begins."""
        self._epoch = epoch
        for member in self._members:
            member.set_epoch(epoch)

    def learns_from_val(self) -> bool:
        """Whether a part of the loss learns from validation logits at the end of this epoch."""
        return any(member.needs_validation(self._epoch) for member in self._members)

    def end_epoch(self, logits: Tensor | None, labels: Tensor) -> None:
        """Show validation ``logits`` to what learns from them; let the pruner prune."""
        for member in self._members:
            if member.needs_validation(self._epoch):
                assert logits is not None
                member.observe_validation(logits, labels)
        if self.pruner is not None:
            self.pruner.end_epoch()

    def kept(self) -> Tensor | None:
        """Return the training examples still in use, or None for all."""
        return None if self.pruner is None else self.pruner.kept_indices()

    def loss(self, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Return the loss ``[]`` of the batch."""
        logits, labels, examples = self.group.gather(logits), self.group.gather(batch.labels), self.group.gather(batch.examples)
        value: Tensor = self.module(logits, labels, **({"indices": examples} if self._indexed else {}))
        for member in self._members:
            member.observe_batch(logits.detach(), labels, indices=examples)
        if self.pruner is not None:
            self.pruner.update(logits.detach(), indices=examples)
        return value

    def state(self) -> dict[str, Tensor]:
        """Return the loss's and the pruner's own buffers, by name."""
        kept = {f"loss.{name}": value for name, value in self.module.named_buffers()}
        if self.pruner is not None:
            kept |= {f"pruner.{name}": value for name, value in self.pruner.named_buffers()}
        return kept


class MixupObjective(LossObjective):
    """Minimise a loss on convex combinations of pairs of examples, one mixing weight a batch.

    An example may be mixed with one of another process. ``alpha`` is that of the weight's Beta distribution; 0 mixes nothing.
    """

    def __init__(
        self, loss: nn.Module, batches: TrainBatches, *, alpha: float, device: torch.device, group: Group = ALONE_GROUP
    ) -> None:
        if not 0 <= alpha < math.inf:
            raise ValueError(f"train: `method.options.alpha` must be a finite number >= 0, got {alpha!r}.")
        super().__init__(loss, group=group)
        self.alpha, self.seed = alpha, batches.seed
        steps, size = batches.steps_per_epoch, batches.batch_size
        self._weight = torch.ones(steps, device=device)
        self._pairs = torch.zeros(steps, size, dtype=torch.int64, device=device)

    def begin_epoch(self, epoch: int) -> None:
        """Draw the epoch's mixing weights and pairings from ``(seed, epoch)``."""
        super().begin_epoch(epoch)
        draw = np.random.default_rng((self.seed, epoch, 7))
        steps, size = self._pairs.shape
        if self.alpha > 0:
            self._weight.copy_(torch.from_numpy(draw.beta(self.alpha, self.alpha, steps)))
        self._pairs.copy_(torch.from_numpy(draw.random((steps, size)).argsort(1)))

    def inputs(self, batch: Batch) -> Tensor:
        """Return the mixed images."""
        weight, pairs = self._of(batch)
        own = pairs.chunk(self.group.world_size)[self.group.rank]
        return weight * batch.images + (1 - weight) * self.group.gather(batch.images)[own]

    def loss(self, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Return the mixture of the losses against both labels."""
        weight, pairs = self._of(batch)
        logits, labels = self.group.gather(logits), self.group.gather(batch.labels)
        first, second = self.module(logits, labels), self.module(logits, labels[pairs])
        value: Tensor = weight * first + (1 - weight) * second
        return value

    def _of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        row = batch.step.view(1)
        return self._weight.index_select(0, row).squeeze(0), self._pairs.index_select(0, row).squeeze(0)
