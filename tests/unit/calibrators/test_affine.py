"""Affine maps: their objectives, and what their penalties do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from calibrant.calibrators import (
    BetaCalibration,
    DirichletCalibration,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
)
from calibrant.calibrators.base import FitData
from calibrant.calibrators.scaling import affine_loss, fit_logistic
from calibrant.data.synthetic import synthetic_predictions
from helpers import golden

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("shape", [(5,), (5, 5)])
def test_affine_loss_gradient_agrees_with_differences(shape: tuple[int, ...]) -> None:
    logits, labels = golden()
    weights = (torch.arange(24) % 3 + 1.0).double()
    data = FitData(logits, labels, weights / weights.mean())
    rng = np.random.default_rng(0)
    given = (data, torch.from_numpy(rng.uniform(size=shape)), 0.2)
    point = np.zeros(given[1].numel() + 5)
    nll = torch.nn.functional.cross_entropy(logits, labels, reduction="none") @ data.weights
    assert affine_loss(point, *given)[0] == pytest.approx(float(nll) / 24)
    point += 0.1 * rng.normal(size=len(point))
    for k, step in enumerate(1e-6 * np.eye(len(point))):
        above, below = (affine_loss(point + sign * step, *given)[0] for sign in (1, -1))
        assert affine_loss(point, *given)[1][k] == pytest.approx((above - below) / 2e-6, abs=1e-8)


def test_matrix_penalties_are_those_of_a_normal_prior() -> None:
    # Inputs of zero leave the NLL at log 3.
    data = FitData(torch.zeros(2, 3, dtype=torch.float64), torch.tensor([0, 2]), torch.ones(2).double())
    away = np.zeros((3, 3))
    away[0, 1], away[1, 1] = 0.5, 1.0
    value, _ = affine_loss(np.append(away, np.zeros(3)), data, *MatrixScaling(ridge=3.0)._prior(data, 0.1))
    assert value == pytest.approx(np.log(3) + (0.5**2 / 0.1**2 + 3.0) / (2 * 2))
    biased, _ = affine_loss(np.append(np.zeros((3, 3)), np.ones(3)), data, *MatrixScaling()._prior(data, 0.1))
    # Ten times the spread for a bias.
    assert biased == pytest.approx(np.log(3) + 3 / (2 * 2))


def test_vector_prior_is_that_of_its_docstring() -> None:
    given, _ = synthetic_predictions(60, 3, temperature=2.0, hardness=0.5, split="val")
    found, temperature = VectorScaling(ridge=5.0).fit(given), TemperatureScaling().fit(given).temperature_
    weight, bias = found.weight_.clone().requires_grad_(), found.bias_.clone().requires_grad_()
    nll = torch.nn.functional.cross_entropy(given.logits.double() * weight + bias, given.labels, reduction="sum")
    loss = nll + 2.5 * ((weight * temperature - 1) ** 2).sum() + 2.5 * (bias**2).sum()
    for gradient in torch.autograd.grad(loss, (weight, bias)):
        assert float(gradient.abs().max()) < 1e-2


def test_matrix_spread_wide_for_strong_mixing_and_narrow_for_none() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2000, 3, generator=generator, dtype=torch.float64)
    mixing = torch.tensor([[0.6, 1.0, 0.0], [0.0, 0.6, 1.0], [1.0, 0.0, 0.6]]).double()
    mixed = torch.multinomial((logits @ mixing.T).softmax(1), 1, generator=generator).squeeze(1)
    plain = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    assert MatrixScaling().fit(logits, mixed).spread_ >= 0.3
    assert MatrixScaling().fit(logits, plain).spread_ <= 0.03


def test_dirichlet_shifted_rows_change_nothing() -> None:
    logits, labels = golden()
    found = DirichletCalibration(spreads=(0.1,)).fit(logits, labels)
    shift = torch.arange(24, dtype=torch.float64).unsqueeze(1)
    torch.testing.assert_close(found.log_probs(logits + shift), found.log_probs(logits))


@pytest.mark.parametrize("strength", [1e-9, 0.5, 20.0])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_fit_logistic_ends_where_the_penalised_loss_is_flat(strength: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3, 80, 2, generator=generator, dtype=torch.float64)
    answers = torch.rand(3, 80, generator=generator, dtype=torch.float64)
    weights = torch.rand(80, generator=generator, dtype=torch.float64) + 0.1
    # From far away Newton's first step is too long for some of the three, and must be halved for them alone.
    centre = scale * torch.tensor([[0.2, -0.1], [1.0, 0.5], [-0.7, 0.3]], dtype=torch.float64)
    theta = fit_logistic(features, answers, weights, strength=strength, centre=centre).requires_grad_()
    score = (features * theta.unsqueeze(1)).sum(2)
    nll = binary_cross_entropy_with_logits(score, answers, reduction="none")
    loss = (nll * weights).sum() + 0.5 * strength * ((theta - centre) ** 2).sum()
    (slope,) = torch.autograd.grad(loss, theta)
    # The search ends at a gain of 1e-12 of the loss, near which the slope is its square root.
    assert slope.abs().max() < 1e-4


@pytest.mark.parametrize("negative", [0, 1])
def test_beta_curve_that_would_bend_back_is_fitted_without_that_side(negative: int) -> None:
    odds = torch.from_numpy(np.random.default_rng(0).normal(scale=2.0, size=4000))
    probs, truth = odds.sigmoid(), [1.5, 1.5]
    truth[negative] = -0.4
    chance = torch.sigmoid(truth[0] * probs.log() - truth[1] * (1 - probs).log())
    labels = torch.bernoulli(chance, generator=torch.Generator().manual_seed(0)).long()
    found = BetaCalibration().fit(torch.stack([torch.zeros_like(odds), odds], 1), labels)
    assert float(found.weight_[0, negative]) == 0
    assert float(found.weight_[0, 1 - negative]) > 0.5
