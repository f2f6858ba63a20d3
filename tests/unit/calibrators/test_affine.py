"""Vector, matrix and Dirichlet calibration: their objective, and what their penalties do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant.calibrators import DirichletCalibration, MatrixScaling, TemperatureScaling, VectorScaling
from calibrant.calibrators.affine import AffineProblem, dirichlet_log_probs, matrix_log_probs
from calibrant.calibrators.fit_data import FitData
from calibrant.data.synthetic import synthetic_predictions
from helpers import golden

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("diagonal", [True, False])
def test_affine_loss_gradient_agrees_with_differences(diagonal: bool) -> None:
    logits, labels = golden()
    weights = (torch.arange(24) % 3 + 1.0).double()
    data = FitData(logits, labels, weights / weights.mean())
    problem = AffineProblem(data, diagonal=diagonal, ridge=0.7, off_diagonal=0.3, bias=0.2)
    rng = np.random.default_rng(0)
    point = problem.start() + 0.1 * rng.normal(size=len(problem.start()))
    _, slope = problem.loss(point)
    for k in range(len(point)):
        step = np.zeros(len(point))
        step[k] = 1e-6
        assert slope[k] == pytest.approx((problem.loss(point + step)[0] - problem.loss(point - step)[0]) / 2e-6, abs=1e-8)


def test_affine_loss_is_the_nll_at_the_identity_and_a_mean_over_entries_off_the_diagonal() -> None:
    data = FitData(*golden(), torch.ones(24).double())
    problem = AffineProblem(data, diagonal=False, ridge=1.0, off_diagonal=1.0, bias=1.0)
    assert problem.loss(problem.start())[0] == pytest.approx(1.209579, rel=1e-6)
    flat = FitData(torch.zeros(2, 3, dtype=torch.float64), torch.tensor([0, 2]), torch.ones(2, dtype=torch.float64))
    problem = AffineProblem(flat, diagonal=False, ridge=1.0, off_diagonal=6.0, bias=0.0)
    weight = np.eye(3)
    weight[0, 1], weight[2, 0] = 0.5, -2.0
    value, slope = problem.loss(np.concatenate([weight.flatten(), np.zeros(3)]))
    # Six entries, of which two are not zero; inputs of zero leave the NLL at log 3.
    assert value == pytest.approx(np.log(3) + 6 * (0.25 + 4) / 6)
    assert slope[:9].reshape(3, 3) == pytest.approx(np.array([[0, 1, 0], [0, 0, 0], [-4, 0, 0]]))


def test_matrix_penalties_are_those_of_a_normal_prior() -> None:
    data = FitData(torch.zeros(50, 4), torch.zeros(50, dtype=torch.long), torch.ones(50).double())
    found = MatrixScaling()._problem(data, 0.1)
    # lambda / (C (C - 1)) = 1 / (2 N s^2), and ten times the spread for a bias: mu / C = 1 / (2 N (10 s)^2).
    assert found.off_diagonal / 12 == pytest.approx(1 / (2 * 50 * 0.01))
    assert found.bias / 4 == pytest.approx(1 / (2 * 50 * 1.0))


def test_vector_prior_is_that_of_its_docstring() -> None:
    given, _ = synthetic_predictions(60, 3, temperature=2.0, hardness=0.5, split="val")
    found, temperature = VectorScaling(ridge=5.0).fit(given), TemperatureScaling().fit(given).temperature_
    weight, bias = found.weight_.clone().requires_grad_(), found.bias_.clone().requires_grad_()
    nll = torch.nn.functional.cross_entropy(given.logits.double() * weight + bias, given.labels, reduction="sum")
    loss = nll + 2.5 * ((weight * temperature - 1) ** 2).sum() + 2.5 * (bias**2).sum()
    for gradient in torch.autograd.grad(loss, (weight, bias)):
        assert float(gradient.abs().max()) < 1e-2


def test_matrix_and_dirichlet_of_the_identity_are_the_log_softmax() -> None:
    logits, _ = golden()
    for function in (matrix_log_probs, dirichlet_log_probs):
        found = function(logits, torch.eye(5).double(), torch.zeros(5).double())
        torch.testing.assert_close(found, logits.log_softmax(1))


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
