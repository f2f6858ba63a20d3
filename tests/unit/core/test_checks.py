from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.core.checks import (
    check_before_softmax,
    check_count,
    check_label_values,
    check_positive,
    check_prob_values,
    check_shapes,
    check_weights,
    to_tensor,
)
from calibrant.metrics import binary_expected_calibration_error, expected_calibration_error
from calibrant.metrics.streaming import CalibrationSuite


def test_to_tensor_array_shares_memory_and_tensor_is_detached() -> None:
    array = np.zeros(3)
    shared = to_tensor(array, where="f", name="x")
    array[1] = 5
    assert shared.tolist() == [0, 5, 0]
    assert not to_tensor(torch.ones(2, requires_grad=True), where="f", name="x").requires_grad


@pytest.mark.parametrize("dtype", [">f4", ">f8", "longdouble", "float16"])
def test_to_tensor_foreign_floating_types_are_converted(dtype: str) -> None:
    tensor = to_tensor(np.array([0.25, 0.5]).astype(dtype), where="f", name="x")
    assert tensor.is_floating_point()
    assert tensor.tolist() == [0.25, 0.5]


@pytest.mark.parametrize("value", [[[0.5, 0.5], [0.5]], "text", None, [["a"]], np.array([1 + 2j]), {"a": 1}])
def test_to_tensor_what_is_no_array_of_numbers_raises(value: object) -> None:
    with pytest.raises(ValueError, match="^f: `x` must be a tensor, a numpy array or a nested list of numbers, got "):
        to_tensor(value, where="f", name="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None])
def test_count_what_is_no_count_raises(value: object) -> None:
    with pytest.raises(ValueError, match=f"^f: `n_bins` must be a whole number >= 1, got {re.escape(repr(value))}"):
        check_count(value, where="f", name="n_bins")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -0.1, float("inf"), float("nan"), "1"])
def test_positive_what_is_not_above_zero_raises(value: object) -> None:
    with pytest.raises(ValueError, match="^f: `h` must be a finite number > 0, got "):
        check_positive(value, where="f", name="h")  # type: ignore[arg-type]


LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (torch.tensor([0, 1]), torch.rand(2, 3), r"`probs` must be \[N, C\] .* got int64 \[2\].* look swapped"),
        (torch.rand(2), LABELS, r"`probs` must be \[N, C\] .* For one probability per example"),
        (torch.tensor(0.5), LABELS, r"`probs` must be \[N, C\] "),
        (torch.tensor([[1, 0], [0, 1]]), LABELS, "`probs` must be floating point, got torch.int64"),
        (torch.rand(2, 1), LABELS, r"`probs` must be \[N, C\] with C >= 2, got float32 \[2, 1\]"),
        (torch.rand(2, 3), torch.eye(3)[:2], r"`labels` must be \[N\] = \[2\], got \[2, 3\]. Pass `labels.argmax\(1\)`"),
        (torch.rand(2, 3), torch.tensor([1, 2, 0]), r"`labels` must be \[N\] = \[2\], got \[3\]\.$"),
        (torch.rand(2, 3, 4), LABELS, r"`labels` must be \[N, \.\.\.\] = \[2, 4\], got \[2\]"),
        (
            torch.rand(2, 3),
            torch.tensor([0.0, 1.0]),
            "`labels` must be integer class indices, got torch.float32. Leave out rows without a label",
        ),
        (torch.rand(0, 3), torch.zeros(0, dtype=torch.long), r"`probs` must hold at least one example, got \[0, 3\]"),
    ],
)
def test_shapes_each_mistake_is_named(probs: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"^f: {message}"):
        check_shapes(probs, labels, where="f")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0.5, 0.5], [float("nan"), 0.5]], "`probs` must be finite, got nan in row 1"),
        ([[float("inf"), 0.5], [0.5, 0.5]], "`probs` must be finite, got inf in row 0"),
        ([[0.5, 0.5], [3.0, -2.0]], r"`probs` must lie in \[0, 1\], got values from -2 to 0.5.*logits"),
        ([[0.5, 0.5], [0.5, 0.6]], r"rows of `probs` must sum to 1 \(within 1e-06\), got 1.1 in row 1. Normalise"),
        ([[0.5, 0.5], [0.0, 0.0]], "rows of `probs` must sum to 1"),
        ([[0.5, 0.5], [1.0, -1e-9]], r"`probs` must lie in \[0, 1\], got values from -1e-09 to 0.5.*clip"),
        ([[50.0, 50.0], [90.0, 10.0]], r"`probs` must lie in \[0, 1\], got values from 10 to 90.* percentages"),
    ],
)
def test_prob_values_each_mistake_is_named(rows: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=f"^f: {message}"):
        check_prob_values(torch.tensor(rows, dtype=torch.float64), where="f")


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-6), (torch.float32, 1e-3), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)],
    ids=str,
)
def test_prob_values_tolerance_follows_the_dtype(dtype: torch.dtype, tolerance: float) -> None:
    check_prob_values(torch.tensor([[0.5, 0.5 + tolerance / 2]], dtype=dtype), where="f")
    with pytest.raises(ValueError, match="must sum to 1"):
        check_prob_values(torch.tensor([[0.5, 0.5 + tolerance * 2]], dtype=dtype), where="f")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([float("-inf"), float("-inf")], "`logits` must .* a finite entry in every row, got -inf in row 1"),
        ([float("nan"), 0.0], r"`logits` must not hold NaN or \+inf .* got nan in row 1"),
        ([float("inf"), 0.0], r"`logits` must not hold NaN or \+inf .* got inf in row 1"),
    ],
)
def test_logit_values_each_mistake_is_named(row: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^f: {message}"):
        check_before_softmax(torch.tensor([[0.0, 1.0], row]), where="f")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 3], r"`labels` must lie in \[0, 2\], got 3\.$"),
        ([1, 2, 3], r"`labels` must lie in \[0, 2\], got 3. They look one-based: pass `labels - 1`"),
        ([0, -100], r"`labels` must lie in \[0, 2\], got -100. Pass `ignore_index=-100` if it marks examples to leave out"),
    ],
)
def test_label_values_each_mistake_is_named(labels: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^f: {message}"):
        check_label_values(torch.tensor(labels), 3, where="f")


def test_labels_minus_one_and_one_are_told_what_to_be() -> None:
    with pytest.raises(ValueError, match="got -1. Write labels -1 and 1 as 0 and 1"):
        check_label_values(torch.tensor([1, -1]), 2, where="f")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], r"`weights` must be \[2\] as the labels, got \[1\]"),
        ([1.0, -1.0], "`weights` must be finite and >= 0, got -1"),
        ([1.0, float("nan")], "`weights` must be finite and >= 0"),
        ([float("inf"), 1.0], "`weights` must have a positive sum .* got inf"),
        ([0.0, 0.0], "`weights` must have a positive sum .* got 0"),
        ([1e-320, 1e-320], "`weights` must have a positive sum"),
        ([1e308, 1e308], "`weights` must have a positive sum"),
    ],
)
def test_weights_each_mistake_is_named(weights: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^f: {message}"):
        check_weights(torch.tensor(weights, dtype=torch.float64), LABELS, where="f")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_logit_values_that_are_a_softmax_are_refused(dtype: torch.dtype) -> None:
    probs = torch.randn(40, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(1).to(dtype)
    with pytest.raises(ValueError, match=r"^f: `logits` must be scores before softmax, .* They look like probabilities"):
        check_before_softmax(probs[:10], where="f")


def test_logit_values_that_only_resemble_a_softmax_pass() -> None:
    probs = torch.full((12, 4), 0.25)
    last_row_sums_to_two = probs.clone()
    last_row_sums_to_two[-1] = 0.5
    below_zero = probs + torch.tensor([0.5, -0.5, 0.0, 0.0])
    few_rows = probs[:9]
    for logits in (few_rows, probs.log(), 2 * probs, below_zero, last_row_sums_to_two):
        assert check_before_softmax(logits, where="f") is None


def test_masked_entries_are_refused() -> None:
    probs, labels = [[0.9, 0.1], [0.2, 0.8]], [0, 1]
    hidden = np.ma.array(probs, mask=[[True, False], [False, False]])
    with pytest.raises(ValueError, match=r"^Predictions: `probs` must have no masked entries\. Leave those rows out"):
        Predictions(probs=hidden, labels=labels)
    with pytest.raises(ValueError, match="`labels` must have no masked entries"):
        Predictions(probs=probs, labels=np.ma.array(labels, mask=[False, True]))
    with pytest.raises(ValueError, match="`g` must have no masked entries"):
        Predictions(probs=probs, labels=labels, columns={"g": np.ma.array(labels, mask=[False, True])})
    assert Predictions(probs=np.ma.array(probs), labels=labels).confidence.tolist() == [0.9, 0.8]


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
        with pytest.raises(
            ValueError, match=r"must be class indices .* got (nan|'None'|'nan') in row 1\. .*Leave out rows without a label"
        ):
            call()


def test_labels_between_whole_numbers_are_refused_with_their_row() -> None:
    with pytest.raises(ValueError, match=r"^Predictions: `labels` must be class indices .*, got 0\.5 in row 2\."):
        Predictions(probs=PROBS, labels=[0.0, 1.0, 0.5])
    with pytest.raises(ValueError, match=r"^Predictions: `labels` must be a tensor, a numpy array or a nested list of numbers"):
        Predictions(probs=PROBS, labels=[[0], [1, 2], [2]])
    with pytest.raises(ValueError, match=r"`labels` must be class indices .* in row 1"):
        Predictions(probs=PROBS, labels=np.array([0, {}, 2], dtype=object))


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
        (["cat", "dgo", "eel"], ["cat", "dog", "eel"], r"among the class names, got 'dgo' in row 1\."),
        (["cat", None, "eel"], ["cat", "dog", "eel"], r"got (nan|'None'|'nan') in row 1\. .*Leave out rows without a label"),
        (["cat", "0", "eel"], ["cat", "dog", "eel"], r"got '0' in row 1\."),
        (["cat", "dog", "eel"], None, r"got 'cat' in row 0\. Give indices"),
        (["cat", "dog", "dog"], ["cat", "dog", "dog"], "`class_names` must differ where labels are names"),
    ],
)
def test_labels_that_are_unknown_names_say_what_to_do(labels: list[str], names: list[str] | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Predictions(probs=PROBS, labels=labels, class_names=names)
