"""What a page is made from: what was measured, and what a repair did. Runs come as `calibrant.core.entry.Entry`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from calibrant.core.records import Predictions
from calibrant.core.scores import Estimate, Paired, Scores


@dataclass(frozen=True)
class Examined:
    """Predictions and what `calibrant.measure` says of them."""

    predictions: Predictions = field(repr=False)
    scores: Scores


@dataclass(frozen=True)
class Candidate:
    """One calibrator among those tried.

    Attributes:
        name: Its name in `CALIBRATORS`, or "none" for doing nothing.
        held_out: Mean negative log-likelihood in the cross-validation on the fit data; nan if unknown.
        gain: What that gains on doing nothing, with its interval; None if unknown.
        scores: What its predictions for the test data score, fitted on all fit data; None if it was not used.
        preserves_accuracy: Whether it never changes a prediction.
        failure: Why it was not used, or None: it failed, or the fit data lack a class.
    """

    name: str
    held_out: float
    gain: Estimate | None
    scores: Scores | None
    preserves_accuracy: bool
    failure: str | None = None


@dataclass(frozen=True)
class Repair:
    """What a repair was and did.

    Attributes:
        name: Name of the calibrator that was applied; "none" if doing nothing was best.
        after: The repaired predictions and their scores.
        paired: Test of after minus before, by metric.
        n_fit: Number of examples the calibrator was fitted on.
        fit_file: File they came from, or None.
        temperature: What the logits were divided by, for calibrators that do.
        preserves_accuracy: Whether no prediction can have changed.
        advice: What choosing the calibrator found, in a sentence; empty where it was given.
        candidates: All calibrators that were tried, best first; empty where one was given.
        doubts: Why the repair may not be trusted, a sentence each.
    """

    name: str
    after: Examined
    paired: Mapping[str, Paired]
    n_fit: int
    fit_file: str | None = None
    temperature: float | None = None
    preserves_accuracy: bool = False
    advice: str = ""
    candidates: tuple[Candidate, ...] = ()
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class InTable:
    """What a table of runs says of a row, for the page to say the same.

    Attributes:
        section: Number of its part of the table; None where it is in none.
        is_base: Whether it is the row that the others of its part are tested against.
        p_values: Metric → p-value of the difference from that row, corrected; without those that were not tested.
        info: Head of a column that describes rows → what stands there.
    """

    section: int | None = None
    is_base: bool = False
    p_values: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=dict)


class TableRow(NamedTuple):
    """A row of a finished table: its label, texts of its cells with whether each is the best, and whether it is from print."""

    label: str
    cells: tuple[tuple[str, bool], ...]
    is_quoted: bool = False


class FinishedTable(NamedTuple):
    """A table whose numbers are written already: its title, heads, parts (title and rows each), and sentences below."""

    title: str
    heads: tuple[str, ...]
    parts: tuple[tuple[str, tuple[TableRow, ...]], ...]
    notes: tuple[str, ...] = ()


def calibrator_label(name: str) -> str:
    """Return how a calibrator is called in prose."""
    return "doing nothing" if name == "none" else name.replace("_", " ")
