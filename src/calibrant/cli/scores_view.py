"""Scores on a terminal: a verdict, then tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrant.cli.terminal import Row, fit_table, fits, show_heading, show_prose
from calibrant.core.records import Bins, Predictions, Split
from calibrant.core.scores import ClassScore, Estimate, Paired, Scores
from calibrant.metrics.table import Metric
from calibrant.metrics.verdict import (
    count_examples,
    direction,
    judge,
    table_rows,
    verdict,
    worst_slice,
    write_interval,
    write_p,
    write_value,
)

# Terminals at least this wide get a column that explains every metric.
_WIDE = 104
_INTERVAL = "95% interval"
_COLOURS = {"over-confident": "red", "under-confident": "blue", "both": "magenta", "no clear error": "green"}
_JUDGED = {"same": "dim", "unclear": "dim", "better": "green", "worse": "red"}
_LONGEST_BAR = 16
# Bins that are shown at most; more make a table that nobody reads.
_MOST_BINS = 50
_WORST_CLASSES = 5


@dataclass(frozen=True)
class Measured:
    """The scores of a file, its split and, if they were asked for, its predictions, or a part of them drawn at ``rate``."""

    scores: Scores
    split: Split | None
    predictions: Predictions | None = None
    rate: float = 1.0


def show_scores(measured: Measured, *, all_classes: bool, console: Console | None = None) -> None:
    """Print everything about one file."""
    console = console or Console(highlight=False)
    scores = measured.scores
    split = f" · {measured.split.value} split" if measured.split else ""
    name = Path(scores.file).name if scores.file else "predictions"
    show_heading(console, name, f"{count_examples(scores.n)} · {scores.num_classes} classes{split}")
    show_prose(console, verdict(scores), style="bold")
    console.print()
    console.print(scores_table(scores, width=console.width))
    show_heading(console, "By confidence", "what each bin adds to the ECE")
    console.print(bins_table(scores.bins, width=console.width))
    _show_parts(console, scores, all_classes, at_least=0 if scores.num_classes == 2 else _WORST_CLASSES)
    console.print()


def show_comparison(
    measured: Sequence[Measured],
    tests: Sequence[Mapping[str, Paired] | None],
    *,
    all_classes: bool,
    console: Console | None = None,
) -> None:
    """Print several files side by side, and the test of each against the first."""
    console = console or Console(highlight=False)
    names = short_names([Path(entry.scores.file or "predictions") for entry in measured])
    show_heading(console, f"{len(names)} files", "best values in bold")
    found = {name: entry.scores for name, entry in zip(names, measured, strict=True)}
    console.print(comparison_table(found, width=console.width))
    console.print()
    for name, scores in found.items():
        show_prose(console, f"{name}: {verdict(scores)}")
    for name, entry, test in zip(names[1:], measured[1:], tests, strict=True):
        if test is not None:
            part = f"a random {len(entry.predictions):,} of " if entry.predictions and entry.rate < 1 else ""
            show_heading(console, f"{name} minus {names[0]}", f"on {part}the same examples, paired bootstrap")
            console.print(paired_table(test, width=console.width))
    for name, scores in found.items():
        if all_classes or scores.slices:
            show_heading(console, name, "")
        _show_parts(console, scores, all_classes, at_least=0)
    console.print()


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return names that tell the files apart: their stems, or as much of their paths as that needs."""
    absolute = [str(path.resolve()) for path in paths]
    common = os.path.commonpath(absolute) if len({*absolute}) > 1 else str(paths[0].resolve().parent)
    ways = ([path.stem for path in paths], [path.name for path in paths], [os.path.relpath(path, common) for path in absolute])
    names = next((names for names in ways if len({*names}) == len(names)), ways[-1])
    return [f"{name} ({k})" if names.count(name) > 1 else name for k, name in enumerate(names, 1)]


def _show_parts(console: Console, scores: Scores, all_classes: bool, *, at_least: int) -> None:
    shown = scores.classes if all_classes else scores.classes[:at_least]
    if shown:
        title = "Classes" if len(shown) == scores.num_classes else "Worst classes"
        show_heading(console, title, "by the ECE of their own probability")
        console.print(classes_table(shown, width=console.width, total=scores.weight))
    if scores.slices:
        show_heading(console, "Groups", worst_slice(scores))
        console.print(parts_table("Group", scores.slices, width=console.width, total=scores.weight))


def scores_table(scores: Scores, *, width: int) -> Table:
    """Every metric with its value and interval, and what to compare it with."""
    rows: list[Row] = []
    for key, metric, begins in table_rows(scores):
        rows += [None] if begins else []
        value, interval = _value(scores[key], metric)
        rows.append(
            [metric.label, Text(value, style="bold" if key == "ece" else ""), interval, _note(scores, key, metric, width)]
        )
    return fit_table(("Metric", "Value", _INTERVAL, ""), rows, width=width, drop=(3, 2))


def _value(estimate: Estimate, metric: Metric) -> tuple[str, Text]:
    signed = metric.better is None
    return write_value(estimate.value, metric.unit, signed=signed), _dim(write_interval(estimate, metric.unit, signed=signed))


def _note(scores: Scores, key: str, metric: Metric, width: int) -> Text:
    mean, p95 = (write_value(value, "%") for value in scores.ece_if_calibrated[:2])
    if key == "ece":
        return _dim(f"a calibrated model would show {mean}, rarely over {p95}" if width >= _WIDE else f"if calibrated {mean}")
    if key == "signed_gap":
        return _direction(scores)
    if scores[key].value == float("inf"):
        return _dim("a label has p = 0")
    return _dim(metric.meaning if width >= _WIDE else "")


def bins_table(bins: Bins, *, width: int) -> Table:
    """Confidence and accuracy of bins that hold examples, and what each adds to the ECE; of many bins those that add most."""
    shares = bins.weight * bins.gap
    weights = [None] * len(shares) if bins.rows is None else bins.weight.tolist()
    held = (bins.count > 0).nonzero().flatten().tolist()
    shown = sorted(sorted(held, key=lambda m: -abs(float(shares[m])))[:_MOST_BINS])
    # As many digits as tell the edges apart.
    digits = next((n for n in range(3) if len({f"{100 * float(edge):.{n}f}" for edge in bins.edges}) == len(bins.edges)), 3)
    per_share = _LONGEST_BAR / float(shares.abs().max().clamp(min=1e-12))
    rows: list[Row] = [
        [
            f"{100 * float(bins.edges[m]):.{digits}f} – {100 * float(bins.edges[m + 1]):.{digits}f}%",
            _examples(float(bins.count[m] if bins.rows is None else bins.rows[m]), weights[m]),
            _share(float(bins.confidence[m])),
            _share(float(bins.accuracy[m])),
            f"{100 * float(bins.gap[m]):+.1f}%".replace("-", "−"),
            write_value(abs(float(shares[m])), "%"),
            Text("█" * round(per_share * abs(float(shares[m]))), style="red" if bins.gap[m] > 0 else "blue"),
        ]
        for m in shown
    ]
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
            _direction(part),
        ]
        for name, part in parts.items()
    ]
    headers = (head, _examples_head(total is not None), "Error", "ECE", _INTERVAL, "If calibrated", "")
    return fit_table(headers, rows, width=width, drop=(5, 4, 6, 2))


def comparison_table(parts: Mapping[str, Scores], *, width: int) -> Table:
    """The metrics of several files side by side, with intervals if there is room; a line for each file if they are many."""
    many = list(parts.values())
    rows: list[Row] = []
    for key, metric, begins in table_rows(many[0]):
        rows += [None] if begins else []
        best = min(abs(scores[key].value) for scores in many)
        row: list[str | Text] = [metric.label]
        for scores in many:
            value, interval = _value(scores[key], metric)
            row += [Text(value, style="bold" if abs(scores[key].value) == best else ""), interval]
        rows.append(row)
    null: list[str | Text] = ["ECE if calibrated"]
    said: list[str | Text] = ["direction"]
    for scores in many:
        null += [_dim(write_value(scores.ece_if_calibrated.mean, "%")), ""]
        said += [_direction(scores), ""]
    rows += [None, null, said]
    headers = ["Metric", *chain(*((name, _INTERVAL) for name in parts))]
    table = fit_table(headers, rows, width=width, drop=(2,))
    if len(table.columns) < len(headers):
        bare = [None if row is None else [row[0], *row[1::2]] for row in rows]
        table = fit_table(["Metric", *parts], bare, width=width)
    return table if fits(table, width) else parts_table("File", parts, width=width)


def paired_table(tests: Mapping[str, Paired], *, width: int) -> Table:
    """How the second file differs from the first on the same examples, and whether chance could have done it."""
    rows: list[Row] = []
    for key, metric, begins in table_rows(tests):
        rows += [None] if begins else []
        test, said = tests[key], judge(key, tests[key])
        rows.append(
            [
                metric.label,
                write_value(test.difference, metric.unit, signed=True),
                _dim(write_interval(test, metric.unit, signed=True)),
                write_p(test.p_value),
                Text(said, style=_JUDGED.get(said, "")),
            ]
        )
    return fit_table(("Metric", "Difference", _INTERVAL, "", ""), rows, width=width, drop=(2,))


def _direction(scores: Scores) -> Text:
    return Text(direction(scores), style=_COLOURS[direction(scores)])


def _examples(rows: float, weight: float | None) -> str:
    return f"{rows:,.0f}" if weight is None else f"{rows:,.0f} ({_share(weight)})"


def _examples_head(weighted: bool) -> str:
    return "Examples (weight)" if weighted else "Examples"


def _part(weight: float | None, total: float | None) -> float | None:
    return None if weight is None or total is None else weight / total


def _dim(text: str) -> Text:
    return Text(text, style="dim")


def _share(value: float) -> str:
    return f"{100 * value:.1f}%" if value == value else "n/a"
