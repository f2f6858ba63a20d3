"""What a page says of runs compared: the finding in words, and the table of runs that nobody has made a table of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from calibrant.core.scores import Entry
from calibrant.metrics.paired import compare_runs, holm
from calibrant.metrics.table import score_metrics
from calibrant.metrics.verdict import SIGNIFICANT, join_words, write_percent
from calibrant.report.rows import Row, Section, Table, comparable, group_rows, metric_column


class Verdict(NamedTuple):
    """What stands at the top of a page: a few words, paragraphs, and the tone that decides the colour.

    The tone is "over", "under", "both", "good" or "unsure", and "runs" for a comparison.
    """

    headline: str
    sentences: tuple[str, ...]
    tone: str


def columns_of(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Return the metrics to compare entries by, of those that some of them have."""
    known = {key for entry in entries for key in entry.scores}
    return tuple(key for key, metric in score_metrics().items() if metric.compared and key in known)


def plain_table(entries: Sequence[Entry]) -> Table:
    """Return the table of runs without tests."""
    columns = tuple(map(metric_column, columns_of(entries)))
    note = "Means over seeds ± their standard deviation. Bold: the lowest among rows of the same data, network and settings."
    return Table("runs", "Runs compared", columns, tuple(group_rows(entries)), notes=(note,))


def give_runs_verdict(sections: Sequence[Section]) -> Verdict:
    """Say what comparing runs found: for each data set and network the rows of the lowest ECE and error, and who is close."""
    rows = [row for section in sections for row in section.rows]
    methods, runs = len({row.label for row in rows if row.runs}), sum(len(row.runs) for row in rows)
    headline = f"{methods} method{'s' * (methods > 1)} compared in {runs} run{'s' * (runs > 1)}"
    return Verdict(headline, tuple(map(_tell, sections)), "runs")


def _tell(section: Section) -> str:
    rows = [row for row in section.rows if row.runs and all(math.isfinite(row.mean(key)) for key in ("ece", "error"))]
    if not rows:
        return f"{section.title}: no run has both an error and a calibration error (ECE)."
    best, accurate = (_leader(rows, *keys) for keys in (("ece", "error"), ("error", "ece")))
    ece, error = (write_percent(row.mean(key)) for row, key in ((best, "ece"), (accurate, "error")))
    if len(rows) == 1:
        return f"{section.title}: {best.label} has an ECE of {ece} and an error of {error}."
    second = "" if best is accurate else f"{accurate.label} has "
    told = f"{section.title}: {best.label} has the lowest ECE ({ece}), and {second}the lowest error ({error})."
    close = {"ECE": _near(best, rows, "ece"), "error": _near(accurate, rows, "error")}
    said = [f"the {what} of {join_words(labels)}" for what, labels in close.items() if labels]
    return f"{told} Too close to call: {'; '.join(said)}." if said else told


def _leader(rows: Sequence[Row], key: str, then: str) -> Row:
    """The row with the lowest mean of a metric among those marked as best, which have something to be compared with."""
    marked = [row for row in rows if row.cells[key].best]
    return min(marked or rows, key=lambda row: (row.mean(key), row.mean(then)))


def _near(best: Row, rows: Sequence[Row], key: str) -> list[str]:
    """Labels of the rows that tests do not tell from the best; single runs whose intervals do not meet need no test."""
    rivals = [row for row in rows if row is not best and comparable(best, row) and not _are_apart(best, row, key)]
    tests = [compare_runs(best.runs, row.runs, [key])[key].p_value for row in rivals]
    return [row.label for row, p in zip(rivals, holm(tests), strict=True) if p is None or p >= SIGNIFICANT]


def _are_apart(best: Row, row: Row, key: str) -> bool:
    return len(best.runs) == len(row.runs) == 1 and best.runs[0].scores[key].high < row.runs[0].scores[key].low
