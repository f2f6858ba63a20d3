from __future__ import annotations

import pytest
import torch

from calibrant.core.binning import equal_width_bins, top_label
from calibrant.core.grid import (
    EXACT_BINS,
    FINE_CELLS,
    NUM_CELLS,
    WIDTH_CELLS,
    fine_index,
    fold_to_bins,
    fold_to_grid,
    grid_edges,
    grid_index,
    grid_of,
)
from helpers import mixed_gaps


def hard_confidences(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    near_one = 1 - 2.0 ** -torch.linspace(8, 30, 300, dtype=torch.float64)
    edges = torch.cat([torch.arange(n + 1, dtype=torch.float64) / n for n in EXACT_BINS])
    return torch.cat([torch.rand(3000, generator=generator, dtype=torch.float64), near_one, edges]).to(dtype).double()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n_bins", EXACT_BINS)
def test_grid_folds_exactly_into_the_bins_of_every_promised_number(n_bins: int, dtype: torch.dtype) -> None:
    confidence = hard_confidences(dtype)
    correct = (torch.arange(len(confidence)) % 3 == 0).double()
    grid = grid_of(confidence, correct, dtype=dtype)
    top = top_label([[0.5, 0.5]], [0], where="test")
    bins = equal_width_bins(type(top)(confidence, correct, None, dtype), n_bins=n_bins)
    assert torch.equal(fold_to_bins(grid.weight, n_bins), bins.count)
    assert torch.allclose(fold_to_bins(grid.confidence, n_bins), bins.confidence * bins.count, rtol=1e-13)
    assert torch.allclose(fold_to_bins(grid.correct, n_bins), bins.accuracy * bins.count, rtol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_grid_index_lies_between_its_edges(dtype: torch.dtype) -> None:
    confidence = hard_confidences(dtype)
    index, edges = grid_index(confidence, dtype=dtype), grid_edges(dtype)
    assert len(edges) == NUM_CELLS + 1
    assert bool((edges.diff() > 0).all())
    inside = confidence > 0
    assert bool((confidence[inside] > edges[index[inside]]).all())
    assert bool((confidence <= edges[index + 1]).all())


def test_grid_zero_is_in_the_first_cell_and_one_in_the_last() -> None:
    assert grid_index(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist() == [0, NUM_CELLS - 1]
    assert fine_index(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist() == [0, FINE_CELLS - 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_grid_what_rounding_put_above_one_is_in_the_last_cell(dtype: torch.dtype) -> None:
    above = torch.tensor([1 + torch.finfo(dtype).eps, 1.0009765625], dtype=torch.float64)
    assert grid_index(above, dtype=dtype).tolist() == [NUM_CELLS - 1] * 2
    assert fine_index(above, dtype=dtype).tolist() == [FINE_CELLS - 1] * 2


def test_grid_of_weights_enter_every_sum() -> None:
    confidence, correct = torch.tensor([0.25, 0.75], dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    grid = grid_of(confidence, correct, torch.tensor([2.0, 4.0], dtype=torch.float64))
    assert float(grid.weight.sum()) == 6.0
    assert float(grid.confidence.sum()) == 2 * 0.25 + 4 * 0.75
    assert float(grid.correct.sum()) == 4.0


def test_grid_two_grids_add_up_to_the_grid_of_all() -> None:
    probs, labels = mixed_gaps(300)
    top = top_label(probs, labels, where="test")
    whole = grid_of(top.confidence, top.correct)
    parts = [grid_of(top.confidence[half], top.correct[half]) for half in (slice(0, 100), slice(100, None))]
    assert torch.allclose(whole.confidence, parts[0].confidence + parts[1].confidence, rtol=1e-14)
    assert torch.equal(whole.weight, parts[0].weight + parts[1].weight)


def test_fold_to_bins_number_that_does_not_divide_raises() -> None:
    with pytest.raises(ValueError, match=f"^fold_to_bins: `n_bins` must divide {WIDTH_CELLS}, got 7. Exact are: "):
        fold_to_bins(torch.zeros(NUM_CELLS), 7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_fine_cells_fold_into_the_cells_of_the_same_confidences(dtype: torch.dtype) -> None:
    confidence = hard_confidences(dtype)
    fine = torch.bincount(fine_index(confidence, dtype=dtype), minlength=FINE_CELLS).double()
    folded = fold_to_grid(fine)
    assert torch.equal(fold_to_bins(folded, 15), fold_to_bins(grid_of(confidence, confidence, dtype=dtype).weight, 15))
    assert float(folded.sum()) == len(confidence)


def test_fine_index_rises_with_confidence() -> None:
    confidence = hard_confidences(torch.float64).sort().values
    assert bool((fine_index(confidence).diff() >= 0).all())
