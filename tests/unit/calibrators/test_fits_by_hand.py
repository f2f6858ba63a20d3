"""Fits of which a person can say the result: ties, rare classes, weights, and what is left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant.calibrators import BetaCalibration, TopLabelBinning
from calibrant.calibrators.affine import AffineProblem
from calibrant.calibrators.fit_data import FitData, check_fit_input
from calibrant.calibrators.isotonic import joint_log_probs
from calibrant.calibrators.spline import recalibrate
from calibrant.calibrators.temperature import find_temperature_by_ece


def test_find_temperature_by_ece_takes_the_first_of_equal_ones() -> None:
    # Equal logits are uniform at every temperature.
    data = FitData(torch.zeros(40, 4), torch.arange(40) % 4, torch.ones(40, dtype=torch.float64))
    assert find_temperature_by_ece(data, n_bins=15) == 0.1


def test_fit_data_leaves_out_examples_of_weight_zero() -> None:
    logits = torch.arange(8.0).view(4, 2)
    data = check_fit_input(logits, [0, 1, 0, 1], [2.0, 0.0, 1.0, 0.0], where="fit")
    assert data.logits.equal(logits[[0, 2]])
    assert data.labels.tolist() == [0, 0]
    assert data.weights.tolist() == pytest.approx([4 / 3, 2 / 3])


def test_top_label_binning_gives_a_class_that_is_rarely_predicted_the_bins_of_all(quiet: None) -> None:
    # All sure to 0.9: 80 of 100 right where class 0 is predicted, 60 of 100 where class 1 is, none of 5 where class 2 is.
    predicted = torch.tensor([0] * 100 + [1] * 100 + [2] * 5)
    probs = torch.full((205, 3), 0.05, dtype=torch.float64).scatter_(1, predicted.unsqueeze(1), 0.9)
    labels = torch.cat([predicted[:80], predicted[80:100] + 1, predicted[100:160], predicted[160:200] - 1, predicted[200:] - 1])
    found = TopLabelBinning(points_per_bin=50).fit(probs.log(), labels).predict_proba(probs[[0, 100, 200]].log())
    assert np.asarray(found).max(1) == pytest.approx([0.8, 0.6, 140 / 205])


def test_beta_calibration_fits_again_without_the_coefficient_that_is_negative(quiet: None) -> None:
    # Where the class is as good as certain it is rarer again: the best free curve bends down at 1.
    p = torch.linspace(0.02, 0.98, 400, dtype=torch.float64)
    chance = torch.sigmoid(2 * p.log() + 1.5 * (1 - p).log() + 3.5)
    logits = torch.stack([(1 - p).log(), p.log()], 1).repeat(2, 1)
    labels = torch.tensor([1] * 400 + [0] * 400)
    fitted = BetaCalibration().fit(logits, labels, weights=torch.cat([chance, 1 - chance]))
    rising, bending = fitted.weight_[0].tolist()
    assert bending == 0
    assert rising > 0.1


def test_affine_penalty_off_the_diagonal_is_a_mean_over_its_entries() -> None:
    inputs, labels = torch.zeros(2, 3, dtype=torch.float64), torch.tensor([0, 2])
    ones = torch.ones(2, dtype=torch.float64)
    problem = AffineProblem(inputs, labels, ones, diagonal=False, ridge=1.0, off_diagonal=6.0, bias=0.0)
    weight = np.eye(3)
    weight[0, 1], weight[2, 0] = 0.5, -2.0
    value, slope = problem.loss(np.concatenate([weight.flatten(), np.zeros(3)]))
    # Six entries, of which two are not zero; inputs of zero leave the NLL at log 3.
    assert value == pytest.approx(np.log(3) + 6 * (0.25 + 4) / 6)
    assert slope[:9].reshape(3, 3) == pytest.approx(np.array([[0, 1, 0], [0, 0, 0], [-4, 0, 0]]))


def test_joint_isotonic_map_of_equal_steps_keeps_hardly_anything_of_the_probabilities() -> None:
    logits = torch.tensor([[3.0, 0.0, -1.0]], dtype=torch.float64)
    flat = joint_log_probs(logits, torch.tensor([0.0, 1.0]).double(), torch.tensor([0.5, 0.5]).double()).exp()
    torch.testing.assert_close(flat, torch.full_like(flat, 1 / 3), atol=2e-6, rtol=0)
    # But their order.
    assert flat[0, 0] > flat[0, 1] > flat[0, 2]


def test_spline_of_weighted_examples_is_the_least_squares_fit_that_counts_each_by_its_weight() -> None:
    from scipy.interpolate import CubicSpline

    rng = np.random.default_rng(0)
    confidence = np.sort(rng.uniform(0.4, 1, 300))
    correct = (rng.uniform(size=300) < confidence**2).astype(float)
    weights = rng.integers(1, 6, 300)
    knots, values = recalibrate(confidence, correct, weights.astype(float), n_knots=5)
    share = weights / weights.sum()
    at, gap = np.cumsum(share) - share / 2, share * (correct - confidence)
    drift, places = np.cumsum(gap) - gap / 2, np.linspace(0, 1, 5)
    # Rows that are there as often as they weigh.
    design = CubicSpline(places, np.eye(5), bc_type="natural")(at).repeat(weights, 0)
    heights = np.linalg.lstsq(design, drift.repeat(weights), rcond=None)[0]
    slope = CubicSpline(places, heights, bc_type="natural")(np.interp(knots, confidence, at), 1)
    assert values == pytest.approx(np.clip(knots + slope, 0, 1), abs=1e-8)
