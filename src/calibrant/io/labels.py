"""The labels of a file; what a label may be is said in `calibrant.core.labels`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calibrant.core.labels import Remedies
from calibrant.core.labels import class_indices as core_class_indices
from calibrant.core.records import Column

_IN_FILES = Remedies(
    missing="Repair or remove that row.",
    names="Write indices, or say the names of the classes in their order: as `class_names` in the file, or with "
    "`--class-names` (`class_names=`).",
    negative="Give `--ignore-index {0}` (`ignore_index={0}`) if it marks examples to leave out.",
)


def class_indices(
    labels: Column, *, names: Sequence[str] | None, path: str | Path, first_row: int, ignore_index: int | None
) -> Column:
    """Return the labels of a file as int64; `calibrant.core.labels.class_indices` with advice for files."""
    return core_class_indices(
        labels, names=names, where=str(path), first_row=first_row, ignore_index=ignore_index, remedies=_IN_FILES
    )
