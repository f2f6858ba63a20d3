from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from calibrant.core.gauss_transform import gaussian_means, gaussian_sums


def _all_pairs(x: Tensor, values: Tensor, bandwidth: float, at: Tensor | None = None) -> Tensor:
    at = x if at is None else at
    parts = [values @ torch.exp(-0.5 * ((part.unsqueeze(1) - x) / bandwidth).square()).T for part in at.split(500)]
    return torch.cat(parts, 1)


def _confidences(kind: str, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    uniform = torch.rand(n, generator=generator, dtype=torch.float64)
    if kind == "uniform":
        return uniform
    if kind == "saturating":
        return 1 - 10 ** (-12 * uniform)
    if kind == "tied float32":
        return torch.sigmoid(8 * torch.randn(n, generator=generator)).double()
    # A crowd near one and a few isolated points, whose small sums must be as accurate as the large ones.
    return torch.where(torch.arange(n) < 20, uniform, 1 - 1e-3 * uniform)


def test_gaussian_sums_two_points_match_hand_computation():
    x = torch.tensor([0.5, 0.6], dtype=torch.float64)
    sums = gaussian_sums(x, torch.tensor([[1.0, 2.0]]), bandwidth=0.1)
    other = math.exp(-0.5)
    assert sums.tolist()[0] == pytest.approx([1 + 2 * other, other + 2], rel=1e-14)


@pytest.mark.parametrize("kind", ["uniform", "saturating", "tied float32", "isolated"])
@pytest.mark.parametrize("bandwidth", [10.0, 0.1, 0.05, 1.1e-3, 0.9e-3, 1e-4, 1e-6, 1e-9])
def test_gaussian_sums_every_bandwidth_is_accurate_to_rounding(kind, bandwidth):
    x = _confidences(kind, 2500)
    generator = torch.Generator().manual_seed(2)
    values = torch.stack([torch.ones_like(x), torch.rand(len(x), generator=generator, dtype=torch.float64) - 0.5])
    sums = gaussian_sums(x, values, bandwidth=bandwidth)
    size = _all_pairs(x, values.abs(), bandwidth)
    error = (sums - _all_pairs(x, values, bandwidth)).abs() / (size + 1e-14)
    assert error.max().item() < 1e-12


@pytest.mark.parametrize("bandwidth", [0.05, 5e-4])
def test_gaussian_sums_at_other_points_equal_all_pairs(bandwidth):
    x = _confidences("uniform", 3000)
    at = torch.linspace(-0.2, 1.2, 1500, dtype=torch.float64).flip(0)
    values = torch.ones(1, len(x), dtype=torch.float64)
    sums = gaussian_sums(x, values, bandwidth=bandwidth, at=at)
    torch.testing.assert_close(sums, _all_pairs(x, values, bandwidth, at), rtol=1e-12, atol=1e-13)


def test_gaussian_sums_few_points_at_many_equal_all_pairs():
    x = torch.tensor([0.9, 0.1, 0.9], dtype=torch.float64)
    at = torch.linspace(0, 1, 3000, dtype=torch.float64)
    values = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
    sums = gaussian_sums(x, values, bandwidth=0.1, at=at)
    torch.testing.assert_close(sums, _all_pairs(x, values, 0.1, at), rtol=1e-12, atol=1e-13)


def test_gaussian_sums_all_points_equal_is_their_total():
    x = torch.full((5000,), 0.7)
    assert gaussian_sums(x, torch.ones(1, 5000), bandwidth=1e-300).unique().tolist() == [5000.0]


def test_gaussian_sums_order_of_points_does_not_matter():
    x = _confidences("uniform", 2000)
    values = x.unsqueeze(0)
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(4))
    there = gaussian_sums(x, values, bandwidth=0.05)[:, order]
    torch.testing.assert_close(gaussian_sums(x[order], values[:, order], bandwidth=0.05), there, rtol=1e-14, atol=0)


def test_gaussian_sums_wrong_arguments_raise():
    x = torch.rand(4)
    with pytest.raises(ValueError, match=r"gaussian_sums: `bandwidth` must be a finite number > 0, got -1"):
        gaussian_sums(x, torch.ones(1, 4), bandwidth=-1)
    with pytest.raises(ValueError, match=r"`x` must be \[N\] with N >= 1, got \[0\]"):
        gaussian_sums(x[:0], torch.ones(1, 0), bandwidth=0.1)
    with pytest.raises(ValueError, match=r"`values` must be \[K, N\] with N = 4, got \[4\]"):
        gaussian_sums(x, torch.ones(4), bandwidth=0.1)
    with pytest.raises(ValueError, match=r"`at` must be \[T\], got \[1, 4\]"):
        gaussian_sums(x, torch.ones(1, 4), bandwidth=0.1, at=x.unsqueeze(0))


def test_gaussian_means_million_points_match_single_rows():
    # The size that all pairs could not do (1e12); about a second.
    generator = torch.Generator().manual_seed(5)
    x = 1 - 0.9 * torch.rand(1_000_000, generator=generator, dtype=torch.float64) ** 3
    right = (torch.rand(len(x), generator=generator, dtype=torch.float64) < x).double().unsqueeze(0)
    means = gaussian_means(x, right, bandwidth=0.05)
    rows = torch.cat([torch.arange(0, len(x), 100_000), x.argmin().view(1), x.argmax().view(1)])
    kernel = torch.exp(-0.5 * ((x[rows].unsqueeze(1) - x) / 0.05).square())
    # Pairwise sums; a matrix product of a million terms would itself be off by 1e-12.
    expected = (kernel * right).sum(1) / kernel.sum(1)
    torch.testing.assert_close(means[0, rows], expected, rtol=1e-13, atol=0)


def test_gaussian_means_constant_values_stay_constant():
    x = _confidences("saturating", 3000)
    means = gaussian_means(x, torch.full((1, 3000), 0.25), bandwidth=0.01)
    torch.testing.assert_close(means, torch.full((1, 3000), 0.25, dtype=torch.float64), rtol=1e-13, atol=0)


def test_gaussian_means_whole_weights_equal_repeated_points():
    x = torch.tensor([0.2, 0.3, 0.9], dtype=torch.float64)
    values = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    count = torch.tensor([2, 1, 3])
    weighted = gaussian_means(x, values, bandwidth=0.1, weights=count)
    repeated = gaussian_means(x.repeat_interleave(count), values.repeat_interleave(count, 1), bandwidth=0.1)
    torch.testing.assert_close(weighted.repeat_interleave(count, 1), repeated)


@pytest.mark.parametrize("bandwidth", [1.0, 0.05, 1e-3, 1e-5, 1e-8])
@pytest.mark.parametrize("kind", ["uniform", "saturating", "tied float32", "isolated"])
def test_gaussian_means_leave_one_out_equals_masked_softmax(kind, bandwidth):
    x = _confidences(kind, 1300)
    values = (x > 0.4).double().unsqueeze(0) * x
    exponent = -0.5 * ((x.unsqueeze(1) - x) / bandwidth).square()
    weights = exponent.fill_diagonal_(-math.inf).softmax(1)
    means = gaussian_means(x, values, bandwidth=bandwidth, leave_one_out=True)
    # The reference subtracts squares of up to (1/h)^2, which costs it digits where the nearest neighbour is far.
    torch.testing.assert_close(means, values @ weights.T, rtol=1e-9, atol=1e-10)


def test_gaussian_means_leave_one_out_far_point_takes_nearest_value():
    x = torch.tensor([0.9, 0.0, 0.8], dtype=torch.float64)
    means = gaussian_means(x, torch.tensor([[0.1, 0.5, 0.7]]), bandwidth=1e-6, leave_one_out=True)
    assert means.tolist()[0] == pytest.approx([0.7, 0.7, 0.1])


def test_gaussian_means_leave_one_out_of_one_raises():
    with pytest.raises(ValueError, match=r"gaussian_means: `leave_one_out` must have N >= 2 points, got 1"):
        gaussian_means(torch.tensor([0.5]), torch.ones(1, 1), bandwidth=0.1, leave_one_out=True)
