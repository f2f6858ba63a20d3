from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import beta as beta_distribution

from calibrant.losses import KDEECE, kde_ece_penalty
from helpers import golden, with_confidence


@pytest.mark.parametrize(("bandwidth", "value"), [(0.01, 0.286856), (0.1, 0.259015)])
def test_kde_ece_of_golden_input_has_the_golden_values(bandwidth: float, value: float) -> None:
    assert KDEECE(bandwidth=bandwidth)(*golden()).item() == pytest.approx(value, abs=6e-7)


@pytest.mark.parametrize("p", [1, 2])
def test_kde_ece_of_three_samples_by_hand(p: int) -> None:
    confidence, correct, b = [0.9, 0.8, 0.6], [1, 0, 1], 0.05
    logits, labels = with_confidence(confidence, correct)
    total = 0.0
    for i in range(3):
        others = [j for j in range(3) if j != i]
        k = [beta_distribution.pdf(confidence[i], confidence[j] / b + 1, (1 - confidence[j]) / b + 1) for j in others]
        ratio = sum(w * correct[j] for w, j in zip(k, others, strict=True)) / sum(k)
        total += abs(ratio - confidence[i]) ** p / 3
    value = kde_ece_penalty(logits, labels, bandwidth=b, p=p)  # type: ignore[arg-type]
    assert value.item() == pytest.approx(total, rel=1e-9)


def test_kde_ece_with_a_single_right_sample_gives_it_no_accuracy() -> None:
    # The released code treats this batch apart; left out of its own estimate, the right one has only wrong neighbours.
    logits, labels = with_confidence([0.7, 0.7, 0.7], [1, 0, 0])
    assert kde_ece_penalty(logits, labels).item() == pytest.approx((0.7 + 0.2 + 0.2) / 3)


def test_kde_ece_with_a_wide_kernel_compares_with_the_accuracy_of_the_others() -> None:
    logits, labels = with_confidence([0.9, 0.8, 0.6], [1, 0, 1])
    assert kde_ece_penalty(logits, labels, bandwidth=1e6).item() == pytest.approx((0.4 + 0.2 + 0.1) / 3, rel=1e-4)


def test_kde_ece_of_saturated_and_of_uniform_confidence_has_finite_gradients() -> None:
    # Confidence 1 in float32 is NaN in the released code.
    logits = torch.tensor([[200.0, 0.0], [30.0, 0.0], [0.0, 0.0], [1.0, 0.0]], requires_grad=True)
    for bandwidth in (0.001, 0.01, 0.5):
        (gradient,) = torch.autograd.grad(kde_ece_penalty(logits, torch.tensor([0, 1, 0, 0]), bandwidth=bandwidth), logits)
        assert torch.isfinite(gradient).all()


def test_kde_ece_of_a_single_sample_is_zero_with_a_gradient_of_zero() -> None:
    logits = torch.tensor([[1.0, 0.0]], requires_grad=True)
    value = kde_ece_penalty(logits, torch.tensor([1]))
    value.backward()
    assert value.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_kde_ece_under_autocast_keeps_its_precision() -> None:
    logits, labels = golden()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = kde_ece_penalty(logits.float(), labels).item()
    assert rounded == pytest.approx(kde_ece_penalty(logits, labels).item(), abs=1e-5)


def test_kde_ece_of_bad_options_raises() -> None:
    logits, labels = golden()
    with pytest.raises(ValueError, match=r"kde_ece_penalty: `bandwidth` must be a finite number > 0, got 0"):
        kde_ece_penalty(logits, labels, bandwidth=0)
    with pytest.raises(ValueError, match=r"kde_ece_penalty: `p` must be 1 or 2, got 0"):
        kde_ece_penalty(logits, labels, p=0)  # type: ignore[arg-type]


def test_kde_ece_at_a_confidence_of_one_evaluates_the_kernel_next_to_it() -> None:
    # A logit gap of 1e4; at the confidence it says, all weight would go to the second sample.
    logits = torch.tensor([[1e4, 0.0], [math.log(9), 0.0], [math.log(4), 0.0]], dtype=torch.float64)
    confidence, correct, b = [1.0, 0.9, 0.8], [1.0, 1.0, 0.0], 0.5
    total = 0.0
    for i in range(3):
        at = min(confidence[i], 1 - 1e-6)
        k = [0.0 if j == i else float(beta_distribution.pdf(at, c / b + 1, (1 - c) / b + 1)) for j, c in enumerate(confidence)]
        total += abs(sum(w * a for w, a in zip(k, correct, strict=True)) / sum(k) - confidence[i]) / 3
    value = kde_ece_penalty(logits, torch.tensor([0, 0, 1]), bandwidth=b)
    assert value.item() == pytest.approx(total, rel=1e-9)
