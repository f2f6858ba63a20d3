"""What a recipe leaves to its method, filled in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from calibrant.engine.meta_methods import MetaMethod
from calibrant.engine.methods import METHODS, split_name
from calibrant.engine.plans import Facts
from calibrant.engine.recipe import Recipe

# Way of averaging → keys of `train` that say nothing under it.
_IDLE_KEYS: dict[str, tuple[str, ...]] = {
    "no": ("average_decay", "average_share", "average_from_epoch"),
    "ema": ("average_share",),
    "uniform": ("average_decay", "average_share"),
    "phase": (),
}
# Key of `train` that may say nothing → the key that decides so, and its values that it is about, the usual one first.
_MEANT_FOR = {
    "average_decay": ("average", ("ema",)),
    "average_share": ("average", ("phase",)),
    "average_from_epoch": ("average", ("uniform", "ema", "phase")),
    "select_within": ("select", ("error+nll", "error+ece")),
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


def idle_keys(recipe: Recipe) -> tuple[str, ...]:
    """Return the dotted keys that say nothing about a run, because of how it averages or chooses its epoch.

    Example:
        >>> from calibrant.engine.recipe import override
        >>> idle_keys(Recipe()), idle_keys(override(Recipe(), {"train.average": "ema", "train.select": "nll"}))
        ((), ('train.average_share', 'train.select_within'))
    """
    full, method = resolved(recipe), METHODS.get(split_name(recipe.method.name)[0])
    # Under "phase" only methods that learn look through the average of "ema".
    unseen = full.train.average == "phase" and not isinstance(method, MetaMethod)
    more = [*(["average_decay"] if unseen else []), *([] if "+" in full.train.select else ["select_within"])]
    return tuple(f"train.{key}" for key in (*_IDLE_KEYS[full.train.average], *more))


def check_idle(recipes: Iterable[Recipe], keys: Iterable[str]) -> None:
    """Raise ``ValueError`` with one sentence if a key that was set says nothing about any of the runs.

    Args:
        recipes: The runs that the keys were set for.
        keys: Dotted keys of the recipe that were set for them by hand.

    Example:
        >>> from calibrant.engine.recipe import override
        >>> check_idle([override(Recipe(), {"method.name": "ce"})], ["train.average_share"])
        Traceback (most recent call last):
        ...
        ValueError: train: `train.average_share` must come with train.average=phase, got train.average=no, under which ...
    """
    runs = list(recipes)
    wanted = [key for key in keys if key.removeprefix("train.") in _MEANT_FOR]
    for key in wanted:
        if runs and all(key in idle_keys(recipe) for recipe in runs):
            other, about = _MEANT_FOR[key.removeprefix("train.")]
            ways = dict.fromkeys(getattr(resolved(recipe).train, other) for recipe in runs)
            whom = f" for {split_name(runs[0].method.name)[0]}" if len(runs) == 1 else ""
            raise ValueError(
                f"train: `{key}` must come with train.{other}={' or '.join(about)}, got train.{other}={' and '.join(ways)}, "
                f"under which it says nothing{whom}. Add `--set train.{other}={about[0]}`, or leave it out."
            )


def facts_of(recipe: Recipe, *, num_train: int = 1) -> Facts:
    """Return what a method may need to know of a run with so many training examples."""
    return Facts(num_train, recipe.train.reduction, recipe.method.preset)
