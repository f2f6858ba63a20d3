"""Checks of a recipe's numbers; that its keys exist and have the right kind is seen when it is read."""

from __future__ import annotations

import math

from calibrant.engine.recipe import Recipe


def check_recipe(recipe: Recipe) -> None:
    """Raise ``ValueError`` with one sentence if a number of the recipe cannot be."""
    train, optim, data = recipe.train, recipe.optim, recipe.data
    if not 0 <= recipe.seed < 2**63:
        raise ValueError(f"recipe: `seed` must be a whole number from 0 to 2**63 - 1, got {recipe.seed}.")
    for key, count in (
        ("train.epochs", train.epochs),
        ("train.batch_size", train.batch_size),
        ("train.eval_every_epochs", train.eval_every_epochs),
        ("data.val", 1 if data.val is None else data.val),
        ("data.size", 1 if data.size is None else data.size),
    ):
        if count < 1:
            raise ValueError(f"recipe: `{key}` must be a whole number >= 1, got {count}.")
    for key, least in (
        ("train.clip_norm", train.clip_norm),
        ("train.checkpoint_every_seconds", train.checkpoint_every_seconds),
        ("optim.momentum", optim.momentum),
        ("optim.weight_decay", optim.weight_decay),
        ("optim.warmup_epochs", optim.warmup_epochs),
        ("data.meta", 0 if data.meta is None else data.meta),
        ("data.pad", data.pad or 0),
        ("train.average_from_epoch", train.average_from_epoch or 0),
        ("train.select_within", train.select_within),
    ):
        if not (math.isfinite(least) and least >= 0):
            raise ValueError(f"recipe: `{key}` must be a finite number >= 0, got {least}.")
    for key, positive in (("optim.lr", optim.lr), ("optim.decay", optim.decay)):
        if not (math.isfinite(positive) and positive > 0):
            raise ValueError(f"recipe: `{key}` must be a finite number > 0, got {positive}.")
    if not data.augment and (data.pad is not None or data.flip is not None):
        raise ValueError("recipe: `data.pad` and `data.flip` must be left out where `data.augment` is false, got one of them.")
    if train.average != "no" and (train.average_from_epoch or 0) >= train.epochs:
        got = f"{train.average_from_epoch} with {train.epochs} epochs"
        raise ValueError(
            f"recipe: `train.average_from_epoch` must be below `train.epochs`, got {got}: nothing would be averaged."
        )
    if train.average_decay is not None and not 0 <= train.average_decay < 1:
        raise ValueError(f"recipe: `train.average_decay` must lie in [0, 1), got {train.average_decay}.")
    if not 0 < train.average_share <= 1:
        raise ValueError(f"recipe: `train.average_share` must lie in (0, 1], got {train.average_share}.")
    if optim.nesterov and optim.momentum == 0:
        raise ValueError("recipe: `optim.nesterov` must come with `optim.momentum` > 0, got momentum 0.")
