"""A training loss with learnable hyper-parameters, improved on held-out batches inside the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from calibrant.engine.average import average_memory
from calibrant.engine.batches import Batch, MetaBatches
from calibrant.engine.evaluate import at_once
from calibrant.engine.network import find_head
from calibrant.engine.objective import Objective
from calibrant.engine.optim import cosine_rate, drops, learning_rate
from calibrant.meta.lookahead import Batch as Seen
from calibrant.meta.lookahead import MetaObjective as MetaFunction
from calibrant.meta.network import following, gathering_norms, meta_mode
from calibrant.meta.regularizers import Regularizer
from calibrant.meta.settings import MetaSettings, words_of
from calibrant.meta.step import HeldOut, HyperParameters, leaked_value, meta_step

if TYPE_CHECKING:
    from calibrant.engine.loop import TrainStep

MetaSchedule: TypeAlias = Literal["constant", "cosine", "network", "slowing"]
# Examples of a meta batch, and of a bank: comparing all pairs of 5,120 confidences takes 100 MB.
_BATCH, _BANK = 1024, 5120
# A bank is renewed in this part of the steps that averaged weights remember. In a short run on little data, where it took
# five times as many, features moved by their own size meanwhile and the hypergradient turned round.
_RENEWAL = 1 / 6


@dataclass(frozen=True)
class MetaPlan:
    """Train with a loss whose hyper-parameters are learned on held-out data.

    Attributes:
        regularizer: The loss.
        objective: What is minimised on the meta batches.
        settings: How the hyper-parameters are stepped.
        meta_batch_size: Held-out examples drawn anew for every meta step; None for a bank of the features of up to 5,120 where
            averaged weights predict, 1,024 elsewhere.
        refresh: Examples of the bank that a meta step passes through the averaged weights, the oldest first; None for as many
            as keep the others recent.
        meta_schedule: Learning rate of the hyper-parameters over the epochs: "constant", "cosine" (to zero), "network": in
            proportion to the network's own, or "slowing": by its root where it is below a tenth of the first.
        pace: How far a meta step moves what the hyper-parameters control, where their learning rate is not given; None for
            the regularizer's own, less in a long run and up to four times that in a short one.
        frozen: Never move the hyper-parameters.
    """

    regularizer: Regularizer
    objective: MetaFunction
    settings: MetaSettings
    meta_batch_size: int | None = None
    refresh: int | None = None
    meta_schedule: MetaSchedule = "constant"
    pace: float | None = None
    frozen: bool = False

    @property
    def watched(self) -> bool:
        """Whether meta batches go through averaged weights, where there are any; a gradient that leaks needs the network."""
        return not (self.frozen or self.settings.leak_meta_grad)

    def build(self, step: TrainStep) -> MetaObjective:
        """Return the objective of a run's step."""
        return MetaObjective(self, step)


class MetaObjective(Objective):
    """Minimise a regularizer's loss, and move its hyper-parameters so that the next step lowers a held-out objective.

    Args:
        plan: What the method made of the recipe.
        step: The run's step, all but its objective.

    Attributes:
        learned: The hyper-parameters, with their optimizer.
        network: What meta batches go through, and whose classifier takes the look-ahead step: the network that is trained, or
            a copy with its averaged weights where those will make the predictions.
        learns_every: ``network`` learns BatchNorm's statistics from every so many-th training image of a meta step; 0 where it
            has them already.
    """

    is_part = True

    def __init__(self, plan: MetaPlan, step: TrainStep) -> None:
        recipe, settings = step.recipe, plan.settings
        self.plan, self.recipe, self.hardware, self.group = plan, recipe, step.hardware, step.hardware.group
        self.has_meta, self.every, self.reduction = not plan.frozen, settings.every, recipe.train.reduction
        self.head, self._optimizer = find_head(step.model)[1], step.optimizer
        self._leaked: Tensor | None = None
        self._memory = average_memory(recipe.train, step.steps)
        self.network, self.learns_every = step.model, 0
        shown = step.averages.get("watch") or step.averages.get("average")
        if shown is not None and plan.watched:
            self.network = shown.network(step.model)
            # The short average learns BatchNorm's statistics from what passes through it; others have them averaged.
            if "watch" in step.averages and settings.meta_bn == "frozen":
                self.learns_every = self._learn_statistics()
        self.forward, self._watched_head = step.compiled(self.network), find_head(self.network)[1]
        # Features of a network that is not averaged age too fast to keep.
        banked = plan.meta_batch_size is None and self.network is not step.model and settings.meta_bn == "frozen"
        self.batches, self.bank = self._held_out_data(step, banked=banked)
        pace = plan.pace or plan.regularizer.pace * speed_up(self._memory, self.every)
        generator = torch.Generator().manual_seed(recipe.seed)
        self.learned = HyperParameters(plan.regularizer, settings, self.head, pace=pace, generator=generator)
        self.hyper, self._first_rate = self.learned.params, self.learned.lr
        self.gamma = self._gamma if hasattr(plan.regularizer, "gamma") else None
        self.value = torch.zeros((), device=self.head.weight.device)

    @property
    def learning(self) -> dict[str, object]:
        """How the hyper-parameters are learned: what the recipe says of it, its preset and its length."""
        if self.plan.frozen:
            return {}
        settings = {name: value for name, value in asdict(self.plan.settings).items() if name not in ("reduction", "clip")}
        return settings | {
            "betas": list(self.plan.settings.betas),
            "objective": words_of(self.plan.objective),
            "meta_lr": self._first_rate,
            "meta_schedule": self.plan.meta_schedule,
            "meta_batch_size": self.batches.batch_size if self.bank is None else len(self.bank.labels) * self.group.world_size,
            "refresh": None if self.bank is None else self.batches.batch_size,
        }

    def _held_out_data(self, step: TrainStep, *, banked: bool) -> tuple[MetaBatches, HeldOut | None]:
        """Return the held-out batches of a run and, if each refreshes a part of a bank, the empty bank."""
        data, processes = step.meta_data, self.group.world_size
        size = self.plan.meta_batch_size or _BATCH
        if banked:
            kept = min(_BANK, len(data))
            recent = math.ceil(kept * self.every / (_RENEWAL * self._memory))
            size = min(self.plan.refresh or recent, kept)
            size -= size % processes
            data = data.pick(torch.arange(kept - kept % size))
        batches = MetaBatches(
            data,
            step.hardware,
            batch_size=size,
            steps_per_epoch=-(-step.batches.steps_per_epoch // self.every),
            seed=self.recipe.seed,
            resident=step.batches.resident,
            in_order=banked,
        )
        if not banked:
            return batches, None
        own, weight = len(data) // processes, self.head.weight
        return batches, HeldOut(
            weight.new_zeros(own, weight.shape[1]), torch.zeros(own, dtype=torch.int64, device=weight.device)
        )

    def _learn_statistics(self) -> int:
        """Let BatchNorm learn from a batch of training images every fourth step, or from as much less of one oftener.

        Several processes take the same images as one does: every so many-th of the batch.
        """
        norms, apart = gathering_norms(self.network), max(1, 4 // self.every)
        for norm in norms:
            # Statistics that remember longer than the weights would belong to others.
            usual = (0.1 if norm.momentum is None else norm.momentum) / apart
            norm.momentum = min(1.0, max(usual, self.every / self._memory))
        return apart if norms else 0

    def begin_epoch(self, epoch: int) -> None:
        """Draw the epoch's meta batches and set the learning rate of the hyper-parameters."""
        self.learned.lr = self._rate(epoch)
        self.batches.begin_epoch(epoch)
        if self.bank is not None and (epoch == 0 or drops(self.recipe.optim, epoch, epochs=self.recipe.train.epochs)):
            for batch in self.batches.once():
                self._bring(batch)

    def _rate(self, epoch: int) -> float:
        rate, optim, epochs = self._first_rate, self.recipe.optim, self.recipe.train.epochs
        own = learning_rate(optim, epoch, epochs=epochs)
        return {
            "constant": rate,
            "cosine": cosine_rate(epoch, lr=rate, epochs=epochs),
            "network": rate * own / optim.lr,
            # Averaged weights follow gamma within their memory down to a tenth of the first rate; below it the network slows.
            "slowing": rate * min(1.0, math.sqrt(10 * own / optim.lr)),
        }[self.plan.meta_schedule]

    def feed(self) -> None:
        """Bring the next meta batch to the device, where its images do not lie there."""
        self.batches.feed()

    def meta_update(self, batch: Batch, features: Tensor, logits: Tensor) -> None:
        """Look one step of the head ahead, and step the hyper-parameters down the held-out objective."""
        meta, lr = self.batches.next(), self._optimizer.param_groups[0]["lr"]
        if self.learns_every:
            self.follow(batch.images[:: self.learns_every])
        seen, held_out = Seen(features, logits, batch.labels), self._bring(meta)
        if self.plan.settings.leak_meta_grad:
            self._leaked = self._leak(seen, held_out, lr)
        head = dict(self._watched_head.named_parameters())
        group = self.group.processes
        found = meta_step(self.learned, self.plan.objective, head=head, batch=seen, held_out=held_out, lr=lr, group=group)
        self.value.copy_(found.value)

    def _bring(self, meta: Batch) -> HeldOut:
        """Features of a batch or, with a bank, of the whole bank after the batch has taken its place there."""
        fresh = HeldOut(self.features(meta.images), meta.labels)
        if self.bank is None:
            return fresh
        # Each process keeps its own part of every slice, one slice after another.
        own = len(meta.labels)
        places = meta.examples // self.batches.batch_size * own + meta.examples % own
        for kept, values in zip(self.bank, fresh, strict=True):
            kept.index_copy_(0, places, values)
        return self.bank

    @torch.no_grad()
    def follow(self, images: Tensor) -> None:
        """Let BatchNorm's statistics of the watched network follow its weights."""
        with following(self.network), self.hardware.autocast():
            self.forward(images)

    def features(self, images: Tensor) -> Tensor:
        """Features of meta images ``[B, D]``; in pieces where the network treats each image by itself."""
        meta_bn, leaks = self.plan.settings.meta_bn, self.plan.settings.leak_meta_grad
        alone = meta_bn == "frozen" and not leaks
        pieces = images.split(at_once(images[0], images.device)) if alone else (images,)
        with torch.set_grad_enabled(leaks), meta_mode(self.network, meta_bn), self.hardware.autocast():
            seen = torch.cat([self.forward(piece)[0] for piece in pieces])
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
        bank = {} if self.bank is None else {f"bank.{name}": value for name, value in self.bank._asdict().items()}
        return self.learned.state() | {"value": self.value} | batches | bank

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


def speed_up(memory: float, every: int) -> float:
    """How far a meta step moves the hyper-parameters, as a multiple of the usual, if averaged weights remember so many steps.

    What gamma does to the averaged network shows after about as many steps, and what moves far before that swings: on CIFAR-100
    at the usual pace with 1,000 steps of memory gamma went between 0.3 and 5 every 20 epochs, and ECE between 1.5 and 4.5 %. So
    gamma may move by about 0.6 in that time: on small images of CIFAR-10 it then rose steadily, where with 1.0 it went to and
    fro. In a short run it must be able to cross its range at all: on scikit-learn's digits, 240 steps in the whole run, the
    usual pace in every step brought ECE from 2.5 to 1.5 %. More was never tried.
    """
    return every * min(1.0, 24 / memory)
