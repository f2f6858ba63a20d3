"""Functions whose value and gradient are written out in numpy, for eager tensors on the CPU.

On small batches PyTorch's price is the number of its operations, each recorded and each replayed; a closed form pays once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[Any]]"
_PLAIN = (Tensor, Parameter)
# From the gradient of the value to those of the first inputs; the others have none. Called at most once, so that it may write
# into what it keeps.
Pull: TypeAlias = Callable[[Array], tuple[Array, ...]]

Result: TypeAlias = tuple[Array, Pull]

# A decorator for what multiplies matrices in numpy. Some versions of BLAS compute with what lies beside small arrays, and
# tell of invalid values and overflow where there are none (numpy issues 24067 and 28967; seen with OpenBLAS at 7 x 5). What is
# really no number shows in the product.
quiet_products = partial(np.errstate, invalid="ignore", over="ignore", divide="ignore")


def has_plain_values(*tensors: Tensor) -> bool:
    """Whether numpy may read the tensors: on the CPU, not while compiling, in a function transform or a forward-mode pass."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    # A transform wants every operation of the function, though these tensors may not be what it transforms.
    if torch._C._are_functorch_transforms_active():
        return False
    # A dispatch mode (fake tensors, tracing, counting operations) wants to see every operation.
    if forward_ad._current_level >= 0 or torch._C._len_torch_dispatch_stack() > 0:
        return False
    for tensor in tensors:
        if not tensor.is_cpu or type(tensor) not in _PLAIN or tensor.is_neg():
            return False
    return True


def closed_form(by_torch: Callable[..., Tensor], by_numpy: Callable[..., Result | None], *tensors: Tensor) -> Tensor:
    """Evaluate ``by_numpy``, with its gradient, in place of ``by_torch``, which says the same in differentiable operations.

    Where numpy may not read the tensors, or ``by_numpy`` declines, ``by_torch`` is evaluated; so it is where the caller has
    told numpy to raise (``numpy.seterr``) and it does. Derivatives of the gradient go through it, too. What the closed form
    keeps for its gradient is let go with the first pass; a further pass over a retained graph computes it again.

    Args:
        by_torch: From the tensors to the value.
        by_numpy: From their arrays, which it must not write into, to the value and the function that pulls a gradient back;
            None where the closed form cannot be used.
        *tensors: The first in float32 or float64; those that are not floating have no gradient.

    Returns:
        The value.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> y = closed_form(lambda x: x.square(), lambda x: (x * x, lambda grad: (2 * x * grad,)), x)
        >>> torch.autograd.grad(y.sum(), x)
        (tensor([2., 4.]),)
    """
    try:
        result = by_numpy(*_arrays(tensors)) if has_plain_values(*tensors) else None
    except FloatingPointError:
        result = None
    if result is None:
        return by_torch(*tensors)
    # Past `Function.apply`, which looks for transforms, as `has_plain_values` has done; and as one argument, since each is
    # searched for tensors.
    value: Tensor = super(torch.autograd.Function, _ClosedForm).apply((by_torch, by_numpy, result), *tensors)
    return value


class _ClosedForm(torch.autograd.Function):
    """The node of a closed form in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, form: tuple[object, object, Result], *tensors: Tensor) -> Tensor:
        """Return the value; keep the way back."""
        ctx.by_torch, ctx.by_numpy, (value, ctx.pull) = form
        ctx.save_for_backward(*tensors)
        return torch.from_numpy(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients by all inputs."""
        tensors = ctx.saved_tensors
        outer = None if torch.is_grad_enabled() else _array_if_plain(grad)
        if outer is None:
            return (None, *_gradients_by_torch(ctx.by_torch, tensors, grad))
        pull, ctx.pull = ctx.pull, None
        try:
            if pull is None:
                _, pull = ctx.by_numpy(*_arrays(tensors))
            gradients = [torch.from_numpy(g) for g in pull(outer)]
        except FloatingPointError:
            return (None, *_gradients_by_torch(ctx.by_torch, tensors, grad))
        return (None, *gradients, *[None] * (len(tensors) - len(gradients)))


def _arrays(tensors: Sequence[Tensor]) -> list[Array]:
    return [t.detach().numpy() if t.requires_grad else t.numpy() for t in tensors]


def _array_if_plain(grad: Tensor) -> Array | None:
    if type(grad) is not Tensor:
        return None
    try:
        return grad.numpy()
    except (RuntimeError, TypeError):
        # A batch of gradients (`is_grads_batched=True`) holds no values that could be read.
        return None


def _gradients_by_torch(by_torch: Callable[..., Tensor], tensors: Sequence[Tensor], grad: Tensor) -> tuple[Tensor | None, ...]:
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # One input may depend on another; views keep that path out of the partial derivatives.
        inputs = [t.view_as(t) if t.requires_grad else t for t in tensors]
        wanted = [t for t in inputs if t.requires_grad]
        found = torch.autograd.grad(by_torch(*inputs), wanted, grad, create_graph=create_graph, allow_unused=True)
    each = iter(found)
    return tuple(next(each) if t.requires_grad else None for t in inputs)
