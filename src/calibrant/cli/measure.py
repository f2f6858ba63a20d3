"""``calibrant measure``: files in, a verdict and tables or JSON out. Small files are read whole, large ones streamed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrant.cli.terminal import Row, Terminal, fit_table, fits, progress_bar, say, show_heading, show_prose
from calibrant.core.records import Bins, Predictions, Split
from calibrant.core.scores import ClassScore, Estimate, Paired, Scores, without_nan
from calibrant.core.slices import Group, Slices, column_names
from calibrant.core.summary import Summary, summarize
from calibrant.io import iter_prediction_batches, load_class_names, load_predictions, survey_predictions
from calibrant.metrics.intervals import rate_interval
from calibrant.metrics.measure import measure, measure_summary
from calibrant.metrics.paired import paired_test
from calibrant.metrics.table import Metric
from calibrant.metrics.verdict import (
    count_examples,
    direction,
    judge,
    main_error,
    table_rows,
    verdict,
    worst_slice,
    write_estimate,
    write_interval,
    write_p,
    write_value,
)
from calibrant.testing import Limit

if TYPE_CHECKING:
    from calibrant.io.table import TableFile

# A file with more rows, or more scores in all, is streamed: 1 M rows of 10 classes take 80 MB, and several times that to work.
STREAM_ROWS = 1_000_000
STREAM_ENTRIES = 50_000_000
# Scores in a streamed batch: 32 MiB in float64.
_BATCH_ENTRIES = 4_000_000
# Rows of a streamed file that are kept for the paired test, about.
SAMPLE_ROWS = 200_000
# Terminals at least this wide get a column that explains every metric.
_WIDE = 104
_INTERVAL = "95% interval"
_COLOURS = {"over-confident": "red", "under-confident": "blue", "both": "magenta", "no clear error": "green"}
_COLOURS |= {"too often": "red", "too rarely": "blue"}
_JUDGED = {"same": "dim", "unclear": "dim", "better": "green", "worse": "red"}
_LONGEST_BAR = 16
# Bins that are shown at most; more make a table that nobody reads.
_MOST_BINS = 50
_WORST_CLASSES = 5


@dataclass(frozen=True)
class Request:
    """How to read and measure files; see the options of ``calibrant measure``."""

    n_bins: int = 15
    resamples: int = 1000
    seed: int = 0
    class_names: Path | None = None
    ignore_index: int | None = None
    by_class: bool = False
    slice_by: Sequence[str] | None = None
    prob_column: str | None = None
    label_column: str | None = None

    @cached_property
    def names(self) -> tuple[str, ...] | None:
        """The names of the classes."""
        return None if self.class_names is None else load_class_names(self.class_names)

    @property
    def columns(self) -> dict[str, str | None]:
        """Names of columns, as functions that read tables take them."""
        return {"prob_column": self.prob_column, "label_column": self.label_column}

    def survey(self, path: Path) -> TableFile | None:
        """Open a table; None for files of other kinds."""
        return survey_predictions(path, **self.columns)

    @property
    def bootstrap(self) -> dict[str, Any]:
        """Bins, resamples and seed, as functions that measure take them."""
        return {"n_bins": self.n_bins, "n_resamples": self.resamples, "seed": self.seed}

    def load(self, path: Path) -> Predictions:
        """Read the predictions in a file."""
        return load_predictions(path, ignore_index=self.ignore_index, class_names=self.names, **self.columns)

    def measure(self, predictions: Predictions, *, file: Path | None = None) -> Scores:
        """Measure predictions."""
        name = None if file is None else str(file)
        return measure(predictions, by_class=self.by_class, slice_by=self.slice_by, file=name, **self.bootstrap)


class Measured(NamedTuple):
    """The scores of a file, its split and, for the paired test, those of its rows that were picked."""

    scores: Scores
    split: Split | None
    picked: Predictions | None = None


def measure_files(
    files: Sequence[Path], *, as_json: bool, by_class: bool, fail_if: Sequence[str] | None = None, **how: Any
) -> None:
    """Measure every file and write what was found to standard output; ``how`` are fields of `Request`.

    With ``as_json`` one file gives one object; several give a list of them, of which the second and later ones hold, under
    ``paired``, the test against the first: ``{"against": FILE, "metrics": {KEY: {"difference", "low", "high", "p_value"}}}``,
    or null where the files do not hold the same examples. A file that breaks a limit of ``fail_if`` ends with exit code 3.
    """
    limits = [Limit.parse(text) for text in fail_if or ()]
    files = [predictions_in(path) for path in files]
    # Without `--by-class` tables still name the few worst classes; JSON has exactly what was asked for.
    request = Request(by_class=by_class or not as_json, **how)
    rows = [table.rows for table in map(request.survey, files) if table and is_large(table)]
    share = 0.0 if len(files) == 1 else min(1.0, SAMPLE_ROWS / max(rows, default=1))
    measured = [measure_file(path, request, share=share) for path in files]
    tests = [_pair(measured[0], other, request) for other in measured[1:]]
    if as_json:
        say(_to_json(measured, tests))
    elif len(measured) == 1:
        show_scores(measured[0], all_classes=by_class)
    else:
        show_comparison(measured, tests, all_classes=by_class)
    broken = [f"{m.scores.file}: {said}" for m in measured for limit in limits if (said := limit.broken_by(m.scores))]
    if broken:
        say(f"calibrant: a limit of `--fail-if` is broken: {'; '.join(broken)}.", error=True)
        raise typer.Exit(3)


def predictions_in(path: Path) -> Path:
    """The test predictions of a run folder; any other path as it is."""
    inside = path / "test.npz"
    return inside if inside.is_file() else path


def is_large(table: TableFile) -> bool:
    """Whether a table is streamed."""
    return table.rows > STREAM_ROWS or table.rows * table.num_classes > STREAM_ENTRIES


def measure_file(path: Path, request: Request, *, share: float = 0.0) -> Measured:
    """Measure the predictions in a file, and pick this share of its rows: the same of all files with as many rows."""
    table = request.survey(path)
    if table and is_large(table):
        return measure_stream(path, table, request, share=share)
    predictions = request.load(path)
    with progress_bar(f"measuring {path.name}", None):
        scores = request.measure(predictions, file=path)
    return Measured(scores, predictions.split, _pick(predictions, share, np.random.default_rng(request.seed)))


def measure_stream(path: Path, table: TableFile, request: Request, *, share: float = 0.0) -> Measured:
    """Measure a file of any size: it is read once, piece by piece, into sums of constant size."""
    slice_by = column_names(request.slice_by, table.columns, where=str(path))
    columns = {name: table.sample(name) for names in slice_by for name in names}
    slices = Slices(slice_by, columns, where=str(path))
    batches = iter_prediction_batches(
        path,
        batch_rows=min(max(_BATCH_ENTRIES // max(table.num_classes, 1), 1), 65536),
        columns=[*columns],
        ignore_index=request.ignore_index,
        class_names=request.names,
        **request.columns,
    )
    sums: dict[Group | None, Summary] = {}
    random, picked = np.random.default_rng(request.seed), []
    with progress_bar(f"reading {path.name}", table.rows) as advance:
        for batch in batches:
            for group, part in [(None, batch), *slices.split(batch)]:
                found = summarize(part, n_bins=request.n_bins)
                sums[group] = sums[group] + found if group in sums else found
            picked.append(_pick(batch, share, random))
            advance(len(batch))
    if not sums:
        raise ValueError(f"{path}: must hold at least one example that is not ignored, got none.")
    names = request.names or batch.class_names
    score = partial(measure_summary, class_names=names, n_resamples=request.resamples, seed=request.seed)
    scores = score(sums.pop(None), by_class=request.by_class, file=str(path))
    sliced = {slices.title(group): score(sums[group]) for group in sorted(group for group in sums if group)}
    return Measured(replace(scores, slices=sliced), batch.split, _join([part for part in picked if part is not None]))


def _pick(predictions: Predictions, share: float, random: np.random.Generator) -> Predictions | None:
    chosen = random.random(len(predictions)) < share
    return predictions.subset(chosen) if chosen.any() else None


def _join(parts: Sequence[Predictions]) -> Predictions | None:
    if not parts:
        return None
    kinds = ("logits" if parts[0].has_logits else "probs", "labels", *(["weights"] if parts[0].weights is not None else []))
    joined: dict[str, Any] = {kind: torch.cat([getattr(part, kind) for part in parts]) for kind in kinds}
    return Predictions(**joined)


def _pair(first: Measured, second: Measured, request: Request) -> Mapping[str, Paired] | None:
    """Test the second file against the first, if both hold the same examples in the same order."""
    try:
        if first.picked is None or second.picked is None or first.scores.n != second.scores.n:
            raise ValueError(f"they hold {first.scores.n:,} and {second.scores.n:,} examples.")
        return paired_test(first.picked, second.picked, **request.bootstrap)
    except ValueError as error:
        say(f"calibrant: no paired test of {second.scores.file} against {first.scores.file}: {error}", error=True)
        return None


def _to_json(measured: Sequence[Measured], tests: Sequence[Mapping[str, Paired] | None]) -> str:
    objects = [without_nan(entry.scores.to_dict()) for entry in measured]
    for entry, test in zip(objects[1:], tests, strict=True):
        entry["paired"] = None if test is None else {"against": objects[0]["file"], "metrics": tests_to_dict(test)}
    return json.dumps(objects if len(objects) > 1 else objects[0], indent=2, allow_nan=False)


def tests_to_dict(tests: Mapping[str, Paired]) -> dict[str, dict[str, float | None]]:
    """Paired tests as JSON has them: what is not finite is null."""
    return dict(without_nan({key: test._asdict() for key, test in tests.items()}))


def show_scores(measured: Measured, *, all_classes: bool, console: Console | None = None) -> None:
    """Print everything about one file."""
    console = console or Terminal()
    scores = measured.scores
    split = f" · {measured.split.value} split" if measured.split else ""
    name = Path(scores.file).name if scores.file else "predictions"
    show_heading(console, name, f"{count_examples(scores.n)} · {scores.num_classes} classes{split}")
    show_prose(console, verdict(scores), style="bold")
    console.print()
    console.print(scores_table(scores, width=console.width))
    if scores.positive is None:
        show_heading(console, "By confidence", "what each bin adds to the ECE")
        console.print(bins_table(scores.bins, width=console.width))
    else:
        show_heading(console, f"By {scores.positive.probability}", "how often it happens, and what each bin adds to the error")
        console.print(bins_table(scores.positive.bins, width=console.width, positive=True))
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
    console = console or Terminal()
    names = short_names([Path(entry.scores.file or "predictions") for entry in measured])
    show_heading(console, f"{len(names)} files", "best values in bold")
    found = {name: entry.scores for name, entry in zip(names, measured, strict=True)}
    console.print(comparison_table(found, width=console.width))
    console.print()
    for name, scores in found.items():
        show_prose(console, f"{name}: {verdict(scores)}")
    for name, entry, test in zip(names[1:], measured[1:], tests, strict=True):
        if test is not None:
            kept = 0 if entry.picked is None else len(entry.picked)
            part = f"a random {kept:,} of " if kept < entry.scores.n else ""
            show_heading(console, f"{name} minus {names[0]}", f"on {part}the same examples, paired bootstrap")
            console.print(paired_table(test, width=console.width))
    for name, scores in found.items():
        if all_classes or scores.slices:
            show_heading(console, name, "")
        _show_parts(console, scores, all_classes, at_least=0)
    console.print()


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return names that tell the files apart: their stems, or their paths; a file that is named twice is numbered."""
    stems = [path.stem for path in paths]
    names = stems if len({*stems}) == len(stems) else [str(path) for path in paths]
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
        value, interval = write_estimate(scores[key], metric)
        shown = Text(value, style="bold" if key == main_error(scores)[0] else "")
        rows.append([metric.label, shown, _dim(interval), _note(scores, key, metric, width)])
    return fit_table(("Metric", "Value", _INTERVAL, ""), rows, width=width, drop=(3, 2))


def _note(scores: Scores, key: str, metric: Metric, width: int) -> Text:
    expected = {"ece": scores.ece_if_calibrated, main_error(scores)[0]: main_error(scores)[1]}
    if key in expected:
        mean, p95 = (write_value(value, "%") for value in expected[key][:2])
        return _dim(f"a calibrated model would show {mean}, rarely over {p95}" if width >= _WIDE else f"if calibrated {mean}")
    if key == ("signed_gap" if scores.positive is None else "binary_gap"):
        return _direction(scores)
    if scores[key].value == float("inf"):
        return _dim("a label has p = 0")
    return _dim(metric.meaning if width >= _WIDE else "")


def bins_table(bins: Bins, *, width: int, positive: bool = False) -> Table:
    """Confidence and accuracy of bins that hold examples, and what each adds to the ECE; of many bins those that add most.

    Of the probability of a ``positive`` class: what was predicted and what was observed, with its interval.
    """
    shares = bins.weight * bins.gap
    held = (bins.count > 0).nonzero().flatten().tolist()
    shown = sorted(sorted(held, key=lambda m: -abs(float(shares[m])))[:_MOST_BINS])
    # As many digits as tell the edges apart.
    digits = max(0, math.ceil(math.log10(len(bins.count))) - 2)
    per_share = _LONGEST_BAR / float(shares.abs().max().clamp(min=1e-12))
    counts, total = (bins.count, None) if bins.rows is None else (bins.rows, 1.0)
    rows: list[Row] = [
        [
            f"{100 * float(bins.edges[m]):.{digits}f} – {100 * float(bins.edges[m + 1]):.{digits}f}%",
            _examples(float(counts[m]), float(bins.weight[m]), total),
            _share(float(bins.confidence[m])),
            _share(float(bins.accuracy[m])),
            _dim(write_interval(Estimate(0, *rate_interval(float(bins.accuracy[m]), size=float(counts[m]))), "%")),
            f"{100 * float(bins.gap[m]):+.1f}%".replace("-", "−"),
            write_value(abs(float(shares[m])), "%"),
            Text("█" * round(per_share * abs(float(shares[m]))), style="red" if bins.gap[m] > 0 else "blue"),
        ]
        for m in shown
    ]
    if positive:
        headers = ("Bin", _examples_head(total), "Predicted", "Observed", _INTERVAL, "Gap", "In error", "")
        return fit_table(headers, rows, width=width, drop=(7, 1, 6, 4))
    plain = [row and [*row[:4], *row[5:]] for row in rows]
    return fit_table(
        ("Bin", _examples_head(total), "Confidence", "Accuracy", "Gap", "In ECE", ""), plain, width=width, drop=(6, 1, 5)
    )


def classes_table(classes: Sequence[ClassScore], *, width: int, total: float | None = None) -> Table:
    """Classes in the order given: how far their probability is off, and in which direction; ``total`` is the weight of all."""
    rows: list[Row] = [
        [
            entry.name,
            _examples(entry.count, entry.weight, total),
            _share(entry.error),
            Text(write_value(entry.ece, "%"), style="bold"),
            write_value(entry.signed_gap, "%", signed=True),
            _dim(_bias(entry)),
        ]
        for entry in classes
    ]
    return fit_table(("Class", _examples_head(total), "Error", "ECE", "Bias", ""), rows, width=width, drop=(5, 2))


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
            _examples(part.n, part.weight, total),
            _share(part["error"].value),
            Text(write_value(part[key].value, "%"), style="bold"),
            _dim(write_interval(part[key], "%")),
            _dim(write_value(null.mean, "%")),
            _direction(part),
        ]
        for name, part in parts.items()
        for key, null in (main_error(part),)
    ]
    error = "ECE" if all(part.positive is None for part in parts.values()) else "Binary ECE"
    headers = (head, _examples_head(total), "Error", error, _INTERVAL, "If calibrated", "")
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
            value, interval = write_estimate(scores[key], metric)
            row += [Text(value, style="bold" if abs(scores[key].value) == best else ""), _dim(interval)]
        rows.append(row)
    error = "ECE" if many[0].positive is None else "binary ECE"
    chance = [(_dim(write_value(main_error(scores)[1].mean, "%")), _direction(scores)) for scores in many]
    rows.append(None)
    for label, cells in zip((f"{error} if calibrated", "direction"), zip(*chance, strict=True), strict=True):
        rows.append([label, *(part for cell in cells for part in (cell, ""))])
    headers = ["Metric", *(head for name in parts for head in (name, _INTERVAL))]
    whole = fit_table(headers, rows, width=width, drop=(2,))
    if len(whole.columns) == len(headers):
        return whole
    bare = fit_table(["Metric", *parts], [None if row is None else [row[0], *row[1::2]] for row in rows], width=width)
    return bare if fits(bare, width) else parts_table("File", parts, width=width)


def paired_table(tests: Mapping[str, Paired], *, width: int) -> Table:
    """How the second file differs from the first on the same examples, and whether chance could have done it."""
    rows: list[Row] = []
    for key, metric, begins in table_rows(tests):
        rows += [None] if begins else []
        difference, interval = write_estimate(tests[key], metric, signed=True)
        judged = judge(key, tests[key])
        said = Text(judged, style=_JUDGED.get(judged, ""))
        rows.append([metric.label, difference, _dim(interval), write_p(tests[key].p_value), said])
    return fit_table(("Metric", "Difference", _INTERVAL, "", ""), rows, width=width, drop=(2,))


def _direction(scores: Scores) -> Text:
    return Text(direction(scores), style=_COLOURS[direction(scores)])


def _examples(rows: float, weight: float | None, total: float | None) -> str:
    """How many examples there are and, of weighted ones, which share of the total weight is theirs."""
    return f"{rows:,.0f}" if weight is None or total is None else f"{rows:,.0f} ({_share(weight / total)})"


def _examples_head(total: float | None) -> str:
    return "Examples" if total is None else "Examples (weight)"


def _dim(text: str) -> Text:
    return Text(text, style="dim")


def _share(value: float) -> str:
    return f"{100 * value:.1f}%" if value == value else "n/a"
