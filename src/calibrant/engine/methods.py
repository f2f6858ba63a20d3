"""The catalogue: every training method by name, one record each, and what a recipe leaves to its method.

A method's hyper-parameters are the keyword arguments of the function that builds its plan; their defaults stand nowhere else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, TypeAlias, get_type_hints

from calibrant.core.registry import Registry, lookup
from calibrant.engine.objective import Facts, LossPlan, MetaPlan, MetaSchedule, MixupPlan
from calibrant.engine.recipe import KEYS, NEUTRAL, Recipe, override, read_value, value_of
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
from calibrant.meta.step import PRESETS, MetaSettings, make_objective, settings_of

__all__ = ["METHODS", "Facts", "LossPlan", "Method", "MetaPlan", "make_plan", "resolved", "split_name"]

# How figures draw a method: colour of the palette, marker, and line ("-", "--", "-." or "-..").
Look: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True)
class Method:
    """Everything about a training method.

    Attributes:
        label: Name in tables and figures.
        help: What it minimises, in a few words.
        loss: The entry of docs/losses.md with formula and reference.
        build: ``build(facts, **options)`` returns the plan of a run; its keyword arguments are the options of the method.
        look: How figures draw it; None takes whatever is free.
        learns: Whether it learns hyper-parameters on held-out data.
        average: Averaging of weights under the default preset.
        select: What picks the best epoch under the default preset.
    """

    label: str
    help: str
    loss: str
    build: Callable[..., LossPlan]
    look: Look | None = None
    learns: bool = False
    average: Literal["no", "ema", "phase"] = "no"
    select: Literal["error", "nll", "error+nll", "error+ece", "last"] = "error"


_OWN = {"meta_batch_size": int | None, "refresh": int | None, "meta_schedule": MetaSchedule, "pace": float | None}
# What earlier releases had, and why it is gone; their recipes are read, but not trained again.
REMOVED_OPTIONS = {
    "watch_share": "looking through a second average did not help",
    "positive": "the modulus of the score serves as well as any other map",
    "meta_clip": "Adam is indifferent to the size of the hypergradient",
    "lookahead_clip": "no preset clips the look-ahead step",
    "variant": "flgamma learns by cross-entropy; flgamma-sece and others by another objective",
}
# Training images are cropped with a margin of zeros and meta images are not, so the running statistics, with which predictions
# are made, differ from those of a meta batch. Normalised by its own, a small ResNet that overstated its accuracy by 7.3 %
# seemed to by 6.0 %: what was steered was not the confidence that users see.
_PRESET_OPTIONS: dict[str, dict[str, Any]] = {"default": {"meta_bn": "frozen", "every": 8}, "paper": {}}
# The network's own step is the recipe's business.
_REFUSED = ("reduction", "clip")


@dataclass(frozen=True)
class MetaMethod:
    """Builds the plan of a method that learns on held-out data: a learnable regularizer and the objective that steers it.

    Attributes:
        regularizer: Name of the regularizer.
        objective: Name of the objective.
    """

    regularizer: str
    objective: str

    def options(self, facts: Facts) -> tuple[dict[str, Any], ...]:
        """Return name → type of the options of a run, of the regularizer, of the objective, and of the settings."""
        preset = PRESETS[facts.preset]
        objective = make_objective(self.objective, variants=preset.objectives)
        settings = {name: kind for name, kind in get_type_hints(MetaSettings).items() if name not in _REFUSED}
        return _OWN, _keywords_of(preset.regularizers[self.regularizer]), _keywords_of(objective), settings

    def __call__(self, facts: Facts, **given: Any) -> LossPlan:
        """Return the plan of a run."""
        preset, paper = PRESETS[facts.preset], facts.preset == "paper"
        own, loss, penalty, settings = ({n: given[n] for n in known if n in given} for known in self.options(facts))
        for first, second in (("meta_batch_size", "refresh"), ("pace", "meta_lr")):
            if given.get(first) is not None and given.get(second) is not None:
                both = f"`method.options.{first}` and `method.options.{second}`"
                raise ValueError(f"train: only one of {both} may be given, got both.")
        if own.get("pace") is not None:
            settings["meta_lr"] = None  # in the place of a learning rate that the preset has
        objective: Callable[..., Any] = make_objective(self.objective, variants=preset.objectives)
        # The published code draws 128 held-out samples a step; a calibration error of so few is mostly noise.
        defaults = {"meta_batch_size": 128} if paper else {"meta_schedule": "slowing"}
        return MetaPlan(
            preset.regularizers[self.regularizer](**loss),
            partial(objective, **penalty) if penalty else objective,
            settings_of(preset, _PRESET_OPTIONS[facts.preset] | settings),
            **defaults | own,
        )


def _keywords_of(function: Callable[..., object]) -> dict[str, Any]:
    """Name → type of the keyword arguments of a function, of a class, or of a partial one of either."""
    plain: Any = function
    while isinstance(plain, partial):
        plain = plain.func
    names = [p.name for p in inspect.signature(plain).parameters.values() if p.kind is p.KEYWORD_ONLY]
    hints = get_type_hints(plain.__init__ if inspect.isclass(plain) else plain)
    return {name: hints[name] for name in names}


def _alone(loss: Callable[..., Any]) -> Callable[..., LossPlan]:
    """A loss without options."""
    return lambda facts: LossPlan(loss())


def _with_ce(penalty: Callable[[], Any], weight: float) -> Callable[..., LossPlan]:
    def build(facts: Facts, *, weight: float = weight) -> LossPlan:
        return LossPlan(CrossEntropyLoss() + weight * penalty())

    return build


def _with_focal(penalty: Callable[[], Any]) -> Callable[..., LossPlan]:
    def build(facts: Facts, *, gamma: float = 1.0, weight: float = 1.0) -> LossPlan:
        return LossPlan(FocalLoss(gamma=gamma) + weight * penalty())

    return build


def _smoothed(share: float) -> Callable[..., LossPlan]:
    def build(facts: Facts, *, label_smoothing: float = share) -> LossPlan:
        return LossPlan(CrossEntropyLoss(label_smoothing=label_smoothing))

    return build


def _focal(facts: Facts, *, gamma: float = 1.0) -> LossPlan:
    # The paper's "Focal" has gamma 1.
    return LossPlan(FocalLoss(gamma=gamma))


def _mixup(facts: Facts, *, alpha: float = 1.0) -> LossPlan:
    return MixupPlan(CrossEntropyLoss(), alpha=alpha)


def _mmce(facts: Facts, *, weight: float = 2.0, normalization: Literal["official", "paper"] = "official") -> LossPlan:
    # Weight and normalisation of the code that the paper's row was made with.
    return LossPlan(CrossEntropyLoss() + weight * WeightedMMCE(normalization=normalization))


def _dual_focal(facts: Facts, *, gamma: float = 5.0) -> LossPlan:
    return LossPlan(DualFocalLoss(gamma=gamma))


def _mbls(facts: Facts, *, weight: float = 0.1, margin: float = 10.0) -> LossPlan:
    return LossPlan(CrossEntropyLoss() + weight * MbLS(margin=margin))


def _avuc(facts: Facts, *, beta: float = 3.0) -> LossPlan:
    return LossPlan(CrossEntropyLoss() + AvUC(beta=beta))


def _patra(facts: Facts, *, gamma: float = 1.0, weight: float = 200.0, fraction: float = 0.1, every: int = 20) -> LossPlan:
    # No value is published; at 200 the Huber penalty's slope, at most 0.005, is that of DCA with weight 1.
    pruner = ConfidencePruner(num_samples=facts.num_train, fraction=fraction, every=every)
    return LossPlan(FocalLoss(gamma=gamma) + weight * HuberDCA(), pruner=pruner)


def _crl(facts: Facts, *, weight: float = 1.0) -> LossPlan:
    return LossPlan(CrossEntropyLoss() + weight * CRL(num_samples=facts.num_train))


def _learned(label: str, regularizer: str, objective: str, look: Look) -> Method:
    """A method that learns on held-out data: averaged weights predict, and the lowest NLL near the lowest error is best."""
    by = "cross-entropy" if objective == "nll" else objective.upper()
    kind = {"unitwise-l2": "cross-entropy with unit-wise L2", "gamma-focal": "focal loss with a gamma for every example"}
    return Method(
        label=label,
        help=f"{kind[regularizer]}, learned on held-out data by {by}",
        loss="focal" if objective == "nll" else objective,
        build=MetaMethod(regularizer, objective),
        look=look,
        learns=True,
        average="phase",
        select="error+nll",
    )


# No two of a colour share marker or line. The paper's ablation does not say how gamma-Net learns without SECE: validation
# cross-entropy is the plainest reading. Joint training on the training loss is none: it falls with gamma, which then grows
# without bound.
BUILTIN: dict[str, Method] = {
    "ce": Method("CE", "cross-entropy", "cross_entropy", _alone(CrossEntropyLoss), ("black", "o", "-")),
    "focal": Method("Focal", "focal loss, one gamma for all", "focal", _focal, ("green", "s", "-")),
    "flsd": Method(
        "FLSD", "focal loss, gamma set by the probability of the true class", "flsd", _alone(FLSDLoss), ("green", "^", "--")
    ),
    "ls-0.05": Method("LS-0.05", "smoothed cross-entropy", "cross_entropy", _smoothed(0.05), ("sky", "D", "-")),
    "ls-0.1": Method("LS-0.1", "smoothed cross-entropy", "cross_entropy", _smoothed(0.1), ("sky", "h", "--")),
    "mixup": Method("Mixup", "cross-entropy on mixtures of two images", "mixup", _mixup, ("grey", "p", "--")),
    "mmce": Method("MMCE", "cross-entropy and weighted MMCE", "weighted_mmce", _mmce, ("grey", "v", "-.")),
    "brier": Method("Brier", "Brier score", "brier", _alone(BrierLoss), ("purple", ">", "-")),
    "ce-dece": _learned("CE-DECE", "unitwise-l2", "dece", ("blue", "P", "-.")),
    "ce-sece": _learned("CE-SECE", "unitwise-l2", "sece", ("purple", "X", "--")),
    "flgamma-dece": _learned("FLγ-DECE", "gamma-focal", "dece", ("orange", "^", "-.")),
    "flgamma-sece": _learned("FLγ-SECE", "gamma-focal", "sece", ("vermillion", "*", "-")),
    "flgamma-skce": _learned("FLγ-SKCE", "gamma-focal", "skce", ("orange", "8", "-")),
    "flgamma": _learned("FLγ", "gamma-focal", "nll", ("vermillion", "s", "--")),
    "adafocal": Method(
        "AdaFocal",
        "focal loss, gamma set by the calibration of validation bins",
        "adafocal",
        _alone(AdaFocalLoss),
        ("blue", "<", "--"),
    ),
    "dual-focal": Method(
        "Dual Focal", "focal loss of the lead over the runner-up class", "dual_focal", _dual_focal, ("black", "d", "--")
    ),
    "mbls": Method("MbLS", "cross-entropy and logits beyond a margin", "mbls", _mbls, ("sky", "<", "-.")),
    "mbls-0": Method(
        "MbLS (no margin)",
        "cross-entropy and differences between logits",
        "mbls",
        partial(_mbls, margin=0.0),
        ("grey", "X", "-"),
    ),
    "ecp": Method(
        "ECP",
        "cross-entropy minus the entropy of predictions",
        "confidence_penalty",
        _with_ce(ConfidencePenalty, 0.1),
        ("black", "s", "-."),
    ),
    "focal+sb-ece": Method(
        "Focal+SB-ECE", "focal loss and soft-binned ECE", "sb_ece", _with_focal(SBECE), ("green", "h", "-.")
    ),
    "focal+s-avuc": Method(
        "Focal+S-AvUC",
        "focal loss and soft accuracy versus uncertainty",
        "soft_avuc",
        _with_focal(SoftAvUC),
        ("blue", "D", "-"),
    ),
    "avuc": Method("AvUC", "cross-entropy and accuracy versus uncertainty", "avuc", _avuc, ("purple", "o", "-.")),
    "mdca": Method("MDCA", "focal loss and class-wise gaps in confidence", "mdca", _with_focal(MDCA), ("orange", "p", "--")),
    "dca": Method(
        "DCA", "cross-entropy and the gap between confidence and accuracy", "dca", _with_ce(DCA, 1.0), ("vermillion", "v", "-.")
    ),
    "patra": Method(
        "Huber-DCA",
        "focal loss and a Huber loss of the gap between confidence and accuracy; unsure examples are pruned",
        "huber_dca",
        _patra,
        ("black", "^", "-.."),
    ),
    "cpc": Method(
        "CPC",
        "cross-entropy and constraints on pairs of classes",
        "cpc",
        _alone(lambda: CrossEntropyLoss() + CPC()),
        ("sky", "p", "-.."),
    ),
    "acls": Method(
        "ACLS", "cross-entropy and adaptive, conditional label smoothing", "acls", _with_ce(ACLS, 0.1), ("grey", "o", "-..")
    ),
    "crl": Method(
        "CRL",
        "cross-entropy and a ranking of examples by how often they were right",
        "crl",
        _crl,
        ("green", ">", "-.."),
    ),
}
METHODS: Registry[Method] = Registry("method", "calibrant.methods", BUILTIN, of=Method)


def split_name(name: str) -> tuple[str, bool]:
    """Take ``+ts`` off a method's name; return the rest and whether it was there."""
    return (name.removesuffix("+ts"), True) if name.endswith("+ts") else (name, False)


def find_method(name: str) -> Method:
    """Return the entry of a method, ``+ts`` aside; an unknown name is answered with the nearest one, as ``ce+ts``."""
    return lookup(METHODS, split_name(name)[0], kind="method", also=(f"{known}+ts" for known in METHODS))


def learns(recipe: Recipe) -> bool:
    """Whether the method of a recipe learns on held-out data; an unknown one does not."""
    name = split_name(recipe.method.name)[0]
    return name in METHODS and METHODS[name].learns


def make_plan(name: str, options: Mapping[str, object], facts: Facts) -> LossPlan:
    """Look a method up and apply its options; an unknown name or option is answered with the nearest one."""
    method = find_method(name)
    kinds = method.build.options(facts) if isinstance(method.build, MetaMethod) else (_keywords_of(method.build),)
    known = {option: kind for part in kinds for option, kind in part.items()}
    read = {}
    for option, value in options.items():
        if option in REMOVED_OPTIONS:
            raise ValueError(
                f"train: `method.options.{option}` must be left out, got {value}: it is gone, as {REMOVED_OPTIONS[option]}."
            )
        if not known:
            raise ValueError(f"method {name!r} has no options, got `{option}`.")
        read[option] = read_value(lookup(known, option, kind=f"option of {name}"), value, f"method.options.{option}")
    return method.build(facts, **read)


def facts_of(recipe: Recipe, *, num_train: int = 1) -> Facts:
    """Return what a method may need to know of a run with this number of training examples."""
    return Facts(num_train, recipe.train.reduction, recipe.method.preset)


def resolved(recipe: Recipe) -> Recipe:
    """Return the recipe with averaging and choice of the epoch decided.

    The published protocol averages no weights and takes the epoch with the lowest validation error. A method may depart from
    it under ``default``.

    Example:
        >>> train = resolved(Recipe()).train
        >>> train.average, train.select
        ('phase', 'error+nll')
    """
    train, name = recipe.train, split_name(recipe.method.name)[0]
    own = METHODS[name] if name in METHODS and recipe.method.preset == "default" else METHODS["ce"]
    average = own.average if train.average == "auto" else train.average
    select = own.select if train.select == "auto" else train.select
    return replace(recipe, train=replace(train, average=average, select=select))


# What a run is named by. Commands always say it, since a default may change.
NAMED = ("data.name", "backbone.name", "method.name", "method.preset", "train.epochs", "seed")


def flat_recipe(recipe: Recipe) -> dict[str, object]:
    """Return what decides a run, dotted key → value, the method's choices filled in and the place of the data left out."""
    decided = resolved(recipe)
    found = {key: value_of(decided, key) for key in KEYS if key not in ("data.root", "method.options")}
    return found | {f"method.options.{name}": value for name, value in decided.method.options.items()}


def text_of(value: object) -> str:
    """Return a value of a recipe as it is typed."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)


@cache
def usual_recipe(method: str, preset: str) -> Mapping[str, str]:
    """Return the recipe that a method has by itself, as `flat_recipe` with values as text."""
    recipe = override(Recipe(), {"method.name": method, "method.preset": "paper" if preset == "paper" else "default"})
    return {key: text_of(value) for key, value in flat_recipe(recipe).items()}


def settle(method: str, preset: str | None, told: Mapping[str, object]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the whole recipe of a run that was ``told`` some keys, and those of them that its method would not have chosen.

    What a run is named by, and what does not change its result, is in the first only.
    """
    usual = usual_recipe(method, preset or "default")
    given = {key: text_of(value) for key, value in sorted(told.items())}
    silent = {*NAMED, *NEUTRAL, "train.eval_every_epochs"}
    return {**usual, **given}, {k: v for k, v in given.items() if k not in silent and usual.get(k) != v}
