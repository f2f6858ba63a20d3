"""From a file to its scores: kept in memory if it is small, streamed if it is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibrant.cli.progress import progress_bar
from calibrant.cli.request import Measured, Request, check_column, check_groups
from calibrant.cli.streaming import measure_stream
from calibrant.io import load_predictions, survey_predictions
from calibrant.metrics.measure import measure

# A file with more rows, or more scores in all, is streamed: 1 M rows of 10 classes take 80 MB, and several times that to work.
STREAM_ROWS = 1_000_000
STREAM_ENTRIES = 50_000_000


def measure_file(path: Path, request: Request) -> Measured:
    """Measure the predictions in a file.

    Args:
        path: The file.
        request: What to measure; ``keep`` asks for the predictions too.

    Returns:
        The scores. Raises ``ValueError``, ``OSError`` or ``ImportError`` with one sentence.
    """
    survey = survey_predictions(path)
    if survey and (survey.rows > STREAM_ROWS or survey.rows * survey.num_classes > STREAM_ENTRIES):
        return measure_stream(path, survey, request)
    predictions = load_predictions(path, ignore_index=request.ignore_index, class_names=request.class_names)
    if request.slice_by is not None:
        check_column(path, request.slice_by, list(predictions.columns))
        check_groups(path, request.slice_by, len(np.unique(predictions.columns[request.slice_by].astype(str))))
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
