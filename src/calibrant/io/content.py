"""The one form in which every file format hands over its content, and the checks that all of them share.

A format reads a file into `Fields`; `to_predictions` makes the record of them, and says what is wrong in one sentence that
names the file. The formats themselves live in their own modules.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from calibrant.core.checks import ArrayLike, check_binary_scores
from calibrant.core.records import Column, Predictions
from calibrant.io.extras import COLUMN_KINDS, EXTRAS_KEY, Extras
from calibrant.io.labels import class_indices
from calibrant.io.rounding import without_rounding

Fields: TypeAlias = dict[str, Column]

SCORES = ("logits", "probs")
# Other spellings of a key; the last is that of scikit-learn.
_ALIASES = {"label": "labels", "weight": "weights", "sample_weight": "weights"}
_KNOWN = {*SCORES, *_ALIASES, *_ALIASES.values(), "split", "class_names", EXTRAS_KEY}
_SCORE_COLUMN = re.compile(r"(p|logit)(0|[1-9]\d*)")
_REPAIR = "Repair or remove that row."
_SEVERAL = "Several labels at once are measured class by class: one file each, with `probs` [N] and labels 0 or 1."
_AS_LOGITS = "store them as `logits` (columns logit0, logit1, … in a table)."
_AS_PROBS = "store them as `probs` (columns p0, p1, … in a table)."


def check_readable(
    path: str | Path, *, content: str = "predictions", remedy: str = "Write it again with `Predictions.save`."
) -> None:
    """Raise ``OSError`` or ``ValueError`` with one sentence unless ``path`` is a file that holds something."""
    given = Path(path)
    if given.is_dir():
        example = f", such as {given / 'test.npz'}" if (given / "test.npz").is_file() else ""
        raise IsADirectoryError(f"{path}: must be a file, got a folder. Name a file in it{example}.")
    if not given.exists():
        raise FileNotFoundError(f"{path}: there is no such file{_nearest_file(given)}")
    try:
        with given.open("rb") as handle:
            first = handle.read(1)
    except OSError as error:
        raise type(error)(f"{path}: cannot be opened ({error.strerror}). Check who may read it.") from None
    if not first:
        raise ValueError(f"{path}: must hold {content}, got an empty file. {remedy}")


@contextmanager
def one_sentence(path: str | Path) -> Iterator[None]:
    """Make sure that what a damaged file provokes in the libraries that read it ends as one sentence that names the file."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        if isinstance(error, (ValueError, OSError)) and str(error).startswith(f"{path}:"):
            raise
        ending = Path(path).suffix.lower()
        raise ValueError(
            f"{path}: must be a {ending} file, got one that is damaged or of another kind. Write it again."
        ) from error


def from_predictions(predictions: Predictions) -> Fields:
    """Return the content of a record under the keys that files use; bfloat16, which numpy lacks, becomes float32."""
    scores = predictions.logits if predictions.has_logits else predictions.probs
    scores = scores.float() if scores.dtype == torch.bfloat16 else scores
    fields: Fields = {"logits" if predictions.has_logits else "probs": scores.numpy(), "labels": predictions.labels.numpy()}
    if predictions.split is not None:
        fields["split"] = np.array(predictions.split.value)
    if predictions.weights is not None:
        fields["weights"] = predictions.weights.numpy()
    if predictions.class_names is not None:
        fields["class_names"] = np.array(predictions.class_names)
    for name, values in predictions.columns.items():
        if name in _KNOWN or _SCORE_COLUMN.fullmatch(name):
            raise ValueError(f"save_predictions: a column must not be named `{name}`, which means something else in a file.")
        if values.dtype.kind not in COLUMN_KINDS or values.dtype.kind == "f" and values.dtype.itemsize > 8:
            raise ValueError(f"save_predictions: column `{name}` must hold numbers, text or dates, got {values.dtype}.")
        fields[name] = values
    return fields


def to_predictions(
    fields: Fields,
    *,
    path: str | Path,
    extras: Extras,
    first_row: int = 0,
    ignore_index: int | None = None,
    class_names: Sequence[str] | None = None,
) -> Predictions:
    """Make the record of what a file holds.

    Args:
        fields: Key → array: ``logits`` or ``probs`` (``[N]`` or ``[N, 1]`` of the positive class of a binary problem, too),
            ``labels``, optionally ``split``, ``weights``, ``class_names``; every
            further 1-D array with one value for each label is a column to slice by, all others are left out.
        path: The file, for messages.
        extras: What the file's format could not hold in ``fields``.
        first_row: Row of the file at which ``fields`` begin, for messages.
        ignore_index: Label of examples to leave out.
        class_names: Names of the classes, in place of the file's.

    Returns:
        The record. Raises ``ValueError`` with one sentence that names the file.
    """
    fields = _canonical(fields, path)
    kind = next(key for key in SCORES if key in fields)
    given = _own(fields.pop(kind))
    if given.ndim == 1 and fields["labels"].ndim == 2 and fields["labels"].dtype.kind == "f":
        raise ValueError(
            f"{path}: `{kind}` must be [N, C], got {list(given.shape)}. It looks swapped with `labels`: rename both."
        )
    binary, given = given.shape[1:] in ((), (1,)), _two_columns(given, kind)
    # A file that says its precision comes back as it was saved.
    scores = torch.from_numpy(without_rounding(given) if kind == "probs" and extras.dtype is None else given)
    names = _class_names(fields.pop("class_names", None), class_names, extras)
    if names is not None and scores.ndim == 2 and len(names) != scores.shape[1]:
        raise ValueError(
            f"{path}: `class_names` must hold C = {scores.shape[1]} names, got {len(names)}. Name every class once."
        )
    labels = class_indices(fields.pop("labels"), names=names, path=path, first_row=first_row, ignore_index=ignore_index)
    split = one_split(fields.pop("split", None), path)
    weights = fields.pop("weights", None)
    columns: dict[str, ArrayLike] = {}
    for name, values in fields.items():
        if values.ndim == 1 and len(values) == labels.size:
            text = np.char.decode(values.astype(bytes), "utf-8", "replace") if values.dtype.kind == "S" else values
            if text.dtype.kind in "O" + COLUMN_KINDS:
                columns[name] = extras.restore_column(text, name, path=path)
    try:
        return Predictions(
            logits=extras.restore_scores(scores) if kind == "logits" else None,
            probs=extras.restore_scores(scores) if kind == "probs" else None,
            labels=labels,
            split=split,
            weights=None if weights is None else weights.astype(np.float64),
            columns=columns,
            class_names=names,
            ignore_index=ignore_index,
        )
    except ValueError as error:
        if binary and "`probs` must lie in" in str(error):
            # What was given for class 1, not what follows for class 0; scores of examples to leave out may be anything.
            kept = np.asarray(labels).reshape(-1) != ignore_index
            check_binary_scores(torch.from_numpy(given[kept, 1]), kind=kind, where=str(path))
        raise ValueError(f"{path}: {_for_files(str(error), first_row)}") from None


def _two_columns(scores: Column, kind: str) -> Column:
    """Scores of both classes ``[N, 2]`` of a binary problem, of which ``[N]`` or ``[N, 1]`` are those of the positive one."""
    if scores.dtype.kind != "f" or scores.shape[1:] not in ((), (1,)) or scores.ndim == 0:
        return scores
    positive = scores.reshape(-1)
    return np.stack([1 - positive if kind == "probs" else np.zeros_like(positive), positive], axis=1)


def _class_names(stored: Column | None, given: Sequence[str] | None, extras: Extras) -> Sequence[str] | None:
    if given is not None:
        return given
    return extras.class_names if stored is None else [str(name) for name in stored.reshape(-1)]


def _canonical(fields: Fields, path: str | Path) -> Fields:
    """Put the keys of ``fields`` under their one spelling and make sure that the needed ones are there, once."""
    found = (", ".join(list(fields)[:12]) or "nothing") + (f" and {len(fields) - 12} more" if len(fields) > 12 else "")
    for full in dict.fromkeys(_ALIASES.values()):
        twice = [key for key in (*_ALIASES, full) if key in fields and _ALIASES.get(key, key) == full]
        if len(twice) > 1:
            raise ValueError(f"{path}: must hold one of `{twice[0]}` and `{twice[1]}`, got both. Remove one of them.")
    fields = {_ALIASES.get(key, key): value for key, value in fields.items()}
    given = [key for key in SCORES if key in fields]
    if len(given) == 2:
        raise ValueError(f"{path}: must hold either `logits` or `probs`, got both. Remove one of them.")
    if not given:
        raise ValueError(f"{path}: must hold `logits` or `probs` (columns logit0… or p0… in a table), found {found}.")
    if "labels" not in fields:
        raise ValueError(f"{path}: must hold `labels` (column `label` in a table), found {found}.")
    for key in (*given, "weights"):
        if key in fields and fields[key].dtype.kind not in "fiub":
            raise ValueError(f"{path}: `{key}` must hold numbers, got {fields[key].dtype}. Save it as numbers.")
    return fields


def one_split(values: Column | None, path: str | Path) -> str | None:
    """Return the split that all rows name, or None; raise where they differ (an empty cell says nothing)."""
    if values is None:
        return None
    distinct = sorted({str(value) for value in np.unique(values.reshape(-1).astype(str))} - {""})
    if len(distinct) > 1:
        raise ValueError(
            f"{path}: `split` must be the same in every row, got {', '.join(map(repr, distinct[:4]))}. "
            "Write one file for each split, or rename the column and group by it with `--slice`."
        )
    return distinct[0] if distinct else None


def _own(array: Column) -> Column:
    """Return ``array`` in native byte order, writeable and with plain strides: what torch can take over."""
    wide = array.dtype.kind == "f" and array.dtype.itemsize > 8
    native = array.astype(np.float64 if wide else array.dtype.newbyteorder("="), copy=False)
    return native if native.flags.writeable and native.flags.c_contiguous else np.array(native, order="C")


def _for_files(message: str, first_row: int) -> str:
    """Turn a message about arguments into one about a file: its rows and its remedies."""
    message = message.removeprefix("Predictions: ")
    message = re.sub(r"in row (\d+)", lambda match: f"in row {first_row + int(match[1])}", message)
    rule = message.split(". ", 1)[0].rstrip(".")
    if "look like logits" in message:
        return f"{rule}. They look like logits: {_AS_LOGITS}"
    if "look like probabilities" in message:
        return f"{rule}. They look like probabilities: {_AS_PROBS}"
    if "must sum to 1" in rule:
        return f"{rule}. Normalise the rows, or if they are scores {_AS_LOGITS} {_SEVERAL}"
    if "Several labels" in message:
        return f"{rule}. Take their `argmax(1)` if they are one-hot. {_SEVERAL}"
    if "in row" in rule and ("must be finite" in rule or "NaN" in rule):
        return f"{rule}. {_REPAIR}"
    if "`probs` must be >= 0" in rule:
        return f"{rule}. Set rounding errors below zero to zero."
    if message == f"{rule}." and "`labels` must lie in" in rule:
        return f"{rule}. Write scores for every class, also for one that is never predicted."
    if left_out := re.search(r"Pass `ignore_index=(-?\d+)`", message):
        return f"{rule}. Give `--ignore-index {left_out[1]}` (`ignore_index={left_out[1]}`) if it marks examples to leave out."
    if "must be floating point" in rule:
        return f"{rule}. Save them as floating point."
    return message


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f", nor a folder {path.parent}."
    near = difflib.get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=1, cutoff=0.7)
    return f". Did you mean {path.with_name(near[0])}?" if near else f" in {path.parent.resolve()}."
