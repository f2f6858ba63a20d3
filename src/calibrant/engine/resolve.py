"""What a recipe leaves to its method, filled in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
# Key that may say nothing → the key that decides so, and its values that it is about, the usual one first.
_MEANT_FOR = {
    "train.average_decay": ("train.average", ("ema",)),
    "train.average_share": ("train.average", ("phase",)),
    "train.average_from_epoch": ("train.average", ("uniform", "ema", "phase")),
    "train.select_within": ("train.select", ("error+nll", "error+ece")),
    "optim.milestones_epochs": ("optim.schedule", ("multistep",)),
    "optim.decay": ("optim.schedule", ("multistep",)),
    "optim.momentum": ("optim.name", ("sgd",)),
    "optim.nesterov": ("optim.name", ("sgd",)),
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
    for key in keys if runs else ():
        if key in _MEANT_FOR and all(_is_idle(recipe, key) for recipe in runs):
            other, about = _MEANT_FOR[key]
            ways = dict.fromkeys(str(_value(resolved(recipe), other)) for recipe in runs)
            whom = f" for {split_name(runs[0].method.name)[0]}" if len(runs) == 1 and key.startswith("train.") else ""
            raise ValueError(
                f"train: `{key}` must come with {other}={' or '.join(about)}, got {other}={' and '.join(ways)}, "
                f"under which it says nothing{whom}. Add `--set {other}={about[0]}`, or leave it out."
            )
        _check_reached(runs, key)


def _is_idle(recipe: Recipe, key: str) -> bool:
    if key.startswith("train."):
        return key in idle_keys(recipe)
    other, about = _MEANT_FOR[key]
    # What is off anyway is not missed.
    return _value(recipe, other) not in about and _value(recipe, key) not in (None, False, ())


def _check_reached(runs: Sequence[Recipe], key: str) -> None:
    """Raise if a change of the learning rate that was asked for would come after the end of every run."""
    epochs = max(recipe.train.epochs for recipe in runs)
    if key == "optim.milestones_epochs":
        given = [place for recipe in runs for place in recipe.optim.milestones_epochs or ()]
        if given and min(given) >= epochs:
            raise ValueError(
                f"train: `{key}` must hold an epoch below train.epochs={epochs}, got {min(given):g}, at which it says nothing. "
                "Lower it, or leave it out; `--set optim.schedule=constant` never drops."
            )
    if key == "optim.warmup_epochs" and (least := min(recipe.optim.warmup_epochs for recipe in runs)) > epochs:
        raise ValueError(
            f"train: `{key}` must be at most train.epochs={epochs}, got {least:g}, with which the learning rate never reaches "
            "`optim.lr`. Lower it, or leave it out."
        )


def _value(recipe: Recipe, key: str) -> object:
    part, _, name = key.partition(".")
    return getattr(getattr(recipe, part), name)


def facts_of(recipe: Recipe, *, num_train: int = 1) -> Facts:
    """Return what a method may need to know of a run with so many training examples."""
    return Facts(num_train, recipe.train.reduction, recipe.method.preset)
