"""One meta update as functions of values: what `MetaLearner` strings together and a captured step can call by itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from calibrant.meta.adam import AdamState, adam_update
from calibrant.meta.bn import meta_mode
from calibrant.meta.leak import leaked_gradients, leaked_value
from calibrant.meta.lookahead import full_hypergradient, head_hypergradient
from calibrant.meta.network import (
    Inputs,
    Network,
    call,
    logits_of,
    logits_tangent,
    read_features,
    replayed_randomness,
    rows_of,
)
from calibrant.meta.presets import MetaSettings
from calibrant.meta.regularizers.base import Params, Regularizer
from calibrant.meta.virtual import (
    ALONE,
    Batch,
    Exchange,
    Hypergradient,
    MetaObjective,
    VirtualStep,
    clip_factor,
    total_norm,
)


@dataclass(frozen=True)
class Plan:
    """The constants of every meta update of a run.

    Attributes:
        network: The model and its head.
        regularizer: The training loss with hyper-parameters.
        objective: ``(logits, labels) -> []`` on meta batches.
        settings: How steps are taken.
        exchange: How processes share them.
        amp: Autocast type of forward passes, or None.
    """

    network: Network
    regularizer: Regularizer
    objective: MetaObjective
    settings: MetaSettings
    exchange: Exchange = ALONE
    amp: torch.dtype | None = None

    def __post_init__(self) -> None:
        if self.amp is not None and not isinstance(self.amp, torch.dtype):
            raise ValueError(
                f"MetaLearner: `amp` must be a dtype or None, got {self.amp!r}. Pass `torch.bfloat16`, for example."
            )

    def autocast(self) -> torch.autocast | nullcontext[None]:
        """Context of a forward pass."""
        if self.amp is None:
            return nullcontext()
        return torch.autocast(self.network.head.weight.device.type, dtype=self.amp)

    def virtual_step(self, lr: float | Tensor) -> VirtualStep:
        """The virtual step while the optimizer's learning rate is ``lr``."""
        chosen = self.settings.lookahead_lr
        return VirtualStep(
            lr=lr if isinstance(chosen, str) else chosen,
            reduction=self.settings.lookahead_reduction,
            clip=self.settings.lookahead_clip,
        )


def meta_features(plan: Plan, x_meta: Inputs, *, keep_graph: bool = False) -> Tensor:
    """Penultimate features ``[M, d]`` of held-out input, with BatchNorm and dropout as the settings say."""
    with torch.set_grad_enabled(keep_graph), meta_mode(plan.network.inner, plan.settings.meta_bn), plan.autocast():
        return read_features(plan.network, x_meta, inner=True)[0]


def head_update(
    plan: Plan, hyper: Params, batch: Batch, features: Tensor, labels: Tensor, *, lr: float | Tensor
) -> Hypergradient:
    """Hypergradient through the head, given the meta batch's ``features [M, d]`` and ``labels [M]``."""
    return head_hypergradient(
        plan.regularizer,
        plan.objective,
        hyper,
        head=plan.network.head_values,
        batch=batch,
        meta_features=features,
        meta_labels=labels,
        step=plan.virtual_step(lr),
        exchange=plan.exchange,
    )


def full_update(
    plan: Plan,
    hyper: Params,
    batch: Batch,
    x: Inputs,
    x_meta: Inputs,
    labels: Tensor,
    *,
    lr: float | Tensor,
    random: Tensor | None = None,
    loss_scale: float | Tensor = 1.0,
    kept: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Hypergradient:
    """Hypergradient through all parameters, given the training input ``x`` and the meta batch.

    ``kept`` are the rows of the network's outputs that ``batch`` and ``labels`` are about; None for all.
    """
    params = plan.network.parameters()
    head = _names_in(params, plan.network)

    def tangent_of(along: Params) -> Tensor:
        with plan.autocast(), replayed_randomness(random, plan.network.head.weight.device):
            return rows_of(logits_tangent(plan.network, x, params, along), kept[0])

    def meta_logits_of(values: Params) -> Tensor:
        def at_values(*args: object, **kwargs: object) -> object:
            made: object = functional_call(plan.network.inner, values, args, kwargs)
            return made

        with meta_mode(plan.network.inner, plan.settings.meta_bn), plan.autocast():
            return rows_of(logits_of(call(at_values, x_meta)), kept[1])

    return full_hypergradient(
        plan.regularizer,
        plan.objective,
        hyper,
        params=params,
        head=head,
        batch=batch,
        tangent_of=tangent_of,
        meta_logits_of=meta_logits_of,
        meta_labels=labels,
        step=plan.virtual_step(lr),
        exchange=plan.exchange,
        loss_scale=loss_scale,
    )


def _names_in(params: Params, network: Network) -> dict[str, str]:
    """Entry of the head → its name in ``params``: tied weights stand there once, by the name of the first layer."""
    names = {id(value): name for name, value in params.items()}
    for entry, value in network.head_values.items():
        if id(value) not in names:
            name = network.head_names[entry]
            raise ValueError(
                f"MetaLearner: the head must be trained where the look-ahead is full, but `{name}` takes no gradient. "
                'Unfreeze it, or use lookahead="head".'
            )
    return {entry: names[id(value)] for entry, value in network.head_values.items()}


def leaked(
    plan: Plan,
    hyper: Params,
    batch: Batch,
    features: Tensor,
    labels: Tensor,
    *,
    lr: float | Tensor,
    loss_scale: float | Tensor = 1.0,
) -> Params:
    """What the published code leaves in the network's gradient; ``batch`` and ``features`` with their graph."""
    value = leaked_value(
        plan.regularizer,
        plan.objective,
        hyper,
        head=plan.network.head_values,
        batch=batch,
        meta_features=features,
        meta_labels=labels,
        step=plan.virtual_step(lr),
    )
    return leaked_gradients(value, plan.network.parameters(), loss_scale=loss_scale)


def current_lr(optimizer: torch.optim.Optimizer, weight: Tensor) -> float | Tensor:
    """Learning rate of the parameter group that holds ``weight`` (of the first group if none does)."""
    groups = [group for group in optimizer.param_groups if any(value is weight for value in group["params"])]
    lr: float | Tensor = (groups or optimizer.param_groups)[0]["lr"]
    return lr


def next_hyper(
    plan: Plan, hyper: Mapping[str, Tensor], grads: Params, adam: AdamState, *, lr: float
) -> tuple[Params, AdamState, Tensor]:
    """Step the hyper-parameters down the hypergradient.

    Returns:
        New hyper-parameters (stepped, then projected), Adam's new state, and the mean size of a step in units of ``lr``.
    """
    settings = plan.settings
    with torch.no_grad():
        if settings.meta_clip is not None:
            factor = clip_factor(total_norm(grads), settings.meta_clip)
            grads = {name: factor * grad for name, grad in grads.items()}
        stepped, state = adam_update(hyper, grads, adam, lr=lr, betas=settings.betas, eps=settings.eps)
        moves = torch.cat([(stepped[name] - value).abs().reshape(-1) for name, value in hyper.items()])
        return plan.regularizer.project(stepped), state, moves.mean() / lr
