"""``calibrant measure``: files in, tables or JSON out. Small files are read whole, large ones streamed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.cli.page import Measured, show_comparison, show_scores
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
# Rows of a streamed file that are kept for the paired test.
SAMPLE_ROWS = 200_000
_MAX_GROUPS = 1000


@dataclass(frozen=True)
class Request:
    """What to measure of a file; see the options of ``calibrant measure``. ``keep`` asks for its predictions too."""

    n_bins: int = 15
    by_class: bool = False
    slice_by: str | None = None
    class_names: Sequence[str] | None = None
    ignore_index: int | None = None
    n_resamples: int = 1000
    seed: int = 0
    keep: bool = False


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
    request = Request(
        n_bins=n_bins,
        # Without it, tables still name the few worst classes; JSON has exactly what was asked for.
        by_class=by_class or not as_json,
        slice_by=slice_by,
        class_names=None if class_names is None else load_class_names(class_names),
        ignore_index=ignore_index,
        n_resamples=resamples,
        seed=seed,
        keep=len(files) > 1,
    )
    measured = [measure_file(path, request) for path in files]
    tests = [_pair(measured[0], other, request) for other in measured[1:]]
    if as_json:
        print(_to_json(measured, tests))
    elif len(measured) == 1:
        show_scores(measured[0], all_classes=by_class)
    else:
        show_comparison(measured, tests, all_classes=by_class)


def measure_file(path: Path, request: Request) -> Measured:
    """Measure the predictions in a file. Raises ``ValueError``, ``OSError`` or ``ImportError`` with one sentence."""
    survey = survey_predictions(path)
    if survey and (survey.rows > STREAM_ROWS or survey.rows * survey.num_classes > STREAM_ENTRIES):
        return measure_stream(path, survey, request)
    predictions = load_predictions(path, ignore_index=request.ignore_index, class_names=request.class_names)
    if request.slice_by is not None:
        _check_column(path, request.slice_by, list(predictions.columns))
        _check_groups(path, request.slice_by, len(np.unique(predictions.columns[request.slice_by].astype(str))))
    with progress_bar(f"measuring {path.name}", None):
        scores = measure(
            predictions,
            n_bins=request.n_bins,
            by_class=request.by_class,
            slice_by=request.slice_by,
            n_resamples=request.n_resamples,
            seed=request.seed,
            file=str(path),
        )
    return Measured(scores, predictions.split, predictions if request.keep else None)


def measure_stream(path: Path, survey: Survey, request: Request) -> Measured:
    """Measure a file of any size: it is read once, piece by piece, into sums of constant size."""
    # Before reading, which takes minutes on a large file.
    names = request.class_names
    if names is not None and len(names) != survey.num_classes:
        raise ValueError(f"{path}: `class_names` must hold C = {survey.num_classes} names, got {len(names)}.")
    columns = [] if request.slice_by is None else [request.slice_by]
    for column in columns:
        _check_column(path, column, list(survey.columns))
    batches = iter_prediction_batches(
        path,
        batch_rows=min(max(_BATCH_ENTRIES // max(survey.num_classes, 1), 1), 65536),
        columns=columns,
        ignore_index=request.ignore_index,
        class_names=request.class_names,
    )
    total: Summary | None = None
    groups: dict[str, Summary] = {}
    sample = RowSample(seed=request.seed) if request.keep else None
    split = None
    with progress_bar(f"reading {path.name}", survey.rows) as advance:
        for batch in batches:
            split, names = batch.split, names or batch.class_names
            part = summarize(batch, n_bins=request.n_bins)
            total = part if total is None else total + part
            if request.slice_by is not None:
                _add_groups(groups, batch, path, request)
            if sample is not None:
                sample.add(batch)
            advance(len(batch))
    if total is None:
        raise ValueError(f"{path}: must hold at least one example that is not ignored, got none.")
    scores = _score(total, request, names, file=str(path))
    if groups:
        parts = {name: _score(groups[name], replace(request, by_class=False), names) for name in sorted(groups)}
        scores = replace(scores, slices=parts)
    return Measured(scores, split, sample.predictions() if sample else None, is_sample=True)


def _score(summary: Summary, request: Request, names: Sequence[str] | None, *, file: str | None = None) -> Scores:
    return measure_summary(
        summary, by_class=request.by_class, class_names=names, n_resamples=request.n_resamples, seed=request.seed, file=file
    )


def _add_groups(groups: dict[str, Summary], batch: Predictions, path: Path, request: Request) -> None:
    values = batch.columns[str(request.slice_by)].astype(str)
    for value in np.unique(values):
        part = summarize(batch.subset(values == value), n_bins=request.n_bins)
        groups[str(value)] = groups[str(value)] + part if str(value) in groups else part
    _check_groups(path, str(request.slice_by), len(groups))


def _check_groups(path: Path, column: str, number: int) -> None:
    if number > _MAX_GROUPS:
        raise ValueError(f"{path}: a column to slice by must have at most {_MAX_GROUPS} groups, got more in `{column}`.")


def _check_column(path: Path, column: str, columns: Sequence[str]) -> None:
    if not columns:
        raise ValueError(f"{path}: must have a column `{column}` to slice by, got no further columns. Add one to the file.")
    lookup(dict.fromkeys(columns), column, kind=f"column of {path}")


class RowSample:
    """A random part of a file's rows: the same rows of every file, in whatever pieces they are read.

    It keeps the ``size`` rows with the smallest random keys, where the key of a row depends on its number and the seed only.
    """

    def __init__(self, *, size: int = SAMPLE_ROWS, seed: int = 0) -> None:
        self._size, self._random = size, np.random.default_rng(seed)
        self._parts: list[tuple[Tensor, ...]] = []
        self._limit, self._kept = 1.0, 0
        self._has_logits = self._has_weights = False

    def add(self, batch: Predictions) -> None:
        """Take rows of the next piece."""
        keys = torch.from_numpy(self._random.random(len(batch)))
        picked = (keys < self._limit).nonzero().squeeze(1)
        self._has_logits, self._has_weights = batch.has_logits, batch.weights is not None
        scores = batch.logits if batch.has_logits else batch.probs
        weights = torch.empty(len(batch)) if batch.weights is None else batch.weights
        self._parts.append((keys[picked], scores[picked], batch.labels[picked], weights[picked]))
        self._kept += len(picked)
        if self._kept > 2 * self._size:
            self._prune()

    def predictions(self) -> Predictions:
        """Return the rows kept, in the order of the file."""
        self._prune()
        _, scores, labels, weights = self._parts[0]
        return Predictions(
            logits=scores if self._has_logits else None,
            probs=None if self._has_logits else scores,
            labels=labels,
            weights=weights if self._has_weights else None,
        )

    def _prune(self) -> None:
        joined = tuple(torch.cat(columns) for columns in zip(*self._parts, strict=True))
        if len(joined[0]) > self._size:
            self._limit = float(joined[0].kthvalue(self._size).values)
            below = joined[0] <= self._limit
            joined = tuple(column[below] for column in joined)
        self._parts, self._kept = [joined], len(joined[0])


def _pair(first: Measured, second: Measured, request: Request) -> Mapping[str, Paired] | None:
    """Test the second file against the first, if both hold the same examples in the same order."""
    one, two = first.predictions, second.predictions
    assert one is not None
    assert two is not None
    if first.is_sample != second.is_sample:
        one, two = (part if entry.is_sample else _same_rows(part, request) for entry, part in ((first, one), (second, two)))
    try:
        return paired_test(one, two, n_bins=request.n_bins, n_resamples=request.n_resamples, seed=request.seed)
    except ValueError as error:
        print(f"calibrant: no paired test of {second.scores.file} against {first.scores.file}: {error}", file=sys.stderr)
        return None


def _same_rows(predictions: Predictions, request: Request) -> Predictions:
    """Pick the rows that were kept of a file too large to keep whole."""
    sample = RowSample(seed=request.seed)
    sample.add(predictions)
    return sample.predictions()


def _to_json(measured: Sequence[Measured], tests: Sequence[Mapping[str, Paired] | None]) -> str:
    objects = [json.loads(entry.scores.to_json()) for entry in measured]
    for entry, test in zip(objects[1:], tests, strict=True):
        metrics = None if test is None else {key: _finite(result) for key, result in test.items()}
        entry["paired"] = None if metrics is None else {"against": objects[0]["file"], "metrics": metrics}
    return json.dumps(objects if len(objects) > 1 else objects[0], indent=2, allow_nan=False)


def _finite(test: Paired) -> dict[str, float | None]:
    return {key: value if abs(value) < float("inf") else None for key, value in test._asdict().items()}
