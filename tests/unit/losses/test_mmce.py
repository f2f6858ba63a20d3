from __future__ import annotations

import math

import pytest
import torch

from calibrant.losses import MMCE, WeightedMMCE, mmce_penalty, weighted_mmce_penalty
from helpers import golden, with_confidence


def test_mmce_of_golden_input_has_the_golden_values() -> None:
    assert MMCE(squared=True)(*golden()).item() == pytest.approx(0.0198295, abs=6e-7)
    assert MMCE()(*golden()).item() == pytest.approx(0.140817, abs=6e-7)


def test_weighted_mmce_of_golden_input_has_the_golden_values() -> None:
    assert WeightedMMCE()(*golden()).item() == pytest.approx(0.432423, abs=6e-7)
    assert WeightedMMCE(normalization="official")(*golden()).item() == pytest.approx(0.062794, abs=6e-7)


def test_mmce_of_two_samples_by_hand() -> None:
    logits, labels = with_confidence([0.9, 0.5], [1, 0])
    kernel = math.exp(-0.4 / 0.4)
    square = (0.1**2 + 0.5**2 - 2 * 0.1 * 0.5 * kernel) / 4
    assert mmce_penalty(logits, labels, squared=True).item() == pytest.approx(square)
    assert mmce_penalty(logits, labels).item() == pytest.approx(math.sqrt(square), rel=1e-7)


def test_weighted_mmce_of_three_samples_by_hand() -> None:
    logits, labels = with_confidence([0.9, 0.5, 0.7], [1, 0, 0])

    def k(a: float, b: float) -> float:
        return math.exp(-abs(a - b) / 0.4)

    right, wrong = 0.1**2, (0.5**2 + 0.7**2 + 2 * 0.5 * 0.7 * k(0.5, 0.7)) / 4
    cross = (0.1 * 0.5 * k(0.9, 0.5) + 0.1 * 0.7 * k(0.9, 0.7)) / 2
    paper = weighted_mmce_penalty(logits, labels, squared=True)
    assert paper.item() == pytest.approx(right + wrong - 2 * cross)
    official = weighted_mmce_penalty(logits, labels, normalization="official", squared=True)
    assert official.item() == pytest.approx(right + wrong / 4 - 2 * cross / 2)


def test_mmce_scale_widens_the_kernel_to_the_squared_mean_gap() -> None:
    logits, labels = golden()
    gap = 0.678025 - 2 / 3
    assert mmce_penalty(logits, labels, scale=1e6, squared=True).item() == pytest.approx(gap**2, rel=1e-3)


@pytest.mark.parametrize("normalization", ["paper", "official"])
@pytest.mark.parametrize("correct", [1, 0])
def test_weighted_mmce_of_one_group_only_is_zero_without_gradient(normalization: str, correct: int) -> None:
    logits, labels = with_confidence([0.9, 0.8, 0.7], [correct] * 3)
    logits.requires_grad_()
    value = WeightedMMCE(normalization=normalization)(logits, labels)  # type: ignore[arg-type]
    value.backward()
    assert value.item() == 0
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_mmce_at_a_sum_of_zero_has_a_finite_slope() -> None:
    logits = torch.tensor([[60.0, 0.0], [60.0, 0.0]], requires_grad=True)
    mmce_penalty(logits, torch.tensor([0, 0])).backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros(2, 2))


def test_mmce_correctness_carries_no_gradient_and_confidence_does() -> None:
    logits, labels = with_confidence([0.8], [0])
    logits.requires_grad_()
    # One wrong sample: MMCE is its confidence, whose slope is c (1 - c).
    mmce_penalty(logits, labels).backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.tensor([[0.16, -0.16]], dtype=torch.float64), rtol=1e-8, atol=0)


def test_mmce_of_bad_options_raises() -> None:
    logits, labels = golden()
    with pytest.raises(ValueError, match=r"mmce_penalty: `scale` must be a finite number > 0, got 0"):
        mmce_penalty(logits, labels, scale=0)
    with pytest.raises(ValueError, match=r"`normalization` must be one of 'paper', 'official', got 'mean'"):
        weighted_mmce_penalty(logits, labels, normalization="mean")  # type: ignore[arg-type]
