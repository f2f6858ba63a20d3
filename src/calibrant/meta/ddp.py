"""How several processes share a virtual step: gradients are combined, and the objective sees the global meta batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from calibrant.meta.regularizers.base import Params
from calibrant.meta.virtual import ALONE, Exchange


class _Gather(torch.autograd.Function):
    """All processes' tensors, one after the other; the gradient is one's own part.

    Every process evaluates the same objective on the same gathered batch, so each already holds the whole derivative of it and
    need only take its slice. (``torch.distributed.nn.all_gather`` adds the processes' derivatives: too large by their number.)
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.slot, ctx.size = dist.get_rank(group), len(tensor)
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, tensor.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].narrow(0, ctx.slot * ctx.size, ctx.size), None


def gather(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Concatenate ``tensor [M, ...]`` over all processes of ``group`` to ``[world · M, ...]``; M must be the same in each."""
    made: Tensor = _Gather.apply(tensor, group)
    return made


def combine(grads: Params, reduction: str, group: dist.ProcessGroup | None = None) -> Params:
    """Sum (``reduction="sum"``) or average the gradients of all processes, in one message."""
    flat = torch.cat([grad.reshape(-1) for grad in grads.values()])
    dist.all_reduce(flat, group=group)
    if reduction == "mean":
        flat = flat / dist.get_world_size(group)
    parts = flat.split([grad.numel() for grad in grads.values()])
    return {name: part.view_as(grad) for (name, grad), part in zip(grads.items(), parts, strict=True)}


def exchange_of(group: dist.ProcessGroup | None) -> Exchange:
    """How the processes of ``group`` share a step; a process without a group is alone."""
    if group is None:
        return ALONE
    return Exchange(lambda grads, reduction: combine(grads, reduction, group), lambda tensor: gather(tensor, group))


def group_of(model: nn.Module) -> dist.ProcessGroup | None:
    """Process group of the `DistributedDataParallel` wrapper in ``model``, or None."""
    while isinstance(getattr(model, "_orig_mod", None), nn.Module):
        model = model._orig_mod  # type: ignore[assignment]
    return model.process_group if isinstance(model, nn.parallel.DistributedDataParallel) else None


def broadcast(values: Params, group: dist.ProcessGroup) -> None:
    """Overwrite ``values`` with those of the group's first process, so that all start alike."""
    first = dist.get_global_rank(group, 0)
    for value in values.values():
        dist.broadcast(value, src=first, group=group)
