"""The virtual step that a hypergradient looks through, as values: records, the step itself and its clipping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from calibrant.meta.regularizers.base import Params

MetaObjective: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class VirtualStep:
    """The step that is looked ahead: plain gradient descent, without momentum or weight decay.

    Attributes:
        lr: Its size, a number or a scalar tensor.
        reduction: Whether the training loss of the step is the "mean" or the "sum" over the batch.
        clip: Largest norm of the gradient over the parameters that take the step, or None.
    """

    lr: float | Tensor = 0.1
    reduction: Literal["mean", "sum"] = "mean"
    clip: float | None = None

    def factor(self, count: int) -> float:
        """What the gradient of a summed loss over ``count`` samples is multiplied by."""
        return 1.0 / count if self.reduction == "mean" else 1.0


class Hypergradient(NamedTuple):
    """Value of the objective after the virtual step, and its gradient with respect to every hyper-parameter."""

    value: Tensor
    grads: Params

    def norm(self) -> Tensor:
        """Euclidean norm over all hyper-parameters, ``[]``."""
        return total_norm(self.grads)


class Batch(NamedTuple):
    """What a training batch gives to a regularizer: penultimate ``features [B, d]``, ``logits [B, C]`` and ``labels [B]``."""

    features: Tensor
    logits: Tensor
    labels: Tensor


class Exchange(NamedTuple):
    """How processes share a step; the default is a single process.

    Attributes:
        combine: Makes the global gradients of per-process ones, given the reduction.
        gather: Concatenates a tensor over the processes; the gradient of one's own part passes.
    """

    combine: Callable[[Params, str], Params]
    gather: Callable[[Tensor], Tensor]


ALONE = Exchange(lambda grads, reduction: grads, lambda tensor: tensor)


def total_norm(values: Mapping[str, Tensor]) -> Tensor:
    """Euclidean norm ``[]`` over all entries of all tensors."""
    norms = [torch.linalg.vector_norm(value) for value in values.values()]
    return torch.stack(norms).square().sum().sqrt()


def virtual_sgd(
    params: Mapping[str, Tensor], grads: Mapping[str, Tensor], *, lr: float | Tensor, clip: float | None = None
) -> Params:
    """Return the parameters after one plain gradient step; the arguments stay as they are, and the graph is kept.

    Args:
        params: Name → tensor.
        grads: Name → gradient, for some of them.
        lr: Step size.
        clip: Largest norm of all gradients together, as in ``torch.nn.utils.clip_grad_norm_``.

    Returns:
        Name → new tensor.

    Example:
        >>> virtual_sgd({"w": torch.tensor([1.0])}, {"w": torch.tensor([4.0])}, lr=0.25, clip=2.0)
        {'w': tensor([0.5000])}
    """
    scale = lr if clip is None else lr * clip_factor(total_norm(grads), clip)
    if isinstance(scale, Tensor):
        return {name: value - scale * grads[name] if name in grads else value for name, value in params.items()}
    return {name: value.sub(grads[name], alpha=scale) if name in grads else value for name, value in params.items()}


def clip_factor(norm: Tensor, clip: float) -> Tensor:
    """Factor that brings a gradient of this ``norm`` to at most ``clip``."""
    return (clip / (norm + 1e-6)).clamp(max=1.0)


def through_clip(pull: Params, grads: Params, clip: float | None) -> Params:
    """Pull the gradient by the clipped step back to the unclipped one: the factor depends on the norm, which depends on phi."""
    if clip is None:
        return pull
    norm = total_norm(grads)
    factor = clip_factor(norm, clip)
    inside = torch.stack([(pull[name] * grad).sum() for name, grad in grads.items()]).sum()
    bend = torch.where(factor < 1, -clip / (norm + 1e-6).square() * inside / norm, torch.zeros_like(norm))
    return {name: factor * pull[name] + bend * grad for name, grad in grads.items()}
