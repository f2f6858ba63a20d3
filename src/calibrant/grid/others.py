"""Rows of others beside those of a grid: read, taken once, and held against the grid's own test sets."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from calibrant.core.entry import Entry, usual_size
from calibrant.engine.folder import is_finished
from calibrant.engine.setup import load_data
from calibrant.grid.collect import UNKNOWN, is_predictions, load_entries, load_run_entry, name_apart, seed_notes
from calibrant.grid.plan import Cell
from calibrant.grid.rows import catalogue_order, flat_recipe, group_rows, is_same_run
from calibrant.io.predictions import load_predictions


class Added(NamedTuple):
    """What was added to a grid: its rows, and sentences on what was taken once or for seeds of one row."""

    entries: list[Entry]
    notes: tuple[str, ...]


class Labels(NamedTuple):
    """What the rows of a data set must agree with: labels ``[N]`` in order, and weights ``[N]`` where these differ."""

    owner: str
    num_classes: int
    labels: torch.Tensor
    class_names: tuple[str, ...] | None = None
    weights: torch.Tensor | None = None


def load_added(add: Sequence[str | Path], cells: Sequence[Cell], *, runs: Path, sets: Sequence[str]) -> Added:
    """Read the rows that are to be put below those of a grid.

    What is given twice, or lies in the grid's own folder too, with the same numbers, is taken once.

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
    found = once_by_path([entry for given in add for entry in _load(given, sets)])
    found = [entry for entry in found if entry.folder is None or Path(entry.folder).resolve() not in own]
    if not found:
        return Added([], ())
    sizes: dict[str, int] = {}
    for data in dict.fromkeys(entry.data for entry in found):
        here = [entry for entry in found if entry.data == data]
        test = _grid_labels(data, cells, runs) or labels_of(here)
        if test is not None:
            check_labels(here, test, where="compare: `add`")
            sizes[data] = len(test.labels)
    # Nothing of a grid's run but its recipe and its test set is known before it is finished; they are all that decides its row.
    planned = [_planned(cell, runs, found[0], sizes) for cell in cells if cell.shown]
    found, notes = _once(found, planned)
    found = name_apart(found)
    group_rows([*planned, *found])
    return Added(found, (*notes, *seed_notes(found)))


def once_by_path(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries without those that were read from a place a second time."""
    kept: dict[object, Entry] = {}
    for number, entry in enumerate(entries):
        kept.setdefault((entry.data, Path(entry.folder).resolve()) if entry.folder else number, entry)
    return list(kept.values())


def check_same_labels(entries: Sequence[Entry], *, where: str) -> None:
    """Refuse rows that are of another test set than the first of their data set; see `check_labels`."""
    for data in dict.fromkeys(entry.data for entry in entries):
        here = [entry for entry in entries if entry.data == data]
        if (test := labels_of(here)) is not None:
            check_labels(here, test, where=where)


def labels_of(entries: Sequence[Entry]) -> Labels | None:
    """Test set of the first row of one data set that has its predictions, and the usual number of them; None without."""
    usual = usual_size(entries)
    for entry in entries:
        if (test := entry.test) is not None and len(test.labels) == usual:
            return Labels(
                str(entry.folder or entry.method), test.num_classes, test.labels, test.class_names, _uneven(test.weights)
            )
    return None


def check_labels(entries: Sequence[Entry], test: Labels, *, where: str) -> None:
    """Refuse rows of one data set that are of another test set, or have its examples, classes or weights in another order.

    Fewer examples may be a part of the test set: such a row is shown, but not compared.

    Args:
        entries: The rows; of those that are records the number of classes alone is known.
        test: The test set.
        where: Command and option that the rows were given with.

    Returns:
        Nothing. Raises ``ValueError`` naming the file.
    """
    for entry in entries:
        if differ := _difference(entry, test):
            rule, got = differ
            of = "" if entry.data == UNKNOWN else f" of {entry.data}"
            file = entry.folder or f"the record of {entry.method}"
            raise ValueError(
                f"{where} must have the {rule} of the test set{of} as in {test.owner}, got {got} in {file}. "
                "Write the file anew with these, or measure it alone."
            )


def _difference(entry: Entry, test: Labels) -> tuple[str, str] | None:
    """What must agree, and what was found instead; None where all does."""
    if entry.scores.num_classes != test.num_classes:
        return f"{test.num_classes} classes", f"{entry.scores.num_classes}"
    if entry.test is None:
        return None
    labels, names, weights = entry.test.labels, entry.test.class_names, _uneven(entry.test.weights)
    if len(labels) > len(test.labels):
        return f"{len(test.labels):,} examples", f"{len(labels):,}"
    # Other names may be other words for the same classes.
    if names and test.class_names and names != test.class_names and set(names) == set(test.class_names):
        place = next(k for k, (one, two) in enumerate(zip(names, test.class_names, strict=True)) if one != two)
        return f"order of classes, {test.class_names[place]} at {place},", names[place]
    if len(labels) < len(test.labels):
        return None
    if not torch.equal(labels, test.labels):
        return "examples in the order", f"other labels for {int((labels != test.labels).sum()):,} of {len(labels):,}"
    if (weights is None) != (test.weights is None) or (weights is not None and not weights.equal(test.weights)):  # type: ignore[arg-type]
        return "`weights`", "none" if weights is None else "others"
    return None


def _uneven(weights: torch.Tensor | None) -> torch.Tensor | None:
    """Weights that make a difference, or None."""
    return None if weights is None or bool((weights == weights[0]).all()) else weights


def _load(given: str | Path, sets: Sequence[str]) -> list[Entry]:
    name, equals, rest = str(given).partition("=")
    named = bool(equals) and name in sets
    if not str(rest if named else given).strip():
        raise ValueError(f"compare: `add` must name a folder or a file, got {str(given)!r}.")
    if equals and not named and not Path(given).exists() and os.sep not in name:
        raise ValueError(f"compare: `add` must name a data set of the grid before `=`, {' or '.join(sets)}, got {name!r}.")
    entries = load_entries(rest if named else given, data=name if named else sets[0] if len(sets) == 1 else None)
    for entry in entries:
        if entry.data == UNKNOWN:
            raise ValueError(
                f"compare: `add` must say of which data set {given} is where there are several, got no name. "
                f"Write `{sets[0]}={given}`, or another of {', '.join(sets)}."
            )
        if named and entry.data != name:
            raise ValueError(f"compare: `add` must name the data that the run says itself, {entry.data}, got {name}.")
    return sorted(entries, key=catalogue_order)


def _grid_labels(data: str, cells: Sequence[Cell], runs: Path) -> Labels | None:
    """The test set of the grid's data; None of data that the grid has not."""
    own = [cell for cell in cells if cell.data == data]
    for cell in own:
        if is_finished(runs / cell.name):
            test = load_predictions(runs / cell.name / "test.npz")
            return Labels("the grid", test.num_classes, test.labels, test.class_names)
    if not own:
        return None
    # Refused now, not after hours of training.
    images = load_data(own[0].recipe.data).test
    return Labels("the grid", images.num_classes, images.labels, images.class_names)


def _planned(cell: Cell, runs: Path, like: Entry, sizes: dict[str, int]) -> Entry:
    """A run of the grid as far as it is known: with its numbers where it is finished."""
    folder, recipe = runs / cell.name, cell.recipe
    if is_finished(folder):
        return load_run_entry(folder)
    scores = replace(like.scores, n=sizes.get(cell.data, like.scores.n), metrics={})
    entry = Entry(cell.data, cell.method, scores, recipe.method.preset, recipe.backbone.name, recipe.train.epochs, cell.seed)
    return replace(entry, recipe=flat_recipe(recipe), folder=str(folder))


def _once(found: Sequence[Entry], planned: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
    """Leave out what is there already; refuse one file as two seeds, whose spread would be zero."""
    kept: list[Entry] = []
    twice: list[str] = []
    for entry in found:
        alike = [other for other in (*planned, *kept) if other.method == entry.method and _agree(other, entry)]
        if any(is_same_run(other, entry) for other in alike):
            twice.append(str(entry.folder))
            continue
        kept.append(entry)
        copy = next((other for other in alike if is_predictions(other) and None not in (other.seed, entry.seed)), None)
        if copy is not None and copy.data == entry.data:
            raise ValueError(
                f"compare: seeds of one row must be different networks, got the same predictions in {copy.folder} and "
                f"{entry.folder}. Leave one out."
            )
    more = f" and {len(twice) - 1} more are" if len(twice) > 1 else " is"
    return kept, [f"{twice[0]}{more} there twice with the same numbers and taken once."] if twice else []


def _agree(first: Entry, second: Entry) -> bool:
    """Whether two entries have the same numbers."""
    shared = first.scores.metrics.keys() & second.scores.metrics.keys()
    pairs = [(first.scores[key].value, second.scores[key].value) for key in shared]
    return bool(pairs) and all(one == two or math.isclose(one, two, rel_tol=1e-9) for one, two in pairs)
