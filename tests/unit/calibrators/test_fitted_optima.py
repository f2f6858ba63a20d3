"""What the fits with priors and fall-backs minimise: at what they found, the objective of their docstring is flat."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from calibrant.calibrators import (
    BetaCalibration,
    IsotonicCalibration,
    PlattScaling,
    TemperatureScaling,
    TopLabelBinning,
    VectorScaling,
)
from calibrant.calibrators.histogram import bin_values, equal_mass_edges
from calibrant.calibrators.one_vs_rest import Question
from calibrant.data.synthetic import synthetic_predictions

pytestmark = pytest.mark.usefixtures("quiet")


def test_platt_of_two_classes_fits_smoothed_targets() -> None:
    given, _ = synthetic_predictions(30, 2, temperature=2.0, hardness=0.5, split="val")
    found = PlattScaling().fit(given)
    odds = (given.logits[:, 1] - given.logits[:, 0]).double()
    hits = int(given.labels.sum())
    targets = torch.where(given.labels == 1, (hits + 1) / (hits + 2), 1 / (30 - hits + 2)).double()
    slope, intercept = found.slope_.clone().requires_grad_(), found.intercept_.clone().requires_grad_()
    loss = binary_cross_entropy_with_logits(slope * odds + intercept, targets, reduction="sum")
    for gradient in torch.autograd.grad(loss, (slope, intercept)):
        assert float(gradient.abs()) < 1e-4


def test_vector_prior_is_that_of_its_docstring() -> None:
    given, _ = synthetic_predictions(60, 3, temperature=2.0, hardness=0.5, split="val")
    found, temperature = VectorScaling(ridge=5.0).fit(given), TemperatureScaling().fit(given).temperature_
    weight, bias = found.weight_.clone().requires_grad_(), found.bias_.clone().requires_grad_()
    nll = torch.nn.functional.cross_entropy(given.logits.double() * weight + bias, given.labels, reduction="sum")
    loss = nll + 2.5 * ((weight * temperature - 1) ** 2).sum() + 2.5 * (bias**2).sum()
    for gradient in torch.autograd.grad(loss, (weight, bias)):
        assert float(gradient.abs().max()) < 1e-2


@pytest.mark.parametrize("negative", [0, 1])
def test_beta_curve_that_would_bend_back_is_fitted_without_that_side(negative: int) -> None:
    rng = np.random.default_rng(0)
    odds = torch.from_numpy(rng.normal(scale=2.0, size=4000))
    probs = odds.sigmoid()
    truth = [1.5, 1.5]
    truth[negative] = -0.4
    labels = torch.bernoulli(
        torch.sigmoid(truth[0] * probs.log() - truth[1] * (1 - probs).log()), generator=torch.Generator().manual_seed(0)
    ).long()
    found = BetaCalibration().fit(torch.stack([torch.zeros_like(odds), odds], 1), labels)
    assert float(found.weight_[0, negative]) == 0
    assert float(found.weight_[0, 1 - negative]) > 0.5


def test_top_label_binning_class_that_is_seldom_predicted_gets_the_bins_of_all() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 3, generator=generator).double()
    logits[30:, 2] = -5
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    confidence, predicted = logits.softmax(1).max(1)
    assert 0 < int((predicted == 2).sum()) < 50
    found = TopLabelBinning(points_per_bin=50).fit(logits, labels)
    question = Question(confidence.numpy(), (predicted == labels).double().numpy(), np.ones(400))
    edges = equal_mass_edges(question.probs, question.weights, 8)
    inner = found.edges_[2][found.edges_[2] < 1].numpy()
    np.testing.assert_allclose(inner, edges)
    np.testing.assert_allclose(found.values_[2, : len(edges) + 1].numpy(), bin_values(question, edges))


@pytest.mark.parametrize("kind", [TemperatureScaling, IsotonicCalibration])
def test_layer_in_half_precision_keeps_the_precision_of_what_was_learned(
    kind: type[TemperatureScaling | IsotonicCalibration],
) -> None:
    given, _ = synthetic_predictions(300, 3, temperature=2.0, split="val")
    layer = kind().fit(given).as_layer()
    before = {name: value.clone() for name, value in layer.named_buffers()}
    for name, value in layer.half().named_buffers():
        assert value.dtype == kind.layer_dtype
        assert torch.equal(value, before[name])
