"""The records of a table: columns, cells, lines and sections, before they become Markdown, LaTeX, CSV or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from calibrant.core.words import SIGNIFICANT

DIGITS = 3
Info = Literal["preset", "epochs", "seeds", "calibrated"]
INFO_NAMES: dict[Info, str] = {"preset": "Preset", "epochs": "Epochs", "seeds": "Seeds", "calibrated": "p if calibrated"}


@dataclass(frozen=True)
class Column:
    """One column of numbers.

    Attributes:
        key: Its key in the cells of a line.
        name: What stands above it, without the unit.
        metric: The metric, a key of `Scores`.
        percent: Whether it is shown in per cent.
        group: What stands above several neighbours together.
    """

    key: str
    name: str
    metric: str
    percent: bool = True
    group: str = ""

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

    def shown(self, column: Column) -> tuple[str, str | None]:
        """Mean and standard deviation as printed."""
        scale = 100 if column.percent else 1
        mean = f"{scale * self.mean:.{DIGITS}f}"
        # What rounds to zero has no sign.
        mean = mean.removeprefix("-") if float(mean) == 0 else mean
        return mean, None if self.std is None else f"{scale * self.std:.{DIGITS}f}"


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
        label: What stands in front.
        method: Name of the method.
        cells: Column key → number; a column without one is shown empty.
        kind: Whether it is "ours", printed in the "paper", or a "difference" of two of our lines.
        preset: Preset of the method, where it means something.
        epochs: Length of training, where known.
        model: The network, where known.
        runs: Number of runs behind it, or None if unknown.
        seeds: Their seeds, where known.
        settings: Further recipe keys, as ``key=value``.
        calibrated_p: Of every run, how probable so large an ECE is for a calibrated model.
        examples: Test examples that its numbers are of, where all runs have as many.
        choices: How its runs averaged weights and chose their epoch, as ``key=value``, told or by the choice of their method.
        doubts: What makes its numbers doubtful; see `calibrant.grid.doubts`.
        bins: How many bins its binned metrics have, where all runs have as many.
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

    @property
    def is_foreign(self) -> bool:
        """Whether it is somebody's predictions, of which nothing but the data is known."""
        return self.kind == "ours" and self.epochs is None and self.model is None

    def info(self, name: Info) -> str:
        """What stands in one of the columns that describe the line."""
        if name == "calibrated":
            return _calibrated(self.calibrated_p)
        found = {"preset": self.preset, "epochs": self.epochs, "seeds": self.runs}[name]
        return "–" if found is None else str(found)


@dataclass(frozen=True)
class Section:
    """Lines about one data set and network.

    Attributes:
        title: What stands above them.
        lines: The lines.
        data: Name of the data set, where it is one.
        model: Name of the network, where known.
        examples: Usual number of test examples, where known; a line of another one is not compared with the others.
    """

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
    notes: tuple[str, ...] = field(default=())
    base: str = "the first row"

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines of all sections."""
        return tuple(line for section in self.sections for line in section.lines)


def _calibrated(p_values: tuple[float, ...]) -> str:
    if not p_values:
        return "–"
    least = min(p_values)
    shown = f"{least:.3f}" if least >= 0.001 else "< 0.001"
    if len(p_values) == 1:
        return shown
    passed = sum(value > SIGNIFICANT for value in p_values)
    return f"{passed}/{len(p_values)} (≥ {shown})" if least >= 0.001 else f"{passed}/{len(p_values)} ({shown})"
