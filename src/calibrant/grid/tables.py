"""Entries to tables: columns, cells, lines and sections, the best values, the tests, and the sentences below a table.

`export` writes tables to files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.core.scores import Entry, common_size, size_note, usual_size
from calibrant.data import data_name
from calibrant.grid.paper import NOT_IN_PAPER, PaperRow, load_paper, notes_about, paper_row, paper_table
from calibrant.grid.rows import CHOICES, Row, comparable, group_rows
from calibrant.metrics import METRICS
from calibrant.metrics.paired import LEAST_SEEDS, compare_runs, holm, mean_and_std
from calibrant.metrics.verdict import SIGNIFICANT, join_words
from calibrant.report.rows import method_name

EMPTY, MARK, STALE = "–", "†", "‡"
# Columns that describe a line, and their heads.
Info = Literal["choices", "preset", "epochs", "seeds", "calibrated"]
INFO_NAMES: dict[Info, str] = {
    "choices": "Weights, epoch",
    "preset": "Preset",
    "epochs": "Epochs",
    "seeds": "Seeds",
    "calibrated": "p if calibrated",
}
# The columns of the paper's Table 1.
SIX = ("error", "nll", "ece", "mce", "ace", "classwise_ece")


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
        choices: How its runs averaged weights and chose their epoch, as ``key=value``, if known.
        doubts: Why its numbers may not hold.
        bins: How many bins its binned metrics have, where all runs have as many.
        is_stale: Whether older code computed its p-values, and nothing is there to compute them again.
        row: The row that it shows, where it is one of ours.
        shown: Settings in which it differs from other lines.
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
    is_stale: bool = False
    row: Row | None = None
    shown: tuple[str, ...] = ()

    def info(self, name: Info) -> str:
        """What stands in one of the columns that describe the line."""
        if name == "calibrated":
            return _calibrated(self.calibrated_p) + (STALE if self.is_stale else "")
        if name == "choices":
            return choice_words(self.choices) or EMPTY
        found = {"preset": self.preset, "epochs": self.epochs, "seeds": self.runs}[name]
        return EMPTY if found is None else str(found)


@dataclass(frozen=True)
class Section:
    """Lines about one data set and network, and the settings that all have in ``common``.

    Lines of another number of ``examples`` are not compared with the others.
    """

    title: str
    lines: tuple[Line, ...]
    data: str | None = None
    model: str | None = None
    examples: int | None = None
    common: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A whole table.

    Attributes:
        name: For file names and references, as ``table1``.
        title: What it shows.
        columns: Its columns of numbers.
        sections: Its parts, one after the other.
        always: Columns that describe the lines and are shown in any case; others are shown where lines differ.
        remarks: Sentences of its own, before the other notes.
        base: What its lines are tested against.
        tested: Whether differences were tested, where they could be.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    always: tuple[Info, ...] = ()
    remarks: tuple[str, ...] = ()
    base: str = "the first row"
    tested: bool = True

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines of all sections."""
        return tuple(line for section in self.sections for line in section.lines)

    @property
    def info(self) -> tuple[Info, ...]:
        """Columns that describe the lines, before the numbers."""
        choices, presets = ({getattr(line, name) for line in self.lines} - {(), None} for name in ("choices", "preset"))
        numbers = {"choices": len(choices), "preset": len(presets), "epochs": len({line.epochs for line in self.lines})}
        return tuple(name for name in INFO_NAMES if name in (*self.always, "seeds") or numbers.get(name, 0) > 1)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that belong to it: what was averaged, tested, marked."""
        return notes_of(self)

    @property
    def heads(self) -> list[str]:
        """Names of all columns."""
        columns = [f"{column.group} {column.heading}".strip() for column in self.columns]
        return ["Method", *(INFO_NAMES[name] for name in self.info), *columns]


def choice_words(choices: Iterable[str]) -> str:
    """Say in short how weights were averaged and the epoch was chosen."""
    words = [text.partition("=")[2] for text in choices]
    return ", ".join(["raw" if word == "no" else word for word in words])


def _calibrated(p_values: tuple[float, ...]) -> str:
    if not p_values:
        return EMPTY
    # The runs share test examples, so that the bound of Bonferroni is what holds.
    joint = min(1.0, len(p_values) * min(p_values))
    return f"{joint:.3f}" if joint >= 0.001 else "< 0.001"


# How bins are cut → metric → what it is called.
_BINNED = {"width": {"ece": "ECE", "mce": "MCE", "classwise_ece": "classwise ECE"}, "mass": {"ace": "ACE"}}
_TESTS = {
    "seeds": f"a paired t-test over seeds, where two rows have {LEAST_SEEDS} or more in common",
    "examples": "a paired bootstrap of one network each on the same test examples, which is about these networks alone",
}
_CALIBRATED = (
    "p if calibrated: how probable an ECE at least as large is for a perfectly calibrated model with these confidences; "
    "of several seeds, the least times their number (Bonferroni)."
)
_STALE = f"{STALE} computed by older code, and the record holds no predictions to compute it again."
_CHOICES = "weights are raw or averaged as train.average says; the epoch was chosen by the validation score of train.select."
_BOLD = (
    "Bold: the lowest of a column among rows of the same data, network, epochs, preset and given settings (--set), "
    "a method's own aside."
)
_FILES = "Predictions from files, of which only the data are known, compete with all rows beside them."


def notes_of(table: Table, *, sizes: bool = True) -> tuple[str, ...]:
    """Say what a reader must know of a table: what was averaged, what bold and marks mean, what the lines have in common.

    Args:
        table: The table, its cells marked.
        sizes: Whether to say which rows are of another number of test examples.
    """
    lines = [line for line in table.lines if line.kind != "paper"]
    averaged = "Mean ± standard deviation over runs of different seeds (n − 1); Seeds is their number."
    if all(line.kind == "difference" for line in lines):
        averaged = f"Method minus {table.base}, mean ± standard deviation over the seeds that both have; negative is better."
    elif {line.runs for line in lines} == {1}:
        averaged = "One run each."
    notes = [*table.remarks, averaged, *_binned(table, lines), *_common(table, lines)]
    if any(cell.best for line in lines for cell in line.cells.values()):
        notes.append(_BOLD)
        notes += [_FILES] if any(line.row is not None and line.row.is_foreign for line in lines) else []
    notes += row_notes(table, sizes=sizes)
    notes += _tests(table, lines) if table.tested else []
    notes += [_CALIBRATED] if "calibrated" in table.info else []
    notes += [_STALE] if "calibrated" in table.info and any(line.is_stale for line in lines) else []
    if len(lines) < len(table.lines):
        source = load_paper()
        notes += [f"The paper's {note}" for note in paper_notes(table)]
        notes.append(f"The paper: {source.reference} {source.url}")
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
    """Say which rows' numbers may not hold and, with ``sizes``, which rows have another number of test examples."""
    notes = []
    for section in table.sections:
        on = f" on {section.data}" if section.data else ""
        for line in section.lines:
            size = size_note(line.examples, section.examples) if sizes and line.kind == "ours" else ""
            notes += [f"{line.label}{on}: {note}" for note in (size, *(f"{doubt}." for doubt in line.doubts)) if note]
    return notes


def doubts_of(runs: Sequence[Entry]) -> tuple[str, ...]:
    """Say what the fit of a temperature warned of: one at its bound, or one fitted on few examples."""
    scaling, scaled = TemperatureScaling(), [entry for entry in runs if entry.temperature is not None]
    reached = [b for b in scaling.bounds if any(math.isclose(e.temperature or 0.0, b, rel_tol=1e-6) for e in scaled)]
    found = [f"a temperature ended at its bound {bound:g}; do not trust it" for bound in reached]
    for entry in scaled[:1]:
        examples: Mapping[str, int] = entry.facts.get("examples") or {}  # type: ignore[assignment]
        if examples.get("val", math.inf) < scaling.few_samples:
            found.append(f"temperatures were fitted on {examples['val']} validation examples, which are few")
    return tuple(found)


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
    choices = dict.fromkeys(line.choices for line in lines if line.choices)
    if "choices" in table.info:
        notes.append(f"{INFO_NAMES['choices']}: {_CHOICES}")
    elif choices:
        notes.append(f"{INFO_NAMES['choices']}: {choice_words(*choices)} in all rows; {_CHOICES}")
    if "epochs" not in table.info and len(epochs) == 1:
        notes.append(f"{epochs.pop()} epochs.")
    if "preset" not in table.info and len(presets) == 1:
        notes.append(f"Preset {presets.pop()}.")
    alike = len({section.common for section in table.sections}) == 1
    for section in table.sections[:1] if alike else table.sections:
        on = "" if alike else f" on {section.title}"
        told = [text for text in section.common if not text.startswith(CHOICES)]
        notes += [f"Settings{on}: {', '.join(told)}."] if told else []
    return notes


def _tests(table: Table, lines: Sequence[Line]) -> list[str]:
    cells = [cell for line in lines for cell in line.cells.values() if cell.p_value is not None]
    if not cells:
        lacking = f"Differences were not tested: that takes {LEAST_SEEDS} common seeds, or one run each with its predictions."
        return [lacking] if len(lines) > len(table.sections) else []
    ways = {cell.over for cell in cells if cell.over is not None}
    how = ", or by ".join(_TESTS[over] for over in sorted(ways, reverse=True))
    found = "differs" if any(cell.differs for cell in cells) else "would mark a difference"
    return [f"{MARK} {found} from {table.base} with p < 0.05 by {how}; corrected after Holm over the rows of a column."]


def compare_table(
    entries: Iterable[Entry],
    *,
    metrics: Sequence[str] = SIX,
    paper: bool = False,
    calibrated: bool = False,
    test: bool = True,
    labels: Literal["method", "name"] = "method",
    info: Sequence[Info] = (),
    name: str = "comparison",
    title: str = "Comparison of methods on test data",
) -> Table:
    """Make the table of any runs: a section for every data set and network, a line for every method.

    The best value of a column is marked among the rows that may be compared: same data, network and epochs (ties as printed are
    all marked). Every row is tested against the first of its section; see `calibrant.metrics.paired.compare_runs`.

    Args:
        entries: Runs and predictions of others, in the order of the rows.
        metrics: Keys of `Scores` to show.
        paper: Put the paper's numbers below ours, where it has some for the same data, network and method.
        calibrated: Add the column of p-values of `Scores.ece_if_calibrated`.
        test: Whether to test differences; the paired bootstrap takes about a second a row.
        labels: Name methods as they are typed ("method") or as figures do ("name").
        info: Columns about the rows that are always shown; others appear where rows differ.
        name: For file names and references.
        title: What the table shows.

    Returns:
        The table; `calibrant.grid.write_table` writes it. Raises ``ValueError`` if there are no entries.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> table = compare_table([Entry("coins", "mine", scores)], metrics=("error", "ece"))
        >>> table.sections[0].lines[0].cells["error"].mean
        0.5
    """
    rows = group_rows(entries)
    if not rows:
        raise ValueError("compare_table: `entries` must hold at least one run, got none.")
    columns, sections = tuple(metric_column(key) for key in metrics), []
    for (data, model), part in by_section(rows).items():
        usual = usual_size(entry for row in part for entry in row.runs)
        common = common_settings(part)
        lines = [line_of(row, columns, labels, common=common) for row in part]
        lines = [_mark_best(line, lines, columns, usual=usual) for line in lines]
        lines = _mark_tests(lines, columns) if test else lines
        title_of = data_name(data) if model is None else f"{data_name(data)}, {model}"
        shown = with_paper(lines, data, model) if paper else tuple(lines)
        sections.append(Section(title_of, shown, data, model, usual, tuple(common)))
    always: tuple[Info, ...] = (*info, "calibrated") if calibrated else tuple(info)
    found = Table(name, title, columns, tuple(sections), always, tested=test)
    missing = paper and all(line.kind == "ours" for line in found.lines)
    return replace(found, remarks=(NOT_IN_PAPER,)) if missing else found


def name_methods(table: Table) -> Table:
    """Return a comparison with its methods named as figures and pages do."""
    sections = []
    for section in table.sections:
        named = (replace(line, label=_label(line.row, line.shown, "name")) if line.row else line for line in section.lines)
        sections.append(replace(section, lines=tuple(named)))
    return replace(table, sections=tuple(sections))


def metric_column(key: str) -> Column:
    """The column of a metric, in per cent unless it is no rate."""
    metric = METRICS[key]
    name = metric.short or metric.label
    return Column(key=key, name=name[0].upper() + name[1:], metric=key, percent=metric.unit == "%")


def by_section(rows: Sequence[Row]) -> dict[tuple[str, str | None], list[Row]]:
    """Rows by data set and network; a row of an unknown network joins the first one of its data."""
    found: dict[tuple[str, str | None], list[Row]] = {}
    for row in rows:
        known = [other.model for other in rows if other.data == row.data and other.model is not None]
        found.setdefault((row.data, row.model or (known[0] if known else None)), []).append(row)
    return found


def line_of(row: Row, columns: Sequence[Column], labels: Literal["method", "name"], *, common: Sequence[str] = ()) -> Line:
    """One row as a line, nothing marked yet.

    Args:
        row: The row.
        columns: Columns whose metric is taken from the row.
        labels: How methods are named; see `compare_table`.
        common: Settings that all rows share, which the label need not say.
    """
    settings = [f"{key}={value}" for key, value in row.settings.items()]
    shown = tuple(text for text in settings if text not in common)
    bins = {entry.scores.n_bins for entry in row.runs}
    return Line(
        label=_label(row, shown, labels),
        method=row.method,
        cells={c.key: Cell(*mean_and_std(values), values) for c in columns if (values := row.values(c.metric))},
        preset=row.preset,
        epochs=row.epochs,
        model=row.model,
        runs=len(row.runs),
        seeds=row.seeds,
        settings=tuple(sorted({*settings, *common}) if row.epochs is not None else settings),
        calibrated_p=tuple(entry.scores.ece_if_calibrated.p_value for entry in row.runs),
        examples=common_size(row.runs),
        choices=tuple(f"{key}={row.recipe[key]}" for key in CHOICES if key in row.recipe),
        doubts=doubts_of(row.runs),
        bins=bins.pop() if len(bins) == 1 else None,
        is_stale=any(entry.facts.get("stale") for entry in row.runs),
        row=row,
        shown=shown,
    )


def paper_line(row: PaperRow, *, table: str, columns: Sequence[Column], label: str = "in the paper") -> Line:
    """One row of the paper as a line."""
    source = paper_table(table)
    cells = {c.key: Cell(*row.values[c.metric]) for c in columns if c.metric in row.values}
    return Line(label, row.method, cells, "paper", epochs=source.epochs, model=row.model, runs=source.seeds)


def with_paper(lines: Sequence[Line], data: str, model: str | None) -> tuple[Line, ...]:
    """Put the paper's line below the last line of its method."""
    found: list[Line] = []
    for place, line in enumerate(lines):
        found.append(line)
        last = all(other.method != line.method for other in lines[place + 1 :])
        row = paper_row(data, line.method, model=model) if last else None
        if row is not None:
            columns = [metric_column(key) for key in row.values]
            found.append(paper_line(row, table="table4" if model == "densenet100" else "table1", columns=columns))
    return tuple(found)


def common_settings(rows: Sequence[Row]) -> list[str]:
    """Settings that all rows of which something is known have, told or by their method's choice."""
    known = [row for row in rows if row.epochs is not None]
    said = sorted({pair for row in known for pair in row.settings.items()})
    return [f"{key}={value}" for key, value in said if all(row.recipe.get(key) == value for row in known)]


def _label(row: Row, shown: Sequence[str], labels: Literal["method", "name"]) -> str:
    name = method_name(row.method) if labels == "name" else row.method
    # A column or a note says what was chosen about weights and epoch.
    told = [text for text in shown if not text.startswith(CHOICES)]
    return f"{name} ({', '.join(told)})" if told else name


def _mark_best(line: Line, lines: Sequence[Line], columns: Sequence[Column], *, usual: int | None) -> Line:
    """Mark the printed values that no line that may be compared undercuts; a line without company is not the best.

    Somebody's predictions alone are no company where there are several runs: beating them says nothing about runs of another
    length or settings beside it. What is of another number of test examples than the section is not the best.
    """
    assert line.row is not None
    others = [o for o in lines if o is not line and o.row is not None and comparable(line.row, o.row)]
    several, alone = (sum(not o.row.is_foreign for o in found if o.row is not None) for found in (lines, others))
    if line.examples != usual or (several > 1 and not alone):
        return line

    def printed(of: Line, column: Column) -> float:
        value = float(of.cells[column.key].shown(column)[0])
        # A record keeps what is infinite as no number.
        return math.inf if math.isnan(value) else value

    cells = dict(line.cells)
    for column in columns:
        values = [printed(other, column) for other in others if column.key in other.cells]
        if METRICS[column.metric].better == "lower" and column.key in cells and values:
            best = math.isfinite(cells[column.key].mean) and printed(line, column) <= min(values)
            cells[column.key] = replace(cells[column.key], best=best)
    return replace(line, cells=cells)


def _mark_tests(lines: Sequence[Line], columns: Sequence[Column]) -> list[Line]:
    """Test every line against the first."""
    rows, keys = [line.row for line in lines if line.row is not None], [column.metric for column in columns]
    tests = [compare_runs(rows[0].runs, row.runs, keys) if comparable(rows[0], row) else {} for row in rows[1:]]
    cells = [dict(line.cells) for line in lines]
    for column in columns:
        found = [test.get(column.metric) for test in tests]
        corrected = holm([None if difference is None else difference.p_value for difference in found])
        for own, difference, p_value in zip(cells[1:], found, corrected, strict=True):
            if difference is not None and p_value is not None:
                own[column.key] = replace(own[column.key], p_value=p_value, over=difference.over)
    return [replace(line, cells=own) for line, own in zip(lines, cells, strict=True)]
