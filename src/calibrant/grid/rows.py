"""Runs that differ in their seed alone are one row: grouping entries, and which rows may be compared."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from calibrant.core.scores import Entry
from calibrant.data.image_set import difference
from calibrant.engine.methods import METHODS, resolved, split_name
from calibrant.engine.recipe import KEYS, NEUTRAL, Recipe, override

# How weights are averaged and the epoch is chosen: a method decides both unless they are set.
CHOICES = ("train.average", "train.select")
# A command always names these, since a default may change.
_NAMED = ("data.name", "backbone.name", "method.name", "method.preset", "train.epochs", "seed")
# What makes no row of its own: what a row is named by, where it ran, and how often it was looked at.
_NO_SETTING = {*_NAMED, *NEUTRAL, "train.eval_every_epochs"}


@dataclass(frozen=True)
class Row:
    """The runs of one method under one setting.

    Attributes:
        data: Name of the data set; network, method and length of training as in `Entry`.
        preset: Preset of the method; None where it has none, or where that changes nothing.
        settings: Further recipe keys that differ from what the method has by itself → value.
        recipe: All recipe keys that say something about these runs → value; empty for predictions from a file.
        runs: Its entries, by seed.
    """

    data: str
    model: str | None
    method: str
    preset: str | None
    epochs: int | None
    settings: Mapping[str, str]
    recipe: Mapping[str, str]
    runs: tuple[Entry, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that are known."""
        return tuple(entry.seed for entry in self.runs if entry.seed is not None)

    @property
    def is_foreign(self) -> bool:
        """Whether it is somebody's predictions: neither network nor length of training is known."""
        return self.model is None and self.epochs is None

    def values(self, metric: str) -> tuple[float, ...]:
        """The metric of every run; none where a run lacks it."""
        if not all(metric in entry.scores for entry in self.runs):
            return ()
        return tuple(entry.scores[metric].value for entry in self.runs)


def group_rows(entries: Iterable[Entry]) -> list[Row]:
    """Group entries that differ in their seed alone.

    Methods without a meta part train the same under every preset, so their presets are one, unless that would put two runs of
    one seed into a row.

    Args:
        entries: Runs, in any order.

    Returns:
        Rows in the order in which their first run is given. Raises ``ValueError`` if two runs have everything in common, if a
        row has several runs and one does not say its seed, or if its runs had different data. Files of somebody's predictions
        may be of different parts of the test set; their row is compared with no other.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> entries = [Entry("coins", method, scores, seed=seed) for seed in (1, 0) for method in ("ce", "focal")]
        >>> [(row.method, row.seeds) for row in group_rows(entries)]
        [('ce', (0, 1)), ('focal', (0, 1))]
    """
    given = list(entries)
    groups = _group(given, merge=True)
    if any(_repeated(runs) for runs in groups.values()):
        groups = _group(given, merge=False)
    for runs in groups.values():
        if twice := _repeated(runs):
            first, second = twice
            seed = "no seed" if None in (first.seed, second.seed) else f"seed {first.seed}"
            raise ValueError(
                f"tables: runs of one row must have different seeds, got {seed} of {first.method} on {first.data} "
                f"twice ({first.folder or 'a record'} and {second.folder or 'a record'}). Leave one out, or rename it."
            )
        _check_same_data(runs)
    rows = []
    for (data, model, method, preset, epochs, _), runs in groups.items():
        recipe, settings = _decided(runs[0])
        by_seed = tuple(sorted(runs, key=lambda entry: entry.seed or 0))
        rows.append(Row(data, model, method, preset, epochs, settings, recipe, by_seed))
    return rows


def flat_recipe(recipe: Recipe) -> dict[str, object]:
    """Return what decides a run, dotted key → value, the method's choices filled in and the place of the data left out."""
    return {key: value for key, value in _flat(asdict(resolved(recipe))) if key != "data.root"}


def command_of(recipe: Recipe) -> str:
    """Return the command that trains by ``recipe``: what is run by name, and what else differs; the place of data left out."""
    values, usual = flat_recipe(recipe), _usual(recipe.method.name, recipe.method.preset)
    words = [word for key in _NAMED for word in (KEYS[key].flag, _text(values.pop(key)))]
    told = [f"{key}={_text(value)}" for key, value in values.items() if usual.get(key) != _text(value)]
    return shlex.join(["calibrant", "train", *words, *(word for text in told for word in ("--set", text))])


def settings_of(entry: Entry) -> dict[str, str]:
    """Return what was set for a run besides data, method, network, epochs and seed, and that changes the result."""
    return dict(_decided(entry)[1])


def comparable(first: Row, second: Row) -> bool:
    """Whether two rows may be compared: same data, network, epochs, preset and settings, those of the method aside.

    What was told to one of the two must be so for the other, too, unless it says nothing there; averaging and selection may be
    what each method chooses where neither was told. Somebody's predictions may be held against everything on the same data.
    Numbers of another number of test examples are those of another test set, or of a part of it.
    """
    sizes, others = ({entry.scores.n for entry in row.runs} for row in (first, second))
    if first.data != second.data or sizes != others:
        return False
    if first.is_foreign or second.is_foreign:
        return True
    if (first.model, first.epochs) != (second.model, second.epochs) or len({first.preset, second.preset} - {None}) > 1:
        return False
    told = {key for key in {**first.settings, **second.settings} if not key.startswith("method.")}
    return all(first.recipe[key] == second.recipe[key] for key in told & first.recipe.keys() & second.recipe.keys())


def identity(entry: Entry) -> tuple[object, ...]:
    """Return all that tells a run from others: what decides its row, and its seed."""
    return (*_key(entry, entry.preset), entry.seed)


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


_Key = tuple[str, str | None, str, str | None, int | None, tuple[tuple[str, str], ...]]


def _key(entry: Entry, preset: str | None) -> _Key:
    return entry.data, entry.model, entry.method, preset, entry.epochs, tuple(settings_of(entry).items())


def _group(entries: Sequence[Entry], *, merge: bool) -> dict[_Key, list[Entry]]:
    groups: dict[_Key, list[Entry]] = {}
    for entry in entries:
        name = split_name(entry.method)[0]
        # Methods that learn nothing on held-out data train the same under every preset.
        preset = None if merge and name in METHODS and not METHODS[name].learns else entry.preset
        groups.setdefault(_key(entry, preset), []).append(entry)
    return groups


def _repeated(runs: Sequence[Entry]) -> tuple[Entry, Entry] | None:
    """Two runs that cannot be two seeds of a row."""
    seen: dict[int | None, Entry] = {}
    for entry in runs:
        if seen and (entry.seed in seen or None in (entry.seed, *seen)):
            return seen.get(entry.seed, next(iter(seen.values()))), entry
        seen[entry.seed] = entry
    return None


def _check_same_data(runs: Sequence[Entry]) -> None:
    """Refuse to average runs on different data: images under one path may have changed between two of them."""
    known: list[tuple[Entry, dict[str, object]]] = []
    for entry in runs:
        # Earlier releases held out more for some methods.
        facts: Mapping[str, Any] = entry.facts
        used = {"train_examples": facts["examples"]["train"]} if "train" in facts.get("examples", ()) else {}
        data = {**(facts.get("data") or {}), **used, "test_examples": entry.scores.n}
        for other, before in known:
            if differ := difference(before, data, when=("in the first", "in the second")):
                raise ValueError(
                    f"tables: runs of one row must have the same data, got {other.folder or 'a record'} and "
                    f"{entry.folder or 'a record'} of {entry.method} on {entry.data}: {differ}. Leave one out."
                )
        known += [] if entry.is_foreign else [(entry, data)]


def _decided(entry: Entry) -> tuple[dict[str, str], dict[str, str]]:
    """The recipe of a run, and what of it was set; both empty for predictions of which nothing is known."""
    told = tuple((key, _text(value)) for key, value in sorted(entry.recipe.items()))
    return _resolve(entry.method, entry.preset or "default", told) if told or not entry.is_foreign else ({}, {})


# Every row is held against every other, in every column: recipes for that are made once.
@cache
def _resolve(method: str, preset: str, told: tuple[tuple[str, str], ...]) -> tuple[dict[str, str], dict[str, str]]:
    usual = _usual(method, preset)
    changes = {key: text for key, text in told if usual.get(key) != text and key not in _NAMED}
    try:
        recipe = override(Recipe(), {"method.name": method, "method.preset": preset, **changes})
        found = {key: _text(value) for key, value in flat_recipe(recipe).items()}
    except ValueError:
        # A record by hand, or of another version, may have keys and values that this one does not know.
        found = usual | changes
    settings = {key: found[key] for key in sorted(found) if key not in _NO_SETTING and usual.get(key) != found[key]}
    return found, settings


@cache
def _usual(method: str, preset: str) -> dict[str, str]:
    """The recipe that a method has by itself, also keys that say nothing under it."""
    known = preset if preset in ("default", "paper") else "default"
    recipe = resolved(override(Recipe(), {"method.name": method, "method.preset": known}))
    return {key: _text(value) for key, value in _flat(asdict(recipe))}


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: object) -> str:
    """A value of a recipe as it is typed."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)
