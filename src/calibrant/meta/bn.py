"""How BatchNorm and dropout behave while meta data, or a second pass over training data, go through the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

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
    kept = [m for m in norms_of(model) if m.training] if meta_bn == "batch" else []
    with _training(model, kept), untracked(kept):
        yield


@contextmanager
def following(model: nn.Module) -> Iterator[None]:
    """Let the running statistics of ``model`` follow the batches that pass through it, as in training, but dropout off."""
    with _training(model, gathering_norms(model)):
        yield


@contextmanager
def gathering(model: nn.Module) -> Iterator[None]:
    """Let the running statistics of ``model`` become the means over all batches that pass through it, dropout off.

    Layers that are not in training mode keep theirs. Counts of batches are put back afterwards, as is the network's mode.
    """
    norms = gathering_norms(model)
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        # Without a momentum PyTorch weighs all batches alike, beginning with the first that is counted.
        assert norm.running_mean is not None
        norm.momentum = None
        norm.num_batches_tracked = torch.zeros((), dtype=torch.long, device=norm.running_mean.device)
    try:
        with _training(model, norms):
            yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count


@contextmanager
def _training(model: nn.Module, parts: Sequence[nn.Module]) -> Iterator[None]:
    """Have these parts of ``model``, which are in training mode, alone in it, and put all modes back afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    for module in parts:
        module.training = True
    try:
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


def gathering_norms(model: nn.Module) -> list[_BatchNorm]:
    """Every BatchNorm of ``model`` that learns running statistics: it keeps them, and is in training mode."""
    return [norm for norm in norms_of(model) if isinstance(norm, _BatchNorm) and norm.training and norm.track_running_stats]


def norms_of(model: nn.Module) -> list[_NormBase]:
    """Every layer of ``model`` that may keep running statistics."""
    return [module for module in model.modules() if isinstance(module, _NormBase)]
