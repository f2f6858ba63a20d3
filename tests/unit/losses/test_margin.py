"""Penalties on logits: MbLS, ACLS and CPC."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from calibrant.losses import CPC, CrossEntropyLoss, MbLS, acls_penalty, cpc_penalty, margin, mbls_penalty
from helpers import golden


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


def plain_exclusion(logits: Tensor, labels: Tensor) -> Tensor:
    others = torch.stack([torch.cat([row[:y], row[y + 1 :]]) for row, y in zip(logits, labels.tolist(), strict=True)])
    m = others.shape[1]
    return torch.nn.functional.softplus(others.unsqueeze(1) - others.unsqueeze(2)).sum() / (2 * len(logits) * m * (m - 1))


@pytest.mark.parametrize("block", [1, 200, 2**20])
def test_cpc_in_blocks_of_any_size_agrees_with_the_plain_sum(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(margin, "_BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(4, 9, generator=generator, dtype=torch.float64)).requires_grad_()
    labels = torch.tensor([0, 8, 3, 3])
    direction = torch.randn(4, 9, generator=generator, dtype=torch.float64)
    found = []
    for function in (CPC(bdc_weight=0), plain_exclusion):
        value = function(logits, labels)
        (slope,) = torch.autograd.grad(value, logits, create_graph=True)
        (curved,) = torch.autograd.grad((slope * direction).sum(), logits)
        found.append((value, slope, curved))
    torch.testing.assert_close(found[0], found[1])


def test_cpc_in_blocks_compiles_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(margin, "_BLOCK", 1)
    torch._dynamo.reset()
    logits, labels = golden()
    compiled = torch.compile(CPC(), fullgraph=True, backend="aot_eager")
    found = []
    for penalty in (compiled, CPC()):
        leaf = logits.clone().requires_grad_()
        value = penalty(leaf, labels)
        found.append((value.detach(), torch.autograd.grad(value, leaf)[0]))
    torch.testing.assert_close(found[0], found[1])


def test_cpc_of_two_classes_is_cross_entropy_by_its_weight() -> None:
    logits, labels = golden()
    logits, labels = logits[:, :2], labels % 2
    torch.testing.assert_close(cpc_penalty(logits, labels), 0.1 * torch.nn.functional.cross_entropy(logits, labels))


def test_cpc_exclusion_does_not_look_at_the_true_class_and_is_least_where_the_others_are_level() -> None:
    logits, labels = golden()
    value = cpc_penalty(logits, labels, bdc_weight=0)
    moved = logits.scatter(1, labels.unsqueeze(1), 100.0)
    assert torch.equal(cpc_penalty(moved, labels, bdc_weight=0), value)
    least = cpc_penalty(torch.zeros_like(logits), labels, bdc_weight=0)
    assert least.item() == pytest.approx(16 * math.log(2) / (2 * 4 * 3))
    assert value > least
