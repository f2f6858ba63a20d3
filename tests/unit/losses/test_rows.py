from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from calibrant.losses import (
    DCA,
    MMCE,
    AvUC,
    FLSDLoss,
    FocalLoss,
    Objective,
    WeightedMMCE,
    focal_loss,
)
from calibrant.losses.base import Reduction
from calibrant.losses.confidence import confidence_and_correct
from calibrant.losses.focal import reduced_focal
from calibrant.losses.rows import (
    confidence_of_rows,
    entropy_of_rows,
    exponentials,
    flat_positions,
    large_enough,
    name_classes,
    row_sums,
    scale_rows,
)

OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "focal": lambda: FocalLoss(gamma=2.5),
    "focal sum": lambda: FocalLoss(gamma=0.0, reduction="sum"),
    "flsd": FLSDLoss,
    "flsd none": lambda: FLSDLoss(reduction="none"),
    "mmce": MMCE,
    "mmce squared": lambda: MMCE(squared=True),
    "weighted mmce": WeightedMMCE,
    "weighted mmce official": lambda: WeightedMMCE(normalization="official", squared=True),
    "avuc": AvUC,
    "dca": DCA,
}


class Seen(TorchDispatchMode):
    """A mode that changes nothing; under it every objective is made of torch's operations."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def draw(batch: int, num_classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    logits = (3 * torch.randn(batch, num_classes, generator=generator)).to(dtype)
    labels = torch.randint(num_classes, (batch,), generator=generator)
    return logits, torch.where(torch.arange(batch) % 3 > 0, logits.argmax(1), labels)


def value_and_gradient(objective: Objective, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    value = objective(logits=leaf, labels=labels)
    return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_closed_form_of_an_objective_is_what_torch_computes(name: str, dtype: torch.dtype, tolerance: float) -> None:
    objective = OBJECTIVES[name]()
    for logits, labels in (draw(33, 4, dtype), draw(7, 150, dtype), draw(1, 2, dtype)):
        value, gradient = value_and_gradient(objective, logits, labels)
        with Seen():
            expected = value_and_gradient(objective, logits, labels)
        torch.testing.assert_close(value, expected[0], rtol=tolerance, atol=tolerance * expected[0].abs().max().item())
        torch.testing.assert_close(gradient, expected[1], rtol=tolerance, atol=tolerance * expected[1].abs().max().item())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_closed_form_of_an_objective_does_not_mind_how_logits_lie_in_memory(name: str) -> None:
    objective = OBJECTIVES[name]()
    logits, labels = draw(12, 5, torch.float64)
    leaf = logits.t().contiguous().requires_grad_()
    value = objective(leaf.t(), labels)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    expected = value_and_gradient(objective, logits, labels)
    torch.testing.assert_close((value.detach(), gradient.t()), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_closed_form_of_an_objective_with_threads_is_the_same(name: str) -> None:
    objective = OBJECTIVES[name]()
    logits, labels = draw(700, 100, torch.float64)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(value_and_gradient(objective, logits, labels))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found[0], found[1], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("size", [1e3, 1e38, math.inf])
def test_closed_form_out_of_its_range_leaves_the_work_to_torch(name: str, size: float) -> None:
    objective = OBJECTIVES[name]()
    logits, labels = draw(6, 3, torch.float32)
    logits[0, (labels[0] + 1) % 3] = -size
    logits[1] = torch.tensor([60.0, 59.0, 50.0]) * min(size, 1e3) / 1e3
    value, gradient = value_and_gradient(objective, logits, labels)
    with Seen():
        expected = value_and_gradient(objective, logits, labels)
    assert torch.isfinite(value).all()
    torch.testing.assert_close((value, gradient), expected, rtol=2e-5, atol=1e-6)


def test_focal_scalar_gamma_tensor_gets_the_sum_of_the_gradients_of_the_samples() -> None:
    logits, labels = draw(9, 4, torch.float64)
    each = torch.full((9,), 1.5, dtype=torch.float64, requires_grad=True)
    one = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    (by_each,) = torch.autograd.grad(focal_loss(logits, labels, gamma=each).sum(), each)
    (by_one,) = torch.autograd.grad(focal_loss(logits, labels, gamma=one).sum(), one)
    torch.testing.assert_close(by_one, by_each.sum())


def test_exponentials_are_contiguous_and_new() -> None:
    scores = np.zeros((3, 2), order="F")
    grown = exponentials(scores)
    assert grown is not None
    assert grown.flags.c_contiguous
    assert grown.tolist() == [[1, 1]] * 3
    assert scores.tolist() == [[0, 0]] * 3


def test_exponentials_of_large_logits_and_small_sums_are_declined() -> None:
    for bad in (40.0, 1e4, math.inf, math.nan):
        assert exponentials(np.array([[0.0, bad]])) is None
    assert large_enough(np.array([1e-14, 1.0]))
    for bad in (0.0, 1e-16, math.nan):
        assert not large_enough(np.array([1.0, bad]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 2, 1024, 1025, 2000])
def test_rows_of_every_size_are_summed_and_scaled_one_by_one(rows: int, dtype: type) -> None:
    # 1,024 rows of 8 are the most that BLAS sums, 2,000 are scaled by numpy and the same twice as wide by torch.
    for width in (8, 16):
        values = np.arange(rows * width, dtype=dtype).reshape(rows, width) % 7
        factors = np.arange(rows, dtype=dtype) - 3
        before = values.copy()
        sums = row_sums(values)
        scale_rows(values, factors)
        assert sums.dtype == dtype
        assert sums.tolist() == [sum(row) for row in before.tolist()]
        assert values.tolist() == [[f * v for v in row] for f, row in zip(factors.tolist(), before.tolist(), strict=True)]


def test_sums_of_rows_do_not_warn_of_what_blas_tells_of_its_own() -> None:
    # A true case, as those that BLAS makes up depend on what lies beside the array. Warnings are errors here.
    assert np.isnan(row_sums(np.array([[np.inf, -np.inf]]))).all()
    with np.errstate(all="raise"):
        assert row_sums(np.array([[1.0, 2.0]])).tolist() == [3.0]


def test_positions_are_the_callers_own() -> None:
    for _ in range(2):
        found = flat_positions(np.array([2, 0, 1]), 3)
        assert found.tolist() == [2, 3, 7]
        found += 5


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("dims", [0, 1])
def test_closed_form_of_focal_loss_gives_gamma_the_gradient_torch_gives_it(reduction: Reduction, dims: int) -> None:
    logits, labels = draw(9, 4, torch.float64)
    gamma = (
        torch.linspace(0.0, 4.0, 9, dtype=torch.float64) if dims else torch.tensor(1.5, dtype=torch.float64)
    ).requires_grad_()

    def gradient() -> Tensor:
        value = reduced_focal(logits, labels, gamma=gamma, reduction=reduction, where="here")
        return torch.autograd.grad(value.sum(), gamma)[0]

    found = gradient()
    with Seen():
        torch.testing.assert_close(found, gradient(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.uint8])
def test_labels_name_classes_only_within_their_range(dtype: type) -> None:
    assert name_classes(np.array([0, 2], dtype), 3)
    assert not name_classes(np.array([0, 3], dtype), 3)
    if dtype is not np.uint8:
        assert not name_classes(np.array([-1, 2], dtype), 3)


def test_confidence_and_entropy_of_rows_by_hand() -> None:
    scores = np.log(np.array([[0.5, 0.25, 0.25]]))
    found = entropy_of_rows(scores, np.array([0]))
    assert found is not None
    confidence, entropy, _ = found
    assert confidence.tolist() == pytest.approx([0.5])
    assert entropy.tolist() == pytest.approx([1.5 * math.log(2)])
    top = confidence_of_rows(scores, np.array([0]))
    assert top is not None
    assert top[0].tolist() == pytest.approx([0.5])
    assert top[1](np.ones(1)).tolist() == [pytest.approx([0.25, -0.125, -0.125])]
    assert confidence_of_rows(scores + 900, np.array([0])) is None
    assert entropy_of_rows(np.array([[0.0, -math.inf]]), np.array([0])) is None


def test_closed_form_gradient_survives_writing_into_the_value() -> None:
    logits, labels = draw(5, 3, torch.float64)
    gammas = torch.linspace(0.5, 2.5, 5, dtype=torch.float64)
    found = []
    for in_place in (False, True):
        leaf, strength = logits.clone().requires_grad_(), gammas.clone().requires_grad_()
        value, (confidence, _) = focal_loss(leaf, labels, gamma=strength), confidence_and_correct(leaf, labels)
        total = (value.mul_(3) if in_place else value * 3).sum() + (confidence.mul_(2) if in_place else confidence * 2).sum()
        found.append(torch.autograd.grad(total, (leaf, strength)))
    torch.testing.assert_close(found[0], found[1])


def test_closed_form_keeps_float32_whatever_numbers_its_hyper_parameters_are() -> None:
    logits, labels = draw(8, 3, torch.float32)
    wide = np.float64(1.5)
    objectives = (
        FocalLoss(gamma=wide),
        FLSDLoss(gamma_below=wide, gamma_above=np.float64(0.5), threshold=np.float64(0.2)),
        MMCE(scale=wide),
        WeightedMMCE(scale=wide),
        AvUC(beta=wide),
    )
    for objective in objectives:
        value, gradient = value_and_gradient(objective, logits, labels)
        assert (value.dtype, gradient.dtype) == (torch.float32, torch.float32)
        with Seen():
            torch.testing.assert_close((value, gradient), value_and_gradient(objective, logits, labels), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_closed_form_without_gradient_gives_the_same_value(name: str) -> None:
    objective = OBJECTIVES[name]()
    logits, labels = draw(8, 3, torch.float32)
    expected = objective(logits.clone().requires_grad_(), labels)
    with torch.inference_mode():
        assert torch.equal(objective(logits.clone(), labels.clone()), expected)
    with torch.no_grad():
        value = objective(logits, labels)
    assert torch.equal(value, expected)
    assert not value.requires_grad
