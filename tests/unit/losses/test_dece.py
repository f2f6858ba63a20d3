from __future__ import annotations

import pytest
import torch

from calibrant.losses import DECE, dece_penalty
from calibrant.losses.dece import soft_bins
from calibrant.metrics.binned import expected_calibration_error
from helpers import golden, mixed_gaps, with_confidence


def test_dece_of_golden_input_has_the_golden_value() -> None:
    assert DECE()(*golden()).item() == pytest.approx(0.263221, abs=6e-7)


def test_dece_with_cold_temperatures_is_ece() -> None:
    logits, labels = golden()
    cold = dece_penalty(logits, labels, bin_temperature=1e-6, sharpness=1e8).item()
    assert cold == pytest.approx(0.268477, abs=1e-4)
    probs, labels = mixed_gaps(500)
    cold = dece_penalty(probs.log(), labels, n_bins=10, bin_temperature=1e-7, sharpness=1e9).item()
    # The memberships of 1e-6 that every bin adds are all that is left of the softness.
    assert cold == pytest.approx(expected_calibration_error(probs, labels, n_bins=10).item(), abs=2e-5)


def test_dece_of_one_bin_is_the_gap_of_the_means() -> None:
    logits, labels = with_confidence([0.9, 0.7], [1, 0])
    expected = (0.2 + 0.1) * (1 + 1e-6) / (1 + 2e-6)
    assert dece_penalty(logits, labels, n_bins=1).item() == pytest.approx(expected, rel=1e-9)


def test_soft_bins_at_an_edge_are_shared_evenly_and_between_edges_hard() -> None:
    member = soft_bins(torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64), n_bins=5, bin_temperature=1e-3)
    torch.testing.assert_close(member.sum(1), torch.ones(3, dtype=torch.float64))
    assert member[0].tolist() == pytest.approx([0.5, 0.5, 0, 0, 0], abs=1e-12)
    assert member[1].tolist() == pytest.approx([0, 0, 1, 0, 0], abs=1e-12)
    assert member[2].tolist() == pytest.approx([0, 0, 0, 0, 1], abs=1e-12)


def test_soft_bins_log_odds_of_neighbours_are_the_distance_to_their_edge() -> None:
    member = soft_bins(torch.tensor([0.53], dtype=torch.float64), n_bins=4, bin_temperature=0.1)
    odds = member.log().diff(dim=1).squeeze(0)
    assert odds.tolist() == pytest.approx([(0.53 - edge) / 0.1 for edge in (0.25, 0.5, 0.75)])


def test_dece_gradient_reaches_every_class_through_the_soft_accuracy() -> None:
    logits = torch.tensor([[1.0, 0.9, 0.8]], dtype=torch.float64, requires_grad=True)
    dece_penalty(logits, torch.tensor([1])).backward()
    assert logits.grad is not None
    assert (logits.grad != 0).all()


def test_dece_of_bad_options_raises() -> None:
    logits, labels = golden()
    with pytest.raises(ValueError, match=r"dece_penalty: `n_bins` must be a whole number >= 1, got 0"):
        dece_penalty(logits, labels, n_bins=0)
    with pytest.raises(ValueError, match=r"dece_penalty: `bin_temperature` must be a finite number > 0, got 0"):
        dece_penalty(logits, labels, bin_temperature=0)
    with pytest.raises(ValueError, match=r"`sharpness` must be a finite number > 0, got 0"):
        dece_penalty(logits, labels, sharpness=0)
