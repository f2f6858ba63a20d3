"""Choosing the best epoch by what was measured on the validation part, and keeping its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from calibrant.engine.checkpoint import copy_state
from calibrant.engine.loop import EpochRecord

# What each way of selecting compares; lower is better.
_VALUES: dict[str, Callable[[EpochRecord], float | None]] = {
    "error": lambda record: record.val_error,
    "nll": lambda record: record.val_nll,
    "error+nll": lambda record: record.val_nll,
    "error+ece": lambda record: record.val_ece,
    "last": lambda record: -float(record.epoch),
}


class Candidate(NamedTuple):
    """An epoch that is, or may turn out to be, the best.

    Attributes:
        epoch: Number of the epoch.
        error: Its validation error, where the choice asks for one close to the lowest; else 0.
        value: What is compared; lower is better.
        weights: Copies of its weights, in host memory: dozens of epochs may wait for the choice.
    """

    epoch: int
    error: float
    value: float
    weights: dict[str, Tensor]


class BestEpoch:
    r"""Keeps the weights of the best epoch so far, and of those that may yet turn out to be.

    "error" and "nll" take the first epoch with the lowest validation error or NLL, "last" the last. "error+nll" and "error+ece"
    take the lowest NLL or ECE among the epochs whose error is at most :math:`e + w \sqrt{e (1 - e) / n}`, with e the lowest
    error of all epochs, n the number of validation examples and w standard errors, within which errors do not tell epochs
    apart, the less so as the lowest of many is the luckiest, too.

    The bound can only fall. So an epoch beyond it never comes back, and neither does one that another equals or beats in both
    numbers: only the others' weights are kept.

    Args:
        select: Which of these.
        n_val: Number of validation examples.
        within: The w above.
    """

    def __init__(self, select: str, *, n_val: int, within: float = 2.0) -> None:
        self._value, self._close, self._n, self._within = _VALUES[select], "+" in select, n_val, within
        self.candidates: list[Candidate] = []

    @property
    def best(self) -> Candidate:
        """The best epoch; the earliest of several."""
        return min(self.candidates, key=lambda candidate: (candidate.value, candidate.epoch))

    def offer(self, record: EpochRecord, weights: Mapping[str, Tensor]) -> None:
        """Take copies of ``weights`` if the epoch is the best or may become it."""
        value, error = self._value(record), (record.val_error if self._close else 0.0)
        if value is None or error is None:
            return
        # What is no number is worse than any number, and better than no epoch at all.
        value = math.inf if math.isnan(value) else value
        if any(held.error <= error and held.value <= value for held in self.candidates):
            return
        self.candidates = [held for held in self.candidates if held.error < error or held.value < value]
        if error <= self._bound([error]):
            self.candidates.append(Candidate(record.epoch, error, value, copy_state(weights)))
        bound = self._bound([])
        self.candidates = [held for held in self.candidates if held.error <= bound]

    def _bound(self, more: Sequence[float]) -> float:
        lowest = min([held.error for held in self.candidates] + list(more))
        return lowest + self._within * math.sqrt(lowest * (1 - lowest) / self._n)

    def state(self) -> list[dict[str, Any]]:
        """Return the candidates as plain data."""
        return [candidate._asdict() for candidate in self.candidates]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Take up what `state` gave."""
        self.candidates = [Candidate(**held) for held in state]
