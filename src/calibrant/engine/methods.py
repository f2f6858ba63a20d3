"""The catalogue: every training method by name, as a function from the facts of a run to a plan.

A method's hyper-parameters are the keyword arguments of its function, and their defaults stand nowhere else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal, NamedTuple

from torch import Tensor, nn

from calibrant.core.lookup import lookup
from calibrant.losses import (
    ACLS,
    CPC,
    CRL,
    DCA,
    MDCA,
    SBECE,
    AdaFocalLoss,
    AvUC,
    BrierLoss,
    ConfidencePenalty,
    ConfidencePruner,
    CrossEntropyLoss,
    DualFocalLoss,
    FLSDLoss,
    FocalLoss,
    HuberDCA,
    MbLS,
    SoftAvUC,
    WeightedMMCE,
)
from calibrant.losses.base import Reduction
from calibrant.meta.objectives import make_objective
from calibrant.meta.presets import PRESETS, MetaSettings, settings_of
from calibrant.meta.regularizers import Regularizer
from calibrant.meta.virtual import MetaObjective


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
        frozen: Never move the hyper-parameters.
    """

    regularizer: Regularizer
    objective: MetaObjective
    settings: MetaSettings
    meta_batch_size: int
    frozen: bool = False


Plan = LossPlan | MetaPlan


def _ce(facts: Facts) -> Plan:
    return LossPlan(CrossEntropyLoss(reduction=facts.reduction))


def _label_smoothing(facts: Facts, *, label_smoothing: float) -> Plan:
    return LossPlan(CrossEntropyLoss(label_smoothing=label_smoothing, reduction=facts.reduction))


def _focal(facts: Facts, *, gamma: float = 1.0) -> Plan:
    # The paper's "Focal" has gamma 1.
    return LossPlan(FocalLoss(gamma=gamma, reduction=facts.reduction))


def _flsd(facts: Facts) -> Plan:
    return LossPlan(FLSDLoss(reduction=facts.reduction))


def _mixup(facts: Facts, *, alpha: float = 1.0) -> Plan:
    return LossPlan(CrossEntropyLoss(reduction=facts.reduction), mixup_alpha=alpha)


def _mmce(facts: Facts, *, weight: float = 2.0, normalization: Literal["official", "paper"] = "official") -> Plan:
    # Weight and normalisation of the code that the paper's row was made with.
    penalty = WeightedMMCE(normalization=normalization)
    return LossPlan(CrossEntropyLoss(reduction=facts.reduction) + weight * penalty)


def _brier(facts: Facts) -> Plan:
    return LossPlan(BrierLoss(reduction=facts.reduction))


def _adafocal(facts: Facts) -> Plan:
    return LossPlan(AdaFocalLoss(reduction=facts.reduction))


def _dual_focal(facts: Facts, *, gamma: float = 5.0) -> Plan:
    return LossPlan(DualFocalLoss(gamma=gamma, reduction=facts.reduction))


def _mbls(facts: Facts, *, weight: float = 0.1, margin: float = 10.0) -> Plan:
    return LossPlan(CrossEntropyLoss(reduction=facts.reduction) + weight * MbLS(margin=margin))


def _ecp(facts: Facts, *, weight: float = 0.1) -> Plan:
    return LossPlan(CrossEntropyLoss(reduction=facts.reduction) + weight * ConfidencePenalty())


def _focal_sb_ece(facts: Facts, *, gamma: float = 1.0, weight: float = 1.0) -> Plan:
    return LossPlan(FocalLoss(gamma=gamma, reduction=facts.reduction) + weight * SBECE())


def _focal_s_avuc(facts: Facts, *, gamma: float = 1.0, weight: float = 1.0) -> Plan:
    return LossPlan(FocalLoss(gamma=gamma, reduction=facts.reduction) + weight * SoftAvUC())


def _avuc(facts: Facts, *, beta: float = 3.0) -> Plan:
    return LossPlan(CrossEntropyLoss(reduction=facts.reduction) + AvUC(beta=beta))


def _mdca(facts: Facts, *, gamma: float = 1.0, weight: float = 1.0) -> Plan:
    return LossPlan(FocalLoss(gamma=gamma, reduction=facts.reduction) + weight * MDCA())


def _dca(facts: Facts, *, weight: float = 1.0) -> Plan:
    return LossPlan(CrossEntropyLoss(reduction=facts.reduction) + weight * DCA())


def _patra(facts: Facts, *, gamma: float = 1.0, weight: float = 200.0, fraction: float = 0.1, every: int = 20) -> Plan:
    # No value is published; at 200 the Huber penalty's slope, at most 0.005, is that of DCA with weight 1.
    loss = FocalLoss(gamma=gamma, reduction=facts.reduction) + weight * HuberDCA()
    return LossPlan(loss, pruner=ConfidencePruner(num_samples=facts.num_train, fraction=fraction, every=every))


def _cpc(facts: Facts) -> Plan:
    return LossPlan(CrossEntropyLoss(reduction=facts.reduction) + CPC())


def _acls(facts: Facts, *, weight: float = 0.1) -> Plan:
    return LossPlan(CrossEntropyLoss(reduction=facts.reduction) + weight * ACLS())


def _crl(facts: Facts, *, weight: float = 1.0) -> Plan:
    return LossPlan(CrossEntropyLoss(reduction=facts.reduction) + weight * CRL(num_samples=facts.num_train))


def _meta(
    facts: Facts,
    *,
    regularizer: str,
    objective: str,
    meta_batch_size: int | None = None,
    bandwidth: float | None = None,
    gamma_max: float | None = None,
    **settings: object,
) -> Plan:
    preset = PRESETS[facts.preset]
    build = lookup(preset.regularizers, regularizer, kind="regularizer")
    chosen: Callable[..., Tensor] = make_objective(objective, variants=preset.objectives)
    if bandwidth is not None:
        chosen = partial(chosen, bandwidth=bandwidth)
    # The published code draws 128 held-out samples a step; a calibration error of so few is mostly noise.
    size = meta_batch_size or (128 if facts.preset == "paper" else 1024)
    bound = {} if gamma_max is None else {"gamma_max": gamma_max}
    return MetaPlan(build(**bound), chosen, settings_of(preset, settings), size)


def _flgamma(facts: Facts, *, variant: Literal["val_ce", "val_fl", "frozen"] = "val_ce", **options: object) -> Plan:
    # The paper's ablation does not say how gamma-Net learns without SECE; validation cross-entropy is the plainest reading.
    # Joint training on the training loss is none: that loss falls with gamma, so gamma grows without bound.
    objective = lookup({"val_ce": "nll", "val_fl": "focal", "frozen": "nll"}, variant, kind="variant of flgamma")
    plan = _meta(facts, regularizer="gamma-focal", objective=objective, **options)  # type: ignore[arg-type]
    assert isinstance(plan, MetaPlan)
    return replace(plan, frozen=variant == "frozen")


METHODS: dict[str, Callable[..., Plan]] = {
    "ce": _ce,
    "focal": _focal,
    "flsd": _flsd,
    "ls-0.05": partial(_label_smoothing, label_smoothing=0.05),
    "ls-0.1": partial(_label_smoothing, label_smoothing=0.1),
    "mixup": _mixup,
    "mmce": _mmce,
    "brier": _brier,
    "ce-dece": partial(_meta, regularizer="unitwise-l2", objective="dece"),
    "ce-sece": partial(_meta, regularizer="unitwise-l2", objective="sece"),
    "flgamma-dece": partial(_meta, regularizer="gamma-focal", objective="dece"),
    "flgamma-sece": partial(_meta, regularizer="gamma-focal", objective="sece"),
    "flgamma-skce": partial(_meta, regularizer="gamma-focal", objective="skce"),
    "flgamma": _flgamma,
    "adafocal": _adafocal,
    "dual-focal": _dual_focal,
    "mbls": _mbls,
    "mbls-0": partial(_mbls, margin=0.0),
    "ecp": _ecp,
    "focal+sb-ece": _focal_sb_ece,
    "focal+s-avuc": _focal_s_avuc,
    "avuc": _avuc,
    "mdca": _mdca,
    "dca": _dca,
    "patra": _patra,
    "cpc": _cpc,
    "acls": _acls,
    "crl": _crl,
}


def split_name(name: str) -> tuple[str, bool]:
    """Take ``+ts`` off a method's name; return the rest and whether it was there."""
    return (name.removesuffix("+ts"), True) if name.endswith("+ts") else (name, False)


def make_plan(name: str, options: Mapping[str, object], facts: Facts) -> Plan:
    """Look a method up and apply its options; an unknown name or option is answered with the nearest one."""
    method = lookup(METHODS, split_name(name)[0], kind="method")
    parameters = inspect.signature(method).parameters.values()
    known = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - {"regularizer", "objective"}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        known |= {f.name for f in fields(MetaSettings)} | {"meta_batch_size", "bandwidth", "gamma_max"}
        # The network's own step is the recipe's business, and a captured step looks ahead with the head.
        known -= {"reduction", "clip", "lookahead"}
    for option in options:
        if not known:
            raise ValueError(f"method {name!r} has no options, got `{option}`.")
        lookup(dict.fromkeys(sorted(known)), option, kind=f"option of {name}")
    return method(facts, **options)
