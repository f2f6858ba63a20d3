"""From a recipe to a run ready to start: its data, divided, and everything that is built from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from calibrant.data import DATASETS, DEFAULT_ROOT, is_path, load_path
from calibrant.data.image_set import DataSet, ImageSet, Parts, difference, fingerprint, split_indices
from calibrant.engine.batches import RunData
from calibrant.engine.hardware import ALONE_GROUP, Group, choose_hardware
from calibrant.engine.loop import Assembly
from calibrant.engine.methods import facts_of, learns, make_plan, resolved
from calibrant.engine.network import build_network
from calibrant.engine.recipe import DataPart, Recipe, check_recipe

# What a recipe says of data → the data.
Reader: TypeAlias = Callable[[DataPart], DataSet]


def is_own(part: DataPart) -> bool:
    """Whether a recipe names no published set but a path, where other images may come to lie."""
    return part.name not in DATASETS


def load_data(part: DataPart) -> DataSet:
    """Read the data set that a recipe names, by its name or its path."""
    if is_own(part) and is_path(part.name):
        return load_path(part.name, size=part.size)
    try:
        source = DATASETS[part.name]
    except ValueError as error:
        # A run in another folder that names its data by a relative path meets this too.
        raise ValueError(f"{error} Name images of your own by their path; nothing lies at {part.name!r} here.") from None
    if part.size is not None:
        raise ValueError(f"train: `data.size` must be left out for {part.name}; only pictures of a folder are resized.")
    return source.load(Path(part.root or DEFAULT_ROOT).expanduser())


def divide(data: DataSet, recipe: Recipe) -> RunData:
    """Split a data set as a recipe says; the test set is never divided."""
    parts = divide_rows(len(data.train), recipe)
    meta = data.train.pick(parts.meta) if len(parts.meta) else None
    return RunData(data.train.pick(parts.train), data.train.pick(parts.val), meta, data.test)


def divide_rows(n: int, recipe: Recipe) -> Parts:
    """Return which of ``n`` images each part of a run gets; raises ``ValueError`` if there are too few."""
    if n < 10 and recipe.data.val is None:
        raise ValueError(
            f"train: `data` must hold at least 10 images to train on, for a tenth of them is held out, got {n}. "
            "Add images, or say how many to hold out with `--set data.val=1`."
        )
    val, meta = held_out(n, recipe)
    return split_indices(n, val=val, meta=meta, seed=recipe.seed)


def held_out(n: int, recipe: Recipe) -> tuple[int, int]:
    """Return how many of ``n`` images are for validation, and how many are held out besides.

    The published protocol gives methods that learn on held-out data a tenth of their own. By default they learn on the
    validation part, so that all methods train on the same images.
    """
    part, apart = recipe.data, learns(recipe) and recipe.method.preset == "paper"
    val = n // 10 if part.val is None else part.val
    return val, (n // 10 if apart else 0) if part.meta is None else part.meta


def augmented(train: ImageSet, part: DataPart) -> ImageSet:
    """Return the training part with crops and mirroring as a recipe says; the set's own where it says nothing."""
    if not part.augment:
        return replace(train, pad=0, flip=False)
    pad, flip = train.pad if part.pad is None else part.pad, train.flip if part.flip is None else part.flip
    if part.pad and pad >= min(train.size):
        raise ValueError(f"train: `data.pad` must be less than the side of the images, {min(train.size)} pixels, got {pad}.")
    return replace(train, pad=pad, flip=flip)


def fits_on_device(data: RunData, part: DataPart, *, device: torch.device) -> bool:
    """Whether the images of a run are to lie on the device.

    They may take a third of the memory that is free, and a half with padding; the network and its activations need the rest.
    """
    if part.place != "auto" or device.type != "cuda":
        return part.place != "host"
    parts = (data.train, data.val, data.test, *([] if data.meta is None else [data.meta]))
    free, _ = torch.cuda.mem_get_info(device)
    return sum(part.images.numel() for part in parts) <= free // 3


def check_same_data(facts: Mapping[str, Any], part: DataPart, *, where: str, now: Mapping[str, object] | None = None) -> None:
    """Raise ``ValueError`` if the data of a run are no longer those that it was trained on.

    Published sets are taken to be what they are, and a finished run may outlive its data. ``facts`` are those of ``run.json``,
    ``now`` is the fingerprint of the data, if they have been read.
    """
    if not is_own(part):
        return
    try:
        now = fingerprint(load_data(part)) if now is None else now
    except (OSError, ValueError):
        return
    if differ := difference(facts.get("data") or {}, now):
        raise ValueError(
            f"train: `data` must be what {where} was trained on, got other data in {part.name}: {differ}. Put the old data "
            "back, or use another folder."
        )


def assemble(recipe: Recipe, *, group: Group = ALONE_GROUP) -> Assembly:
    """Build everything that a recipe describes, for one of a group of processes.

    Raises ``ValueError`` or ``OSError`` with one sentence if something cannot be.
    """
    recipe = resolved(recipe)
    check_recipe(recipe)
    part, train = recipe.method, recipe.train
    # Wrong options are found before the data are read; then some plans need the size of the training part.
    make_plan(part.name, part.options, facts_of(recipe))
    whole = load_data(recipe.data)
    data = divide(whole, recipe)
    data = replace(data, train=augmented(data.train, recipe.data))
    plan = make_plan(part.name, part.options, facts_of(recipe, num_train=len(data.train)))
    steps = train.epochs * (len(data.train) // train.batch_size)
    hardware = choose_hardware(
        device=train.device, precision=train.precision, compiled=train.compile, graph=train.graph, steps=steps, group=group
    )
    model = build_network(recipe, data.train, hardware, uses_head=learns(recipe))
    with hardware.active():
        resident = fits_on_device(data, recipe.data, device=hardware.device)
        return Assembly(
            recipe, plan, data=data, fingerprint=fingerprint(whole), model=model, hardware=hardware, resident=resident
        )
