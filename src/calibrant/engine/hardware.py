"""Choosing device, arithmetic and compilation for a recipe."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from calibrant.engine.step import Precision


class Hardware(NamedTuple):
    """Where and how a run computes."""

    device: torch.device
    precision: Precision
    compiled: bool
    captured: bool

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of weights and images."""
        return torch.float64 if self.precision == "float64" else torch.float32


def choose_hardware(
    *,
    device: str = "auto",
    precision: Literal["auto", "bf16", "float32", "float64"] = "auto",
    compiled: Literal["auto", "yes", "no"] = "auto",
    steps: int = 1,
) -> Hardware:
    """Resolve the "auto" entries of a recipe for this machine.

    Args:
        device: "auto" takes a CUDA device if there is one.
        precision: "auto" is bf16 on a CUDA device that has it, float32 elsewhere.
        compiled: "auto" compiles on CUDA where the run is long enough: compiling takes half a minute and makes a ResNet-18 step
            about a fifth faster (0.5 ms of 2.8), so it pays from about 50,000 steps on.
        steps: Steps of the whole run.

    Returns:
        The choice; raises ``ValueError`` for a device that is not there.
    """
    available = torch.cuda.is_available()
    chosen = torch.device(("cuda" if available else "cpu") if device == "auto" else device)
    if chosen.type == "cuda" and not available:
        raise ValueError(f"train: `device` must be present, got {device!r} without a CUDA device. Use `--device cpu`.")
    cuda = chosen.type == "cuda"
    if precision == "auto":
        precision = "bf16" if cuda and torch.cuda.is_bf16_supported() else "float32"
    compile_it = compiled == "yes" or (compiled == "auto" and cuda and steps >= 50_000)
    return Hardware(chosen, precision, compile_it, cuda)
