"""Measuring a file that is larger than memory: it is read once, piece by piece, into sums of constant size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibrant.cli.progress import progress_bar
from calibrant.cli.request import Measured, Request, check_column, check_groups, check_names
from calibrant.cli.sample import RowSample
from calibrant.core.records import Predictions
from calibrant.core.scores import Scores
from calibrant.core.summary import Summary, summarize
from calibrant.io import Survey, iter_prediction_batches
from calibrant.metrics.measure import measure_summary

# Scores in a batch: 32 MiB in float64.
_BATCH_ENTRIES = 4_000_000


def measure_stream(path: Path, survey: Survey, request: Request) -> Measured:
    """Measure the predictions in a file of any size; see `calibrant.cli.reading.measure_file`."""
    # Before reading, which takes minutes on a large file.
    check_names(path, request.class_names, survey.num_classes)
    columns = [] if request.slice_by is None else [request.slice_by]
    for column in columns:
        check_column(path, column, list(survey.columns))
    rows = max(_BATCH_ENTRIES // max(survey.num_classes, 1), 1)
    batches = iter_prediction_batches(
        path,
        batch_rows=min(rows, 65536),
        columns=columns,
        ignore_index=request.ignore_index,
        class_names=request.class_names,
    )
    total: Summary | None = None
    groups: dict[str, Summary] = {}
    sample = RowSample(seed=request.seed) if request.keep else None
    split, names = None, request.class_names
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
    check_groups(path, str(request.slice_by), len(groups))
