"""Adam as a function of values: no optimizer object, no host synchronisation, so a captured step can hold it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.meta.regularizers.base import Params


class AdamState(NamedTuple):
    """What Adam remembers.

    Attributes:
        steps: Steps taken, ``[]`` in the parameters' precision, on their device.
        first: Running mean of the gradient of every parameter.
        second: Running mean of its square.
    """

    steps: Tensor
    first: Params
    second: Params


def init_adam(params: Mapping[str, Tensor]) -> AdamState:
    """Return the state before the first step."""
    any_value = next(iter(params.values()))
    zeros = {name: torch.zeros_like(value) for name, value in params.items()}
    return AdamState(any_value.new_zeros(()), zeros, {name: value.clone() for name, value in zeros.items()})


def adam_update(
    params: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    state: AdamState,
    *,
    lr: float | Tensor,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[Params, AdamState]:
    r"""Take one step of Adam and return the new values; the arguments stay as they are.

    With gradient :math:`g_t`, :math:`m_t = \beta_1 m_{t-1} + (1 - \beta_1) g_t` and
    :math:`v_t = \beta_2 v_{t-1} + (1 - \beta_2) g_t^2`, the step is
    :math:`-\mathrm{lr}\; \hat m_t / (\sqrt{\hat v_t} + \epsilon)`, where the hats divide by :math:`1 - \beta^t`. A gradient
    that is not finite (a half-precision overflow) changes nothing.

    Args:
        params: Name → value.
        grads: Name → gradient.
        state: What `init_adam` or the last step returned.
        lr: Step size.
        betas: Memory of the two means.
        eps: Added to the root. Hypergradients shrink by orders of magnitude as training proceeds: with the usual 1e-8 they
            would fall below it and freeze.

    Returns:
        New parameters and new state.

    Example:
        >>> w = {"w": torch.tensor(1.0)}
        >>> adam_update(w, {"w": torch.tensor(5.0)}, init_adam(w), lr=0.1)[0]
        {'w': tensor(0.9000)}

    Reference:
        Kingma and Ba, ICLR 2015, algorithm 1.
    """
    beta1, beta2 = betas
    # Infinity and NaN times zero are NaN: fewer small kernels than `isfinite`.
    finite = torch.stack([(0 * grad).sum() for grad in grads.values()]).sum() == 0
    count = state.steps + 1
    scale1, scale2 = 1 - beta1**count, (1 - beta2**count).sqrt()
    moved, first, second = {}, {}, {}
    for name, value in params.items():
        grad = grads[name]
        mean = torch.lerp(state.first[name], grad, 1 - beta1)
        square = torch.lerp(state.second[name], grad.square(), 1 - beta2)
        step = lr * (mean / scale1) / (square.sqrt() / scale2 + eps)
        moved[name] = torch.where(finite, value - step, value)
        first[name] = torch.where(finite, mean, state.first[name])
        second[name] = torch.where(finite, square, state.second[name])
    return moved, AdamState(torch.where(finite, count, state.steps), first, second)
