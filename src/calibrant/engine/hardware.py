"""Where and how a run computes: device, arithmetic, compilation, capture, and the processes that share the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, NamedTuple

import torch

from calibrant.engine.distributed import ALONE_GROUP, Group

Precision = Literal["bf16", "float32", "float64"]


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

    def active(self) -> AbstractContextManager[object]:
        """Return a context in which the run's GPU is the current one, as captured graphs and NCCL need it.

        In it cuDNN tries its algorithms out, once for every shape: 6 to 8 % more images a second with ResNet-18 on an H200. Not
        where ``torch.use_deterministic_algorithms`` is on, as the fastest one may be another in every run.
        """
        return _on_gpu(self.device) if self.device.type == "cuda" else nullcontext()


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
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"train: `device` must be 'auto', 'cpu', 'cuda' or 'cuda:1', got {device!r}.")
    cuda = chosen.type == "cuda"
    if cuda and not available:
        raise ValueError(f"train: `device` must be present, got {device!r} without a CUDA device. Use `--device cpu`.")
    if graph == "yes" and not cuda:
        raise ValueError("train: `train.graph` must be 'auto' or 'no' on the CPU, got 'yes'. Only CUDA devices have graphs.")
    if cuda:
        chosen = _one_gpu(chosen, group)
    if precision == "auto":
        precision = "bf16" if cuda and torch.cuda.is_bf16_supported() else "float32"
    compile_it = compiled == "yes" or (compiled == "auto" and cuda and steps >= 50_000 and group.world_size == 1)
    captured = cuda and (graph == "yes" or (graph == "auto" and group.world_size == 1))
    return Hardware(chosen, precision, compile_it, captured, group)


@contextmanager
def _on_gpu(device: torch.device) -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or not torch.are_deterministic_algorithms_enabled()
    try:
        with torch.cuda.device(device):
            yield
    finally:
        torch.backends.cudnn.benchmark = before


def _one_gpu(device: torch.device, group: Group) -> torch.device:
    index = group.local_rank if group.world_size > 1 else device.index
    count = torch.cuda.device_count()
    if index is not None and index >= count:
        raise ValueError(f"train: `device` must be one of {count} CUDA devices, counted from 0, got cuda:{index}.")
    return torch.device("cuda", torch.cuda.current_device() if index is None else index)
