"""A training loss with learnable hyper-parameters, improved on held-out batches inside the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from calibrant.engine.batches import Batch, MetaBatches
from calibrant.engine.distributed import ALONE_GROUP, Group
from calibrant.engine.evaluate import at_once
from calibrant.engine.hardware import Precision
from calibrant.engine.network import FeatureFunction
from calibrant.engine.objective import Objective
from calibrant.engine.optim import allocate_state, set_learning_rate
from calibrant.meta.bn import MetaBN, following, meta_mode
from calibrant.meta.leak import leaked_value, own_gradient
from calibrant.meta.lookahead import head_hypergradient
from calibrant.meta.regularizers import Regularizer
from calibrant.meta.virtual import Batch as Seen
from calibrant.meta.virtual import Hypergradient, VirtualStep, clip_factor


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
        regularizer: The training loss with hyper-parameters.
        objective: ``(logits, labels) -> []``, what is minimised on meta batches.
        hyper: Values to start from, on the device.
        head: The network's classifier.
        watched: The network that meta batches go through, whose classifier takes the look-ahead step: the one that is trained,
            or one with its averaged weights where those will make the predictions.
        batches: Meta batches.
        step: The virtual step.
        optimizer: Builds the optimizer of the hyper-parameters.
        reduction: How the training loss of a batch is reduced.
        precision: Arithmetic of the network's forward pass.
        meta_bn: What BatchNorm does on meta batches; see `calibrant.meta.bn.meta_mode`.
        leak: Add the meta objective's gradient to the network's own, as the published code does by omission.
        frozen: Leave the hyper-parameters as they are.
        clip: Largest norm of the hypergradient, or None.
        rate: Gives the size of the virtual step at the time, where it follows the network's learning rate; else the step's own.
        schedule: Epoch → learning rate of the hyper-parameters, or None where it stays as the optimizer was built.
        group: Processes that share batches; the look-ahead step and the held-out objective are those of the global ones.
        learning: All of that in words and numbers, for a run's records.
    """

    is_part = True

    def __init__(
        self,
        regularizer: Regularizer,
        objective: Callable[[Tensor, Tensor], Tensor],
        *,
        hyper: dict[str, Tensor],
        head: nn.Linear,
        watched: Watched,
        batches: MetaBatches,
        step: VirtualStep,
        optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
        reduction: Literal["sum", "mean"],
        precision: Precision,
        meta_bn: MetaBN = "batch",
        leak: bool = False,
        frozen: bool = False,
        clip: float | None = None,
        rate: Callable[[], float | Tensor] | None = None,
        schedule: Callable[[int], float] | None = None,
        group: Group = ALONE_GROUP,
        learning: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__()
        self.has_meta = not frozen
        self.gamma = self._gamma if hasattr(regularizer, "gamma") else None
        self.learning = dict(learning or {})
        self.regularizer, self.objective, self.head = regularizer, objective, head
        self.watched = watched
        self.batches, self.step, self.reduction = batches, step, reduction
        self.precision, self.meta_bn, self.leak, self.group = precision, meta_bn, leak, group
        self._rate, self._clip, self._schedule = rate, clip, schedule
        self.hyper = {name: nn.Parameter(value) for name, value in hyper.items()}
        self.optimizer = allocate_state(optimizer(list(self.hyper.values())))
        self.value = torch.zeros((), device=head.weight.device)
        self._leaked: Tensor | None = None

    def begin_epoch(self, epoch: int) -> None:
        """Draw the epoch's meta batches and set the learning rate of the hyper-parameters."""
        if self._schedule is not None:
            set_learning_rate(self.optimizer, self._schedule(epoch))
        self.batches.begin_epoch(epoch)

    def feed(self) -> None:
        """Bring the next meta batch to the device, where its images do not lie there."""
        self.batches.feed()

    def meta_update(self, batch: Batch, features: Tensor, logits: Tensor) -> None:
        """Look one step of the head ahead, and step the hyper-parameters down the held-out objective."""
        meta = self.batches.next()
        step = self.step if self._rate is None else replace(self.step, lr=self._rate())
        trained = Seen(features, logits, batch.labels)
        found = self._look(self.watched, batch, trained, meta, step)
        factor = None if self._clip is None else clip_factor(found.norm(), self._clip)
        for name, value in self.hyper.items():
            value.grad = own_gradient(found.grads[name] if factor is None else factor * found.grads[name], value)
        self.optimizer.step()
        with torch.no_grad():
            for name, allowed in self.regularizer.project(self.hyper).items():
                self.hyper[name].copy_(allowed)
            self.value.copy_(found.value)

    def _look(self, view: Watched, batch: Batch, trained: Seen, meta: Batch, step: VirtualStep) -> Hypergradient:
        """Hypergradient through one network."""
        if view.learns_from:
            self._follow(view, batch.images[: view.learns_from])
        seen = self._features(view, meta.images)
        if self.leak:
            self._leaked = self._leak(trained, seen, meta.labels, step)
        return head_hypergradient(
            self.regularizer,
            self.objective,
            self.hyper,
            head={name: value.detach() for name, value in view.head.named_parameters()},
            batch=Seen(trained.features.detach(), trained.logits.detach(), trained.labels),
            meta_features=seen.detach(),
            meta_labels=meta.labels,
            step=step,
            exchange=self.group.exchange,
        )

    @torch.no_grad()
    def _follow(self, view: Watched, images: Tensor) -> None:
        """Let BatchNorm's statistics of a watched network follow its weights."""
        autocast = torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16")
        with following(view.model), autocast:
            view.model(images)

    def _features(self, view: Watched, images: Tensor) -> Tensor:
        """Features of meta images ``[B, D]``; in pieces where the network treats each image by itself."""
        alone = self.meta_bn == "frozen" and not self.leak
        pieces = images.split(at_once(images[0], view.model, images.device)) if alone else (images,)
        with torch.set_grad_enabled(self.leak), meta_mode(view.model, self.meta_bn):
            with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
                seen = torch.cat([view.forward(piece)[0] for piece in pieces])
        return seen.float() if self.precision == "bf16" else seen

    def loss(self, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Return the regularizer's loss ``[]`` with the hyper-parameters as constants, summed over one's own samples.

        Samples are not gathered first: what a regularizer reads of the head would then be counted once a process. After a meta
        update that leaks, the gradient of what is returned has the leaked one in it, though the value has not.
        """
        fixed = {name: value.detach() for name, value in self.hyper.items()}
        values = self.regularizer.loss(fixed, features.detach(), logits, batch.labels, dict(self.head.named_parameters()))
        total = values.sum() if self.reduction == "sum" else values.mean() / self.group.world_size
        leaked, self._leaked = self._leaked, None
        return total if leaked is None else total + (leaked - leaked.detach())

    def _gamma(self, features: Tensor) -> Tensor:
        """Gamma of every sample ``[B]``."""
        rule: Callable[[dict[str, nn.Parameter], Tensor], Tensor] = self.regularizer.gamma  # type: ignore[attr-defined]
        return rule(self.hyper, features).detach()

    def state(self) -> dict[str, Tensor]:
        """Return hyper-parameters, their optimizer's state and the meta cursor, by name."""
        kept = {f"hyper.{name}": value.detach() for name, value in self.hyper.items()}
        for name, value in self.hyper.items():
            for key, entry in self.optimizer.state[value].items():
                kept[f"adam.{name}.{key}"] = entry
        return kept | {"value": self.value} | {f"batches.{name}": value for name, value in self.batches.state().items()}

    def _leak(self, seen: Seen, meta_features: Tensor, meta_labels: Tensor, step: VirtualStep) -> Tensor:
        """Value whose gradient leaks; it waits for that of the loss, so that one backward pass makes both."""
        gather, share = self.group.gather, 1 / self.group.world_size
        # Features are one's own part of the batch, but the head enters whole in every process: its gradient is divided, and
        # by this sum its value is not rounded.
        head = {name: value.detach() + share * (value - value.detach()) for name, value in self.head.named_parameters()}
        return leaked_value(
            self.regularizer,
            self.objective,
            self.hyper,
            head=head,
            batch=Seen(*(gather(value) for value in seen)),
            meta_features=gather(meta_features),
            meta_labels=gather(meta_labels),
            step=step,
        )
