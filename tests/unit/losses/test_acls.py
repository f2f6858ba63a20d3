from __future__ import annotations

import pytest
import torch

from calibrant.losses import ACLS, CrossEntropyLoss, acls_penalty
from helpers import golden


def test_acls_of_golden_input_has_the_golden_values() -> None:
    logits, labels = golden()
    assert ACLS(margin=2)(logits, labels).item() == pytest.approx(1.421734, abs=6e-7)
    total = (CrossEntropyLoss() + 0.1 * ACLS(margin=2))(logits, labels)
    assert total.item() == pytest.approx(1.351753, abs=6e-7)


def test_acls_weights_take_the_two_terms_apart() -> None:
    logits = torch.tensor([[4.0, 1.0, -2.0]])
    labels = torch.tensor([0])
    assert acls_penalty(logits, labels, margin=2, rest_weight=0).item() == pytest.approx(4)
    assert acls_penalty(logits, labels, margin=2, top_weight=0).item() == pytest.approx(0.1 * (1 + 16) / 2)


def test_acls_distance_to_the_largest_logit_carries_no_gradient_into_it() -> None:
    logits = torch.tensor([[4.0, 1.0, -2.0]], requires_grad=True)
    acls_penalty(logits, torch.tensor([0]), margin=2, top_weight=0, rest_weight=1).backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [pytest.approx([0, -1, -4])]


def test_acls_ties_for_the_largest_logit_count_each() -> None:
    # As in the released code: both tied logits are "positives".
    logits = torch.tensor([[3.0, 3.0, 0.0]], requires_grad=True)
    value = acls_penalty(logits, torch.tensor([0]), margin=2, rest_weight=0)
    value.backward()
    assert value.item() == pytest.approx(2)
    assert logits.grad is not None
    assert logits.grad.tolist() == [pytest.approx([2, 2, 0])]


def test_acls_within_the_margin_is_zero() -> None:
    assert acls_penalty(*golden()).item() == 0


@pytest.mark.parametrize("name", ["margin", "top_weight", "rest_weight"])
def test_acls_of_a_negative_number_raises(name: str) -> None:
    with pytest.raises(ValueError, match=rf"acls_penalty: `{name}` must be a number >= 0, got -1"):
        acls_penalty(*golden(), **{name: -1})
