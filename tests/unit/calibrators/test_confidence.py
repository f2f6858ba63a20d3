"""Calibrators of the confidence: fits of which a person can say the result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline

from calibrant.calibrators import TopLabelBinning
from calibrant.calibrators.confidence import recalibrate


def test_top_label_binning_gives_a_class_that_is_rarely_predicted_the_bins_of_all(quiet: None) -> None:
    # All sure to 0.9: 80 of 100 right where class 0 is predicted, 60 of 100 where class 1 is, none of 5 where class 2 is.
    predicted = torch.tensor([0] * 100 + [1] * 100 + [2] * 5)
    probs = torch.full((205, 3), 0.05, dtype=torch.float64).scatter_(1, predicted.unsqueeze(1), 0.9)
    labels = torch.cat([predicted[:80], predicted[80:100] + 1, predicted[100:160], predicted[160:200] - 1, predicted[200:] - 1])
    found = TopLabelBinning(points_per_bin=50).fit(probs.log(), labels).predict_proba(probs[[0, 100, 200]].log())
    assert np.asarray(found).max(1) == pytest.approx([0.8, 0.6, 140 / 205])


def test_spline_of_weighted_examples_is_the_least_squares_fit_that_counts_each_by_its_weight() -> None:
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
