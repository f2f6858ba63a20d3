"""Penalties on how sure predictions are: AvUC, the confidence penalty, MbLS, ACLS and CPC."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from calibrant.losses import (
    CPC,
    AvUC,
    acls_penalty,
    avuc_penalty,
    avuc_threshold,
    certainty,
    confidence_penalty,
    cpc_penalty,
    mbls_penalty,
    soft_avuc_penalty,
)
from helpers import golden, with_confidence


def entropy(c: float) -> float:
    return -c * math.log(c) - (1 - c) * math.log(1 - c)


def test_avuc_counts_by_hand() -> None:
    # Entropies 0.056, 0.693, 0.056, 0.693: right certain, right uncertain, wrong certain, wrong uncertain.
    logits, labels = with_confidence([0.99, 0.51, 0.99, 0.51], [1, 1, 0, 0])
    sure, unsure = math.tanh(entropy(0.99)), math.tanh(entropy(0.51))
    counts = {"ac": 0.99 * (1 - sure), "au": 0.51 * unsure, "ic": 0.01 * (1 - sure), "iu": 0.49 * unsure}
    expected = math.log(sum(counts.values()) / (counts["ac"] + counts["iu"]))
    assert avuc_penalty(logits, labels, threshold=0.5, beta=1).item() == pytest.approx(expected)


def test_avuc_threshold_is_half_way_between_the_two_mean_entropies() -> None:
    logits, labels = with_confidence([0.99, 0.9, 0.6], [1, 1, 0])
    expected = ((entropy(0.99) + entropy(0.9)) / 2 + entropy(0.6)) / 2
    assert avuc_threshold(logits, labels).item() == pytest.approx(expected)


@pytest.mark.parametrize("correct", [1, 0])
def test_avuc_threshold_of_one_group_is_its_mean_entropy(correct: int) -> None:
    logits, labels = with_confidence([0.9, 0.6], [correct] * 2)
    assert avuc_threshold(logits, labels).item() == pytest.approx((entropy(0.9) + entropy(0.6)) / 2)


def test_avuc_module_updates_the_threshold_it_uses_and_saves_it() -> None:
    logits, labels = golden()
    module = AvUC()
    module.update_threshold(logits.requires_grad_(), labels)
    expected = avuc_threshold(logits, labels)
    assert not module.current_threshold.requires_grad
    assert module.current_threshold.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(
        module(logits, labels), avuc_penalty(logits, labels, threshold=module.current_threshold.double())
    )
    assert set(module.state_dict()) == {"current_threshold"}


def test_soft_avuc_by_hand() -> None:
    logits, labels = with_confidence([0.95, 0.7], [1, 0])
    doubts, unsure = [], []
    for c in (0.95, 0.7):
        mixed = (1 - 1e-5) * c + 0.5e-5
        h = entropy(mixed)
        e = h / math.log(2)
        doubts.append(math.tanh(h))
        unsure.append(1 / (1 + ((1 - e) * 0.3 / (e * 0.7)) ** (1 / 0.5)))
    bad = unsure[0] * doubts[0] + (1 - unsure[1]) * (1 - doubts[1])
    good = (1 - unsure[0]) * (1 - doubts[0]) + unsure[1] * doubts[1]
    value = soft_avuc_penalty(logits, labels, temperature=0.5, threshold=0.3)
    assert value.item() == pytest.approx(math.log1p(bad / good))


def test_confidence_penalty_of_a_minus_infinite_logit_is_that_of_the_others() -> None:
    logits = torch.tensor([[1.0, 2.0, float("-inf")]], requires_grad=True)
    value = confidence_penalty(logits, torch.tensor([0]))
    value.backward()
    assert value.item() == pytest.approx(confidence_penalty(torch.tensor([[1.0, 2.0]]), torch.tensor([0])).item())
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_mbls_gradient_flows_into_the_largest_logit_as_well() -> None:
    logits = torch.tensor([[9.0, 3.0, 0.0]], requires_grad=True)
    mbls_penalty(logits, torch.tensor([0]), margin=5).backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [pytest.approx([2 / 3, -1 / 3, -1 / 3])]


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


def plain_exclusion(logits: Tensor, labels: Tensor) -> Tensor:
    others = torch.stack([torch.cat([row[:y], row[y + 1 :]]) for row, y in zip(logits, labels.tolist(), strict=True)])
    m = others.shape[1]
    return torch.nn.functional.softplus(others.unsqueeze(1) - others.unsqueeze(2)).sum() / (2 * len(logits) * m * (m - 1))


@pytest.mark.parametrize("block", [1, 200, 2**20])
def test_cpc_in_blocks_of_any_size_agrees_with_the_plain_sum(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certainty, "_BLOCK", block)
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
