"""Files of predictions: reading and writing them whole, piece by piece, and finding out their size.

Numpy's ``.npz`` and torch's ``.pt`` are read here, tables in `table`. Nothing in them can run code, and sizes that a file
claims are compared with the bytes that it has before anything is allocated.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from glob import has_magic
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias
from urllib.parse import unquote

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import SUM_TOLERANCE, ArrayLike, check_count, lookup, to_tensor
from calibrant.core.records import Column, Predictions, both_classes
from calibrant.io.files import atomic_writer, check_ending, check_readable, decoding, is_address, locate, reaching

if TYPE_CHECKING:
    from calibrant.io.table import TableFile

Fields: TypeAlias = dict[str, Column]

# The key, column or metadata entry that holds `Extras` as JSON.
EXTRAS_KEY = "calibrant"
SCORE_COLUMN = re.compile(r"(p|logit)(0|[1-9]\d*)")
# Kinds of numpy arrays that can be slice columns of a file: booleans, whole numbers, floating point, text and dates.
COLUMN_KINDS = "biufUM"
TORCH_DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
# Deflate cannot do better than this.
_MOST_INFLATED = 1032
# A value of more bytes is no label, name or number.
_MOST_BYTES = 1 << 16
# Endings of the files that are read and written.
FORMATS = (".npz", ".csv", ".parquet", ".pt")
# Other spellings of a key; the last is that of scikit-learn.
_ALIASES = {"label": "labels", "weight": "weights", "sample_weight": "weights"}
_SCORES = ("logits", "probs")
_KEYS = {*_SCORES, "labels", *_ALIASES, "weights", "split", "class_names", EXTRAS_KEY}
# Rows of probabilities further from one than this have lost what no rule can bring back.
_MOST_OFF = 0.05
# Values of a column that are looked at to find out how to slice by it.
_SAMPLE_ROWS = 1 << 18
# Files and folders within a folder that are no data.
_NOTES = re.compile(r"/[._]")


def load_predictions(
    path: str | Path,
    *,
    ignore_index: int | None = None,
    class_names: Sequence[str] | None = None,
    prob_column: str | None = None,
    label_column: str | None = None,
) -> Predictions:
    r"""Read predictions from a ``.npz``, ``.csv``, ``.parquet`` or ``.pt`` file. No file can run code.

    ``.npz`` and ``.pt`` (a dict of tensors) hold the keys ``logits`` or ``probs`` ``[N, C]`` (of a binary problem also ``[N]``:
    the probability of class 1, or its log-odds), ``labels`` ``[N]`` and optionally ``split``, ``weights`` ``[N]`` and
    ``class_names``; every further array of N values is a column to slice by. ``.csv`` and ``.parquet`` hold the columns ``p0…``
    or ``logit0…`` (of a binary problem also one alone: ``p1``, ``p``, ``prob``, ``probability``, ``score``, ``y_score``,
    ``y_prob``, or its log-odds ``logit1``, ``logit``), ``label`` (or ``y_true``, ``target``, ``y``) and optionally ``split``,
    ``weight``; every further column (of a ``.csv`` as text) can be sliced by. Labels are class indices, or names where
    ``class_names`` are known. Text has no precision: probabilities in a ``.csv`` are float64, unless float32 holds them exactly
    or their rows sum to one no better than float32 rows do. Rows that were rounded are divided by their sums; see
    `without_rounding`.

    Args:
        path: The file; its ending says the format.
        ignore_index: Label that marks examples to leave out.
        class_names: Names of the classes in their order, in place of the file's.
        prob_column: Column of a table that holds the probability of the positive class, where it has another name.
        label_column: Column of a table that holds the labels, where it has another name.

    Returns:
        The record, checked. Raises ``ValueError`` or ``OSError`` with one sentence that names the file and what to do.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "test.csv"
        >>> _ = path.write_text("p0,p1,label,city\n0.9,0.1,0,Oslo\n0.2,0.8,0,Bern\n")
        >>> predictions = load_predictions(path)
        >>> predictions, predictions.columns["city"].tolist()
        (Predictions(N=2, C=2, from probs), ['Oslo', 'Bern'])
    """
    read = _read(path, prob_column, label_column)
    return _to_predictions(read.fields, read.extras, path=path, ignore_index=ignore_index, class_names=class_names)


class _Content(NamedTuple):
    """What a file holds, and the columns that it came from."""

    fields: Fields
    extras: Extras
    ending: str
    table: TableFile | None = None


def _read(path: str | Path, prob_column: str | None = None, label_column: str | None = None) -> _Content:
    file, table = Path(path), survey_predictions(path, prob_column=prob_column, label_column=label_column)
    ending = file.suffix.lower()
    if table is not None:
        return _Content(next(table.stream()), table.extras, ending, table)
    if ending == ".pt":
        return _Content(*read_pt(file), ending)
    headers = npz_headers(file)
    shape = next((headers[key][0] for key in _SCORES if key in headers), None)
    if shape is None:
        return _Content(dict.fromkeys(headers, np.zeros(0)), Extras(), ending)
    # Keys with a role, and vectors with one value for each example; other arrays may be large.
    examples = math.prod(shape[:1] + shape[2:])
    wanted = {key for key, (other, _) in headers.items() if key in _KEYS or other == (examples,)}
    fields = read_npz(file, wanted, main=headers.keys() & {*_SCORES})
    return _Content(fields, Extras.from_json(str(fields.pop(EXTRAS_KEY, "")), path=path), ending)


def rewrite_predictions(
    path: str | Path,
    out: str | Path,
    change: Callable[[Predictions], Predictions],
    *,
    prob_column: str | None = None,
    label_column: str | None = None,
) -> None:
    """Write to ``out`` what ``change`` makes of the scores in ``path``; all else, and whether there are labels, stays.

    Labels are not looked at: ``change`` sees zeros in their place. ``prob_column`` and ``label_column`` are as in
    `load_predictions`, and ``out`` has the same columns.
    """
    read = _read(path, prob_column, label_column)
    fields = dict(read.fields)
    labels = next((fields.pop(key) for key in ("labels", "label") if key in fields), None)
    scores = next((fields[key] for key in _SCORES if key in fields), None)
    if scores is not None:
        fields["labels"] = np.zeros((len(scores), *scores.shape[2:]), dtype=np.int64)
    changed = change(_to_predictions(fields, read.extras, path=path, ignore_index=None, class_names=None))
    written, extras = _to_fields(changed)
    del written["labels"]
    _write(written if labels is None else {**written, "labels": labels.reshape(-1)}, extras, out, like=read)


def save_logits(
    logits: Tensor,
    path: str | Path,
    *,
    class_names: Sequence[str] | None = None,
    columns: Mapping[str, ArrayLike] | None = None,
) -> None:
    """Write logits ``[N, C]`` of examples whose labels nobody knows, in the formats of `save_predictions`.

    Args:
        logits: The logits.
        path: The file; its ending says the format.
        class_names: Names of the classes in their order.
        columns: Further values for each example, such as the names of files.
    """
    labels = torch.zeros(len(logits), dtype=torch.int64)
    fields, extras = _to_fields(Predictions(logits=logits, labels=labels, class_names=class_names, columns=columns or {}))
    del fields["labels"]
    _write(fields, extras, path)


def survey_predictions(
    path: str | Path, *, prob_column: str | None = None, label_column: str | None = None
) -> TableFile | None:
    """Return rows, classes and columns of a ``.parquet`` or ``.csv`` file by its head alone; None for formats read whole."""
    check_readable(path)
    if check_ending(path, FORMATS) in (".npz", ".pt"):
        if is_address(path):
            raise ValueError(f"{path}: a file at an address must be a .parquet or .csv table. Copy it to this machine first.")
        return None
    from calibrant.io.table import open_table

    return open_table(path, prob_column=prob_column, label_column=label_column)


def find_files(path: str | Path) -> list[str | Path]:
    """The files of predictions, by name, in a folder or that a pattern such as ``parts/*.parquet`` matches; or the file itself.

    ``path`` may be an address of any file system that fsspec knows, such as ``s3://bucket/folder``. Files and folders whose
    names begin with a dot or an underscore are left out unless they are named: engines keep notes of their own there.
    """
    filesystem, place = locate(path)
    with reaching(path):
        is_pattern = has_magic(place) and not filesystem.exists(place)
        if not is_pattern and not filesystem.isdir(place):
            return [path]
        inside = {file for start in (filesystem.glob(place) if is_pattern else [place]) for file in filesystem.find(start)}
    named = len(re.split(r"[*?[]", place)[0]) - 1
    found = [file for file in inside if PurePath(file).suffix.lower() in FORMATS and not _NOTES.search(file, named)]
    if not found:
        what = f"files of predictions ({', '.join(FORMATS)}), got none. A folder is read with its sub-folders, *.csv without"
        raise FileNotFoundError(f"{path}: must hold {what}.")
    return [filesystem.unstrip_protocol(file) if is_address(path) else file for file in sorted(found)]


def folder_columns(file: str | Path) -> dict[str, str]:
    """The columns that the names of a file's folders hold, such as ``date=2024-05-01``."""
    folders = PurePath(str(file)).parent.parts
    return dict(unquote(folder).split("=", 1) for folder in folders if "=" in folder)


def save_predictions(
    predictions: Predictions, path: str | Path, *, like: str | Path | None = None, **columns: str | None
) -> None:
    """Write predictions to a ``.npz``, ``.csv``, ``.parquet`` or ``.pt`` file that `load_predictions` reads back exactly.

    The file appears complete or not at all, and replaces an older one of its name. Precision, class names and the types of
    slice columns, where a format has no place for them, are kept as JSON under the name ``calibrant``.

    Args:
        predictions: The record.
        path: The file; its ending says the format.
        like: A file whose kind of scores (logits, probabilities, or one number of two classes) and names of columns to keep.
        columns: Its ``prob_column`` and ``label_column``, as in `load_predictions`.
    """
    _write(*_to_fields(predictions), path, like=None if like is None else _read(like, **columns))


def _to_fields(predictions: Predictions) -> tuple[Fields, Extras]:
    scores, kind = predictions.scores, "logits" if predictions.has_logits else "probs"
    # numpy has no bfloat16.
    fields: Fields = {
        kind: (scores.float() if scores.dtype == torch.bfloat16 else scores).numpy(),
        "labels": predictions.labels.numpy(),
    }
    if predictions.split is not None:
        fields["split"] = np.array(predictions.split.value)
    if predictions.weights is not None:
        fields["weights"] = predictions.weights.numpy()
    if predictions.class_names is not None:
        fields["class_names"] = np.array(predictions.class_names)
    for name, values in predictions.columns.items():
        is_plain = values.dtype.kind in COLUMN_KINDS and (values.dtype.kind != "f" or values.dtype.itemsize <= 8)
        if name in _KEYS or SCORE_COLUMN.fullmatch(name) or not is_plain:
            rule = "must hold numbers, text or dates and have a name of its own in a file"
            raise ValueError(f"save_predictions: column `{name}` {rule}, got {values.dtype}.")
        fields[name] = values
    return fields, Extras(
        dtype=str(scores.dtype).removeprefix("torch."),
        class_names=predictions.class_names,
        columns={name: values.dtype.newbyteorder("=").str for name, values in predictions.columns.items()},
    )


def _as_in(like: Fields, fields: Fields) -> Fields:
    """Make of logits what the file ``like`` holds: probabilities, or one number of two classes."""
    others = {**fields}
    logits = others.pop("logits").astype(np.float64)
    kind = "logits" if "logits" in like else "probs"
    scores = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)) if kind == "probs" else logits
    if like[kind].shape[1:] in ((), (1,)):
        scores = scores[:, 1] if kind == "probs" else scores[:, 1] - scores[:, 0]
    return {kind: scores.astype(fields["logits"].dtype), **others}


def _write(fields: Fields, extras: Extras, path: str | Path, *, like: _Content | None = None) -> None:
    ending = check_ending(path, FORMATS)
    if like is not None:
        fields = _as_in(like.fields, fields) if "logits" in fields else fields
        # What a file of the same format did not need to say.
        says_nothing = like.ending == ending and like.extras == Extras()
        extras = Extras(class_names=extras.class_names) if says_nothing else extras
    with atomic_writer(path) as handle:
        if ending == ".npz":
            write_npz(fields, extras, handle)
        elif ending == ".pt":
            write_pt(fields, extras, handle)
        else:
            from calibrant.io.table import write_table

            write_table(fields, extras, handle, as_text=ending == ".csv", like=like.table if like else None)


def iter_prediction_batches(
    path: str | Path,
    *,
    batch_rows: int = 65536,
    columns: Sequence[str] | None = None,
    ignore_index: int | None = None,
    class_names: Sequence[str] | None = None,
    prob_column: str | None = None,
    label_column: str | None = None,
) -> Iterator[Predictions]:
    """Read one file or many piece by piece, with the checks of `load_predictions`.

    ``.parquet`` and ``.csv`` are streamed: memory does not grow with the file. ``.npz`` and ``.pt`` are read whole first.

    Args:
        path: The file, or what `find_files` takes for many. Folders such as ``date=2024-05-01`` make a column.
        batch_rows: Rows in a piece at most; one that ends at a border of the file's own blocks is shorter.
        columns: Slice columns to read; None reads all.
        ignore_index: Label that marks examples to leave out, as those of weight zero are; so is a piece of nothing else.
        class_names: Names of the classes in their order, in place of the file's.
        prob_column: As in `load_predictions`.
        label_column: As in `load_predictions`.

    Yields:
        Records of up to ``batch_rows`` examples. Raises as `load_predictions` does, once it comes to what is wrong.
    """
    check_count(batch_rows, where="iter_prediction_batches", name="batch_rows")
    options: dict[str, Any] = {"ignore_index": ignore_index, "class_names": class_names}
    for file in find_files(path):
        known = {name: value for name, value in folder_columns(file).items() if columns is None or name in columns}
        own = None if columns is None else [name for name in columns if name not in known]
        table = survey_predictions(file, prob_column=prob_column, label_column=label_column)
        pieces = _whole_pieces(file, batch_rows, options) if table is None else _table_pieces(table, batch_rows, own, options)
        for piece in pieces:
            values = {name: np.full(len(piece), value) for name, value in known.items()}
            yield piece.replace(columns={**piece.columns, **values}) if known else piece


def sample_columns(
    files: Sequence[str | Path],
    names: Sequence[str],
    *,
    rows: int,
    ignore_index: int | None = None,
    class_names: Sequence[str] | None = None,
    **columns: str | None,
) -> Fields:
    """Values of columns to slice by: all of them or, of many ``rows``, a random part; of a folder's name one for each file.

    The other arguments are those of `load_predictions`.
    """
    random, share = np.random.default_rng(0), min(1.0, _SAMPLE_ROWS / max(rows, 1))
    found: dict[str, list[Column]] = {name: [] for name in names}
    options: dict[str, Any] = {"ignore_index": ignore_index, "class_names": class_names}
    for file in files if names else ():
        known, table = folder_columns(file), survey_predictions(file, **columns)
        for name in names:
            if name in known:
                found[name].append(np.array([known[name]]))
            else:
                own: Mapping[str, Any] = dict.fromkeys(table.names) if table else load_predictions(file, **options).columns
                values = lookup(own, name, kind=f"column of {file}", known=[*own, *known])
                parts = [values] if table is None else table.parts_of(name)
                found[name] += [part[random.random(len(part)) < share] for part in parts]
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _whole_pieces(file: str | Path, batch_rows: int, options: dict[str, Any]) -> Iterator[Predictions]:
    whole = load_predictions(file, **options).counted
    for rows in torch.arange(len(whole)).split(batch_rows):
        yield whole.subset(rows)


def _table_pieces(
    table: TableFile, batch_rows: int, columns: Sequence[str] | None, options: dict[str, Any]
) -> Iterator[Predictions]:
    first_row = 0
    for fields in table.stream(batch_rows, columns):
        fields = _canonical(fields, table.path)
        labels, weights = fields["labels"], fields.get("weights")
        is_text = labels.dtype.kind == "U"
        ignore_index = options["ignore_index"]
        ignored = np.char.strip(labels.astype(str)) == str(ignore_index) if is_text else labels == ignore_index
        # A piece that is left out as a whole is no mistake as long as others are not.
        if not np.all(ignored) and (weights is None or weights.any()):
            yield _to_predictions(fields, table.extras, path=table.path, first_row=first_row, **options).counted
        first_row += len(labels)


def _to_predictions(
    fields: Fields,
    extras: Extras,
    *,
    path: str | Path,
    first_row: int = 0,
    ignore_index: int | None,
    class_names: Sequence[str] | None,
) -> Predictions:
    """The record of what a file holds; ``first_row`` is the row of the file at which ``fields`` begin, for messages."""
    fields = _canonical(fields, path)
    kind = "logits" if "logits" in fields else "probs"
    labels, scores = fields.pop("labels"), to_tensor(fields.pop(kind), where=str(path), name=kind)
    if scores.is_floating_point() and scores.shape[1:] in ((), (1,)):
        scores, labels = both_classes(scores.reshape(-1), kind), labels.reshape(-1)
    # A file that says its precision comes back as it was saved.
    elif kind == "probs" and extras.dtype is None:
        scores = torch.from_numpy(without_rounding(scores.numpy()))
    if extras.dtype is not None:
        scores = scores.to(TORCH_DTYPES[extras.dtype])
    given: dict[str, Any] = {kind: scores, "weights": fields.pop("weights", None), "split": fields.pop("split", None)}
    if given["split"] is not None:
        given["split"] = _one_split(given["split"], path)
    names = extras.class_names
    if "class_names" in fields:
        names = tuple(fields.pop("class_names").astype(str).reshape(-1).tolist())
    return Predictions(
        **given,
        labels=labels,
        columns={
            name: _restore(values, extras.columns.get(name))
            for name, values in fields.items()
            if values.shape == (labels.size,) and values.dtype.kind in "S" + COLUMN_KINDS
        },
        class_names=names if class_names is None else class_names,
        ignore_index=ignore_index,
        where=str(path),
        first_row=first_row,
    )


def _restore(values: Column, dtype: str | None) -> Column:
    """A slice column in the type in which it was saved, if the file says it."""
    if values.dtype.kind == "S":
        values = np.char.decode(values.astype(bytes), "utf-8", "replace")
    if dtype is not None and np.dtype(dtype).kind == "b" and values.dtype.kind == "U":
        return np.asarray(np.char.lower(values.astype(str)) == "true")
    return values if dtype is None else values.astype(dtype)


def _canonical(fields: Fields, path: str | Path) -> Fields:
    """Put the keys of ``fields`` under their one spelling and make sure that the needed ones are there, once."""
    renamed = {_ALIASES.get(key, key): value for key, value in fields.items()}
    kinds = len({*_SCORES} & renamed.keys())
    if len(renamed) < len(fields) or kinds != 1 or "labels" not in renamed:
        missing = "`labels` (in a table column `label`, or what `--label-column` names)"
        if kinds != 1:
            scores = "(in a table columns logit0… or p0…, or what `--prob-column` names)"
            missing = f"either `logits` or `probs` {scores}"
        table = survey_predictions(path)
        found = ", ".join((list(fields) if table is None else table.names)[:12]) or "nothing"
        raise ValueError(f"{path}: must hold {missing} once, got {found}.")
    return renamed


def _one_split(values: Column, path: str | Path) -> str | None:
    """The split that all rows name, or None; an empty cell says nothing."""
    distinct = sorted({*np.unique(values.astype(str)).tolist()} - {""})
    if len(distinct) > 1:
        remedy = "Write one file for each split, or rename the column and group by it with `--slice`."
        raise ValueError(f"{path}: `split` must be the same in every row, got {', '.join(distinct[:4])}. {remedy}")
    return distinct[0] if distinct else None


def without_rounding(probs: Column) -> Column:
    r"""Return probabilities with rows that sum to one, if rounding explains that they do not.

    Explained are rows of C numbers with d decimals (2 to 5) whose sums are off by up to :math:`C \cdot 10^{-d} / 2`, and rows
    that bfloat16 or float16 hold exactly, off by what `calibrant.core.checks.SUM_TOLERANCE` says for that precision; in no case
    by more than 0.05. Such rows are divided by their sums. Everything else is returned as it is.
    """
    if probs.ndim != 2 or not probs.size or probs.dtype not in (np.float32, np.float64):
        return probs
    sums = probs.sum(axis=1, dtype=np.float64)
    off = float(np.abs(sums - 1).max())
    usual = SUM_TOLERANCE[torch.float32 if probs.dtype == np.float32 else torch.float64]
    # NaN fails the comparison; what is bad otherwise is for the record to say.
    if not usual < off <= _MOST_OFF or probs.min() < 0 or off > _explained(probs):
        return probs
    return np.asarray(probs / sums[:, None], dtype=probs.dtype)


def _explained(probs: Column) -> float:
    """How far rounding may have moved the sum of a row, by the coarsest rounding that all entries show."""
    for decimals in (2, 3, 4, 5):
        scaled = probs.astype(np.float64) * 10**decimals
        # float32 holds a rounded number only to its own precision.
        if float(np.abs(scaled - np.round(scaled)).max()) <= 1e-7 * 10**decimals:
            return probs.shape[1] * 0.5 * 10.0**-decimals * (1 + 1e-6)
    values = torch.from_numpy(np.ascontiguousarray(probs))
    exact = (SUM_TOLERANCE[d] for d in (torch.bfloat16, torch.float16) if bool((values.to(d).to(values.dtype) == values).all()))
    return next(exact, 0.0)


class Extras(NamedTuple):
    """What a format cannot hold in its own way: precision of the scores, names of classes, numpy types of slice columns."""

    dtype: str | None = None
    class_names: tuple[str, ...] | None = None
    columns: Mapping[str, str] = {}

    def to_json(self) -> str:
        """Return the parts that say something, as JSON text; empty text if none does."""
        said = {key: value for key, value in self._asdict().items() if value}
        return json.dumps(said, ensure_ascii=False) if said else ""

    @classmethod
    def from_json(cls, text: str, *, path: str | Path) -> Extras:
        """Read what `to_json` wrote; empty text is a file that says nothing."""
        try:
            data = json.loads(text or "{}")
            names = data.get("class_names")
            found = cls(data.get("dtype"), None if names is None else tuple(map(str, names)), dict(data.get("columns", {})))
            if found.dtype not in (None, *TORCH_DTYPES) or any(
                np.dtype(kind).kind not in COLUMN_KINDS for kind in found.columns.values()
            ):
                raise ValueError(text)
            return found
        except (ValueError, AttributeError, TypeError, RecursionError):
            raise ValueError(f"{path}: `{EXTRAS_KEY}` must hold what `save_predictions` wrote, got {text[:80]!r}.") from None


def npz_headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
    """Return shape and type of every array in an ``.npz`` without reading any; raises ``ValueError`` on another file."""
    headers = {}
    with decoding(path), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            with archive.open(info) as member:
                version = np.lib.format.read_magic(member)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(member)
                held = info.file_size - member.tell()
            most = _MOST_INFLATED * (info.compress_size + 8)
            if not dtype.hasobject and not math.prod(shape) * dtype.itemsize == held <= most:
                raise ValueError("an array claims more than the file has")
            headers[info.filename.removesuffix(".npy")] = shape, dtype
    return headers


def read_npz(path: Path, keys: Collection[str], *, main: Collection[str]) -> Fields:
    """Read some arrays of an ``.npz``.

    An object array, which only unpickling could read, is refused, and so are arrays of more values than those of the ``main``
    keys, of which one may be a text of 16,384 characters.
    """
    headers = npz_headers(path)
    most = max([2, *(math.prod(headers[key][0]) for key in main)])
    for key in sorted(headers.keys() & keys, key=lambda key: key not in main):
        shape, dtype = headers[key]
        if dtype.hasobject:
            raise ValueError(
                f"{path}: `{key}` must be a plain array, got an array of Python objects, which is not read because it could "
                "run code. Save it as numbers or text, for instance with `.astype(str)`."
            )
        if math.prod(shape) > most or dtype.itemsize > _MOST_BYTES:
            raise ValueError(f"{path}: `{key}` must not hold more than `{min(main)}`, got {list(shape)} of {dtype}.")
    with decoding(path), np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in headers if key in keys}


def write_npz(fields: Fields, extras: Extras, handle: BinaryIO) -> None:
    """Write one array for each key; the same content gives the same bytes."""
    said = Extras(dtype=extras.dtype if extras.dtype == "bfloat16" else None).to_json()
    content = {**fields, EXTRAS_KEY: np.array(said)} if said else fields
    with zipfile.ZipFile(handle, "w", zipfile.ZIP_STORED) as archive:
        for key, array in content.items():
            # `numpy.savez` would take a key named "file" for its own argument, and stamps the time on every member.
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_pt(path: Path) -> tuple[Fields, Extras]:
    """Read a dict of tensors, lists of numbers or text, and text; with ``weights_only``, so that nothing in it can run."""
    content = _load_pt(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: must hold a dict with `logits` or `probs` and `labels`, got {type(content).__name__}.")
    extras = Extras.from_json(str(content.pop(EXTRAS_KEY, "")), path=path)
    fields: Fields = {}
    for key, value in content.items():
        if not isinstance(value, Tensor):
            with suppress(ValueError):
                fields[key] = np.asarray(value)
            continue
        # A view may claim more values than are stored.
        is_plain = value.layout == torch.strided and not (value.is_quantized or value.is_meta)
        if not is_plain or value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ValueError(f"{path}: `{key}` must be a dense tensor that holds every value. Save `{key}.to_dense().clone()`.")
        if value.dtype == torch.bfloat16 and key in ("logits", "probs"):
            extras = extras._replace(dtype="bfloat16")
        # numpy has no bfloat16.
        fields[key] = (value.float() if value.dtype == torch.bfloat16 else value).detach().numpy()
    return fields, extras


def _load_pt(path: Path) -> object:
    with decoding(path), warnings.catch_warnings(action="ignore"):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                # torch does not look at checksums. What it writes is not compressed.
                if any(info.compress_size != info.file_size for info in archive.infolist()) or archive.testzip():
                    raise ValueError("a member is compressed, or its checksum is wrong")
        with suppress(pickle.UnpicklingError):
            return torch.load(path, map_location="cpu", weights_only=True)
    raise ValueError(
        f"{path}: must hold only tensors, lists and text, got other Python objects, which are not loaded because they could "
        "run code. Save it with `torch.save({'logits': logits, 'labels': labels}, file)`."
    )


def write_pt(fields: Fields, extras: Extras, handle: BinaryIO) -> None:
    """Write a dict of tensors; text becomes lists of text, dates whole numbers (their type is kept beside them)."""
    content: dict[str, object] = {}
    for key, array in fields.items():
        if array.dtype.kind == "U":
            content[key] = array.tolist()
            continue
        plain = array.astype(np.int64) if array.dtype.kind == "M" else array
        tensor = torch.from_numpy(np.ascontiguousarray(plain, dtype=plain.dtype.newbyteorder("=")))
        content[key] = tensor.to(TORCH_DTYPES[extras.dtype]) if key in ("logits", "probs") and extras.dtype else tensor
    said = Extras(columns=extras.columns).to_json()
    # torch turns a full disk into an error of its own, so that it must not write to the file itself.
    buffer = io.BytesIO()
    torch.save({**content, EXTRAS_KEY: said} if said else content, buffer)
    handle.write(buffer.getbuffer())
