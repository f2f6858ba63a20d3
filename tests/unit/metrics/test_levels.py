from __future__ import annotations

import pytest
import torch

from calibrant.core.binning import equal_width_index
from calibrant.core.grid import grid_index, grid_of
from calibrant.core.top_label import top_label
from calibrant.metrics.levels import LADDER, Levels, levels_of, merge_bins
from helpers import mixed_gaps


def some_levels(n: int = 3000, *, n_bins: int = 15, within_bins: bool = False, size: float | None = None) -> Levels:
    top = top_label(*mixed_gaps(n), where="test")
    return levels_of(grid_of(top.confidence, top.correct), size=size or n, n_bins=n_bins, within_bins=within_bins)


def test_levels_of_three_examples_are_the_examples() -> None:
    confidence, correct = torch.tensor([0.9, 0.5, 0.7]).double(), torch.tensor([1.0, 0.0, 1.0]).double()
    levels = levels_of(grid_of(confidence, correct), size=3, n_bins=15)
    torch.testing.assert_close(levels.confidence, torch.tensor([0.5, 0.7, 0.9], dtype=torch.float64))
    assert levels.accuracy.tolist() == [0, 1, 1]
    assert levels.share.tolist() == pytest.approx([1 / 3] * 3)
    assert levels.bin_index.tolist() == [7, 10, 13]


def test_levels_keep_totals_and_are_narrow() -> None:
    top = top_label(*mixed_gaps(3000), where="test")
    levels = some_levels()
    assert float(levels.share.sum()) == pytest.approx(1)
    assert float(levels.share @ levels.confidence) == pytest.approx(float(top.confidence.mean()))
    assert float(levels.share @ levels.accuracy) == pytest.approx(float(top.correct.mean()))
    assert len(levels) < 180
    assert bool((levels.confidence.diff() > 0).all())


@pytest.mark.parametrize("n_bins", [7, 15, 100])
def test_levels_within_bins_fill_each_bin_as_the_examples_do(n_bins: int) -> None:
    top = top_label(*mixed_gaps(3000), where="test")
    levels = some_levels(n_bins=n_bins, within_bins=True)
    index = equal_width_index(top.confidence, n_bins)
    shares = torch.bincount(levels.bin_index, weights=levels.share, minlength=n_bins)
    expected = torch.bincount(index, minlength=n_bins).double() / 3000
    # A number of bins that does not divide 3,000 cuts through cells, each of which holds few examples.
    torch.testing.assert_close(shares, expected, rtol=0, atol=1e-12 if 3000 % n_bins == 0 else 4 / 3000)


def test_levels_last_cell_finds_the_level_of_every_example() -> None:
    top = top_label(*mixed_gaps(3000), where="test")
    levels = some_levels()
    level = torch.searchsorted(levels.last_cell, grid_index(top.confidence))
    mean = torch.bincount(level, weights=top.confidence) / torch.bincount(level)
    torch.testing.assert_close(mean, levels.confidence, rtol=1e-12, atol=0)


def test_levels_mass_index_puts_equal_shares_in_bins() -> None:
    levels = some_levels()
    shares = torch.bincount(levels.mass_index, weights=levels.share, minlength=15)
    # A level holds at most about a sixtieth of the examples, plus a cell.
    assert float((shares - 1 / 15).abs().max()) < 1 / 60


def test_levels_mass_cuts_follow_array_split() -> None:
    # numpy.array_split makes parts of 3, 3, 2, 2 and 2 of twelve.
    assert [round(12 * float(c)) for c in some_levels(n_bins=5, size=12).mass_cuts] == [0, 3, 6, 8, 10, 12]


def test_levels_mass_cuts_leave_out_bins_without_an_example() -> None:
    # Twelve examples fill twelve of any number of bins; resamples times bins are held at once.
    assert [round(12 * float(c)) for c in some_levels(n_bins=100_000, size=12).mass_cuts] == list(range(13))


def test_levels_one_in_each_bin_are_not_multiplied_by_a_matrix() -> None:
    fine = some_levels(within_bins=True)
    merged = merge_bins(fine)
    values = torch.rand(3, len(fine), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert merged.in_bin is None
    expected = torch.stack([values[:, fine.bin_index == b].sum(1) for b in merged.bin_index.tolist()], dim=1)
    torch.testing.assert_close(fine.sum_by_bin(values), expected)
    torch.testing.assert_close(merged.sum_by_bin(expected), expected, rtol=0, atol=0)


def test_levels_smoothers_spread_all_of_a_residual() -> None:
    levels = some_levels()
    assert levels.smoothers.shape[:2] == (len(LADDER), len(levels))
    torch.testing.assert_close(levels.smoothers.sum(-1), torch.ones(len(LADDER), len(levels)), rtol=0, atol=1e-5)
    assert float(levels.smoothers.min()) >= -1e-6


def test_merge_bins_adds_up_the_levels_of_each_bin() -> None:
    fine = some_levels(within_bins=True)
    merged = merge_bins(fine)
    assert merged.bin_index.tolist() == sorted(set(fine.bin_index.tolist()))
    for k, b in enumerate(merged.bin_index.tolist()):
        inside = fine.bin_index == b
        assert float(merged.share[k]) == pytest.approx(float(fine.share[inside].sum()))
        hits = float((fine.share * fine.accuracy)[inside].sum())
        assert float(merged.share[k] * merged.accuracy[k]) == pytest.approx(hits)


def test_levels_float32_edge_stays_in_the_bin_of_the_metric() -> None:
    # 0.2 in float32 lies above 3/15 in float64, but on the edge of its own precision, and so in the lower bin.
    value = torch.tensor([0.2, 0.8], dtype=torch.float32)
    levels = levels_of(grid_of(value.double(), torch.zeros(2).double(), dtype=torch.float32), size=2, n_bins=15)
    assert levels.bin_index[0] == 2
