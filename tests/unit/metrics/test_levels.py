from __future__ import annotations

import pytest
import torch
from torch import Tensor

from calibrant.core.binning import TopLabel, cell_index, cells_of, equal_width_index, top_label
from calibrant.metrics import METRICS
from calibrant.metrics.levels import (
    Levels,
    ace_of_levels,
    aurc_of_levels,
    debiased_of_levels,
    ece_of_levels,
    levels_of,
    mce_of_levels,
    mmce_of_levels,
    sece_of_levels,
    smece_of_levels,
)
from calibrant.metrics.table import score_metrics
from helpers import mixed_gaps

OF_LEVELS = {key: metric for key, metric in score_metrics().items() if metric.of_levels is not None}


def top_of(n: int = 3000) -> TopLabel:
    return top_label(*mixed_gaps(n), where="test")


def some_levels(n: int = 3000, *, n_bins: int = 15, size: float | None = None) -> Levels:
    return levels_of(cells_of(top_of(n)), size=size or n, n_bins=n_bins)


def test_levels_of_three_examples_are_the_examples() -> None:
    confidence, correct = torch.tensor([0.9, 0.5, 0.7]).double(), torch.tensor([1.0, 0.0, 1.0]).double()
    levels = levels_of(cells_of(TopLabel(confidence, correct)), size=3, n_bins=15)
    torch.testing.assert_close(levels.confidence, torch.tensor([0.5, 0.7, 0.9], dtype=torch.float64))
    assert levels.accuracy.tolist() == [0, 1, 1]
    assert levels.share.tolist() == pytest.approx([1 / 3] * 3)
    assert levels.bin_index.tolist() == [7, 10, 13]


@pytest.mark.parametrize("n_bins", [7, 15, 100])
def test_levels_fill_each_bin_as_the_examples_do(n_bins: int) -> None:
    levels = some_levels(n_bins=n_bins)
    shares = torch.bincount(levels.bin_index, weights=levels.share, minlength=n_bins)
    expected = torch.bincount(equal_width_index(top_of().confidence, n_bins), minlength=n_bins).double() / 3000
    # A number of bins that does not divide 3,000 cuts through cells, each of which holds few examples.
    torch.testing.assert_close(shares, expected, rtol=0, atol=1e-12 if 3000 % n_bins == 0 else 4 / 3000)


def test_levels_last_cell_finds_the_level_of_every_example() -> None:
    top, levels = top_of(), some_levels()
    level = torch.searchsorted(levels.last_cell, cell_index(top.confidence))
    mean = torch.bincount(level, weights=top.confidence) / torch.bincount(level)
    torch.testing.assert_close(mean, levels.confidence, rtol=1e-12, atol=0)


@pytest.mark.parametrize("key", OF_LEVELS)
def test_metric_of_levels_is_near_the_metric_of_the_examples(key: str) -> None:
    probs, labels = mixed_gaps(3000)
    levels = some_levels()
    of_levels = OF_LEVELS[key].of_levels
    assert of_levels is not None
    # Exact where bins or means decide; the others see confidence by levels, and the debiased error is a small difference.
    near = {"ace": 0.02, "sece": 0.01, "smece": 0.02, "mmce": 0.01, "ece_debiased": 0.05, "aurc": 0.01}
    value = float(of_levels(levels, *levels.row(levels.accuracy)))
    assert value == pytest.approx(float(OF_LEVELS[key](probs, labels)), rel=near.get(key, 1e-9))


@pytest.mark.parametrize("key", OF_LEVELS)
def test_metric_of_levels_takes_rows_one_by_one(key: str) -> None:
    levels, generator = some_levels(1000), torch.Generator().manual_seed(0)
    mass = levels.share * torch.rand(5, len(levels), generator=generator, dtype=torch.float64)
    mass = mass / mass.sum(1, keepdim=True)
    right = mass * torch.rand(5, len(levels), generator=generator, dtype=torch.float64)
    of_levels = OF_LEVELS[key].of_levels
    assert of_levels is not None
    alone = torch.cat([of_levels(levels, mass[k : k + 1], right[k : k + 1]) for k in range(5)])
    torch.testing.assert_close(of_levels(levels, mass, right), alone, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("metric", [ece_of_levels, mce_of_levels, ace_of_levels, smece_of_levels, mmce_of_levels])
def test_calibrated_row_has_no_error(metric: object) -> None:
    levels = some_levels(1000)
    assert float(metric(levels, *levels.row(levels.confidence))) == pytest.approx(0, abs=1e-7)  # type: ignore[operator]


def test_smece_of_one_sign_is_the_mean_gap_at_every_size() -> None:
    # A residual of one sign keeps its integral under smoothing; rows of very different size need other rungs of the ladder.
    levels = some_levels(1000)
    gaps = torch.tensor([[1e-6], [1e-4], [0.01], [0.1], [0.3]], dtype=torch.float64)
    found = smece_of_levels(levels, *levels.row(levels.confidence - gaps))
    torch.testing.assert_close(found, gaps.squeeze(1), rtol=1e-4, atol=1e-7)


def test_debiased_of_two_examples_a_bin_is_the_exact_one() -> None:
    levels, expected = some_levels(30), float(METRICS["ece_debiased"](top_of(30)))
    assert float(debiased_of_levels(levels, *levels.row(levels.accuracy))) == pytest.approx(expected, rel=1e-9)
    assert expected > 0


def by_hand() -> tuple[Levels, Tensor, Tensor]:
    """Two levels of half of the examples each: 0.6 wrong, 0.9 right."""
    levels = levels_of(
        cells_of(TopLabel(torch.tensor([0.9, 0.6]).double(), torch.tensor([1.0, 0.0]).double())), size=2, n_bins=15
    )
    return levels, *levels.row(levels.accuracy)


def test_simple_metrics_of_two_levels_by_hand() -> None:
    given = by_hand()
    assert float(ece_of_levels(*given)) == pytest.approx((0.6 + 0.1) / 2)
    assert float(mce_of_levels(*given)) == pytest.approx(0.6)
    # The surer half is right: risk 0, then (0.5 / 2) / (0.5 + 0.5 / 2) in the middle of the other half.
    assert float(aurc_of_levels(*given)) == pytest.approx(0.5 * 0.25 / 0.75)
    top = TopLabel(torch.tensor([0.9, 0.6]).double(), torch.tensor([1.0, 0.0]).double())
    assert float(sece_of_levels(*given)) == pytest.approx(float(METRICS["sece"](top)))
    assert float(mmce_of_levels(*given)) == pytest.approx(float(METRICS["mmce"](top)))
    assert float(smece_of_levels(*given)) == pytest.approx(float(METRICS["smece"](top)), rel=0.03)
