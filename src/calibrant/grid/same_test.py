"""Rows that are compared must be of the same test examples in the same order. How rows are read is in `collect` and `added`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from calibrant.core.entry import Entry
from calibrant.core.sizes import usual_size
from calibrant.grid.collect import UNKNOWN


class KnownLabels(NamedTuple):
    """What the rows of a data set must agree with.

    Attributes:
        owner: Whose test set it is.
        num_classes: Its number of classes.
        labels: Its labels ``[N]``, in order.
        class_names: Names of its classes, or None.
        weights: Weights of its examples ``[N]``, or None where all count alike.
    """

    owner: str
    num_classes: int
    labels: torch.Tensor
    class_names: tuple[str, ...] | None = None
    weights: torch.Tensor | None = None


class Asked(NamedTuple):
    """What a message is about.

    Attributes:
        option: Command and option that the rows were given with.
        other: What to do with rows of another test set.
        shuffled: What to do with rows of other labels.
    """

    option: str
    other: str
    shuffled: str


def labels_of(entries: Sequence[Entry]) -> KnownLabels | None:
    """Test set of the first row of one data set that has its predictions, and the usual number of them; None without."""
    usual = usual_size(entries)
    for entry in entries:
        if entry.test is not None and len(entry.test.labels) == usual:
            test = entry.test
            owner, weights = str(entry.folder or entry.method), _uneven(test.weights)
            return KnownLabels(owner, test.num_classes, test.labels, test.class_names, weights)
    return None


def check_labels(entries: Sequence[Entry], known: KnownLabels, *, asked: Asked) -> None:
    """Refuse rows of one data set that are of another test set than ``known``, or in another order.

    Fewer examples may be a part of the test set: such a row is shown, but not compared.

    Args:
        entries: The rows; of those that are records the number of classes alone is known.
        known: The test set.
        asked: What a message is about.

    Returns:
        Nothing. Raises ``ValueError`` naming the file.
    """
    for entry in entries:
        file, data = entry.folder or f"the record of {entry.method}", "" if entry.data == UNKNOWN else f" of {entry.data}"
        of_one = f"{asked.option} must be of {'the test set' if data else 'one test set'}{data}, which has"
        if entry.scores.num_classes != known.num_classes:
            raise ValueError(
                f"{of_one} {known.num_classes} classes in {known.owner}, got {entry.scores.num_classes} in {file}. "
                f"{asked.other}"
            )
        if entry.test is None:
            continue
        labels = entry.test.labels
        if len(labels) > len(known.labels):
            raise ValueError(
                f"{of_one} {len(known.labels):,} examples in {known.owner}, got {len(labels):,} in {file}. {asked.other}"
            )
        _check_class_order(entry.test.class_names, known, where=f"{asked.option} must have the classes{data}", file=str(file))
        if len(labels) != len(known.labels):
            continue
        if torch.equal(labels, known.labels):
            _check_weights(
                entry.test.weights, known, where=f"{asked.option} must weigh the test examples{data}", file=str(file)
            )
            continue
        other = int((labels != known.labels).sum())
        raise ValueError(
            f"{asked.option} must hold the test examples{data} in the order of {known.owner}, got other labels for "
            f"{other:,} of {len(labels):,} in {file}. Write its predictions in that order, or {asked.shuffled}"
        )


def _check_class_order(names: tuple[str, ...] | None, known: KnownLabels, *, where: str, file: str) -> None:
    """Refuse the same classes in another order; other names may be other words for the same classes."""
    if names is None or known.class_names is None or names == known.class_names or set(names) != set(known.class_names):
        return
    place = next(k for k, (one, two) in enumerate(zip(names, known.class_names, strict=True)) if one != two)
    raise ValueError(
        f"{where} in the order of {known.owner}, where class {place} is {known.class_names[place]}, got {names[place]} in "
        f"{file}. Write its scores and labels in that order."
    )


def _uneven(weights: torch.Tensor | None) -> torch.Tensor | None:
    """Weights that make a difference, or None."""
    return None if weights is None or bool((weights == weights[0]).all()) else weights


def _check_weights(weights: torch.Tensor | None, known: KnownLabels, *, where: str, file: str) -> None:
    """Refuse other weights of the same examples: the numbers of such rows are not about the same thing."""
    weights = _uneven(weights)
    if known.weights is None and weights is not None:
        how, got, change = "all alike", "`weights`", "without `weights`"
    elif known.weights is not None and (weights is None or not torch.equal(weights, known.weights)):
        how, got, change = "by its `weights`", "none" if weights is None else "others", "with the same `weights`"
    else:
        return
    raise ValueError(f"{where} as {known.owner} does, {how}, got {got} in {file}. Write it {change}, or measure it alone.")


def check_same_labels(entries: Sequence[Entry], *, asked: Asked) -> None:
    """Refuse rows that are of another test set than the first of their data set; see `check_labels`."""
    for data in dict.fromkeys(entry.data for entry in entries):
        here = [entry for entry in entries if entry.data == data]
        known = labels_of(here)
        if known is not None:
            check_labels(here, known, asked=asked)
