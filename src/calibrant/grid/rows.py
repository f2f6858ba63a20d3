"""Runs that differ in their seed alone are one row: grouping entries, and which rows may be compared. Tables are not here."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from calibrant.core.entry import Entry
from calibrant.data.image_set import difference
from calibrant.engine.methods import METHODS, idle_keys, make_plan, resolved, split_name
from calibrant.engine.objective import Facts, MetaPlan
from calibrant.engine.recipe import NEUTRAL, Recipe, override
from calibrant.grid.names import is_predictions

# What a recipe leaves to the method unless it is said.
LEFT_TO_METHOD = ("train.average", "train.select")


@dataclass(frozen=True)
class Row:
    """The runs of one method under one setting.

    Attributes:
        data: Name of the data set.
        model: Name of the network, or None.
        method: Name of the method.
        preset: Its preset; None where it has none, or where that changes nothing.
        epochs: Length of training, or None.
        settings: Further recipe keys that differ from the defaults, as ``key=value``.
        runs: Its entries, by seed.
    """

    data: str
    model: str | None
    method: str
    preset: str | None
    epochs: int | None
    settings: tuple[str, ...]
    runs: tuple[Entry, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that are known."""
        return tuple(entry.seed for entry in self.runs if entry.seed is not None)

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
        row has several runs and one does not say its seed, as they may be anything, or if its runs had different data. Files
        of somebody's predictions may be of different parts of the test set; their row is compared with no other.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> entries = [Entry("coins", method, scores, seed=seed) for seed in (1, 0) for method in ("ce", "focal")]
        >>> [(row.method, row.seeds) for row in group_rows(entries)]
        [('ce', (0, 1)), ('focal', (0, 1))]
    """
    given = list(entries)
    merged = _group(given, merge=True)
    if any(_repeated(runs) for runs in merged.values()):
        merged = _group(given, merge=False)
    for runs in merged.values():
        twice = _repeated(runs)
        if twice:
            first, second = twice
            seed = "no seed" if None in (first.seed, second.seed) else f"seed {first.seed}"
            raise ValueError(
                f"tables: runs of one row must have different seeds, got {seed} of {first.method} on {first.data} "
                f"twice ({first.folder or 'a record'} and {second.folder or 'a record'}). Leave one out."
            )
        _check_same_data(runs)
    return [Row(*key, runs=tuple(sorted(runs, key=lambda e: (e.seed is None, e.seed or 0)))) for key, runs in merged.items()]


def tell_apart(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with presets that are the same in every row of `group_rows` and differ between any two.

    They are taken off where several of them are one row, and name the settings that rows of one method differ in, so that
    figures, which know of presets alone, show the same rows as tables.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> facts = [{"command": "calibrant train"}, {"command": "calibrant train --set train.average=ema"}]
        >>> [entry.preset for entry in tell_apart([Entry("coins", "ce", scores, seed=0, facts=said) for said in facts])]
        [None, 'train.average=ema']
    """
    rows = group_rows(entries)
    joined = {id(entry): _variant(row, rows) for row in rows for entry in row.runs}
    return [replace(entry, preset=joined[id(entry)]) for entry in entries]


def _variant(row: Row, rows: Sequence[Row]) -> str | None:
    alike = [other for other in rows if (other.data, other.model, other.method) == (row.data, row.model, row.method)]
    own = [text for text in row.settings if text not in set.intersection(*(set(other.settings) for other in alike))]
    # The default is not said, unless somebody's run of no preset could be taken for it.
    silent = row.preset is None or (row.preset == "default" and all(other.preset is not None for other in alike))
    return ", ".join([*([] if silent else [str(row.preset)]), *own]) if own else row.preset


_Key = tuple[str, str | None, str, str | None, int | None, tuple[str, ...]]


def _group(entries: Sequence[Entry], *, merge: bool) -> dict[_Key, list[Entry]]:
    groups: dict[_Key, list[Entry]] = {}
    for entry in entries:
        preset = None if merge and not preset_matters(entry.method) else entry.preset
        groups.setdefault(_key(entry, preset), []).append(entry)
    return groups


def _key(entry: Entry, preset: str | None) -> _Key:
    return entry.data, entry.model, entry.method, preset, entry.epochs, settings_of(entry)


def is_same_run(first: Entry, second: Entry) -> bool:
    """Whether two entries have everything in common that decides a row, and the seed."""
    return first.seed == second.seed and _key(first, first.preset) == _key(second, second.preset)


def catalogue_order(entry: Entry) -> tuple[object, ...]:
    """Key to sort runs by: data, network, method as in the catalogue, longest and plainest first, ``+ts`` after its base, seed.

    Predictions of others come last, and keep their order.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> entries = [Entry("coins", method, scores, epochs=1) for method in ("focal", "brier", "ce+ts", "ce")]
        >>> [entry.method for entry in sorted(entries, key=catalogue_order)]
        ['ce', 'ce+ts', 'focal', 'brier']
    """
    if is_predictions(entry):
        return (True,)
    base, scaled = split_name(entry.method)
    known = base not in METHODS, list(METHODS).index(base) if base in METHODS else 0, base
    settings = settings_of(entry)
    variant = -(entry.epochs or 0), entry.preset or "", len(settings), settings
    return False, entry.data, entry.model or "", known, variant, scaled, entry.seed is None, entry.seed or 0


def _repeated(runs: Sequence[Entry]) -> tuple[Entry, Entry] | None:
    seen: dict[int | None, Entry] = {}
    for entry in runs:
        if entry.seed in seen:
            return seen[entry.seed], entry
        if seen and (entry.seed is None or None in seen):
            return next(iter(seen.values())), entry
        seen[entry.seed] = entry
    return None


def _check_same_data(runs: Sequence[Entry]) -> None:
    """Refuse to average runs on different data: those under one path may have changed between two of them."""
    known = [(entry, _data_of(entry)) for entry in runs if entry.model is not None or entry.epochs is not None]
    for place, (entry, data) in enumerate(known):
        for other, before in known[:place]:
            differ = difference(before, data, when=("in the first", "in the second"))
            if differ:
                raise ValueError(
                    f"tables: runs of one row must have the same data, got {other.folder or 'a record'} and "
                    f"{entry.folder or 'a record'} of {entry.method} on {entry.data}: {differ}. Leave one out."
                )


def _data_of(entry: Entry) -> dict[str, object]:
    kept = entry.facts.get("data")
    return {**(kept if isinstance(kept, Mapping) else {}), "test_examples": entry.scores.n}


@cache
def preset_matters(method: str) -> bool:
    """Whether a method trains differently under the presets; a name that is no method's may.

    Example:
        >>> preset_matters("ce+ts"), preset_matters("flgamma-sece")
        (False, True)
    """
    name = split_name(method)[0]
    return name not in METHODS or isinstance(make_plan(name, {}, Facts(1, "sum")), MetaPlan)


def settings_of(entry: Entry) -> tuple[str, ...]:
    """What a run's command sets besides data, method, network, epochs and seed, without what changes only where it ran.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> command = "calibrant train --method ce --set optim.lr=0.2 --set data.root=x"
        >>> settings_of(Entry("coins", "ce", scores, facts={"command": command}))
        ('optim.lr=0.2',)
    """
    command = entry.facts.get("command")
    if not isinstance(command, str):
        return ()
    try:
        words = shlex.split(command)
    except ValueError:
        # A record written by hand may say anything.
        return ()
    found = [value for flag, value in zip(words, words[1:], strict=False) if flag == "--set"]
    found += [f"backbone.init={value}" for flag, value in zip(words, words[1:], strict=False) if flag == "--init"]
    return tuple(sorted(text for text in found if text.partition("=")[0] not in {*NEUTRAL, "train.eval_every_epochs"}))


def comparable(first: Row, second: Row) -> bool:
    """Whether two rows may be held against each other: same data, network, epochs and settings but for the method's own.

    Averaging and selection must each be the same where one of the two was told it, and may be what each method chooses where
    neither was; what says nothing about one of the two does not part them. Somebody's predictions, of which nothing is known,
    may be held against everything on the same data. Numbers of
    another number of test examples are those of another test set, or of a part of it.

    Example:
        >>> known = Row("cifar10", "resnet18", "ce", None, 350, (), ())
        >>> short = Row("cifar10", "resnet18", "focal", None, 20, (), ())
        >>> theirs = Row("cifar10", None, "theirs", None, None, (), ())
        >>> comparable(known, short), comparable(known, theirs)
        (False, True)
    """
    if first.data != second.data or sizes_of(first) != sizes_of(second):
        return False
    if is_foreign(first) or is_foreign(second):
        return True
    if (first.model, first.epochs) != (second.model, second.epochs) or _shared(first, second) != _shared(second, first):
        return False
    told, one, other = {**_said(first), **_said(second)}, _step(first), _step(second)
    return all(one.get(key) == other.get(key) for key in told)


def holds(row: Row, setting: str) -> bool:
    """Whether a row was trained under a setting, told to or because its method chooses it.

    Example:
        >>> row = Row("cifar10", "resnet18", "flgamma-sece", "default", 350, ("optim.lr=0.2",), ())
        >>> holds(row, "optim.lr=0.2"), holds(row, "train.average=phase"), holds(row, "train.average=no")
        (True, True, False)
    """
    key, _, value = setting.partition("=")
    return setting in row.settings or (key in LEFT_TO_METHOD and str(_step(row).get(key)) == value)


def chosen(row: Row, key: str) -> str | None:
    """Averaging or selection of a row, a key of ``LEFT_TO_METHOD``, told or by its method's choice; None where that is unknown.

    Example:
        >>> chosen(Row("cifar10", "resnet18", "flgamma-sece", "default", 350, (), ()), "train.average")
        'phase'
    """
    value = None if is_foreign(row) else _step(row).get(key)
    return None if value is None else str(value)


def sizes_of(row: Row) -> set[int]:
    """How many test examples its runs were measured on."""
    return {entry.scores.n for entry in row.runs}


def is_foreign(row: Row) -> bool:
    """Whether a row is somebody's predictions: neither network nor length of training is known."""
    return row.epochs is None and row.model is None


def _shared(row: Row, other: Row) -> tuple[str, ...]:
    """What a row was told beside its method's own, but for what would say nothing about the other."""
    left = ("method.", *(f"{key}=" for key in (*LEFT_TO_METHOD, *_idle(other))))
    return tuple(text for text in row.settings if not text.startswith(left))


def _idle(row: Row) -> tuple[str, ...]:
    return _idle_after(row.method, tuple((key, str(value)) for key, value in _step(row).items()))


# Every row is held against every other, in every column: recipes for that are made once.
@cache
def _idle_after(method: str, step: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    try:
        return idle_keys(override(Recipe(), {"method.name": method, **dict(step)}))
    except ValueError:
        # A record written by hand may say anything.
        return ()


def _said(row: Row) -> dict[str, object]:
    found = dict(text.split("=", 1) for text in row.settings if "=" in text)
    return {key: found[key] for key in LEFT_TO_METHOD if key in found}


def _step(row: Row) -> dict[str, object]:
    """Averaging and selection of a row, said or left to its method."""
    kept = row.runs[0].facts.get("effective") if row.runs else None
    if isinstance(kept, Mapping) and all(key in kept for key in LEFT_TO_METHOD):
        # What a method chooses may be another thing in another version; this is what it was.
        return {key: kept[key] for key in LEFT_TO_METHOD} | _said(row)
    return dict(_chosen_by(row.method, row.preset or "default", tuple(_said(row).items())))


@cache
def _chosen_by(method: str, preset: str, said: tuple[tuple[str, object], ...]) -> tuple[tuple[str, object], ...]:
    try:
        recipe = override(Recipe(), {"method.name": method, "method.preset": preset, **dict(said)})
    except ValueError:
        # A record written by hand may say anything.
        return said
    train = resolved(recipe).train
    return tuple((key, getattr(train, key.removeprefix("train."))) for key in LEFT_TO_METHOD)
