"""Watching the hyper-parameters: a warning when they run away, stop moving, or miss updates that were no numbers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from calibrant.meta.regularizers.base import Regularizer

# Mean |step| / lr of Adam below which hyper-parameters count as frozen. Pure noise gives 0.2 with betas (0.9, 0.999) and 0.6
# with (0.5, 0.9); a gradient that fell a hundredfold within Adam's memory gives less than 0.01.
FROZEN = 0.01


class MetaWarning(RuntimeWarning):
    """The hyper-parameters ran away, froze or missed updates; training goes on."""


@dataclass(frozen=True)
class Watch:
    """What was seen since the last look, kept on the device.

    Attributes:
        updates: Meta updates seen.
        moved: Sum over them of the mean |step| of the hyper-parameters, in units of the learning rate; ``[]``.
        values: Latest summary of the regularizer.
        warned: Kinds of trouble already reported and not yet over.
    """

    updates: int = 0
    moved: Tensor | None = None
    values: Mapping[str, Tensor] | None = None
    warned: frozenset[str] = frozenset()

    def add(self, moved: Tensor, values: Mapping[str, Tensor]) -> Watch:
        """Return the watch after one more meta update; nothing is read from the device.

        The sum stays in its place: a captured step that read it from a tensor dropped here would read freed memory when
        it is replayed.
        """
        total = moved.clone() if self.moved is None else self.moved.add_(moved)
        return replace(self, updates=self.updates + 1, moved=total, values=values)

    def look(self, regularizer: Regularizer, *, missed: int = 0) -> Watch:
        """Read what was seen, warn of what is wrong, and return a fresh watch.

        Args:
            regularizer: Says whether the values look like a runaway.
            missed: Updates of those seen that changed nothing, as the hypergradient was not finite.
        """
        if self.moved is None or self.values is None:
            return self
        trouble: dict[str, str] = {}
        if missed:
            trouble["missed"] = (
                f"{missed} of the last {self.updates} meta updates changed nothing, as their hypergradient was not finite. "
                "Look for NaN or inf in the held-out data."
            )
        pace = float(self.moved) / max(self.updates - missed, 1)
        said = regularizer.alarm({name: float(value) for name, value in self.values.items()})
        if said is not None:
            trouble["runaway"] = said
        if missed < self.updates and not pace >= FROZEN:
            trouble["frozen"] = (
                f"the hyper-parameters are frozen: Adam moved them by {pace:.2g} of its learning rate in each of the last "
                f"{self.updates} meta updates. Use betas (0.5, 0.9), a smaller `eps`, or a constant `lookahead_lr`."
            )
        for kind, text in trouble.items():
            if kind not in self.warned:
                warnings.warn(f"MetaLearner: {text}", MetaWarning, stacklevel=3)
        return Watch(warned=frozenset(trouble))
