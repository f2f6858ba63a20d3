"""Labels as class indices: from whole numbers of any type, or from names of classes whose order is known."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import ArrayLike, refuse_masked, to_tensor

Labels = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

_RULE = "`labels` must be class indices 0, 1, 2, …"
# How None, NaN and pandas' NA are written as text.
_MISSING = ("", "None", "nan", "NaN", "<NA>")


_REPAIR = "Leave that row out, or give it a label such as -100 and pass `ignore_index=-100` (`--ignore-index -100`)."
_NAME_CLASSES = "Give indices, or also the names of the classes in their order (`class_names`, `--class-names`)."


def label_shape(scores: Tensor) -> list[int]:
    """Shape of the labels of ``scores [N, C, ...]``: ``[N, ...]``."""
    return [*scores.shape[:1], *scores.shape[2:]]


def read_labels(
    labels: ArrayLike,
    shape: Sequence[int],
    *,
    where: str,
    names: Sequence[str] | None = None,
    first_row: int = 0,
    ignore_index: int | None = None,
) -> Tensor:
    """Return labels as a tensor of integers.

    Args:
        labels: Integers, floating whole numbers (as pandas has where values were missing once), or names of classes.
        shape: Shape that labels must have; whether numbers are whole is looked at only where they have it.
        where: Name of the calling function, for messages.
        names: Names of the classes in their order, or None where they are not known.
        first_row: Number of the first row in messages.
        ignore_index: Label of examples to leave out, also where it is written as text.

    Returns:
        The labels; numbers of another shape as they are, for `check_shapes` to refuse.
    """
    refuse_masked(labels, where=where, name="labels")
    if not isinstance(labels, Tensor):
        # Of rows of different lengths there is no array, which `to_tensor` says.
        with contextlib.suppress(ValueError):
            labels = np.asarray(labels)
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "USO":
        found = class_indices(labels, names=names, where=where, first_row=first_row, ignore_index=ignore_index)
        return torch.from_numpy(found)
    target = to_tensor(labels, where=where, name="labels")
    if not target.is_floating_point() or list(target.shape) != list(shape):
        return target
    return torch.from_numpy(_whole(target.cpu().double().numpy(), where, first_row)).to(target.device)


def class_indices(
    labels: Labels,
    *,
    names: Sequence[str] | None,
    where: str,
    first_row: int = 0,
    ignore_index: int | None = None,
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return labels as whole numbers.

    Args:
        labels: Numbers, or text: names of classes, or whole numbers written as text; or Python objects of either kind.
        names: Names of the classes in their order, or None where they are not known.
        where: Name of the calling function or file, for messages.
        first_row: Number of the first row in messages.
        ignore_index: Label of examples to leave out, also where it is written as text.

    Returns:
        Class indices, as int64. Raises ``ValueError`` with one sentence.
    """
    if labels.dtype.kind in "iub":
        return labels.astype(np.int64)
    if labels.dtype.kind == "O" and not any(isinstance(value, (str, bytes)) for value in labels.flat):
        labels = _numbers_of(labels, where)
    if labels.dtype.kind in "USO":
        return _from_text(labels, names, where, first_row, ignore_index)
    if labels.dtype.kind != "f":
        raise ValueError(f"{where}: {_RULE}, got {labels.dtype}. Write the index of every class.")
    if labels.ndim > 1 and labels.shape[-1] > 1 and bool((labels.sum(-1) == 1).all()):
        raise ValueError(
            f"{where}: `labels` must be class indices [N], got {list(labels.shape)}. They look one-hot: take `argmax`."
        )
    return _whole(labels, where, first_row)


def _numbers_of(objects: Labels, where: str) -> Labels:
    """Python objects as float64; what is missing (None, pandas' NA) as NaN."""
    try:
        flat = [np.nan if str(value) in _MISSING else float(value) for value in objects.flat]
    except (TypeError, ValueError):
        raise ValueError(f"{where}: {_RULE}, got other Python objects. Pass the index of every class.") from None
    return np.array(flat, dtype=np.float64).reshape(objects.shape)


def _whole(labels: Labels, where: str, first_row: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    values = labels.astype(np.float64)
    bad = np.argwhere(~np.isfinite(values) | (values != np.round(values)))
    if len(bad):
        value, row = float(values[tuple(bad[0])]), first_row + int(bad[0][0])
        what = "no label" if np.isnan(value) else str(value)
        raise ValueError(f"{where}: {_RULE}, got {what} in row {row}. {_REPAIR}")
    return values.astype(np.int64)


def _from_text(
    labels: Labels,
    names: Sequence[str] | None,
    where: str,
    first_row: int,
    ignore_index: int | None,
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    text = np.char.decode(labels.astype(bytes), "utf-8", "replace") if labels.dtype.kind == "S" else labels.astype(str)
    text = np.char.strip(text)
    stripped = [str(name).strip() for name in (() if names is None else names)]
    index = {name: number for number, name in enumerate(stripped)}
    known = index if ignore_index is None else index | {str(ignore_index): ignore_index}
    distinct, place = np.unique(text, return_inverse=True)
    if len(index) < len(stripped) and (
        twice := {name for name in distinct if stripped.count(str(name)) > 1} - {str(ignore_index)}
    ):
        raise ValueError(
            f"{where}: `class_names` must differ where labels are names, got {min(twice)!r} twice. Rename one class."
        )
    found = [known.get(str(value)) for value in distinct]
    if None in found:
        try:
            return text.astype(np.int64)
        except (ValueError, OverflowError):
            unknown = {str(value) for value, number in zip(distinct, found, strict=True) if number is None}
            raise _unknown(text.reshape(-1), unknown, names, where, first_row) from None
    return np.array(found, dtype=np.int64)[place].reshape(text.shape)


def _unknown(text: Labels, unknown: set[str], names: Sequence[str] | None, where: str, first_row: int) -> ValueError:
    # A number among names is what names explain, or the label to leave out: it is said only where nothing else is wrong.
    numbers = {value for value in unknown if _is_whole(value)}
    row = next(row for row, value in enumerate(text) if str(value) in (unknown - numbers or numbers))
    value, at = str(text[row]), f"in row {first_row + row}"
    if value in _MISSING:
        return ValueError(f"{where}: {_RULE}, got no label {at}. {_REPAIR}")
    if names is None:
        return ValueError(f"{where}: {_RULE}, got {value!r} {at}. {_NAME_CLASSES}")
    near = difflib.get_close_matches(value, [str(name) for name in names], n=1)
    remedy = f"Did you mean {near[0]!r}?" if near else "Name every class."
    if value in numbers and int(value) < 0:
        remedy = f"Pass `ignore_index={value}` if it marks examples to leave out (`--ignore-index {value}`)."
    return ValueError(f"{where}: `labels` must be class indices or among the class names, got {value!r} {at}. {remedy}")


def _is_whole(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True
