"""The table of a comparison: its rows with tests, the sentences below it, and the numbers of the paper's own tables.

The rows are those of `calibrant.report.rows`; `export` writes tables to files. The paper's numbers are data of the package,
with what is known to be wrong with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from calibrant.core.records import Entry
from calibrant.core.registry import lookup
from calibrant.data import data_name
from calibrant.metrics import METRICS
from calibrant.metrics.paired import LEAST_SEEDS, compare_runs, holm
from calibrant.report.rows import INFO_NAMES, Cell, Column, Info, Row, Table, comparable, group_rows, metric_column

MARK = "†"
NOT_IN_PAPER = "The paper has no numbers for these data, networks and methods."
# The columns of the paper's Table 1.
SIX = ("error", "nll", "ece", "mce", "ace", "classwise_ece")

_TESTS = {
    "seeds": f"a paired t-test over seeds, where two rows have {LEAST_SEEDS} or more in common",
    "examples": "a paired bootstrap of one network each on the same test examples, which is about these networks alone",
}
_BOLD = (
    "Bold: the lowest of a column among rows of the same data, network, epochs, preset and given settings (--set), "
    "a method's own aside."
)
_INFO_NOTES: dict[Info, str] = {
    "choices": f"{INFO_NAMES['choices']}: how weights were averaged (train.average) and what chose the epoch (train.select).",
    "calibrated": "p if calibrated: how probable an ECE at least as large is for a perfectly calibrated model with these "
    "confidences; of several seeds, the least times their number (Bonferroni).",
}
_STALE = "‡ computed by older code, and the record holds no predictions to compute it again."


def compare_table(
    entries: Iterable[Entry],
    *,
    metrics: Sequence[str] = SIX,
    paper: bool = False,
    calibrated: bool = False,
    test: bool = True,
    info: Sequence[Info] = (),
    name: str = "comparison",
    title: str = "Comparison of methods on test data",
) -> Table:
    """Make the table of any runs: a section for every data set and network, a row for every method and setting.

    The best value of a column is marked among the rows that may be compared: same data, network and epochs (ties as printed are
    all marked). Every row is tested against the first of its section; see `calibrant.metrics.paired.compare_runs`.

    Args:
        entries: Runs and predictions of others, in the order of the rows.
        metrics: Keys of `Scores` to show.
        paper: Put the paper's numbers below ours, where it has some for the same data, network and method.
        calibrated: Add the column of p-values of `Scores.ece_if_calibrated`.
        test: Whether to test differences; the paired bootstrap takes about a second a row.
        info: Columns about the rows, besides the seeds.
        name: For file names and references.
        title: What the table shows.

    Returns:
        The table; `calibrant.grid.write_table` writes it. Raises ``ValueError`` if there are no entries.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> table = compare_table([Entry("coins", "mine", scores)], metrics=("error", "ece"))
        >>> table.rows[0].cells["error"].mean
        0.5
    """
    columns = tuple(metric_column(key) for key in metrics)
    sections = []
    for section in group_rows(list(entries)):
        rows = mark_tests(section.rows, columns) if test else section.rows
        rows = with_paper(rows, section.data, section.model) if paper else rows
        sections.append(replace(section, rows=tuple(rows)))
    table = Table(name, title, columns, tuple(sections))
    shown = {*info, "seeds", *(["calibrated"] if calibrated else []), *(["choices"] if differ_in_choices(table.rows) else [])}
    table = replace(table, info=tuple(key for key in INFO_NAMES if key in shown))
    missing = (NOT_IN_PAPER,) if paper and all(row.kind == "ours" for row in table.rows) else ()
    return replace(table, notes=(*missing, *notes_of(table, tested=test)))


def differ_in_choices(rows: Iterable[Row]) -> bool:
    """Whether rows differ in how they average weights or choose the epoch, so that a column must say it."""
    return len({row.choices for row in rows} - {""}) > 1


def mark_tests(rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    """Test every row against the first, where the two may be compared, and correct for their number in each column."""
    keys = [column.key for column in columns]
    tests = [compare_runs(rows[0].runs, row.runs, keys) if comparable(rows[0], row) else {} for row in rows[1:]]
    cells = [dict(row.cells) for row in rows]
    for key in keys:
        corrected = holm([found[key].p_value if key in found else None for found in tests])
        for own, found, p_value in zip(cells[1:], tests, corrected, strict=True):
            if p_value is not None:
                own[key] = replace(own[key], p_value=p_value, over=found[key].over)
    return [replace(row, cells=own) for row, own in zip(rows, cells, strict=True)]


def with_paper(rows: Sequence[Row], data: str, model: str | None) -> list[Row]:
    """Put the paper's row below the last row of its method."""
    found: list[Row] = []
    for place, row in enumerate(rows):
        found.append(row)
        is_last = all(other.method != row.method for other in rows[place + 1 :])
        if is_last and (printed := paper_row(data, row.method, model=model)) is not None:
            found.append(row_of_paper(printed, table="table4" if model == "densenet100" else "table1"))
    return found


def row_of_paper(printed: PaperRow, *, table: str, label: str = "in the paper") -> Row:
    """A printed row as one of ours."""
    source, cells = paper_table(table), {key: Cell(*value) for key, value in printed.values.items()}
    return Row(label, printed.method, cells, "paper", epochs=source.epochs, model=printed.model, n_runs=source.seeds)


def notes_of(table: Table, *, tested: bool = True) -> tuple[str, ...]:
    """Say what a reader must know of a table: what was averaged, what bold and marks mean, what the rows have in common."""
    rows = [row for row in table.rows if row.kind != "paper"]
    cells = [row.cells[column.key] for row in rows for column in table.columns if column.key in row.cells]
    averaged = "Mean ± standard deviation over runs of different seeds (n − 1); Seeds is their number."
    if all(row.kind == "difference" for row in rows):
        averaged = f"Method minus {table.base}, mean ± standard deviation over the seeds that both have; negative is better."
    elif {row.n_runs for row in rows} == {1}:
        averaged = "One run each."
    notes = [averaged, *_common(table, rows), *([_BOLD] if any(cell.best for cell in cells) else [])]
    ways = {cell.over for cell in cells if cell.over is not None}
    if tested and ways:
        how = ", or by ".join(_TESTS[over] for over in sorted(ways, reverse=True))
        notes.append(
            f"{MARK} differs from {table.base} with p < 0.05 by {how}; corrected after Holm over the rows of a column."
        )
    elif tested and len(rows) > len(table.sections):
        notes.append(
            f"Differences were not tested: that takes {LEAST_SEEDS} common seeds, or one run each with its predictions."
        )
    notes += [note for name, note in _INFO_NOTES.items() if name in table.info]
    notes += [_STALE] if "calibrated" in table.info and any(row.is_stale for row in rows) else []
    if len(rows) < len(table.rows):
        notes += [f"The paper's {note}" for note in paper_notes(table)]
        notes.append(f"The paper: {load_paper().reference} {load_paper().url}")
    return tuple(notes)


def _common(table: Table, rows: Sequence[Row]) -> list[str]:
    """What all rows have in common: length, preset, bins, and the settings of each section."""
    alike = {
        "{} epochs": {row.epochs for row in rows} - {None} if "epochs" not in table.info else (),
        "preset {}": {row.preset for row in rows} - {None} if "preset" not in table.info else (),
        "{} bins": {run.scores.n_bins for row in rows for run in row.runs},
    }
    said = [text.format(*values) for text, values in alike.items() if len(values) == 1]
    found = dict.fromkeys((section.title if len(table.sections) > 1 else "", section.common) for section in table.sections)
    told = [f"settings{f' on {title}' if title else ''} {', '.join(common)}" for title, common in found if common]
    return [f"All rows: {'; '.join([*said, *told])}."] if said or told else []


def paper_notes(table: Table) -> list[str]:
    """Return what is known about the numbers of the paper that a table shows, in the paper's order."""
    shown = [
        (section.data, row.method, row.model, column.key)
        for section in table.sections
        for row in section.rows
        for column in table.columns
        if row.kind == "paper" and column.key in row.cells
    ]
    return notes_about(shown, table=table.name)


class PaperValue(NamedTuple):
    """A printed number, in the unit of `calibrant.measure`: a mean over runs where it has a standard deviation."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class PaperRow:
    """One row of a table: our name of the method and what the paper calls it, our name of the network, metric → number."""

    method: str
    label: str
    model: str | None
    values: Mapping[str, PaperValue]


class PaperNote(NamedTuple):
    """Something known about printed numbers; None, or no methods, means all."""

    text: str
    table: str
    data: str | None = None
    methods: tuple[str, ...] = ()
    metric: str | None = None


@dataclass(frozen=True)
class PaperTable:
    """One table: data set → its rows in the printed order, and what these have in common."""

    name: str
    title: str
    rows: Mapping[str, tuple[PaperRow, ...]]
    model: str | None = None
    epochs: int | None = None
    seeds: int | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        """Every method of the table once, in the printed order."""
        return tuple(dict.fromkeys(row.method for rows in self.rows.values() for row in rows))

    def row(self, data: str, method: str) -> PaperRow | None:
        """The first row of a method on a data set, or None."""
        return next((row for row in self.rows.get(data, ()) if row.method == method), None)


@dataclass(frozen=True)
class Paper:
    """All tables of the paper: name → table, what it calls our methods, its claims in text, and notes on its numbers."""

    reference: str
    url: str
    labels: Mapping[str, str]
    tables: Mapping[str, PaperTable]
    claims: tuple[Mapping[str, Any], ...]
    notes: tuple[PaperNote, ...]


@cache
def load_paper() -> Paper:
    """Read the paper's numbers; the file is part of the package.

    Example:
        >>> table = load_paper().tables["table1"]
        >>> table.row("cifar10", "flgamma-sece").values["ece"]
        PaperValue(mean=0.02138, std=0.00819)

    Reference:
        Wang and Golebiowski, TMLR 2024, tables 1 to 5.
    """
    found = json.loads(files("calibrant.grid").joinpath("paper.json").read_text(encoding="utf-8"))
    tables = {}
    for name, table in found["tables"].items():
        model, facts = table.get("model"), {key: table.get(key) for key in ("epochs", "seeds")}
        rows = {data: tuple(_rows(rows, found["labels"], model)) for data, rows in table["values"].items()}
        tables[name] = PaperTable(name, table["title"], rows, model, **facts)
    return Paper(
        reference=f"{found['authors']}: {found['title']}. {found['venue']}.",
        url=found["url"],
        labels=found["labels"],
        tables=tables,
        claims=tuple(found["claims"]),
        notes=tuple(PaperNote(**note | {"methods": tuple(note.get("methods", ()))}) for note in found["notes"]),
    )


def paper_table(name: str) -> PaperTable:
    """Return a table by its name; an unknown one is answered with the nearest."""
    return lookup(load_paper().tables, name, kind="table of the paper")


def paper_row(data: str, method: str, *, model: str | None) -> PaperRow | None:
    """Return what the paper found for a method on a data set with a network, or None if it has nothing."""
    source = _source_of(data, method, model)
    return None if source is None else paper_table(source).row(data, method)


def notes_about(shown: Iterable[tuple[str, str, str | None, str]], *, table: str) -> list[str]:
    """Return the notes on some of the paper's numbers, each with what it is about in front, in the paper's order.

    Args:
        shown: Data set, method, network and metric of every number.
        table: Name of the table they stand in; if it is none of the paper's, they are found by data, network and method.
    """
    found: dict[PaperNote, None] = {}
    for data, method, model, metric in shown:
        source = table if table in load_paper().tables else _source_of(data, method, model)
        for note in load_paper().notes:
            right = note.table == source and note.data in (None, data) and note.metric in (None, metric)
            if right and method in (note.methods or (method,)):
                found[note] = None
    return [say_note(note) for note in load_paper().notes if note in found]


def say_note(note: PaperNote) -> str:
    """A note with what it is about in front."""
    about = [f"Table {note.table.removeprefix('table')}", *([data_name(note.data)] if note.data else [])]
    about += [load_paper().labels[method] for method in note.methods]
    if note.metric:
        first, *rest = (METRICS[note.metric].short or METRICS[note.metric].label).split()
        about.append(" ".join([first if first.isupper() else first.lower(), *rest]))
    return f"{', '.join(about)}: {note.text}"


def _source_of(data: str, method: str, model: str | None) -> str | None:
    """Name of the table with the paper's numbers for a run, or None."""
    tables = [load_paper().tables[name] for name in ("table1", "table2", "table4")]
    return next((table.name for table in tables if table.model == model and table.row(data, method) is not None), None)


def _rows(found: Mapping[str, Any] | list[Any], labels: Mapping[str, str], model: str | None) -> Iterator[PaperRow]:
    # The table of other papers' networks has several rows of a method, and so is a list.
    listed = [{"method": m, "model": model, **v} for m, v in found.items()] if isinstance(found, Mapping) else found
    for row in listed:
        values = {key: _value(key, value) for key, value in row.items() if key not in ("method", "model")}
        yield PaperRow(row["method"], labels[row["method"]], row["model"], values)


def _value(metric: str, printed: float | list[float]) -> PaperValue:
    numbers = printed if isinstance(printed, list) else [printed]
    # Dividing by 100 would leave 0.048119999...; one more digit than is printed is enough.
    return PaperValue(*(round(number / 100, 7) if METRICS[metric].unit == "%" else number for number in numbers))
