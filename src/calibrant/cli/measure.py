"""``calibrant measure``: files in, tables or JSON out. Small files are read whole, large ones streamed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from calibrant.cli.scores_view import Measured, show_comparison, show_scores
from calibrant.cli.terminal import progress_bar
from calibrant.core.records import Predictions
from calibrant.core.registry import lookup
from calibrant.core.scores import Paired, Scores
from calibrant.core.summary import Summary, summarize
from calibrant.io import Survey, iter_prediction_batches, load_class_names, load_predictions, survey_predictions
from calibrant.metrics.measure import measure, measure_summary
from calibrant.metrics.paired import paired_test

# A file with more rows, or more scores in all, is streamed: 1 M rows of 10 classes take 80 MB, and several times that to work.
STREAM_ROWS = 1_000_000
STREAM_ENTRIES = 50_000_000
# Scores in a streamed batch: 32 MiB in float64.
_BATCH_ENTRIES = 4_000_000
# Rows of a streamed file that are kept for the paired test, about.
SAMPLE_ROWS = 200_000
_MAX_GROUPS = 1000


@dataclass(frozen=True)
class Request:
    """How to read and measure files; see the options of ``calibrant measure``."""

    n_bins: int = 15
    n_resamples: int = 1000
    seed: int = 0
    class_names: Path | None = None
    ignore_index: int | None = None
    by_class: bool = False
    slice_by: str | None = None

    @cached_property
    def names(self) -> tuple[str, ...] | None:
        """The names of the classes."""
        return None if self.class_names is None else load_class_names(self.class_names)

    def load(self, path: Path) -> Predictions:
        """Read the predictions in a file."""
        return load_predictions(path, ignore_index=self.ignore_index, class_names=self.names)

    def measure(self, predictions: Predictions, *, file: Path | None = None) -> Scores:
        """Measure predictions."""
        return measure(
            predictions,
            n_bins=self.n_bins,
            by_class=self.by_class,
            slice_by=self.slice_by,
            n_resamples=self.n_resamples,
            seed=self.seed,
            file=None if file is None else str(file),
        )


def measure_files(
    files: Sequence[Path],
    *,
    n_bins: int,
    as_json: bool,
    by_class: bool,
    slice_by: str | None,
    class_names: Path | None,
    ignore_index: int | None,
    resamples: int,
    seed: int,
) -> None:
    """Measure every file and write what was found to standard output.

    With ``as_json`` one file gives one object; several give a list of them, of which the second and later ones hold, under
    ``paired``, the test against the first: ``{"against": FILE, "metrics": {KEY: {"difference", "low", "high", "p_value"}}}``,
    or null where the files do not hold the same examples.
    """
    # Without `--by-class` tables still name the few worst classes; JSON has exactly what was asked for.
    request = Request(n_bins, resamples, seed, class_names, ignore_index, by_class or not as_json, slice_by)
    measured = [measure_file(path, request, keep=len(files) > 1) for path in files]
    tests = [_pair(measured[0], other, request) for other in measured[1:]]
    if as_json:
        print(_to_json(measured, tests))
    elif len(measured) == 1:
        show_scores(measured[0], all_classes=by_class)
    else:
        show_comparison(measured, tests, all_classes=by_class)


def measure_file(path: Path, request: Request, *, keep: bool = False) -> Measured:
    """Measure the predictions in a file, and ``keep`` them. Raises ``ValueError`` or ``OSError`` with one sentence."""
    survey = survey_predictions(path)
    if survey and (survey.rows > STREAM_ROWS or survey.rows * survey.num_classes > STREAM_ENTRIES):
        return measure_stream(path, survey, request, keep=keep)
    predictions = request.load(path)
    if request.slice_by is not None:
        _check_column(path, request.slice_by, predictions.columns)
        _check_groups(path, request.slice_by, np.unique(predictions.columns[request.slice_by].astype(str)))
    with progress_bar(f"measuring {path.name}", None):
        scores = request.measure(predictions, file=path)
    return Measured(scores, predictions.split, predictions if keep else None)


def measure_stream(path: Path, survey: Survey, request: Request, *, keep: bool = False) -> Measured:
    """Measure a file of any size: it is read once, piece by piece, into sums of constant size."""
    columns = [] if request.slice_by is None else [request.slice_by]
    for column in columns:
        _check_column(path, column, survey.columns)
    batches = iter_prediction_batches(
        path,
        batch_rows=min(max(_BATCH_ENTRIES // max(survey.num_classes, 1), 1), 65536),
        columns=columns,
        ignore_index=request.ignore_index,
        class_names=request.names,
    )
    sums: dict[str | None, Summary] = {}
    random, kept = np.random.default_rng(request.seed), []
    rate = min(1.0, SAMPLE_ROWS / max(survey.rows, 1))
    with progress_bar(f"reading {path.name}", survey.rows) as advance:
        for batch in batches:
            parts: dict[str | None, Predictions] = {None: batch}
            for column in columns:
                values = batch.columns[column].astype(str)
                parts |= {str(value): batch.subset(values == value) for value in np.unique(values)}
            for name, part in parts.items():
                found = summarize(part, n_bins=request.n_bins)
                sums[name] = sums[name] + found if name in sums else found
            for column in columns:
                _check_groups(path, column, sums.keys() - {None})
            picked = random.random(len(batch)) < rate
            if keep and picked.any():
                kept.append(batch.subset(picked))
            advance(len(batch))
    if not sums:
        raise ValueError(f"{path}: must hold at least one example that is not ignored, got none.")
    score = partial(
        measure_summary, class_names=request.names or batch.class_names, n_resamples=request.n_resamples, seed=request.seed
    )
    scores = score(sums.pop(None), by_class=request.by_class, file=str(path))
    slices = {name: score(sums[name]) for name in sorted(map(str, sums))}
    return Measured(replace(scores, slices=slices), batch.split, _join(kept) if keep else None, rate)


def _check_column(path: Path, column: str, columns: Sequence[str] | Mapping[str, object]) -> None:
    if not columns:
        raise ValueError(f"{path}: must have a column `{column}` to slice by, got no further columns. Add one to the file.")
    lookup(dict.fromkeys(columns), column, kind=f"column of {path}")


def _check_groups(path: Path, column: str, groups: Sized) -> None:
    if len(groups) > _MAX_GROUPS:
        raise ValueError(f"{path}: a column to slice by must have at most {_MAX_GROUPS} groups, got more in `{column}`.")


def _join(parts: Sequence[Predictions]) -> Predictions:
    has_logits = parts[0].has_logits
    scores = torch.cat([part.logits if has_logits else part.probs for part in parts])
    weights = [part.weights for part in parts if part.weights is not None]
    return Predictions(
        logits=scores if has_logits else None,
        probs=None if has_logits else scores,
        labels=torch.cat([part.labels for part in parts]),
        weights=torch.cat(weights) if weights else None,
    )


def _pair(first: Measured, second: Measured, request: Request) -> Mapping[str, Paired] | None:
    """Test the second file against the first, if both hold the same examples in the same order."""
    rate = min(first.rate, second.rate)
    one, two = (_thin(measured, rate, request.seed) for measured in (first, second))
    try:
        return paired_test(one, two, n_bins=request.n_bins, n_resamples=request.n_resamples, seed=request.seed)
    except ValueError as error:
        print(f"calibrant: no paired test of {second.scores.file} against {first.scores.file}: {error}", file=sys.stderr)
        return None


def _thin(measured: Measured, rate: float, seed: int) -> Predictions:
    """The rows of a file that are kept at ``rate``: those whose random number, which the seed alone decides, is below it."""
    assert measured.predictions is not None
    if rate == measured.rate:
        return measured.predictions
    numbers = np.random.default_rng(seed).random(measured.scores.n)
    return measured.predictions.subset(numbers[numbers < measured.rate] < rate)


def _to_json(measured: Sequence[Measured], tests: Sequence[Mapping[str, Paired] | None]) -> str:
    objects = [json.loads(entry.scores.to_json()) for entry in measured]
    for entry, test in zip(objects[1:], tests, strict=True):
        entry["paired"] = None if test is None else {"against": objects[0]["file"], "metrics": tests_to_dict(test)}
    return json.dumps(objects if len(objects) > 1 else objects[0], indent=2, allow_nan=False)


def tests_to_dict(tests: Mapping[str, Paired]) -> dict[str, dict[str, float | None]]:
    """Paired tests as JSON has them: what is not finite is null."""
    return {
        key: {name: value if abs(value) < float("inf") else None for name, value in test._asdict().items()}
        for key, test in tests.items()
    }
