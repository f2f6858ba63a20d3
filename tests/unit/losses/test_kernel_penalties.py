"""Penalties by kernels: MMCE, SECE, SKCE and KDE-ECE."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from scipy.stats import beta as beta_distribution

from calibrant.losses import (
    SECE,
    WeightedMMCE,
    kde_ece_penalty,
    mmce_penalty,
    sece_penalty,
    skce_penalty,
)
from helpers import golden, with_confidence


@pytest.mark.parametrize("normalization", ["paper", "official"])
@pytest.mark.parametrize("correct", [1, 0])
def test_weighted_mmce_of_one_group_only_is_zero_without_gradient(normalization: str, correct: int) -> None:
    logits, labels = with_confidence([0.9, 0.8, 0.7], [correct] * 3)
    logits.requires_grad_()
    value = WeightedMMCE(normalization=normalization)(logits, labels)  # type: ignore[arg-type]
    value.backward()
    assert value.item() == 0
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_sece_leave_one_out_of_two_samples_compares_each_with_the_other() -> None:
    logits, labels = with_confidence([0.9, 0.6], [1, 0])
    # However small the bandwidth: a plain ratio of kernels would be 0/0 here.
    for bandwidth in (0.5, 1e-4):
        value = sece_penalty(logits, labels, bandwidth=bandwidth, leave_one_out=True)
        assert value.item() == pytest.approx((0.9 + 0.4) / 2)


def test_sece_detached_accuracy_keeps_the_value_and_moves_confidence_alone() -> None:
    logits, labels = with_confidence([0.9, 0.8, 0.6], [1, 0, 1])
    logits.requires_grad_()
    full, cut = (sece_penalty(logits, labels, detach_accuracy=d) for d in (False, True))
    assert full.item() == pytest.approx(cut.item(), rel=1e-15)
    (slope,) = torch.autograd.grad(cut, logits)
    confidence = torch.tensor([0.9, 0.8, 0.6], dtype=torch.float64)
    # All three are above or below the accuracy around them; the slope is the sign times that of the confidence, over 3.
    weights = torch.softmax(-0.5 * ((confidence.unsqueeze(1) - confidence) / 0.05).square(), 1)
    sign = torch.sign(confidence - weights @ torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(slope[:, 0], sign * confidence * (1 - confidence) / 3)


def calibrated_batch(*, overstated: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Fifty samples at each of ten confidences from 0.82 to 1.0, right as often as they say, or so much less."""
    levels = [0.82 + 0.02 * k for k in range(9)] + [0.999]
    right = [[1] * round(50 * (level - overstated)) for level in levels]
    return with_confidence(
        [level for level in levels for _ in range(50)], [x for some in right for x in some + [0] * (50 - len(some))]
    )


def test_sece_centred_of_a_calibrated_model_is_zero_where_the_plain_one_is_not() -> None:
    logits, labels = calibrated_batch()
    assert sece_penalty(logits, labels, centred=True).item() < 2e-4  # 0.999 is right in all fifty cases
    assert sece_penalty(logits, labels).item() > 0.01


def test_sece_divergence_has_the_gap_as_its_slope_by_the_log_odds() -> None:
    logits, labels = calibrated_batch(overstated=0.1)
    logits.requires_grad_()
    (slope,) = torch.autograd.grad(sece_penalty(logits, labels, centred=True, distance="kl", detach_accuracy=True), logits)
    # All samples are 0.1 too confident, also those whose confidence of 0.999 hardly moves: an absolute difference moves them
    # a thousandth as much as those in the middle.
    torch.testing.assert_close(slope[:, 0] * len(labels), torch.full_like(slope[:, 0], 0.1), rtol=0, atol=2e-3)
    (plain,) = torch.autograd.grad(sece_penalty(logits, labels, detach_accuracy=True), logits)
    assert plain[-1, 0] < 0.02 * plain[0, 0].abs()


def test_sece_divergence_of_saturated_float32_logits_still_has_the_gap_as_its_slope() -> None:
    # 1 - c is rounded to zero from a gap of the logits of 17 on.
    logits = torch.zeros(512, 2)
    logits[:, 0] = torch.linspace(20, 40, 512)
    labels = torch.zeros(512, dtype=torch.int64)
    labels[100] = 1
    logits.requires_grad_()
    (slope,) = torch.autograd.grad(sece_penalty(logits, labels, centred=True, distance="kl", detach_accuracy=True), logits)
    torch.testing.assert_close(slope[:, 0] * 512, torch.full((512,), 1 / 512), rtol=1e-3, atol=1e-6)


def test_sece_divergence_of_a_calibrated_model_near_one_has_no_slope_on_average() -> None:
    # Half of the estimated accuracies are above 1. Cut to 1 they would leave a slope of 0.002 towards less confidence.
    generator = torch.Generator().manual_seed(0)
    total = 0.0
    for _ in range(200):
        odds = 4 + 3 * torch.rand(256, generator=generator, dtype=torch.float64)
        logits = torch.stack([odds, torch.zeros_like(odds)], 1)
        labels = (torch.rand(256, generator=generator, dtype=torch.float64) > odds.sigmoid()).long()
        logits.requires_grad_()
        value = sece_penalty(logits, labels, centred=True, distance="kl", detach_accuracy=True)
        total += torch.autograd.grad(value, logits)[0][:, 0].sum().item() / 200
    assert abs(total) < 1e-3


def test_sece_divergence_is_finite_and_has_a_gradient_at_the_ends() -> None:
    logits = torch.tensor([[200.0, 0.0, 0.0], [90.0, 0.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    for detached in (True, False):
        value = sece_penalty(logits, torch.tensor([1, 0, 0]), centred=True, distance="kl", detach_accuracy=detached)
        (slope,) = torch.autograd.grad(value, logits)
        assert value.isfinite()
        assert slope.isfinite().all()
        assert slope.abs().max() > 0.01
    alone = torch.tensor([[5.0, -torch.inf], [3.0, -torch.inf]])
    assert sece_penalty(alone, torch.tensor([0, 1]), centred=True, distance="kl").abs() < 1e6


@pytest.mark.parametrize("distance", ["absolute", "kl"])
def test_sece_centred_has_both_gradients_and_compiles_in_one_graph(distance: Literal["absolute", "kl"]) -> None:
    logits, labels = golden()
    penalty = SECE(centred=True, distance=distance, accuracy="soft", sharpness=5.0)
    leaf = logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: penalty(z, labels), leaf)
    assert torch.autograd.gradgradcheck(lambda z: penalty(z, labels), leaf)
    compiled = torch.compile(penalty, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits, labels), penalty(logits, labels))


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
