from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses import DualFocalLoss, dual_focal_loss
from helpers import golden


def literal(logits: Tensor, label: int, gamma: float) -> Tensor:
    """The definition for one sample, in a loop."""
    probs = logits.softmax(0)
    rival = torch.zeros((), dtype=logits.dtype)
    for k in range(len(probs)):
        if probs[k] < probs[label] and probs[k] > rival:
            rival = probs[k]
    return -((1 - probs[label] + rival) ** gamma) * probs[label].log()


def test_dual_focal_of_golden_input_has_the_golden_value() -> None:
    logits, labels = golden()
    assert dual_focal_loss(logits, labels, gamma=3).sum().item() == pytest.approx(23.551907, rel=1e-6)
    assert DualFocalLoss(gamma=3, reduction="sum")(logits.float(), labels).item() == pytest.approx(23.551907, rel=1e-6)


def test_dual_focal_by_hand() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]] * 3, dtype=torch.float64).log()
    value = dual_focal_loss(logits, torch.tensor([0, 1, 2]), gamma=2)
    expected = [0.8**2 * math.log(2), 0.9**2 * -math.log(0.3), 0.8**2 * -math.log(0.2)]
    assert value.tolist() == pytest.approx(expected)


def test_dual_focal_and_its_gradient_follow_the_definition() -> None:
    logits, labels = golden()
    leaf = logits.clone().requires_grad_()
    value = dual_focal_loss(leaf, labels, gamma=1.7)
    expected = torch.stack([literal(leaf[i], int(labels[i]), 1.7) for i in range(24)])
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value.sum(), leaf)[0], torch.autograd.grad(expected.sum(), leaf)[0])


def test_dual_focal_ties_with_the_true_class_are_not_below_it() -> None:
    logits = torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float64)
    assert dual_focal_loss(logits, torch.tensor([1]), gamma=2).item() == pytest.approx((2 / 3) ** 2 * math.log(3))


def test_dual_focal_of_gamma_zero_is_cross_entropy_and_without_a_rival_is_focal() -> None:
    logits, labels = golden()
    torch.testing.assert_close(dual_focal_loss(logits, labels, gamma=0), F.cross_entropy(logits, labels, reduction="none"))
    last = logits.argmin(1)
    p = logits.softmax(1).gather(1, last.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(dual_focal_loss(logits, last, gamma=2), -((1 - p) ** 2) * p.log())


def test_dual_focal_of_a_batch_of_one_has_one_value() -> None:
    assert dual_focal_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), gamma=3).shape == (1,)


def test_dual_focal_is_twice_differentiable_in_logits_and_gamma() -> None:
    logits = torch.tensor([[1.0, -0.5, 0.2], [0.3, 2.0, -1.0], [0.4, 0.1, 0.3]], dtype=torch.float64, requires_grad=True)
    gammas = torch.tensor([0.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 2, 2])
    assert torch.autograd.gradcheck(lambda z, g: dual_focal_loss(z, labels, gamma=g), (logits, gammas))
    assert torch.autograd.gradgradcheck(lambda z, g: dual_focal_loss(z, labels, gamma=g), (logits, gammas))


def test_dual_focal_in_float32_is_exact_at_saturation() -> None:
    # Two classes: r = 1 - p, so that the base is 2 (1 - p), here 2 exp(-30), and -log p is exp(-30).
    value = dual_focal_loss(torch.tensor([[30.0, 0.0]]), torch.tensor([0]), gamma=1)
    assert value.item() == pytest.approx(2 * math.exp(-60.0), rel=1e-5)


def test_dual_focal_needs_a_gamma() -> None:
    with pytest.raises(TypeError, match="gamma"):
        DualFocalLoss()
    logits, labels = golden()
    with pytest.raises(ValueError, match=r"dual_focal_loss: `gamma` must be a finite number >= 0, got -1"):
        dual_focal_loss(logits, labels, gamma=-1)
