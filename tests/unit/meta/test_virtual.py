import pytest
import torch

from calibrant.meta.virtual import VirtualStep, clip_factor, through_clip, total_norm, virtual_sgd


def test_virtual_sgd_moves_only_parameters_with_a_gradient():
    params = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)}
    moved = virtual_sgd(params, {"a": torch.tensor([1.0, -1.0])}, lr=0.5)
    assert moved["a"].tolist() == [0.5, 2.5]
    assert moved["b"] is params["b"]
    assert params["a"].tolist() == [1.0, 2.0]


def test_virtual_sgd_clip_equals_torch_clip_grad_norm():
    value = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    other = torch.nn.Parameter(torch.tensor([3.0]))
    value.grad, other.grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
    grads = {"a": value.grad.clone(), "b": other.grad.clone()}
    torch.nn.utils.clip_grad_norm_([value, other], 2.0)
    moved = virtual_sgd({"a": value.detach(), "b": other.detach()}, grads, lr=0.1, clip=2.0)
    torch.testing.assert_close(moved["a"], value.detach() - 0.1 * value.grad)
    torch.testing.assert_close(moved["b"], other.detach() - 0.1 * other.grad)


def test_total_norm_and_clip_factor_by_hand():
    assert float(total_norm({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])})) == pytest.approx(5.0)
    assert float(clip_factor(torch.tensor(5.0), 2.0)) == pytest.approx(0.4, rel=1e-5)
    assert float(clip_factor(torch.tensor(1.0), 2.0)) == 1.0


def test_through_clip_is_the_transposed_jacobian_of_clipping():
    g = torch.Generator().manual_seed(0)
    grads = {"a": torch.randn(3, dtype=torch.float64, generator=g), "b": torch.randn(2, dtype=torch.float64, generator=g)}
    pull = {name: torch.randn(value.shape, dtype=torch.float64, generator=g) for name, value in grads.items()}
    leaves = {name: value.clone().requires_grad_() for name, value in grads.items()}
    factor = clip_factor(total_norm(leaves), 0.5)
    bracket = sum((factor * leaves[name] * pull[name]).sum() for name in leaves)
    expected = torch.autograd.grad(bracket, list(leaves.values()))
    for found, want in zip(through_clip(pull, grads, 0.5).values(), expected, strict=True):
        torch.testing.assert_close(found, want)
    assert through_clip(pull, grads, None) is pull


def test_virtual_step_factor_of_a_mean_and_a_sum():
    assert VirtualStep(reduction="mean").factor(8) == 0.125
    assert VirtualStep(reduction="sum").factor(8) == 1.0
