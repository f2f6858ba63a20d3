"""Runs side by side: the comparison table, learning curves, gamma, and errors against the number of bins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from calibrant.core.binning import equal_width_index
from calibrant.core.entry import Entry
from calibrant.core.words import metric_of, write_interval, write_value
from calibrant.metrics.sweep import bin_sweep
from calibrant.report.rows import group_rows
from calibrant.report.style import method_label

CURVES = ("val_error", "val_ece", "val_nll", "test_error", "test_ece", "test_nll", "train_loss", "gamma_mean", "gamma_std")
_COLUMNS = ("error", "nll", "brier", "ece", "mce", "ace", "classwise_ece")
# Points of a learning curve that are kept: more could not be told apart on a screen.
_MOST_POINTS = 240
_GAMMA_BINS = 20
# Data set of predictions whose file cannot say it; see `calibrant.grid.collect`.
_UNKNOWN = "?"


@dataclass(frozen=True)
class Group:
    """The seeds of one row of a comparison.

    Attributes:
        label: What tells it from the other rows of its ``place``.
        place: Data set and network; empty if unknown.
        entries: Its runs.
    """

    label: str
    place: str
    entries: tuple[Entry, ...]

    def values(self, key: str) -> list[float]:
        """Value of a metric in every run that has it."""
        return [entry.scores[key].value for entry in self.entries if key in entry.scores]


def group_entries(entries: Sequence[Entry]) -> list[Group]:
    """Put the seeds of each row together, in the order in which the rows come; labels are those of figures, as plain text."""
    found = []
    for group in group_rows(entries) if entries else ():
        place = " · ".join(name for name in (group.data, group.model) if name and name != _UNKNOWN)
        for row in group.rows:
            method = row.runs[0].method
            found.append(Group(method + row.label.removeprefix(method_label(method)), place, row.runs))
    return found


def runs_view(groups: Sequence[Group]) -> list[dict[str, object]]:
    """Everything the charts of runs are drawn from, a mapping for each group."""
    return [
        {
            "label": group.label,
            "place": group.place,
            "points": _points(group),
            "curves": {key: curve for key in CURVES if (curve := _mean_curve(group.entries, key))},
            "best": [entry.best_epoch + 1 for entry in group.entries if entry.best_epoch is not None],
            "gamma": _gamma_by_confidence(group.entries),
            "sweep": _mean_sweep(group.entries),
        }
        for group in groups
    ]


def _points(group: Group) -> list[list[float]]:
    """Error and ECE of every run that has both."""
    pairs = zip(group.values("error"), group.values("ece"), strict=True)
    return [[_digits(error), _digits(ece)] for error, ece in pairs if math.isfinite(error + ece)]


def run_rows(groups: Sequence[Group]) -> tuple[list[str], list[dict[str, object]]]:
    """The comparison table: its columns, and a mapping with ``label``, ``place``, ``seeds`` and ``cells`` for each row."""
    keys = [key for key in _COLUMNS if any(group.values(key) for group in groups)]
    least = {
        (place, key): min((_mean(g.values(key)) for g in groups if g.place == place and g.values(key)), default=math.nan)
        for place in {group.place for group in groups}
        for key in keys
    }
    rows: list[dict[str, object]] = []
    for group in groups:
        cells = [_cell(group, key, best=least[group.place, key]) for key in keys]
        rows.append({"label": group.label, "place": group.place, "seeds": len(group.entries), "cells": cells})
    return [short_name(key) for key in keys], rows


def short_name(key: str) -> str:
    """Name of a metric in the head of a narrow column."""
    short = {"error": "Error", "nll": "NLL", "brier": "Brier", "ece": "ECE", "mce": "MCE", "ace": "ACE"}
    return short.get(key, "Classwise ECE" if key == "classwise_ece" else metric_of(key).name)


def _cell(group: Group, key: str, *, best: float) -> dict[str, object]:
    """Mean and standard deviation over seeds; a single run has its own interval instead."""
    values, unit = group.values(key), metric_of(key).unit
    if not values:
        return {"value": "", "spread": "", "is_best": False}
    mean = _mean(values)
    if len(values) > 1:
        spread = f"± {write_value(_deviation(values), unit).removesuffix('%')}"
    else:
        spread = write_interval(group.entries[0].scores[key], unit)
    return {"value": write_value(mean, unit), "spread": spread, "is_best": mean == best}


def _mean_curve(entries: Iterable[Entry], key: str) -> list[list[float]]:
    """Epochs, mean over seeds, and standard deviation over them (empty for one seed) of a value of the history."""
    found: dict[int, list[float]] = {}
    for entry in entries:
        for epoch, value in zip(*entry.curve(key), strict=True):
            found.setdefault(epoch, []).append(value)
    epochs = sorted(found)
    if not epochs:
        return []
    step = max(math.ceil(len(epochs) / _MOST_POINTS), 1)
    # The last epoch is always there.
    epochs = epochs[::-1][::step][::-1]
    has_seeds = any(len(found[epoch]) > 1 for epoch in epochs)
    means = [_digits(_mean(found[epoch])) for epoch in epochs]
    return [list(epochs), means, [_digits(_deviation(found[epoch])) for epoch in epochs] if has_seeds else []]


def _gamma_by_confidence(entries: Iterable[Entry]) -> list[list[float]]:
    """Confidence, mean gamma, its standard deviation and the examples of every confidence bin, over all seeds."""
    tests = [entry.test for entry in entries if entry.test is not None and "gamma" in entry.test.columns]
    if not tests:
        return []
    confidence = torch.cat([test.confidence for test in tests])
    gamma = torch.cat([torch.as_tensor(test.columns["gamma"].astype(float)) for test in tests])
    index = equal_width_index(confidence, _GAMMA_BINS)
    sums = [torch.bincount(index, weights=v, minlength=_GAMMA_BINS) for v in (confidence, gamma, gamma**2)]
    count = torch.bincount(index, minlength=_GAMMA_BINS)
    used = count > 0
    where, mean, square = (part[used] / count[used] for part in sums)
    spread = (square - mean**2).clamp(min=0).sqrt()
    return [[_digits(value) for value in part.tolist()] for part in (where, mean, spread)] + [count[used].tolist()]


def _mean_sweep(entries: Iterable[Entry]) -> Mapping[str, list[float]]:
    """ECE and MCE against the number of bins, means over the seeds that share their numbers of bins with the first."""
    sweeps = [entry.sweep or (bin_sweep(entry.test) if entry.test is not None else None) for entry in entries]
    known = [sweep for sweep in sweeps if sweep is not None]
    same = [sweep for sweep in known if sweep.n_bins == known[0].n_bins]
    if not same:
        return {}
    found: dict[str, list[float]] = {"n": list(same[0].n_bins)}
    for name in ("ece", "mce"):
        found[name] = [_digits(_mean(values)) for values in zip(*(getattr(sweep, name) for sweep in same), strict=True)]
    return found


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation of a sample; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    middle = _mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def _digits(value: float) -> float:
    """Six significant digits, which are more than a chart can show."""
    return float(f"{value:.6g}")
