"""The learning rate of every epoch, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence


def multistep_rate(epoch: float, *, lr: float, milestones_epochs: Sequence[float], decay: float = 0.1) -> float:
    """Learning rate ``lr * decay^k`` after ``k`` milestones have passed.

    Example:
        >>> [multistep_rate(e, lr=0.1, milestones_epochs=(150, 250)) for e in (0, 149, 150, 250)]
        [0.1, 0.1, 0.010000000000000002, 0.0010000000000000002]
    """
    return lr * decay ** sum(epoch >= milestone for milestone in milestones_epochs)


def cosine_rate(epoch: float, *, lr: float, epochs: int) -> float:
    """Learning rate ``lr (1 + cos(pi t)) / 2`` at the fraction ``t`` of all epochs.

    Example:
        >>> [round(cosine_rate(e, lr=0.1, epochs=10), 4) for e in (0, 5, 10)]
        [0.1, 0.05, 0.0]
    """
    return lr * (1 + math.cos(math.pi * min(epoch / epochs, 1.0))) / 2


def warmed_up(rate: float, epoch: float, *, warmup_epochs: float) -> float:
    """Scale ``rate`` linearly from zero over the first ``warmup_epochs``.

    Example:
        >>> [warmed_up(0.1, e, warmup_epochs=4) for e in (0, 1, 3, 8)]
        [0.025, 0.05, 0.1, 0.1]
    """
    return rate * min(1.0, (epoch + 1) / warmup_epochs) if warmup_epochs > 0 else rate
