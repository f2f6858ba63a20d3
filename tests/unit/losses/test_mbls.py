from __future__ import annotations

import pytest
import torch

from calibrant.losses import CrossEntropyLoss, MbLS, mbls_penalty
from helpers import golden


def test_mbls_of_golden_input_has_the_golden_values() -> None:
    logits, labels = golden()
    assert MbLS(margin=2)(logits, labels).item() == pytest.approx(1.274198, abs=6e-7)
    total = (CrossEntropyLoss() + 0.1 * MbLS(margin=2))(logits, labels)
    assert total.item() == pytest.approx(1.336999, abs=6e-7)


def test_mbls_with_an_infinite_margin_is_nothing() -> None:
    logits, labels = golden()
    logits.requires_grad_()
    value = mbls_penalty(logits, labels, margin=float("inf"))
    value.backward()
    assert value.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()
    assert torch.equal(
        (CrossEntropyLoss() + 0.1 * MbLS(margin=float("inf")))(logits, labels), CrossEntropyLoss()(logits, labels)
    )


def test_mbls_without_margin_is_the_mean_distance_to_the_largest_logit() -> None:
    logits, labels = golden()
    expected = logits.amax(1).mean() - logits.mean()
    torch.testing.assert_close(mbls_penalty(logits, labels, margin=0), expected)


def test_mbls_gradient_flows_into_the_largest_logit_as_well() -> None:
    logits = torch.tensor([[9.0, 3.0, 0.0]], requires_grad=True)
    mbls_penalty(logits, torch.tensor([0]), margin=5).backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [pytest.approx([2 / 3, -1 / 3, -1 / 3])]


def test_mbls_of_a_negative_margin_raises() -> None:
    with pytest.raises(ValueError, match=r"mbls_penalty: `margin` must be a number >= 0, got -1"):
        mbls_penalty(*golden(), margin=-1)
