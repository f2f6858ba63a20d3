from __future__ import annotations

import dataclasses

import pytest
import torch

from calibrant.core.records import Predictions
from calibrant.metrics.decomposition import BrierParts, brier_decomposition
from helpers import golden, hard_gaps, mixed_gaps


def _total(parts: BrierParts) -> float:
    return parts.reliability - parts.resolution + parts.uncertainty + parts.within_variance - parts.within_covariance


@pytest.mark.parametrize("n_bins", [1, 2, 15, 100])
@pytest.mark.parametrize("data", [mixed_gaps, hard_gaps])
def test_brier_parts_add_up_to_the_score(n_bins, data):
    probs, labels = data(400)
    for weights in (None, torch.arange(400).double()):
        parts = brier_decomposition(probs, labels, n_bins=n_bins, weights=weights)
        assert _total(parts) == pytest.approx(parts.score, abs=1e-15)


def test_brier_parts_score_is_the_mean_square_of_the_top_label():
    probs, labels = mixed_gaps(300)
    confidence, predicted = probs.max(1)
    expected = (confidence - (predicted == labels).double()).square().mean().item()
    assert brier_decomposition(probs, labels).score == pytest.approx(expected, rel=1e-13)


def test_brier_parts_constant_confidence_inside_bins_is_murphys():
    # Confidence 0.9 with accuracy 1/2, confidence 0.6 with accuracy 1; overall 3/4.
    probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]], dtype=torch.float64)
    parts = brier_decomposition(probs, torch.tensor([0, 1, 0, 0]))
    assert parts.reliability == pytest.approx((0.4**2 + 0.4**2) / 2)
    assert parts.resolution == pytest.approx(0.25**2)
    assert parts.uncertainty == pytest.approx(0.75 * 0.25)
    assert parts.within_variance == pytest.approx(0, abs=1e-16)
    assert parts.within_covariance == pytest.approx(0, abs=1e-16)


def test_brier_parts_one_bin_matches_hand_computation():
    # Confidences 0.9 (right) and 0.7 (wrong) together: means 0.8 and 1/2.
    probs = torch.tensor([[0.9, 0.1], [0.7, 0.3]], dtype=torch.float64)
    parts = brier_decomposition(probs, torch.tensor([0, 1]), n_bins=1)
    values = (parts.reliability, parts.resolution, parts.uncertainty, parts.within_variance, parts.within_covariance)
    assert values == pytest.approx((0.09, 0, 0.25, 0.01, 2 * 0.05), abs=1e-15)
    assert parts.score == pytest.approx((0.01 + 0.49) / 2)


def test_brier_parts_predictions_equal_probs_and_are_frozen():
    logits, labels = golden()
    parts = brier_decomposition(Predictions(logits=logits, labels=labels))
    assert dataclasses.astuple(parts) == pytest.approx(dataclasses.astuple(brier_decomposition(logits.softmax(1), labels)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        parts.score = 0.0


def test_brier_parts_bad_number_of_bins_raises():
    with pytest.raises(ValueError, match=r"brier_decomposition: `n_bins` must be a whole number >= 1, got 0"):
        brier_decomposition(*mixed_gaps(10), n_bins=0)
