"""From a recipe to the parts of a run: data, network, objective, optimizer, step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn

from calibrant.backbones import BACKBONES
from calibrant.core.registry import lookup
from calibrant.data import DATASETS, DEFAULT_ROOT, is_path, load_path
from calibrant.data.image_set import DataSet, ImageSet, Parts, split_indices
from calibrant.engine.factory import Shape, call_factory, find_factory
from calibrant.engine.recipe import BackbonePart, DataPart

# What a recipe says of data → the data.
Reader: TypeAlias = Callable[[DataPart], DataSet]

# Of the memory that is free, the share that images may take; the network and its activations need the rest.
_SHARE = 0.5


@dataclass(frozen=True)
class RunData:
    """The four parts of the data of a run; ``meta`` is None for methods that need none."""

    train: ImageSet
    val: ImageSet
    meta: ImageSet | None
    test: ImageSet


def is_own(part: DataPart) -> bool:
    """Whether a recipe names no published set but a path: other images may come to lie there, if any are there at all."""
    return part.name not in DATASETS


def load_data(part: DataPart) -> DataSet:
    """Read the data set that a recipe names, by its name or its path."""
    if is_own(part) and is_path(part.name):
        return load_path(part.name, size=part.size)
    try:
        source = DATASETS[part.name]
    except ValueError as error:
        # A run in another folder that names its data by a relative path meets this too.
        raise ValueError(
            f"{error} Images of one's own are named by their path, and nothing lies at {part.name!r} here."
        ) from None
    if part.size is not None:
        raise ValueError(f"train: `data.size` must be left out for {part.name}; only pictures of a folder are resized.")
    return source.load(Path(part.root or DEFAULT_ROOT).expanduser())


def divide(data: DataSet, part: DataPart, *, seed: int, with_meta: bool) -> RunData:
    """Split a data set as a recipe says; the test set is never divided."""
    parts = divide_rows(len(data.train), part, seed=seed, with_meta=with_meta)
    held = data.train.pick(parts.meta) if with_meta else None
    return RunData(data.train.pick(parts.train), data.train.pick(parts.val), held, data.test)


def divide_rows(n: int, part: DataPart, *, seed: int, with_meta: bool) -> Parts:
    """Return which of ``n`` images each part of a run gets; raises ``ValueError`` if there are too few."""
    if n < 10 and (part.val is None or (with_meta and part.meta is None)):
        settings = "`--set data.val=1`" + (" and `--set data.meta=1`" if with_meta else "")
        raise ValueError(
            f"train: `data` must hold at least 10 images to train on, for a tenth of them is held out, got {n}. "
            f"Add images, or say how many to hold out with {settings}."
        )
    val = n // 10 if part.val is None else part.val
    meta = n // 10 if part.meta is None else part.meta
    if with_meta and meta == 0:
        raise ValueError("train: `data.meta` must be > 0 for a method that learns on held-out data, got 0.")
    return split_indices(n, val=val, meta=meta, seed=seed, keep_meta_out=part.same_data, with_meta=with_meta)


def augmented(train: ImageSet, part: DataPart) -> ImageSet:
    """Return the training part with crops and mirroring as a recipe says; the set's own where it says nothing."""
    if not part.augment:
        return replace(train, pad=0, flip=False)
    if part.pad and part.pad >= min(train.size):
        height, width = train.size
        raise ValueError(
            f"train: `data.pad` must be less than the side of the images, {height} x {width} pixels, got {part.pad}. "
            "Crops would miss them."
        )
    pad, flip = train.pad if part.pad is None else part.pad, train.flip if part.flip is None else part.flip
    return replace(train, pad=pad, flip=flip)


def fits_on_device(data: RunData, part: DataPart, *, device: torch.device) -> bool:
    """Whether the images of a run are to lie on the device."""
    if part.place != "auto" or device.type != "cuda":
        return part.place != "host"
    parts = (data.train, data.val, data.test, *([] if data.meta is None else [data.meta]))
    height, width = data.train.size
    padded = (height + 2 * data.train.pad) * (width + 2 * data.train.pad) / (height * width)
    needed = sum(part.images.numel() for part in parts) + data.train.images.numel() * (padded - 1)
    free, _ = torch.cuda.mem_get_info(device)
    return bool(needed <= _SHARE * free)


def build_backbone(part: BackbonePart, data: Shape, *, seed: int) -> nn.Module:
    """Build the network for a set's classes, channels and size, initialised from ``seed`` alone."""
    # Layers draw their weights from the global generator; it is forked so that the caller's own stream does not move.
    if ":" in part.name:
        own = find_factory(part.name)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return call_factory(own, data.num_classes, name=part.name)
    factory = lookup(BACKBONES, part.name, kind="backbone")
    height, width = data.size
    options = {"num_inputs": height * width * data.channels} if part.name == "mlp" else {"in_channels": data.channels}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory(data.num_classes, **options)
