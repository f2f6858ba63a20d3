"""``calibrant measure``: files in, tables or JSON out."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibrant.cli.page import show_comparison, show_scores
from calibrant.cli.reading import measure_file
from calibrant.cli.request import Measured, Request
from calibrant.cli.sample import RowSample
from calibrant.core.records import Predictions
from calibrant.core.scores import Paired
from calibrant.io import load_class_names
from calibrant.metrics.paired import paired_test


@dataclass(frozen=True)
class Options:
    """The options of the command, as typed."""

    n_bins: int
    as_json: bool
    by_class: bool
    slice_by: str | None
    class_names: Path | None
    ignore_index: int | None
    resamples: int
    seed: int


def measure_files(files: Sequence[Path], options: Options) -> None:
    """Measure every file and write what was found to standard output.

    With ``--json`` one file gives one object; several give a list of them, of which the second and later ones hold, under
    ``paired``, the test against the first: ``{"against": FILE, "metrics": {KEY: {"difference", "low", "high", "p_value"}}}``,
    or null where the files do not hold the same examples.
    """
    request = Request(
        n_bins=options.n_bins,
        # Without it, tables still name the few worst classes; JSON has exactly what was asked for.
        by_class=options.by_class or not options.as_json,
        slice_by=options.slice_by,
        class_names=None if options.class_names is None else load_class_names(options.class_names),
        ignore_index=options.ignore_index,
        n_resamples=options.resamples,
        seed=options.seed,
        keep=len(files) > 1,
    )
    measured = [measure_file(path, request) for path in files]
    tests = [_pair(measured[0], other, request) for other in measured[1:]]
    if options.as_json:
        print(_to_json(measured, tests))
    elif len(measured) == 1:
        show_scores(measured[0], all_classes=options.by_class)
    else:
        show_comparison(measured, tests, all_classes=options.by_class)


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
        reason = str(error).removeprefix("paired_test: ").replace("`second`", str(second.scores.file))
        reason = reason.replace("`first`", str(first.scores.file))
        print(f"calibrant: no paired test: {reason}", file=sys.stderr)
        return None


def _same_rows(predictions: Predictions, request: Request) -> Predictions:
    """Pick the rows that were kept of a file too large to keep whole."""
    sample = RowSample(seed=request.seed)
    sample.add(predictions)
    return sample.predictions()


def _to_json(measured: Sequence[Measured], tests: Sequence[Mapping[str, Paired] | None]) -> str:
    objects = [json.loads(entry.scores.to_json()) for entry in measured]
    if len(objects) == 1:
        return json.dumps(objects[0], indent=2, allow_nan=False)
    for entry, test in zip(objects[1:], tests, strict=True):
        metrics = None if test is None else {key: _finite(result) for key, result in test.items()}
        entry["paired"] = None if metrics is None else {"against": objects[0]["file"], "metrics": metrics}
    return json.dumps(objects, indent=2, allow_nan=False)


def _finite(test: Paired) -> dict[str, float | None]:
    return {key: value if abs(value) < float("inf") else None for key, value in test._asdict().items()}
