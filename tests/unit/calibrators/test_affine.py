"""Vector, matrix and Dirichlet calibration: their objective, and what their penalties do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant.calibrators import DirichletCalibration, MatrixScaling, TemperatureScaling, VectorScaling
from calibrant.calibrators.affine import AffineLoss, affine_log_probs, dirichlet_log_probs
from calibrant.calibrators.fit_data import FitData
from calibrant.data.synthetic import synthetic_predictions
from helpers import golden

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("shape", [(5,), (5, 5)])
def test_affine_loss_gradient_agrees_with_differences(shape: tuple[int, ...]) -> None:
    logits, labels = golden()
    weights = (torch.arange(24) % 3 + 1.0).double()
    data = FitData(logits, labels, weights / weights.mean())
    rng = np.random.default_rng(0)
    loss = AffineLoss(data, torch.from_numpy(rng.uniform(size=shape)), 0.2)
    point = np.append(loss.identity.numpy(), np.zeros(5))
    nll = torch.nn.functional.cross_entropy(logits, labels, reduction="none") @ data.weights
    assert loss(point)[0] == pytest.approx(float(nll) / 24)
    point += 0.1 * rng.normal(size=len(point))
    for k, step in enumerate(1e-6 * np.eye(len(point))):
        assert loss(point)[1][k] == pytest.approx((loss(point + step)[0] - loss(point - step)[0]) / 2e-6, abs=1e-8)


def test_matrix_penalties_are_those_of_a_normal_prior() -> None:
    # Inputs of zero leave the NLL at log 3.
    data = FitData(torch.zeros(2, 3, dtype=torch.float64), torch.tensor([0, 2]), torch.ones(2).double())
    weight = np.eye(3)
    weight[0, 1], weight[1, 1] = 0.5, 2.0
    value, _ = MatrixScaling(ridge=3.0)._loss(data, 0.1)(np.append(weight, np.zeros(3)))
    assert value == pytest.approx(np.log(3) + (0.5**2 / 0.1**2 + 3.0) / (2 * 2))
    biased, _ = MatrixScaling()._loss(data, 0.1)(np.append(np.eye(3), np.ones(3)))
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


def test_affine_and_dirichlet_of_the_identity_are_the_log_softmax() -> None:
    logits, _ = golden()
    for function, weight in (
        (affine_log_probs, torch.eye(5)),
        (affine_log_probs, torch.ones(5)),
        (dirichlet_log_probs, torch.eye(5)),
    ):
        torch.testing.assert_close(function(logits, weight.double(), torch.zeros(5).double()), logits.log_softmax(1))


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
