from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from calibrant.losses import CrossEntropyLoss, cross_entropy_loss
from helpers import golden


def test_cross_entropy_of_golden_input_has_the_golden_value() -> None:
    logits, labels = golden()
    assert cross_entropy_loss(logits, labels).mean().item() == pytest.approx(1.209579, rel=1e-6)
    assert cross_entropy_loss(logits, labels, label_smoothing=0.1).mean().item() == pytest.approx(1.393183, rel=1e-6)


def test_cross_entropy_by_hand() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0]])
    assert cross_entropy_loss(logits, torch.tensor([0])).item() == pytest.approx(math.log(4 / 3))
    # Target (0.9, 0.1) for smoothing 0.2 of two classes.
    smooth = 0.9 * math.log(4 / 3) + 0.1 * math.log(4)
    assert cross_entropy_loss(logits, torch.tensor([0]), label_smoothing=0.2).item() == pytest.approx(smooth)
    soft = torch.tensor([[0.25, 0.75]])
    assert cross_entropy_loss(logits, soft).item() == pytest.approx(0.25 * math.log(4 / 3) + 0.75 * math.log(4))


def test_cross_entropy_without_smoothing_is_the_negative_log_likelihood() -> None:
    logits, labels = golden()
    torch.testing.assert_close(
        cross_entropy_loss(logits, labels, label_smoothing=0.0), F.nll_loss(logits.log_softmax(1), labels, reduction="none")
    )


def test_cross_entropy_smoothed_equals_soft_targets_of_the_same_smoothing() -> None:
    logits, labels = golden()
    target = 0.9 * F.one_hot(labels, 5).double() + 0.1 / 5
    torch.testing.assert_close(cross_entropy_loss(logits, labels, label_smoothing=0.1), cross_entropy_loss(logits, target))


def test_cross_entropy_spread_over_other_classes_is_a_larger_smoothing() -> None:
    logits, labels = golden()
    target = torch.full((24, 5), 0.1 / 4, dtype=torch.float64).scatter(1, labels.unsqueeze(1), 0.9)
    torch.testing.assert_close(
        cross_entropy_loss(logits, labels, label_smoothing=0.1 * 5 / 4), cross_entropy_loss(logits, target)
    )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_cross_entropy_takes_labels_of_any_integer_type(dtype: torch.dtype) -> None:
    logits, labels = golden()
    assert torch.equal(cross_entropy_loss(logits, labels.to(dtype)), cross_entropy_loss(logits, labels))


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, math.nan])
def test_cross_entropy_refuses_a_smoothing_outside_0_to_1(smoothing: float) -> None:
    logits, labels = golden()
    with pytest.raises(ValueError, match=r"cross_entropy_loss: `label_smoothing` must lie in \[0, 1\), got"):
        cross_entropy_loss(logits, labels, label_smoothing=smoothing)


def test_cross_entropy_refuses_soft_targets_of_another_shape() -> None:
    logits, _ = golden()
    with pytest.raises(ValueError, match=r"soft `labels` must be .* as the logits float64 \[24, 5\], got float32 \[24, 4\]"):
        cross_entropy_loss(logits, torch.full((24, 4), 0.25))


def test_cross_entropy_module_reduces_and_takes_soft_targets() -> None:
    logits, labels = golden()
    loss = CrossEntropyLoss(label_smoothing=0.1, reduction="sum")
    assert loss(logits, labels).item() == pytest.approx(24 * 1.393183, rel=1e-6)
    assert loss(logits, F.one_hot(labels, 5).float()).item() == pytest.approx(24 * 1.393183, rel=1e-6)
