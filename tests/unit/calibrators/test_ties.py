"""Scores that repeat themselves, as those of forests and rounded ones do, are repaired alike however they were rounded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant.calibrators import CALIBRATORS, BayesianBinning
from calibrant.calibrators.ties import edges_behind, just_above, merge_ties
from calibrant.core.records import Predictions

STEPS = ["histogram", "bbq", "top_label_binning", "isotonic", "joint_isotonic", "spline"]


def tenths(num_classes: int) -> Predictions:
    """Shares of ten votes, as of a forest of ten trees, none of them leading together with another."""
    rng = np.random.default_rng(3)
    votes = rng.multinomial(10, rng.dirichlet(np.ones(num_classes), size=3000))
    top = np.sort(votes, 1)
    votes = votes[top[:, -1] > top[:, -2]]
    labels = [rng.choice(num_classes, p=row) for row in votes**2 / (votes**2).sum(1, keepdims=True)]
    return Predictions(probs=votes / 10, labels=labels)


@pytest.mark.filterwarnings("ignore::calibrant.calibrators.CalibrationWarning")
@pytest.mark.parametrize("num_classes", [2, 3, 5])
@pytest.mark.parametrize("name", STEPS)
def test_equal_scores_are_repaired_alike_whatever_their_rounding(name: str, num_classes: int) -> None:
    votes = tenths(num_classes)
    calibrator = CALIBRATORS[name]().fit(votes)
    repaired = calibrator.predict_proba(votes.logits)
    shift = torch.linspace(-3, 3, len(votes), dtype=torch.float64).unsqueeze(1)
    assert torch.allclose(calibrator.predict_proba(votes.logits + shift), repaired, atol=1e-9)
    single = calibrator.wrap(torch.nn.Identity())((votes.logits + shift).float()).exp().double()
    assert torch.allclose(single, repaired, atol=1e-5)


@pytest.mark.filterwarnings("ignore::calibrant.calibrators.CalibrationWarning")
def test_bbq_of_two_values_tells_them_apart() -> None:
    labels = torch.arange(200) % 4
    logits = 20 * torch.nn.functional.one_hot(labels, 4).double()
    assert float(BayesianBinning().fit(logits, labels).predict_proba(logits).gather(1, labels.unsqueeze(1)).min()) > 0.99


def test_histogram_score_on_an_edge_is_in_the_bin_below() -> None:
    calibrator = CALIBRATORS["histogram"](n_bins=10)
    calibrator.fit(tenths(2))
    probs = np.array([0.3, 0.1 + 0.2, 0.3 * (1 - 1e-7), 0.3 * (1 + 1e-7)])
    one = calibrator.predict_proba(np.log(np.stack([1 - probs, probs], 1)))[:, 1]
    assert one == pytest.approx(one[0], abs=1e-8)


def test_merge_ties_keeps_values_that_lie_dense_everywhere() -> None:
    dense = np.sort(np.random.default_rng(0).uniform(0.9, 0.901, 100_000))
    kept = merge_ties(dense)
    assert len(np.unique(kept)) > 90_000
    assert np.abs(kept - dense).max() < 2e-7


def test_merge_ties_zeros_are_one_value_and_tiny_ones_are_not() -> None:
    assert merge_ties(np.array([1e-300, 2.0**-150, 0.0, 1e-30, 2e-30])).tolist() == [2.0**-150] * 3 + [1e-30, 2e-30]


def test_merge_ties_next_to_one_keeps_what_logits_tell_apart() -> None:
    sure = 1 - np.array([1e-6, 1e-7, 1e-12])
    assert merge_ties(sure).tolist() == sure.tolist()


def test_edges_lie_behind_a_value_and_before_the_next() -> None:
    ordered = np.array([0.2, 0.2 + 1e-9, 0.4])
    first, second = edges_behind(ordered, np.array([1, 2]))
    assert ordered[0] < first < ordered[1] < second <= just_above(ordered[1:2])[0] < ordered[2]
