"""One question a class: curves, tables, and scores that repeat themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from calibrant import Predictions
from calibrant.calibrators import CALIBRATORS, BayesianBinning, BetaCalibration, PlattScaling
from calibrant.calibrators.per_class import (
    Question,
    equal_mass_edges,
    equal_mass_histograms,
    fit_logistic,
    lines_log_probs,
    merge_ties,
)
from calibrant.data.synthetic import synthetic_predictions

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("strength", [1e-9, 0.5, 20.0])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_fit_logistic_ends_where_the_penalised_loss_is_flat(strength: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3, 80, 2, generator=generator, dtype=torch.float64)
    answers = torch.rand(3, 80, generator=generator, dtype=torch.float64)
    weights = torch.rand(80, generator=generator, dtype=torch.float64) + 0.1
    # From far away Newton's first step is too long for some of the three, and must be halved for them alone.
    centre = scale * torch.tensor([[0.2, -0.1], [1.0, 0.5], [-0.7, 0.3]], dtype=torch.float64)
    ridge = torch.tensor([[1.0, 2.0], [3.0, 0.5], [1.0, 1.0]], dtype=torch.float64) * strength
    theta = fit_logistic(features, answers, weights, ridge=ridge, centre=centre).requires_grad_()
    score = (features * theta.unsqueeze(1)).sum(2)
    nll = binary_cross_entropy_with_logits(score, answers, reduction="none")
    loss = (nll * weights).sum() + 0.5 * (ridge * (theta - centre) ** 2).sum()
    (slope,) = torch.autograd.grad(loss, theta)
    # The search ends at a gain of 1e-12 of the loss, near which the slope is its square root.
    assert slope.abs().max() < 1e-4


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


def test_beta_decreasing_curve_is_cut_to_a_flat_one() -> None:
    given, _ = synthetic_predictions(1000, 2, temperature=1.0, split="val")
    found = BetaCalibration().fit(given.logits, 1 - given.labels)
    assert bool((found.weight_ >= 0).all())
    probs = found.predict_proba(given.logits[:50] + 1e-3)[:, 1]
    assert float(probs.max() - probs.min()) < 0.05


def test_joint_isotonic_map_of_equal_steps_keeps_hardly_anything_but_the_order() -> None:
    logits = torch.tensor([[3.0, 0.0, -1.0]], dtype=torch.float64)
    flat = lines_log_probs(logits, torch.tensor([0.0, 1.0]).double(), torch.tensor([0.5, 0.5]).double()).exp()
    torch.testing.assert_close(flat, torch.full_like(flat, 1 / 3), atol=2e-6, rtol=0)
    assert flat[0, 0] > flat[0, 1] > flat[0, 2]


def test_equal_mass_edges_weights_move_the_cut() -> None:
    probs = np.array([0.1, 0.2, 0.3, 0.4])
    assert equal_mass_edges(probs, np.ones(4), 2).round(4).tolist() == [0.2]
    assert equal_mass_edges(probs, np.array([3.0, 1.0, 1.0, 1.0]), 2).round(4).tolist() == [0.1]
    assert equal_mass_edges(np.full(4, 0.3), np.ones(4), 3).tolist() == []


def test_bbq_one_bin_has_the_beta_binomial_evidence() -> None:
    question = Question(np.array([0.2, 0.4, 0.6]), np.array([0.0, 1.0, 1.0]), np.ones(3))
    _, values, log_evidence = equal_mass_histograms(question, np.array([1]))
    # The middle is 1/2, so the prior is uniform: B(3, 2) / B(1, 1) = 2! 1! / 4! = 1/12.
    assert np.exp(log_evidence) == pytest.approx([1 / 12])
    assert values.tolist() == pytest.approx([(2 + (1.0 + 0.5) / 3) / 4])


def test_bbq_ties_are_never_split() -> None:
    question = Question(np.array([0.5] * 6 + [0.9] * 2), np.array([1.0, 0.0] * 4), np.ones(8))
    edges, _, _ = equal_mass_histograms(question, np.arange(1, 6))
    assert set(edges.round(4)) <= {0.5, 1.0}
    labels = torch.arange(200) % 4
    logits = 20 * torch.nn.functional.one_hot(labels, 4).double()
    assert float(BayesianBinning().fit(logits, labels).predict_proba(logits).gather(1, labels.unsqueeze(1)).min()) > 0.99


def tenths(num_classes: int) -> Predictions:
    """Shares of ten votes, as of a forest of ten trees, none of them leading together with another."""
    rng = np.random.default_rng(3)
    votes = rng.multinomial(10, rng.dirichlet(np.ones(num_classes), size=3000))
    top = np.sort(votes, 1)
    votes = votes[top[:, -1] > top[:, -2]]
    labels = [rng.choice(num_classes, p=row) for row in votes**2 / (votes**2).sum(1, keepdims=True)]
    return Predictions(probs=votes / 10, labels=labels)


@pytest.mark.parametrize("num_classes", [2, 5])
@pytest.mark.parametrize("name", ["histogram", "bbq", "top_label_binning", "isotonic", "joint_isotonic", "spline"])
def test_equal_scores_are_repaired_alike_whatever_their_rounding(name: str, num_classes: int) -> None:
    votes = tenths(num_classes)
    calibrator = CALIBRATORS[name]().fit(votes)
    repaired = calibrator.predict_proba(votes.logits)
    shift = torch.linspace(-3, 3, len(votes), dtype=torch.float64).unsqueeze(1)
    assert torch.allclose(calibrator.predict_proba(votes.logits + shift), repaired, atol=1e-9)
    single = calibrator.wrap(torch.nn.Identity())((votes.logits + shift).float()).exp().double()
    assert torch.allclose(single, repaired, atol=1e-5)


def test_histogram_score_on_an_edge_is_in_the_bin_below() -> None:
    calibrator = CALIBRATORS["histogram"](n_bins=10)
    calibrator.fit(tenths(2))
    probs = np.array([0.3, 0.1 + 0.2, 0.3 * (1 - 1e-7), 0.3 * (1 + 1e-7)])
    one = calibrator.predict_proba(np.log(np.stack([1 - probs, probs], 1)))[:, 1]
    assert one == pytest.approx(one[0], abs=1e-8)


def test_merge_ties_joins_rounding_alone() -> None:
    dense = np.sort(np.random.default_rng(0).uniform(0.9, 0.901, 100_000))
    assert len(np.unique(merge_ties(dense))) > 90_000
    assert np.abs(merge_ties(dense) - dense).max() < 2e-7
    assert merge_ties(np.array([1e-300, 2.0**-150, 0.0, 1e-30, 2e-30])).tolist() == [2.0**-150] * 3 + [1e-30, 2e-30]
    sure = 1 - np.array([1e-6, 1e-7, 1e-12])
    assert merge_ties(sure).tolist() == sure.tolist()
