"""Penalties on entropy: AvUC, soft AvUC and the confidence penalty."""

from __future__ import annotations

import math

import pytest
import torch

from calibrant.losses import (
    AvUC,
    ConfidencePenalty,
    CrossEntropyLoss,
    avuc_penalty,
    avuc_threshold,
    confidence_penalty,
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


def test_avuc_is_zero_where_the_right_are_certain_and_the_wrong_are_not() -> None:
    logits, labels = with_confidence([0.99, 0.98, 0.51], [1, 1, 0])
    assert avuc_penalty(logits, labels, threshold=0.5).item() == pytest.approx(0, abs=1e-9)


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


def test_confidence_penalty_spans_minus_log_c_to_0() -> None:
    labels = torch.tensor([0, 1])
    assert confidence_penalty(torch.zeros(2, 8), labels).item() == pytest.approx(-math.log(8))
    assert confidence_penalty(1e4 * torch.eye(2, 8), labels).item() == 0


def test_confidence_penalty_with_cross_entropy_is_minimal_where_the_paper_says() -> None:
    # CE - beta H over q: at the minimum q solves q_y = 1/2 + ..., found here by descent; its gradient must vanish there.
    logits = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    loss = CrossEntropyLoss() + 0.5 * ConfidencePenalty()
    optimizer = torch.optim.LBFGS([logits], max_iter=50, tolerance_grad=1e-12)
    labels = torch.tensor([0])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value: torch.Tensor = loss(logits, labels)
        value.backward()
        return value

    optimizer.step(closure)
    q = logits.detach().softmax(1).squeeze(0)
    # Stationarity in q with a multiplier: -1/q_y + beta (log q_y + 1) equals beta (log q_k + 1) for every other k.
    assert (-1 / q[0] + 0.5 * q[0].log()).item() == pytest.approx((0.5 * q[1].log()).item(), rel=1e-5)
    assert 0.5 < q[0].item() < 0.999


def test_confidence_penalty_of_a_minus_infinite_logit_is_that_of_the_others() -> None:
    logits = torch.tensor([[1.0, 2.0, float("-inf")]], requires_grad=True)
    value = confidence_penalty(logits, torch.tensor([0]))
    value.backward()
    assert value.item() == pytest.approx(confidence_penalty(torch.tensor([[1.0, 2.0]]), torch.tensor([0])).item())
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
