"""Several processes training one network: who they are, and the few things they tell each other.

Each process takes its slice of one global batch. What needs the whole batch (penalties, meta objectives) gathers logits, whose
gradient is one's own slice; gradients are then summed. So the result is that of one process, whatever their number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from calibrant.meta.lookahead import ALONE, Exchange, combine, gather

T = TypeVar("T")


class Group(NamedTuple):
    """The processes that train together; the default is a single one, for which every method is the identity.

    Attributes:
        rank: This process.
        world_size: Number of processes.
        local_rank: This process among those of its machine, which is also the GPU it takes.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    @property
    def exchange(self) -> Exchange:
        """How the processes share a look-ahead step."""
        return ALONE if self.world_size == 1 else Exchange(combine, gather)

    def gather(self, tensor: Tensor) -> Tensor:
        """Concatenate equal parts ``[B, ...]`` of all processes; the gradient of one's own part passes."""
        return tensor if self.world_size == 1 else gather(tensor.contiguous())

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, in one message."""
        if self.world_size == 1 or not tensors:
            return
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        with torch.no_grad():
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def share(self, value: T) -> T:
        """Return the value that the first process has."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def by_first(self, make: Callable[[], T]) -> T:
        """Return what ``make`` returns in the first process, which alone calls it; a fault it finds is raised in all."""
        if self.world_size == 1:
            return make()
        value: T | None = None
        fault: ValueError | OSError | None = None
        if self.leads:
            try:
                value = make()
            except (ValueError, OSError) as error:
                fault = error
        found, said = self.share((value, None if fault is None else str(fault)))
        if fault is not None:
            raise fault
        if said is not None:
            raise ValueError(said)
        return cast(T, found)


ALONE_GROUP = Group()


@contextmanager
def joined_group(device: str) -> Iterator[Group]:
    """Join the other processes of a launcher such as ``torchrun``, and leave them afterwards.

    The launcher's environment variables ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK`` say who is who. A process group that is
    there already is used and left in place; without launcher and group there is one process.

    Args:
        device: The recipe's device: processes on GPUs talk through NCCL, others through gloo.

    Yields:
        The group.
    """
    rank, world_size, local_rank = _variable("RANK", 0), _variable("WORLD_SIZE", 1), _variable("LOCAL_RANK", 0)
    if dist.is_available() and dist.is_initialized():
        yield Group(dist.get_rank(), dist.get_world_size(), local_rank)
        return
    if world_size == 1:
        yield ALONE_GROUP
        return
    cuda = torch.cuda.is_available() and device != "cpu"
    # All processes of a machine count alike and fail alike, where the launcher says how many they are.
    here = max(local_rank + 1, _variable("LOCAL_WORLD_SIZE", 1))
    if cuda and here > torch.cuda.device_count():
        got = f"{here} processes on a machine with {torch.cuda.device_count()}"
        raise ValueError(f"train: every process must have a GPU of its own, got {got}. Lower `--nproc-per-node`.")
    # NCCL sends from the current GPU, also what is no tensor; told of it, it connects now and not within the first step.
    own = torch.device("cuda", local_rank) if cuda else None
    with nullcontext() if own is None else torch.cuda.device(own):
        dist.init_process_group("gloo" if own is None else "nccl", rank=rank, world_size=world_size, device_id=own)
        try:
            yield Group(rank, world_size, local_rank)
            # The first one writes last. A launcher ends all processes as soon as one leaves in an unclean way, and one that
            # leaves while others are at work may. Where another has failed, it says why itself.
            with suppress(RuntimeError):
                dist.barrier()
        finally:
            dist.destroy_process_group()


def _variable(name: str, default: int) -> int:
    return int(os.environ.get(name) or default)


def is_first_process() -> bool:
    """Whether this process is the first of those that a launcher started, or the only one."""
    return _variable("RANK", 0) == 0
