"""What a recipe leaves to its method, filled in."""

from __future__ import annotations

from dataclasses import replace

from calibrant.engine.meta_methods import MetaMethod
from calibrant.engine.methods import METHODS, split_name
from calibrant.engine.plans import Facts
from calibrant.engine.recipe import Recipe
from calibrant.meta.presets import PRESETS


def resolved(recipe: Recipe) -> Recipe:
    """Return the recipe with its reduction, clipping, averaging and choice of the epoch decided.

    The published protocol sums the loss of a batch, clips the gradient at a norm of 2, averages no weights and takes the epoch
    with the lowest validation error. Methods that learn hyper-parameters depart from it under ``default``. They take the mean,
    unclipped: the sum makes weight decay, which is what lets confidence fall again, weaker by the batch size, and once the
    training set is fitted no gamma can bring confidence down. They look at averaged weights and predict with them, which show
    early what the network will be like once the learning rate has dropped. And of the epochs that errors do not tell apart they
    take the one with the lowest NLL.

    Example:
        >>> train = resolved(Recipe()).train
        >>> train.reduction, train.clip_norm, train.average, train.select
        ('mean', 0.0, 'ema', 'error+nll')
    """
    train, method = recipe.train, METHODS.get(split_name(recipe.method.name)[0])
    learns = isinstance(method, MetaMethod)
    reduction = train.reduction
    if reduction == "auto":
        reduction = PRESETS[recipe.method.preset].settings.reduction if learns else "sum"
    clip = train.clip_norm
    if clip is None:
        clip = 2.0 if reduction == "sum" else 0.0
    free = learns and recipe.method.preset == "default"
    average, select = train.average, train.select
    if average == "auto":
        average = "ema" if free else "no"
    if select == "auto":
        select = "error+nll" if free else "error"
    return replace(recipe, train=replace(train, reduction=reduction, clip_norm=clip, average=average, select=select))


def facts_of(recipe: Recipe, *, num_train: int = 1) -> Facts:
    """Return what a method may need to know of a run with so many training examples."""
    reduction = resolved(recipe).train.reduction
    assert reduction != "auto"
    return Facts(num_train, reduction, recipe.method.preset)
