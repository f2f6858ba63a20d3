from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant.core.top_label import _row_max, check_input, reduce_top_label, top_label
from helpers import mixed_gaps


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_classes", [2, 3, 4, 5, 7, 10, 12, 17, 20, 29, 30, 31, 45, 100])
def test_row_max_every_width_equals_amax(num_classes: int, dtype: torch.dtype) -> None:
    probs, _ = mixed_gaps(101, num_classes, dtype=dtype)
    assert torch.equal(_row_max(probs), probs.amax(1))
    columns = probs.t().contiguous().t()
    assert torch.equal(_row_max(columns), probs.amax(1))


@pytest.mark.parametrize("num_classes", [2, 3, 10, 40])
def test_reduce_random_data_agrees_with_argmax(num_classes: int) -> None:
    probs, labels = mixed_gaps(500, num_classes)
    top = reduce_top_label(probs, labels)
    assert torch.equal(top.confidence, probs.amax(1))
    assert torch.equal(top.correct, (probs.argmax(1) == labels).double())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_reduce_tie_goes_to_the_first_class(dtype: torch.dtype) -> None:
    probs = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.25, 0.375, 0.375], [0.25, 0.375, 0.375]], dtype=dtype)
    top = top_label(probs, torch.tensor([0, 1, 1, 2]), where="test")
    assert top.correct.tolist() == [1.0, 0.0, 1.0, 0.0]


def test_reduce_rounded_tie_above_one_half_goes_to_the_first_class() -> None:
    probs = torch.tensor([[0.52, 0.52], [0.52, 0.52]], dtype=torch.bfloat16)
    assert top_label(probs, torch.tensor([1, 0]), where="test").correct.tolist() == [0.0, 1.0]


def test_reduce_record_is_float64_and_remembers_the_dtype() -> None:
    top = top_label(torch.tensor([[0.2, 0.8]]), [1], where="test", weights=[3])
    assert top.confidence.dtype == top.correct.dtype == torch.float64
    assert top.dtype == torch.float32
    assert len(top) == 1
    assert top.weights is not None
    assert top.weights.tolist() == [3.0]


def test_check_input_dense_is_flattened_in_the_order_of_labels() -> None:
    probs = torch.softmax(torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 1)
    labels = torch.randint(3, (2, 4, 5), generator=torch.Generator().manual_seed(1))
    given = check_input(probs, labels, where="test", weights=torch.ones(2, 4, 5))
    assert given.probs.shape == (40, 3)
    for n, i, j in ((0, 0, 0), (0, 3, 2), (1, 2, 4)):
        row = n * 20 + i * 5 + j
        assert torch.equal(given.probs[row], probs[n, :, i, j])
        assert given.labels[row] == labels[n, i, j]


def test_check_input_ignored_examples_go_with_their_weights() -> None:
    given = check_input([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]], [0, 255, 1], where="test", weights=[1, 2, 3], ignore_index=255)
    assert given.labels.tolist() == [0, 1]
    assert given.weights is not None
    assert given.weights.tolist() == [1.0, 3.0]
    assert given.probs.tolist() == [[0.9, 0.1], [0.3, 0.7]]


def test_check_input_all_ignored_raises() -> None:
    with pytest.raises(ValueError, match="^ece: `labels` must hold at least one example that is not ignored, got none"):
        check_input([[0.9, 0.1]], [-1], where="ece", ignore_index=-1)


def test_check_input_weight_only_on_ignored_examples_raises() -> None:
    with pytest.raises(ValueError, match="^ece: `weights` must have a positive sum, got 0"):
        check_input([[0.9, 0.1], [0.9, 0.1]], [-1, 0], where="ece", weights=[1, 0], ignore_index=-1)


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64", "bool", ">i4"])
def test_check_input_any_integer_labels_are_taken(kind: str) -> None:
    given = check_input(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 1]).astype(kind), where="test")
    assert given.labels.tolist() == [0, 1]
    assert given.labels.dtype == torch.int64


def test_check_input_leaves_its_arguments_alone() -> None:
    probs, labels = mixed_gaps(50, dtype=torch.float32)
    before = probs.clone(), labels.clone()
    top_label(probs, labels, where="test", ignore_index=3)
    assert torch.equal(probs, before[0])
    assert torch.equal(labels, before[1])


@pytest.mark.cuda
def test_check_input_cuda_probs_take_labels_from_anywhere() -> None:
    probs, labels = mixed_gaps(200, dtype=torch.float32)
    weights = np.linspace(1, 2, 200)
    there = top_label(probs.cuda(), labels.numpy(), where="test", weights=weights, ignore_index=3)
    here = top_label(probs, labels, where="test", weights=weights, ignore_index=3)
    assert there.confidence.device.type == "cpu"
    assert torch.equal(there.confidence, here.confidence)
    assert torch.equal(there.correct, here.correct)
