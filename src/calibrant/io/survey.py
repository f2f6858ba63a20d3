"""How large a file of predictions is, found out without reading it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from calibrant.io.content import check_readable, one_sentence
from calibrant.io.header import read_header
from calibrant.io.parquet import open_parquet
from calibrant.io.predictions import iter_prediction_batches
from calibrant.io.table import further_columns, score_columns

_SAMPLE_BYTES = 1 << 18


class Survey(NamedTuple):
    """Rows (an estimate for text), classes, and the names of the columns that can be sliced by."""

    rows: int
    num_classes: int
    columns: tuple[str, ...]


def survey_predictions(path: str | Path, *, class_names: Sequence[str] | None = None) -> Survey | None:
    """Return the size of a ``.parquet`` or ``.csv`` file; None for formats that can only be read whole.

    Args:
        path: The file.
        class_names: Names of the classes, for a file whose labels are such names.

    Returns:
        The survey. Raises as `load_predictions` does where the file cannot be opened.
    """
    ending = Path(path).suffix.lower()
    if ending not in (".parquet", ".csv"):
        return None
    check_readable(path)
    with one_sentence(path):
        if ending == ".parquet":
            with contextlib.closing(open_parquet(Path(path))) as file:
                names, rows = list(file.schema_arrow.names), int(file.metadata.num_rows)
        else:
            names, rows = read_header(Path(path)).names, _estimate_lines(Path(path))
        # A single column of lists does not say how long they are; the first row does.
        num_classes = len(score_columns(names, path=path)[1])
        first = None if num_classes else next(iter_prediction_batches(path, batch_rows=1, class_names=class_names))
        return Survey(rows, num_classes if first is None else first.num_classes, tuple(further_columns(names)))


def _estimate_lines(path: Path) -> int:
    """Lines of a text file from the mean length of those in its first part; exact where that part is all of it."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        sample = handle.read(_SAMPLE_BYTES)
    lines = sample.count(b"\n")
    if len(sample) == size:
        return max(lines - 1 + (not sample.endswith(b"\n")), 0)
    return int(size / len(sample) * max(lines, 1))
