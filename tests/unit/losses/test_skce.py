from __future__ import annotations

import math

import pytest
import torch

from calibrant.losses import SKCE, mmce_penalty, skce_penalty
from helpers import golden, with_confidence


def test_skce_of_two_samples_by_hand() -> None:
    logits, labels = with_confidence([0.9, 0.75], [1, 0])
    expected = 0.1 * -0.75 * math.exp(-0.5 * (0.15 / 0.1) ** 2)
    assert skce_penalty(logits, labels).item() == pytest.approx(expected)


@pytest.mark.parametrize("bandwidth", [0.1, 0.005])
def test_skce_is_the_mean_over_ordered_pairs(bandwidth: float) -> None:
    confidence, correct = [0.9, 0.75, 0.6, 0.62], [1, 0, 0, 1]
    logits, labels = with_confidence(confidence, correct)
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    gap = [a - c for a, c in zip(correct, confidence, strict=True)]
    terms = [gap[i] * gap[j] * math.exp(-0.5 * ((confidence[i] - confidence[j]) / bandwidth) ** 2) for i, j in pairs]
    assert skce_penalty(logits, labels, bandwidth=bandwidth).item() == pytest.approx(sum(terms) / 12)


def test_skce_with_a_wide_kernel_is_the_u_statistic_of_the_gap() -> None:
    logits, labels = golden()
    confidence, top = logits.softmax(1).max(1)
    gap = (top == labels).double() - confidence
    expected = (gap.sum() ** 2 - gap.square().sum()) / (24 * 23)
    torch.testing.assert_close(skce_penalty(logits, labels, bandwidth=1e4), expected)


def test_skce_of_a_calibrated_model_is_zero_in_expectation_where_mmce_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    values, mmce = [], []
    for _ in range(300):
        logits = 2 * torch.randn(32, 4, generator=generator, dtype=torch.float64)
        labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
        values.append(skce_penalty(logits, labels))
        mmce.append(mmce_penalty(logits, labels, squared=True))
    mean, error = torch.stack(values).mean(), torch.stack(values).std() / 300**0.5
    assert abs(mean) < 3 * error
    assert torch.stack(mmce).mean() > 20 * error


def test_skce_of_a_single_sample_is_zero() -> None:
    assert SKCE()(torch.tensor([[1.0, 0.0]]), torch.tensor([1])).item() == 0


def test_skce_under_autocast_keeps_its_precision() -> None:
    logits, labels = golden()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = skce_penalty(logits.float(), labels).item()
    assert rounded == pytest.approx(skce_penalty(logits, labels).item(), abs=1e-7)


def test_skce_of_a_bad_bandwidth_raises() -> None:
    with pytest.raises(ValueError, match=r"skce_penalty: `bandwidth` must be a finite number > 0, got 0"):
        skce_penalty(*golden(), bandwidth=0)
