"""Gaps between confidence and accuracy: DCA, MDCA, Huber, DECE and SB-ECE."""

from __future__ import annotations

import math

import pytest
import torch

from calibrant.losses import (
    HuberDCA,
    dca_penalty,
    dece_penalty,
    huber_dca_penalty,
    label_binned_sb_ece_penalty,
    sb_ece_penalty,
)
from calibrant.metrics.binned import expected_calibration_error
from helpers import golden, mixed_gaps, with_confidence


def test_dca_is_blind_to_gaps_that_cancel() -> None:
    logits, labels = with_confidence([0.6, 0.9], [0, 1])
    assert dca_penalty(logits, labels).item() == pytest.approx(0.25)
    logits, labels = with_confidence([0.5, 0.5], [0, 1])
    assert dca_penalty(logits, labels).item() == pytest.approx(0)


def test_dece_with_cold_temperatures_is_ece() -> None:
    logits, labels = golden()
    cold = dece_penalty(logits, labels, bin_temperature=1e-6, sharpness=1e8).item()
    assert cold == pytest.approx(0.268477, abs=1e-4)
    probs, labels = mixed_gaps(500)
    cold = dece_penalty(probs.log(), labels, n_bins=10, bin_temperature=1e-7, sharpness=1e9).item()
    # The memberships of 1e-6 that every bin adds are all that is left of the softness.
    assert cold == pytest.approx(expected_calibration_error(probs, labels, n_bins=10).item(), abs=2e-5)


def test_dece_gradient_reaches_every_class_through_the_soft_accuracy() -> None:
    logits = torch.tensor([[1.0, 0.9, 0.8]], dtype=torch.float64, requires_grad=True)
    dece_penalty(logits, torch.tensor([1])).backward()
    assert logits.grad is not None
    assert (logits.grad != 0).all()


def test_sb_ece_of_two_bins_by_hand() -> None:
    logits, labels = with_confidence([0.6, 0.9], [0, 1])
    # Centres 1/4 and 3/4: odds of the upper bin exp((0.35² - 0.15²)/T) and exp((0.65² - 0.15²)/T).
    upper = [1 / (1 + math.exp(-(0.35**2 - 0.15**2) / 0.1)), 1 / (1 + math.exp(-(0.65**2 - 0.15**2) / 0.1))]
    bins = [[1 - u for u in upper], upper]
    gaps = [abs(b[0] * -0.6 + b[1] * 0.1) / sum(b) for b in bins]
    one = sum(sum(b) / 2 * gap for b, gap in zip(bins, gaps, strict=True))
    two = math.sqrt(sum(sum(b) / 2 * gap**2 for b, gap in zip(bins, gaps, strict=True)))
    assert sb_ece_penalty(logits, labels, n_bins=2, bin_temperature=0.1, p=1).item() == pytest.approx(one)
    assert sb_ece_penalty(logits, labels, n_bins=2, bin_temperature=0.1, p=2).item() == pytest.approx(two)


def test_sb_ece_with_cold_bins_is_ece() -> None:
    probs, labels = mixed_gaps(500)
    cold = sb_ece_penalty(probs.log(), labels, bin_temperature=1e-6, p=1).item()
    assert cold == pytest.approx(expected_calibration_error(probs, labels).item(), abs=1e-3)


def test_sb_ece_at_zero_has_a_finite_gradient() -> None:
    # The released code's bare root gives NaN here.
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]], requires_grad=True)
    value = sb_ece_penalty(logits, torch.tensor([0, 1]), n_bins=1)
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-5)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_label_binned_sb_ece_bins_begin_at_one_over_the_number_of_classes() -> None:
    # Two bins of [1/2, 1]: 0.75 lies on the border, so both samples share both bins evenly at any temperature.
    logits, labels = with_confidence([0.75, 0.75], [1, 0])
    for temperature in (1e-4, 1.0):
        value = label_binned_sb_ece_penalty(logits, labels, n_bins=2, bin_temperature=temperature)
        assert value.item() == pytest.approx(0.25**2)
    logits, labels = with_confidence([0.99, 0.51], [1, 0])
    cold = label_binned_sb_ece_penalty(logits, labels, n_bins=2, bin_temperature=1e-4)
    assert cold.item() == pytest.approx((0.01**2 + 0.51**2) / 2, rel=1e-3)


def test_huber_dca_agrees_with_the_library_function_and_with_dca_far_out() -> None:
    logits, labels = golden()
    gap = dca_penalty(logits, labels)
    for alpha in (0.005, 0.0113, 0.5):
        expected = torch.nn.functional.huber_loss(gap, torch.zeros_like(gap), delta=alpha)
        torch.testing.assert_close(HuberDCA(alpha=alpha)(logits, labels), expected)
    assert (huber_dca_penalty(logits, labels, alpha=1e-6) / 1e-6).item() == pytest.approx(gap.item(), rel=1e-3)
