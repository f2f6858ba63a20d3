"""Entries to tables: a comparison of any runs, with its best values, its tests, and the paper's numbers where asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from calibrant.core.entry import Entry, common_size, usual_size
from calibrant.data import data_name
from calibrant.grid.layout import Cell, Column, Info, Line, Section, Table, doubts_of, notes_of
from calibrant.grid.paper import PaperRow, paper_row, paper_table
from calibrant.grid.rows import CHOICES, Row, comparable, group_rows
from calibrant.metrics import METRICS
from calibrant.metrics.differences import compare_runs, holm, mean_and_std
from calibrant.report.rows import method_name

# The columns of the paper's Table 1.
SIX = ("error", "nll", "ece", "mce", "ace", "classwise_ece")


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
    style = Style(paper=paper, calibrated=calibrated, test=test, labels=labels)
    return build_table(rows, metrics, style, name=name, title=title)


def build_table(rows: Sequence[Row], metrics: Sequence[str], style: Style, *, name: str, title: str) -> Table:
    """Lay out rows that are already grouped, a section for every data set and network."""
    columns, told = tuple(metric_column(key) for key in metrics), told_keys(rows)
    sections = []
    for (data, model), part in by_section(rows).items():
        usual = usual_size(entry for row in part for entry in row.runs)
        common = [text for text in common_settings(part) if text.partition("=")[0] not in told]
        lines = [line_of(row, columns, style, common=common, told=told) for row in part]
        lines = [_mark_best(line, lines, columns, usual=usual) for line in lines]
        lines = _mark_tests(lines, columns) if style.test else lines
        title_of = data_name(data) if model is None else f"{data_name(data)}, {model}"
        sections.append(Section(title_of, with_paper(lines, data, model, style), data, model, usual))
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


def name_methods(table: Table) -> Table:
    """Return a comparison with its methods named as figures and pages do; its notes are as they were."""
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


def line_of(row: Row, columns: Sequence[Column], style: Style, *, common: Sequence[str] = (), told: Sequence[str] = ()) -> Line:
    """One row as a line, nothing marked yet.

    Args:
        row: The row.
        columns: Columns whose metric is taken from the row.
        style: How methods are named.
        common: Settings that all rows share, which the label need not say.
        told: Keys of the recipe whose value the label says in any case; see `told_keys`.
    """
    settings = [f"{key}={value}" for key, value in row.settings.items()]
    effective = {f"{key}={row.recipe[key]}" for key in told if key in row.recipe}
    shown = tuple(sorted({text for text in settings if text not in common} | effective))
    bins = {entry.scores.n_bins for entry in row.runs}
    return Line(
        label=_label(row, shown, style.labels),
        method=row.method,
        cells={c.key: Cell(*mean_and_std(values), values) for c in columns if (values := row.values(c.metric))},
        preset=row.preset,
        epochs=row.epochs,
        model=row.model,
        runs=len(row.runs),
        seeds=row.seeds,
        settings=tuple(sorted({*settings, *common, *effective}) if row.epochs is not None else settings),
        calibrated_p=tuple(entry.scores.ece_if_calibrated.p_value for entry in row.runs),
        examples=common_size(row.runs),
        choices=tuple(f"{key}={row.recipe[key]}" for key in CHOICES if key in row.recipe),
        doubts=doubts_of(row.runs),
        bins=bins.pop() if len(bins) == 1 else None,
        row=row,
        shown=shown,
    )


def paper_line(row: PaperRow, *, table: str, columns: Sequence[Column], label: str = "in the paper") -> Line:
    """One row of the paper as a line."""
    source = paper_table(table)
    cells = {c.key: Cell(*row.values[c.metric]) for c in columns if c.metric in row.values}
    return Line(label, row.method, cells, "paper", epochs=source.epochs, model=row.model, runs=source.seeds)


def with_paper(lines: Sequence[Line], data: str, model: str | None, style: Style) -> tuple[Line, ...]:
    """Put the paper's line below the last line of its method."""
    found: list[Line] = []
    for place, line in enumerate(lines):
        found.append(line)
        last = style.paper and all(other.method != line.method for other in lines[place + 1 :])
        row = paper_row(data, line.method, model=model) if last and line.kind == "ours" else None
        if row is not None:
            columns = [metric_column(key) for key in row.values]
            found.append(paper_line(row, table="table4" if model == "densenet100" else "table1", columns=columns))
    return tuple(found)


def common_settings(rows: Sequence[Row]) -> list[str]:
    """Settings that all rows of which something is known have, told or by their method's choice."""
    known = [row for row in rows if row.epochs is not None]
    said = sorted({pair for row in known for pair in row.settings.items()})
    return [f"{key}={value}" for key, value in said if all(row.recipe.get(key) == value for row in known)]


def told_keys(rows: Sequence[Row]) -> list[str]:
    """What methods choose themselves and rows differ in, averaging and selection, where some row was told one of the two.

    Where one row says how it averages, a reader must know how the others do, to hold it against them.
    """
    if not any(key in row.settings for row in rows for key in CHOICES):
        return []
    return [key for key in CHOICES if len({row.recipe.get(key) for row in rows if not row.is_foreign}) > 1]


def _label(row: Row, shown: Sequence[str], labels: Literal["method", "name"]) -> str:
    name = method_name(row.method) if labels == "name" else row.method
    return f"{name} ({', '.join(shown)})" if shown else name


def _mark_best(line: Line, lines: Sequence[Line], columns: Sequence[Column], *, usual: int | None) -> Line:
    """Mark the printed values that no line that may be compared undercuts; a line without company is not the best.

    Somebody's predictions alone are no company where there are several runs: beating them says nothing about runs of another
    length or settings beside it. What is of another number of test examples than the section is not the best.
    """
    rows = [(other, other.row) for other in lines if other is not line and other.row is not None]
    assert line.row is not None
    others = [(other, row) for other, row in rows if comparable(line.row, row)]
    several = sum(other.row is not None and not other.row.is_foreign for other in lines) > 1
    if line.examples != usual or (several and all(row.is_foreign for _, row in others)):
        return line
    cells = dict(line.cells)
    for column in columns:
        values = [float(other.cells[column.key].shown(column)[0]) for other, _ in others if column.key in other.cells]
        # A record keeps what is infinite as no number.
        values = [math.inf if math.isnan(value) else value for value in values]
        if METRICS[column.metric].better != "lower" or column.key not in cells or not values:
            continue
        if float(cells[column.key].shown(column)[0]) <= min(values):
            cells[column.key] = replace(cells[column.key], best=True)
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
