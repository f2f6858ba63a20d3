"""Scores as tables for a terminal. What they mean in words is in `words`, how they fit in `layout`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from calibrant.cli.terminal import Row, fit_table, total_width
from calibrant.core.records import Bins
from calibrant.core.scores import ClassScore, Paired, Scores
from calibrant.metrics.verdict import direction, judge, metric_of, table_rows, write_interval, write_p, write_value

# Terminals at least this wide get a column that explains every metric.
_WIDE = 104
_INTERVAL = "95% interval"
_COLOURS = {"over-confident": "red", "under-confident": "blue", "both": "magenta", "no clear error": "green"}
_LONGEST_BAR = 24
# Bins that are shown at most; more make a table that nobody reads.
_MOST_BINS = 50
_JUDGED = {"same": "dim", "unclear": "dim", "better": "green", "worse": "red"}


def scores_table(scores: Scores, *, width: int) -> Table:
    """Every metric with its value and interval, and what to compare it with."""
    rows: list[Row] = []
    for key, metric, begins in table_rows(scores):
        rows += [None] if begins else []
        estimate, signed = scores[key], metric.better is None
        value = Text(write_value(estimate.value, metric.unit, signed=signed), style="bold" if key == "ece" else "")
        rows.append(
            [metric.label, value, _dim(write_interval(estimate, metric.unit, signed=signed)), _note(scores, key, width)]
        )
    return fit_table(("Metric", "Value", _INTERVAL, ""), rows, width=width, drop=(3, 2))


def bins_table(bins: Bins, *, width: int) -> Table:
    """Confidence and accuracy of every bin that holds examples, and what its gap adds to the ECE.

    Where there are too many to be read, those that add most are shown and the others are added up.
    """
    rows: list[Row] = []
    shares = bins.weight * bins.gap
    room = min(width - 62, _LONGEST_BAR) if width >= 70 else 0
    largest = float(shares.abs().max().clamp(min=1e-12))
    weights = [None] * len(shares) if bins.rows is None else bins.weight.tolist()
    held = (bins.count > 0).nonzero().flatten().tolist()
    # One alone takes as much room as its name among the others.
    most = _MOST_BINS if len(held) > _MOST_BINS + 1 else len(held)
    shown = sorted(sorted(held, key=lambda m: -abs(float(shares[m])))[:most])
    digits = _digits([float(edge) for edge in bins.edges])
    for m in shown:
        share, gap = float(shares[m]), float(bins.gap[m])
        bar = "█" * round(room * abs(share) / largest)
        rows.append(
            [
                f"{100 * float(bins.edges[m]):.{digits}f} – {100 * float(bins.edges[m + 1]):.{digits}f}%",
                _examples(float(bins.count[m] if bins.rows is None else bins.rows[m]), weights[m]),
                _share(float(bins.confidence[m])),
                _share(float(bins.accuracy[m])),
                f"{100 * gap:+.1f}%".replace("-", "−"),
                write_value(abs(share), "%"),
                Text(bar, style=_COLOURS["over-confident" if gap > 0 else "under-confident"]),
            ]
        )
    if others := [m for m in held if m not in shown]:
        count = float((bins.count if bins.rows is None else bins.rows)[others].sum())
        weight = None if bins.rows is None else float(bins.weight[others].sum())
        added = write_value(float(shares[others].abs().sum()), "%")
        rows.append([f"{len(others):,} others", _examples(count, weight), "", "", "", added, ""])
    head = _examples_head(bins.rows is not None)
    return fit_table(("Bin", head, "Confidence", "Accuracy", "Gap", "In ECE", ""), rows, width=width, drop=(6, 1, 5))


def classes_table(classes: Sequence[ClassScore], *, width: int, total: float | None = None) -> Table:
    """Classes in the order given: how far their probability is off, and in which direction; ``total`` is the weight of all."""
    rows: list[Row] = [
        [
            entry.name,
            _examples(entry.count, _part(entry.weight, total)),
            _share(entry.error),
            Text(write_value(entry.ece, "%"), style="bold"),
            write_value(entry.signed_gap, "%", signed=True),
            _dim(_bias(entry)),
        ]
        for entry in classes
    ]
    return fit_table(("Class", _examples_head(total is not None), "Error", "ECE", "Bias", ""), rows, width=width, drop=(5, 2))


def _bias(entry: ClassScore) -> str:
    # A bias that is written as 0.00% has no direction.
    if abs(entry.signed_gap) < 5e-5:
        return ""
    if entry.chance is not None and abs(entry.signed_gap) <= entry.chance:
        return "within chance"
    return "predicted too often" if entry.signed_gap > 0 else "predicted too rarely"


def parts_table(head: str, parts: Mapping[str, Scores], *, width: int, total: float | None = None) -> Table:
    """The main numbers of every group of examples, whose weights add up to ``total``, or of every file."""
    rows: list[Row] = [
        [
            name or "(empty)",
            _examples(part.n, _part(part.weight, total)),
            _share(part["error"].value),
            Text(write_value(part["ece"].value, "%"), style="bold"),
            _dim(write_interval(part["ece"], "%")),
            _dim(write_value(part.ece_if_calibrated.mean, "%")),
            Text(direction(part), style=_COLOURS[direction(part)]),
        ]
        for name, part in parts.items()
    ]
    headers = (head, _examples_head(total is not None), "Error", "ECE", _INTERVAL, "If calibrated", "")
    return fit_table(headers, rows, width=width, drop=(5, 4, 6, 2))


def comparison_table(parts: Mapping[str, Scores], *, width: int) -> Table:
    """The metrics of several files side by side, with intervals if there is room; a line for each file if they are many."""
    for with_intervals, short in ((True, False), (True, True), (False, False), (False, True)):
        rows, sizes = _comparison_rows(parts, with_intervals, short)
        if total_width(sizes) <= width:
            return fit_table(("Metric", *parts), rows, width=width)
    return parts_table("File", parts, width=width)


def _comparison_rows(parts: Mapping[str, Scores], with_intervals: bool, short: bool) -> tuple[list[Row], list[int]]:
    many = list(parts.values())
    rows: list[Row] = []
    ends = [
        write_interval(estimate, metric_of(key).unit, signed=metric_of(key).better is None)
        for scores in many
        for key, estimate in scores.metrics.items()
    ]
    room = max(map(len, ends), default=0)
    for key, metric, begins in table_rows(many[0]):
        rows += [None] if begins else []
        signed = metric.better is None
        best = min(abs(scores[key].value) for scores in many)
        cells = []
        for scores in many:
            value = write_value(scores[key].value, metric.unit, signed=signed)
            interval = write_interval(scores[key], metric.unit, signed=signed) if with_intervals else ""
            style = "bold" if abs(scores[key].value) == best else ""
            cells.append(Text.assemble((value, style), (f"  {interval:>{room}}" if interval else "", "dim")))
        rows.append([metric.short or metric.label if short else metric.label, *cells])
    rows += [None, ["ECE if calibrated", *(_dim(write_value(scores.ece_if_calibrated.mean, "%")) for scores in many)]]
    rows.append(["direction", *(Text(direction(scores), style=_COLOURS[direction(scores)]) for scores in many)])
    widest = [max(len(name), *(len(row[k]) for row in rows if row)) for k, name in enumerate(("", *parts))]
    return rows, widest


def paired_table(tests: Mapping[str, Paired], *, width: int) -> Table:
    """How the second file differs from the first on the same examples, and whether chance could have done it."""
    headers = ("Metric", "Difference", _INTERVAL, "", "")
    for short in (False, True):
        rows = _paired_rows(tests, short)
        table = fit_table(headers, rows, width=width, drop=(2,))
        if len(table.columns) == len(headers):
            return table
    table.caption, table.caption_justify = "Intervals need a wider window.", "left"
    return table


def _paired_rows(tests: Mapping[str, Paired], short: bool) -> list[Row]:
    rows: list[Row] = []
    for key, metric, begins in table_rows(tests):
        rows += [None] if begins else []
        test, unit = tests[key], metric.unit
        rows.append(
            [
                metric.short or metric.label if short else metric.label,
                write_value(test.difference, unit, signed=True),
                _dim(write_interval(test, unit, signed=True)),
                write_p(test.p_value),
                Text(said := judge(key, test), style=_JUDGED.get(said, "")),
            ]
        )
    return rows


def _note(scores: Scores, key: str, width: int) -> Text:
    null = scores.ece_if_calibrated
    if key == "ece":
        mean, p95 = write_value(null.mean, "%"), write_value(null.p95, "%")
        return _dim(f"a calibrated model would show {mean}, rarely over {p95}" if width >= _WIDE else f"if calibrated {mean}")
    if key == "signed_gap":
        return Text(direction(scores), style=_COLOURS[direction(scores)])
    if key == "nll" and scores[key].value == math.inf:
        return _dim("a true class was given probability 0" if width >= _WIDE else "a label has p = 0")
    return _dim(metric_of(key).meaning if width >= _WIDE else "")


def _examples(rows: float, weight: float | None) -> str:
    return f"{rows:,.0f}" if weight is None else f"{rows:,.0f} ({_share(weight)})"


def _examples_head(weighted: bool) -> str:
    return "Examples (weight)" if weighted else "Examples"


def _part(weight: float | None, total: float | None) -> float | None:
    return None if weight is None or total is None else weight / total


def _dim(text: str) -> Text:
    return Text(text, style="dim")


def _digits(edges: Sequence[float]) -> int:
    """How many digits of per cent tell edges of bins apart, at most three."""
    return next((digits for digits in range(3) if len({f"{100 * edge:.{digits}f}" for edge in edges}) == len({*edges})), 3)


def _share(value: float) -> str:
    return f"{100 * value:.1f}%" if value == value else "n/a"
