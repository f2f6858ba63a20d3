"""What is asked about a file, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from calibrant.core.records import Predictions, Split
from calibrant.core.registry import lookup
from calibrant.core.scores import Scores

_MAX_GROUPS = 1000


@dataclass(frozen=True)
class Request:
    """What is to be measured of a file; see the options of ``calibrant measure``."""

    n_bins: int = 15
    by_class: bool = False
    slice_by: str | None = None
    class_names: Sequence[str] | None = None
    ignore_index: int | None = None
    n_resamples: int = 1000
    seed: int = 0
    keep: bool = False


@dataclass(frozen=True)
class Measured:
    """The scores of a file, its split, and its predictions or a random part of them if they were asked for."""

    scores: Scores
    split: Split | None
    predictions: Predictions | None = None
    is_sample: bool = False


def check_groups(path: Path, column: str, number: int) -> None:
    """Raise if a column has more groups than can be measured, and read, one by one."""
    if number > _MAX_GROUPS:
        raise ValueError(f"{path}: a column to slice by must have at most {_MAX_GROUPS} groups, got more in `{column}`.")


def check_names(path: Path, names: Sequence[str] | None, num_classes: int) -> None:
    """Raise unless there is a name for every class of ``path``, or none at all."""
    if names is not None and len(names) != num_classes:
        raise ValueError(f"{path}: `class_names` must hold C = {num_classes} names, got {len(names)}. Name every class once.")


def check_column(path: Path, column: str, columns: Sequence[str]) -> None:
    """Raise unless ``column`` is one of the columns that ``path`` can be sliced by."""
    if not columns:
        raise ValueError(f"{path}: must have a column `{column}` to slice by, got no further columns. Add one to the file.")
    try:
        lookup(dict.fromkeys(columns), column, kind="column")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
