"""Settings of a meta step and the two presets: what works (``default``) and the most literal reading (``paper``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, TypedDict

from calibrant.core.checks import check_count, check_positive
from calibrant.core.registry import lookup
from calibrant.losses import sece_penalty
from calibrant.meta.bn import MetaBN
from calibrant.meta.objectives import DEFAULT_SECE, PAPER_SECE
from calibrant.meta.regularizers import REGULARIZERS, GammaFocal, LabelSmoothing, Regularizer, UnitwiseL2
from calibrant.meta.virtual import MetaObjective


@dataclass(frozen=True)
class MetaSettings:
    """Everything that says how the hyper-parameters, and with them the network, are stepped.

    Attributes:
        lookahead: Whether the virtual step moves the "head" alone or the "full" network.
        lookahead_lr: Size of the virtual step: a number, or "current" for the optimizer's learning rate of the moment.
        lookahead_reduction: Whether the virtual step's loss is the "mean" or the "sum" over the training batch.
        lookahead_clip: Largest norm of the virtual step's gradient, or None.
        every: Optimizer steps from one meta update to the next.
        meta_lr: Learning rate of Adam on the hyper-parameters; None takes the regularizer's own pace, which does not depend on
            feature width, number of classes or temperature.
        betas: Memory of Adam's two means.
        eps: What Adam adds to the root of the second mean.
        meta_clip: Largest norm of the hypergradient, or None. Adam is indifferent to its size, not to single outbursts.
        meta_bn: BatchNorm on meta batches: "batch", "update" or "frozen" (see `calibrant.meta.bn.meta_mode`).
        leak_meta_grad: Add the gradient of the meta objective to the network's own, as the published code does by omission.
        reduction: Whether the network's own step minimises the "mean" or the "sum" of the loss over the batch.
        clip: Largest norm of the network's gradient, or None.
    """

    lookahead: Literal["head", "full"] = "head"
    lookahead_lr: float | Literal["current"] = 0.1
    lookahead_reduction: Literal["mean", "sum"] = "mean"
    lookahead_clip: float | None = None
    every: int = 4
    meta_lr: float | None = None
    betas: tuple[float, float] = (0.5, 0.9)
    eps: float = 1e-12
    meta_clip: float | None = None
    meta_bn: MetaBN = "batch"
    leak_meta_grad: bool = False
    reduction: Literal["mean", "sum"] = "mean"
    clip: float | None = None

    def __post_init__(self) -> None:
        for name, options in _OPTIONS.items():
            if getattr(self, name) not in options:
                raise ValueError(
                    f"MetaLearner: `{name}` must be one of {', '.join(map(repr, options))}, got {getattr(self, name)!r}."
                )
        check_count(self.every, where="MetaLearner", name="every")
        for name in ("lookahead_lr", "lookahead_clip", "meta_lr", "eps", "meta_clip", "clip"):
            value = getattr(self, name)
            if value is not None and value != "current":
                check_positive(value, where="MetaLearner", name=name)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"MetaLearner: `betas` must be two numbers in [0, 1), got {self.betas!r}.")


class Options(TypedDict, total=False):
    """The fields of `MetaSettings` as keyword arguments, each overriding the preset's value."""

    lookahead: Literal["head", "full"]
    lookahead_lr: float | Literal["current"]
    lookahead_reduction: Literal["mean", "sum"]
    lookahead_clip: float | None
    every: int
    meta_lr: float | None
    betas: tuple[float, float]
    eps: float
    meta_clip: float | None
    meta_bn: MetaBN
    leak_meta_grad: bool
    reduction: Literal["mean", "sum"]
    clip: float | None


_OPTIONS: dict[str, tuple[object, ...]] = {
    "lookahead": ("head", "full"),
    "lookahead_reduction": ("mean", "sum"),
    "meta_bn": ("batch", "update", "frozen"),
    "reduction": ("mean", "sum"),
}


@dataclass(frozen=True)
class Preset:
    """A named set of choices.

    Attributes:
        settings: How steps are taken.
        regularizers: Key → constructor.
        objectives: Key → objective, where it is not the table's.
    """

    settings: MetaSettings
    regularizers: Mapping[str, Callable[..., Regularizer]]
    objectives: Mapping[str, MetaObjective]


PRESETS: dict[str, Preset] = {
    # Found on CIFAR-10 and CIFAR-100. A short memory and a virtual step that does not follow the learning rate keep gamma
    # moving when the hypergradient shrinks a thousandfold; (0.9, 0.999) froze it at the first drop of the learning rate.
    "default": Preset(MetaSettings(), REGULARIZERS, {"sece": DEFAULT_SECE}),
    # What the paper and the code it extends say, where they say something: Adam as PyTorch has it, the virtual step with the
    # scheduled learning rate and the summed gradient, unclipped, a meta update every step, the real step summed and clipped,
    # BatchNorm in training mode, the meta gradient left in the network's. It can explode.
    "paper": Preset(
        MetaSettings(
            lookahead_lr="current",
            lookahead_reduction="sum",
            every=1,
            meta_lr=1e-3,
            betas=(0.9, 0.999),
            eps=1e-8,
            meta_bn="update",
            leak_meta_grad=True,
            reduction="sum",
            clip=2.0,
        ),
        {
            "gamma-focal": partial(GammaFocal, gamma_max=None),
            "unitwise-l2": partial(UnitwiseL2, nonnegative=False, share="batch"),
            "label-smoothing": partial(LabelSmoothing, flat_start=False),
            "label-smoothing-per-class": partial(LabelSmoothing, form="per-class", flat_start=False),
            "label-smoothing-non-uniform": partial(LabelSmoothing, form="non-uniform", flat_start=False),
        },
        {"sece": PAPER_SECE},
    ),
}


def settings_of(preset: Preset, options: Mapping[str, Any]) -> MetaSettings:
    """Return the preset's settings with ``options`` in their place; an unknown option raises, naming the nearest."""
    known = {field.name: None for field in fields(MetaSettings)}
    for name in options:
        if name not in known and (owner := _owner_of(name)):
            raise ValueError(f"MetaLearner: `{name}` must be given to what it belongs to, got it as an option. Use `{owner}`.")
        lookup(known, name, kind="option of MetaLearner")
    return replace(preset.settings, **options)


def _owner_of(name: str) -> str | None:
    """How an option is given that belongs to a regularizer or to SECE; None for others."""
    for build in (GammaFocal, UnitwiseL2, LabelSmoothing):
        if name in inspect.signature(build).parameters:
            return f"regularizer={build.__name__}({name}=...)"
    keyword = name in inspect.signature(sece_penalty).parameters
    return f"objective=functools.partial(calibrant.losses.sece_penalty, {name}=...)" if keyword else None


def regularizer_of(preset: Preset, regularizer: str | Regularizer) -> Regularizer:
    """Return the regularizer itself, or the preset's by its name."""
    if isinstance(regularizer, Regularizer):
        return regularizer
    return lookup(preset.regularizers, regularizer, kind="regularizer")()
