from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant import Predictions, Split
from calibrant.core.records import Bins, as_predictions, check_examples

PROBS = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]
LABELS = [0, 0, 1]


def test_predictions_lists_arrays_and_tensors_agree() -> None:
    for probs in (PROBS, np.array(PROBS), torch.tensor(PROBS, dtype=torch.float64)):
        record = Predictions(probs=probs, labels=LABELS)
        assert record.probs.tolist() == PROBS
        assert record.labels.tolist() == LABELS
        assert len(record) == 3
        assert record.num_classes == 2


def test_predictions_logits_and_probs_are_derived_from_each_other() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    record = Predictions(logits=logits, labels=[0, 1])
    assert record.has_logits
    assert torch.equal(record.logits, logits)
    assert record.probs.dtype == torch.float64
    assert torch.allclose(record.probs, logits.double().softmax(1))
    back = Predictions(probs=record.probs, labels=[0, 1])
    assert not back.has_logits
    assert torch.allclose(back.logits.softmax(1), record.probs)


def test_predictions_minus_infinity_is_probability_zero_and_back() -> None:
    record = Predictions(logits=[[0.0, float("-inf")]], labels=[0])
    assert record.probs.tolist() == [[1.0, 0.0]]
    assert Predictions(probs=[[1.0, 0.0]], labels=[0]).logits.tolist() == [[0.0, float("-inf")]]


def test_predictions_confidence_predicted_and_correct_by_hand() -> None:
    record = Predictions(probs=[*PROBS, [0.5, 0.5]], labels=[*LABELS, 1])
    assert record.confidence.tolist() == [0.9, 0.8, 0.6, 0.5]
    assert record.predicted.tolist() == [0, 1, 0, 0]
    assert record.correct.tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of `logits` and `probs` must be given"),
        ({"probs": PROBS, "logits": PROBS}, "exactly one of `logits` and `probs` must be given"),
        ({"probs": [[2.0, -1.0], [0.5, 0.5], [0.5, 0.5]]}, r"`probs` must lie in \[0, 1\]"),
        ({"logits": [[float("nan"), 1.0], [0.0, 1.0], [0.0, 1.0]]}, r"`logits` must not hold NaN or \+inf"),
        ({"probs": PROBS, "weights": [1.0, 2.0]}, r"`weights` must be \[3\] as the labels, got \[2\]"),
        ({"probs": PROBS, "split": "dev"}, "`split` must be one of 'train', 'val', 'meta', 'test', got 'dev'"),
        ({"probs": PROBS, "columns": {"site": ["a", "b"]}}, "column `site` must have N = 3 values, got 2"),
        ({"probs": PROBS, "columns": {"site": [["a"], ["b"], ["c"]]}}, r"column `site` must be \[N\], got \[3, 1\]"),
        ({"probs": PROBS, "class_names": ["cat"]}, "`class_names` must hold C = 2 names, got 1"),
    ],
)
def test_predictions_each_mistake_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^Predictions: .*{message}"):
        Predictions(labels=LABELS, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_predictions_share_the_memory_of_arrays_as_documented(kind: str) -> None:
    array = np.array(PROBS)
    record = Predictions(labels=LABELS, **{kind: array})
    for shared in (record, record.replace(split="val")):
        assert getattr(shared, kind).data_ptr() == array.ctypes.data


def test_predictions_ignored_examples_go_with_weights_and_columns() -> None:
    record = Predictions(probs=PROBS, labels=[0, -1, 1], weights=[1, 2, 3], columns={"site": ["a", "b", "c"]}, ignore_index=-1)
    assert record.labels.tolist() == [0, 1]
    assert record.weights is not None
    assert record.weights.tolist() == [1.0, 3.0]
    assert record.columns["site"].tolist() == ["a", "c"]


def test_predictions_are_frozen() -> None:
    record = Predictions(probs=PROBS, labels=LABELS)
    with pytest.raises(AttributeError, match="labels"):
        record.labels = torch.zeros(3)


def test_predictions_replace_keeps_everything_else() -> None:
    record = Predictions(probs=PROBS, labels=LABELS, split="val", weights=[1, 2, 3], columns={"k": [1, 2, 3]}, class_names="ab")
    other = record.replace(logits=torch.zeros(3, 2), split="test")
    assert other.has_logits
    assert other.split is Split.TEST
    assert record.split is Split.VAL
    assert torch.equal(other.labels, record.labels)
    assert other.weights is not None
    assert other.weights.tolist() == [1.0, 2.0, 3.0]
    assert other.class_names == ("a", "b")
    assert other.replace().split is other.split is Split.TEST
    assert record.replace().probs.tolist() == PROBS


@pytest.mark.parametrize("index", [[True, False, True], [0, 2], np.array([0, 2])])
def test_predictions_subset_by_mask_or_position(index: object) -> None:
    record = Predictions(probs=PROBS, labels=LABELS, weights=[1, 2, 3], columns={"k": ["a", "b", "c"]}, split="test")
    part = record.subset(index)  # type: ignore[arg-type]
    assert part.probs.tolist() == [PROBS[0], PROBS[2]]
    assert part.labels.tolist() == [0, 1]
    assert part.columns["k"].tolist() == ["a", "c"]
    assert part.split is Split.TEST


def test_predictions_from_binary_probs_and_logits_agree() -> None:
    logits = torch.tensor([0.5, -2.0], dtype=torch.float64)
    by_logits = Predictions.from_binary(logits=logits, labels=[True, False])
    by_probs = Predictions.from_binary(probs=logits.sigmoid(), labels=[1, 0])
    assert torch.allclose(by_logits.probs, by_probs.probs)
    assert by_logits.correct.tolist() == [True, True]


def test_predictions_from_binary_takes_a_column_as_networks_return_it() -> None:
    flat = Predictions.from_binary(logits=[0.5, -2.0, 1.0], labels=[1, 0, 1])
    for labels in ([1, 0, 1], [[1], [0], [1]], [[1.0], [0.0], [1.0]]):
        column = Predictions.from_binary(logits=[[0.5], [-2.0], [1.0]], labels=labels)
        assert column.logits.equal(flat.logits)
        assert column.labels.equal(flat.labels)


def test_bins_weight_and_gap_by_hand() -> None:
    values = [torch.tensor(v, dtype=torch.float64) for v in ([0, 0.5, 1], [1, 3], [0.4, 0.9], [1.0, 0.5])]
    bins = Bins(*values)
    assert bins.weight.tolist() == [0.25, 0.75]
    assert bins.gap.tolist() == pytest.approx([-0.6, 0.4])


def test_examples_nothing_left_names_the_caller_unless_that_is_allowed() -> None:
    with pytest.raises(ValueError, match="^suite: `labels` must hold at least one example that is not ignored"):
        check_examples([[0.4, 0.6]], [-1], None, kind="probs", where="suite", ignore_index=-1)
    scores, labels, _, kept = check_examples(
        [[0.4, 0.6]], [-1], None, kind="probs", where="suite", ignore_index=-1, allow_empty=True
    )
    assert (len(scores), len(labels), kept.tolist()) == (0, 0, [False])


def test_examples_dense_are_flattened_in_the_order_of_labels() -> None:
    probs = torch.softmax(torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 1)
    labels = torch.randint(3, (2, 4, 5), generator=torch.Generator().manual_seed(1))
    scores, target, weights, _ = check_examples(probs, labels, torch.ones(2, 4, 5), kind="probs", where="test")
    assert scores.shape == (40, 3)
    assert weights is not None
    for n, i, j in ((0, 0, 0), (0, 3, 2), (1, 2, 4)):
        row = n * 20 + i * 5 + j
        assert torch.equal(scores[row], probs[n, :, i, j])
        assert target[row] == labels[n, i, j]


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64", "bool", ">i4"])
def test_examples_any_integer_labels_are_taken(kind: str) -> None:
    labels = np.array([0, 1]).astype(kind)
    _, target, _, _ = check_examples(np.array([[0.9, 0.1], [0.2, 0.8]]), labels, None, kind="probs", where="test")
    assert target.tolist() == [0, 1]
    assert target.dtype == torch.int64


def test_as_predictions_takes_a_record_with_other_weights_but_no_labels() -> None:
    record = Predictions(probs=PROBS, labels=LABELS)
    assert as_predictions(record, where="f") is record
    weighted = as_predictions(record, where="f", weights=[1, 2, 3]).weights
    assert weighted is not None
    assert weighted.tolist() == [1.0, 2.0, 3.0]
    for arguments in ({"labels": LABELS}, {"ignore_index": 0}):
        with pytest.raises(ValueError, match=f"^f: `{next(iter(arguments))}` must not be given with a `Predictions`"):
            as_predictions(record, where="f", **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^f: `labels` must be given"):
        as_predictions(PROBS, where="f")
