"""Replaying a whole training step as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def capture_step(step: Callable[[], None], *, state: Sequence[Tensor], warmup: int = 3) -> Callable[[], None]:
    """Record ``step`` once and return a function that replays it.

    Capturing needs a few ordinary runs first (lazy initialisation, autotuning, compilation). They change the state, so it is
    saved before and put back after: training starts from the same point as without a graph.

    Args:
        step: A step that takes everything from, and leaves everything in, tensors of fixed address, and never waits
            for the device.
        state: Every tensor that the step changes.
        warmup: Ordinary runs before the capture.

    Returns:
        A function without arguments that runs the step.
    """
    saved = [tensor.detach().clone() for tensor in state]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    with torch.no_grad():
        for tensor, value in zip(state, saved, strict=True):
            tensor.copy_(value)
    torch.cuda.synchronize()

    def replay() -> None:
        graph.replay()

    return replay
