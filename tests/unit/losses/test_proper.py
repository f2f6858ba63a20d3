"""Cross-entropy, Brier loss and mixup."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from calibrant.losses import (
    FocalLoss,
    MixupLoss,
    Penalty,
    ScheduledFocalLoss,
    brier_loss,
    cross_entropy_loss,
    focal_loss,
    mixup_inputs,
    mixup_loss,
)
from helpers import golden


def test_cross_entropy_by_hand() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0]])
    assert cross_entropy_loss(logits, torch.tensor([0])).item() == pytest.approx(math.log(4 / 3))
    # Target (0.9, 0.1) for smoothing 0.2 of two classes.
    smooth = 0.9 * math.log(4 / 3) + 0.1 * math.log(4)
    assert cross_entropy_loss(logits, torch.tensor([0]), label_smoothing=0.2).item() == pytest.approx(smooth)
    soft = torch.tensor([[0.25, 0.75]])
    assert cross_entropy_loss(logits, soft).item() == pytest.approx(0.25 * math.log(4 / 3) + 0.75 * math.log(4))


def test_brier_by_hand() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0]] * 2)
    assert brier_loss(logits, torch.tensor([0, 1])).tolist() == pytest.approx([2 * 0.25**2, 2 * 0.75**2])
    assert brier_loss(logits[:1], torch.tensor([[0.75, 0.25]])).item() == pytest.approx(0)


class MeanTrue(Penalty):
    """A penalty that depends on the labels: the mean logit of the true class."""

    def value(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits.gather(1, labels.unsqueeze(1)).mean()


def test_mixup_inputs_are_the_stated_mixture() -> None:
    inputs = torch.arange(24.0).reshape(4, 2, 3)
    labels = torch.tensor([3, 1, 0, 2])
    mixed, first, second, lam = mixup_inputs(inputs, labels, alpha=0.4, generator=torch.Generator().manual_seed(3))
    assert torch.equal(first, labels)
    order = torch.stack([(labels == b).nonzero()[0, 0] for b in second])
    assert sorted(order.tolist()) == [0, 1, 2, 3]
    assert not torch.equal(order, torch.arange(4))
    torch.testing.assert_close(mixed, lam * inputs + (1 - lam) * inputs[order])
    assert torch.equal(inputs, torch.arange(24.0).reshape(4, 2, 3))


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_mixup_proportion_follows_the_beta_distribution(alpha: float) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)
    draws = torch.stack([mixup_inputs(inputs, labels, alpha=alpha, generator=generator)[3] for _ in range(2000)])
    # Mean 1/2 and variance 1 / (4 (2 alpha + 1)); the bounds are four standard errors.
    variance = 1 / (4 * (2 * alpha + 1))
    assert draws.mean().item() == pytest.approx(0.5, abs=4 * math.sqrt(variance / 2000))
    assert draws.var().item() == pytest.approx(variance, rel=0.13)


def test_mixup_of_alpha_zero_changes_nothing() -> None:
    inputs, labels = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    mixed, _, _, lam = mixup_inputs(inputs, labels, alpha=0, generator=torch.Generator().manual_seed(1))
    assert lam.item() == 1.0
    assert torch.equal(mixed, inputs)


def test_mixup_loss_of_cross_entropy_is_that_of_the_mixed_target() -> None:
    logits, labels = golden()
    other = labels.flip(0)
    target = 0.3 * F.one_hot(labels, 5).double() + 0.7 * F.one_hot(other, 5).double()
    torch.testing.assert_close(mixup_loss(logits, labels, other, 0.3), F.cross_entropy(logits, target, reduction="none"))


def test_mixup_module_takes_any_loss_and_its_penalties() -> None:
    logits, labels = golden()
    other, lam = labels.flip(0), torch.tensor(0.3)
    loss = MixupLoss(base=FocalLoss(gamma=2) + 0.5 * MeanTrue())
    assert repr(loss) == "MixupLoss(base=FocalLoss(gamma=2) + 0.5 * MeanTrue())"

    def base(target: torch.Tensor) -> torch.Tensor:
        return focal_loss(logits, target, gamma=2).mean() + 0.5 * MeanTrue()(logits, target)

    torch.testing.assert_close(loss(logits, labels, labels_b=other, lam=lam), 0.3 * base(labels) + 0.7 * base(other))


def test_mixup_module_hands_the_epoch_on_and_names_missing_inputs() -> None:
    loss = MixupLoss(base=ScheduledFocalLoss())
    loss.set_epoch(120)
    assert isinstance(loss.base, ScheduledFocalLoss)
    assert loss.base.epoch == 120
    logits, labels = golden()
    with pytest.raises(ValueError, match="MixupLoss: arguments .*'labels_b'"):
        loss(logits, labels)


def test_mixup_refuses_what_cannot_be_mixed() -> None:
    with pytest.raises(ValueError, match="`alpha` must"):
        mixup_inputs(torch.zeros(2, 3), torch.zeros(2), alpha=-1)
    logits, labels = golden()
    for lam in (1.5, torch.rand(24, 1), torch.tensor(1.5), torch.linspace(-0.25, 1, 24), torch.tensor(math.nan)):
        with pytest.raises(ValueError, match="`lam` must"):
            mixup_loss(logits, labels, labels, lam)
