"""Runs as they were asked for: the command that makes one, what tells it from others, and in which order they are listed."""

from __future__ import annotations

import shlex

from calibrant.core.scores import Entry
from calibrant.engine.methods import METHODS, NAMED, flat_recipe, settle, split_name, text_of
from calibrant.engine.recipe import KEYS, Recipe
from calibrant.report.rows import row_key, settings_of

__all__ = ["catalogue_order", "command_of", "flat_recipe", "identity", "settings_of"]


def command_of(recipe: Recipe) -> str:
    """Return the command that trains by ``recipe``: what is run by name, and what else differs; the place of data left out."""
    values, method = flat_recipe(recipe), recipe.method
    words = [word for key in NAMED for word in (KEYS[key].flag, text_of(values[key]))]
    usual, _ = settle(method.name, method.preset, {})
    told = [f"{key}={text_of(value)}" for key, value in values.items() if key not in NAMED and usual.get(key) != text_of(value)]
    return shlex.join(["calibrant", "train", *words, *(word for text in told for word in ("--set", text))])


def identity(entry: Entry) -> tuple[object, ...]:
    """Return all that tells a run from others: what decides its row, and its seed."""
    return (*row_key(entry), entry.seed)


def catalogue_order(entry: Entry) -> tuple[object, ...]:
    """Key to sort runs by: data, network, method as in the catalogue, longest and plainest first, ``+ts`` after its base, seed.

    Predictions of others come last, and keep their order.
    """
    if entry.is_foreign:
        return (True,)
    base, scaled = split_name(entry.method)
    known = base not in METHODS, list(METHODS).index(base) if base in METHODS else 0, base
    settings = sorted(settings_of(entry).items())
    variant = -(entry.epochs or 0), entry.preset or "", len(settings), settings
    return False, entry.data, entry.model or "", known, variant, scaled, entry.seed is None, entry.seed or 0
