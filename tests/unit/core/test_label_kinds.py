from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.metrics import binary_expected_calibration_error, expected_calibration_error
from calibrant.metrics.streaming import CalibrationSuite

PROBS = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0.0, 1.0, 2.0]),
        torch.tensor([0.0, 1.0, 2.0], dtype=torch.float16),
        [0.0, 1.0, 2.0],
        np.array([0, 1, 2], dtype=object),
        np.array([0.0, 1.0, 2.0], dtype=object),
    ],
)
def test_labels_that_are_whole_numbers_are_taken_whatever_their_type(labels: object) -> None:
    assert Predictions(probs=PROBS, labels=labels).labels.tolist() == [0, 1, 2]  # type: ignore[arg-type]
    assert float(expected_calibration_error(PROBS, labels)) == float(  # type: ignore[arg-type]
        expected_calibration_error(PROBS, [0, 1, 2])
    )
    suite = CalibrationSuite(num_classes=3)
    suite.update(PROBS, labels)  # type: ignore[arg-type]
    assert suite.summary().n == 3


@pytest.mark.parametrize("missing", [np.nan, None])
def test_labels_with_a_missing_one_name_its_row(missing: object) -> None:
    labels = np.array([0, missing, 2], dtype=np.float64 if missing is not None else object)
    for call in (
        lambda: Predictions(probs=PROBS, labels=labels),
        lambda: expected_calibration_error(PROBS, labels),
        lambda: CalibrationSuite(num_classes=3).update(PROBS, labels),
        lambda: binary_expected_calibration_error([0.2, 0.3, 0.4], labels),
        lambda: Predictions.from_binary(probs=[0.2, 0.3, 0.4], labels=labels),
    ):
        with pytest.raises(ValueError, match=r"must be class indices 0, 1, 2, …, got no label in row 1\. Leave that row out"):
            call()


def test_labels_between_whole_numbers_are_refused_with_their_row() -> None:
    with pytest.raises(ValueError, match=r"^Predictions: `labels` must be class indices 0, 1, 2, …, got 0\.5 in row 2\."):
        Predictions(probs=PROBS, labels=[0.0, 1.0, 0.5])
    with pytest.raises(ValueError, match=r"^Predictions: `labels` must be a tensor, a numpy array or a nested list of numbers"):
        Predictions(probs=PROBS, labels=[[0], [1, 2], [2]])
    with pytest.raises(ValueError, match=r"`labels` must be class indices .* in row 1"):
        Predictions(probs=PROBS, labels=np.array([0, {}, 2], dtype=object))


def test_labels_of_dense_input_name_the_first_index_of_a_missing_one() -> None:
    labels = torch.zeros(2, 2, 2)
    labels[1, 0, 1] = torch.nan
    with pytest.raises(ValueError, match="got no label in row 1"):
        Predictions(logits=torch.zeros(2, 3, 2, 2), labels=labels)


def test_labels_of_a_binary_problem_may_be_whole_floats() -> None:
    assert float(binary_expected_calibration_error([0.25, 0.75], np.array([0.0, 1.0]))) == 0.25
    assert Predictions.from_binary(probs=[0.25, 0.75], labels=[0.0, 1.0]).labels.tolist() == [0, 1]


def test_labels_that_are_one_hot_keep_their_own_message() -> None:
    with pytest.raises(ValueError, match=r"Pass `labels\.argmax\(1\)` if they are one-hot"):
        Predictions(probs=PROBS, labels=np.eye(3))
    with pytest.raises(ValueError, match="measured class by class"):
        Predictions(probs=PROBS, labels=np.eye(3, dtype=int))
    with pytest.raises(ValueError, match=r"one-hot\.$"):
        Predictions(logits=PROBS, labels=np.eye(3, dtype=int))


@pytest.mark.parametrize(
    "kind", [list, np.array, lambda names: np.array(names, dtype=object), lambda names: np.array(names, "S")]
)
def test_labels_that_are_names_are_looked_up_in_the_class_names(kind: Callable[[list[str]], object]) -> None:
    given = kind(["eel", "cat", "eel"])
    predictions = Predictions(probs=PROBS, labels=given, class_names=["cat", "dog", "eel"])  # type: ignore[arg-type]
    assert predictions.labels.tolist() == [2, 0, 2]
    names = np.array(["cat", "dog", "eel"])
    assert Predictions(probs=PROBS, labels=given, class_names=names).labels.tolist() == [2, 0, 2]  # type: ignore[arg-type]


def test_labels_that_are_names_may_mark_examples_to_leave_out() -> None:
    predictions = Predictions(probs=PROBS, labels=["b", "-100", "a"], class_names=list("abc"), ignore_index=-100)
    assert predictions.labels.tolist() == [1, 0]
    assert Predictions.from_binary(probs=[0.2, 0.9], labels=["no", "yes"], class_names=["no", "yes"]).labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("labels", "names", "said"),
    [
        (["cat", "dgo", "eel"], ["cat", "dog", "eel"], r"among the class names, got 'dgo' in row 1\. Did you mean 'dog'\?$"),
        (["cat", None, "eel"], ["cat", "dog", "eel"], r"got no label in row 1\. Leave that row out"),
        (["cat", "-1", "eel"], ["cat", "dog", "eel"], r"got '-1' in row 1\. Pass `ignore_index=-1` if it marks examples"),
        (["cat", "0", "eel"], ["cat", "dog", "eel"], r"got '0' in row 1\. Name every class\.$"),
        (["-1", "0", "cow"], ["cat", "dog", "eel"], r"got 'cow' in row 2\."),
        (
            ["cat", "dog", "eel"],
            None,
            r"got 'cat' in row 0\. Give indices, or also the names",
        ),
    ],
)
def test_labels_that_are_unknown_names_say_what_to_do(labels: list[str], names: list[str] | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Predictions(probs=PROBS, labels=labels, class_names=names)
