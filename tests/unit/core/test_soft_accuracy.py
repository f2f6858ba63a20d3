from __future__ import annotations

import math

import pytest
import torch

from calibrant.core.soft_accuracy import all_pairs_accuracy
from helpers import golden


def test_all_pairs_accuracy_of_golden_input_has_the_golden_values() -> None:
    logits, labels = golden()
    expected = [0.6178, 1, 0, 0.9999, 0.8338, 0, 1, 0.9995, 0, 1, 1, 0, 1, 1, 0.1389, 0.9997, 1, 0, 0.8368, 1, 0, 1, 1, 0]
    assert all_pairs_accuracy(logits.softmax(1), labels).tolist() == pytest.approx(expected, abs=6e-5)


def test_all_pairs_accuracy_by_hand() -> None:
    probs = torch.tensor([[0.5, 0.45, 0.05]], dtype=torch.float64)
    expected = 1 - 1 / (1 + math.exp(0.5)) - 1 / (1 + math.exp(4.5))
    assert all_pairs_accuracy(probs, torch.tensor([0]), sharpness=10).item() == pytest.approx(expected)


def test_all_pairs_accuracy_of_a_tie_is_one_half() -> None:
    probs = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    assert all_pairs_accuracy(probs, torch.tensor([1])).item() == pytest.approx(0.5, abs=1e-12)


def test_all_pairs_accuracy_sharpened_is_hard_correctness() -> None:
    logits, labels = golden()
    hard = (logits.argmax(1) == labels).double()
    torch.testing.assert_close(all_pairs_accuracy(logits.softmax(1), labels, sharpness=1e6), hard, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("top", "expected"), [(0.10, 0.99), (0.07, 0.77), (0.05, 0.0)])
def test_all_pairs_accuracy_underrates_low_confidence_among_many_classes(top: float, expected: float) -> None:
    probs = torch.full((1, 100), (1 - top) / 99, dtype=torch.float64)
    probs[0, 0] = top
    assert all_pairs_accuracy(probs, torch.tensor([0])).item() == pytest.approx(expected, abs=6e-3)


def test_all_pairs_accuracy_gradients_pass_finite_differences() -> None:
    probs = torch.tensor([[0.36, 0.33, 0.31]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0])
    assert torch.autograd.gradcheck(lambda p: all_pairs_accuracy(p, labels, sharpness=20), probs)
    assert torch.autograd.gradgradcheck(lambda p: all_pairs_accuracy(p, labels, sharpness=20), probs)


def test_all_pairs_accuracy_of_a_bad_sharpness_raises() -> None:
    with pytest.raises(ValueError, match=r"all_pairs_accuracy: `sharpness` must be a finite number > 0, got 0"):
        all_pairs_accuracy(torch.full((1, 2), 0.5), torch.tensor([0]), sharpness=0)
