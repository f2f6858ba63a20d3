"""What a meta step minimises and how it is taken: objectives, settings, and the presets ``default`` and ``paper``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, TypeAlias, cast, get_args, get_type_hints

from torch import Tensor

from calibrant.core.checks import check_count, check_positive
from calibrant.core.registry import lookup
from calibrant.losses import LOSSES, PENALTIES, sece_penalty
from calibrant.meta.lookahead import MetaObjective, VirtualStep
from calibrant.meta.network import MetaBN
from calibrant.meta.regularizers import REGULARIZERS, GammaFocal, Regularizer, UnitwiseL2

Reduction: TypeAlias = Literal["mean", "sum"]


@dataclass(frozen=True)
class MetaSettings:
    """Everything that says how the hyper-parameters, and with them the network, are stepped.

    Attributes:
        lookahead: Whether the virtual step moves the "head" alone or the "full" network.
        lookahead_lr: Size of the virtual step: a number, or "current" for the optimizer's learning rate of the moment.
        lookahead_reduction: Whether the virtual step's loss is the "mean" or the "sum" over the training batch.
        every: Optimizer steps from one meta update to the next.
        meta_lr: Learning rate of Adam on the hyper-parameters; None takes the regularizer's own pace, which does not depend on
            feature width, number of classes or temperature.
        betas: Memory of Adam's two means.
        eps: What Adam adds to the root of the second mean. Hypergradients shrink by orders of magnitude as training proceeds:
            with the usual 1e-8 they would fall below it and freeze.
        meta_bn: BatchNorm on meta batches: "batch", "update" or "frozen" (see `calibrant.meta.network.meta_mode`).
        leak_meta_grad: Add the gradient of the meta objective to the network's own, as the published code does by omission.
        reduction: Whether the network's own step minimises the "mean" or the "sum" of the loss over the batch.
        clip: Largest norm of the network's gradient, or None.
    """

    lookahead: Literal["head", "full"] = "head"
    lookahead_lr: float | Literal["current"] = 0.1
    lookahead_reduction: Reduction = "mean"
    every: int = 4
    meta_lr: float | None = None
    betas: tuple[float, float] = (0.5, 0.9)
    eps: float = 1e-12
    meta_bn: MetaBN = "batch"
    leak_meta_grad: bool = False
    reduction: Reduction = "mean"
    clip: float | None = None

    def __post_init__(self) -> None:
        hints = get_type_hints(MetaSettings)
        for name in ("lookahead", "lookahead_reduction", "meta_bn", "reduction"):
            if getattr(self, name) not in get_args(hints[name]):
                options = ", ".join(map(repr, get_args(hints[name])))
                raise ValueError(f"MetaLearner: `{name}` must be one of {options}, got {getattr(self, name)!r}.")
        check_count(self.every, where="MetaLearner", name="every")
        for name in ("lookahead_lr", "meta_lr", "eps", "clip"):
            value = getattr(self, name)
            if value is not None and value != "current":
                check_positive(value, where="MetaLearner", name=name)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"MetaLearner: `betas` must be two numbers in [0, 1), got {self.betas!r}.")

    def virtual_step(self, lr: float | Tensor) -> VirtualStep:
        """The virtual step while the optimizer's learning rate is ``lr``."""
        return VirtualStep(lr if isinstance(self.lookahead_lr, str) else self.lookahead_lr, self.lookahead_reduction)


def make_objective(
    objective: str | Mapping[str, float] | MetaObjective, *, variants: Mapping[str, MetaObjective] | None = None
) -> MetaObjective:
    """Make a function ``(logits, labels) -> []`` of a name or of weighted names; one that is a function already stays.

    Args:
        objective: "sece", "dece", "skce", "nll" or any other key of ``LOSSES`` (whose mean is taken) and ``PENALTIES``; a
            mapping of such names to weights; or a callable.
        variants: Name → function to use for it instead of the table's.

    Returns:
        The function. Raises ``ValueError`` if a name is unknown.

    Example:
        >>> import torch
        >>> objective = make_objective({"sece": 1.0, "nll": 0.5})
        >>> objective(torch.zeros(2, 2), torch.tensor([0, 1]))  # 0 + 0.5 ln 2
        tensor(0.3466)
    """
    table = objective_table() | dict(variants or {})
    if isinstance(objective, str):
        return lookup(table, objective, kind="meta objective")
    if isinstance(objective, Mapping) and objective:
        return partial(_weighted, [(float(w), lookup(table, name, kind="meta objective")) for name, w in objective.items()])
    if not callable(objective):
        raise ValueError(f"MetaLearner: `objective` must be a name, names with weights, or a function, got {objective!r}.")
    return objective


def objective_table() -> dict[str, MetaObjective]:
    """Name → objective with its defaults, of everything in ``LOSSES`` and ``PENALTIES`` that needs logits and labels only."""
    losses = {"nll": LOSSES["cross_entropy"].function} | {name: entry.function for name, entry in LOSSES.available().items()}
    means = {name: partial(_mean, function) for name, function in losses.items() if _needs_nothing_else(function)}
    return means | {
        name: entry.function for name, entry in PENALTIES.available().items() if _needs_nothing_else(entry.function)
    }


def _needs_nothing_else(function: Callable[..., Tensor]) -> bool:
    return sum(parameter.default is parameter.empty for parameter in inspect.signature(function).parameters.values()) == 2


def _mean(function: Callable[..., Tensor], logits: Tensor, labels: Tensor) -> Tensor:
    return function(logits, labels).mean()


def _weighted(terms: list[tuple[float, MetaObjective]], logits: Tensor, labels: Tensor) -> Tensor:
    return cast(Tensor, sum(weight * term(logits, labels) for weight, term in terms))


# As the paper's text has it. At 0.01 on a small batch it is close to the mean of |correct - confidence|, which rewards
# sharpness and pulls gamma to zero.
PAPER_SECE = partial(sece_penalty, bandwidth=0.01, accuracy="soft", sharpness=100.0)
# The gradient flows through the confidences alone: what flows through the kernel, as confidences move past each other, is
# nearly all noise (the hypergradient by gamma has the right sign in 66-92 % of the steps without it, in 50-68 % with it).
# Centred and by divergence it has a slope where most confidences are near one; the plain one has none there (docs/meta.md).
DEFAULT_SECE = partial(sece_penalty, bandwidth=0.05, accuracy="hard", detach_accuracy=True, centred=True, distance="kl")


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
        REGULARIZERS
        | {
            "gamma-focal": partial(GammaFocal, gamma_max=None),
            "unitwise-l2": partial(UnitwiseL2, nonnegative=False, share="batch"),
        },
        {"sece": PAPER_SECE},
    ),
}


def settings_of(preset: Preset, options: Mapping[str, Any]) -> MetaSettings:
    """Return the preset's settings with ``options`` in their place; an unknown option raises, naming the nearest."""
    known = {field.name: None for field in fields(MetaSettings)}
    for name in options:
        lookup(known, name, kind="option of MetaLearner")
    return replace(preset.settings, **options)
