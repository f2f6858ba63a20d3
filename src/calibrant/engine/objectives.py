"""What each kind of method does with a batch: a plain loss, mixed examples, or a loss steered by meta-learning."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from calibrant.engine.batches import Batch


class LossObjective:
    """Minimise a loss of `calibrant.losses`.

    Args:
        loss: ``loss(logits, labels)``, reduced; one that needs the samples' positions has "indices" among its inputs.
    """

    has_meta = False

    def __init__(self, loss: nn.Module) -> None:
        self.module = loss
        self._indexed = "indices" in getattr(loss, "inputs", ())

    def inputs(self, batch: Batch) -> Tensor:
        """Return the images as they are."""
        return batch.images

    def meta_update(self, batch: Batch, features: Tensor, logits: Tensor) -> None:
        """Nothing to move."""

    def loss(self, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Return the loss ``[]`` of the batch."""
        extra = {"indices": batch.examples} if self._indexed else {}
        value: Tensor = self.module(logits, batch.labels, **extra)
        return value

    def state(self) -> Sequence[Tensor]:
        """Return the loss's own buffers."""
        return list(self.module.buffers())


class MixupObjective(LossObjective):
    """Minimise a loss on convex combinations of pairs of examples, one mixing weight a batch.

    Args:
        loss: ``loss(logits, labels)``, reduced.
        alpha: Parameter of the Beta distribution of the mixing weight.
        steps_per_epoch: Batches of an epoch.
        batch_size: Examples of a batch on this process.
        device: Where batches live.
        seed: Seed of weights and pairs.
    """

    def __init__(
        self, loss: nn.Module, *, alpha: float, steps_per_epoch: int, batch_size: int, device: torch.device, seed: int
    ) -> None:
        super().__init__(loss)
        self.alpha, self.seed = alpha, seed
        self._weight = torch.ones(steps_per_epoch, device=device)
        self._pairs = torch.zeros(steps_per_epoch, batch_size, dtype=torch.int64, device=device)

    def begin_epoch(self, epoch: int) -> None:
        """Draw the epoch's mixing weights and pairings from ``(seed, epoch)``."""
        import numpy as np

        draw = np.random.default_rng((self.seed, epoch, 7))
        steps, size = self._pairs.shape
        self._weight.copy_(torch.from_numpy(draw.beta(self.alpha, self.alpha, steps)))
        self._pairs.copy_(torch.from_numpy(draw.random((steps, size)).argsort(1)))

    def inputs(self, batch: Batch) -> Tensor:
        """Return the mixed images."""
        weight, pairs = self._of(batch)
        return weight * batch.images + (1 - weight) * batch.images[pairs]

    def loss(self, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Return the mixture of the losses against both labels."""
        weight, pairs = self._of(batch)
        first, second = self.module(logits, batch.labels), self.module(logits, batch.labels[pairs])
        value: Tensor = weight * first + (1 - weight) * second
        return value

    def _of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        row = batch.step.view(1)
        return self._weight.index_select(0, row).squeeze(0), self._pairs.index_select(0, row).squeeze(0)
