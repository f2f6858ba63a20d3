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
from typing import Any

from calibrant.core.records import Entry
from calibrant.metrics import METRICS
from calibrant.metrics.paired import LEAST_SEEDS, Difference, compare_runs, holm
from calibrant.report.rows import INFO_NAMES, Column, Info, Mean, Row, Table, comparable, group_rows, metric_column

MARK = "†"
# The columns of the paper's Table 1.
SIX = ("error", "nll", "ece", "mce", "ace", "classwise_ece")

_TESTS = {
    "seeds": f"a paired t-test over seeds, where two rows have {LEAST_SEEDS} or more in common",
    "examples": "a paired bootstrap of one network each on the same test examples, which is about these networks alone",
}
_BOLD = (
    "Bold: the best of a column among rows with the same data, network, epochs, preset, number of training examples and "
    "settings (--set, but for a method's own)."
)
_INFO_NOTES: dict[Info, str] = {
    "choices": f"{INFO_NAMES['choices']}: how weights were averaged (train.average) and what chose the epoch (train.select).",
    "trained": f"{INFO_NAMES['trained']}: the number of training examples.",
    "calibrated": f"{INFO_NAMES['calibrated']}: how likely a perfectly calibrated model with these confidences is to show such "
    "an ECE; with several seeds, the smallest p times their number (Bonferroni).",
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
    # What differs from row to row has a column.
    various: tuple[Info, ...] = ("choices", "trained")
    shown = {*info, "seeds", *filter(table.varies, various), *(["calibrated"] if calibrated else [])}
    table = replace(table, info=tuple(key for key in INFO_NAMES if key in shown))
    return replace(table, notes=notes_of(table, tested=test))


def mark_tests(rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    """Test every row against the first, where the two may be compared."""
    marked = [rows[0]]
    for row, found in zip(rows[1:], differences([(rows[0], row) for row in rows[1:]], columns), strict=True):
        tested = {key: replace(row.cells[key], p_value=test.p_value, over=test.over) for key, test in found.items()}
        marked.append(replace(row, cells={**row.cells, **tested}))
    return marked


def differences(pairs: Sequence[tuple[Row, Row]], columns: Sequence[Column]) -> list[dict[str, Difference]]:
    """Difference of the second of each pair of rows to the first, by metric, if the two may be compared.

    P-values are corrected after Holm for the number of pairs.
    """
    keys = [column.key for column in columns]
    found = [compare_runs(first.runs, second.runs, keys) if comparable(first, second) else {} for first, second in pairs]
    for key in keys:
        tests = [tests for tests in found if key in tests]
        for test, p_value in zip(tests, holm([test[key].p_value for test in tests]), strict=True):
            test[key] = test[key]._replace(p_value=p_value)
    return found


def with_paper(rows: Sequence[Row], data: str, model: str | None) -> list[Row]:
    """Put the paper's row below the last row of its method."""
    found: list[Row] = []
    for place, row in enumerate(rows):
        found.append(row)
        printed = find_in_paper(data, row.method, model)[1]
        if printed is not None and all(other.method != row.method for other in rows[place + 1 :]):
            found.append(replace(printed, label="in the paper"))
    return found


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
    paper = load_paper()
    shown = [
        (
            table.name if table.name in paper.tables else find_in_paper(part.data, row.method, row.model)[0],
            part.data,
            row.method,
            key,
        )
        for part in table.sections
        for row in part.rows
        for key in row.cells.keys() & {column.key for column in table.columns}
        if row.kind == "paper"
    ]
    return [note["text"] for note in paper.notes if any(_is_about(note, *number) for number in shown)]


def _is_about(note: Mapping[str, Any], table: str, data: str, method: str, metric: str) -> bool:
    """Whether a note says something about one number of a table of the paper; what it does not name, it means all of."""
    found = {"table": table, "data": data, "metric": metric}
    return all(note.get(key, value) == value for key, value in found.items()) and method in note.get("methods", [method])


@dataclass(frozen=True)
class PaperTable:
    """One table: data set → its rows as printed, with the label that they have there, and the network, if it is one."""

    title: str
    rows: Mapping[str, tuple[Row, ...]]
    model: str | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        """Every method of the table once, in the printed order."""
        return tuple(dict.fromkeys(row.method for rows in self.rows.values() for row in rows))

    def row(self, data: str, method: str) -> Row | None:
        """The first row of a method on a data set, or None."""
        return next((row for row in self.rows.get(data, ()) if row.method == method), None)


@dataclass(frozen=True)
class Paper:
    """All tables of the paper: name → table, what it calls our methods, its claims in text, and notes on its numbers.

    A note has a ``text``, and the ``table``, ``data``, ``methods`` and ``metric`` that it is about.
    """

    reference: str
    url: str
    labels: Mapping[str, str]
    tables: Mapping[str, PaperTable]
    claims: tuple[Mapping[str, Any], ...]
    notes: tuple[Mapping[str, Any], ...]


@cache
def load_paper() -> Paper:
    """Read the paper's numbers; the file is part of the package.

    Example:
        >>> cell = load_paper().tables["table1"].row("cifar10", "flgamma-sece").cells["ece"]
        >>> cell.mean, cell.std
        (0.02138, 0.00819)

    Reference:
        Wang and Golebiowski, TMLR 2024, tables 1 to 5.
    """
    found = json.loads(files("calibrant.grid").joinpath("paper.json").read_text(encoding="utf-8"))
    tables = {}
    for name, table in found["tables"].items():
        rows = {data: tuple(_rows(rows, found["labels"], table)) for data, rows in table["values"].items()}
        tables[name] = PaperTable(table["title"], rows, table.get("model"))
    return Paper(
        reference=f"{found['authors']}: {found['title']}. {found['venue']}.",
        url=found["url"],
        labels=found["labels"],
        tables=tables,
        claims=tuple(found["claims"]),
        notes=tuple(found["notes"]),
    )


def find_in_paper(data: str, method: str, model: str | None) -> tuple[str, Row | None]:
    """Return the name of the table that has the paper's numbers for a method on a data set with a network, and their row."""
    for name in ("table1", "table2", "table4"):
        table = load_paper().tables[name]
        if table.model == model and (row := table.row(data, method)) is not None:
            return name, row
    return "", None


def _rows(found: Mapping[str, Any] | list[Any], labels: Mapping[str, str], table: Mapping[str, Any]) -> Iterator[Row]:
    # The table of other papers' networks has several rows of a method, and so is a list.
    listed = [{"method": m, "model": table["model"], **v} for m, v in found.items()] if isinstance(found, Mapping) else found
    for row in listed:
        cells = {key: _cell(key, value) for key, value in row.items() if key not in ("method", "model")}
        known = {"epochs": table.get("epochs"), "model": row["model"], "n_runs": table.get("seeds")}
        yield Row(labels[row["method"]], row["method"], cells, "paper", **known)


def _cell(metric: str, printed: float | list[float]) -> Mean:
    scale = 100 if METRICS[metric].unit == "%" else 1
    # Dividing by 100 would leave 0.048119999...; one more digit than is printed is enough.
    mean, *std = (round(number / scale, 7) for number in (printed if isinstance(printed, list) else [printed]))
    return Mean(mean, std[0] if std else None)
