"""Runs side by side: the rows of a comparison and their table. What their charts are drawn from is in `page_charts`."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from calibrant.core.entry import Entry, data_name
from calibrant.core.sizes import common_size, size_note, usual_size
from calibrant.core.words import SIGNIFICANT, metric_of, write_interval, write_value
from calibrant.report.page_content import InTable
from calibrant.report.rows import Row, group_rows
from calibrant.report.style import method_label, method_name

# Metrics of the comparison table.
COLUMNS = ("error", "nll", "brier", "ece", "mce", "ace", "classwise_ece")
# Behind a value that differs from that of the first row, as in tables.
_MARK = "†"
# Data set of predictions whose file cannot say it; see `calibrant.grid.collect`.
_UNKNOWN = "?"


@dataclass(frozen=True)
class Group:
    """The seeds of one row of a comparison.

    Attributes:
        label: What tells it from the other rows of its ``place``, as plain text.
        data: Name of the data set; empty if unknown.
        place: Data set and network; empty if unknown.
        row: The row as figures see it, with its runs and its look.
        best: Metrics in which it is the best.
        size_note: What is to be said of its number of test examples where that is not the usual one of its place, so that it
            is not compared with the other rows; else empty.
        told: What a table says of it.
        seed: Of several runs the one that stands for them: the last seed that all rows of its place have. None for its last.
    """

    label: str
    data: str
    place: str
    row: Row
    best: Collection[str] = ()
    size_note: str = ""
    told: InTable = InTable()
    seed: int | None = None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Its runs."""
        return self.row.runs

    def values(self, key: str) -> list[float]:
        """Value of a metric in every run that has it."""
        return [entry.scores[key].value for entry in self.entries if key in entry.scores]

    def mean(self, key: str) -> float:
        """Mean of a metric over the runs that have it; nan if none has."""
        return mean_of(self.values(key))


def group_entries(
    entries: Sequence[Entry], *, best: Sequence[Collection[str]] | None = None, told: Sequence[InTable] | None = None
) -> list[Group]:
    """Put the seeds of each row together, in the order in which the rows come; labels are those of figures, as plain text.

    A row of unknown network is there once for every network of its data set.

    Args:
        entries: Runs, in any order.
        best: For each, the metrics in which its row is the best; by default those in which no row of the same place is better.
        told: For each, what a table says of its row.

    Returns:
        The rows.
    """
    marked = {} if best is None else {id(entry): keys for entry, keys in zip(entries, best, strict=True)}
    said = {} if told is None else {id(entry): part for entry, part in zip(entries, told, strict=True)}
    found = []
    for group in group_rows(entries) if entries else ():
        data = "" if group.data == _UNKNOWN else data_name(group.data)
        place = " · ".join(name for name in (data, group.model) if name)
        usual = usual_size(entry for row in group.rows for entry in row.runs)
        for row in group.rows:
            method = row.runs[0].method
            label = method_name(method) + row.label.removeprefix(method_label(method))
            note = size_note(common_size(row.runs), usual)
            best_in, in_table = marked.get(id(row.runs[0]), ()), said.get(id(row.runs[0]), InTable())
            found.append(Group(label, data, place, row, best_in, note, in_table, group.common_seed))
    return found if best is not None else [replace(group, best=_best(group, found)) for group in found]


def run_rows(groups: Sequence[Group]) -> tuple[list[str], list[dict[str, object]]]:
    """The comparison table: its columns, and a mapping for each row.

    A row has ``label``, ``place``, ``seeds``, ``info``, ``cells`` and a ``note``: that it is of another number of test examples
    than those around it, or of an unknown network, else empty.
    """
    keys, heads = column_keys(groups), info_heads(groups)
    several = len({group.place for group in groups}) > 1
    rows: list[dict[str, object]] = []
    seen: set[int] = set()
    for group in groups:
        # A row of unknown network is in several places, and once in the table.
        if id(group.entries[0]) in seen:
            continue
        seen.add(id(group.entries[0]))
        # Under the heading of one network among several, it would be taken for a run of that.
        stranger = "Network unknown." if several and group.entries[0].model is None and group.place != group.data else ""
        rows.append(
            {
                "label": group.label,
                "place": group.place,
                "seeds": len(group.entries),
                "info": [group.told.info.get(head, "") for head in heads],
                "cells": [_cell(group, key) for key in keys],
                "note": " ".join(filter(None, (stranger, group.size_note))),
            }
        )
    return [short_name(key) for key in keys], rows


def column_keys(groups: Sequence[Group]) -> list[str]:
    """Metrics of the comparison table that any row has."""
    return [key for key in COLUMNS if any(group.values(key) for group in groups)]


def info_heads(groups: Sequence[Group]) -> list[str]:
    """Heads of the columns that describe its rows."""
    return list(dict.fromkeys(head for group in groups for head in group.told.info))


def untested(groups: Sequence[Group]) -> list[str]:
    """Names of the columns whose differences are not tested, where those of others are."""
    tested = {key for group in groups for key in group.told.p_values}
    return [short_name(key) for key in column_keys(groups) if key not in tested] if tested else []


def leader(groups: Sequence[Group], key: str, then: str) -> Group | None:
    """The row with the least mean of a metric, of equal ones that with the least of another; None where no row has both.

    Rows that are marked as best go before those that are not: these may have nothing to be compared with. A part of the test
    set leads only where there is nothing else.
    """
    finite = [group for group in groups if math.isfinite(group.mean(key) + group.mean(then))]
    known = [group for group in finite if not group.size_note] or finite
    marked = [group for group in known if key in group.best]
    return min(marked or known, key=lambda group: (group.mean(key), group.mean(then)), default=None)


def _best(group: Group, groups: Sequence[Group]) -> Collection[str]:
    beside = [other for other in groups if (other.place, other.size_note) == (group.place, "")]
    if group.size_note:
        return frozenset()
    return frozenset(key for key in COLUMNS if group.mean(key) == _least(beside, key))


def _least(groups: Sequence[Group], key: str) -> float:
    """The least mean of a column; nan where there is nothing to compare."""
    means = [mean for group in groups if math.isfinite(mean := group.mean(key))]
    return min(means) if len(means) > 1 else math.nan


def short_name(key: str) -> str:
    """Name of a metric in the head of a narrow column."""
    short = {"error": "Error", "nll": "NLL", "brier": "Brier", "ece": "ECE", "mce": "MCE", "ace": "ACE"}
    return short.get(key, "Classwise ECE" if key == "classwise_ece" else metric_of(key).name)


def _cell(group: Group, key: str) -> dict[str, object]:
    """Mean and standard deviation over seeds; a single run has its own interval instead."""
    values, unit = group.values(key), metric_of(key).unit
    if not values:
        return {"value": "", "mark": "", "spread": "", "is_best": False}
    if len(values) > 1:
        spread = f"± {write_value(_deviation(values), unit).removesuffix('%')}"
    else:
        spread = write_interval(next(entry.scores[key] for entry in group.entries if key in entry.scores), unit)
    mark = _MARK if group.told.p_values.get(key, 1.0) < SIGNIFICANT else ""
    return {"value": write_value(mean_of(values), unit), "mark": mark, "spread": spread, "is_best": key in group.best}


def mean_of(values: Sequence[float]) -> float:
    """Mean of ``values``; nan if there is none.

    Example:
        >>> mean_of([0.25, 0.75]), mean_of([])
        (0.5, nan)
    """
    return math.fsum(values) / len(values) if values else math.nan


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation of a sample of at least two."""
    middle = mean_of(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))
