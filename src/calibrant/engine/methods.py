"""Training methods: their plans, the catalogue of them by name, and what a recipe leaves to its method.

A plan says what a step minimises; it has every hook, and most do nothing. A method's hyper-parameters are the keyword
arguments of the function that builds its plan, which is also the only place of their defaults.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from calibrant import losses
from calibrant.core.checks import Registry, check_count, check_positive, lookup
from calibrant.data.sets import set_name
from calibrant.engine.batches import HeldOutBatches, ImageBatch, at_once
from calibrant.engine.recipe import KEYS, NEUTRAL, Recipe, override, read_value, value_of
from calibrant.engine.setup import average_memory, drops, learning_rate
from calibrant.meta.learner import MetaLearner
from calibrant.meta.regularizers import GammaFocal, Regularizer
from calibrant.meta.step import (
    PRESETS,
    HeldOut,
    MetaObjective,
    MetaSettings,
    find_head,
    gathering_norms,
    make_objective,
    meta_mode,
    settings_of,
)

if TYPE_CHECKING:
    from calibrant.engine.train import Assembly

# Examples in a meta batch, and in a bank: comparing all pairs of 5,120 confidences takes 100 MB.
_BATCH, _BANK = 1024, 5120
# A bank is renewed within this share of the steps that averaged weights remember. In a short run on little data, where that
# took five times as many steps, features had moved by their own size meanwhile, and the hypergradient changed its sign.
_RENEWAL = 1 / 6


class Facts(NamedTuple):
    """What a method may need to know about a run: how many training examples it has, how losses are reduced, the preset."""

    num_train: int
    reduction: Literal["sum", "mean"]
    preset: Literal["default", "paper"] = "default"


class LossPlan:
    """Train with a loss: what a step minimises, and what is called before and after it.

    The loss, and what it remembers, see the batch of all processes.

    Args:
        loss: The loss; `train.reduction` says how it is reduced.
        pruner: Drops training examples between epochs, or None.
    """

    watched = False  # whether meta batches pass through averaged weights, if there are any
    compilable = True  # whether the network may be compiled
    has_meta = False  # whether some steps also move hyper-parameters; `loss` is then this process's part of a sum
    every = 1  # steps from one of those to the next
    gamma: Callable[[Tensor], Tensor] | None = None  # features → gamma of every sample
    learning: Mapping[str, object] = MappingProxyType({})  # how hyper-parameters are learned, as plain data

    def __init__(self, loss: nn.Module, *, pruner: losses.ConfidencePruner | None = None) -> None:
        self.module, self.pruner = loss, pruner
        self._parts = nn.ModuleDict({"loss": loss} if pruner is None else {"loss": loss, "pruner": pruner})
        self._members = [member for member in loss.modules() if isinstance(member, losses.Objective)]
        self._indexed = any("indices" in member.inputs for member in self._members)
        self._epoch = 0

    def start(self, run: Assembly) -> None:
        """Prepare for a run; its network, optimizer, averages and batches are ready."""
        self.group = run.hardware.group
        for part in self.module.modules():
            if getattr(part, "reduction", None) is not None:
                setattr(part, "reduction", run.recipe.train.reduction)  # noqa: B010
        self._parts.to(run.hardware.device)

    def begin_epoch(self, epoch: int) -> None:
        """Draw what is random in the epoch, and tell the loss which epoch begins."""
        self._epoch = epoch
        for member in self._members:
            member.set_epoch(epoch)

    def learns_from_val(self) -> bool:
        """Whether `end_epoch` will learn from validation logits in this epoch."""
        return any(member.needs_validation(self._epoch) for member in self._members)

    def end_epoch(self, logits: Tensor | None, labels: Tensor) -> None:
        """Count an epoch, and learn from validation logits; they may be None if nothing learns from them."""
        for member in self._members:
            if member.needs_validation(self._epoch):
                assert logits is not None
                member.observe_validation(logits, labels)
        if self.pruner is not None:
            self.pruner.end_epoch()

    def kept(self) -> Tensor | None:
        """Training examples still in use; None for all."""
        return None if self.pruner is None else self.pruner.kept_indices()

    def inputs(self, batch: ImageBatch) -> Tensor:
        """Return the images to pass through the network."""
        return batch.images

    def feed(self) -> None:
        """Send the next meta batch to the device, if there is one that is not there."""

    def loss(self, batch: ImageBatch, features: Tensor, logits: Tensor, *, with_meta: bool = False) -> Tensor:
        """Return the reduced training loss ``[]``; its gradient, summed over the processes, is that of the global batch.

        ``with_meta`` also moves the hyper-parameters one step, on held-out data.
        """
        logits, labels, examples = self.group.gather(logits), self.group.gather(batch.labels), self.group.gather(batch.examples)
        value: Tensor = self.module(logits, labels, **({"indices": examples} if self._indexed else {}))
        for member in self._members:
            member.observe_batch(logits.detach(), labels, indices=examples)
        if self.pruner is not None:
            self.pruner.update(logits.detach(), indices=examples)
        return value

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a step or an epoch changes, by name."""
        return dict(self._parts.named_buffers())


class MixupPlan(LossPlan):
    """Minimise a loss on convex combinations of pairs of examples, one mixing weight a batch.

    An example may be mixed with one of another process. The weight has a Beta(alpha, alpha) distribution; 0 mixes nothing.
    """

    def __init__(self, loss: nn.Module, *, alpha: float) -> None:
        super().__init__(loss)
        check_positive(alpha, where="train", name="method.options.alpha", zero=True)
        self.alpha = alpha

    def start(self, run: Assembly) -> None:
        """Make room for the weights and pairs of an epoch."""
        super().start(run)
        self.seed, steps, size = run.batches.seed, run.batches.steps_per_epoch, run.batches.batch_size
        self._weight = torch.ones(steps, device=run.hardware.device)
        self._pairs = torch.zeros(steps, size, dtype=torch.int64, device=run.hardware.device)

    def begin_epoch(self, epoch: int) -> None:
        """Draw the epoch's mixing weights and pairings from ``(seed, epoch)``."""
        super().begin_epoch(epoch)
        draw = np.random.default_rng((self.seed, epoch, 7))
        steps, size = self._pairs.shape
        if self.alpha > 0:
            self._weight.copy_(torch.from_numpy(draw.beta(self.alpha, self.alpha, steps)))
        self._pairs.copy_(torch.from_numpy(draw.random((steps, size)).argsort(1)))

    def inputs(self, batch: ImageBatch) -> Tensor:
        """Return the mixed images."""
        weight, pairs = self._of(batch)
        own = pairs.chunk(self.group.world_size)[self.group.rank]
        return weight * batch.images + (1 - weight) * self.group.gather(batch.images)[own]

    def loss(self, batch: ImageBatch, features: Tensor, logits: Tensor, *, with_meta: bool = False) -> Tensor:
        """Return the mixture of the losses against both labels."""
        weight, pairs = self._of(batch)
        logits, labels = self.group.gather(logits), self.group.gather(batch.labels)
        first, second = self.module(logits, labels), self.module(logits, labels[pairs])
        value: Tensor = weight * first + (1 - weight) * second
        return value

    def _of(self, batch: ImageBatch) -> tuple[Tensor, Tensor]:
        row = batch.step.view(1)
        return self._weight.index_select(0, row).squeeze(0), self._pairs.index_select(0, row).squeeze(0)


class MetaPlan(LossPlan):
    """Minimise a regularizer's loss, and move its hyper-parameters so that the next step lowers a held-out objective."""

    has_meta = True

    def __init__(
        self,
        regularizer: Regularizer,
        objective: MetaObjective,
        settings: MetaSettings,
        *,
        # Held-out examples drawn anew for every meta step; None for a bank of the features of up to 5,120 if averaged weights
        # predict, else 1,024. Of a bank, ``refresh`` examples pass through these weights in a meta step, the oldest first.
        meta_batch_size: int | None = None,
        refresh: int | None = None,
        # "slowing": the hyper-parameters by the root of the network's learning rate, once that is below a tenth of the first.
        meta_schedule: Literal["constant", "slowing"] = "constant",
        # How far a meta step moves what they control; None for the regularizer's own, in a short run up to four times that.
        pace: float | None = None,
    ) -> None:
        super().__init__(nn.Module())
        for name, size in (("meta_batch_size", meta_batch_size), ("refresh", refresh)):
            if size is not None:
                check_count(size, where="train", name=f"method.options.{name}")
        if pace is not None:
            check_positive(pace, where="train", name="method.options.pace")
        self.regularizer, self.objective, self.settings = regularizer, objective, settings
        self.meta_batch_size, self.refresh, self.meta_schedule, self.pace = meta_batch_size, refresh, meta_schedule, pace
        # A gradient that leaks needs the network itself; a full look-ahead differentiates it twice, which compiled code cannot.
        self.watched, self.compilable = not settings.leak_meta_grad, settings.lookahead == "head"
        self.every = settings.every

    def start(self, run: Assembly) -> None:
        """Make the learner and the held-out batches."""
        super().start(run)
        recipe, settings = run.recipe, self.settings
        self.recipe, self.hardware, self.head = recipe, run.hardware, find_head(run.model)[1]
        self._memory = average_memory(recipe.train, run.steps)
        # What meta batches pass through, and whose classifier takes the look-ahead step. In a meta step it learns BatchNorm's
        # statistics from one in so many training images.
        self.network, self.learns_every = run.model, 0
        shown = run.averages.get("watch") or run.averages.get("average")
        averaged: dict[str, Any] = {}
        if shown is not None and self.watched:
            self.network = shown.network(run.model)
            averaged = {"average": self.network, "average_share": lambda: 1 - shown.kept()}
            # The short average learns BatchNorm's statistics from what passes through it; the others average them.
            if "watch" in run.averages and settings.meta_bn == "frozen":
                self.learns_every = self._learn_statistics()
        self.forward = run.compiled(self.network)
        self.learner = MetaLearner(
            run.model,
            run.optimizer,
            regularizer=self.regularizer,
            objective=self.objective,
            amp=torch.bfloat16 if run.hardware.precision == "bf16" else None,
            process_group=self.group.processes,
            monitor_every=0,
            generator=torch.Generator().manual_seed(recipe.seed),
            **averaged,
            **vars(settings) | {"reduction": recipe.train.reduction},
        )
        self.hyper = self.learner.hyper
        if settings.meta_lr is None:
            pace = self.pace or self.regularizer.pace * speed_up(self._memory, self.every)
            self.learner.meta_lr = pace / float(self.regularizer.speed(self.hyper))
        self._first_rate = self.learner.meta_lr
        # Features of a network that is not averaged go out of date too fast.
        banked = self.meta_batch_size is None and bool(averaged) and settings.meta_bn == "frozen" and not self.learner.full
        self.batches, self.bank = self._held_out_data(run, banked=banked)
        if isinstance(self.regularizer, GammaFocal):
            self.gamma = partial(self.regularizer.gamma, self.hyper)
        self.learning = self._learning()

    def _learning(self) -> dict[str, object]:
        """What the recipe, its preset and its length decide about it."""
        settings = {name: value for name, value in asdict(self.settings).items() if name not in ("reduction", "clip")}
        return settings | {
            "betas": list(self.settings.betas),
            "meta_lr": self._first_rate,
            "meta_schedule": self.meta_schedule,
            "meta_batch_size": self.batches.batch_size if self.bank is None else self.batches.examples,
            "refresh": None if self.bank is None else self.batches.batch_size,
        }

    def _held_out_data(self, run: Assembly, *, banked: bool) -> tuple[HeldOutBatches, HeldOut | None]:
        """Return the held-out batches of a run and, if each renews a part of a bank, the empty bank."""
        data, processes = run.data.val if run.data.meta is None else run.data.meta, self.group.world_size
        size = self.meta_batch_size or _BATCH
        if banked:
            kept = min(_BANK, len(data))
            recent = math.ceil(kept * self.every / (_RENEWAL * self._memory))
            size = min(self.refresh or recent, kept)
            size = max(size - size % processes, processes)
            data = data.pick(torch.arange(kept - kept % size))
        batches = HeldOutBatches(
            data,
            run.hardware,
            batch_size=size,
            steps_per_epoch=-(-run.batches.steps_per_epoch // self.every),
            seed=self.recipe.seed,
            resident=run.batches.resident,
            in_order=banked,
        )
        if not banked:
            return batches, None
        # Every process keeps the whole bank, so that any number of processes can continue a run.
        labels = torch.zeros(kept, dtype=torch.int64, device=self.head.weight.device)
        return batches, HeldOut(self.head.weight.new_zeros(kept, self.head.in_features), labels)

    def _learn_statistics(self) -> int:
        """Let BatchNorm learn from a batch of training images every fourth step, or more often from a smaller part of one.

        Several processes use the same images as a single one: evenly spaced in the batch.
        """
        norms, apart = gathering_norms(self.network), max(1, 4 // self.every)
        for norm in norms:
            # Statistics that remember longer than the weights would be those of other weights.
            usual = (0.1 if norm.momentum is None else norm.momentum) / apart
            norm.momentum = min(1.0, max(usual, self.every / self._memory))
        return apart if norms else 0

    def begin_epoch(self, epoch: int) -> None:
        """Draw the epoch's meta batches and set the learning rate of the hyper-parameters."""
        optim, epochs = self.recipe.optim, self.recipe.train.epochs
        if self.meta_schedule == "slowing":
            # Averaged weights follow gamma within their memory down to a tenth of the first rate; below it the network slows.
            slower = math.sqrt(10 * learning_rate(optim, epoch, epochs=epochs) / optim.lr)
            self.learner.meta_lr = self._first_rate * min(1.0, slower)
        self.batches.begin_epoch(epoch)
        if self.bank is not None and (epoch == 0 or drops(optim, epoch, epochs=epochs)):
            for batch in self.batches.once():
                self._bring(batch)

    def feed(self) -> None:
        """Send the next meta batch to the device, unless its images are there."""
        self.batches.feed()

    def inputs(self, batch: ImageBatch) -> Tensor:
        """Return the images to pass through the network."""
        self.learner.remember_randomness()
        return batch.images

    def _bring(self, meta: ImageBatch) -> HeldOut:
        """Return the features of a batch or, with a bank, put them there and return this process's part of the bank."""
        fresh = HeldOut(self.features(meta.images), meta.labels)
        if self.bank is None:
            return fresh
        places = self.group.gather(meta.examples)
        for kept, values in zip(self.bank, fresh, strict=True):
            kept.index_copy_(0, places, self.group.gather(values))
        size, processes = self.batches.examples, self.group.world_size
        return HeldOut(*(kept[:size].chunk(processes)[self.group.rank] for kept in self.bank))

    @torch.no_grad()
    def follow(self, images: Tensor) -> None:
        """Let BatchNorm's statistics of the watched network follow its weights."""
        with meta_mode(self.network, "follow"), self.hardware.autocast():
            self.forward(images)

    def features(self, images: Tensor) -> Tensor:
        """Return features ``[B, D]`` of meta images; in pieces if the network treats each image by itself."""
        meta_bn, leaks = self.settings.meta_bn, self.settings.leak_meta_grad
        alone = meta_bn == "frozen" and not leaks
        pieces = images.split(at_once(images[0], images.device)) if alone else (images,)
        with torch.set_grad_enabled(leaks), meta_mode(self.network, meta_bn), self.hardware.autocast():
            seen = torch.cat([self.forward(piece)[0] for piece in pieces])
        return seen.to(self.head.weight.dtype)

    def loss(self, batch: ImageBatch, features: Tensor, logits: Tensor, *, with_meta: bool = False) -> Tensor:
        """Return the regularizer's loss ``[]`` with the hyper-parameters as constants, summed over the samples of this process.

        Samples are not gathered first: what a regularizer reads of the head would then be counted once per process. After a
        meta update that leaks, the gradient, though not the value, includes what leaked.
        """
        if with_meta:
            total, _ = self.learner.update_and_loss(features, logits, batch.labels, **self._held_out(batch))
        else:
            total = self.learner.loss(features, logits, batch.labels)
        return total if self.recipe.train.reduction == "sum" else total / self.group.world_size

    def _held_out(self, batch: ImageBatch) -> dict[str, Tensor]:
        """Return what the learner's meta update needs besides the logits of the training batch."""
        meta = self.batches.next()
        if self.learns_every:
            self.follow(batch.images[:: self.learns_every])
        if self.learner.full:
            return {"x": batch.images, "x_meta": meta.images, "y_meta": meta.labels}
        seen = self._bring(meta)
        return {"held_out": seen.features, "y_meta": seen.labels}

    def state(self) -> dict[str, Tensor]:
        """Return hyper-parameters, their optimizer's state and the meta cursor, by name."""
        batches = {f"batches.{name}": value for name, value in self.batches.state().items()}
        bank = {} if self.bank is None else {f"bank.{name}": value for name, value in self.bank._asdict().items()}
        return self.learner.tensors() | batches | bank


def speed_up(memory: float, every: int) -> float:
    """How many times the usual distance a meta step moves the hyper-parameters, if averaged weights remember ``memory`` steps.

    Only after about that many steps do averaged weights show what gamma did, and if it moves far before that, it swings. In
    that time it may move by about 0.6; in a short run it must still be able to cross its range.
    """
    return every * min(1.0, 24 / memory)


# How figures draw a method: colour of the palette, marker, and line ("-", "--", "-." or "-..").
Look: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True)
class Method:
    """Everything about a training method.

    Attributes:
        label: Name in tables and figures.
        help: What it minimises, in a few words.
        loss: The entry of docs/losses.md with formula and reference.
        build: ``build(facts, **options)`` returns the plan of a run; its keyword arguments are the options of the method.
        look: How figures draw it; None for whatever is free.
        learns: Whether it learns hyper-parameters on held-out data.
        average: Averaging of weights under the default preset.
        select: What picks the best epoch under the default preset.
    """

    label: str
    help: str
    loss: str
    build: Callable[..., LossPlan]
    look: Look | None = None
    learns: bool = False
    average: Literal["no", "ema", "phase"] = "no"
    select: Literal["error", "nll", "error+nll", "error+ece", "last"] = "error"


# Options of earlier releases, and why they were removed; their recipes are read, but not trained again.
REMOVED_OPTIONS = {
    "watch_share": "looking through a second average did not help",
    "positive": "the absolute value of the score works as well as any other map",
    "meta_clip": "Adam ignores the size of the hypergradient",
    "lookahead_clip": "no preset clips the look-ahead step",
    "variant": "flgamma learns by cross-entropy, and flgamma-sece and others by other objectives",
}
# What presets say besides those of `MetaLearner`. Training images are cropped with a margin of zeros and meta images are not.
# So the running statistics, which predictions use, differ from those of a meta batch: by the batch's own, a small ResNet that
# overstated its accuracy by 7.3 % seemed to overstate it by 6.0 %. The published code draws 128 held-out samples a step; the
# calibration error of so few is mostly noise.
_PRESET_OPTIONS: dict[str, dict[str, Any]] = {
    "default": {"meta_bn": "frozen", "every": 8, "meta_schedule": "slowing"},
    "paper": {"meta_batch_size": 128},
}
# The network's own step is the recipe's business.
_REFUSED = ("reduction", "clip")


@dataclass(frozen=True)
class MetaMethod:
    """Builds the plan of a method that learns on held-out data: a learnable regularizer and the objective that steers it."""

    regularizer: str
    objective: str

    def options(self, facts: Facts) -> tuple[dict[str, Any], ...]:
        """Return name → type of the options of a run, of the regularizer, of the objective, and of the settings."""
        preset = PRESETS[facts.preset]
        objective = make_objective(self.objective, variants=preset.objectives)
        settings = {name: kind for name, kind in get_type_hints(MetaSettings).items() if name not in _REFUSED}
        return _keywords_of(MetaPlan), _keywords_of(preset.regularizers[self.regularizer]), _keywords_of(objective), settings

    def __call__(self, facts: Facts, **given: Any) -> LossPlan:
        """Return the plan of a run."""
        for first, second in (("meta_batch_size", "refresh"), ("pace", "meta_lr")):
            if given.get(first) is not None and given.get(second) is not None:
                both = f"`method.options.{first}` and `method.options.{second}`"
                raise ValueError(f"train: only one of {both} may be given, got both.")
        if given.get("pace") is not None:
            given["meta_lr"] = None  # in the place of a learning rate that the preset has
        preset, given = PRESETS[facts.preset], _PRESET_OPTIONS[facts.preset] | given
        own, loss, penalty, settings = ({n: given[n] for n in known if n in given} for known in self.options(facts))
        objective: Callable[..., Any] = make_objective(self.objective, variants=preset.objectives)
        return MetaPlan(
            preset.regularizers[self.regularizer](**loss),
            partial(objective, **penalty) if penalty else objective,
            settings_of(preset, settings),
            **own,
        )


def _keywords_of(function: Callable[..., object]) -> dict[str, Any]:
    """Name → type of the keyword arguments of a function or class, or of a ``partial`` of one."""
    plain: Any = function
    while isinstance(plain, partial):
        plain = plain.func
    names = [p.name for p in inspect.signature(plain).parameters.values() if p.kind is p.KEYWORD_ONLY]
    hints = get_type_hints(plain.__init__ if inspect.isclass(plain) else plain)
    return {name: hints[name] for name in names}


def _alone(loss: Callable[[], Any], facts: Facts) -> LossPlan:
    """A loss without options."""
    return LossPlan(loss())


def _with_ce(penalty: Callable[[], Any], facts: Facts, *, weight: float = 1.0) -> LossPlan:
    return LossPlan(losses.CrossEntropyLoss() + weight * penalty())


def _with_focal(penalty: Callable[[], Any], facts: Facts, *, gamma: float = 1.0, weight: float = 1.0) -> LossPlan:
    return LossPlan(losses.FocalLoss(gamma=gamma) + weight * penalty())


def _smoothed(facts: Facts, *, label_smoothing: float) -> LossPlan:
    return LossPlan(losses.CrossEntropyLoss(label_smoothing=label_smoothing))


def _focal(facts: Facts, *, gamma: float = 1.0) -> LossPlan:
    # The paper's "Focal" has gamma 1.
    return LossPlan(losses.FocalLoss(gamma=gamma))


def _mixup(facts: Facts, *, alpha: float = 1.0) -> LossPlan:
    return MixupPlan(losses.CrossEntropyLoss(), alpha=alpha)


def _mmce(facts: Facts, *, weight: float = 2.0, normalization: Literal["official", "paper"] = "official") -> LossPlan:
    # Weight and normalisation of the code that the paper's row was made with.
    return LossPlan(losses.CrossEntropyLoss() + weight * losses.WeightedMMCE(normalization=normalization))


def _dual_focal(facts: Facts, *, gamma: float = 5.0) -> LossPlan:
    return LossPlan(losses.DualFocalLoss(gamma=gamma))


def _mbls(facts: Facts, *, weight: float = 0.1, margin: float = 10.0) -> LossPlan:
    return LossPlan(losses.CrossEntropyLoss() + weight * losses.MbLS(margin=margin))


def _avuc(facts: Facts, *, beta: float = 3.0) -> LossPlan:
    return LossPlan(losses.CrossEntropyLoss() + losses.AvUC(beta=beta))


def _patra(facts: Facts, *, gamma: float = 1.0, weight: float = 200.0, fraction: float = 0.1, every: int = 20) -> LossPlan:
    # No value is published; at 200 the Huber penalty, whose slope is at most 0.005, has that of DCA with weight 1.
    pruner = losses.ConfidencePruner(num_samples=facts.num_train, fraction=fraction, every=every)
    return LossPlan(losses.FocalLoss(gamma=gamma) + weight * losses.HuberDCA(), pruner=pruner)


def _crl(facts: Facts, *, weight: float = 1.0) -> LossPlan:
    return LossPlan(losses.CrossEntropyLoss() + weight * losses.CRL(num_samples=facts.num_train))


def _learned(label: str, regularizer: str, objective: str, look: Look) -> Method:
    """A method that learns on held-out data: averaged weights predict, and the lowest NLL near the lowest error is best."""
    by = "cross-entropy" if objective == "nll" else objective.upper()
    kind = {"unitwise-l2": "cross-entropy with unit-wise L2", "gamma-focal": "focal loss with a gamma for every example"}
    return Method(
        label=label,
        help=f"{kind[regularizer]}, learned on held-out data by {by}",
        loss="focal" if objective == "nll" else objective,
        build=MetaMethod(regularizer, objective),
        look=look,
        learns=True,
        average="phase",
        select="error+nll",
    )


# No two of one colour share a marker or a line. The paper's ablation does not say how gamma-Net learns without SECE: validation
# cross-entropy is the plainest reading. Training it on the training loss is no option: that falls as gamma grows, so gamma
# would grow without bound.
BUILTIN: dict[str, Method] = {
    "ce": Method("CE", "cross-entropy", "cross_entropy", partial(_alone, losses.CrossEntropyLoss), ("black", "o", "-")),
    "focal": Method("Focal", "focal loss, one gamma for all", "focal", _focal, ("green", "s", "-")),
    "flsd": Method(
        "FLSD",
        "focal loss, gamma set by the probability of the true class",
        "flsd",
        partial(_alone, losses.FLSDLoss),
        ("green", "^", "--"),
    ),
    "ls-0.05": Method(
        "LS-0.05", "smoothed cross-entropy", "cross_entropy", partial(_smoothed, label_smoothing=0.05), ("sky", "D", "-")
    ),
    "ls-0.1": Method(
        "LS-0.1", "smoothed cross-entropy", "cross_entropy", partial(_smoothed, label_smoothing=0.1), ("sky", "h", "--")
    ),
    "mixup": Method("Mixup", "cross-entropy on mixtures of two images", "mixup", _mixup, ("grey", "p", "--")),
    "mmce": Method("MMCE", "cross-entropy and weighted MMCE", "weighted_mmce", _mmce, ("grey", "v", "-.")),
    "brier": Method("Brier", "Brier score", "brier", partial(_alone, losses.BrierLoss), ("purple", ">", "-")),
    "ce-dece": _learned("CE-DECE", "unitwise-l2", "dece", ("blue", "P", "-.")),
    "ce-sece": _learned("CE-SECE", "unitwise-l2", "sece", ("purple", "X", "--")),
    "flgamma-dece": _learned("FLγ-DECE", "gamma-focal", "dece", ("orange", "^", "-.")),
    "flgamma-sece": _learned("FLγ-SECE", "gamma-focal", "sece", ("vermillion", "*", "-")),
    "flgamma-skce": _learned("FLγ-SKCE", "gamma-focal", "skce", ("orange", "8", "-")),
    "flgamma": _learned("FLγ", "gamma-focal", "nll", ("vermillion", "s", "--")),
    "adafocal": Method(
        "AdaFocal",
        "focal loss, gamma set by the calibration of validation bins",
        "adafocal",
        partial(_alone, losses.AdaFocalLoss),
        ("blue", "<", "--"),
    ),
    "dual-focal": Method(
        "Dual Focal", "focal loss of the lead over the runner-up class", "dual_focal", _dual_focal, ("black", "d", "--")
    ),
    "mbls": Method("MbLS", "cross-entropy and logits beyond a margin", "mbls", _mbls, ("sky", "<", "-.")),
    "mbls-0": Method(
        "MbLS (no margin)",
        "cross-entropy and differences between logits",
        "mbls",
        partial(_mbls, margin=0.0),
        ("grey", "X", "-"),
    ),
    "ecp": Method(
        "ECP",
        "cross-entropy minus the entropy of predictions",
        "confidence_penalty",
        partial(_with_ce, losses.ConfidencePenalty, weight=0.1),
        ("black", "s", "-."),
    ),
    "focal+sb-ece": Method(
        "Focal+SB-ECE", "focal loss and soft-binned ECE", "sb_ece", partial(_with_focal, losses.SBECE), ("green", "h", "-.")
    ),
    "focal+s-avuc": Method(
        "Focal+S-AvUC",
        "focal loss and soft accuracy versus uncertainty",
        "soft_avuc",
        partial(_with_focal, losses.SoftAvUC),
        ("blue", "D", "-"),
    ),
    "avuc": Method("AvUC", "cross-entropy and accuracy versus uncertainty", "avuc", _avuc, ("purple", "o", "-.")),
    "mdca": Method(
        "MDCA", "focal loss and class-wise gaps in confidence", "mdca", partial(_with_focal, losses.MDCA), ("orange", "p", "--")
    ),
    "dca": Method(
        "DCA",
        "cross-entropy and the gap between confidence and accuracy",
        "dca",
        partial(_with_ce, losses.DCA),
        ("vermillion", "v", "-."),
    ),
    "patra": Method(
        "Huber-DCA",
        "focal loss and a Huber loss of the gap between confidence and accuracy; unsure examples are pruned",
        "huber_dca",
        _patra,
        ("black", "^", "-.."),
    ),
    "cpc": Method(
        "CPC",
        "cross-entropy and constraints on pairs of classes",
        "cpc",
        partial(_alone, lambda: losses.CrossEntropyLoss() + losses.CPC()),
        ("sky", "p", "-.."),
    ),
    "acls": Method(
        "ACLS",
        "cross-entropy and adaptive, conditional label smoothing",
        "acls",
        partial(_with_ce, losses.ACLS, weight=0.1),
        ("grey", "o", "-.."),
    ),
    "crl": Method(
        "CRL", "cross-entropy and a ranking of examples by how often they were right", "crl", _crl, ("green", ">", "-..")
    ),
}
METHODS: Registry[Method] = Registry("method", "calibrant.methods", BUILTIN, of=Method)


def split_name(name: str) -> tuple[str, bool]:
    """Split ``+ts`` off a method's name; return the name without it, and whether it had it."""
    return (name.removesuffix("+ts"), True) if name.endswith("+ts") else (name, False)


def learns(recipe: Recipe) -> bool:
    """Whether the method of a recipe learns on held-out data; False if it is unknown."""
    name = split_name(recipe.method.name)[0]
    return name in METHODS and METHODS[name].learns


def make_plan(recipe: Recipe, *, num_train: int = 1) -> LossPlan:
    """Return the plan of a run; an unknown method or option raises ``ValueError``, which suggests the nearest one."""
    name, facts = recipe.method.name, Facts(num_train, recipe.train.reduction, recipe.method.preset)
    method = lookup(METHODS, split_name(name)[0], kind="method", also=(f"{known}+ts" for known in METHODS))
    kinds = method.build.options(facts) if isinstance(method.build, MetaMethod) else (_keywords_of(method.build),)
    known = {option: kind for part in kinds for option, kind in part.items()}
    read = {}
    for option, value in recipe.method.options.items():
        if option in REMOVED_OPTIONS:
            raise ValueError(
                f"train: `method.options.{option}` must be left out, got {value}: it was removed, "
                f"because {REMOVED_OPTIONS[option]}."
            )
        if not known:
            raise ValueError(f"method {name!r} has no options, got `{option}`.")
        read[option] = read_value(lookup(known, option, kind=f"option of {name}"), value, f"method.options.{option}")
    return method.build(facts, **read)


def resolved(recipe: Recipe) -> Recipe:
    """Return the recipe with averaging and the choice of the epoch decided.

    The published protocol averages no weights and takes the epoch with the lowest validation error. Under ``default`` a method
    may do otherwise.
    """
    train, name = recipe.train, split_name(recipe.method.name)[0]
    own = METHODS[name] if name in METHODS and recipe.method.preset == "default" else METHODS["ce"]
    average = own.average if train.average == "auto" else train.average
    select = own.select if train.select == "auto" else train.select
    return replace(recipe, train=replace(train, average=average, select=select))


# What identifies a run. Commands always state it, since a default may change.
NAMED = ("data.name", "backbone.name", "method.name", "method.preset", "train.epochs", "seed")


def run_name(recipe: Recipe) -> str:
    """Return the name of a run: ``DATA-MODEL-METHOD-seedN``, with ``-paper`` behind the method for that preset."""
    method = recipe.method.name + ("" if recipe.method.preset == "default" else f"-{recipe.method.preset}")
    words = (set_name(recipe.data.name), recipe.backbone.name.rpartition(":")[2], method, f"seed{recipe.seed}")
    return re.sub(r"[^\w.+-]", "-", "-".join(words))


def flat_recipe(recipe: Recipe) -> dict[str, object]:
    """Return everything that decides a run, dotted key → value: with the method's choices, without the place of the data."""
    decided = resolved(recipe)
    found = {key: value_of(decided, key) for key in KEYS if key not in ("data.root", "method.options")}
    return found | {f"method.options.{name}": value for name, value in decided.method.options.items()}


def text_of(value: object) -> str:
    """Return a value of a recipe as one would type it."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)


@cache
def usual_recipe(method: str, preset: str) -> Mapping[str, str]:
    """Return the recipe of a method that is told nothing else, as `flat_recipe` with values as text."""
    recipe = override(Recipe(), {"method.name": method, "method.preset": "paper" if preset == "paper" else "default"})
    return {key: text_of(value) for key, value in flat_recipe(recipe).items()}


def complete_recipe(method: str, preset: str | None, told: Mapping[str, object]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the whole recipe of a run that was ``told`` some keys, and those of them that its method would not have chosen.

    The second leaves out what identifies a run, and what does not change its result.
    """
    usual = usual_recipe(method, preset or "default")
    given = {key: text_of(value) for key, value in sorted(told.items())}
    silent = {*NAMED, *NEUTRAL, "train.eval_every_epochs"}
    return {**usual, **given}, {k: v for k, v in given.items() if k not in silent and usual.get(k) != v}
