"""Tables: piecewise maps, how the top class is kept, and scores that repeat themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline

from calibrant import Predictions
from calibrant.calibrators import CALIBRATORS, BayesianBinning, SplineCalibration, TopLabelBinning
from calibrant.calibrators.base import keep_top
from calibrant.calibrators.tables import (
    PAD,
    Outcomes,
    count_below,
    equal_mass_edges,
    interpolate,
    merge_ties,
    mix_in,
    replace_confidence,
    step_values,
)

pytestmark = pytest.mark.usefixtures("quiet")


def test_mix_in_gives_a_row_of_zeros_its_probabilities_back() -> None:
    log_probs = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log().requires_grad_()
    values = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    found = mix_in(values, log_probs)
    torch.testing.assert_close(found, log_probs)
    found.sum().backward()
    assert values.grad is not None
    assert torch.isfinite(values.grad).all()
    mixed = mix_in(torch.tensor([[0.2, 0.2, 0.4]]).double(), log_probs).exp()
    torch.testing.assert_close(mixed, torch.tensor([[0.25, 0.25, 0.5]]).double(), atol=1e-8, rtol=0)


def test_replace_confidence_scales_the_rest_and_keeps_the_top() -> None:
    log_probs = torch.tensor([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1]], dtype=torch.float64).log()
    found = keep_top(replace_confidence(log_probs, torch.tensor([0.8, 0.1]).double()), log_probs).exp()
    # The second is raised to where it ties with the runner-up: 0.75 / 1.75 each.
    expected = torch.tensor([[0.8, 0.15, 0.05], [3 / 7, 3 / 7, 1 / 7]]).double()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert torch.equal(found.argmax(1), torch.tensor([0, 0]))


@pytest.mark.parametrize("length", [1, 2, 3, 8, 9, 100])
def test_count_below_is_searchsorted_at_every_length(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    # Rounded, so that points fall on edges and edges repeat; the first row is filled up.
    table = (torch.rand(3, length, generator=generator) * 10).round().sort(1).values / 10
    table[0, length // 2 + 1 :] = PAD
    x = torch.cat([torch.rand(50, 3, generator=generator), (torch.rand(50, 3, generator=generator) * 10).round() / 10])
    assert torch.equal(count_below(x, table, torch.arange(3)), torch.searchsorted(table, x.T.contiguous()).T)


def test_interpolate_flat_and_repeated_knots() -> None:
    # Two knots at one place are a jump: up to it the lower value holds.
    knots, values = torch.tensor([0.2, 0.5, 0.5, 1.0]), torch.tensor([0.0, 0.3, 0.6, 0.6])
    x = torch.tensor([0.0, 0.35, 0.5, 0.75, 1.0])
    torch.testing.assert_close(interpolate(x, knots, values), torch.tensor([0.0, 0.15, 0.3, 0.6, 0.6]))


def test_step_values_of_a_padded_row_end_with_its_last() -> None:
    edges, values = torch.tensor([[0.5, PAD], [0.3, 0.6]]), torch.tensor([[0.1, 0.2, 0.2], [0.3, 0.4, 0.5]])
    x = torch.tensor([[1.0, 1.0], [0.5, 0.6]])
    torch.testing.assert_close(step_values(x, edges, values, torch.arange(2)), torch.tensor([[0.2, 0.5], [0.1, 0.4]]))


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
    knots, values = SplineCalibration(n_knots=5)._map(Outcomes(confidence, correct, weights.astype(float)))
    share = weights / weights.sum()
    at, gap = np.cumsum(share) - share / 2, share * (correct - confidence)
    drift, places = np.cumsum(gap) - gap / 2, np.linspace(0, 1, 5)
    # Rows that are there as often as they weigh.
    design = CubicSpline(places, np.eye(5), bc_type="natural")(at).repeat(weights, 0)
    heights = np.linalg.lstsq(design, drift.repeat(weights), rcond=None)[0]
    slope = CubicSpline(places, heights, bc_type="natural")(np.interp(knots, confidence, at), 1)
    assert values == pytest.approx(np.clip(knots + slope, 0, 1), abs=1e-8)


def test_equal_mass_edges_weights_move_the_cut() -> None:
    probs = np.array([0.1, 0.2, 0.3, 0.4])
    assert equal_mass_edges(probs, np.ones(4), 2).round(4).tolist() == [0.2]
    assert equal_mass_edges(probs, np.array([3.0, 1.0, 1.0, 1.0]), 2).round(4).tolist() == [0.1]
    assert equal_mass_edges(np.full(4, 0.3), np.ones(4), 3).tolist() == []


def test_bbq_ties_are_never_split() -> None:
    for size in range(2, 6):
        assert equal_mass_edges(np.array([0.5] * 6 + [0.9] * 2), np.ones(8), size).round(4).tolist() == [0.5]
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
    assert len(np.unique(merge_ties(dense)[0])) > 90_000
    assert np.abs(merge_ties(dense)[0] - dense).max() < 2e-7
    merged, order = merge_ties(np.array([1e-300, 2.0**-150, 0.0, 2e-30, 1e-30]))
    assert merged.tolist() == [2.0**-150] * 3 + [1e-30, 2e-30]
    assert order.tolist() == [2, 0, 1, 4, 3]
    sure = 1 - np.array([1e-6, 1e-7, 1e-12])
    assert merge_ties(sure)[0].tolist() == sure.tolist()
