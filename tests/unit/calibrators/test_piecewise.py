"""Maps made of pieces, and how the top class is kept."""

from __future__ import annotations

import pytest
import torch

from calibrant.calibrators.log_space import keep_top
from calibrant.calibrators.piecewise import PAD, count_below, interpolate_rows, lookup_rows, own_row


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 9, 100])
def test_count_below_is_searchsorted_at_every_length(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    # Rounded, so that points fall on edges and edges repeat; the first row is filled up.
    table = (torch.rand(3, length, generator=generator) * 10).round().sort(1).values / 10
    table[0, length // 2 + 1 :] = PAD
    x = torch.cat([torch.rand(50, 3, generator=generator), (torch.rand(50, 3, generator=generator) * 10).round() / 10])
    expected = torch.searchsorted(table, x.T.contiguous()).T
    assert torch.equal(count_below(x, table, own_row(x)), expected)


def test_count_below_row_of_each_point_is_its_own() -> None:
    table = torch.tensor([[0.1, 0.2], [0.8, 0.9]])
    found = count_below(torch.tensor([0.5, 0.5, 0.85]), table, torch.tensor([0, 1, 1]))
    assert found.tolist() == [2, 0, 1]


def test_interpolate_rows_flat_and_repeated_knots() -> None:
    # Two knots at one place are a jump: up to it the lower value holds.
    knots, values = torch.tensor([[0.2, 0.5, 0.5, 1.0]]), torch.tensor([[0.0, 0.3, 0.6, 0.6]])
    x = torch.tensor([0.0, 0.35, 0.5, 0.75, 1.0])
    torch.testing.assert_close(interpolate_rows(x, knots, values, torch.tensor(0)), torch.tensor([0.0, 0.15, 0.3, 0.6, 0.6]))


def test_lookup_rows_padded_row_ends_with_its_last_value() -> None:
    edges, values = torch.tensor([[0.5, PAD], [0.3, 0.6]]), torch.tensor([[0.1, 0.2, 0.2], [0.3, 0.4, 0.5]])
    x = torch.tensor([[1.0, 1.0], [0.5, 0.6]])
    torch.testing.assert_close(lookup_rows(x, edges, values, own_row(x)), torch.tensor([[0.2, 0.5], [0.1, 0.4]]))


def test_keep_top_changes_only_rows_whose_top_class_would_be_lost() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [2.0, 2.0, 0.0]], dtype=torch.float64)
    log_probs = torch.tensor([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2], [0.4, 0.4, 0.2]], dtype=torch.float64).log()
    found = keep_top(log_probs, logits)
    assert torch.equal(found[[0, 2]], log_probs[[0, 2]])
    # ln p_1 - ln p_0 is 2e-6, and the row sums to one.
    torch.testing.assert_close(found[1, 1] - found[1, 0], torch.tensor(2e-6, dtype=torch.float64), atol=1e-12, rtol=0)
    assert float(found[1].exp().sum()) == pytest.approx(1, abs=1e-12)
    assert found[1].float().argmax() == 1


def test_keep_top_survives_single_precision_with_many_classes() -> None:
    logits = torch.zeros(1, 50_000, dtype=torch.float64)
    logits[0, -1] = 1e-9
    flat = torch.full_like(logits, 1 / 50_000).log()
    assert int(keep_top(flat, logits).float().argmax()) == 49_999
    assert int(keep_top(flat, logits).exp().float().argmax()) == 49_999
