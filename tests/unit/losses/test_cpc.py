from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from calibrant.losses import CPC, CrossEntropyLoss, cpc, cpc_penalty
from calibrant.losses.cpc import bdc_penalty, bec_penalty
from helpers import golden


def test_cpc_of_golden_input_has_the_golden_values() -> None:
    logits, labels = golden()
    assert bdc_penalty(logits, labels).item() == pytest.approx(0.426386, abs=6e-7)
    assert bec_penalty(logits, labels).item() == pytest.approx(0.793017, abs=6e-7)
    assert (CrossEntropyLoss() + CPC())(logits, labels).item() == pytest.approx(2.045235, abs=6e-7)


def test_bdc_of_two_classes_is_cross_entropy() -> None:
    logits, labels = golden()
    logits, labels = logits[:, :2], labels % 2
    torch.testing.assert_close(bdc_penalty(logits, labels), torch.nn.functional.cross_entropy(logits, labels))


def test_bec_of_three_classes_by_hand() -> None:
    logits = torch.tensor([[5.0, 1.0, -1.0]], dtype=torch.float64)
    pairs = math.log1p(math.exp(2)) + math.log1p(math.exp(-2)) + 2 * math.log(2)
    assert bec_penalty(logits, torch.tensor([0])).item() == pytest.approx(pairs / (2 * 2 * 1))


def test_bec_does_not_look_at_the_true_class() -> None:
    logits, labels = golden()
    moved = logits.scatter(1, labels.unsqueeze(1), 100.0)
    assert torch.equal(bec_penalty(moved, labels), bec_penalty(logits, labels))


def test_bec_is_smallest_where_the_other_logits_are_level() -> None:
    logits, labels = golden()
    least = bec_penalty(torch.zeros_like(logits), labels)
    assert least.item() == pytest.approx(16 * math.log(2) / (2 * 4 * 3))
    assert bec_penalty(logits, labels) > least


def test_bec_of_two_classes_is_zero_with_a_gradient_of_zero() -> None:
    logits = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    value = bec_penalty(logits, torch.tensor([0, 1, 1]))
    value.backward()
    assert value.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def plain_bec(logits: Tensor, labels: Tensor) -> Tensor:
    others = torch.stack([torch.cat([row[:y], row[y + 1 :]]) for row, y in zip(logits, labels.tolist(), strict=True)])
    m = others.shape[1]
    return torch.nn.functional.softplus(others.unsqueeze(1) - others.unsqueeze(2)).sum() / (2 * len(logits) * m * (m - 1))


@pytest.mark.parametrize("block", [1, 40, 2**20])
def test_bec_in_blocks_of_any_size_agrees_with_the_plain_sum(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpc, "_BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4, 9, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 8, 3, 3])
    logits.requires_grad_()
    direction = torch.randn(4, 9, generator=generator, dtype=torch.float64)
    found = []
    for function in (bec_penalty, plain_bec):
        value = function(logits, labels)
        (slope,) = torch.autograd.grad(value, logits, create_graph=True)
        (curved,) = torch.autograd.grad((slope * direction).sum(), logits)
        found.append((value, slope, curved))
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain)


def test_bec_gradients_at_ties_and_far_apart_pass_finite_differences() -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0, -40.0]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0])
    assert torch.autograd.gradcheck(lambda z: bec_penalty(z, labels), logits)
    assert torch.autograd.gradgradcheck(lambda z: bec_penalty(z, labels), logits)


def test_bec_as_compiled_is_the_same_sum() -> None:
    x = torch.randn(3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    plain, blocked = cpc._pair_softplus(x), cpc._PairSoftplus.apply(x)
    torch.testing.assert_close(plain, blocked)
    torch.testing.assert_close(torch.autograd.grad(plain, x), torch.autograd.grad(blocked, x))


def test_bec_of_a_thousand_classes_needs_no_tensor_of_all_pairs() -> None:
    # 16 x 1,000 x 1,000 numbers of float32 are 64 MB; a block here is 4 MB.
    rows = [(rows.stop - rows.start) * 16 * 999 for rows, _, _ in cpc._blocks(torch.empty(16, 999))]
    assert max(rows) <= 2**20
    assert len(rows) <= 2 * 64


def test_cpc_of_weight_zero_leaves_the_exclusion_term_out() -> None:
    logits, labels = golden()
    assert torch.equal(cpc_penalty(logits, labels, bec_weight=0), 0.1 * bdc_penalty(logits, labels))
    with pytest.raises(ValueError, match=r"cpc_penalty: `bec_weight` must be a number >= 0, got -1"):
        cpc_penalty(logits, labels, bec_weight=-1)
