from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from calibrant.core.kernels import (
    all_pairs_accuracy,
    gaussian_exponents,
    gaussian_sums,
    gaussian_weights,
    laplace_pair_sum,
)
from helpers import golden


def _pairs(x: Tensor, values: Tensor, scale: float) -> Tensor:
    return values @ torch.exp(-(x.unsqueeze(1) - x).abs() / scale) @ values


def _points(n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(n, generator=generator, dtype=torch.float64)
    x[: n // 4] = 1.0
    return x.to(dtype), torch.randn(n, generator=generator, dtype=torch.float64).to(dtype)


def test_laplace_pair_sum_three_points_matches_hand_computation():
    x = torch.tensor([0.6, 0.1, 0.3], dtype=torch.float64)
    values = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    near, mid, far = math.exp(-0.2 / 0.4), math.exp(-0.3 / 0.4), math.exp(-0.5 / 0.4)
    expected = 1 + 4 + 1 + 2 * (2 * far - mid - 2 * near)
    assert laplace_pair_sum(x, values, scale=0.4).item() == pytest.approx(expected, rel=1e-14)


# 1/80 and 1/600 are where the factored form gives way; both sides are tried.
@pytest.mark.parametrize("scale", [10.0, 0.4, 0.013, 0.012, 0.0017, 0.0016, 1e-6])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 2e-6)])
def test_laplace_pair_sum_any_scale_equals_all_pairs(scale, dtype, tolerance):
    x, values = _points(257, dtype)
    found = laplace_pair_sum(x, values, scale=scale)
    x, values = x.double(), values.double()
    # Terms of both signs cancel, so the error is measured against the sum of their sizes.
    size = _pairs(x, values.abs(), scale).item()
    assert found.dtype == dtype
    assert abs(found.item() - _pairs(x, values, scale).item()) <= tolerance * size


@pytest.mark.parametrize("scale", [0.4, 1e-3])
def test_laplace_pair_sum_gradients_equal_those_of_all_pairs(scale):
    x, values = _points(24)
    values.requires_grad_()
    distinct = (x * 0.5 + torch.linspace(0, 0.02, 24, dtype=torch.float64)).requires_grad_()
    sums = laplace_pair_sum(distinct, values, scale=scale), _pairs(distinct, values, scale)
    first = [torch.autograd.grad(v, (distinct, values), create_graph=True) for v in sums]
    second = [torch.autograd.grad(sum(g.square().sum() for g in grads), (distinct, values)) for grads in first]
    for mine, reference in [*zip(*first, strict=True), *zip(*second, strict=True)]:
        torch.testing.assert_close(mine, reference, rtol=1e-9, atol=1e-9 * reference.abs().max().item())


@pytest.mark.parametrize("scale", [0.4, 1e-3])
def test_laplace_pair_sum_ties_have_no_slope_between_them(scale):
    x = torch.tensor([0.3, 0.7, 0.3, 0.3, 0.7], dtype=torch.float64, requires_grad=True)
    values = torch.tensor([1.0, -2.0, 3.0, 0.5, 1.5], dtype=torch.float64)
    (ours,) = torch.autograd.grad(laplace_pair_sum(x, values, scale=scale), x)
    (all_pairs,) = torch.autograd.grad(_pairs(x, values, scale), x)
    torch.testing.assert_close(ours, all_pairs, rtol=1e-12, atol=1e-9)


def test_laplace_pair_sum_compiled_fullgraph_equals_eager():
    x, values = _points(50)
    compiled = torch.compile(lambda a, b: laplace_pair_sum(a, b, scale=0.4), fullgraph=True, backend="aot_eager")
    assert compiled(x, values).item() == pytest.approx(laplace_pair_sum(x, values, scale=0.4).item(), rel=1e-14)


def test_laplace_pair_sum_half_precision_is_computed_in_float32():
    x = torch.rand(30, generator=torch.Generator().manual_seed(0)).bfloat16()
    value = laplace_pair_sum(x, x, scale=0.4)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(_pairs(x.double(), x.double(), 0.4).item(), rel=1e-6)


def test_gaussian_weights_two_points_match_hand_computation():
    weights = gaussian_weights(torch.tensor([0.5, 0.6], dtype=torch.float64), bandwidth=0.1)
    other = math.exp(-0.5) / (1 + math.exp(-0.5))
    torch.testing.assert_close(weights, torch.tensor([[1 - other, other], [other, 1 - other]], dtype=torch.float64))


def test_gaussian_weights_leave_one_out_gives_self_nothing():
    x = torch.tensor([0.2, 0.3, 0.9], dtype=torch.float64)
    weights = gaussian_weights(x, bandwidth=0.01, leave_one_out=True)
    assert weights.diagonal().tolist() == [0.0, 0.0, 0.0]
    assert weights.sum(1).tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert weights[2].tolist() == pytest.approx([0.0, 1.0, 0.0])


def test_gaussian_weights_gradients_pass_finite_differences():
    x = torch.tensor([0.2, 0.25, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: gaussian_weights(a, bandwidth=0.2), (x,))
    assert torch.autograd.gradgradcheck(lambda a: gaussian_weights(a, bandwidth=0.2, leave_one_out=True), (x,))


@pytest.mark.parametrize("bandwidth", [0.3, 0.05, 0.01, 0.0099, 1e-4])
def test_gaussian_exponents_match_their_definition_on_both_sides_of_the_switch(bandwidth):
    x = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected = -((x.unsqueeze(1) - x) ** 2) / (2 * bandwidth**2)
    found = gaussian_exponents(x, bandwidth=bandwidth)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
    slopes = [torch.autograd.grad(e.exp().sum(), x)[0] for e in (found, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-8, atol=1e-8 / bandwidth)


def test_gaussian_exponents_in_float32_and_under_autocast_are_exact_to_rounding():
    x = torch.rand(64, generator=torch.Generator().manual_seed(0))
    exact = -((x.double().unsqueeze(1) - x.double()) ** 2) / (2 * 0.05**2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gaussian_exponents(x, bandwidth=0.05)
    # Squares of up to (1 / 0.05)² / 2 = 200 are rounded to 2^-24 of themselves.
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=5e-5)


def test_laplace_pair_sum_weights_that_depend_on_points_are_differentiated_twice():
    x = torch.tensor([0.1, 0.45, 0.8], dtype=torch.float64, requires_grad=True)

    def pair_sum(points):
        residual = 1 - points
        return laplace_pair_sum(points, residual, scale=0.4)

    assert torch.autograd.gradcheck(pair_sum, (x,))
    assert torch.autograd.gradgradcheck(pair_sum, (x,))


def _all_pairs(x: Tensor, values: Tensor, bandwidth: float) -> Tensor:
    parts = [values @ torch.exp(-0.5 * ((part.unsqueeze(1) - x) / bandwidth).square()).T for part in x.split(500)]
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


@pytest.mark.parametrize("kind", ["uniform", "saturating", "tied float32", "isolated"])
@pytest.mark.parametrize("bandwidth", [10.0, 0.1, 0.05, 1.1e-3, 0.9e-3, 1e-4, 1e-6, 1e-9])
def test_gaussian_sums_every_bandwidth_is_accurate_to_rounding(kind, bandwidth):
    x = _confidences(kind, 1200)
    generator = torch.Generator().manual_seed(2)
    values = torch.stack([torch.ones_like(x), torch.rand(len(x), generator=generator, dtype=torch.float64) - 0.5])
    sums = gaussian_sums(x, values, bandwidth=bandwidth)
    size = _all_pairs(x, values.abs(), bandwidth)
    error = (sums - _all_pairs(x, values, bandwidth)).abs() / (size + 1e-14)
    assert error.max().item() < 1e-12


def test_gaussian_sums_of_a_million_points_match_single_rows():
    # The size that all pairs could not do (1e12); about a second.
    generator = torch.Generator().manual_seed(5)
    x = 1 - 0.9 * torch.rand(1_000_000, generator=generator, dtype=torch.float64) ** 3
    right = (torch.rand(len(x), generator=generator, dtype=torch.float64) < x).double().unsqueeze(0)
    near, hits = gaussian_sums(x, torch.cat([torch.ones_like(right), right]), bandwidth=0.05)
    rows = torch.cat([torch.arange(0, len(x), 100_000), x.argmin().view(1), x.argmax().view(1)])
    kernel = torch.exp(-0.5 * ((x[rows].unsqueeze(1) - x) / 0.05).square())
    # Pairwise sums; a matrix product of a million terms would itself be off by 1e-12.
    expected = (kernel * right).sum(1) / kernel.sum(1)
    torch.testing.assert_close((hits / near)[rows], expected, rtol=1e-13, atol=0)


def test_all_pairs_accuracy_of_golden_input_has_the_golden_values() -> None:
    logits, labels = golden()
    expected = [0.6178, 1, 0, 0.9999, 0.8338, 0, 1, 0.9995, 0, 1, 1, 0, 1, 1, 0.1389, 0.9997, 1, 0, 0.8368, 1, 0, 1, 1, 0]
    assert all_pairs_accuracy(logits.softmax(1), labels).tolist() == pytest.approx(expected, abs=6e-5)


def test_all_pairs_accuracy_by_hand() -> None:
    probs = torch.tensor([[0.5, 0.45, 0.05]], dtype=torch.float64)
    expected = 1 - 1 / (1 + math.exp(0.5)) - 1 / (1 + math.exp(4.5))
    assert all_pairs_accuracy(probs, torch.tensor([0]), sharpness=10).item() == pytest.approx(expected)


def test_all_pairs_accuracy_gradients_pass_finite_differences() -> None:
    probs = torch.tensor([[0.36, 0.33, 0.31]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0])
    assert torch.autograd.gradcheck(lambda p: all_pairs_accuracy(p, labels, sharpness=20), probs)
    assert torch.autograd.gradgradcheck(lambda p: all_pairs_accuracy(p, labels, sharpness=20), probs)
