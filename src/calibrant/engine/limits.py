"""Checks of a recipe's numbers; that its keys exist and have the right kind is seen when it is read."""

from __future__ import annotations

import math

from calibrant.engine.recipe import Recipe


def check_recipe(recipe: Recipe) -> None:
    """Raise ``ValueError`` with one sentence if a number of the recipe cannot be."""
    train, optim, data = recipe.train, recipe.optim, recipe.data
    if recipe.seed < 0:
        raise ValueError(f"recipe: `seed` must be a whole number >= 0, got {recipe.seed}.")
    for key, count in (
        ("train.epochs", train.epochs),
        ("train.batch_size", train.batch_size),
        ("train.eval_every_epochs", train.eval_every_epochs),
        ("data.val", 1 if data.val is None else data.val),
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
    ):
        if not (math.isfinite(least) and least >= 0):
            raise ValueError(f"recipe: `{key}` must be a finite number >= 0, got {least}.")
    for key, positive in (("optim.lr", optim.lr), ("optim.decay", optim.decay)):
        if not (math.isfinite(positive) and positive > 0):
            raise ValueError(f"recipe: `{key}` must be a finite number > 0, got {positive}.")
    if optim.nesterov and optim.momentum == 0:
        raise ValueError("recipe: `optim.nesterov` must come with `optim.momentum` > 0, got momentum 0.")
