"""Runs side by side: the rows of a comparison, their table, and which of them differ from the best."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from calibrant.core.entry import Entry, common_size, size_note, usual_size
from calibrant.data import data_name
from calibrant.metrics import METRICS
from calibrant.metrics.differences import compare_runs, holm, welch_t
from calibrant.metrics.table import added_scores
from calibrant.metrics.verdict import SIGNIFICANT, join_words, write_interval, write_value
from calibrant.report.page_content import FinishedTable, InTable
from calibrant.report.rows import Group, Row, group_rows

# Metrics of the comparison table.
_COLUMNS = ("error", "nll", "brier", "ece", "mce", "ace", "classwise_ece")
# Behind a value that differs from that of the first row, as in tables.
_MARK = "†"
# Data set of predictions whose file cannot say it; see `calibrant.grid.collect`.
_UNKNOWN = "?"


@dataclass(frozen=True)
class RunRow:
    """One row of a comparison: the row of figures, its data set and network, and the metrics in which it is the best.

    ``size_note`` says how many test examples it is of where that is not the usual number of its place, so that it is not
    compared with the other rows. ``told`` is what a table says of it.
    """

    row: Row
    data: str
    place: str
    best: Collection[str] = ()
    size_note: str = ""
    told: InTable = InTable()

    @property
    def label(self) -> str:
        """What tells it from the other rows of its place."""
        return self.row.label

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Its runs."""
        return self.row.runs

    def values(self, key: str) -> list[float]:
        """Value of a metric in every run that has it."""
        return [entry.scores[key].value for entry in self.entries if key in entry.scores]

    def mean(self, key: str) -> float:
        """Mean of a metric over the runs that have it; nan if none has."""
        values = self.values(key)
        return math.fsum(values) / len(values) if values else math.nan


def place_of(group: Group) -> str:
    """Return what a page calls a data set and network."""
    return " · ".join(name for name in (_data_of(group), group.model) if name)


def _data_of(group: Group) -> str:
    return "" if group.data == _UNKNOWN else data_name(group.data)


def group_entries(
    entries: Sequence[Entry], *, best: Sequence[Collection[str]] | None = None, told: Sequence[InTable] | None = None
) -> list[RunRow]:
    """Put the seeds of each row together; a row of unknown network is there once for every network of its data set.

    Args:
        entries: Runs, in any order.
        best: For each, the metrics in which its row is the best; by default those in which no row of the same place is better.
        told: For each, what a table says of its row.
    """
    marked = {} if best is None else {id(entry): keys for entry, keys in zip(entries, best, strict=True)}
    said = {} if told is None else {id(entry): part for entry, part in zip(entries, told, strict=True)}
    found = []
    for group in group_rows(entries) if entries else ():
        usual = usual_size(entry for row in group.rows for entry in row.runs)
        for row in group.rows:
            note, first = size_note(common_size(row.runs), usual), id(row.runs[0])
            keys, in_table = marked.get(first, ()), said.get(first, InTable())
            found.append(RunRow(row, _data_of(group), place_of(group), keys, note, in_table))
    return found if best is not None else [replace(row, best=_best(row, found)) for row in found]


def _best(row: RunRow, rows: Sequence[RunRow]) -> Collection[str]:
    """Metrics in which no row of the same place, and of as many test examples, is better; none where it is alone."""
    beside = [other for other in rows if other.place == row.place and not other.size_note]
    if row not in beside or len(beside) < 2:
        return frozenset()
    keys = [key for key in columns_of(row.entries) if METRICS[key].better == "lower"]
    means = {key: [mean for other in beside if math.isfinite(mean := other.mean(key))] for key in keys}
    return frozenset(key for key in keys if len(means[key]) > 1 and row.mean(key) == min(means[key]))


def columns_of(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Return the metrics to compare entries by: the usual ones, and those of other packages that some of them have."""
    known = {key for entry in entries for key in entry.scores}
    return (*_COLUMNS, *(key for key in added_scores() if key in known))


def table_view(rows: Sequence[RunRow], tables: Sequence[FinishedTable]) -> dict[str, object]:
    """What the template writes of the comparison table; ``tables`` are finished ones on the same page.

    Where one of them shows every metric of this table but the Brier score, this one is closed until a reader opens it.
    """
    keys = [key for key in columns_of(entry for row in rows for entry in row.entries) if any(row.values(key) for row in rows)]
    heads = list(dict.fromkeys(head for row in rows for head in row.told.info))
    several = len({row.place for row in rows}) > 1
    tested = {key for row in rows for key in row.told.p_values}
    found: dict[int, dict[str, object]] = {}
    for row in rows:
        # Under the heading of one network among several, it would be taken for a run of that.
        stranger = "Network unknown." if several and row.entries[0].model is None and row.place != row.data else ""
        # A row of unknown network is in several places, and once in the table.
        found.setdefault(
            id(row.entries[0]),
            {
                "label": row.label,
                "place": row.place,
                "seeds": len(row.entries),
                "info": [row.told.info.get(head, "") for head in heads],
                "cells": [_cell(row, key) for key in keys],
                "note": " ".join(filter(None, (stranger, row.size_note))),
            },
        )
    shown = {short_name(key) for key in keys if key != "brier"}
    return {
        "heads": [*heads, *(short_name(key) for key in keys)],
        "parts": [(place, list(part)) for place, part in groupby(found.values(), key=lambda row: row["place"])],
        "untested": join_words([short_name(key) for key in keys if key not in tested] or [""]) if tested else "",
        "is_repeated": any(shown <= {head.removesuffix(" (%)") for head in table.heads} for table in tables),
        "has_seeds": any(len(row.entries) > 1 for row in rows),
        "has_single": any(len(row.entries) == 1 for row in rows),
    }


def short_name(key: str) -> str:
    """Name of a metric in the head of a narrow column."""
    name = METRICS[key].short or METRICS[key].label
    return name[0].upper() + name[1:]


def _cell(row: RunRow, key: str) -> dict[str, object]:
    """Mean and standard deviation over seeds; a single run has its own interval instead."""
    values, unit = row.values(key), METRICS[key].unit
    if not values:
        return {"value": "", "mark": "", "spread": "", "is_best": False}
    if len(values) > 1:
        middle = row.mean(key)
        deviation = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))
        spread = f"± {write_value(deviation, unit).removesuffix('%')}"
    else:
        spread = write_interval(next(entry.scores[key] for entry in row.entries if key in entry.scores), unit)
    mark = _MARK if row.told.p_values.get(key, 1.0) < SIGNIFICANT else ""
    return {"value": write_value(row.mean(key), unit), "mark": mark, "spread": spread, "is_best": key in row.best}


def leader(rows: Sequence[RunRow], key: str, then: str) -> RunRow | None:
    """The row with the least mean of a metric, of equal ones that with the least of another; None where no row has both.

    Rows that are marked as best go before those that are not: these may have nothing to be compared with. A part of the test
    set leads only where there is nothing else.
    """
    finite = [row for row in rows if math.isfinite(row.mean(key) + row.mean(then))]
    known = [row for row in finite if not row.size_note] or finite
    marked = [row for row in known if key in row.best]
    return min(marked or known, key=lambda row: (row.mean(key), row.mean(then)), default=None)


def labels_not_told(rows: Sequence[RunRow], leaders: Mapping[str, RunRow]) -> dict[str, list[str]]:
    """Find the rows that these runs do not tell from the best one of a metric.

    A pair that a table of these rows tests has the table's p-value, so that the two never contradict each other. Others are
    told apart by `calibrant.metrics.differences.compare_runs`, over seeds or over test examples; where that tests nothing, by
    Welch's t over their seeds; and a single run beside several, or without its predictions, by 95 % intervals that do not meet.
    The tests that are not the table's are corrected after Holm, those of a metric together.

    Args:
        rows: Rows of one place; a part of the test set is left out.
        leaders: Metric → its best row.
    """
    own: dict[tuple[int, int], dict[str, float | None]] = {}
    found = {}
    for key, best in leaders.items():
        rivals = [row for row in rows if row is not best and not row.size_note and row.mean(key) >= best.mean(key)]
        told = {id(row): p for row in rivals if (p := _in_table(best, row, key)) is not None}
        others = [row for row in rivals if id(row) not in told]
        for row in others:
            if (id(best), id(row)) not in own:
                own[id(best), id(row)] = _p_values(best, row, list(leaders))
        corrected = holm([own[id(best), id(row)][key] for row in others])
        p_values = told | {id(row): p for row, p in zip(others, corrected, strict=True) if p is not None}
        found[key] = [
            row.label
            for row in rivals
            if (not p_values[id(row)] < SIGNIFICANT if id(row) in p_values else _meet(best, row, key))
        ]
    return found


def _in_table(best: RunRow, row: RunRow, key: str) -> float | None:
    """P-value of the pair in a table, where that tests one of the two against the other."""
    if best.told.section != row.told.section:
        return None
    return next((b.told.p_values.get(key) for a, b in ((best, row), (row, best)) if a.told.is_base), None)


def _p_values(best: RunRow, row: RunRow, keys: Sequence[str]) -> dict[str, float | None]:
    """P-value of the difference in each metric; None where nothing could be tested, or where intervals tell enough."""
    alone = len(best.entries) == len(row.entries) == 1
    if alone and not any(_meet(best, row, key) for key in keys):
        # Resampling would only take time.
        return dict.fromkeys(keys)
    found = compare_runs(best.entries, row.entries, keys)
    known = {key: found[key].p_value if key in found else None for key in keys}
    return {key: welch_t(best.values(key), row.values(key)) if p is None else p for key, p in known.items()}


def _meet(best: RunRow, row: RunRow, key: str) -> bool:
    """Whether the 95 % intervals of any two runs of the two rows meet."""
    highest = max((entry.scores[key].high for entry in best.entries if key in entry.scores), default=math.nan)
    return any(entry.scores[key].low <= highest for entry in row.entries if key in entry.scores)
