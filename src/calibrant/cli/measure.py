"""``calibrant measure`` and ``monitor``: files in, a verdict and tables or JSON out. Large files are streamed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import typer
from rich.table import Table
from rich.text import Text

from calibrant.cli.terminal import (
    Options,
    Row,
    Terminal,
    check_destination,
    fit_table,
    progress_bar,
    say,
    show_heading,
    show_prose,
)
from calibrant.core.binning import Summary, summarize
from calibrant.core.checks import check_choice, lookup
from calibrant.core.records import Bins, ClassScore, Estimate, Paired, Predictions, Scores, Split, without_nan
from calibrant.io import (
    find_files,
    iter_prediction_batches,
    load_class_names,
    load_predictions,
    sample_columns,
    survey_predictions,
)
from calibrant.io.files import is_address
from calibrant.metrics.intervals import rate_interval
from calibrant.metrics.measure import CalibrationMonitor, Slice, Slices, Watched, column_names, measure, measure_summary
from calibrant.metrics.paired import paired_test
from calibrant.metrics.table import Metric, score_metrics
from calibrant.metrics.verdict import (
    count_examples,
    direction,
    judge,
    table_rows,
    verdict,
    worst_slice,
    write_estimate,
    write_interval,
    write_p,
    write_value,
)
from calibrant.testing import Limit

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
_COLOURS = {"over-confident": "red", "under-confident": "blue", "over- and under-confident": "magenta"}
_COLOURS |= {"too often": "red", "too rarely": "blue", "too often and too rarely": "magenta", "no clear error": "green"}
_JUDGED = {"same": "dim", "unclear": "dim", "better": "green", "worse": "red"}
_LONGEST_BAR = 16
# Bins that are shown at most; more make a table that nobody reads.
_MOST_BINS = 50
_WORST_CLASSES = 5

# Of all examples, under None, and of those of every group.
Sums: TypeAlias = dict[Slice | None, Summary]


@dataclass(frozen=True)
class Request(Options):
    """How to read and measure files; see the options of ``calibrant measure``."""

    by_class: bool = False
    ray: bool = False

    @cached_property
    def reading(self) -> dict[str, Any]:
        """Class names, ignored label and columns, as functions that read files take them."""
        names = None if self.class_names is None else load_class_names(self.class_names)
        return {"class_names": names, "ignore_index": self.ignore_index, **self.columns}

    @property
    def columns(self) -> dict[str, str | None]:
        """Names of the columns of scores and labels, as functions that open tables take them."""
        return {"prob_column": self.prob_column, "label_column": self.label_column}

    @property
    def bootstrap(self) -> dict[str, Any]:
        """Bins, resamples and seed, as functions that measure take them."""
        return {"n_bins": self.n_bins, "n_resamples": self.resamples, "seed": self.seed}

    def load(self, path: str | Path) -> Predictions:
        """Read the predictions in a file."""
        return load_predictions(path, **self.reading)

    def stream(self, path: str | Path) -> tuple[list[str | Path], int] | None:
        """The files, and about how many rows they have, of what is too large to be read whole or is not one file; else None."""
        files = find_files(path)
        table = survey_predictions(files[0], **self.columns)
        rows = len(files) * table.rows if table else 0
        is_large = table and (rows > STREAM_ROWS or rows * table.num_classes > STREAM_ENTRIES)
        return (files, rows) if is_large or self.ray or files != [path] else None

    def batches(
        self, files: Sequence[str | Path], *, first: Predictions | None = None, **options: Any
    ) -> Iterator[Predictions]:
        """Read files piece by piece, all of which must go together with the ``first`` one, if given."""
        for file in files:
            for batch in iter_prediction_batches(file, **options, **self.reading):
                expected, got = (f"{part.num_classes} classes, split {part.split}" for part in (first or batch, batch))
                if got != expected:
                    raise ValueError(f"{file}: must hold {expected} as the first file does, got {got}.")
                yield batch

    def measure(self, path: str | Path) -> tuple[Predictions, Scores]:
        """Read the predictions in a file and measure them."""
        predictions, by = self.load(path), self.slice_by
        with progress_bar(f"measuring {Path(path).name}", None):
            return predictions, measure(predictions, by_class=self.by_class, slice_by=by, file=str(path), **self.bootstrap)


class Measured(NamedTuple):
    """The scores of a file, its split and, for the paired test, those of its rows that were picked."""

    scores: Scores
    split: Split | None
    picked: Predictions | None = None


def measure_files(
    files: Sequence[str], *, as_json: bool, by_class: bool, fail_if: Sequence[str] | None = None, **how: Any
) -> None:
    """Measure every file and write what was found to standard output; ``how`` are fields of `Request`.

    With ``as_json`` one file gives one object; several give a list of them, of which the second and later ones hold, under
    ``paired``, the test against the first: ``{"against": FILE, "metrics": {KEY: {"difference", "low", "high", "p_value"}}}``,
    or null where the files do not hold the same examples. A file that breaks a limit of ``fail_if`` ends with exit code 3.
    """
    limits = [Limit.parse(text) for text in fail_if or ()]
    # Without `--by-class` tables still name the few worst classes; JSON has exactly what was asked for.
    request = Request(by_class=by_class or not as_json, **how)
    files = [path if is_address(path) else str(predictions_in(Path(path))) for path in files]
    rows = [stream[1] for path in files if (stream := request.stream(path))]
    share = 0.0 if len(files) == 1 else min(1.0, SAMPLE_ROWS / max([1, *rows]))
    measured = [measure_file(path, request, share=share) for path in files]
    tests = {entry.scores.file: _pair(measured[0], entry, request) for entry in measured[1:]}
    if as_json:
        found = [entry.scores.to_dict() for entry in measured]
        for later, entry in zip(measured[1:], found[1:], strict=True):
            test = tests[later.scores.file]
            metrics = {key: value._asdict() for key, value in (test or {}).items()}
            entry["paired"] = None if test is None else {"against": measured[0].scores.file, "metrics": metrics}
        say_json(found if len(found) > 1 else found[0])
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


def measure_file(path: str | Path, request: Request, *, share: float = 0.0) -> Measured:
    """Measure the predictions in a file, and pick this share of its rows: the same of all files with as many rows."""
    stream, random = request.stream(path), np.random.default_rng(request.seed)
    if stream is not None:
        return _measure_stream(path, *stream, request, share, random)
    predictions, scores = request.measure(path)
    return Measured(scores, predictions.split, _join(_pick(predictions, share, random)))


def _measure_stream(
    path: str | Path, files: Sequence[str | Path], rows: int, request: Request, share: float, random: np.random.Generator
) -> Measured:
    """Measure files of any size: they are read once, piece by piece, into sums of constant size."""
    head = next(request.batches(files, batch_rows=1), None)
    if head is None:
        raise ValueError(f"{path}: must hold at least one example that is not ignored, got none.")
    slice_by = column_names(request.slice_by, [*head.columns], where=str(path))
    names = [*dict.fromkeys(name for names in slice_by for name in names)]
    slices = Slices(slice_by, sample_columns(files, names, rows=rows, **request.reading), where=str(path))
    batch_rows = min(max(_BATCH_ENTRIES // head.num_classes, 1), 65536)
    options: dict[str, Any] = {"first": head, "batch_rows": batch_rows, "columns": names}
    sums: Sums = {}
    picked: list[Predictions] = []
    with progress_bar(f"reading {path}", rows) as advance:
        if request.ray:
            from calibrant.grid.executors import map_remotely

            for found in map_remotely(lambda part: _sum_up(request.batches(part, **options), slices, request.n_bins), files):
                _add(sums, found)
                advance(found[None].n if found else 0)
        else:

            def watched() -> Iterator[Predictions]:
                for batch in request.batches(files, **options):
                    yield batch
                    picked.extend(_pick(batch, share, random))
                    advance(len(batch))

            sums = _sum_up(watched(), slices, request.n_bins)
    draws: dict[str, Any] = {"class_names": head.class_names, "n_resamples": request.resamples, "seed": request.seed}
    scores = measure_summary(sums.pop(None), by_class=request.by_class, file=str(path), **draws)
    sliced = {group.title: measure_summary(sums[group], **draws) for group in sorted(group for group in sums if group)}
    return Measured(replace(scores, slices=sliced), head.split, _join(picked))


def _sum_up(batches: Iterable[Predictions], slices: Slices, n_bins: int) -> Sums:
    sums: Sums = {}
    for batch in batches:
        for group, part in [(None, batch), *slices.split(batch)]:
            _add(sums, {group: summarize(part, n_bins=n_bins)})
    return sums


def _add(sums: Sums, found: Sums) -> None:
    for group, summary in found.items():
        sums[group] = sums[group] + summary if group in sums else summary


def _pick(predictions: Predictions, share: float, random: np.random.Generator) -> list[Predictions]:
    chosen = random.random(len(predictions)) < share
    return [predictions.subset(chosen)] if chosen.any() else []


def _join(parts: Sequence[Predictions]) -> Predictions | None:
    if not parts:
        return None
    kinds = ("logits" if parts[0].has_logits else "probs", "labels", *(["weights"] if parts[0].weights is not None else []))
    joined: dict[str, Any] = {kind: torch.cat([getattr(part, kind) for part in parts]) for kind in kinds}
    return Predictions(**joined)


def _pair(first: Measured, second: Measured, request: Request) -> Mapping[str, Paired] | None:
    """Test the second file against the first, if both hold the same examples in the same order."""
    try:
        if request.ray:
            raise ValueError("on Ray rows are not compared. Leave `--ray` out.")
        if first.picked is None or second.picked is None or first.scores.n != second.scores.n:
            raise ValueError(f"they hold {first.scores.n:,} and {second.scores.n:,} examples.")
        return paired_test(first.picked, second.picked, **request.bootstrap)
    except ValueError as error:
        say(f"calibrant: no paired test of {second.scores.file} against {first.scores.file}: {error}", error=True)
        return None


def say_json(data: object) -> None:
    """Print plain data as JSON; a number that is not finite is null."""
    say(json.dumps(without_nan(data), indent=2, allow_nan=False))


def show_scores(measured: Measured, *, all_classes: bool, console: Terminal | None = None) -> None:
    """Print everything about one file."""
    console, scores = console or Terminal(), measured.scores
    split = f" · {measured.split.value} split" if measured.split else ""
    # The folder "." has no name.
    name = Path(scores.file).name or scores.file if scores.file else "predictions"
    show_heading(console, name, f"{count_examples(scores.n)} · {scores.num_classes} classes{split}")
    show_prose(console, verdict(scores), style="bold")
    console.print()
    console.print(scores_table(scores, width=console.width))
    positive = scores.positive
    known = score_metrics(positive=positive is not None)
    if missing := [metric.label for key, metric in known.items() if key not in scores]:
        show_prose(console, f"Not known, as the data were streamed: {', '.join(missing)}.", style="dim")
    if positive is None:
        show_heading(console, "By confidence", "what each bin adds to the ECE")
    else:
        show_heading(console, f"By {positive.probability}", "how often it happens, and what each bin adds to the error")
    console.print(bins_table(positive.bins if positive else scores.bins, width=console.width, positive=bool(positive)))
    worst = 0 if positive else _WORST_CLASSES
    show_parts(console, scores, scores.num_classes if all_classes else worst)
    console.print()


def show_comparison(
    measured: Sequence[Measured],
    tests: Mapping[str | None, Mapping[str, Paired] | None],
    *,
    all_classes: bool,
    console: Terminal | None = None,
) -> None:
    """Print several files side by side, and the test of each against the first, by the name of its file."""
    console, paths = console or Terminal(), [Path(entry.scores.file or "predictions") for entry in measured]
    stems = [path.stem for path in paths]
    names = stems if len({*stems}) == len(stems) else [str(path) for path in paths]
    show_heading(console, f"{len(names)} files", "best values in bold")
    found = {name: entry.scores for name, entry in zip(names, measured, strict=True)}
    done = {name: test for name, scores in found.items() if (test := tests.get(scores.file))}
    show_side_by_side(console, found, done, all_classes=all_classes)
    picked = measured[0].picked
    if done and picked is not None and len(picked) < measured[0].scores.n:
        show_prose(console, f"The tests are of a random {len(picked):,} of the examples.")
    console.print()


def show_side_by_side(
    console: Terminal, found: Mapping[str, Scores], tests: Mapping[str, Mapping[str, Paired]], *, all_classes: bool = False
) -> None:
    """Print scores beside each other, what each means, the tests of some against the first, and their classes and groups."""
    console.print(comparison_table(found, width=console.width))
    console.print()
    for name, scores in found.items():
        show_prose(console, f"{name}: {verdict(scores)}")
    for name, test in tests.items():
        show_heading(console, f"{name} minus {next(iter(found))}", "on the same examples, paired bootstrap")
        console.print(paired_table(test, width=console.width))
    for name, scores in found.items():
        show_parts(console, scores, scores.num_classes if all_classes else 0, of=f"{name}: ")


def show_parts(console: Terminal, scores: Scores, classes: int, *, of: str = "") -> None:
    """Print so many classes, the worst first, and the groups."""
    if shown := scores.classes[:classes]:
        title = "Classes" if len(shown) == scores.num_classes else "Worst classes"
        show_heading(console, f"{of}{title}", "by the ECE of their own probability")
        console.print(classes_table(shown, width=console.width))
    if scores.slices:
        show_heading(console, f"{of}Groups", worst_slice(scores))
        console.print(parts_table("Group", scores.slices, width=console.width))


def scores_table(scores: Scores, *, width: int) -> Table:
    """Every metric with its value and interval, and what to compare it with."""
    rows: list[Row] = [
        [metric.label, _value(value, key == scores.main_error[0]), _dim(interval), _note(scores, key, metric, width)]
        for key, metric, _ in table_rows(scores)
        for value, interval in [write_estimate(scores[key], metric)]
    ]
    return fit_table(("Metric", "Value", _INTERVAL, ""), rows, width=width, drop=(3, 2))


def _note(scores: Scores, key: str, metric: Metric, width: int) -> Text:
    expected = {"ece": scores.ece_if_calibrated, scores.main_error[0]: scores.main_error[1]}
    if key in expected:
        return _dim(f"if calibrated {write_value(expected[key].mean, '%')}")
    if key == ("binary_gap" if scores.positive else "signed_gap"):
        return _direction(scores)
    return _dim(metric.meaning if width >= _WIDE else "")


def comparison_table(parts: Mapping[str, Scores], *, width: int) -> Table:
    """The metrics of several files side by side, with intervals if there is room; a line for each file if they are many."""
    rows: list[Row] = []
    for key, metric, _ in table_rows(next(iter(parts.values()))):
        best = min(abs(scores[key].value) for scores in parts.values())
        found = [(write_estimate(scores[key], metric), abs(scores[key].value) == best) for scores in parts.values()]
        cells = [cell for (value, interval), is_best in found for cell in (_value(value, is_best), _dim(interval))]
        rows.append([metric.label, *cells])
    table = fit_table(["Metric", *(head for name in parts for head in (name, _INTERVAL))], rows, width=width, drop=(2,))
    fits = Terminal(width=10_000).measure(table).maximum <= width
    return table if fits else parts_table("File", parts, width=width)


def paired_table(tests: Mapping[str, Paired], *, width: int) -> Table:
    """How the second file differs from the first on the same examples, and whether chance could have done it."""
    rows: list[Row] = [
        [metric.label, value, _dim(interval), write_p(tests[key].p_value), Text(judged, style=_JUDGED.get(judged, ""))]
        for key, metric, _ in table_rows(tests)
        for value, interval in [write_estimate(tests[key], metric, signed=True)]
        for judged in [judge(key, tests[key])]
    ]
    return fit_table(("Metric", "Difference", _INTERVAL, "", ""), rows, width=width, drop=(2,))


def bins_table(bins: Bins, *, width: int, positive: bool = False) -> Table:
    """Confidence and accuracy of bins that hold examples, and what each adds to the ECE; of many bins those that add most.

    Of the probability of a ``positive`` class: what was predicted and what was observed.
    """
    shares = (bins.weight * bins.gap).abs()
    held = (bins.count > 0).nonzero().flatten().tolist()
    # As many digits as tell the edges apart.
    digits = max(0, math.ceil(math.log10(len(bins.count))) - 2)
    per_share = _LONGEST_BAR / float(shares.max().clamp(min=1e-12))
    counts = bins.count if bins.rows is None else bins.rows
    rows: list[Row] = [
        [
            f"{100 * low:.{digits}f} – {100 * high:.{digits}f}%",
            f"{count:,.0f}",
            write_value(confidence, "%"),
            write_value(accuracy, "%"),
            _dim(write_interval(Estimate(accuracy, *rate_interval(accuracy, size=count)), "%")),
            write_value(confidence - accuracy, "%", signed=True),
            write_value(share, "%"),
            Text("█" * round(per_share * share), style="red" if confidence > accuracy else "blue"),
        ]
        for m in sorted(sorted(held, key=lambda m: -float(shares[m]))[:_MOST_BINS])
        for low, high in [bins.edges[m : m + 2].tolist()]
        for count, confidence, accuracy, share in [[float(x[m]) for x in (counts, bins.confidence, bins.accuracy, shares)]]
    ]
    said, happened, part = ("Predicted", "Observed", "In error") if positive else ("Confidence", "Accuracy", "In ECE")
    headers = ("Bin", "Examples", said, happened, _INTERVAL, "Gap", part, "")
    return fit_table(headers, rows, width=width, drop=(7, 1, 6, 4) if positive else (4, 7, 1, 6))


def classes_table(classes: Sequence[ClassScore], *, width: int) -> Table:
    """Classes in the order given: how far their probability is off, and in which direction."""
    rows: list[Row] = [
        [
            entry.name,
            f"{entry.count:,.0f}",
            write_value(entry.error, "%"),
            _value(write_value(entry.ece, "%"), True),
            write_value(entry.signed_gap, "%", signed=True),
            _dim(_bias(entry)),
        ]
        for entry in classes
    ]
    return fit_table(("Class", "Examples", "Error", "ECE", "Bias", ""), rows, width=width, drop=(5, 2))


def _bias(entry: ClassScore) -> str:
    if abs(entry.signed_gap) <= (entry.chance or 0):
        return "within chance"
    return "predicted too often" if entry.signed_gap > 0 else "predicted too rarely"


def parts_table(
    head: str, parts: Mapping[str, Scores], *, width: int, more: Mapping[str, Sequence[str | Text]] | None = None
) -> Table:
    """The main numbers of every group of examples, or of every file, and ``more`` columns; by default how they are off."""
    last = more or {"": [_direction(part) for part in parts.values()]}
    rows: list[Row] = []
    for (name, part), cells in zip(parts.items(), zip(*last.values(), strict=True), strict=True):
        key, null = part.main_error
        ece = _value(write_value(part[key].value, "%"), True)
        chance = (_dim(write_interval(part[key], "%")), _dim(write_value(null.mean, "%")))
        rows.append([name, f"{part.n:,}", write_value(part["error"].value, "%"), ece, *chance, *cells])
    error = "Binary ECE" if any(part.positive for part in parts.values()) else "ECE"
    return fit_table(
        (head, "Examples", "Error", error, _INTERVAL, "If calibrated", *last), rows, width=width, drop=(5, 4, 6, 2)
    )


def _direction(scores: Scores) -> Text:
    return Text(direction(scores), style=_COLOURS[direction(scores)])


def _value(text: str, is_bold: bool) -> Text:
    return Text(text, style="bold" if is_bold else "")


def _dim(text: str) -> Text:
    return Text(text, style="dim")


def monitor_stream(
    paths: Sequence[str],
    *,
    time: str,
    window: str,
    tolerance: float,
    false_alarms: float,
    figure: Path | None,
    fail_on_alarm: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Measure every window of the stream in ``paths``, print them, draw them; ``how`` as in `Request`."""
    if figure is not None:
        check_destination(figure, (".png", ".pdf"))
    check_choice(window, ("hour", "day", "week", "month", "value"), where="monitor", name="--window")
    request, files = Request(**how), [file for path in paths for file in find_files(path)]
    monitor = CalibrationMonitor(
        window=None if window == "value" else window,  # type: ignore[arg-type]
        tolerance=tolerance,
        false_alarms=false_alarms,
        n_bins=request.n_bins,
    )
    with progress_bar("reading", len(files)) as advance:
        for file in files:
            for batch in request.batches([file], columns=[time]):
                monitor.update(batch, lookup(batch.columns, time, kind=f"column of {file}"))
            advance(1)
    with progress_bar("measuring", None):
        watched = monitor.result(n_resamples=request.resamples, seed=request.seed)
    if figure is not None:
        from calibrant.report.figures import draw_monitor
        from calibrant.report.save import save_figure

        save_figure(draw_monitor(watched), figure.with_suffix(""))
    if as_json:
        say_json(watched.to_dict())
    else:
        show_windows(watched)
    if fail_on_alarm and watched.first_alarm is not None:
        raise typer.Exit(3)


def show_windows(watched: Watched) -> None:
    """Print a line for every window, and what they come to."""
    console, windows = Terminal(), watched.windows
    more: dict[str, list[str | Text]] = {
        "Bias": [write_value(window.bias.value, "%", signed=True) for window in windows],
        "Evidence": [f"{window.evidence:,.2f}" if window.evidence < 1e4 else "over 10,000" for window in windows],
        "": [Text("alarm" if window.alarm else "", style="bold red") for window in windows],
    }
    found = {window.name: window.scores for window in windows}
    console.print(parts_table("Window", found, width=console.width, more=more))
    console.print()
    first, off = watched.first_alarm, f"{100 * watched.tolerance:g} points"
    if first is None:
        quiet = f"No alarm: these {len(windows)} windows do not prove that any probabilities are off by more than {off}."
        show_prose(console, quiet, style="bold")
    else:
        chance = f"An alarm without cause, in any window, has a chance of {100 * watched.false_alarms:g}% at most."
        what = f"some probabilities are off by more than {off}. The mean over all of them, Bias, can be smaller."
        alarm = f"Alarm in {first.name}: {what} {chance}"
        show_prose(console, alarm, style="bold red")
