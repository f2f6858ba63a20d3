"""The table of a comparison: its rows with tests, the paper's numbers below them, and the sentences below the table.

The rows are those of `calibrant.report.rows`; `export` writes tables to files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from calibrant.core.scores import Entry
from calibrant.grid.paper import NOT_IN_PAPER, PaperRow, load_paper, notes_about, paper_row, paper_table
from calibrant.metrics.paired import LEAST_SEEDS, compare_runs, holm
from calibrant.report.rows import INFO_NAMES, Cell, Column, Info, Row, Table, comparable, group_rows, metric_column

MARK = "†"
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
