"""Train-time calibration objectives: per-sample losses, batch penalties, and their sums.

A loss is a function ``(logits, labels, *, ...) -> [B]`` with a module of the same name that reduces; a penalty a function
``(logits, labels, *, ...) -> []`` of the whole batch. Modules add up: ``FocalLoss(gamma=3) + 0.5 * MDCA()``. The two tables
are the registry, the list of exports and the source of ``docs/losses.md``.
"""

import torch

from calibrant.losses.acls import ACLS, acls_penalty
from calibrant.losses.adafocal import AdaFocalLoss, adafocal_gammas, adafocal_loss
from calibrant.losses.avuc import AvUC, SoftAvUC, avuc_penalty, avuc_threshold, soft_avuc_penalty
from calibrant.losses.base import Entry, Loss, Objective, Penalty, WeightedSum
from calibrant.losses.brier import BrierLoss, brier_loss
from calibrant.losses.confidence_penalty import ConfidencePenalty, confidence_penalty
from calibrant.losses.cpc import CPC, cpc_penalty
from calibrant.losses.crl import CRL, crl_penalty
from calibrant.losses.cross_entropy import CrossEntropyLoss, cross_entropy_loss
from calibrant.losses.dece import DECE, dece_penalty
from calibrant.losses.dual_focal import DualFocalLoss, dual_focal_loss
from calibrant.losses.flsd import FLSDLoss, flsd_loss, lambert_gamma
from calibrant.losses.focal import FocalLoss, focal_gradient_weight, focal_loss
from calibrant.losses.huber import ConfidencePruner, HuberDCA, huber_dca_penalty
from calibrant.losses.inverse_focal import InverseFocalLoss, inverse_focal_loss
from calibrant.losses.kde import KDEECE, kde_ece_penalty
from calibrant.losses.mbls import MbLS, mbls_penalty
from calibrant.losses.mdca import DCA, MDCA, dca_penalty, mdca_penalty
from calibrant.losses.mixup import MixupLoss, mixup_inputs, mixup_loss
from calibrant.losses.mmce import MMCE, WeightedMMCE, mmce_penalty, weighted_mmce_penalty
from calibrant.losses.sb_ece import SBECE, LabelBinnedSBECE, label_binned_sb_ece_penalty, sb_ece_penalty
from calibrant.losses.scheduled_focal import ScheduledFocalLoss, scheduled_focal_loss, scheduled_gamma
from calibrant.losses.sece import SECE, sece_penalty
from calibrant.losses.skce import SKCE, skce_penalty

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
        code="torrvision/focal_calibration, Losses/focal_loss.py, `FocalLoss`",
    ),
    "flsd": Entry(
        flsd_loss,
        FLSDLoss,
        source="FLSD-53 of Mukhoti et al.",
        reference="Mukhoti et al., NeurIPS 2020, section 5",
        code="torrvision/focal_calibration, Losses/focal_loss_adaptive_gamma.py, `FocalLossAdaptive`",
    ),
    "scheduled_focal": Entry(
        scheduled_focal_loss,
        ScheduledFocalLoss,
        source="FLSc-531 of Mukhoti et al., for 350 epochs",
        reference="Mukhoti et al., NeurIPS 2020, appendix",
        code="torrvision/focal_calibration, train.py, option `--gamma-schedule`",
    ),
    "inverse_focal": Entry(
        inverse_focal_loss,
        InverseFocalLoss,
        source="none stated: gamma must be given",
        reference="Wang, Feng and Zhang, NeurIPS 2021, section 5.2",
        required={"gamma": 2.0},
    ),
    "dual_focal": Entry(
        dual_focal_loss,
        DualFocalLoss,
        source="chosen per data set by the authors: gamma must be given",
        reference="Tao, Dong and Xu, ICML 2023",
        code="Linwei94/ICML2023-DualFocalLoss, Losses/dual_focal_loss.py, `DualFocalLoss`",
        required={"gamma": 5.0},
    ),
    "adafocal": Entry(
        adafocal_loss,
        AdaFocalLoss,
        source="15 bins and the update rule of the released code; gammas and edges are the module's state",
        reference="Ghosh, Schaaf and Gormley, NeurIPS 2022 (eq. 5 and algorithm 1 of the earlier submission to ICLR 2022)",
        code="3mcloud/adafocal, losses/adafocal.py, `AdaFocal`",
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
        reference="Zhang et al., ICLR 2018, section 2; Thulasidasan et al., NeurIPS 2019",
        code="facebookresearch/mixup-cifar10, train.py, `mixup_criterion`",
        soft_targets=True,
    ),
}

PENALTIES: dict[str, Entry] = {
    "mmce": Entry(
        mmce_penalty,
        MMCE,
        source="scale 0.4 of the paper and its code; the root as in the paper (the code returns the square)",
        reference="Kumar, Sarawagi and Jain, ICML 2018 (eqs. 7 and 8 as others cite it)",
        code="aviralkumar2907/MMCE, 20ng_mmce.py, `calibration_unbiased_loss`",
        kernel=True,
    ),
    "weighted_mmce": Entry(
        weighted_mmce_penalty,
        WeightedMMCE,
        source="scale 0.4 of the paper and its code; normalised as in the paper (the code divides twice)",
        reference="Kumar, Sarawagi and Jain, ICML 2018",
        code="aviralkumar2907/MMCE, 20ng_mmce.py, `calibration_mmce_w_loss`",
        kernel=True,
    ),
    "sece": Entry(
        sece_penalty,
        SECE,
        source="ours: less biased on small batches; the paper has bandwidth 0.01 and soft accuracy",
        reference="Wang and Golebiowski, TMLR 2024, eqs. 6 to 8, with the ratio of eq. 13",
        kernel=True,
    ),
    "dece": Entry(
        dece_penalty,
        DECE,
        source="released code of Bohdal et al.",
        reference="Bohdal, Yang and Hospedales, TMLR 2023; bins of Yang, Morillo and Hospedales, 2018, eqs. 1 and 2",
        code="ondrejbohdal/meta-calibration, Losses/dece.py, `DECE`",
    ),
    "sb_ece": Entry(
        sb_ece_penalty,
        SBECE,
        source="p = 2 of the paper; 15 bins and bin temperature 0.01 are ours (the paper tunes them)",
        reference="Karandikar et al., NeurIPS 2021, eq. 11",
        code="google/uncertainty-baselines, experimental/caltrain/secondary_losses.py",
    ),
    "label_binned_sb_ece": Entry(
        label_binned_sb_ece_penalty,
        LabelBinnedSBECE,
        source="15 bins and bin temperature 0.01 are ours (the paper tunes them)",
        reference="Karandikar et al., NeurIPS 2021, eq. 12",
        code="google/uncertainty-baselines, experimental/caltrain/secondary_losses.py",
    ),
    "avuc": Entry(
        avuc_penalty,
        AvUC,
        source="released code of Krishnan and Tickoo: threshold 1 to start with, beta 3 in its scripts",
        reference="Krishnan and Tickoo, NeurIPS 2020, eq. 3",
        code="IntelLabs/AVUC, src/avuc_loss.py, `AvULoss`",
    ),
    "soft_avuc": Entry(
        soft_avuc_penalty,
        SoftAvUC,
        source="threshold 0.5 of the released code; temperature 0.1 is ours (the paper tunes both)",
        reference="Karandikar et al., NeurIPS 2021, eq. 15",
        code="google/uncertainty-baselines, experimental/caltrain/secondary_losses.py",
    ),
    "mdca": Entry(
        mdca_penalty,
        MDCA,
        source="no hyper-parameter; weight 1 in the authors' scripts",
        reference="Hebbalaguppe et al., CVPR 2022",
        code="mdca-loss/MDCA-Calibration, solvers/loss.py, `MDCA`",
    ),
    "dca": Entry(
        dca_penalty,
        DCA,
        source="no hyper-parameter; weight 10 in the authors' code, 1 in the comparison of Hebbalaguppe et al.",
        reference="Liang et al., BMVC 2020",
        code="FOURM-LAB/DCA, loss_fn.py, `cross_entropy_with_dca_loss`",
    ),
    "skce": Entry(
        skce_penalty,
        SKCE,
        source="bandwidth 0.1 is ours",
        reference="Widmann, Lindsten and Zachariah, NeurIPS 2019, the estimator SKCE_uq (table 1 as others cite it)",
        code="devmotion/CalibrationErrors.jl, src/skce/unbiased.jl, `UnbiasedSKCE`",
        kernel=True,
    ),
    "kde_ece": Entry(
        kde_ece_penalty,
        KDEECE,
        source="bandwidth 0.01 is ours (the authors choose it by leave-one-out likelihood); p = 1 of the paper",
        reference="Popordanoska, Sayer and Blaschko, NeurIPS 2022, eq. 9, in its top-label form",
        code="tpopordanoska/ece-kde, ece_kde.py, `get_ece_kde`",
        kernel=True,
    ),
    "confidence_penalty": Entry(
        confidence_penalty,
        ConfidencePenalty,
        source="no hyper-parameter; weight 0.1 in the paper",
        reference="Pereyra et al., ICLR workshop 2017, section 3 (unnumbered)",
    ),
    "mbls": Entry(
        mbls_penalty,
        MbLS,
        source="margin 10 of the released configuration; weight 0.1 there",
        reference="Liu et al., CVPR 2022",
        code="by-liu/MbLS, calibrate/losses/logit_margin_l1.py, `LogitMarginL1`",
        twice=False,
    ),
    "cpc": Entry(
        cpc_penalty,
        CPC,
        source="weights 0.1 and 1 of the port in CALS (no released code)",
        reference="Cheng and Vasconcelos, CVPR 2022 (eqs. 15 and 16 as others cite it)",
        code="none known; a port in by-liu/CALS, calibrate/losses/cpc_loss.py, `CPCLoss`",
    ),
    "acls": Entry(
        acls_penalty,
        ACLS,
        source="released code; weight 0.1 there",
        reference="Park et al., ICCV 2023",
        code="cvlab-yonsei/ACLS, calibrate/losses/acls.py, `ACLS`",
    ),
    "crl": Entry(
        crl_penalty,
        CRL,
        source="released code: score by confidence, weight 1; the module keeps the history",
        reference="Moon et al., ICML 2020, eq. 2",
        code="daintlab/confidence-aware-learning, train.py and crl_utils.py",
        required={"num_samples": 64},
    ),
    "huber_dca": Entry(
        huber_dca_penalty,
        HuberDCA,
        source="alpha 0.005 is ours: re-implemented from the description, no code was released",
        reference="Patra et al., WACV 2023",
    ),
}

__all__ = [
    "LOSSES",
    "PENALTIES",
    "ACLS",
    "AdaFocalLoss",
    "AvUC",
    "BrierLoss",
    "CPC",
    "CRL",
    "ConfidencePenalty",
    "ConfidencePruner",
    "CrossEntropyLoss",
    "DCA",
    "DECE",
    "DualFocalLoss",
    "Entry",
    "FLSDLoss",
    "FocalLoss",
    "HuberDCA",
    "InverseFocalLoss",
    "KDEECE",
    "LabelBinnedSBECE",
    "Loss",
    "MDCA",
    "MMCE",
    "MbLS",
    "MixupLoss",
    "Objective",
    "Penalty",
    "SBECE",
    "SECE",
    "SKCE",
    "ScheduledFocalLoss",
    "SoftAvUC",
    "WeightedMMCE",
    "WeightedSum",
    "acls_penalty",
    "adafocal_gammas",
    "adafocal_loss",
    "avuc_penalty",
    "avuc_threshold",
    "brier_loss",
    "confidence_penalty",
    "cpc_penalty",
    "crl_penalty",
    "cross_entropy_loss",
    "dca_penalty",
    "dece_penalty",
    "dual_focal_loss",
    "flsd_loss",
    "focal_gradient_weight",
    "focal_loss",
    "huber_dca_penalty",
    "inverse_focal_loss",
    "kde_ece_penalty",
    "label_binned_sb_ece_penalty",
    "lambert_gamma",
    "mbls_penalty",
    "mdca_penalty",
    "mixup_inputs",
    "mixup_loss",
    "mmce_penalty",
    "sb_ece_penalty",
    "scheduled_focal_loss",
    "scheduled_gamma",
    "sece_penalty",
    "skce_penalty",
    "soft_avuc_penalty",
    "weighted_mmce_penalty",
]
