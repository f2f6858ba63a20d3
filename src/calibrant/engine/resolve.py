"""What a recipe leaves to its method, filled in."""

from __future__ import annotations

from dataclasses import replace

from calibrant.engine.meta_methods import MetaMethod
from calibrant.engine.methods import METHODS, split_name
from calibrant.engine.plans import Facts
from calibrant.engine.recipe import Recipe

# Way of averaging → keys of `train` that say nothing under it.
IDLE_KEYS: dict[str, tuple[str, ...]] = {
    "no": ("average_decay", "average_share", "average_from_epoch"),
    "ema": ("average_share",),
    "uniform": ("average_decay", "average_share"),
    "phase": (),
}


def resolved(recipe: Recipe) -> Recipe:
    """Return the recipe with averaging and choice of the epoch decided.

    The published protocol averages no weights and takes the epoch with the lowest validation error. Methods that learn
    hyper-parameters depart from it under ``default``. They predict with weights averaged over half of the steps since the last
    drop of the learning rate, and look at a shorter average, which shows early what the network will be like once the learning
    rate has dropped. And of the epochs that errors do not tell apart they take the one with the lowest NLL.

    Example:
        >>> train = resolved(Recipe()).train
        >>> train.average, train.select
        ('phase', 'error+nll')
    """
    train, method = recipe.train, METHODS.get(split_name(recipe.method.name)[0])
    free = isinstance(method, MetaMethod) and recipe.method.preset == "default"
    average, select = train.average, train.select
    if average == "auto":
        average = "phase" if free else "no"
    if select == "auto":
        select = "error+nll" if free else "error"
    return replace(recipe, train=replace(train, average=average, select=select))


def facts_of(recipe: Recipe, *, num_train: int = 1) -> Facts:
    """Return what a method may need to know of a run with so many training examples."""
    return Facts(num_train, recipe.train.reduction, recipe.method.preset)
