"""A training loss with learnable hyper-parameters, improved on held-out batches inside the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from calibrant.engine.batches import Batch, MetaBatches
from calibrant.engine.evaluate import at_once
from calibrant.engine.hardware import Hardware
from calibrant.engine.network import FeatureFunction
from calibrant.engine.objective import MetaPlan, Objective
from calibrant.meta.lookahead import Batch as Seen
from calibrant.meta.network import following, meta_mode
from calibrant.meta.step import HeldOut, HyperParameters, leaked_value, meta_step


class Watched(NamedTuple):
    """A network as meta batches see it.

    Attributes:
        model: The module.
        forward: Images → (features, logits) of it.
        head: Its classifier.
        learns_from: Training images of each meta step that it learns BatchNorm's statistics from; 0 where it has them already.
    """

    model: nn.Module
    forward: FeatureFunction
    head: nn.Linear
    learns_from: int = 0


class MetaObjective(Objective):
    """Minimise a regularizer's loss, and move its hyper-parameters so that the next step lowers a held-out objective.

    Args:
        plan: What the method made of the recipe.
        learned: The hyper-parameters.
        head: The network's classifier.
        watched: The network that meta batches go through, whose classifier takes the look-ahead step: the one that is trained,
            or one with its averaged weights where those will make the predictions.
        batches: Meta batches.
        optimizer: The network's own, whose learning rate the look-ahead step may follow.
        reduction: How the training loss of a batch is reduced.
        hardware: Where the run is; its processes share look-ahead steps and the held-out objective of the global batches.
        schedule: Epoch → learning rate of the hyper-parameters, or None where it stays.
        learning: All of that in words and numbers, for a run's records.
    """

    is_part = True

    def __init__(
        self,
        plan: MetaPlan,
        learned: HyperParameters,
        *,
        head: nn.Linear,
        watched: Watched,
        batches: MetaBatches,
        optimizer: Optimizer,
        reduction: Literal["sum", "mean"],
        hardware: Hardware,
        schedule: Callable[[int], float] | None = None,
        learning: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__()
        self.has_meta, self.learning = not plan.frozen, dict(learning or {})
        self.plan, self.learned, self.hyper, self.head, self.watched = plan, learned, learned.params, head, watched
        self.batches, self.reduction, self.hardware, self.group = batches, reduction, hardware, hardware.group
        self._optimizer, self._schedule = optimizer, schedule
        self.gamma = self._gamma if hasattr(plan.regularizer, "gamma") else None
        self.value = torch.zeros((), device=head.weight.device)
        self._leaked: Tensor | None = None

    def begin_epoch(self, epoch: int) -> None:
        """Draw the epoch's meta batches and set the learning rate of the hyper-parameters."""
        if self._schedule is not None:
            self.learned.lr = self._schedule(epoch)
        self.batches.begin_epoch(epoch)

    def feed(self) -> None:
        """Bring the next meta batch to the device, where its images do not lie there."""
        self.batches.feed()

    def meta_update(self, batch: Batch, features: Tensor, logits: Tensor) -> None:
        """Look one step of the head ahead, and step the hyper-parameters down the held-out objective."""
        meta, lr, view = self.batches.next(), self._optimizer.param_groups[0]["lr"], self.watched
        if view.learns_from:
            self.follow(batch.images[: view.learns_from])
        seen, held_out = Seen(features, logits, batch.labels), HeldOut(self.features(meta.images), meta.labels)
        if self.plan.settings.leak_meta_grad:
            self._leaked = self._leak(seen, held_out, lr)
        head = dict(view.head.named_parameters())
        exchange = self.group.exchange
        found = meta_step(self.learned, self.plan.objective, head=head, batch=seen, held_out=held_out, lr=lr, exchange=exchange)
        self.value.copy_(found.value)

    @torch.no_grad()
    def follow(self, images: Tensor) -> None:
        """Let BatchNorm's statistics of the watched network follow its weights."""
        with following(self.watched.model), self.hardware.autocast():
            self.watched.model(images)

    def features(self, images: Tensor) -> Tensor:
        """Features of meta images ``[B, D]``; in pieces where the network treats each image by itself."""
        view, meta_bn, leaks = self.watched, self.plan.settings.meta_bn, self.plan.settings.leak_meta_grad
        alone = meta_bn == "frozen" and not leaks
        pieces = images.split(at_once(images[0], view.model, images.device)) if alone else (images,)
        with torch.set_grad_enabled(leaks), meta_mode(view.model, meta_bn), self.hardware.autocast():
            seen = torch.cat([view.forward(piece)[0] for piece in pieces])
        return seen.to(self.head.weight.dtype)

    def loss(self, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Return the regularizer's loss ``[]`` with the hyper-parameters as constants, summed over one's own samples.

        Samples are not gathered first: what a regularizer reads of the head would then be counted once a process. After a meta
        update that leaks, the gradient of what is returned has the leaked one in it, though the value has not.
        """
        head = dict(self.head.named_parameters())
        values = self.plan.regularizer.loss(self.hyper, features.detach(), logits, batch.labels, head)
        total = values.sum() if self.reduction == "sum" else values.mean() / self.group.world_size
        leaked, self._leaked = self._leaked, None
        return total if leaked is None else total + (leaked - leaked.detach())

    def state(self) -> dict[str, Tensor]:
        """Return hyper-parameters, their optimizer's state and the meta cursor, by name."""
        batches = {f"batches.{name}": value for name, value in self.batches.state().items()}
        return self.learned.state() | {"value": self.value} | batches

    def _gamma(self, features: Tensor) -> Tensor:
        rule: Callable[[Mapping[str, Tensor], Tensor], Tensor] = self.plan.regularizer.gamma  # type: ignore[attr-defined]
        return rule(self.hyper, features).detach()

    def _leak(self, seen: Seen, held_out: HeldOut, lr: float | Tensor) -> Tensor:
        """Value whose gradient leaks; it waits for that of the loss, so that one backward pass makes both."""
        gather, share = self.group.gather, 1 / self.group.world_size
        # Features are one's own part of the batch, but the head enters whole in every process: its gradient is divided, and
        # by this sum its value is not rounded.
        head = {name: value.detach() + share * (value - value.detach()) for name, value in self.head.named_parameters()}
        batch, others = Seen(*map(gather, seen)), HeldOut(*map(gather, held_out))
        return leaked_value(self.learned, self.plan.objective, head=head, batch=batch, held_out=others, lr=lr)
