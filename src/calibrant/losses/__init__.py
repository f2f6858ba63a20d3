"""Train-time calibration objectives: per-sample losses, batch penalties, and their sums.

A loss is a function ``(logits, labels, *, ...) -> [B]`` with a module of the same name that reduces; a penalty a function
``(logits, labels, *, ...) -> []`` of the whole batch. Modules add up: ``FocalLoss(gamma=3) + 0.5 * MDCA()``. The two tables
are the registry, the list of exports and the source of ``docs/losses.md``.
"""

from calibrant.losses.base import Entry, Loss, Objective, Penalty, WeightedSum
from calibrant.losses.cross_entropy import CrossEntropyLoss, cross_entropy_loss
from calibrant.losses.focal import FocalLoss, focal_gradient_weight, focal_loss

LOSSES: dict[str, Entry] = {
    "cross_entropy": Entry(
        cross_entropy_loss,
        CrossEntropyLoss,
        source="no smoothing",
        reference="Szegedy et al., CVPR 2016, section 7; Müller et al., NeurIPS 2019",
        soft_targets=True,
    ),
    "focal": Entry(
        focal_loss,
        FocalLoss,
        source="FL-3 of Mukhoti et al.",
        reference="Lin et al., ICCV 2017, eq. 4; Mukhoti et al., NeurIPS 2020",
    ),
}

PENALTIES: dict[str, Entry] = {}

__all__ = [
    "LOSSES",
    "PENALTIES",
    "CrossEntropyLoss",
    "Entry",
    "FocalLoss",
    "Loss",
    "Objective",
    "Penalty",
    "WeightedSum",
    "cross_entropy_loss",
    "focal_gradient_weight",
    "focal_loss",
]
