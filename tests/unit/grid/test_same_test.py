"""Rows of one data set are of the same test examples, or refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from calibrant import Predictions, measure
from calibrant.core.entry import Entry
from calibrant.grid.same_test import Asked, check_same_labels, labels_of

ASKED = Asked("page: `run`", other="Leave it out.", shuffled="leave it out.")


def entry(
    method: str, labels: list[int], *, data: str = "coins", classes: int = 2, epochs: int | None = None, is_record: bool = False
) -> Entry:
    probs = [[0.9, *([0.1 / (classes - 1)] * (classes - 1))]] * len(labels)
    test = Predictions(probs=probs, labels=labels)
    kept = None if is_record else test
    return Entry(
        data, method, measure(test, n_resamples=2), epochs=epochs, test=kept, folder=None if is_record else f"{method}.npz"
    )


def test_rows_of_the_same_labels_other_data_and_parts_are_taken() -> None:
    rows = [
        entry("part", [1, 1]),
        entry("ce", [0, 1, 1]),
        entry("focal", [0, 1, 1]),
        entry("other", [1, 1, 1, 0], data="dice", classes=6),
        entry("another part", [0, 0]),
    ]
    check_same_labels(rows, asked=ASKED)
    found = labels_of(rows[:3])
    assert found is not None
    assert (found.owner, found.num_classes, found.labels.tolist()) == ("ce.npz", 2, [0, 1, 1])


def test_rows_of_other_labels_are_refused_also_behind_a_part() -> None:
    rows = [entry("part", [1, 1]), entry("mine", [0, 1, 1]), entry("theirs", [1, 1, 0])]
    message = (
        "page: `run` must hold the test examples of coins in the order of mine.npz, got other labels for 2 of 3 in theirs.npz. "
        "Write its predictions in that order, or leave it out."
    )
    with pytest.raises(ValueError, match=message):
        check_same_labels(rows, asked=ASKED)


def test_rows_of_more_examples_than_the_run_has_are_refused() -> None:
    # A run knows its test set, so it decides, not what is longest.
    message = "must be of the test set of coins, which has 2 examples in ce.npz, got 3 in theirs.npz. Leave it out."
    with pytest.raises(ValueError, match=message):
        check_same_labels([entry("theirs", [1, 1, 0]), entry("ce", [0, 0], epochs=1)], asked=ASKED)


def test_rows_with_the_same_classes_in_another_order_are_refused() -> None:
    names = ("heads", "tails", "edge")
    rows = [entry(method, [0, 1, 2], classes=3) for method in ("mine", "theirs")]
    named = [named_as(rows[0], names), named_as(rows[1], ("heads", "edge", "tails"))]
    message = (
        "page: `run` must have the classes of coins in the order of mine.npz, where class 1 is tails, got edge in theirs.npz. "
        "Write its scores and labels in that order."
    )
    with pytest.raises(ValueError, match=message):
        check_same_labels(named, asked=ASKED)
    # Other words for the classes, or none, say nothing about their order.
    for other in (("0", "1", "2"), names, None):
        check_same_labels([named[0], named_as(rows[1], other)], asked=ASKED)


def named_as(row: Entry, names: tuple[str, ...] | None) -> Entry:
    assert row.test is not None
    return replace(row, test=Predictions(probs=row.test.probs, labels=row.test.labels, class_names=names))


def test_rows_of_data_without_a_name_are_held_against_the_first() -> None:
    rows = [entry(name, labels, data="?") for name, labels in (("mine", [0, 1, 1]), ("theirs", [1, 1, 0]))]
    with pytest.raises(ValueError, match="must hold the test examples in the order of mine.npz, got other labels for 2 of 3"):
        check_same_labels(rows, asked=ASKED)
    many = [rows[0], entry("many", [0, 1, 2], data="?", classes=3)]
    message = "page: `run` must be of one test set, which has 2 classes in mine.npz, got 3 in many.npz. Leave it out."
    with pytest.raises(ValueError, match=message):
        check_same_labels(many, asked=ASKED)


def test_records_are_held_against_the_number_of_classes_alone() -> None:
    record = entry("old", [0, 0, 0], is_record=True)
    assert labels_of([record]) is None
    check_same_labels([record, entry("mine", [0, 1, 1])], asked=ASKED)
    many = entry("old", [0, 0, 2], classes=3, is_record=True)
    with pytest.raises(
        ValueError, match="of the test set of coins, which has 2 classes in mine.npz, got 3 in the record of old"
    ):
        check_same_labels([many, entry("mine", [0, 1, 1])], asked=ASKED)


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (None, [1.0, 2.0], "as mine.npz does, all alike, got `weights` in theirs.npz. Write it without `weights`, or"),
        ([1.0, 2.0], None, "as mine.npz does, by its `weights`, got none in theirs.npz. Write it with the same `weights`, or"),
        ([1.0, 2.0], [2.0, 1.0], "as mine.npz does, by its `weights`, got others in theirs.npz. Write it with the same"),
        ([1.0, 2.0], [1.0, 2.0], None),
    ],
)
def test_rows_of_examples_that_weigh_otherwise_are_refused(
    first: list[float] | None, second: list[float] | None, sentence: str | None
) -> None:
    rows = [
        replace(entry(name, [0, 1]), test=Predictions(probs=[[0.9, 0.1]] * 2, labels=[0, 1], weights=weights))
        for name, weights in (("mine", first), ("theirs", second))
    ]
    if sentence is None:
        check_same_labels(rows, asked=ASKED)
        return
    with pytest.raises(ValueError, match=f"page: `run` must weigh the test examples of coins {re.escape(sentence)}"):
        check_same_labels(rows, asked=ASKED)


def test_weights_that_are_all_the_same_are_none() -> None:
    even = Predictions(probs=[[0.9, 0.1]] * 2, labels=[0, 1], weights=[2.0, 2.0])
    rows = [replace(entry("theirs", [0, 1]), test=even), entry("mine", [0, 1])]
    check_same_labels(rows, asked=ASKED)
    found = labels_of(rows)
    assert found is not None
    assert found.weights is None
