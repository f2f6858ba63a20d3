from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calibrant.core.binning import (
    TopLabel,
    bins_of_curve,
    equal_mass_bins,
    equal_width_bins,
    equal_width_edges,
    equal_width_index,
    mass_curve,
    means_of_sums,
    norm_of_bins,
    top_label,
)
from calibrant.core.records import Bins
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
@pytest.mark.parametrize("n_bins", [n for n in BIN_NUMBERS if 1 < n <= 100])
def test_index_next_value_above_an_edge_falls_in_the_bin_above(n_bins: int, dtype: torch.dtype) -> None:
    edges = (torch.arange(1, n_bins, dtype=torch.float64) / n_bins).to(dtype)
    above = step_up(edges)
    index = equal_width_index(above.double(), n_bins, dtype=dtype)
    assert torch.equal(index, torch.arange(1, n_bins))


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


def test_index_any_shape_is_kept() -> None:
    values = torch.tensor([[0.0, 0.2], [0.21, 1.0]], dtype=torch.float64)
    assert equal_width_index(values, 5).tolist() == [[0, 0], [1, 4]]


def test_index_float32_fifth_lies_on_the_edge_of_its_own_precision() -> None:
    value = torch.tensor([0.2], dtype=torch.float32).double()
    assert equal_width_index(value, 15, dtype=torch.float32).tolist() == [2]
    assert equal_width_index(value, 15, dtype=torch.float64).tolist() == [3]


def test_edges_half_precision_never_round_up_to_one() -> None:
    edges = equal_width_edges(1000, torch.bfloat16)
    assert float(edges[-2]) < 1 == float(edges[-1])


def test_width_bins_hand_values() -> None:
    bins = equal_width_bins(record([0.1, 0.5, 0.6, 1.0], [0, 1, 0, 1]), n_bins=2)
    assert bins.edges.tolist() == [0.0, 0.5, 1.0]
    assert bins.count.tolist() == [2.0, 2.0]
    assert bins.confidence.tolist() == pytest.approx([0.3, 0.8])
    assert bins.accuracy.tolist() == [0.5, 0.5]


def test_width_bins_edges_belong_to_the_caller() -> None:
    top = record([0.1, 0.9], [0, 1])
    equal_width_bins(top, n_bins=4).edges.zero_()
    assert equal_width_bins(top, n_bins=4).edges.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_width_bins_weights_equal_repetition() -> None:
    weighted = equal_width_bins(record([0.1, 0.5, 0.6], [0, 1, 0], [1, 2, 3]), n_bins=4)
    repeated = equal_width_bins(record([0.1, 0.5, 0.5, 0.6, 0.6, 0.6], [0, 1, 1, 0, 0, 0]), n_bins=4)
    for name in ("count", "confidence", "accuracy"):
        assert torch.allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-15)


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_mass_bins_any_order_of_tied_samples_gives_the_same(dtype: torch.dtype) -> None:
    probs, labels = mixed_gaps(400, dtype=dtype)
    probs = (probs * 20).round().clamp_min(1)
    probs = (probs.double() / probs.double().sum(1, keepdim=True)).to(dtype)
    first = equal_mass_bins(top_label(probs, labels, where="test"), n_bins=15)
    shuffled = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    second = equal_mass_bins(top_label(probs[shuffled], labels[shuffled], where="test"), n_bins=15)
    assert torch.allclose(first.accuracy, second.accuracy, rtol=1e-12)
    assert torch.allclose(first.confidence, second.confidence, rtol=1e-12)


def test_mass_bins_fewer_examples_than_bins_leave_the_last_empty() -> None:
    bins = equal_mass_bins(record([0.9, 0.3], [1, 0]), n_bins=4)
    assert bins.count.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert bins.accuracy.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_mass_bins_unit_weights_change_nothing_and_zero_weight_is_absence() -> None:
    plain = record([0.2, 0.4, 0.4, 0.7, 0.9], [0, 1, 0, 1, 1])
    ones = record([0.2, 0.4, 0.4, 0.7, 0.9], [0, 1, 0, 1, 1], [2.0] * 5)
    padded = record([0.2, 0.4, 0.3, 0.4, 0.7, 0.9, 0.4], [0, 1, 1, 0, 1, 1, 1], [1, 1, 0, 1, 1, 1, 0])
    expected = equal_mass_bins(plain, n_bins=3)
    for other in (ones, padded):
        bins = equal_mass_bins(other, n_bins=3)
        assert torch.allclose(bins.confidence, expected.confidence, rtol=1e-14)
        assert torch.allclose(bins.accuracy, expected.accuracy, rtol=1e-14)
        assert torch.allclose(bins.weight, expected.weight, rtol=1e-14)


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


def test_mass_curve_counts_groups_and_squares() -> None:
    curve = mass_curve(record([0.5, 0.2, 0.5], [1, 0, 0], [1.0, 2.0, 3.0]))
    assert curve.size == 3
    assert curve.values.tolist() == [0.2, 0.5]
    assert curve.mass.tolist() == [0.0, 2.0, 6.0]
    assert curve.correct.tolist() == [0.0, 0.0, 1.0]
    assert curve.squares.tolist() == [0.0, 4.0, 14.0]
    assert curve.cuts(2).tolist() == [0.0, 4.0, 6.0]
    assert bins_of_curve(curve, curve.cuts(2)).accuracy.tolist() == pytest.approx([0.125, 0.25])


def test_mass_curve_minus_zero_sorts_as_zero() -> None:
    curve = mass_curve(record([0.5, -0.0, 0.0], [1, 0, 1]))
    assert curve.values.tolist() == [0.0, 0.5]
    assert curve.correct.tolist() == [0.0, 1.0, 2.0]


def test_means_of_sums_empty_bin_gets_zeros() -> None:
    bins = means_of_sums(torch.zeros(3), *(torch.tensor(v, dtype=torch.float64) for v in ([2.0, 0.0], [1.0, 0.0], [2.0, 0.0])))
    assert bins.confidence.tolist() == [0.5, 0.0]
    assert bins.accuracy.tolist() == [1.0, 0.0]


def test_norm_of_bins_orders_and_total() -> None:
    values = [torch.tensor(v, dtype=torch.float64) for v in ([1.0, 3.0], [0.5, 0.9], [0.0, 1.0])]
    bins = Bins(torch.zeros(3), *values)
    assert float(norm_of_bins(bins)) == pytest.approx(0.25 * 0.5 + 0.75 * 0.1)
    assert float(norm_of_bins(bins, p=2)) == pytest.approx(math.sqrt(0.25 * 0.25 + 0.75 * 0.01))
    assert float(norm_of_bins(bins, p=math.inf)) == pytest.approx(0.5)
    assert float(norm_of_bins(bins, total=8)) == pytest.approx(0.5 * (0.25 * 0.5 + 0.75 * 0.1))
