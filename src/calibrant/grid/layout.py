"""The records of a table, columns, cells, lines and sections, and the sentences below it. How it is written is in `export`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.core.entry import Entry, size_note
from calibrant.grid.paper import NOT_IN_PAPER, load_paper, notes_about
from calibrant.grid.rows import CHOICES, Row
from calibrant.metrics.differences import LEAST_SEEDS
from calibrant.metrics.verdict import SIGNIFICANT, join_words

EMPTY, MARK = "–", "†"
Info = Literal["preset", "epochs", "seeds", "calibrated"]
INFO_NAMES: dict[Info, str] = {"preset": "Preset", "epochs": "Epochs", "seeds": "Seeds", "calibrated": "p if calibrated"}


@dataclass(frozen=True)
class Column:
    """One column of numbers: of a metric, in per cent or not; ``group`` stands above several neighbours of one data set."""

    key: str
    name: str
    metric: str
    percent: bool = True
    group: str = ""
    data: str | None = None

    @property
    def heading(self) -> str:
        """Name and unit."""
        return f"{self.name} (%)" if self.percent else self.name


@dataclass(frozen=True)
class Cell:
    """A number over runs, in the unit of `calibrant.measure`.

    Attributes:
        mean: Its mean.
        std: Standard deviation over runs, of two or more.
        values: The number of every run, where known.
        best: Whether no row that it may be compared with has a lower one, as printed.
        p_value: Of the difference to what its table tests against, corrected; None where nothing was tested.
        over: What that test sampled, "seeds" or "examples".
    """

    mean: float
    std: float | None = None
    values: tuple[float, ...] = ()
    best: bool = False
    p_value: float | None = None
    over: Literal["seeds", "examples"] | None = None

    @property
    def differs(self) -> bool:
        """Whether it differs from what its table tests against significantly."""
        return self.p_value is not None and self.p_value < SIGNIFICANT

    def shown(self, column: Column, *, digits: int = 3) -> tuple[str, str | None]:
        """Mean and standard deviation as printed."""
        scale = 100 if column.percent else 1
        mean = f"{scale * self.mean:.{digits}f}"
        # What rounds to zero has no sign.
        mean = mean.removeprefix("-") if float(mean) == 0 else mean
        return mean, None if self.std is None else f"{scale * self.std:.{digits}f}"


@dataclass(frozen=True)
class Line:
    """One line of a table: a row of ours, one printed in the "paper", or a "difference" of two of our rows.

    Attributes:
        label: What stands in front.
        method: Name of the method.
        cells: Column key → number; a column without one is shown empty.
        kind: "ours", "paper" or "difference".
        preset: Preset of the method, where it means something.
        epochs: Length of training, where known.
        model: The network, where known.
        runs: Number of runs behind it, or None if unknown.
        seeds: Their seeds, where known.
        settings: Further recipe keys, as ``key=value``.
        calibrated_p: Of every run, how probable so large an ECE is for a calibrated model.
        examples: Test examples that its numbers are of, where all runs have as many.
        choices: How its runs averaged weights and chose their epoch, as ``key=value``, told or by the choice of their method.
        doubts: What makes its numbers doubtful.
        bins: How many bins its binned metrics have, where all runs have as many.
        row: The row that it shows, where it is one of ours.
        shown: Settings that its label says.
    """

    label: str
    method: str
    cells: Mapping[str, Cell]
    kind: Literal["ours", "paper", "difference"] = "ours"
    preset: str | None = None
    epochs: int | None = None
    model: str | None = None
    runs: int | None = None
    seeds: tuple[int, ...] = ()
    settings: tuple[str, ...] = ()
    calibrated_p: tuple[float, ...] = ()
    examples: int | None = None
    choices: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    bins: int | None = None
    row: Row | None = None
    shown: tuple[str, ...] = ()

    def info(self, name: Info) -> str:
        """What stands in one of the columns that describe the line."""
        if name == "calibrated":
            return _calibrated(self.calibrated_p)
        found = {"preset": self.preset, "epochs": self.epochs, "seeds": self.runs}[name]
        return EMPTY if found is None else str(found)


@dataclass(frozen=True)
class Section:
    """Lines about one data set and network; those of another number of ``examples`` are not compared with the others."""

    title: str
    lines: tuple[Line, ...]
    data: str | None = None
    model: str | None = None
    examples: int | None = None


@dataclass(frozen=True)
class Table:
    """A whole table.

    Attributes:
        name: For file names and references, as ``table1``.
        title: What it shows.
        columns: Its columns of numbers.
        sections: Its parts, one after the other.
        info: Columns that describe the lines, before the numbers.
        notes: Sentences that belong to it: what was averaged, tested, marked.
        base: What its lines were tested against.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    info: tuple[Info, ...] = ("seeds",)
    notes: tuple[str, ...] = ()
    base: str = "the first row"

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines of all sections."""
        return tuple(line for section in self.sections for line in section.lines)

    @property
    def heads(self) -> list[str]:
        """Names of all columns."""
        columns = [f"{column.group} {column.heading}".strip() for column in self.columns]
        return ["Method", *(INFO_NAMES[name] for name in self.info), *columns]


def _calibrated(p_values: tuple[float, ...]) -> str:
    if not p_values:
        return EMPTY
    least = min(p_values)
    shown = f"{least:.3f}" if least >= 0.001 else "< 0.001"
    if len(p_values) == 1:
        return shown
    passed = sum(value > SIGNIFICANT for value in p_values)
    return f"{passed}/{len(p_values)} (≥ {shown})" if least >= 0.001 else f"{passed}/{len(p_values)} ({shown})"


# How bins are cut → metric → what it is called.
_BINNED = {"width": {"ece": "ECE", "mce": "MCE", "classwise_ece": "classwise ECE"}, "mass": {"ace": "ACE"}}
_TESTS = {
    "seeds": f"a paired t-test over seeds, where two rows have {LEAST_SEEDS} or more in common",
    "examples": "a paired bootstrap of one network each on the same test examples, which is about these networks alone",
}
_CALIBRATED = (
    "p if calibrated: how probable an ECE as large would be for a perfectly calibrated model with these confidences; "
    "above 0.05 the two cannot be told apart (of several seeds: how many are above, and the least)."
)
_BOLD = (
    "Bold: the lowest of a column among rows of the same data, network, epochs and given settings (--set), "
    "a method's own aside."
)
_FILES = "Predictions from files, of which only the data are known, compete with all rows beside them."
_EPOCHS = {
    "error": "of the epoch of least validation error",
    "nll": "of the epoch of least validation NLL",
    "error+nll": "of an epoch chosen by validation error and NLL",
    "error+ece": "of an epoch chosen by validation error and ECE",
    "last": "of the last epoch",
}


def notes_of(
    table: Table, *, tested: bool, paper: bool = False, beside: Sequence[Line] = (), sizes: bool = True
) -> tuple[str, ...]:
    """Say what a reader must know of a table: what was averaged, what bold and marks mean, what the lines have in common.

    Args:
        table: The table, its cells marked.
        tested: Whether differences were tested, where they could be.
        paper: Whether the paper's numbers were asked for.
        beside: Lines that are not shown, which the others are held against.
        sizes: Whether to say which rows are of another number of test examples.
    """
    lines = [line for line in table.lines if line.kind != "paper"]
    one = {line.runs for line in lines} == {1}
    notes = [
        "One run each." if one else "Mean ± standard deviation over runs of different seeds (n − 1); Seeds is their number."
    ]
    notes += [*_binned(table, lines), *_common(table, lines), *choice_notes([*beside, *lines])]
    if any(cell.best for line in lines for cell in line.cells.values()):
        notes.append(_BOLD)
        notes += [_FILES] if any(line.row is not None and line.row.is_foreign for line in lines) else []
    notes += row_notes(table, sizes=sizes)
    notes += _tests(lines, sections=len(table.sections), base=table.base) if tested else []
    notes += [_CALIBRATED] if "calibrated" in table.info else []
    if len(lines) < len(table.lines):
        source = load_paper()
        notes += [f"The paper's {note}" for note in paper_notes(table)]
        notes.append(f"The paper: {source.reference} {source.url}")
    elif paper:
        notes.append(NOT_IN_PAPER)
    return tuple(notes)


def paper_notes(table: Table) -> list[str]:
    """Return what is known about the numbers of the paper that a table shows, in the paper's order."""
    shown = [
        (column.data or section.data or "", line.method, line.model, column.metric)
        for section in table.sections
        for line in section.lines
        for column in table.columns
        if line.kind == "paper" and column.key in line.cells
    ]
    return notes_about(shown, table=table.name)


def row_notes(table: Table, *, sizes: bool = True) -> list[str]:
    """Say of which rows numbers are doubtful and, with ``sizes``, which are of another number of test examples."""
    notes = []
    for section in table.sections:
        on = f" on {section.data}" if section.data else ""
        for line in section.lines:
            size = size_note(line.examples, section.examples) if sizes and line.kind == "ours" else ""
            notes += [f"{line.label}{on}: {note}" for note in (size, *(f"{doubt}." for doubt in line.doubts)) if note]
    return notes


def doubts_of(runs: Sequence[Entry]) -> tuple[str, ...]:
    """Say what the fit of a temperature warned of: one at its bound, or one fitted on few examples.

    Args:
        runs: The runs of a row; those without temperature scaling have nothing to doubt here.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> doubts_of([Entry("coins", "ce+ts", scores, temperature=t, seed=s) for s, t in enumerate((1e5, 1.4))])
        ('a temperature ended at its bound 100000; do not trust it',)
    """
    scaling, scaled = TemperatureScaling(), [entry for entry in runs if entry.temperature is not None]
    reached = [b for b in scaling.bounds if any(math.isclose(e.temperature or 0.0, b, rel_tol=1e-6) for e in scaled)]
    found = [f"a temperature ended at its bound {bound:g}; do not trust it" for bound in reached]
    for entry in scaled[:1]:
        examples: Mapping[str, int] = entry.facts.get("examples") or {}  # type: ignore[assignment]
        if examples.get("val", math.inf) < scaling.few_samples:
            found.append(f"temperatures were fitted on {examples['val']} validation examples, which are few")
    return tuple(found)


def choice_notes(lines: Sequence[Line]) -> list[str]:
    """Say which lines average weights or choose their epoch in another way than the rest, where labels do not say it.

    Methods decide both where nothing was set, so that lines of the same settings may differ in them.

    Example:
        >>> usual, own = ("train.average=no", "train.select=error"), ("train.average=phase", "train.select=error")
        >>> choice_notes([Line("CE", "ce", {}, choices=usual), Line("FLγ", "flgamma", {}, choices=own)])
        ['By preset, FLγ predicts with averaged weights (train.average=phase); all others with weights as they are.']
    """
    ours = [line for line in lines if line.kind != "paper"]
    known = [line for line in ours if line.choices]
    keys = [
        place
        for place, key in enumerate(CHOICES)
        if len({line.choices[place] for line in known}) > 1 and not all(line.choices[place] in line.shown for line in known)
    ]
    groups: dict[tuple[str, ...], dict[str, None]] = {}
    for line in known:
        # Two presets of one label are told apart.
        presets = {other.preset for other in known if other.label == line.label}
        name = f"{line.label} ({line.preset})" if len(presets) > 1 and line.preset else line.label
        groups.setdefault(tuple(line.choices[place] for place in keys), {})[name] = None
    if len(groups) < 2:
        return []
    usual = max(groups, key=lambda choices: len(groups[choices]))
    told = [
        f"{join_words([*names])} {'predicts' if len(names) == 1 else 'predict'} {_way(choices)}"
        for choices, names in groups.items()
        if choices != usual
    ]
    # Of somebody's predictions nothing is known.
    rest = "all others" if len(known) == len(ours) else "all other runs"
    return [f"By preset, {'; '.join(told)}; {rest} {_way(usual)}."]


def _way(choices: Sequence[str]) -> str:
    found = dict(text.split("=", 1) for text in choices)
    words, average, select = ["with weights"], *(found.get(key) for key in CHOICES)
    if average is not None:
        words = ["with weights as they are" if average == "no" else f"with averaged weights ({CHOICES[0]}={average})"]
    if select is not None:
        told = "" if select == "error" else f" ({CHOICES[1]}={select})"
        words.append(_EPOCHS.get(select, "of an epoch chosen in another way") + told)
    return (", " if len(found) > 1 else " ").join(words)


def _binned(table: Table, lines: Sequence[Line]) -> list[str]:
    """Say over which bins the binned columns are, where that is known and one thing."""
    numbers = {line.bins for line in lines} - {None}
    shown = {column.metric for column in table.columns}
    said: list[str] = []
    for width, words in _BINNED.items() if len(numbers) == 1 else ():
        if names := [name for metric, name in words.items() if metric in shown]:
            bins = min(numbers, key=str)
            said.append(f"{join_words(names)} over {bins if said else f'{bins} bins'} of equal {width}")
    return [f"{', '.join(said)}."] if said else []


def _common(table: Table, lines: Sequence[Line]) -> list[str]:
    notes = []
    epochs = {line.epochs for line in lines} - {None}
    presets = {line.preset for line in lines} - {None}
    if "epochs" not in table.info and len(epochs) == 1:
        notes.append(f"{epochs.pop()} epochs.")
    if "preset" not in table.info and len(presets) == 1:
        notes.append(f"Preset {presets.pop()}.")
    shared = _shared(lines)
    if shared:
        notes.append(f"Settings: {', '.join(shared)}.")
    for section in table.sections if len(table.sections) > 1 else ():
        own = [text for text in _shared([line for line in section.lines if line.kind != "paper"]) if text not in shared]
        if own:
            notes.append(f"Settings on {section.title}: {', '.join(own)}.")
    return notes


def _shared(lines: Sequence[Line]) -> list[str]:
    """Settings of all lines of which something is known; labels do not say them."""
    ours = [line for line in lines if line.kind == "ours"]
    known = [line.settings for line in ours or lines if line.epochs is not None]
    return [text for text in known[0] if all(text in other for other in known)] if known else []


def _tests(lines: Sequence[Line], *, sections: int, base: str) -> list[str]:
    cells = [cell for line in lines for cell in line.cells.values() if cell.p_value is not None]
    if not cells:
        lacking = f"Differences were not tested: that takes {LEAST_SEEDS} common seeds, or one run each with its predictions."
        return [lacking] if len(lines) > sections else []
    ways = {cell.over for cell in cells if cell.over is not None}
    how = ", or by ".join(_TESTS[over] for over in sorted(ways, reverse=True))
    found = f"differs from {base}" if any(cell.differs for cell in cells) else f"would mark a difference from {base}"
    return [f"{MARK} {found} with p < 0.05 by {how}; corrected after Holm over the rows of a column."]
