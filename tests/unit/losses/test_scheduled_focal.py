from __future__ import annotations

import pytest
import torch

from calibrant.losses import ScheduledFocalLoss, focal_loss, scheduled_focal_loss, scheduled_gamma
from helpers import golden


@pytest.mark.parametrize(("epoch", "gamma"), [(0, 5), (99, 5), (100, 3), (249, 3), (250, 1), (1000, 1)])
def test_schedule_steps_down_at_100_and_250(epoch: int, gamma: float) -> None:
    logits, labels = golden()
    assert scheduled_gamma(epoch) == gamma
    expected = focal_loss(logits, labels, gamma=gamma)
    assert torch.equal(scheduled_focal_loss(logits, labels, epoch=epoch), expected)
    loss = ScheduledFocalLoss(reduction="none")
    loss.set_epoch(epoch)
    assert torch.equal(loss(logits, labels), expected)
    assert loss.epoch == epoch


def test_schedule_of_one_step_is_focal_loss() -> None:
    logits, labels = golden()
    expected = focal_loss(logits, labels, gamma=2)
    assert torch.equal(scheduled_focal_loss(logits, labels, epoch=7, schedule=[(0, 2)]), expected)
    assert torch.equal(ScheduledFocalLoss(schedule=[(0, 2)], epoch=7, reduction="none")(logits, labels), expected)


def test_scheduled_module_keeps_its_epoch_in_the_state() -> None:
    first, second = ScheduledFocalLoss(), ScheduledFocalLoss()
    first.set_epoch(123)
    assert list(first.state_dict()) == ["epoch_now"]
    second.load_state_dict(first.state_dict())
    assert second.epoch == 123
    assert repr(second) == "ScheduledFocalLoss(epoch=123, schedule=((0, 5.0), (100, 3.0), (250, 1.0)))"


def test_scheduled_module_compiled_once_follows_the_epoch() -> None:
    torch._dynamo.reset()
    logits, labels = golden()
    loss = ScheduledFocalLoss()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    for epoch, gamma in ((0, 5), (300, 1)):
        loss.set_epoch(epoch)
        torch.testing.assert_close(compiled(logits, labels), focal_loss(logits, labels, gamma=gamma).mean())


@pytest.mark.parametrize("schedule", [[], [(1, 5.0)], [(0, 5.0), (9, 3.0), (9, 1.0)]])
def test_schedule_that_does_not_start_at_zero_and_rise_is_refused(schedule: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match=r"scheduled_gamma: `schedule` must start at epoch 0 and rise, got first epochs"):
        scheduled_gamma(0, schedule=schedule)
    with pytest.raises(ValueError, match=r"ScheduledFocalLoss: `schedule` must start at epoch 0 and rise"):
        ScheduledFocalLoss(schedule=schedule)


def test_schedule_with_a_negative_gamma_or_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`gamma` must be a finite number >= 0, got -1"):
        ScheduledFocalLoss(schedule=[(0, -1)])
    with pytest.raises(ValueError, match=r"scheduled_gamma: `epoch` must be a whole number >= 0, got -1"):
        scheduled_gamma(-1)
    with pytest.raises(ValueError, match=r"set_epoch: `epoch` must be a whole number >= 0, got 1.5"):
        ScheduledFocalLoss().set_epoch(1.5)
