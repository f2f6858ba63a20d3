"""The labels of a file: class indices, or names of classes where the file or its reader says what their order is."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibrant.core.records import Column

_RULE = "`labels` must be class indices 0, 1, 2, …"
_REPAIR = "Repair or remove that row."


def class_indices(
    labels: Column, *, names: Sequence[str] | None, path: str | Path, first_row: int, ignore_index: int | None
) -> Column:
    """Return labels as whole numbers.

    Args:
        labels: Numbers, or text: names of classes, or whole numbers written as text.
        names: Names of the classes in their order, or None where they are not known.
        path: The file, for messages.
        first_row: Row of the file at which ``labels`` begin, for messages.
        ignore_index: Label of examples to leave out, also where it is written as text.

    Returns:
        Class indices, as int64. Raises ``ValueError`` with one sentence that names the file.
    """
    if labels.dtype.kind in "iub":
        return labels.astype(np.int64)
    if labels.dtype.kind in "USO":
        return _from_text(labels, names, path, first_row, ignore_index)
    if labels.dtype.kind != "f":
        raise ValueError(f"{path}: {_RULE}, got {labels.dtype}. Write the index of every class.")
    if labels.ndim > 1 and labels.shape[-1] > 1 and bool((labels.sum(-1) == 1).all()):
        raise ValueError(
            f"{path}: `labels` must be class indices [N], got {list(labels.shape)}. They look one-hot: take `argmax`."
        )
    flat = labels.reshape(-1).astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(flat) | (flat != np.round(flat)))
    if len(bad):
        value = flat[bad[0]]
        what = "no label" if np.isnan(value) else str(value)
        raise ValueError(f"{path}: {_RULE}, got {what} in row {first_row + int(bad[0])}. {_REPAIR}")
    return labels.astype(np.int64)


def _from_text(
    labels: Column, names: Sequence[str] | None, path: str | Path, first_row: int, ignore_index: int | None
) -> Column:
    text = np.char.decode(labels.astype(bytes), "utf-8", "replace") if labels.dtype.kind == "S" else labels.astype(str)
    text = np.char.strip(text)
    index = {str(name).strip(): number for number, name in reversed(list(enumerate(names or ())))}
    known = index if ignore_index is None else index | {str(ignore_index): ignore_index}
    distinct, place = np.unique(text, return_inverse=True)
    found = [known.get(str(value)) for value in distinct]
    if None in found:
        try:
            return text.astype(np.int64)
        except (ValueError, OverflowError):
            unknown = {str(value) for value, number in zip(distinct, found, strict=True) if number is None}
            raise _unknown(text.reshape(-1), unknown, names, path, first_row) from None
    return np.array(found, dtype=np.int64)[place].reshape(text.shape)


def _unknown(text: Column, unknown: set[str], names: Sequence[str] | None, path: str | Path, first_row: int) -> ValueError:
    row = next(row for row, value in enumerate(text) if str(value) in unknown)
    value, at = str(text[row]), f"in row {first_row + row}"
    if not value:
        return ValueError(f"{path}: {_RULE}, got no label {at}. {_REPAIR}")
    if names is None:
        return ValueError(
            f"{path}: {_RULE}, got {value!r} {at}. Write indices, or say the names of the classes in their order: as "
            "`class_names` in the file, or with `--class-names` (`class_names=`)."
        )
    near = difflib.get_close_matches(value, [str(name) for name in names], n=1)
    remedy = f"Did you mean {near[0]!r}?" if near else "Name every class."
    return ValueError(f"{path}: `labels` must be class indices or among the class names, got {value!r} {at}. {remedy}")
