"""What maps are made of: log space, pieces, and how the top class is kept."""

from __future__ import annotations

import math

import pytest
import torch

from calibrant.calibrators.maps import (
    PAD,
    count_below,
    floor_logits,
    interpolate,
    keep_top,
    log_complements,
    log_odds,
    mix_in,
    replace_confidence,
    step_values,
)
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
    found = replace_confidence(log_probs, torch.tensor([0.8, 0.1]).double()).exp()
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
