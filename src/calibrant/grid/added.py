"""Rows of others beside those of a grid: read, told apart, taken once, and held against the grid's own test sets."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from calibrant.core.entry import Entry
from calibrant.core.records import Predictions
from calibrant.core.scores import Scores
from calibrant.engine.folder import is_finished
from calibrant.engine.setup import load_data
from calibrant.grid.collect import UNKNOWN, command_of, load_entries, load_run_entry
from calibrant.grid.names import is_predictions, name_apart, place_of, seed_notes
from calibrant.grid.plan import Cell
from calibrant.grid.rows import catalogue_order, group_rows, is_same_run
from calibrant.grid.same_test import Asked, KnownLabels, check_labels, labels_of
from calibrant.io.predictions import load_predictions
from calibrant.report.style import method_name


class Added(NamedTuple):
    """What was added to a grid.

    Attributes:
        entries: The rows.
        notes: Sentences on what was given twice and taken once, and on files of different folders that are seeds of one row.
    """

    entries: list[Entry]
    notes: tuple[str, ...]


_ASKED = Asked(
    "compare: `add`",
    other="Leave it out, or say of which data set it is with `DATA=PATH`.",
    shuffled="measure them alone with `calibrant measure`.",
)


def load_added(add: Sequence[str | Path], cells: Sequence[Cell], *, runs: Path, sets: Sequence[str]) -> Added:
    """Read the rows that are to be put below those of a grid.

    What is given twice, or lies in the grid's own folder too, with the same predictions, is taken once.

    Args:
        add: Paths, or ``DATA=PATH`` with one of the grid's data sets.
        cells: The grid.
        runs: Folder of its runs; those of its own cells are not added to themselves.
        sets: What its data sets are called; a grid without cells compares what is added.

    Returns:
        The rows. Raises ``ValueError`` if one has everything in common with a run of the grid, seed included, but for what it
        predicts, or if it is of another test set than the grid's.
    """
    own = {(runs / cell.name).resolve() for cell in cells if cell.shown}
    found = [
        entry for entry in once_by_path(_load(add, sets)) if entry.folder is None or Path(entry.folder).resolve() not in own
    ]
    if not found:
        return Added([], ())
    sizes = _check_test_sets(found, cells, runs)
    # Nothing of a grid's run but its name and its test set is known before it is finished; they are all that decides its row.
    scores = {cell.data: replace(found[0].scores, n=sizes.get(cell.data, found[0].scores.n)) for cell in cells}
    expected = [_expected(cell, scores[cell.data], runs) for cell in cells if cell.shown]
    found, notes = _once(found, expected)
    _check_copies(found)
    found = _shown_apart(name_apart(found), expected)
    group_rows([*expected, *found])
    return Added(found, (*notes, *seed_notes(found)))


def _load(add: Sequence[str | Path], sets: Sequence[str]) -> list[Entry]:
    found: list[Entry] = []
    for given in add:
        name, equals, rest = str(given).partition("=")
        named = bool(equals) and name in sets
        if not str(rest if named else given).strip():
            raise ValueError(f"compare: `add` must name a folder or a file, got {str(given)!r}.")
        if equals and not named and not Path(given).exists() and os.sep not in name:
            raise ValueError(f"compare: `add` must name a data set of the grid before `=`, {_either(sets)}, got {name!r}.")
        entries = load_entries(rest if named else given, data=name if named else sets[0] if len(sets) == 1 else None)
        if any(entry.data == UNKNOWN for entry in entries):
            raise ValueError(
                f"compare: `add` must say of which data set {given} is where there are several, got no name. "
                f"Write `{sets[0]}={given}`, or another of {', '.join(sets)}."
            )
        other = next((entry.data for entry in entries if named and entry.data != name), None)
        if other is not None:
            raise ValueError(f"compare: `add` must name the data that runs and records say themselves, {other}, got {name}.")
        found += sorted(entries, key=catalogue_order)
    return found


def once_by_path(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries without those that were read from a place a second time."""
    kept: dict[object, Entry] = {}
    for number, entry in enumerate(entries):
        kept.setdefault((entry.data, Path(entry.folder).resolve()) if entry.folder else number, entry)
    return list(kept.values())


def _check_test_sets(found: Sequence[Entry], cells: Sequence[Cell], runs: Path) -> dict[str, int]:
    """Refuse rows of another test set; return how many examples each test set has."""
    sizes: dict[str, int] = {}
    for data in dict.fromkeys(entry.data for entry in found):
        entries = [entry for entry in found if entry.data == data]
        known = _grid_labels(data, cells, runs) or labels_of(entries)
        if known is not None:
            check_labels(entries, known, asked=_ASKED)
            sizes[data] = len(known.labels)
    return sizes


def _grid_labels(data: str, cells: Sequence[Cell], runs: Path) -> KnownLabels | None:
    """The test set of the grid's data; None of data that the grid has not."""
    own = [cell for cell in cells if cell.data == data]
    for cell in own:
        if is_finished(runs / cell.name):
            test = load_predictions(runs / cell.name / "test.npz")
            return KnownLabels("the grid", test.num_classes, test.labels, test.class_names)
    if not own:
        return None
    # Refused now, not after hours of training.
    images = load_data(own[0].recipe.data).test
    return KnownLabels("the grid", images.num_classes, images.labels, images.class_names)


def _once(found: Sequence[Entry], expected: Sequence[Entry]) -> tuple[list[Entry], tuple[str, ...]]:
    """Leave out what is there already, to the last bit."""
    kept: list[Entry] = []
    twice: list[tuple[Path, Path]] = []
    for entry in found:
        like = [_finished(other) for other in expected if is_same_run(other, entry)]
        like += [other for other in kept if _is_same(other, entry)]
        same = next((other for other in like if other is not None and _agree(other, entry)), None)
        if same is None:
            kept.append(entry)
        else:
            twice.append((Path(entry.folder or entry.method), Path(same.folder or same.method)))
    return kept, _twice_words(twice)


def _twice_words(twice: Sequence[tuple[Path, Path]]) -> tuple[str, ...]:
    """Say what was given twice, that of one folder in one sentence."""
    by_folder: dict[tuple[Path, Path], list[tuple[Path, Path]]] = {}
    for one, other in twice:
        by_folder.setdefault((one.parent, other.parent), []).append((one, other))
    notes = []
    for (folder, other_folder), pairs in by_folder.items():
        if len(pairs) == 1:
            notes.append(f"{pairs[0][0]} is the same as {pairs[0][1]} and was taken once.")
        else:
            notes.append(f"{len(pairs)} in {folder} are the same as in {other_folder} and were taken once.")
    return tuple(notes)


def _is_same(first: Entry, second: Entry) -> bool:
    """Whether two entries are called the same: runs by all that decides their row, predictions by their files."""
    if is_predictions(first) and is_predictions(second):
        one, two = place_of(str(first.folder)), place_of(str(second.folder))
        return (first.data, one[0].name, one[1]) == (second.data, two[0].name, two[1])
    return is_same_run(first, second)


def _finished(expected: Entry) -> Entry | None:
    return load_run_entry(str(expected.folder)) if is_finished(Path(str(expected.folder))) else None


def _agree(first: Entry, second: Entry) -> bool:
    """Whether two entries predict the same; by their numbers where one is a record."""
    if first.test is not None and second.test is not None:
        return _same_predictions(first.test, second.test)
    shared = first.scores.metrics.keys() & second.scores.metrics.keys()
    pairs = [(first.scores[key].value, second.scores[key].value) for key in shared]
    return bool(pairs) and all(one == two or math.isclose(one, two, rel_tol=1e-9) for one, two in pairs)


def _same_predictions(first: Predictions, second: Predictions) -> bool:
    if first.has_logits != second.has_logits or not torch.equal(first.labels, second.labels):
        return False
    return torch.equal(first.logits, second.logits) if first.has_logits else torch.equal(first.probs, second.probs)


def _shown_apart(found: Sequence[Entry], expected: Sequence[Entry]) -> list[Entry]:
    """Name a file with its ending where figures would call it as they call the method of a run, ``CE.npz`` beside ``ce``."""
    shown = {method_name(entry.method) for entry in (*expected, *found) if not is_predictions(entry)}
    return [
        replace(entry, method=f"{entry.method}{Path(str(entry.folder)).suffix}")
        if is_predictions(entry) and method_name(entry.method) in shown
        else entry
        for entry in found
    ]


def _check_copies(found: Sequence[Entry]) -> None:
    """Refuse one file as two seeds, whose spread would be zero."""
    files = [entry for entry in found if is_predictions(entry)]
    for place, entry in enumerate(files):
        for other in files[:place]:
            both = (
                entry.test is not None and other.test is not None and other.method == entry.method and other.data == entry.data
            )
            if both and entry.seed is not None and other.seed is not None and _agree(other, entry):
                raise ValueError(
                    f"compare: seeds of one row must be different networks, got the same predictions in {other.folder} and "
                    f"{entry.folder}. Leave one out."
                )


def _expected(cell: Cell, scores: Scores, runs: Path) -> Entry:
    recipe = cell.recipe
    return Entry(
        cell.data,
        cell.method,
        scores,
        preset=recipe.method.preset,
        model=recipe.backbone.name,
        epochs=recipe.train.epochs,
        seed=cell.seed,
        facts={"command": command_of(recipe)},
        folder=str(runs / cell.name),
    )


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
