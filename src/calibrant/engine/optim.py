"""The optimizer, whose learning rate can change under a captured step, and the learning rate of every epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from calibrant.engine.recipe import OptimPart


def build_optimizer(parameters: Iterable[Tensor], part: OptimPart) -> Optimizer:
    """Build SGD or AdamW with its state allocated.

    On CUDA the learning rate is a tensor and the update fused, so that one captured step serves every schedule. Momentum starts
    as an explicit zero, which gives the same first step as none.
    """
    values = [p for p in parameters if p.requires_grad]
    cuda = values[0].is_cuda
    rate: float | Tensor = torch.tensor(part.lr, device=values[0].device) if cuda else part.lr
    optimizer: Optimizer
    if part.name == "adamw":
        optimizer = AdamW(values, lr=rate, weight_decay=part.weight_decay, capturable=cuda, fused=cuda)
        kept = ["exp_avg", "exp_avg_sq"]
    else:
        optimizer = SGD(values, rate, part.momentum, weight_decay=part.weight_decay, nesterov=part.nesterov, fused=cuda)
        kept = ["momentum_buffer"] if part.momentum else []
    for value in values:
        optimizer.state[value] = {name: torch.zeros_like(value, memory_format=torch.preserve_format) for name in kept}
        if part.name == "adamw":
            optimizer.state[value]["step"] = torch.zeros((), device=value.device if cuda else "cpu")
    return optimizer


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every group, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def cosine_rate(epoch: float, *, lr: float, epochs: int) -> float:
    """Learning rate ``lr (1 + cos(pi t)) / 2`` at the fraction ``t`` of all epochs.

    Example:
        >>> [round(cosine_rate(e, lr=0.1, epochs=10), 4) for e in (0, 5, 10)]
        [0.1, 0.05, 0.0]
    """
    return lr * (1 + math.cos(math.pi * min(epoch / epochs, 1.0))) / 2


def learning_rate(part: OptimPart, epoch: int, *, epochs: int) -> float:
    """Learning rate of an epoch under a recipe.

    Example:
        >>> [learning_rate(OptimPart(), epoch, epochs=350) for epoch in (0, 149, 150, 250)]
        [0.1, 0.1, 0.010000000000000002, 0.0010000000000000002]
        >>> [learning_rate(OptimPart(schedule="constant", warmup_epochs=4), epoch, epochs=10) for epoch in (0, 1, 3, 8)]
        [0.025, 0.05, 0.1, 0.1]
    """
    rate = part.lr
    if part.schedule == "cosine":
        rate = cosine_rate(epoch, lr=part.lr, epochs=epochs)
    elif part.schedule == "multistep":
        rate = part.lr * part.decay ** sum(epoch >= milestone for milestone in _milestones(part, epochs))
    return rate * min(1.0, (epoch + 1) / part.warmup_epochs) if part.warmup_epochs > 0 else rate


def drops(part: OptimPart, epoch: int, *, epochs: int) -> bool:
    """Whether a milestone of the learning rate is reached with this epoch.

    Example:
        >>> [epoch for epoch in range(350) if drops(OptimPart(), epoch, epochs=350)]
        [150, 250]
    """
    return part.schedule == "multistep" and any(epoch - 1 < place <= epoch for place in _milestones(part, epochs))


def _milestones(part: OptimPart, epochs: int) -> Sequence[float]:
    if part.milestones_epochs is not None:
        return part.milestones_epochs
    # The paper drops at 150 and 250 of 350 epochs; other lengths keep the proportions, but the first epoch has the rate that
    # was asked for and no two drops come together.
    first = max(1, round(epochs * 3 / 7))
    return first, max(first + 1, round(epochs * 5 / 7))
