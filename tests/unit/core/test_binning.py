from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calibrant.core.binning import (
    EXACT_BINS,
    NUM_CELLS,
    TopLabel,
    bin_of_cell,
    cell_index,
    cells_of,
    class_bins_of,
    equal_mass_bins,
    equal_width_bins,
    equal_width_edges,
    equal_width_index,
    mass_cuts,
    norm_of_bins,
    reduce_top_label,
    top_label,
)
from calibrant.core.records import Bins, Predictions
from helpers import mixed_gaps

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
BIN_NUMBERS = [1, 2, 3, 5, 6, 7, 10, 11, 13, 15, 20, 25, 30, 49, 50, 64, 100, 200, 500, 1000, 3000]


def record(confidence: list[float], correct: list[int], weights: list[float] | None = None) -> TopLabel:
    weight = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    return TopLabel(torch.tensor(confidence, dtype=torch.float64), torch.tensor(correct, dtype=torch.float64), weight)


def step_up(values: Tensor) -> Tensor:
    bits = {8: torch.int64, 4: torch.int32, 2: torch.int16}[values.element_size()]
    return (values.view(bits) + 1).view(values.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n_bins", BIN_NUMBERS)
def test_index_edge_values_fall_in_the_bin_below(n_bins: int, dtype: torch.dtype) -> None:
    edges = (torch.arange(1, n_bins + 1, dtype=torch.float64) / n_bins).to(dtype)
    index = equal_width_index(edges.double(), n_bins, dtype=dtype)
    distinct = edges.double().diff() > 0
    own = torch.arange(n_bins)
    alone = torch.ones(n_bins, dtype=torch.bool)
    alone[1:] &= distinct
    alone &= edges < 1  # half precision rounds the last edges of many bins to 1, which belongs to the last bin
    alone[:-1] &= edges[:-1] < edges[-1]
    assert torch.equal(index[alone], own[alone])
    assert int(index[-1]) == n_bins - 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n_bins", BIN_NUMBERS)
def test_index_random_values_agree_with_a_search_among_the_edges(n_bins: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(n_bins)
    values = torch.rand(5000, generator=generator, dtype=torch.float64).to(dtype).double()
    found = torch.searchsorted(equal_width_edges(n_bins, dtype)[1:-1].contiguous(), values)
    assert torch.equal(equal_width_index(values, n_bins, dtype=dtype), found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n_bins", BIN_NUMBERS)
def test_index_zero_is_in_the_first_bin_and_one_in_the_last(n_bins: int, dtype: torch.dtype) -> None:
    index = equal_width_index(torch.tensor([0.0, 1.0, 1.01], dtype=torch.float64), n_bins, dtype=dtype)
    assert index.tolist() == [0, n_bins - 1, n_bins - 1]


def test_width_bins_hand_values() -> None:
    bins = equal_width_bins(record([0.1, 0.5, 0.6, 1.0], [0, 1, 0, 1]), n_bins=2)
    assert bins.edges.tolist() == [0.0, 0.5, 1.0]
    assert bins.count.tolist() == [2.0, 2.0]
    assert bins.confidence.tolist() == pytest.approx([0.3, 0.8])
    assert bins.accuracy.tolist() == [0.5, 0.5]


def test_mass_bins_sizes_are_those_of_array_split() -> None:
    bins = equal_mass_bins(record([0.1 * k for k in range(1, 8)], [0] * 7), n_bins=3)
    assert bins.count.tolist() == [3.0, 2.0, 2.0]
    assert bins.confidence.tolist() == pytest.approx([0.2, 0.45, 0.65])
    assert bins.edges.tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7])


def test_mass_bins_divided_tie_shares_its_mean_correctness() -> None:
    bins = equal_mass_bins(record([0.2, 0.5, 0.5, 0.5], [0, 1, 0, 0]), n_bins=2)
    # The cut after two examples takes one third of the tied group to the left.
    assert bins.count.tolist() == [2.0, 2.0]
    assert bins.confidence.tolist() == pytest.approx([0.35, 0.5])
    assert bins.accuracy.tolist() == pytest.approx([1 / 6, 1 / 3])


def test_mass_bins_weighted_hand_values() -> None:
    bins = equal_mass_bins(record([0.2, 0.6], [1, 0], [1.0, 3.0]), n_bins=2)
    # Half of the weight of four is two: the first bin holds all of the first example and a third of the second.
    assert bins.count.tolist() == [2.0, 2.0]
    assert bins.confidence.tolist() == pytest.approx([0.4, 0.6])
    assert bins.accuracy.tolist() == pytest.approx([0.5, 0.0])


def reference_mass_bins(top: TopLabel, n_bins: int) -> list[tuple[float, float]]:
    """Average of array_split over all orders of ties, by sharing every example over the positions of its group."""
    order = np.argsort(top.confidence.numpy(), kind="stable")
    confidence, correct = top.confidence.numpy()[order], top.correct.numpy()[order]
    shared = np.array([correct[confidence == c].mean() for c in confidence])
    return [
        (part.mean(), hits.mean())
        for part, hits in zip(np.array_split(confidence, n_bins), np.array_split(shared, n_bins), strict=True)
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=4, max_size=40),
    st.integers(1, 4),
    st.sampled_from([torch.float64, torch.float32]),
)
def test_mass_bins_any_ties_agree_with_the_slow_reference(
    pairs: list[tuple[int, bool]], n_bins: int, dtype: torch.dtype
) -> None:
    confidence = (torch.tensor([a for a, _ in pairs], dtype=torch.float64) / 12).to(dtype).double()
    top = TopLabel(confidence, torch.tensor([float(b) for _, b in pairs], dtype=torch.float64), None, dtype)
    bins = equal_mass_bins(top, n_bins=n_bins)
    expected = reference_mass_bins(top, n_bins)
    assert bins.confidence.tolist() == pytest.approx([c for c, _ in expected], abs=1e-12)
    assert bins.accuracy.tolist() == pytest.approx([a for _, a in expected], abs=1e-12)


def test_rising_sums_join_ties() -> None:
    top = record([0.5, 0.2, 0.5], [1, 0, 0], [1.0, 2.0, 3.0])
    values, (mass, _, correct, squares) = top.rising
    assert top.size == 3
    assert values.tolist() == [0.2, 0.5]
    assert mass.tolist() == [0.0, 2.0, 6.0]
    assert correct.tolist() == [0.0, 0.0, 1.0]
    assert squares.tolist() == [0.0, 4.0, 14.0]
    assert mass_cuts(top.size, 2, total=6.0).tolist() == [0.0, 4.0, 6.0]
    assert equal_mass_bins(top, n_bins=2).accuracy.tolist() == pytest.approx([0.125, 0.25])


def test_norm_of_bins_orders_and_total() -> None:
    values = [torch.tensor(v, dtype=torch.float64) for v in ([1.0, 3.0], [0.5, 0.9], [0.0, 1.0])]
    bins = Bins(torch.zeros(3), *values)
    assert float(norm_of_bins(bins)) == pytest.approx(0.25 * 0.5 + 0.75 * 0.1)
    assert float(norm_of_bins(bins, p=2)) == pytest.approx(math.sqrt(0.25 * 0.25 + 0.75 * 0.01))
    assert float(norm_of_bins(bins, p=math.inf)) == pytest.approx(0.5)
    assert float(norm_of_bins(bins, total=8)) == pytest.approx(0.5 * (0.25 * 0.5 + 0.75 * 0.1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_classes", [2, 3, 10, 40])
def test_top_label_random_data_agrees_with_argmax(num_classes: int, dtype: torch.dtype) -> None:
    probs, labels = mixed_gaps(500, num_classes, dtype=dtype)
    top = reduce_top_label(probs, labels)
    assert torch.equal(top.confidence, probs.amax(1).double())
    assert torch.equal(top.correct, (probs.argmax(1) == labels).double())
    assert (top.confidence.dtype, top.dtype) == (torch.float64, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_top_label_tie_goes_to_the_first_class(dtype: torch.dtype) -> None:
    probs = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.25, 0.375, 0.375], [0.25, 0.375, 0.375]], dtype=dtype)
    assert top_label(probs, torch.tensor([0, 1, 1, 2]), where="test").correct.tolist() == [1.0, 0.0, 1.0, 0.0]
    rounded = torch.tensor([[0.52, 0.52], [0.52, 0.52]], dtype=torch.bfloat16)
    assert top_label(rounded, torch.tensor([1, 0]), where="test").correct.tolist() == [0.0, 1.0]


def test_top_label_of_logits_knows_the_class_that_probabilities_hide() -> None:
    # Both probabilities round to 0.5, so that the first class would seem to be on top.
    predictions = Predictions(logits=torch.tensor([[0.0, 1e-17]], dtype=torch.float64), labels=[1], weights=[3.0])
    top = top_label(predictions, where="test")
    assert top.correct.tolist() == [1.0]
    assert top.mass.tolist() == [3.0]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_classes", [2, 3, 40])
@pytest.mark.parametrize("n_bins", [1, 15])
def test_class_bins_equal_a_loop_over_classes(
    num_classes: int, n_bins: int, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrant.core.binning._BLOCK_ENTRIES", 1000)  # several blocks
    probs, labels = mixed_gaps(500, num_classes)
    weights = torch.rand(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64) if weighted else None
    mass = torch.ones(500, dtype=torch.float64) if weights is None else weights
    bins = class_bins_of(probs, labels, weights, n_bins=n_bins)
    index = equal_width_index(probs, n_bins)
    for k in range(num_classes):
        for row, values in enumerate((mass, mass * probs[:, k], mass * (labels == k))):
            expected = torch.bincount(index[:, k], weights=values, minlength=n_bins)
            torch.testing.assert_close(bins[row, k], expected, rtol=1e-12, atol=1e-12)


def test_class_bins_with_weights_no_empty_bin_holds_a_rounding_error() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], dtype=torch.float64)
    bins = class_bins_of(probs, torch.tensor([0, 0, 1]), torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64), n_bins=2)
    assert bins[0].tolist() == [[0.0, pytest.approx(1.0)], [pytest.approx(1.0), 0.0]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n_bins", EXACT_BINS)
def test_cells_fold_into_bins_exactly(n_bins: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(n_bins)
    values = torch.cat(
        [
            torch.rand(2000, generator=generator, dtype=torch.float64),
            1 - 10 ** (-8 * torch.rand(500, generator=generator, dtype=torch.float64)),
            equal_width_edges(n_bins),
        ]
    )
    values = values.to(dtype).double()
    cell = cell_index(values, dtype=dtype)
    assert bool((cell[values.argsort()].diff() >= 0).all())
    assert int(cell.max()) < NUM_CELLS
    expected = equal_width_index(values, n_bins, dtype=dtype)
    assert torch.equal(bin_of_cell(cell, n_bins), expected)
    top = TopLabel(values, (values > 0.5).double(), None, dtype)
    bins, cells = equal_width_bins(top, n_bins=n_bins), cells_of(top)
    folded = cells.new_zeros(5, n_bins).index_add_(1, bin_of_cell(torch.arange(NUM_CELLS), n_bins), cells)
    assert torch.equal(folded[0], bins.count)
    torch.testing.assert_close(folded[1], bins.count * bins.confidence, rtol=1e-12, atol=1e-12)
