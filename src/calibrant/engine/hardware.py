"""Where and how a run computes: device, arithmetic, compilation, capture, and the processes that share the work.

Each process takes its slice of one global batch. What needs the whole batch (penalties, meta objectives) gathers logits, whose
gradient is one's own slice; gradients are then summed. So the result is that of one process, whatever their number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Literal, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from calibrant.meta.lookahead import gather

T = TypeVar("T")
Precision = Literal["bf16", "float32", "float64"]


class Group(NamedTuple):
    """The processes that train together; the default is a single one, for which every method is the identity.

    The ``local_rank`` is that among the processes of a machine, and the GPU that this one takes.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def processes(self) -> dist.ProcessGroup | None:
        """The processes that share a look-ahead step; None for a single one."""
        return dist.group.WORLD if self.world_size > 1 else None

    def gather(self, tensor: Tensor) -> Tensor:
        """Concatenate equal parts ``[B, ...]`` of all processes; the gradient of one's own part passes."""
        return tensor if self.world_size == 1 else gather(tensor.contiguous(), self.processes)

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

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over the processes."""
        if self.world_size > 1:
            self.add_up(tensors)
            for tensor in tensors:
                tensor /= self.world_size

    def by_first(self, make: Callable[[], T]) -> T:
        """Return what ``make`` returns in the first process, which alone calls it; a fault it finds is raised in all."""
        if self.world_size == 1:
            return make()
        box: list[object] = [None, None]
        fault: ValueError | OSError | None = None
        if self.rank == 0:
            try:
                box[0] = make()
            except (ValueError, OSError) as error:
                fault, box[1] = error, str(error)
        dist.broadcast_object_list(box, src=0)
        if box[1] is not None:
            raise fault or ValueError(box[1])
        return cast(T, box[0])


ALONE_GROUP = Group()


@contextmanager
def joined_group(device: str) -> Iterator[Group]:
    """Join the other processes of a launcher such as ``torchrun``, and leave them afterwards.

    A process group that is there already is used and left in place; without launcher and group there is one process.
    """
    rank, world_size, local_rank = _variable("RANK", 0), _variable("WORLD_SIZE", 1), _variable("LOCAL_RANK", 0)
    if dist.is_available() and dist.is_initialized():
        yield Group(dist.get_rank(), dist.get_world_size(), local_rank)
        return
    if world_size == 1:
        yield ALONE_GROUP
        return
    cuda, here = torch.cuda.is_available() and device != "cpu", _variable("LOCAL_WORLD_SIZE", 1)
    if cuda and here > torch.cuda.device_count():
        got = f"{here} processes on a machine with {torch.cuda.device_count()}"
        raise ValueError(f"train: every process must have a GPU of its own, got {got}. Lower `--nproc-per-node`.")
    # NCCL sends from the current GPU, also what is no tensor; told of it, it connects now and not within the first step.
    own = torch.device("cuda", local_rank) if cuda else None
    with nullcontext() if own is None else torch.cuda.device(own):
        dist.init_process_group("gloo" if own is None else "nccl", rank=rank, world_size=world_size, device_id=own)
        try:
            yield Group(rank, world_size, local_rank)
            # The first one writes last, and a launcher may end it when others leave. Where one has failed, it says why itself.
            with suppress(RuntimeError):
                dist.barrier()
        finally:
            dist.destroy_process_group()


def _variable(name: str, default: int) -> int:
    return int(os.environ.get(name) or default)


def is_first_process() -> bool:
    """Whether this process is the first of those that a launcher started, or the only one."""
    return _variable("RANK", 0) == 0


class Hardware(NamedTuple):
    """Where and how a run computes."""

    device: torch.device
    precision: Precision = "float32"
    compiled: bool = False
    captured: bool = False
    group: Group = ALONE_GROUP

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of weights and images."""
        return torch.float64 if self.precision == "float64" else torch.float32

    def autocast(self) -> torch.autocast:
        """Return a context in which networks compute in bf16, if that is the precision."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16")

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make the run's GPU the current one, as captured graphs and NCCL need it.

        In it cuDNN tries its algorithms out (6 to 8 % faster with ResNet-18 on an H200), unless PyTorch must be deterministic.
        """
        if self.device.type != "cuda":
            yield
            return
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = before or not torch.are_deterministic_algorithms_enabled()
        try:
            with torch.cuda.device(self.device):
                yield
        finally:
            torch.backends.cudnn.benchmark = before


def choose_hardware(
    *,
    device: str = "auto",
    precision: Literal["auto", "bf16", "float32", "float64"] = "auto",
    compiled: Literal["auto", "yes", "no"] = "auto",
    graph: Literal["auto", "yes", "no"] = "auto",
    steps: int = 1,
    group: Group = ALONE_GROUP,
) -> Hardware:
    """Resolve the "auto" entries of a recipe for this machine.

    Args:
        device: "auto" takes a CUDA device if there is one.
        precision: "auto" is bf16 on a CUDA device that has it, float32 elsewhere.
        compiled: "auto" compiles on CUDA where the run is long enough: compiling takes half a minute and makes a ResNet-18 step
            about a fifth faster (0.5 ms of 2.8), so it pays from about 50,000 steps on. Not where several processes train
            together: synchronised BatchNorm would break the network into as many pieces as it has layers.
        graph: "auto" captures the step on CUDA, unless several processes talk to each other within it.
        steps: Steps of the whole run.
        group: Processes that train together; each takes the GPU of its local rank.

    Returns:
        The choice; raises ``ValueError`` for a device that is not there, or that cannot do what is asked for.
    """
    available = torch.cuda.is_available()
    try:
        chosen = torch.device(("cuda" if available else "cpu") if device == "auto" else device)
    except RuntimeError:
        chosen = torch.device("meta")
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"train: `device` must be 'auto', 'cpu', 'cuda' or 'cuda:1', got {device!r}.")
    cuda, alone = chosen.type == "cuda", group.world_size == 1
    if cuda and not available:
        raise ValueError(f"train: `device` must exist here, got {device!r} where there is no CUDA device. Use `--device cpu`.")
    if cuda:
        index, count = chosen.index if alone else group.local_rank, torch.cuda.device_count()
        if index is not None and index >= count:
            raise ValueError(f"train: `device` must be one of {count} CUDA devices, counted from 0, got cuda:{index}.")
        chosen = torch.device("cuda", torch.cuda.current_device() if index is None else index)
    if precision == "auto":
        precision = "bf16" if cuda and torch.cuda.is_bf16_supported() else "float32"
    compile_it = compiled == "yes" or (compiled == "auto" and cuda and steps >= 50_000 and alone)
    captured = cuda and (graph == "yes" or (graph == "auto" and alone))
    return Hardware(chosen, precision, compile_it, captured, group)
