"""Methods that learn hyper-parameters of their loss on held-out data, with everything about them that a recipe may set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_type_hints

from torch import Tensor

from calibrant.core.checks import check_count, check_positive
from calibrant.core.registry import lookup
from calibrant.engine.objective import Facts, MetaPlan, MetaSchedule, Plan
from calibrant.meta.settings import PRESETS, MetaSettings, make_objective, settings_of

# Of a run's own: the rest are options of the settings, of the regularizer and of the objective.
_OWN = {"meta_batch_size": int | None, "meta_schedule": MetaSchedule, "pace": float | None}
# What earlier releases had, and why it is gone; their recipes are read, but not trained again.
REMOVED_OPTIONS = {"watch_share": "looking through a second average did not help"}
# Training images are cropped with a margin of zeros and meta images are not, so the running statistics, with which predictions
# are made, differ from those of a meta batch. Normalised by its own, a small ResNet that overstated its accuracy by 7.3 %
# seemed to by 6.0 %: what was steered was not the confidence that users see.
_PRESET_OPTIONS: Mapping[str, Mapping[str, Any]] = {"default": {"meta_bn": "frozen"}, "paper": {}}
# The network's own step is the recipe's business, and a captured step looks ahead with the head.
_REFUSED = ("reduction", "clip", "lookahead")


@dataclass(frozen=True)
class MetaMethod:
    """A method of the catalogue: a learnable regularizer and the objective that steers it.

    Attributes:
        regularizer: Name of the regularizer.
        objective: Name of the objective.
        variants: Value of the option ``variant`` → objective in the place of the first one's; "frozen" learns nothing.
    """

    regularizer: str
    objective: str
    variants: Mapping[str, str] = field(default_factory=dict)

    def option_types(self, facts: Facts) -> dict[str, Any]:
        """Return name → type of every option."""
        preset = PRESETS[facts.preset]
        settings = {name: kind for name, kind in get_type_hints(MetaSettings).items() if name not in _REFUSED}
        found = _OWN | settings | _keywords_of(lookup(preset.regularizers, self.regularizer, kind="regularizer"))
        found |= _keywords_of(make_objective(self.objective, variants=preset.objectives))
        return found | ({"variant": str} if self.variants else {})

    def __call__(self, facts: Facts, **options: Any) -> Plan:
        """Return the plan of a run."""
        preset, variant = PRESETS[facts.preset], options.pop("variant", next(iter(self.variants), None))
        name = self.objective if variant is None else lookup(self.variants, variant, kind="variant of flgamma")
        build = lookup(preset.regularizers, self.regularizer, kind="regularizer")
        objective: Callable[..., Tensor] = make_objective(name, variants=preset.objectives)
        own, penalty, loss = (_take(options, known) for known in (_OWN, _keywords_of(objective), _keywords_of(build)))
        # The published code draws 128 held-out samples a step; a calibration error of so few is mostly noise.
        size = own.get("meta_batch_size") or (128 if facts.preset == "paper" else 1024)
        check_count(size, where="train", name="method.options.meta_batch_size")
        if own.get("pace") is not None:
            check_positive(own["pace"], where="train", name="method.options.pace")
            if options.get("meta_lr") is not None:
                raise ValueError(
                    "train: only one of `method.options.pace` and `method.options.meta_lr` may be given, got both."
                )
            # In the place of a learning rate that the preset has.
            options["meta_lr"] = None
        return MetaPlan(
            build(**loss),
            partial(objective, **penalty) if penalty else objective,
            settings_of(preset, {**_PRESET_OPTIONS[facts.preset], **options}),
            size,
            meta_schedule=own.get("meta_schedule", "constant" if facts.preset == "paper" else "slowing"),
            pace=own.get("pace"),
            frozen=variant == "frozen",
        )


def _keywords_of(function: Callable[..., object]) -> dict[str, Any]:
    """Name → type of the keyword arguments of a function, of a class, or of a partial one of either."""
    plain: Any = function
    while isinstance(plain, partial):
        plain = plain.func
    names = [p.name for p in inspect.signature(plain).parameters.values() if p.kind is p.KEYWORD_ONLY]
    hints = get_type_hints(plain.__init__ if inspect.isclass(plain) else plain)
    return {name: hints[name] for name in names}


def _take(options: dict[str, Any], known: Mapping[str, object]) -> dict[str, Any]:
    return {name: options.pop(name) for name in list(options) if name in known}
