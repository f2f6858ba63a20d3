"""What a recipe leaves to its method, filled in."""

from __future__ import annotations

from dataclasses import replace

from calibrant.engine.meta_methods import MetaMethod
from calibrant.engine.methods import METHODS, split_name
from calibrant.engine.plans import Facts
from calibrant.engine.recipe import Recipe
from calibrant.meta.presets import PRESETS


def resolved(recipe: Recipe) -> Recipe:
    """Return the recipe with its reduction and clipping decided.

    The published protocol sums the loss of a batch and clips the gradient at a norm of 2. Methods that learn hyper-parameters
    take what their preset says: under ``default`` the mean, unclipped. The sum makes weight decay, which is what lets
    confidence fall again, weaker by the batch size; once the training set is fitted no gamma can bring confidence down.

    Example:
        >>> train = resolved(Recipe()).train
        >>> train.reduction, train.clip_norm
        ('mean', 0.0)
    """
    train, method = recipe.train, METHODS.get(split_name(recipe.method.name)[0])
    reduction = train.reduction
    if reduction == "auto":
        reduction = PRESETS[recipe.method.preset].settings.reduction if isinstance(method, MetaMethod) else "sum"
    clip = train.clip_norm
    if clip is None:
        clip = 2.0 if reduction == "sum" else 0.0
    return replace(recipe, train=replace(train, reduction=reduction, clip_norm=clip))


def facts_of(recipe: Recipe, *, num_train: int = 1) -> Facts:
    """Return what a method may need to know of a run with so many training examples."""
    reduction = resolved(recipe).train.reduction
    assert reduction != "auto"
    return Facts(num_train, reduction, recipe.method.preset)
