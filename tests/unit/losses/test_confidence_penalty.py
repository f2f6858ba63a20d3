from __future__ import annotations

import math

import pytest
import torch

from calibrant.losses import ConfidencePenalty, CrossEntropyLoss, confidence_penalty
from helpers import golden


def test_confidence_penalty_of_golden_input_is_the_negative_mean_entropy() -> None:
    assert ConfidencePenalty()(*golden()).item() == pytest.approx(-0.782877, abs=6e-7)


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
