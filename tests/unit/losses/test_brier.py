from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from calibrant.losses import BrierLoss, brier_loss
from helpers import golden


def test_brier_of_golden_input_has_the_golden_value() -> None:
    logits, labels = golden()
    assert BrierLoss()(logits, labels).item() == pytest.approx(0.601093, rel=1e-6)


def test_brier_by_hand() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0]] * 2)
    assert brier_loss(logits, torch.tensor([0, 1])).tolist() == pytest.approx([2 * 0.25**2, 2 * 0.75**2])
    assert brier_loss(logits[:1], torch.tensor([[0.75, 0.25]])).item() == pytest.approx(0)


def test_brier_spans_0_to_2() -> None:
    logits = torch.tensor([[100.0, -100.0], [100.0, -100.0]])
    assert brier_loss(logits, torch.tensor([0, 1])).tolist() == [0.0, 2.0]


def test_brier_of_one_hot_targets_is_that_of_the_labels() -> None:
    logits, labels = golden()
    torch.testing.assert_close(brier_loss(logits, F.one_hot(labels, 5).float()), brier_loss(logits, labels))
