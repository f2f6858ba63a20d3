from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses import FocalLoss, focal_gradient_weight, focal_loss
from calibrant.losses.logprob import true_class_log_odds
from helpers import golden


@pytest.mark.parametrize(("gamma", "value"), [(0, 29.029909), (1, 23.556480), (3, 18.669056)])
def test_focal_of_golden_input_has_the_golden_value(gamma: float, value: float) -> None:
    logits, labels = golden()
    assert focal_loss(logits, labels, gamma=gamma).sum().item() == pytest.approx(value, rel=1e-6)
    assert FocalLoss(gamma=gamma, reduction="sum")(logits.float(), labels).item() == pytest.approx(value, rel=1e-6)


def test_focal_by_hand() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64)
    assert focal_loss(logits, torch.tensor([0]), gamma=2).item() == pytest.approx(0.25**2 * math.log(4 / 3))
    assert focal_loss(logits, torch.tensor([1]), gamma=0.5).item() == pytest.approx(0.75**0.5 * math.log(4))


def test_focal_of_gamma_zero_is_cross_entropy() -> None:
    logits, labels = golden()
    torch.testing.assert_close(focal_loss(logits, labels, gamma=0), F.cross_entropy(logits, labels, reduction="none"))
    gammas = torch.zeros(24, dtype=torch.float64)
    torch.testing.assert_close(focal_loss(logits, labels, gamma=gammas), F.cross_entropy(logits, labels, reduction="none"))


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


@pytest.mark.parametrize(
    ("gamma", "p", "weight"), [(1, 0.1, 1.13), (1, 0.5, 0.85), (1, 0.9, 0.19), (5, 0.1, 1.35), (5, 0.5, 0.14)]
)
def test_focal_gradient_weight_has_the_known_values(gamma: float, p: float, weight: float) -> None:
    logits = torch.tensor([[math.log(p), math.log(1 - p)]])
    assert focal_gradient_weight(logits, torch.tensor([0]), gamma=gamma).item() == pytest.approx(weight, abs=0.005)


def test_focal_is_twice_differentiable_in_logits_and_gamma_from_zero_on() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (2 * torch.randn(3, 3, generator=generator, dtype=torch.float64)).requires_grad_()
    gammas = torch.tensor([0.0, 0.3, 4.0], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2])

    def loss(scores: Tensor, strength: Tensor) -> Tensor:
        return focal_loss(scores, labels, gamma=strength)

    def weight(scores: Tensor, strength: Tensor) -> Tensor:
        return focal_gradient_weight(scores, labels, gamma=strength)

    for function in (loss, weight):
        assert torch.autograd.gradcheck(function, (logits, gammas))
        assert torch.autograd.gradgradcheck(function, (logits, gammas))


def test_focal_mixed_derivative_at_gamma_zero_is_right() -> None:
    # d/dgamma of the logit gradient is dg/dgamma (q - onehot); `(1 - p) ** gamma` of torch gives -0.0335 here.
    logits = torch.tensor([[5.0, 0.0]], dtype=torch.float64, requires_grad=True)
    gamma = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(focal_loss(logits, torch.tensor([0]), gamma=gamma).sum(), logits, create_graph=True)
    (mixed,) = torch.autograd.grad(slope[0, 1], gamma)
    p = 1 / (1 + math.exp(-5.0))
    expected = (math.log(1 - p) - p / (1 - p) * math.log(p)) * (1 - p)
    assert mixed.item() == pytest.approx(expected, rel=1e-9)


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


def test_focal_with_masked_classes_ignores_them() -> None:
    logits, labels = golden()
    kept = labels != 4
    masked = logits[kept].clone()
    masked[:, 4] = -math.inf
    leaf = masked.requires_grad_()
    value = focal_loss(leaf, labels[kept], gamma=2)
    torch.testing.assert_close(value, focal_loss(logits[kept][:, :4], labels[kept], gamma=2))
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    assert torch.equal(gradient[:, 4], torch.zeros(int(kept.sum()), dtype=torch.float64))
    assert torch.isfinite(gradient).all()


def test_focal_gradient_weight_at_saturation_is_the_power_times_its_limit() -> None:
    # As p goes to 1, g goes to (1 - p)^gamma (1 + gamma).
    logits = torch.tensor([[30.0, 0.0], [1e4, 0.0]], dtype=torch.float64)
    weight = focal_gradient_weight(logits, torch.tensor([0, 0]), gamma=0.5)
    assert weight[0].item() == pytest.approx(math.exp(-15.0) * 1.5, rel=1e-12)
    assert weight[1].item() == 0.0
    assert focal_gradient_weight(logits, torch.tensor([0, 0]), gamma=0.0).tolist() == [1.0, 1.0]
    assert focal_gradient_weight(logits, torch.tensor([1, 1]), gamma=3.0).tolist() == pytest.approx([1.0, 1.0])


def test_focal_per_sample_gamma_equals_one_call_per_gamma() -> None:
    logits, labels = golden()
    gammas = torch.linspace(0, 5, 24)
    single = torch.stack([focal_loss(logits[i : i + 1], labels[i : i + 1], gamma=float(gammas[i]))[0] for i in range(24)])
    torch.testing.assert_close(focal_loss(logits, labels, gamma=gammas), single)


def test_focal_gamma_gradient_in_float32_is_exact_where_the_true_class_is_improbable() -> None:
    # dL/dgamma = -(1-p)^gamma log(p) log(1-p) goes with p; 1 - p itself is rounded to 1 below 6e-8.
    gaps = torch.tensor([5.0, 17.0, 25.0, 34.0])
    logits, labels = torch.stack([gaps, torch.zeros(4)], 1), torch.ones(4, dtype=torch.int64)
    gamma = torch.full((4,), 2.0, requires_grad=True)
    focal_loss(logits, labels, gamma=gamma).sum().backward()
    p = torch.sigmoid(-gaps.double())
    torch.testing.assert_close(gamma.grad, (-((1 - p) ** 2) * p.log() * torch.log1p(-p)).float(), atol=0, rtol=1e-5)


def test_focal_keeps_the_precision_of_its_logits_whatever_gammas_is() -> None:
    logits, labels = golden()
    assert focal_loss(logits.float(), labels, gamma=torch.ones(24, dtype=torch.float64)).dtype == torch.float32


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_focal_runs_under_vmap_and_forward_mode() -> None:
    logits, labels = golden()
    rows = torch.func.vmap(lambda z, y: focal_loss(z.unsqueeze(0), y.unsqueeze(0)).squeeze(0))(logits, labels)
    torch.testing.assert_close(rows, focal_loss(logits, labels))
    gradients = torch.func.vmap(torch.func.grad(lambda z, y: focal_loss(z.unsqueeze(0), y.unsqueeze(0)).sum()))(logits, labels)
    _, tangent = torch.func.jvp(lambda z: focal_loss(z, labels), (logits,), (logits,))
    torch.testing.assert_close(tangent, (gradients * logits).sum(1))


@pytest.mark.parametrize("gamma", [-1, math.nan, math.inf, "3"])
def test_focal_refuses_what_is_no_gamma(gamma: float) -> None:
    logits, labels = golden()
    with pytest.raises(ValueError, match=r"focal_loss: `gamma` must be a finite number >= 0, got"):
        focal_loss(logits, labels, gamma=gamma)


@pytest.mark.parametrize(("gamma", "got"), [([1.0, -0.5], "-0.5"), ([1.0, math.inf], "inf"), ([math.nan, 1.0], "nan")])
def test_focal_refuses_a_tensor_that_holds_no_gammas(gamma: list[float], got: str) -> None:
    logits, labels = (t[:2] for t in golden())
    with pytest.raises(ValueError, match=rf"focal_loss: `gamma` must be finite and >= 0, got {got}"):
        focal_loss(logits, labels, gamma=torch.tensor(gamma))


def test_focal_refuses_gammas_of_another_shape() -> None:
    logits, labels = golden()
    with pytest.raises(ValueError, match=r"`gamma` must be a number, \[\] or \[B\] = \[24\], got \[24, 1\]"):
        focal_loss(logits, labels, gamma=torch.ones(24, 1))


def test_log_odds_are_those_of_the_softmax() -> None:
    logits, labels = golden()
    p = logits.softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(true_class_log_odds(logits, labels), ((1 - p) / p).log())
