"""Entries to tables: a comparison of any runs, with its best values, its tests, and the paper's numbers where asked for.

How a table is written is in `markdown`, `latex` and `export`; the paper's own five tables are in `paper_tables`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from calibrant.core.entry import Entry, data_name
from calibrant.core.sizes import common_size, usual_size
from calibrant.grid.captions import notes_of
from calibrant.grid.doubts import doubts_of
from calibrant.grid.layout import Cell, Column, Info, Line, Section, Table
from calibrant.grid.paper import PaperRow, paper_row, paper_table
from calibrant.grid.rows import LEFT_TO_METHOD, Row, chosen, comparable, group_rows, holds, is_foreign
from calibrant.metrics.differences import Difference, compare_runs, holm, mean_and_std
from calibrant.report.style import method_name

# The columns of the paper's Table 1.
METRIC_NAMES = {"error": "Error", "nll": "NLL", "ece": "ECE", "mce": "MCE", "ace": "ACE", "classwise_ece": "Classwise ECE"}
SIX = tuple(METRIC_NAMES)
_PLAIN = {"nll", "brier"}


class Style(NamedTuple):
    """What a table shows besides its numbers.

    Attributes:
        paper: Put the paper's numbers below ours.
        calibrated: Add a column: how probable so large an ECE would be for a perfectly calibrated model.
        test: Test the difference to the first row.
        labels: Name methods as they are typed ("method") or as figures do ("name").
        info: Columns that are shown in any case; epochs and preset are shown where they differ.
    """

    paper: bool = False
    calibrated: bool = False
    test: bool = True
    labels: Literal["method", "name"] = "method"
    info: tuple[Info, ...] = ()


def compare_table(
    entries: Iterable[Entry],
    *,
    metrics: Sequence[str] = SIX,
    paper: bool = False,
    calibrated: bool = False,
    test: bool = True,
    labels: Literal["method", "name"] = "method",
    name: str = "comparison",
    title: str = "Comparison of methods on test data",
) -> Table:
    """Make the table of any runs: a section for every data set and network, a line for every method.

    The best value of a column is marked among the rows that may be compared: same data, network and epochs (ties as printed are
    all marked). Every row is tested against the first of its section; see `calibrant.metrics.differences.compare_runs`.

    Args:
        entries: Runs and somebody's predictions; their order is that of the rows.
        metrics: Keys of `Scores` to show.
        paper: Put the paper's numbers below ours, where it has some for the same data, network and method.
        calibrated: Add the column of p-values of `Scores.ece_if_calibrated`.
        test: Whether to test differences; the paired bootstrap takes about a second a row.
        labels: Name methods as they are typed ("method") or as figures do ("name").
        name: For file names and references.
        title: What the table shows.

    Returns:
        The table; `calibrant.grid.export.write_table` writes it. Raises ``ValueError`` if there are no entries.

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
    style = Style(paper=paper, calibrated=calibrated, test=test, labels=labels)
    return build_table(rows, metrics, style, name=name, title=title)


def build_table(rows: Sequence[Row], metrics: Sequence[str], style: Style, *, name: str, title: str) -> Table:
    """Lay out rows that are already grouped, a section for every data set and network."""
    columns = tuple(metric_column(key) for key in metrics)
    told = told_keys(rows)
    sections = []
    for (data, model), part in by_section(rows).items():
        lines = with_paper(_compared(part, columns, style, told), data, model, style)
        sections.append(Section(_section_title(data, model), lines, data, model, _usual(part)))
    return finish_table(Table(name, title, columns, tuple(sections)), style)


def finish_table(table: Table, style: Style, *, beside: Sequence[Line] = ()) -> Table:
    """Add the columns that tell lines apart, and the notes; ``beside`` are lines not shown that the others are held against."""
    presets = {line.preset for line in table.lines} - {None}
    epochs = {line.epochs for line in table.lines}
    wanted: dict[Info, bool] = {
        "preset": len(presets) > 1 or "preset" in style.info,
        "epochs": len(epochs) > 1 or "epochs" in style.info,
        "seeds": True,
        "calibrated": style.calibrated,
    }
    table = replace(table, info=tuple(key for key, shown in wanted.items() if shown))
    return replace(table, notes=notes_of(table, tested=style.test, paper=style.paper, beside=beside))


def metric_column(key: str) -> Column:
    """The column of a metric, in per cent unless it is no rate."""
    return Column(key=key, name=METRIC_NAMES.get(key, key), metric=key, percent=key not in _PLAIN)


def by_section(rows: Sequence[Row]) -> dict[tuple[str, str | None], list[Row]]:
    """Rows by data set and network; a row of an unknown network joins the first one of its data."""
    found: dict[tuple[str, str | None], list[Row]] = {}
    for row in rows:
        known = [other.model for other in rows if other.data == row.data and other.model is not None]
        found.setdefault((row.data, row.model or (known[0] if known else None)), []).append(row)
    return found


def line_of(row: Row, columns: Sequence[Column], style: Style, *, common: Sequence[str] = (), told: Sequence[str] = ()) -> Line:
    """One row as a line, nothing marked yet.

    Args:
        row: The row.
        columns: Columns whose metric is taken from the row.
        style: How methods are named.
        common: Settings that all rows share, which the label need not say.
        told: Keys of the recipe whose value the label says in any case; see `told_keys`.
    """
    effective = {f"{key}={value}" for key in told if (value := chosen(row, key)) is not None}
    own = sorted({text for text in row.settings if text not in common} | effective)
    label = method_name(row.method) if style.labels == "name" else row.method
    cells = {c.key: Cell(*mean_and_std(values), values) for c in columns if (values := row.values(c.metric))}
    return Line(
        label=f"{label} ({', '.join(own)})" if own else label,
        method=row.method,
        cells=cells,
        preset=row.preset,
        epochs=row.epochs,
        model=row.model,
        runs=len(row.runs),
        seeds=row.seeds,
        settings=tuple(sorted({*row.settings, *common, *effective})) if row.epochs is not None else row.settings,
        calibrated_p=tuple(entry.scores.ece_if_calibrated.p_value for entry in row.runs),
        examples=common_size(row.runs),
        choices=tuple(f"{key}={value}" for key in LEFT_TO_METHOD if (value := chosen(row, key)) is not None),
        doubts=doubts_of(row.runs),
        bins=bins.pop() if len(bins := {entry.scores.n_bins for entry in row.runs}) == 1 else None,
    )


def paper_line(row: PaperRow, *, table: str, columns: Sequence[Column], label: str = "in the paper") -> Line:
    """One row of the paper as a line."""
    source = paper_table(table)
    cells = {c.key: Cell(*row.values[c.metric]) for c in columns if c.metric in row.values}
    return Line(label, row.method, cells, "paper", epochs=source.epochs, model=row.model, runs=source.seeds)


def with_paper(lines: Sequence[Line], data: str, model: str | None, style: Style) -> tuple[Line, ...]:
    """Put the paper's line below the last line of its method."""
    if not style.paper:
        return tuple(lines)
    found: list[Line] = []
    for place, line in enumerate(lines):
        found.append(line)
        last = all(other.method != line.method for other in lines[place + 1 :])
        row = paper_row(data, line.method, model=model) if last and line.kind == "ours" else None
        if row is not None:
            columns = [metric_column(key) for key in row.values]
            found.append(paper_line(row, table="table4" if model == "densenet100" else "table1", columns=columns))
    return tuple(found)


def common_settings(rows: Sequence[Row]) -> list[str]:
    """Settings that all rows of which something is known have, told or by their method's choice."""
    known = [row for row in rows if row.epochs is not None]
    said = sorted({text for row in known for text in row.settings})
    return [text for text in said if all(holds(row, text) for row in known)]


def told_keys(rows: Sequence[Row]) -> list[str]:
    """What methods choose themselves and rows differ in, averaging and selection, where some row was told one of the two.

    Where one row says how it averages, a reader must know how the others do, to hold it against them.
    """
    said = {text.partition("=")[0] for row in rows for text in row.settings}
    known = [row for row in rows if not is_foreign(row)]
    differ = [key for key in LEFT_TO_METHOD if len({chosen(row, key) for row in known}) > 1]
    return differ if said & set(LEFT_TO_METHOD) else []


def _compared(rows: Sequence[Row], columns: Sequence[Column], style: Style, told: Sequence[str]) -> list[Line]:
    common = [text for text in common_settings(rows) if text.partition("=")[0] not in told]
    lines = [line_of(row, columns, style, common=common, told=told) for row in rows]
    for column in columns:
        mark_best(lines, rows, column)
    if style.test:
        keys, first = [c.metric for c in columns], rows[0]
        tests = [compare_runs(first.runs, row.runs, keys) if comparable(first, row) else {} for row in rows[1:]]
        _mark_tests(lines, tests, columns)
    return lines


def mark_best(lines: list[Line], rows: Sequence[Row], column: Column) -> None:
    """Mark the lines whose printed value no row that may be compared undercuts; a row without company is not the best.

    Somebody's predictions alone are no company where there are several runs: beating them says nothing about runs of another
    length or settings beside it. What is of another number of test examples than the section is not the best.
    """
    key, several, usual = column.key, sum(not is_foreign(row) for row in rows) > 1, _usual(rows)
    shown = [float(line.cells[key].shown(column)[0]) if key in line.cells else None for line in lines]
    for place, line in enumerate(lines):
        own, others = shown[place], [k for k, row in enumerate(rows) if k != place and comparable(rows[place], row)]
        company = not several or any(not is_foreign(rows[k]) for k in others)
        # A record keeps what is infinite as no number.
        values = [math.inf if math.isnan(value) else value for k in others if (value := shown[k]) is not None]
        if own is not None and line.examples == usual and company and values and own <= min(values):
            lines[place] = replace(line, cells={**line.cells, key: replace(line.cells[key], best=True)})


def _mark_tests(lines: list[Line], tests: Sequence[dict[str, Difference]], columns: Sequence[Column]) -> None:
    for column in columns:
        found = [test.get(column.metric) for test in tests]
        corrected = holm([None if difference is None else difference.p_value for difference in found])
        for place, (difference, p_value) in enumerate(zip(found, corrected, strict=True), 1):
            if difference is not None and p_value is not None:
                cell = replace(lines[place].cells[column.key], p_value=p_value, over=difference.over)
                lines[place] = replace(lines[place], cells={**lines[place].cells, column.key: cell})


def _usual(rows: Sequence[Row]) -> int | None:
    return usual_size(entry for row in rows for entry in row.runs)


def _section_title(data: str, model: str | None) -> str:
    return data_name(data) if model is None else f"{data_name(data)}, {model}"
