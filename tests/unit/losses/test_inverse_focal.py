from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from calibrant.losses import InverseFocalLoss, inverse_focal_loss
from helpers import golden


def test_inverse_focal_by_hand() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64)
    assert inverse_focal_loss(logits, torch.tensor([0]), gamma=2).item() == pytest.approx(1.75**2 * math.log(4 / 3))
    assert inverse_focal_loss(logits, torch.tensor([1]), gamma=0.5).item() == pytest.approx(1.25**0.5 * math.log(4))


def test_inverse_focal_of_gamma_zero_is_cross_entropy() -> None:
    logits, labels = golden()
    torch.testing.assert_close(inverse_focal_loss(logits, labels, gamma=0), F.cross_entropy(logits, labels, reduction="none"))


def test_inverse_focal_is_twice_differentiable_in_logits_and_gamma() -> None:
    logits = torch.tensor([[1.0, -0.5, 0.2], [0.3, 2.0, -1.0]], dtype=torch.float64, requires_grad=True)
    gammas = torch.tensor([0.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda z, g: inverse_focal_loss(z, torch.tensor([0, 2]), gamma=g), (logits, gammas))


def test_inverse_focal_needs_a_gamma_from_zero_on() -> None:
    logits, labels = golden()
    with pytest.raises(TypeError, match="gamma"):
        InverseFocalLoss()
    with pytest.raises(ValueError, match=r"inverse_focal_loss: `gamma` must be a finite number >= 0, got -1"):
        InverseFocalLoss(gamma=-1)(logits, labels)
