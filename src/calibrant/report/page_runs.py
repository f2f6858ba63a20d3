"""Runs side by side: the rows of a comparison and their table. What their charts are drawn from is in `page_charts`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from calibrant.core.entry import Entry
from calibrant.core.words import metric_of, write_interval, write_value
from calibrant.report.rows import Row, group_rows
from calibrant.report.style import method_label

_COLUMNS = ("error", "nll", "brier", "ece", "mce", "ace", "classwise_ece")
# Data set of predictions whose file cannot say it; see `calibrant.grid.collect`.
_UNKNOWN = "?"


@dataclass(frozen=True)
class Group:
    """The seeds of one row of a comparison.

    Attributes:
        label: What tells it from the other rows of its ``place``, as plain text.
        place: Data set and network; empty if unknown.
        row: The row as figures see it, with its runs and its look.
    """

    label: str
    place: str
    row: Row

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


def group_entries(entries: Sequence[Entry]) -> list[Group]:
    """Put the seeds of each row together, in the order in which the rows come; labels are those of figures, as plain text."""
    found = []
    for group in group_rows(entries) if entries else ():
        place = " · ".join(name for name in (group.data, group.model) if name and name != _UNKNOWN)
        for row in group.rows:
            method = row.runs[0].method
            found.append(Group(method + row.label.removeprefix(method_label(method)), place, row))
    return found


def run_rows(groups: Sequence[Group]) -> tuple[list[str], list[dict[str, object]]]:
    """The comparison table: its columns, and a mapping with ``label``, ``place``, ``seeds`` and ``cells`` for each row."""
    keys = [key for key in _COLUMNS if any(group.values(key) for group in groups)]
    rows: list[dict[str, object]] = []
    for group in groups:
        beside = [other for other in groups if other.place == group.place]
        cells = [_cell(group, key, best=_least(beside, key)) for key in keys]
        rows.append({"label": group.label, "place": group.place, "seeds": len(group.entries), "cells": cells})
    return [short_name(key) for key in keys], rows


def _least(groups: Sequence[Group], key: str) -> float:
    """The least mean of a column; nan where there is nothing to compare."""
    means = [mean for group in groups if math.isfinite(mean := group.mean(key))]
    return min(means) if len(means) > 1 else math.nan


def short_name(key: str) -> str:
    """Name of a metric in the head of a narrow column."""
    short = {"error": "Error", "nll": "NLL", "brier": "Brier", "ece": "ECE", "mce": "MCE", "ace": "ACE"}
    return short.get(key, "Classwise ECE" if key == "classwise_ece" else metric_of(key).name)


def _cell(group: Group, key: str, *, best: float) -> dict[str, object]:
    """Mean and standard deviation over seeds; a single run has its own interval instead."""
    values, unit = group.values(key), metric_of(key).unit
    if not values:
        return {"value": "", "spread": "", "is_best": False}
    mean = mean_of(values)
    if len(values) > 1:
        spread = f"± {write_value(_deviation(values), unit).removesuffix('%')}"
    else:
        spread = write_interval(next(entry.scores[key] for entry in group.entries if key in entry.scores), unit)
    return {"value": write_value(mean, unit), "spread": spread, "is_best": mean == best}


def labels_within_chance(groups: Sequence[Group], key: str) -> list[str]:
    """Rows whose mean of a metric chance alone could have put above the least one.

    Two rows of several seeds are told apart by more than two standard errors of their difference; a single run stands for
    itself, and two such by 95 % intervals that do not meet.
    """
    known = [group for group in groups if group.values(key)]
    if not known:
        return []
    best = min(known, key=lambda group: group.mean(key))
    return [group.label for group in known if group is not best and _is_within_chance(group, best, key)]


def _is_within_chance(group: Group, best: Group, key: str) -> bool:
    samples = group.values(key), best.values(key)
    if min(map(len, samples)) > 1:
        error = math.sqrt(math.fsum(_deviation(values) ** 2 / len(values) for values in samples))
        return mean_of(samples[0]) - mean_of(samples[1]) <= 2 * error
    lowest = min(entry.scores[key].low for entry in group.entries if key in entry.scores)
    highest = max(entry.scores[key].high for entry in best.entries if key in entry.scores)
    return lowest <= highest


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
