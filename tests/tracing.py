"""Recording what a step does, to tell on any machine whether a CUDA graph of it would do the same.

A graph replays the same kernels with the same numbers at the same addresses. So a step must be the same program every time,
what it reads from outside must stay where it is, and nothing in it may come from the host's memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass
class Trace:
    """What a step did.

    Attributes:
        program: Every operation with its numbers and the shapes of its tensors.
        lost: Operations that read a tensor made before the step which is gone after it: a replay would read freed memory.
        mixed: Operations that take tensors of two devices, or copy between them.
    """

    program: list[tuple[Any, ...]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.trace = Trace()
        self.outside: dict[int, tuple[str, StorageWeakRef]] = {}
        # Weak references keep a storage's key from being given to another one.
        self.made: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree_leaves((args, kwargs or {}))
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        numbers = tuple(str(leaf) for leaf in leaves if not isinstance(leaf, Tensor))
        self.trace.program.append((str(func), numbers, tuple(tuple(value.shape) for value in given)))
        for value in given:
            reference = StorageWeakRef(value.untyped_storage())
            if reference.cdata not in self.made and reference.cdata not in self.outside:
                self.outside[reference.cdata] = (str(func), reference)
        out = func(*args, **(kwargs or {}))
        results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        for value in results:
            reference = StorageWeakRef(value.untyped_storage())
            if reference.cdata not in self.outside:
                self.made[reference.cdata] = reference
        if len({value.device.type for value in (*given, *results)}) > 1:
            self.trace.mixed.append(str(func))
        return out


def trace_step(step: Callable[[], object]) -> Trace:
    """Run ``step`` once and return what it did; what it returns is dropped."""
    with _Recorder() as recorder:
        step()
    # The young generations: what a step of a moment ago left behind.
    gc.collect(1)
    recorder.trace.lost = [name for name, reference in recorder.outside.values() if reference.expired()]
    return recorder.trace


@contextmanager
def autocast_everywhere() -> Iterator[None]:
    """Let ``torch.autocast`` be asked for on the meta device, which has none: it then does nothing."""
    original = torch.autocast

    class Quiet(original):  # type: ignore[misc, valid-type]
        def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
            meta = device_type == "meta"
            super().__init__("cpu" if meta else device_type, *args, **(kwargs | {"enabled": False} if meta else kwargs))

    torch.autocast = Quiet  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        torch.autocast = original  # type: ignore[misc]
