"""Train-time calibration objectives: per-sample losses, batch penalties, and their sums.

A loss is a function ``(logits, labels, *, ...) -> [B]`` with a module of the same name that reduces; a penalty a function
``(logits, labels, *, ...) -> []`` of the whole batch. Modules add up: ``FocalLoss(gamma=3) + 0.5 * MDCA()``. The two tables
are the registry, the list of exports and the source of ``docs/losses.md``.
"""

import torch

from calibrant.losses.adafocal import AdaFocalLoss, adafocal_gammas, adafocal_loss
from calibrant.losses.base import Entry, Loss, Objective, Penalty, WeightedSum
from calibrant.losses.brier import BrierLoss, brier_loss
from calibrant.losses.cross_entropy import CrossEntropyLoss, cross_entropy_loss
from calibrant.losses.dual_focal import DualFocalLoss, dual_focal_loss
from calibrant.losses.flsd import FLSDLoss, flsd_loss, lambert_gamma
from calibrant.losses.focal import FocalLoss, focal_gradient_weight, focal_loss
from calibrant.losses.inverse_focal import InverseFocalLoss, inverse_focal_loss
from calibrant.losses.mixup import MixupLoss, mixup_inputs, mixup_loss
from calibrant.losses.scheduled_focal import ScheduledFocalLoss, scheduled_focal_loss, scheduled_gamma

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
    "flsd": Entry(
        flsd_loss,
        FLSDLoss,
        source="FLSD-53 of Mukhoti et al.",
        reference="Mukhoti et al., NeurIPS 2020, section 5",
    ),
    "scheduled_focal": Entry(
        scheduled_focal_loss,
        ScheduledFocalLoss,
        source="FLSc-531 of Mukhoti et al., for 350 epochs",
        reference="Mukhoti et al., NeurIPS 2020, appendix",
    ),
    "inverse_focal": Entry(
        inverse_focal_loss,
        InverseFocalLoss,
        source="none stated: gamma must be given",
        reference="Wang, Feng and Zhang, NeurIPS 2021",
        required={"gamma": 2.0},
    ),
    "dual_focal": Entry(
        dual_focal_loss,
        DualFocalLoss,
        source="chosen per data set by the authors: gamma must be given",
        reference="Tao, Dong and Xu, ICML 2023",
        required={"gamma": 5.0},
    ),
    "adafocal": Entry(
        adafocal_loss,
        AdaFocalLoss,
        source="15 bins and the update rule of the released code; gammas and edges are the module's state",
        reference="Ghosh, Schaaf and Gormley, NeurIPS 2022",
        required={"gammas": torch.tensor([3.0, 1.0, -0.5]), "edges": torch.tensor([0.0, 0.3, 0.7, 1.0])},
    ),
    "brier": Entry(
        brier_loss,
        BrierLoss,
        source="no hyper-parameter",
        reference="Brier, Monthly Weather Review 1950, eq. 2",
        soft_targets=True,
    ),
    "mixup": Entry(
        mixup_loss,
        MixupLoss,
        source="cross-entropy as base, one lambda per batch: Zhang et al.'s released code",
        reference="Zhang et al., ICLR 2018; Thulasidasan et al., NeurIPS 2019",
        soft_targets=True,
    ),
}

PENALTIES: dict[str, Entry] = {}

__all__ = [
    "LOSSES",
    "PENALTIES",
    "AdaFocalLoss",
    "BrierLoss",
    "CrossEntropyLoss",
    "DualFocalLoss",
    "Entry",
    "FLSDLoss",
    "FocalLoss",
    "InverseFocalLoss",
    "Loss",
    "MixupLoss",
    "Objective",
    "Penalty",
    "ScheduledFocalLoss",
    "WeightedSum",
    "adafocal_gammas",
    "adafocal_loss",
    "brier_loss",
    "cross_entropy_loss",
    "dual_focal_loss",
    "flsd_loss",
    "focal_gradient_weight",
    "focal_loss",
    "inverse_focal_loss",
    "lambert_gamma",
    "mixup_inputs",
    "mixup_loss",
    "scheduled_focal_loss",
    "scheduled_gamma",
]
