"""Focal loss whose gamma falls with the epochs (FLSc-531)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from calibrant.core.checks import check_count
from calibrant.losses.base import Loss, Reduction, Shared
from calibrant.losses.focal import check_gamma, focal_loss

Schedule = Sequence[tuple[int, float]]


def scheduled_gamma(epoch: int, *, schedule: Schedule = ((0, 5.0), (100, 3.0), (250, 1.0))) -> float:
    r"""Gamma of an epoch under a step schedule: 5 before epoch 100, 3 before 250, then 1.

    Args:
        epoch: Epoch, counted from 0.
        schedule: Pairs (first epoch, gamma), the first starting at 0, in rising order.

    Returns:
        The gamma of the last pair whose first epoch is not after ``epoch``. Raises ``ValueError`` on a bad schedule.

    Example:
        >>> [scheduled_gamma(epoch) for epoch in (0, 99, 100, 250, 349)]
        [5.0, 5.0, 3.0, 1.0, 1.0]

    Reference:
        Mukhoti et al., NeurIPS 2020, appendix ("FLSc-531").
    """
    check_count(epoch, where="scheduled_gamma", name="epoch", least=0)
    _check_schedule(schedule, where="scheduled_gamma")
    return [float(gamma) for first, gamma in schedule if first <= epoch][-1]


def scheduled_focal_loss(
    logits: Tensor, labels: Tensor, *, epoch: int = 0, schedule: Schedule = ((0, 5.0), (100, 3.0), (250, 1.0))
) -> Tensor:
    r"""Focal loss with a gamma that falls during training: 5, then 3, then 1.

    `focal_loss`, :math:`-(1 - p_i)^{\gamma(e)} \log p_i`, with :math:`\gamma(e)` given by `scheduled_gamma` at epoch e.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        epoch: Epoch e, counted from 0.
        schedule: Pairs (first epoch, gamma). The default is made for 350 epochs, as in the source.

    Returns:
        ``[B]``, at least 0. Raises ``ValueError`` if shapes disagree.

    Example:
        >>> scheduled_focal_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), epoch=300)
        tensor([0.3466])

    Reference:
        Mukhoti et al., NeurIPS 2020, appendix ("FLSc-531").
    """
    return focal_loss(logits, labels, gamma=scheduled_gamma(epoch, schedule=schedule))


class ScheduledFocalLoss(Loss):
    """`scheduled_focal_loss` as a module that is told the epoch by ``set_epoch`` and keeps it in its ``state_dict``.

    The epoch is a buffer, so that a compiled or captured step need not be made again when it changes.

    Args:
        epoch: Epoch to begin with.
        schedule: Pairs (first epoch, gamma).
        reduction: "mean", "sum" or "none".
        shared: ``ignore_index`` and ``weight``, as in `Loss`.

    Example:
        >>> loss = ScheduledFocalLoss()
        >>> loss.set_epoch(300)
        >>> loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor(0.3466)
    """

    epoch_now: Tensor
    first_epochs: Tensor
    gammas: Tensor

    def __init__(
        self,
        *,
        epoch: int = 0,
        schedule: Schedule = ((0, 5.0), (100, 3.0), (250, 1.0)),
        reduction: Reduction = "mean",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(reduction=reduction, **shared)
        check_count(epoch, where="ScheduledFocalLoss", name="epoch", least=0)
        _check_schedule(schedule, where="ScheduledFocalLoss")
        self.schedule = schedule
        self.register_buffer("epoch_now", torch.tensor(epoch))
        self.register_buffer("first_epochs", torch.tensor([first for first, _ in schedule]), persistent=False)
        self.register_buffer("gammas", torch.tensor([float(gamma) for _, gamma in schedule]), persistent=False)

    @property
    def epoch(self) -> int:
        """Epoch the loss was last told."""
        return int(self.epoch_now)

    def set_epoch(self, epoch: int) -> None:
        """Tell the loss which epoch, counted from 0, is about to run."""
        check_count(epoch, where="ScheduledFocalLoss.set_epoch", name="epoch", least=0)
        self.epoch_now.fill_(epoch)

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample, ``[B]``."""
        # `take`, since indexing by a scalar tensor reads its value and so waits for the device.
        step = torch.bucketize(self.epoch_now, self.first_epochs, right=True) - 1
        return focal_loss(logits, labels, gamma=self.gammas.take(step))


def _check_schedule(schedule: Schedule, *, where: str) -> None:
    firsts = [first for first, _ in schedule]
    if not firsts or firsts[0] != 0 or any(b <= a for a, b in zip(firsts, firsts[1:], strict=False)):
        raise ValueError(f"{where}: `schedule` must start at epoch 0 and rise, got first epochs {firsts}.")
    for _, gamma in schedule:
        check_gamma(gamma, torch.empty(0, 2), where=where)
