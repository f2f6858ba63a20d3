"""The catalogue: every training method by name, as a function from the facts of a run to a plan.

A method's hyper-parameters are the keyword arguments of its function, and their defaults stand nowhere else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_type_hints

from calibrant.core.registry import lookup
from calibrant.engine.meta_methods import REMOVED_OPTIONS, MetaMethod
from calibrant.engine.plans import Facts, LossPlan, MetaPlan, Plan
from calibrant.engine.values import read_value
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

__all__ = ["METHODS", "Facts", "LossPlan", "MetaPlan", "Plan", "make_plan", "split_name"]


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


METHODS: dict[str, Callable[..., Plan]] = {
    "ce": _ce,
    "focal": _focal,
    "flsd": _flsd,
    "ls-0.05": partial(_label_smoothing, label_smoothing=0.05),
    "ls-0.1": partial(_label_smoothing, label_smoothing=0.1),
    "mixup": _mixup,
    "mmce": _mmce,
    "brier": _brier,
    "ce-dece": MetaMethod(regularizer="unitwise-l2", objective="dece"),
    "ce-sece": MetaMethod(regularizer="unitwise-l2", objective="sece"),
    "flgamma-dece": MetaMethod(regularizer="gamma-focal", objective="dece"),
    "flgamma-sece": MetaMethod(regularizer="gamma-focal", objective="sece"),
    "flgamma-skce": MetaMethod(regularizer="gamma-focal", objective="skce"),
    # The paper's ablation does not say how gamma-Net learns without SECE; validation cross-entropy is the plainest reading.
    # Joint training on the training loss is none: that loss falls with gamma, so gamma grows without bound.
    "flgamma": MetaMethod("gamma-focal", "nll", {"val_ce": "nll", "val_fl": "focal", "frozen": "nll"}),
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


def find_method(name: str) -> Callable[..., Plan]:
    """Return the entry of a method, ``+ts`` aside; an unknown name is answered with the nearest one, as ``ce+ts``."""
    return lookup(METHODS, split_name(name)[0], kind="method", also=(f"{known}+ts" for known in METHODS))


def make_plan(name: str, options: Mapping[str, object], facts: Facts) -> Plan:
    """Look a method up and apply its options; an unknown name or option is answered with the nearest one."""
    method = find_method(name)
    known = method.option_types(facts) if isinstance(method, MetaMethod) else _option_types(method)
    read = {}
    for option, value in options.items():
        if option in REMOVED_OPTIONS:
            raise ValueError(
                f"train: `method.options.{option}` must be left out, got {value}: it is gone, as {REMOVED_OPTIONS[option]}."
            )
        if not known:
            raise ValueError(f"method {name!r} has no options, got `{option}`.")
        read[option] = read_value(lookup(known, option, kind=f"option of {name}"), value, f"method.options.{option}")
    return method(facts, **read)


def _option_types(method: Callable[..., Plan]) -> dict[str, Any]:
    """Name → type of the keyword arguments of a method's function, of which some may be given already."""
    plain: Any = method.func if isinstance(method, partial) else method
    hints = get_type_hints(plain)
    return {p.name: hints[p.name] for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY}
