"""What a step of a `MetaLearner` reports, and the form in which it is saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from calibrant.meta.adam import AdamState
from calibrant.meta.regularizers.base import Params

# Entries that every state of a learner has.
_ENTRIES = ("hyper", "first", "second", "adam_steps", "steps", "meta_updates", "part", "meta_lr", "meta_batches")


@dataclass(frozen=True)
class StepInfo:
    """What a step did. Every number stays a tensor on the device until it is read, so that logging rarely costs a wait.

    Attributes:
        loss: Training loss ``[]``, reduced as the step's.
        logits: Training logits ``[B, C]``, detached.
        meta_value: Meta objective after the virtual step ``[]``, in its own units (nats for the default SECE, which is a
            divergence); None on a step without a meta update.
        hypergradient_norm: Norm of its gradient ``[]``; None likewise.
        values: The regularizer's summary at the last meta update: gamma's mean, spread, extremes, share at the bound.
        stepped: Whether the optimizer stepped (not on the first parts of an accumulated batch).
    """

    loss: Tensor
    logits: Tensor
    meta_value: Tensor | None = None
    hypergradient_norm: Tensor | None = None
    values: Mapping[str, Tensor] = field(default_factory=dict)
    stepped: bool = True

    def to_floats(self) -> dict[str, float]:
        """Return every number by name, for a log; waits for the device."""
        found = {"loss": self.loss, "meta_value": self.meta_value, "hypergradient_norm": self.hypergradient_norm}
        return {name: float(value) for name, value in (found | dict(self.values)).items() if value is not None}


def pack(hyper: Params, adam: AdamState) -> dict[str, Any]:
    """Copy hyper-parameters and Adam's state into plain dictionaries."""
    copies = {name: _cloned(values) for name, values in (("hyper", hyper), ("first", adam.first), ("second", adam.second))}
    return {**copies, "adam_steps": adam.steps.clone()}


def unpack(state: Mapping[str, Any], hyper: Params, adam: AdamState) -> None:
    """Copy what `pack` made into ``hyper`` and ``adam``, in place; raises ``ValueError`` if it is no such state."""
    missing = [name for name in _ENTRIES if name not in state]
    if missing:
        raise ValueError(
            f"MetaLearner.load_state_dict: `state` must be what `learner.state_dict()` gave, got one without {missing[0]!r}."
        )
    for name, held in (("hyper", hyper), ("first", adam.first), ("second", adam.second)):
        shapes, given = _shapes(held), _shapes(state[name])
        if shapes != given:
            raise ValueError(
                f"MetaLearner.load_state_dict: hyper-parameters must be {shapes}, got {given}. "
                "Build the learner with the same regularizer and head."
            )
        overwrite(held, state[name])
    adam.steps.copy_(state["adam_steps"])


def pack_grads(params: Params) -> Params:
    """Copy the gradients that ``params`` hold, by name."""
    return {name: value.grad.clone() for name, value in params.items() if value.grad is not None}


def unpack_grads(grads: Mapping[str, Tensor], params: Params) -> None:
    """Give ``params`` copies of what `pack_grads` made, on their device; those that had no gradient have none."""
    for name, value in params.items():
        value.grad = grads[name].to(value, copy=True) if name in grads else None


def overwrite(held: Params, source: Mapping[str, Tensor]) -> None:
    """Copy values into the tensors of ``held``, which keep their place in memory (a captured step reads them there)."""
    for name, value in held.items():
        value.copy_(source[name])


def _cloned(values: Params) -> Params:
    return {name: value.clone() for name, value in values.items()}


def _shapes(values: Mapping[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in values.items()}
