"""What a method makes of the facts of a run: a plan of the loss, and of how its hyper-parameters are learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from torch import nn

from calibrant.losses import ConfidencePruner
from calibrant.losses.base import Reduction
from calibrant.meta.presets import MetaSettings
from calibrant.meta.regularizers import Regularizer
from calibrant.meta.virtual import MetaObjective

MetaSchedule: TypeAlias = Literal["constant", "cosine", "network", "slowing"]


class Facts(NamedTuple):
    """What a method may need to know of the run.

    Attributes:
        num_train: Training examples.
        reduction: How losses are reduced.
        preset: Which preset the recipe names.
    """

    num_train: int
    reduction: Reduction
    preset: Literal["default", "paper"] = "default"


@dataclass(frozen=True)
class LossPlan:
    """Train with a loss.

    Attributes:
        loss: The loss, reduced.
        mixup_alpha: Parameter of mixup's Beta distribution, or None.
        pruner: Drops training examples between epochs, or None.
    """

    loss: nn.Module
    mixup_alpha: float | None = None
    pruner: ConfidencePruner | None = None


@dataclass(frozen=True)
class MetaPlan:
    """Train with a loss whose hyper-parameters are learned on held-out data.

    Attributes:
        regularizer: The loss.
        objective: What is minimised on the meta batches.
        settings: How the hyper-parameters are stepped.
        meta_batch_size: Examples of a meta batch.
        meta_schedule: Learning rate of the hyper-parameters over the epochs: "constant", "cosine" (to zero), "network": in
            proportion to the network's own, or "slowing": by its root where it is below a tenth of the first.
        pace: How far a meta step moves what the hyper-parameters control, where their learning rate is not given; None for
            the regularizer's own, less in a long run and up to four times that in a short one.
        frozen: Never move the hyper-parameters.
    """

    regularizer: Regularizer
    objective: MetaObjective
    settings: MetaSettings
    meta_batch_size: int
    meta_schedule: MetaSchedule = "constant"
    pace: float | None = None
    frozen: bool = False


Plan = LossPlan | MetaPlan
