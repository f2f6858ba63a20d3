"""The network of a run: built, given its first weights, tried with two images, and held where it must not move."""

from __future__ import annotations

import torch
from torch import nn

from calibrant.engine.distributed import ALONE_GROUP, Group
from calibrant.engine.factory import Shape, check_network
from calibrant.engine.features import find_head
from calibrant.engine.hardware import Hardware
from calibrant.engine.recipe import Recipe
from calibrant.engine.setup import build_backbone
from calibrant.engine.weights import freeze, load_initial_weights


def build_network(
    recipe: Recipe,
    data: Shape,
    hardware: Hardware,
    *,
    uses_head: bool,
    tried: bool = True,
    group: Group = ALONE_GROUP,
) -> nn.Module:
    """Return the network of a recipe, ready to train on the hardware.

    Args:
        recipe: What is run.
        data: Classes, channels and size of its images.
        hardware: Where the network goes.
        uses_head: Whether the method looks ahead with the last layer.
        tried: Whether to pass two images through it; a network may be made for another device than that of ``hardware``.
        group: Processes that train together.

    Returns:
        The network. Raises ``ValueError`` or ``OSError`` with one sentence if it cannot be built, given its weights or used.
    """
    part = recipe.backbone
    model = build_backbone(part, data, seed=recipe.seed)
    if part.init is not None:
        load_initial_weights(model, part.init)
    if group.world_size > 1 and hardware.device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(hardware.device, hardware.dtype).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if tried:
        check_network(model, data, hardware, name=part.name, uses_head=uses_head)
    freeze(model, part.freeze)
    if uses_head and not find_head(model)[1].weight.requires_grad:
        raise ValueError(
            f"train: `backbone.freeze` must leave the head free for {recipe.method.name}, which looks ahead with it."
        )
    return model
