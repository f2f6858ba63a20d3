from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from calibrant.core.closed_form import Array, Result, closed_form, has_plain_values


def by_torch(x: Tensor, y: Tensor) -> Tensor:
    return (x.exp() * y).sum()


def by_numpy(x: Array, y: Array) -> Result:
    grown = np.exp(x)
    return np.asarray((grown * y).sum()), lambda grad: (grad * grown * y, grad * grown)


def draw() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    return x.requires_grad_(), y.requires_grad_()


def test_closed_form_has_value_and_derivatives_of_both_orders() -> None:
    x, y = draw()
    torch.testing.assert_close(closed_form(by_torch, by_numpy, x, y), by_torch(x, y))
    assert torch.autograd.gradcheck(lambda *t: closed_form(by_torch, by_numpy, *t), (x, y))
    assert torch.autograd.gradgradcheck(lambda *t: closed_form(by_torch, by_numpy, *t), (x, y))


def test_closed_form_takes_its_gradient_from_numpy_and_second_ones_from_torch() -> None:
    x, y = draw()
    calls: list[str] = []

    def watched(*t: Tensor) -> Tensor:
        calls.append("torch")
        return by_torch(*t)

    torch.autograd.grad(closed_form(watched, by_numpy, x, y), (x, y))
    assert calls == []
    torch.autograd.grad(closed_form(watched, by_numpy, x, y), (x, y), create_graph=True)
    assert calls == ["torch"]


def test_closed_form_input_that_depends_on_another_is_differentiated_twice() -> None:
    x, _ = draw()
    assert torch.autograd.gradgradcheck(lambda x: closed_form(by_torch, by_numpy, x, x.square()), (x,))


def test_closed_form_over_a_retained_graph_gives_the_same_gradient_again() -> None:
    x, y = draw()
    value = closed_form(by_torch, by_numpy, x, y)
    first = torch.autograd.grad(value, (x, y), retain_graph=True)
    first[0].mul_(7)
    again = torch.autograd.grad(value, (x, y))
    torch.testing.assert_close(again, torch.autograd.grad(by_torch(x, y), (x, y)), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(value, (x, y))


def test_closed_form_lets_go_of_what_it_kept_with_the_first_pass() -> None:
    kept: list[weakref.ref[Array]] = []

    def watched(x: Array) -> Result:
        grown = np.exp(x)
        kept.append(weakref.ref(grown))
        return np.asarray(grown.sum()), lambda grad: (grad * grown,)

    x, _ = draw()
    value = closed_form(lambda x: x.exp().sum(), watched, x)
    value.backward()
    gc.collect()
    assert kept[0]() is None
    assert value.item() == pytest.approx(x.exp().sum().item())


def test_closed_form_that_declines_leaves_the_work_to_torch() -> None:
    x, y = draw()
    value = closed_form(by_torch, lambda *arrays: None, x, y)
    assert value.item() == by_torch(x, y).item()
    assert type(value.grad_fn).__name__ == "SumBackward0"


def test_closed_form_input_without_gradient_gets_none() -> None:
    x, y = draw()
    labels = torch.tensor([1, 0, 1, 0, 1])
    value = closed_form(
        lambda x, y, k: by_torch(x, y * k),
        lambda x, y, k: (np.asarray(0.0), lambda grad: (grad * np.exp(x) * y * k,)),
        x,
        y,
        labels,
    )
    value.backward()
    torch.testing.assert_close(x.grad, (x.exp() * y * labels).detach())
    assert y.grad is None


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_closed_form_runs_under_transforms_forward_mode_and_batched_gradients() -> None:
    x, y = draw()

    def function(x: Tensor) -> Tensor:
        return closed_form(by_torch, by_numpy, x, y.detach())

    gradient = (x.exp() * y).detach()
    torch.testing.assert_close(torch.func.grad(function)(x.detach()), gradient)
    torch.testing.assert_close(torch.func.vmap(function)(torch.stack([x, x]).detach()), function(x).detach().expand(2))
    torch.testing.assert_close(torch.func.jvp(function, (x.detach(),), (x.detach(),))[1], gradient @ x.detach())
    torch.testing.assert_close(torch.func.hessian(function)(x.detach()), torch.diag(gradient))
    weights = torch.tensor([1.0, 2.0], dtype=torch.float64)
    (batched,) = torch.autograd.grad(function(x), x, weights, is_grads_batched=True)
    torch.testing.assert_close(batched, weights.unsqueeze(1) * gradient)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_closed_form_of_constants_runs_inside_a_transform_of_something_else() -> None:
    x, y = (t.detach() for t in draw())
    expected, one = by_torch(x, y), torch.ones((), dtype=torch.float64)

    def scaled(factor: Tensor) -> Tensor:
        return factor * closed_form(by_torch, by_numpy, x, y)

    torch.testing.assert_close(torch.func.grad(scaled)(one), expected)
    torch.testing.assert_close(torch.func.vmap(scaled)(torch.stack([one, 2 * one])), torch.stack([expected, 2 * expected]))
    torch.testing.assert_close(torch.func.jvp(scaled, (one,), (one,))[1], expected)


@pytest.mark.parametrize("retain", [False, True])
def test_closed_form_leaves_the_work_to_torch_where_numpy_is_told_to_raise(retain: bool) -> None:
    x = torch.tensor([-800.0, 0.0], dtype=torch.float64, requires_grad=True)  # exp(-800) is below float64's least number
    y = torch.ones(2, dtype=torch.float64)
    with np.errstate(all="raise"):
        closed_form(by_torch, by_numpy, x, y).backward()
    torch.testing.assert_close(x.grad, torch.tensor([0.0, 1.0], dtype=torch.float64))
    # The value may come from numpy and only its gradient underflow.
    z = torch.tensor([-700.0, 0.0], dtype=torch.float64, requires_grad=True)
    value = closed_form(by_torch, by_numpy, z, y)
    with np.errstate(all="raise"):
        value.backward(torch.tensor(1e-30, dtype=torch.float64), retain_graph=retain)
        if retain:
            value.backward(torch.tensor(1e-30, dtype=torch.float64))
    torch.testing.assert_close(z.grad, torch.tensor([0.0, 1e-30 * (1 + retain)], dtype=torch.float64), atol=0, rtol=1e-12)


def test_plain_values_are_those_of_eager_tensors_on_the_cpu() -> None:
    x = torch.zeros(2)
    assert has_plain_values(x, nn.Parameter(x))
    assert not has_plain_values(x, torch.zeros(2, device="meta"))
    assert not has_plain_values(torch.complex(x, x).conj().imag)  # a view that negates what it reads
    assert not has_plain_values(x, torch.zeros(2).as_subclass(type("Own", (Tensor,), {})))
    seen: list[bool] = []
    torch.func.vmap(lambda row: seen.append(has_plain_values(row)) or row)(x)
    torch.func.vmap(lambda row: seen.append(has_plain_values(x)) or row)(x)
    with FlopCounterMode(display=False):
        seen.append(has_plain_values(x))
    with torch.autograd.forward_ad.dual_level():
        seen.append(has_plain_values(x))
    assert seen == [False] * 4
