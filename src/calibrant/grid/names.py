"""What somebody's predictions are called: by their file, and by its folders too where files share a name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from calibrant.core.entry import Entry
from calibrant.engine.methods import METHODS, split_name

_SEED = re.compile(r"(?:(?P<name>.+?)[-_.])?seed[-_]?(?P<seed>\d+)")
# File names that say nothing of who predicted.
_NAMELESS = ("", "test")


def place_of(path: str | Path) -> tuple[Path, int | None]:
    """Return the path of a file of predictions without its ending and seed, so that it ends in their name; and the seed.

    A file called just ``test`` or ``seed3`` is called by its folder.

    Example:
        >>> [(place.name, seed) for place, seed in map(place_of, ("mine.npz", "a/mine-seed3.npz", "mine/seed_3.npz"))]
        [('mine', None), ('mine', 3), ('mine', 3)]
        >>> place_of("mine-seed3/test.npz")[1], place_of("mine/seed3/test.npz")[0].name
        (3, 'mine')
    """
    file = Path(path)
    folder, (name, seed) = file.parent.resolve(), _split(file.stem)
    while name in _NAMELESS and folder.name:
        name, seed = _split(folder.name) if seed is None else (folder.name, seed)
        folder = folder.parent
    return folder / (name or file.stem), seed


def name_of(name: str, path: str | Path) -> str:
    """Return what predictions of that name are called: with the file's ending where it would be taken for a method's.

    Bytes of a file's name that are no UTF-8 are spelt out, as nothing could be written or printed with them.

    Example:
        >>> name_of("mine", "mine.npz"), name_of("ce", "ce-seed0.npz"), name_of("ce+ts", "ce+ts.csv")
        ('mine', 'ce.npz', 'ce+ts.csv')
    """
    name = name.encode(errors="backslashreplace").decode()
    return f"{name}{Path(path).suffix}" if split_name(name)[0] in METHODS else name


def name_apart(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with names by which predictions from different files are told apart.

    Files that share a name and say different seeds are the seeds of one row. Where two say the same seed, or one says none,
    their folders become part of the name, and where they lie in one folder the ending of the one without a seed.

    Example:
        >>> from calibrant import Predictions, measure
        >>> test = Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20)
        >>> files = ["o1/m.npz", "o2/m.npz", "o1/x-seed0.npz", "o1/x-seed1.npz"]
        >>> entries = [Entry("coins", "?", measure(test), seed=place_of(file)[1], test=test, folder=file) for file in files]
        >>> [entry.method for entry in name_apart(entries)]
        ['o1/m', 'o2/m', 'x', 'x']
    """
    named: dict[tuple[str, str], dict[int, Path]] = {}
    for number, entry in enumerate(entries):
        if entry.folder is not None and is_predictions(entry):
            place = place_of(entry.folder)[0]
            named.setdefault((entry.data, place.name), {})[number] = place
    found = list(entries)
    for places in named.values():
        for number, name in _names(entries, places).items():
            found[number] = replace(found[number], method=name_of(name, str(found[number].folder)))
    return found


def seed_notes(entries: Sequence[Entry]) -> list[str]:
    """Say which files of different folders are taken for the seeds of one row; whoever gave them may mean different models.

    Args:
        entries: Rows with their names; see `name_apart`.

    Example:
        >>> from calibrant import Predictions, measure
        >>> test = Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20)
        >>> files = {"o1/x-seed0.npz": 0, "o2/x-seed1.npz": 1}
        >>> seed_notes([Entry("coins", "x", measure(test), seed=seed, test=test, folder=file) for file, seed in files.items()])
        ['o1/x-seed0.npz and o2/x-seed1.npz are taken for seeds of one row, x. Rename one if they are different models.']
    """
    # The first file of every folder of a row.
    rows: dict[tuple[str, str], dict[Path, str]] = {}
    for entry in entries:
        if entry.folder is not None and is_predictions(entry):
            rows.setdefault((entry.data, entry.method), {}).setdefault(place_of(entry.folder)[0], entry.folder)
    notes = []
    for (_, method), (*most, last) in ((row, files.values()) for row, files in rows.items() if len(files) > 1):
        told = f"{', '.join(most)} and {last} are taken for seeds of one row, {method}."
        notes.append(f"{told} Rename {'one' if len(most) == 1 else 'some'} if they are different models.")
    return notes


def is_predictions(entry: Entry) -> bool:
    """Whether an entry is a file of predictions: neither a run nor a record."""
    return entry.model is None and entry.epochs is None and entry.test is not None


def _names(entries: Sequence[Entry], places: dict[int, Path]) -> dict[int, str]:
    seeds = [entries[number].seed for number in places]
    if len(places) == 1 or (None not in seeds and len(set(seeds)) == len(seeds)):
        return {number: place.name for number, place in places.items()}
    short, many = _shortest(sorted(set(places.values()))), Counter(places.values())
    found = {}
    for number, place in places.items():
        file = Path(str(entries[number].folder))
        # Beside others of its place, a file without a seed is called as it is.
        own = file.suffix if file.stem == place.name else f"/{file.name}"
        found[number] = short[place] + (own if entries[number].seed is None and many[place] > 1 else "")
    return found


def _shortest(places: Sequence[Path]) -> dict[Path, str]:
    """The fewest last parts of paths by which they differ."""
    for length in range(1, max(len(place.parts) for place in places) + 1):
        names = {place: "/".join(place.parts[-length:]) for place in places}
        if len(set(names.values())) == len(places):
            return names
    return {place: str(place) for place in places}


def _split(text: str) -> tuple[str, int | None]:
    found = _SEED.fullmatch(text)
    return (found["name"] or "", int(found["seed"])) if found else (text, None)
