"""How BatchNorm and dropout behave while meta data, or a second pass over training data, go through the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

MetaBN: TypeAlias = Literal["batch", "update", "frozen"]


@contextmanager
def meta_mode(model: nn.Module, meta_bn: MetaBN) -> Iterator[None]:
    """Set ``model`` up for a forward pass over meta data, and put it back afterwards.

    Args:
        model: The network, in training mode.
        meta_bn: "batch": BatchNorm normalises with the meta batch's statistics and leaves the running ones alone; dropout is
            off, as it will be when predictions are made. "frozen": the whole network as in ``eval()``. "update": the whole
            network as in training, running statistics included, as in the published meta-calibration code.

    Yields:
        Nothing.
    """
    if meta_bn == "update":
        yield
        return
    training = [module for module in model.modules() if module.training]
    kept = [m for m in training if isinstance(m, _NormBase)] if meta_bn == "batch" else []
    for module in training:
        module.training = False
    for norm in kept:
        norm.training = True
    try:
        with untracked(kept):
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def untracked(norms: list[_NormBase]) -> Iterator[None]:
    """Keep the running statistics of ``norms`` as they are; in training mode they then use those of the batch alone."""
    tracked = [norm for norm in norms if norm.track_running_stats and norm.training]
    for norm in tracked:
        # PyTorch hands the running buffers to a layer in training mode only if this flag is set: nothing need be copied back.
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in tracked:
            norm.track_running_stats = True


def norms_of(model: nn.Module) -> list[_NormBase]:
    """Every layer of ``model`` that may keep running statistics."""
    return [module for module in model.modules() if isinstance(module, _NormBase)]
