"""Log space: what saturated logits keep, and how the top class stays."""

from __future__ import annotations

import math

import pytest
import torch

from calibrant.calibrators.fit_data import floor_logits, keep_top, log_complements, log_odds
from helpers import golden


def test_floor_logits_replaces_only_minus_infinity_below_the_rest() -> None:
    floored = floor_logits(torch.tensor([[1.0, -math.inf, 0.0], [0.0, -500.0, -math.inf]]))
    torch.testing.assert_close(floored, torch.tensor([[1.0, -102.2789, 0.0], [0.0, -500.0, -500.0]]))


def test_log_complements_of_a_saturated_class_keep_their_digits() -> None:
    log_probs = torch.tensor([[1000.0, 0.0, 0.0]], dtype=torch.float64).log_softmax(1)
    expected = torch.tensor([[math.log(2) - 1000, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(log_complements(log_probs), expected)
    logits, _ = golden()
    torch.testing.assert_close(log_complements(logits.log_softmax(1)).exp(), 1 - logits.softmax(1))


def test_log_odds_of_two_classes_are_the_logit_difference() -> None:
    logits = torch.tensor([[3.0, 1.0], [-800.0, 900.0]], dtype=torch.float64)
    torch.testing.assert_close(log_odds(logits)[:, 1], torch.tensor([-2.0, 1700.0], dtype=torch.float64))


def test_keep_top_changes_only_rows_whose_top_class_would_be_lost() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [2.0, 2.0, 0.0]], dtype=torch.float64)
    log_probs = torch.tensor([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2], [0.4, 0.4, 0.2]], dtype=torch.float64).log()
    found = keep_top(log_probs, logits)
    assert torch.equal(found[[0, 2]], log_probs[[0, 2]])
    # ln p_1 - ln p_0 is 2e-6, and the row sums to one.
    assert float(found[1, 1] - found[1, 0]) == pytest.approx(2e-6, abs=1e-12)
    assert float(found[1].exp().sum()) == pytest.approx(1, abs=1e-12)


def test_keep_top_survives_single_precision_with_many_classes() -> None:
    logits = torch.zeros(1, 50_000, dtype=torch.float64)
    logits[0, -1] = 1e-9
    flat = torch.full_like(logits, 1 / 50_000).log()
    assert int(keep_top(flat, logits).float().argmax()) == 49_999
    assert int(keep_top(flat, logits).exp().float().argmax()) == 49_999
