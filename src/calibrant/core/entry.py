"""The record of one row of a comparison: a run, or somebody's predictions, as tables, figures and pages see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from calibrant.core.records import Predictions
from calibrant.core.scores import Scores


@dataclass(frozen=True)
class BinSweep:
    """The binned errors of one set of predictions against the number of bins.

    Attributes:
        n_bins: Numbers of bins, rising.
        ece: ECE for each.
        mce: MCE for each.
        ece_if_calibrated: ECE that a calibrated model with these confidences would show on average for each; empty if unknown.
        mce_if_calibrated: The same of the MCE.
    """

    n_bins: tuple[int, ...]
    ece: tuple[float, ...]
    mce: tuple[float, ...]
    ece_if_calibrated: tuple[float, ...] = ()
    mce_if_calibrated: tuple[float, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One run of a comparison.

    Entries that differ in their seed alone are one row of a table.

    Attributes:
        data: Name of the data set.
        method: Name of the method, or what somebody's predictions are to be called.
        scores: What `calibrant.measure` says of the test predictions.
        preset: Settings of the method, ``"default"`` or ``"paper"``; None where that means nothing.
        model: Name of the network, or None if unknown.
        epochs: Length of training, or None if unknown.
        seed: Seed of the run, or None if unknown.
        test: The test predictions; None where only numbers were kept. Methods with a gamma have it in the column ``gamma``.
        history: One mapping an epoch, with the keys of ``history.jsonl``; a value is None where the epoch was not evaluated.
        best_epoch: Epoch that the predictions come from.
        sweep: Binned errors against the number of bins, where they were computed.
        temperature: What ``+ts`` divided the logits by.
        recipe: What decided the run, dotted recipe key → value; what is left out is as its method has it by itself.
        facts: Where it comes from: ``command``, ``machine``, ``versions``, ``seconds``, ``examples``, ``data``, ``note``, where
            known.
        folder: Where it was read from.
    """

    data: str
    method: str
    scores: Scores
    preset: str | None = None
    model: str | None = None
    epochs: int | None = None
    seed: int | None = None
    test: Predictions | None = field(default=None, repr=False, compare=False)
    history: tuple[Mapping[str, float | int | None], ...] = field(default=(), repr=False)
    best_epoch: int | None = None
    sweep: BinSweep | None = field(default=None, repr=False)
    temperature: float | None = None
    recipe: Mapping[str, object] = field(default_factory=dict, repr=False)
    facts: Mapping[str, object] = field(default_factory=dict, repr=False)
    folder: str | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether it is somebody's predictions: neither network nor length of training is known."""
        return self.model is None and self.epochs is None

    def curve(self, key: str) -> tuple[list[int], list[float]]:
        """Epochs, from 1, at which ``key`` was evaluated, and its values there."""
        values = ((epoch, line.get(key)) for epoch, line in enumerate(self.history, 1))
        known = [(epoch, float(value)) for epoch, value in values if value is not None]
        return [epoch for epoch, _ in known], [value for _, value in known]


def usual_size(entries: Iterable[Entry]) -> int | None:
    """Number of test examples of the first run of one data set and network; without runs the largest there is, if any.

    Somebody's predictions, of which neither network nor length of training is known, may be those of a part of the test set,
    so they decide only where there is nothing else.
    """
    given = list(entries)
    runs = [entry.scores.n for entry in given if not entry.is_foreign]
    return runs[0] if runs else max((entry.scores.n for entry in given), default=None)


def common_size(entries: Iterable[Entry]) -> int | None:
    """Number of test examples that all entries are of; None where they differ."""
    sizes = {entry.scores.n for entry in entries}
    return sizes.pop() if len(sizes) == 1 else None


def size_note(size: int | None, usual: int | None) -> str:
    """Say that a row is of another number of test examples than the rows around it; empty where it is not.

    Example:
        >>> size_note(500, 4000)
        '500 test examples, other rows 4,000; not compared with them.'
        >>> size_note(4000, 4000)
        ''
    """
    if usual is None or size == usual:
        return ""
    own = "seeds of different numbers of" if size is None else f"{size:,}"
    return f"{own} test examples, other rows {usual:,}; not compared with them."
