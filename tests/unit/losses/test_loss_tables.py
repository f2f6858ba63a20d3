"""Golden values and refused options of all objectives, and what the tables say of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from calibrant import losses
from calibrant.losses import LOSSES, CrossEntropyLoss, FocalLoss, Objective
from helpers import golden

GOLDEN = [
    (FocalLoss(gamma=0, reduction="sum"), 29.029909),
    (FocalLoss(gamma=1, reduction="sum"), 23.556480),
    (FocalLoss(gamma=3, reduction="sum"), 18.669056),
    (losses.FLSDLoss(reduction="sum"), 17.763710),
    (losses.DualFocalLoss(gamma=3, reduction="sum"), 23.551907),
    (CrossEntropyLoss(), 1.209579),
    (CrossEntropyLoss(label_smoothing=0.1), 1.393183),
    (losses.BrierLoss(), 0.601093),
    (losses.MMCE(), 0.140817),
    (losses.MMCE(squared=True), 0.0198295),
    (losses.WeightedMMCE(), 0.432423),
    (losses.WeightedMMCE(normalization="official"), 0.062794),
    *((losses.SECE(accuracy="soft", bandwidth=h), v) for h, v in ((0.01, 0.330263), (0.05, 0.249719), (10, 0.206366))),
    *((losses.SECE(bandwidth=h), v) for h, v in ((0.01, 0.352170), (0.05, 0.272692), (1e-6, 0.469532), (10, 0.203091))),
    (losses.KDEECE(), 0.286856),
    (losses.KDEECE(bandwidth=0.1), 0.259015),
    (losses.DECE(), 0.263221),
    (losses.SBECE(), 0.280120),
    (losses.SBECE(p=1), 0.252784),
    (losses.SBECE(bin_temperature=0.001), 0.330962),
    (losses.SBECE(bin_temperature=0.001, p=1), 0.287732),
    (losses.AvUC(beta=1), 0.406628),
    (losses.SoftAvUC(), 0.843105),
    (losses.ConfidencePenalty(), -0.782877),
    (losses.MDCA(), 0.050418),
    (losses.DCA(), 0.678025 - 2 / 3),
    (CrossEntropyLoss() + 0.1 * losses.MbLS(margin=2), 1.336999),
    (CrossEntropyLoss() + 0.1 * losses.ACLS(margin=2), 1.351753),
    (losses.CPC(bdc_weight=1, bec_weight=0), 0.426386),
    (losses.CPC(bdc_weight=0), 0.793017),
]


@pytest.mark.parametrize(("objective", "value"), GOLDEN, ids=lambda given: repr(given))
def test_objective_of_golden_input_has_the_golden_value(objective: Objective, value: float) -> None:
    logits, labels = golden()
    assert objective(logits, labels).item() == pytest.approx(value, rel=1e-6, abs=7e-7)
    # A kernel of width 0.01 magnifies the rounding of float32.
    assert objective(logits.float(), labels).item() == pytest.approx(value, rel=1e-5, abs=7e-7)


REFUSED: list[tuple[Callable[..., Tensor], str, list[object]]] = [
    (losses.focal_loss, "gamma", [-1, math.nan, torch.ones(24, 1), torch.tensor(-0.5), torch.tensor(math.inf)]),
    (losses.flsd_loss, "threshold", [0, 1]),
    (losses.inverse_focal_loss, "gamma", [-1]),
    (losses.dual_focal_loss, "gamma", [-1]),
    (losses.scheduled_focal_loss, "schedule", [[], [(1, 5.0)], [(0, 5.0), (9, 3.0), (9, 1.0)]]),
    (losses.scheduled_focal_loss, "epoch", [-1, 1.5]),
    (losses.cross_entropy_loss, "label_smoothing", [-0.1, 1.0, math.nan]),
    (losses.mmce_penalty, "scale", [0, math.nan]),
    (losses.weighted_mmce_penalty, "normalization", ["mean"]),
    (losses.sece_penalty, "bandwidth", [-1]),
    (losses.sece_penalty, "accuracy", ["exact"]),
    (losses.sece_penalty, "distance", ["l3"]),
    (losses.skce_penalty, "bandwidth", [0]),
    (losses.kde_ece_penalty, "bandwidth", [0]),
    (losses.kde_ece_penalty, "p", [0]),
    (losses.dece_penalty, "n_bins", [0]),
    (losses.dece_penalty, "bin_temperature", [0]),
    (losses.dece_penalty, "sharpness", [0]),
    (losses.sb_ece_penalty, "n_bins", [1.5]),
    (losses.sb_ece_penalty, "p", [3]),
    (losses.label_binned_sb_ece_penalty, "bin_temperature", [0]),
    (losses.huber_dca_penalty, "alpha", [0]),
    (losses.avuc_penalty, "beta", [0]),
    (losses.soft_avuc_penalty, "temperature", [0]),
    (losses.soft_avuc_penalty, "threshold", [1]),
    (losses.mbls_penalty, "margin", [-1]),
    (losses.acls_penalty, "margin", [-1]),
    (losses.acls_penalty, "rest_weight", [-1]),
    (losses.cpc_penalty, "bec_weight", [-1]),
]


@pytest.mark.parametrize(("function", "name", "values"), REFUSED, ids=lambda given: getattr(given, "__name__", ""))
def test_option_out_of_range_is_refused_by_its_name(function: Callable[..., Tensor], name: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=rf"`{name}` must"):
            function(*golden(), **{name: value})


@pytest.mark.parametrize(
    ("module", "options", "name"),
    [
        (losses.ConfidencePruner, {"num_samples": 4, "fraction": 1}, "fraction"),
        (losses.ConfidencePruner, {"num_samples": 4, "ema": -0.1}, "ema"),
        (losses.ConfidencePruner, {"num_samples": 4, "every": 0}, "every"),
        (losses.CRL, {"num_samples": 0}, "num_samples"),
        (losses.AdaFocalLoss, {"n_bins": 0}, "n_bins"),
        (losses.AdaFocalLoss, {"rate": -1.0}, "rate"),
        (losses.ScheduledFocalLoss, {"schedule": [(0, -1)]}, "schedule"),
        (FocalLoss, {"weight": [1.0, 2.0]}, "weight"),
        (FocalLoss, {"weight": torch.tensor([-1.0])}, "weight"),
        (FocalLoss, {"reduction": "avg"}, "reduction"),
        (losses.MixupLoss, {"base": losses.MDCA()}, "base"),
        (losses.MixupLoss, {"base": CrossEntropyLoss(reduction="sum")}, "base"),
    ],
)
def test_module_refuses_what_it_cannot_be_made_of(module: Callable[..., object], options: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^\w+: `{name}` must"):
        module(**options)


def test_module_without_a_required_or_with_a_misspelt_argument_says_which() -> None:
    with pytest.raises(TypeError, match="DualFocalLoss: `gamma` must be given"):
        losses.DualFocalLoss()
    for module, given, meant in (
        (FocalLoss, "gama", "gamma"),
        (losses.AdaFocalLoss, "n_bin", "n_bins"),
        (losses.MDCA, "ignor_index", "ignore_index"),
    ):
        with pytest.raises(ValueError, match=rf"argument of {module.__name__} '{given}'. Did you mean '{meant}'\?"):
            module(**{given: 3})


def test_tables_find_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"unknown loss 'focl'. Did you mean 'focal'\?"):
        LOSSES["focl"]
