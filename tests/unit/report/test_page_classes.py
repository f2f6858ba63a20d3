"""Classes and mistakes of a page."""

from __future__ import annotations

import pytest
import torch

from calibrant import Predictions, measure
from calibrant.core.summary import summarize
from calibrant.metrics.ordinary import rate_interval
from calibrant.report.page_bins import UNIT
from calibrant.report.page_classes import class_names_of, class_view, confident_mistakes
from helpers import mixed_gaps


def columns(view: dict[str, object], key: str) -> list[float]:
    found = view[key]
    assert isinstance(found, list)
    return found


def test_class_view_holds_the_numbers_of_measure() -> None:
    probs, labels = mixed_gaps(500, 6)
    predictions = Predictions(probs=probs, labels=labels)
    view = class_view(summarize(predictions, n_bins=10), predictions)
    scores = measure(predictions, n_bins=10, by_class=True, n_resamples=20)
    assert columns(view, "order") == [entry.index for entry in scores.classes]
    for entry in scores.classes:
        assert columns(view, "ece")[entry.index] == pytest.approx(entry.ece, abs=1e-7)
        assert columns(view, "gap")[entry.index] == pytest.approx(entry.signed_gap, abs=1e-7)
        assert columns(view, "error")[entry.index] == pytest.approx(entry.error, abs=1e-6)
        assert columns(view, "count")[entry.index] == entry.count


def test_class_view_bins_add_up_to_the_error_of_the_class() -> None:
    probs, labels = mixed_gaps(500, 6)
    predictions = Predictions(probs=probs, labels=labels)
    view = class_view(summarize(predictions, n_bins=10), predictions)
    flat = view["bins"]
    assert isinstance(flat, list)
    for k in range(6):
        rows = [flat[k][at : at + 6] for at in range(0, len(flat[k]), 6)]
        assert sum(row[1] for row in rows) == 500
        error = sum(row[1] * abs(row[2] - row[3]) for row in rows) / 500 / UNIT
        assert error == pytest.approx(columns(view, "ece")[k], abs=1e-4)


def test_class_view_of_a_class_never_seen_and_never_said_is_empty() -> None:
    predictions = Predictions(probs=[[0.7, 0.3, 0.0], [0.4, 0.6, 0.0]], labels=[0, 0])
    view = class_view(summarize(predictions), predictions)
    assert columns(view, "count") == [2, 0, 0]
    assert columns(view, "error") == [0.5, None, None]
    assert columns(view, "said") == [1, 1, 0]
    assert columns(view, "sure") == [7000, 6000, 0]
    assert columns(view, "right") == [10000, 0, 0]


def test_class_view_counts_rows_and_weighs_shares() -> None:
    probs = [[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.3, 0.7]]
    predictions = Predictions(probs=probs, labels=[0, 1, 0, 1], weights=[3.0, 1.0, 0.0, 2.5])
    view = class_view(summarize(predictions), predictions)
    assert columns(view, "said") == [2, 1]
    assert columns(view, "sure") == [8250, 7000]
    assert columns(view, "right") == [7500, 10000]


def test_class_names_are_numbers_where_there_are_none() -> None:
    probs = [[0.7, 0.3]]
    assert class_names_of(Predictions(probs=probs, labels=[0])) == ["0", "1"]
    assert class_names_of(Predictions(probs=probs, labels=[0], class_names=["a", "b"])) == ["a", "b"]


def test_confident_mistakes_come_most_confident_first_with_their_rows() -> None:
    predictions = Predictions(
        probs=[[0.9, 0.1], [0.2, 0.8], [0.99, 0.01], [0.6, 0.4]], labels=[0, 0, 1, 1], class_names=["x", "y"]
    )
    after = predictions.replace(probs=[[0.8, 0.2], [0.3, 0.7], [0.75, 0.25], [0.55, 0.45]])
    found = confident_mistakes(predictions, after)
    assert [(entry["row"], entry["label"], entry["predicted"]) for entry in found] == [
        (2, "y", "x"),
        (1, "x", "y"),
        (3, "y", "x"),
    ]
    assert [entry["confidence"] for entry in found] == [0.99, 0.8, 0.6]
    assert [entry["after"] for entry in found] == [0.75, 0.7, 0.55]


def test_confident_mistakes_are_at_most_ten_or_none() -> None:
    probs, labels = mixed_gaps(300)
    assert len(confident_mistakes(Predictions(probs=probs, labels=labels))) == 10
    right = Predictions(probs=torch.tensor([[0.9, 0.1]]), labels=[0])
    assert confident_mistakes(right) == []


def test_class_view_of_weighted_examples_has_intervals_of_as_many_as_count() -> None:
    # Half of all are of the first class, given 0.75 each; weights of 1 and 3 are worth four fifths of as many equal ones.
    test = Predictions(probs=[[0.75, 0.25]] * 40, labels=[0, 1] * 20, weights=[1.0, 1.0, 3.0, 3.0] * 10)
    first = columns(class_view(summarize(test, n_bins=10), test), "bins")[0]
    ends = rate_interval(0.5, size=32)
    assert first == [7, 80, 7500, 5000, round(10_000 * ends.low), round(10_000 * ends.high)]
