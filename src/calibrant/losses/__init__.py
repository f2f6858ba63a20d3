r"""Train-time calibration objectives: per-sample losses, batch penalties, and their sums.

A loss is a function ``(logits, labels, *, ...) -> [B]`` with a module of the same name that reduces; a penalty a function
``(logits, labels, *, ...) -> []`` of the whole batch. ``logits`` are scores ``[B, C]``, ``labels`` class indices ``[B]`` (for
cross-entropy, Brier and mixup also probabilities ``[B, C]``). Where a docstring says nothing else, the value is at least 0 and
best at 0. Modules add up: ``FocalLoss(gamma=3) + 0.5 * MDCA()``. The two tables are the registry and the source of
``docs/losses.md``; installed packages add to them through the entry points ``calibrant.losses`` and ``calibrant.penalties``.

In all formulas :math:`z_i` are the logits of example i, :math:`q_i = \mathrm{softmax}(z_i)`, :math:`y_i` is its label and
:math:`p_i = q_{iy_i}` the probability of its true class; :math:`c_i = \max_k q_{ik}` is the top probability and :math:`a_i` the
correctness of the top class, 0 or 1, without gradient. A batch has B examples, and there are C classes.
"""

import torch

from calibrant.core.checks import Registry
from calibrant.losses import base, calibration, certainty, per_sample
from calibrant.losses.base import *
from calibrant.losses.calibration import *
from calibrant.losses.certainty import *
from calibrant.losses.per_sample import *

__all__ = ["LOSSES", "PENALTIES", *base.__all__, *calibration.__all__, *certainty.__all__, *per_sample.__all__]

LOSSES: Registry[LossEntry] = Registry(
    "loss",
    "calibrant.losses",
    {
        "cross_entropy": LossEntry(CrossEntropyLoss, "no smoothing", soft_targets=True),
        "focal": LossEntry(FocalLoss, "FL-3 of Mukhoti et al."),
        "flsd": LossEntry(FLSDLoss, "FLSD-53 of Mukhoti et al."),
        "scheduled_focal": LossEntry(ScheduledFocalLoss, "FLSc-531 of Mukhoti et al., for 350 epochs"),
        "inverse_focal": LossEntry(InverseFocalLoss, "none stated: gamma must be given", required={"gamma": 2.0}),
        "dual_focal": LossEntry(
            DualFocalLoss, "gamma must be given: the authors choose it per data set", required={"gamma": 5.0}
        ),
        "adafocal": LossEntry(
            AdaFocalLoss,
            "15 bins and the update rule of the released code; gammas and edges are the module's state",
            required={"gammas": torch.tensor([3.0, 1.0, -0.5]), "edges": torch.tensor([0.0, 0.3, 0.7, 1.0])},
        ),
        "brier": LossEntry(BrierLoss, "no hyper-parameter", soft_targets=True),
        "mixup": LossEntry(MixupLoss, "cross-entropy as base: the released code of Zhang et al.", soft_targets=True),
    },
    of=LossEntry,
)

PENALTIES: Registry[LossEntry] = Registry(
    "penalty",
    "calibrant.penalties",
    {
        "mmce": LossEntry(MMCE, "scale 0.4 of paper and code; the root as in the paper (the code returns the square)"),
        "weighted_mmce": LossEntry(WeightedMMCE, "scale 0.4 of paper and code; normalised as in the paper, unlike its code"),
        "sece": LossEntry(SECE, "ours: less biased on small batches; the paper has bandwidth 0.01 and soft accuracy"),
        "dece": LossEntry(DECE, "released code of Bohdal et al."),
        "sb_ece": LossEntry(SBECE, "p = 2 of the paper; 15 bins and bin temperature 0.01 are ours (the paper tunes them)"),
        "label_binned_sb_ece": LossEntry(LabelBinnedSBECE, "15 bins and bin temperature 0.01 are ours (the paper tunes them)"),
        "avuc": LossEntry(AvUC, "released code of Krishnan and Tickoo: threshold 1 to start with, beta 3 in its scripts"),
        "soft_avuc": LossEntry(SoftAvUC, "threshold 0.5 of the released code; temperature 0.1 is ours (the paper tunes both)"),
        "mdca": LossEntry(MDCA, "no hyper-parameter; weight 1 in the authors' scripts"),
        "dca": LossEntry(DCA, "no hyper-parameter; weight 10 in the authors' code, 1 in that of Hebbalaguppe et al."),
        "skce": LossEntry(SKCE, "bandwidth 0.1 is ours"),
        "kde_ece": LossEntry(KDEECE, "p = 1 of the paper; bandwidth 0.01 is ours (the authors choose it by likelihood)"),
        "confidence_penalty": LossEntry(ConfidencePenalty, "no hyper-parameter; weight 0.1 in the paper"),
        "mbls": LossEntry(MbLS, "margin 10 of the released configuration; weight 0.1 there", twice=False),
        "cpc": LossEntry(CPC, "weights 0.1 and 1 of the port in CALS (no released code)"),
        "acls": LossEntry(ACLS, "released code; weight 0.1 there"),
        "crl": LossEntry(CRL, "released code: score by confidence, weight 1", required={"num_samples": 64}),
        "huber_dca": LossEntry(HuberDCA, "alpha 0.005 is ours: no code was released"),
    },
    of=LossEntry,
)
