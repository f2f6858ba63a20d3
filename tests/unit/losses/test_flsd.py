from __future__ import annotations

import math

import pytest
import torch

from calibrant.losses import FLSDLoss, flsd_loss, focal_gradient_weight, focal_loss, lambert_gamma
from helpers import golden


def test_flsd_of_golden_input_has_the_golden_value() -> None:
    logits, labels = golden()
    assert flsd_loss(logits, labels).sum().item() == pytest.approx(17.763710, rel=1e-6)
    assert FLSDLoss(reduction="sum")(logits.float(), labels).item() == pytest.approx(17.763710, rel=1e-6)


def test_flsd_takes_5_below_a_fifth_and_3_from_it_on() -> None:
    for p, gamma in ((0.1, 5), (0.19, 5), (0.21, 3), (0.5, 3), (0.9, 3)):
        logits = torch.tensor([[math.log(p), math.log(1 - p)]], dtype=torch.float64)
        assert flsd_loss(logits, torch.tensor([0])).item() == pytest.approx(-((1 - p) ** gamma) * math.log(p))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flsd_at_the_threshold_exactly_counts_as_above(dtype: torch.dtype) -> None:
    # Five equal logits: p is 0.2 on the dot.
    value = flsd_loss(torch.full((1, 5), 7.3, dtype=dtype), torch.tensor([2]))
    assert value.item() == pytest.approx(0.8**3 * math.log(5))


def test_flsd_with_equal_gammas_is_focal_loss() -> None:
    logits, labels = golden()
    assert torch.equal(flsd_loss(logits, labels, gamma_below=2, gamma_above=2), focal_loss(logits, labels, gamma=2))


def test_flsd_holds_gamma_constant_in_the_gradient() -> None:
    logits, labels = golden()
    leaf = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(flsd_loss(leaf, labels).sum(), leaf)
    p = logits.softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
    gammas = torch.where(p < 0.2, 5.0, 3.0)
    weight = focal_gradient_weight(logits, labels, gamma=gammas).unsqueeze(1)
    torch.testing.assert_close(gradient, weight * (logits.softmax(1) - torch.nn.functional.one_hot(labels, 5)))


def test_flsd_refuses_a_threshold_outside_0_to_1_and_a_negative_gamma() -> None:
    logits, labels = golden()
    with pytest.raises(ValueError, match=r"flsd_loss: `threshold` must lie in \(0, 1\), got 1"):
        flsd_loss(logits, labels, threshold=1)
    with pytest.raises(ValueError, match=r"flsd_loss: `gamma` must be a finite number >= 0, got -3"):
        flsd_loss(logits, labels, gamma_above=-3)


@pytest.mark.parametrize(("p", "gamma"), [(0.1, 14.924), (0.2, 4.851), (0.25, 3.070), (0.3, 1.957), (0.4, 0.681)])
def test_lambert_rule_has_the_known_values(p: float, gamma: float) -> None:
    assert lambert_gamma(p) == pytest.approx(gamma, abs=6e-4)


@pytest.mark.parametrize("p", [0.01, 0.2, 0.35, 0.49])
def test_lambert_rule_makes_the_gradient_weight_one(p: float) -> None:
    logits = torch.tensor([[math.log(p), math.log(1 - p)]], dtype=torch.float64)
    gamma = lambert_gamma(p)
    assert gamma > 0
    assert focal_gradient_weight(logits, torch.tensor([0]), gamma=gamma).item() == pytest.approx(1, rel=1e-6)


def test_lambert_rule_from_one_half_on_is_zero() -> None:
    assert [lambert_gamma(p) for p in (0.5, 0.7, 0.99)] == [0.0, 0.0, 0.0]
    for p in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"lambert_gamma: `probability` must lie in \(0, 1\), got"):
            lambert_gamma(p)
