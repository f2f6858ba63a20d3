"""Optimizers whose learning rate can change under a captured step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer


def build_optimizer(
    parameters: Iterable[Tensor],
    *,
    name: Literal["sgd", "adamw"] = "sgd",
    lr: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    nesterov: bool = False,
) -> Optimizer:
    """Build SGD or AdamW with its state allocated.

    On CUDA the learning rate is a tensor and the update fused, so that one captured step serves every schedule. Momentum starts
    as an explicit zero, which gives the same first step as none.

    Args:
        parameters: What to optimise.
        name: "sgd" or "adamw".
        lr: Learning rate.
        momentum: Momentum of SGD.
        weight_decay: Coefficient of the L2 term (decoupled in AdamW).
        nesterov: Nesterov's form of momentum.

    Returns:
        The optimizer.
    """
    values = [p for p in parameters if p.requires_grad]
    if not values:
        raise ValueError(
            "build_optimizer: `parameters` must hold one that requires a gradient, got none. Leave some layers of the network "
            "unfrozen."
        )
    cuda = values[0].is_cuda
    rate: float | Tensor = torch.tensor(lr, device=values[0].device) if cuda else lr
    if name == "adamw":
        return allocate_state(AdamW(values, lr=rate, weight_decay=weight_decay, capturable=cuda, fused=cuda))
    optimizer = SGD(values, lr=rate, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, fused=cuda)
    if momentum:
        for value in values:
            optimizer.state[value]["momentum_buffer"] = torch.zeros_like(value, memory_format=torch.preserve_format)
    return optimizer


def allocate_state(optimizer: Optimizer) -> Optimizer:
    """Make an Adam-like optimizer create its state now, without moving a parameter.

    A captured step must find its tensors in place. A step with zero gradient at learning rate zero creates them; only the
    step counter has to be put back.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    values = [p for group in optimizer.param_groups for p in group["params"]]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = torch.zeros_like(rate) if isinstance(rate, Tensor) else 0.0
    for value in values:
        value.grad = torch.zeros_like(value)
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for value in values:
        value.grad = None
        step = optimizer.state[value].get("step")
        if isinstance(step, Tensor):
            step.zero_()
    return optimizer


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every group, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
