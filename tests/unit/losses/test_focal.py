"""The focal losses and the rules that choose their gamma."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant import Predictions
from calibrant.losses import (
    AdaFocalLoss,
    ScheduledFocalLoss,
    adafocal_gammas,
    adafocal_loss,
    dual_focal_loss,
    flsd_loss,
    focal_gradient_weight,
    focal_loss,
    inverse_focal_loss,
    scheduled_focal_loss,
    scheduled_gamma,
)
from helpers import golden, mixed_gaps


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 3.0, 20.0])
def test_focal_logit_gradient_is_cross_entropys_times_the_weight(gamma: float) -> None:
    logits, labels = golden()
    leaf = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(focal_loss(leaf, labels, gamma=gamma).sum(), leaf)
    probs = logits.softmax(1)
    p = probs.gather(1, labels.unsqueeze(1)).squeeze(1)
    weight = (1 - p) ** gamma - gamma * p * (1 - p) ** (gamma - 1) * p.log()
    torch.testing.assert_close(focal_gradient_weight(logits, labels, gamma=gamma), weight)
    torch.testing.assert_close(gradient, weight.unsqueeze(1) * (probs - F.one_hot(labels, 5)))


@pytest.mark.parametrize("function", [focal_loss, focal_gradient_weight, inverse_focal_loss, dual_focal_loss])
def test_focal_losses_are_twice_differentiable_in_logits_and_gamma_from_zero_on(function: Callable[..., Tensor]) -> None:
    logits = torch.tensor([[1.0, -0.5, 0.2], [0.3, 2.0, -1.0], [0.4, 0.1, 0.3]], dtype=torch.float64, requires_grad=True)
    gammas = torch.tensor([0.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 2, 2])
    assert torch.autograd.gradcheck(lambda z, g: function(z, labels, gamma=g), (logits, gammas))
    assert torch.autograd.gradgradcheck(lambda z, g: function(z, labels, gamma=g), (logits, gammas))


@pytest.mark.parametrize("gamma", [0, torch.zeros(24)])
@pytest.mark.parametrize("function", [focal_loss, inverse_focal_loss, dual_focal_loss])
def test_focal_losses_of_gamma_zero_are_cross_entropy(function: Callable[..., Tensor], gamma: float | Tensor) -> None:
    logits, labels = golden()
    torch.testing.assert_close(function(logits, labels, gamma=gamma), F.cross_entropy(logits, labels, reduction="none"))


def exact_focal(gap: float, gamma: float) -> float:
    """Focal loss of two classes whose true one leads by ``gap``, in Python floats."""
    minus_log_p = math.log1p(math.exp(-gap))
    log_1mp = -gap - math.log1p(math.exp(-gap))
    return math.exp(gamma * log_1mp) * minus_log_p


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("gap", [10.0, 17.0, 20.0, 40.0, 80.0])
def test_focal_in_float32_is_exact_at_saturation(gap: float, gamma: float) -> None:
    logits = torch.tensor([[gap, 0.0]], requires_grad=True)
    value = focal_loss(logits, torch.tensor([0]), gamma=gamma)
    # 1e-5: the exponent gamma * gap is rounded in float32. Values below 1e-38 are denormal or zero there.
    assert value.item() == pytest.approx(exact_focal(gap, gamma), rel=1e-5, abs=1e-37)
    (gradient,) = torch.autograd.grad(value.sum(), logits, create_graph=True)
    (second,) = torch.autograd.grad(gradient[0, 0], logits)
    assert torch.isfinite(gradient).all()
    assert torch.isfinite(second).all()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 3.0])
def test_focal_of_a_certain_prediction_is_zero_with_zero_derivatives(gamma: float) -> None:
    # -inf is probability zero: the only other class is impossible.
    logits = torch.tensor([[2.0, -math.inf], [1e4, -1e4]], requires_grad=True)
    strength = torch.full((2,), gamma, requires_grad=True)
    value = focal_loss(logits, torch.tensor([0, 0]), gamma=strength)
    assert value.tolist() == [0.0, 0.0]
    gradients = torch.autograd.grad(value.sum(), (logits, strength), create_graph=True)
    seconds = torch.autograd.grad(gradients[0].sum(), (logits, strength))
    assert all(torch.equal(g, torch.zeros_like(g)) for g in (*gradients, *seconds))


def test_focal_gradient_weight_at_saturation_is_the_power_times_its_limit() -> None:
    # As p goes to 1, g goes to (1 - p)^gamma (1 + gamma).
    logits = torch.tensor([[30.0, 0.0], [1e4, 0.0]], dtype=torch.float64)
    weight = focal_gradient_weight(logits, torch.tensor([0, 0]), gamma=0.5)
    assert weight[0].item() == pytest.approx(math.exp(-15.0) * 1.5, rel=1e-12)
    assert weight[1].item() == 0.0
    assert focal_gradient_weight(logits, torch.tensor([0, 0]), gamma=0.0).tolist() == [1.0, 1.0]
    assert focal_gradient_weight(logits, torch.tensor([1, 1]), gamma=3.0).tolist() == pytest.approx([1.0, 1.0])


def test_focal_gamma_gradient_in_float32_is_exact_where_the_true_class_is_improbable() -> None:
    # dL/dgamma = -(1-p)^gamma log(p) log(1-p) goes with p; 1 - p itself is rounded to 1 below 6e-8.
    gaps = torch.tensor([5.0, 17.0, 25.0, 34.0])
    logits, labels = torch.stack([gaps, torch.zeros(4)], 1), torch.ones(4, dtype=torch.int64)
    gamma = torch.full((4,), 2.0, requires_grad=True)
    focal_loss(logits, labels, gamma=gamma).sum().backward()
    p = torch.sigmoid(-gaps.double())
    torch.testing.assert_close(gamma.grad, (-((1 - p) ** 2) * p.log() * torch.log1p(-p)).float(), atol=0, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_focal_runs_under_vmap_and_forward_mode() -> None:
    logits, labels = golden()
    rows = torch.func.vmap(lambda z, y: focal_loss(z.unsqueeze(0), y.unsqueeze(0)).squeeze(0))(logits, labels)
    torch.testing.assert_close(rows, focal_loss(logits, labels))
    gradients = torch.func.vmap(torch.func.grad(lambda z, y: focal_loss(z.unsqueeze(0), y.unsqueeze(0)).sum()))(logits, labels)
    _, tangent = torch.func.jvp(lambda z: focal_loss(z, labels), (logits,), (logits,))
    torch.testing.assert_close(tangent, (gradients * logits).sum(1))


def test_flsd_takes_5_below_a_fifth_and_3_from_it_on() -> None:
    for p, gamma in ((0.1, 5), (0.19, 5), (0.21, 3), (0.5, 3), (0.9, 3)):
        logits = torch.tensor([[math.log(p), math.log(1 - p)]], dtype=torch.float64)
        assert flsd_loss(logits, torch.tensor([0])).item() == pytest.approx(-((1 - p) ** gamma) * math.log(p))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flsd_at_the_threshold_exactly_counts_as_above(dtype: torch.dtype) -> None:
    # Five equal logits: p is 0.2 on the dot.
    value = flsd_loss(torch.full((1, 5), 7.3, dtype=dtype), torch.tensor([2]))
    assert value.item() == pytest.approx(0.8**3 * math.log(5))


@pytest.mark.parametrize(("epoch", "gamma"), [(0, 5), (99, 5), (100, 3), (249, 3), (250, 1), (1000, 1)])
def test_schedule_steps_down_at_100_and_250(epoch: int, gamma: float) -> None:
    logits, labels = golden()
    assert scheduled_gamma(epoch) == gamma
    expected = focal_loss(logits, labels, gamma=gamma)
    assert torch.equal(scheduled_focal_loss(logits, labels, epoch=epoch), expected)
    loss = ScheduledFocalLoss(reduction="none")
    loss.set_epoch(epoch)
    assert torch.equal(loss(logits, labels), expected)
    assert loss.epoch == epoch


def test_scheduled_module_keeps_its_epoch_in_the_state() -> None:
    first, second = ScheduledFocalLoss(), ScheduledFocalLoss()
    first.set_epoch(123)
    assert list(first.state_dict()) == ["epoch_now"]
    second.load_state_dict(first.state_dict())
    assert second.epoch == 123
    assert repr(second) == "ScheduledFocalLoss(epoch=123, schedule=((0, 5.0), (100, 3.0), (250, 1.0)))"


def literal(logits: Tensor, label: int, gamma: float) -> Tensor:
    """The definition for one sample, in a loop."""
    probs = logits.softmax(0)
    rival = torch.zeros((), dtype=logits.dtype)
    for k in range(len(probs)):
        if probs[k] < probs[label] and probs[k] > rival:
            rival = probs[k]
    return -((1 - probs[label] + rival) ** gamma) * probs[label].log()


def test_dual_focal_and_its_gradient_follow_the_definition() -> None:
    logits, labels = golden()
    leaf = logits.clone().requires_grad_()
    value = dual_focal_loss(leaf, labels, gamma=1.7)
    expected = torch.stack([literal(leaf[i], int(labels[i]), 1.7) for i in range(24)])
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value.sum(), leaf)[0], torch.autograd.grad(expected.sum(), leaf)[0])


def test_dual_focal_ties_with_the_true_class_are_not_below_it() -> None:
    logits = torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float64)
    assert dual_focal_loss(logits, torch.tensor([1]), gamma=2).item() == pytest.approx((2 / 3) ** 2 * math.log(3))


def test_dual_focal_in_float32_is_exact_at_saturation() -> None:
    # Two classes: r = 1 - p, so that the base is 2 (1 - p), here 2 exp(-30), and -log p is exp(-30).
    value = dual_focal_loss(torch.tensor([[30.0, 0.0]]), torch.tensor([0]), gamma=1)
    assert value.item() == pytest.approx(2 * math.exp(-60.0), rel=1e-5)


EDGES = torch.tensor([0.0, 0.25, 0.75, 1.0], dtype=torch.float64)
GAMMAS = torch.tensor([3.0, -0.5, 1.0], dtype=torch.float64)


def pair(p: float) -> torch.Tensor:
    return torch.tensor([[math.log(p), math.log(1 - p)]], dtype=torch.float64)


def test_adafocal_takes_the_gamma_of_the_true_class_probabilitys_bin() -> None:
    cases = [(0.1, 0.9**3), (0.5, 1.5**0.5), (0.7, 1.7**0.5), (0.9, 0.1)]
    for p, factor in cases:
        value = adafocal_loss(pair(p), torch.tensor([0]), gammas=GAMMAS, edges=EDGES)
        assert value.item() == pytest.approx(-factor * math.log(p))


def test_adafocal_at_an_edge_falls_into_the_bin_below() -> None:
    # Four equal logits: p is exactly a quarter.
    value = adafocal_loss(torch.zeros(1, 4, dtype=torch.float64), torch.tensor([0]), gammas=GAMMAS, edges=EDGES)
    assert value.item() == pytest.approx(0.75**3 * math.log(4))


def test_adafocal_update_rule_by_hand() -> None:
    gammas = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.25, -0.25, 19.0, -1.9])
    gaps = torch.tensor([0.5, -0.5, 0.5, -0.5, -0.4, 0.4, 0.5, -0.5])
    e = math.exp(0.5)
    # Grows where over-confident, shrinks where under-confident; changes over below 0.2; clipped to [-2, 20].
    expected = [e, 1 / e, -1 / e, -e, -0.2, 0.2, 20.0, -2.0]
    moved = adafocal_gammas(gammas, gaps)
    assert moved.tolist() == pytest.approx(expected)
    assert gammas[0].item() == 1.0


def test_adafocal_module_before_any_update_is_focal_loss() -> None:
    logits, labels = golden()
    torch.testing.assert_close(AdaFocalLoss(reduction="none")(logits, labels), focal_loss(logits, labels, gamma=1))
    assert torch.equal(AdaFocalLoss(n_bins=4).edges, torch.tensor([0, 0.25, 0.5, 0.75, 1.0]))


def test_adafocal_module_update_moves_gammas_by_the_gaps_of_equal_mass_bins() -> None:
    probs, labels = mixed_gaps(n=300)
    loss = AdaFocalLoss(n_bins=3, rate=2.0)
    bins = loss.update(probs, labels)
    confidence, order = probs.amax(1).sort()
    correct = (probs.argmax(1) == labels)[order].double()
    gaps = (confidence - correct).reshape(3, 100).mean(1)
    torch.testing.assert_close(loss.gammas.double(), torch.exp(2 * gaps), rtol=1e-6, atol=0)
    torch.testing.assert_close(bins.gap, gaps)
    expected = torch.stack([confidence[0], confidence[99], confidence[199], confidence[299]])
    torch.testing.assert_close(loss.edges.double(), expected, rtol=1e-6, atol=0)


def test_adafocal_module_update_refuses_test_data_and_missing_labels() -> None:
    loss = AdaFocalLoss()
    test = Predictions(probs=[[0.9, 0.1]], labels=[0], split="test")
    with pytest.raises(ValueError, match="must not be marked as test data"):
        loss.update(test)
    with pytest.raises(ValueError, match="`labels` must be given"):
        loss.update([[0.9, 0.1]])
    with pytest.raises(ValueError, match="must not be given with a `Predictions`"):
        loss.update(test.replace(split="val"), [0])
    assert torch.equal(loss.gammas, torch.ones(15))
