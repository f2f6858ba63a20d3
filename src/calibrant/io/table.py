"""Predictions as a table, a row for each example: ``.csv`` text and ``.parquet`` files, both read and written by pyarrow.

Imported where a table is met, since pyarrow takes a while to load.

Columns are ``p0…`` or ``logit0…`` (or a single score of a binary problem, or one column of lists), ``label``, and optionally
``split`` and ``weight``; all others can be sliced by.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pyarrow.types as kinds

from calibrant.core.checks import lookup
from calibrant.core.records import Column
from calibrant.io.files import decoding, is_address, locate
from calibrant.io.predictions import EXTRAS_KEY, SCORE_COLUMN, Extras, Fields, folder_columns

# The only score column of a binary problem: of the positive class.
_BINARY = dict.fromkeys(("p1", "p", "prob", "probability", "score", "y_score", "y_prob"), "probs")
_BINARY |= {"logit1": "logits", "logit": "logits"}
_LABELS = ("label", "labels")
_WEIGHTS = ("weight", "weights", "sample_weight")
_NOT_SLICED = {*_LABELS, *_WEIGHTS, "split", "probs", "logits", EXTRAS_KEY}
# Bytes of text that are parsed at a time, and from which the number of rows is estimated.
_BLOCK_BYTES, _SAMPLE_BYTES = 1 << 22, 1 << 18
_WRITE_ROWS = 1 << 16


def find_scores(names: Sequence[str], *, path: str | Path, prob_column: str | None = None) -> tuple[str, tuple[str, ...]]:
    """Find the kind of the scores and their columns, in time that grows with the number of columns, whatever their names.

    One column alone holds the positive class of a binary problem, or lists; ``prob_column`` names one that has another name. A
    table without scores gives ``("", ())``.
    """
    seen = dict.fromkeys(names)
    if len(seen) < len(names):
        raise ValueError(f"{path}: every column must have a name of its own, got one twice. Rename one of them.")
    if prob_column is not None:
        lookup(seen, prob_column, kind=f"column of {path}")
        return "probs", (prob_column,)
    found: list[tuple[str, tuple[str, ...]]] = [(kind, (kind,)) for kind in ("probs", "logits") if kind in seen]
    for prefix, kind in (("p", "probs"), ("logit", "logits")):
        count = sum(1 for name in names if (match := SCORE_COLUMN.fullmatch(name)) and match[1] == prefix)
        if count > 1 or f"{prefix}0" in seen:
            scores = tuple(f"{prefix}{number}" for number in range(max(count, 2)))
            if not seen.keys() >= {*scores}:
                rule = f"columns {prefix}0, {prefix}1, … must be two or more without a gap"
                raise ValueError(f"{path}: {rule}. A positive class alone is {prefix}1.")
            found.append((kind, scores))
    found = found or [(kind, (name,)) for name, kind in _BINARY.items() if name in seen]
    if len(found) > 1:
        first, second = (columns[0] for _, columns in found[:2])
        raise ValueError(f"{path}: must hold scores of one kind, got `{first}` and `{second}`. Rename or remove one of them.")
    return found[0] if found else ("", ())


@dataclass(frozen=True)
class TableFile:
    """A table of which only the columns are known yet, and the number of rows; of text, which has a delimiter, about."""

    path: str | Path
    names: list[str]
    kind: str
    scores: tuple[str, ...]
    extras: Extras
    rows: int
    delimiter: str = ""
    label: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to slice by."""
        taken = {*self.scores, *_NOT_SLICED, self.label}
        return tuple(name for name in self.names if name not in taken)

    @cached_property
    def num_classes(self) -> int:
        """Number of classes; of one column it is two, unless that holds lists, of which the first row tells the length."""
        if len(self.scores) != 1:
            return len(self.scores)
        first = next(self.stream(1, []))[self.kind]
        return first.shape[1] if first.ndim == 2 else 2

    def stream(self, batch_rows: int | None = None, columns: Sequence[str] | None = None) -> Iterator[Fields]:
        """Read pieces of up to ``batch_rows`` rows, or all at once; of the columns to slice by those named, or all."""
        for name in columns or ():
            known = [*self.names, *folder_columns(self.path)]
            lookup(dict.fromkeys(self.names), name, kind=f"column of {self.path}", known=known)
        unwanted = {EXTRAS_KEY, *_LABELS} | ({*self.columns} - {*columns} if columns is not None else set())
        wanted = [name for name in self.names if name not in unwanted - {self.label}]
        is_empty = True
        for table in self._tables(batch_rows, wanted):
            if not table.num_rows:
                continue
            is_empty = False
            fields = {name: values for name in wanted if (values := self._to_numpy(table.column(name), name)) is not None}
            scores = [fields.pop(name) for name in self.scores]
            if self.label:
                fields["labels"] = fields.pop(self.label)
            if scores:
                fields[self.kind] = scores[0] if len(scores) == 1 else np.stack(scores, axis=1)
            yield text_precision(fields) if self.delimiter and self.extras.dtype is None else fields
        if is_empty:
            raise ValueError(f"{self.path}: must hold at least one row of predictions, got none.")

    def parts_of(self, name: str) -> Iterator[Column]:
        """The values of a column to slice by, piece by piece."""
        for table in self._tables(_WRITE_ROWS, [name]):
            values = self._to_numpy(table.column(name), name)
            if values is not None:
                yield values

    def _tables(self, batch_rows: int | None, wanted: list[str]) -> Iterator[Any]:
        return (self._csv_tables if self.delimiter else self._parquet_tables)(batch_rows, wanted)

    def _parquet_tables(self, batch_rows: int | None, wanted: list[str]) -> Iterator[Any]:
        # With a read buffer, pages are fetched as they are needed; without one, pyarrow reads a row group's whole column at
        # once, and some writers put all rows in one group.
        # At an address, where every request takes its time, a row group is the least that is read.
        far = is_address(self.path)
        options: dict[str, Any] = {"buffer_size": 0 if far else 1 << 16, "pre_buffer": far}
        with decoding(self.path), _open(self.path) as source, pq.ParquetFile(source, **options) as file:
            if batch_rows is None:
                yield file.read(wanted)
                return
            for groups in [[k] for k in range(file.num_row_groups)] if far else [None]:
                for batch in file.iter_batches(batch_rows, row_groups=groups, columns=wanted):
                    yield pa.Table.from_batches([batch])

    def _csv_tables(self, batch_rows: int | None, wanted: list[str]) -> Iterator[Any]:
        narrow = self.extras.dtype in ("float16", "bfloat16", "float32")
        # The number 00012 would be 12, and a type that is inferred may change from piece to piece.
        types = dict.fromkeys((self.label, "split", *self.columns), "string") | dict.fromkeys(_WEIGHTS, "double")
        types |= dict.fromkeys(self.scores, "float" if narrow else "double")
        convert = pacsv.ConvertOptions(column_types=types, include_columns=wanted)
        # A row must fit into a block. One thread says in which row a mistake is.
        block = max(_BLOCK_BYTES, 64 * len(self.names))
        read = pacsv.ReadOptions(column_names=self.names, skip_rows=1, block_size=block, use_threads=False)
        parse = pacsv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        try:
            with _open(self.path) as source:
                if batch_rows is None:
                    yield pacsv.read_csv(source, read, parse, convert)
                    return
                for batch in pacsv.open_csv(source, read, parse, convert):
                    for start in range(0, batch.num_rows, batch_rows):
                        yield pa.Table.from_batches([batch.slice(start, batch_rows)])
        except pa.ArrowInvalid as error:
            raise _not_a_table(self.path, error) from None

    def _to_numpy(self, column: Any, name: str) -> Column | None:
        """An Arrow column as numpy: numbers (missing ones NaN) and dates as they are, all else as text (missing text empty).

        Lists of scores become ``[N, C]``. Columns that are no text either (structs, bytes) give None.
        """
        if kinds.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if name == self.kind and hasattr(column.type, "value_type"):
            lengths = pc.unique(pc.list_value_length(column)).to_pylist()
            flat = self._to_numpy(pc.list_flatten(column), name)
            if len(lengths) != 1 or lengths[0] is None or flat is None:
                raise ValueError(f"{self.path}: `{name}` must hold one score for each class, got rows of {lengths[:4]} scores.")
            return flat.reshape(-1, lengths[0])
        is_number = name in self.scores or name in _WEIGHTS
        if is_number or kinds.is_decimal(column.type) or (self.delimiter and name == self.label):
            # Labels in text are numbers, or names of classes, or both: names and -100 for examples to leave out.
            with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
                column = column if kinds.is_floating(column.type) else column.cast("float64")
        if is_number and not kinds.is_floating(column.type):
            raise ValueError(f"{self.path}: `{name}` must hold numbers, got {column.type}. Save it as numbers.")
        if kinds.is_primitive(column.type):
            values = np.asarray(column.to_numpy())
            if values.dtype.kind in "fiubM":
                return values
        with suppress(pa.ArrowNotImplementedError, pa.ArrowInvalid):
            if not kinds.is_binary(column.type):
                return np.asarray(pc.fill_null(column.cast("string"), "").to_numpy()).astype(str)
        return None


def _open(path: str | Path) -> Any:
    filesystem, place = locate(path)
    return pa.PythonFile(filesystem.open(place, "rb"), "r") if is_address(path) else pa.OSFile(place)


def open_table(path: str | Path, *, prob_column: str | None = None, label_column: str | None = None) -> TableFile:
    """Open a ``.csv`` or ``.parquet`` file; raises ``ValueError`` with one sentence where its columns are wrong.

    Args:
        path: The file.
        prob_column: Column that holds the probability of the positive class; found by its name if not given.
        label_column: Column that holds the labels; found by its name if not given.
    """
    names, rows, said, delimiter = (_csv_head if str(path).lower().endswith(".csv") else _parquet_head)(path)
    kind, scores = find_scores(names, path=path, prob_column=prob_column)
    if label_column is not None:
        lookup(dict.fromkeys(names), label_column, kind=f"column of {path}")
    label = label_column or next((name for name in (*_LABELS, "y_true", "target", "y") if name in names), "")
    return TableFile(path, names, kind, scores, Extras.from_json(said, path=path), rows, delimiter, label)


def _parquet_head(path: str | Path) -> tuple[list[str], int, str, str]:
    """Names of the columns, number of rows, text of the `Extras`, and no delimiter."""
    with decoding(path), _open(path) as source, pq.ParquetFile(source) as file:
        schema, rows = file.schema_arrow, int(file.metadata.num_rows)
    return schema.names, rows, (schema.metadata or {}).get(EXTRAS_KEY.encode(), b"").decode(errors="replace"), ""


def _csv_head(path: str | Path) -> tuple[list[str], int, str, str]:
    """Names of the columns, about how many rows there are, text of the `Extras`, and the delimiter."""
    with _open(path) as source:
        sample, size = source.read(_SAMPLE_BYTES), source.size()
        source.seek(0)
        try:
            with io.TextIOWrapper(source, encoding="utf-8-sig", newline="") as handle:
                line = handle.readline()
                delimiter = max(",;\t", key=line.count)
                names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
                first = dict(zip(names, next(csv.reader(handle, delimiter=delimiter), []), strict=False))
        except (UnicodeDecodeError, csv.Error) as error:
            raise _not_a_table(path, error) from None
    rows = max(round(size / len(sample) * sample.count(b"\n")) - 1, 0)
    return names, rows, first.get(EXTRAS_KEY, ""), delimiter


def _not_a_table(path: str | Path, error: Exception) -> ValueError:
    said = re.sub(r".*Row #(\d+): .*invalid value (.*)", r"\2 in line \1", str(error).splitlines()[0])
    return ValueError(f"{path}: must be a table of UTF-8 text with numbers such as 0.25 for scores and weights, got: {said}.")


def text_precision(fields: Fields) -> Fields:
    """Give probabilities read from text the precision that they really have.

    Text holds no precision, and precision decides how far a row may be from summing to one. Probabilities that are float32
    numbers exactly, or whose rows sum to one only as float32 rows do (a file with four decimals), are float32.
    """
    probs = fields.get("probs")
    if probs is None or probs.ndim != 2 or probs.dtype != np.float64 or not len(probs):
        return fields
    rough = probs.astype(np.float32)
    off = np.abs(probs.sum(axis=1) - 1).max()
    return {**fields, "probs": rough} if off > 1e-6 or np.array_equal(rough.astype(np.float64), probs) else fields


def write_table(fields: Fields, extras: Extras, handle: BinaryIO, *, as_text: bool, like: TableFile | None = None) -> None:
    """Write a table with what its columns cannot say as JSON: in the schema, or in the first row of a last column of text.

    Columns have the names and the order of those in ``like``.
    """
    table = pa.table(_to_columns(fields, like, as_text=as_text))
    if not as_text:
        table = table.replace_schema_metadata({EXTRAS_KEY: extras.to_json()})
        pq.write_table(table, handle, row_group_size=2 * _WRITE_ROWS)
        return
    if extras.dtype == "float64" and text_precision(fields).get("probs") is fields.get("probs"):
        extras = extras._replace(dtype=None)
    if said := extras.to_json():
        table = table.append_column(EXTRAS_KEY, [[said] + [""] * (table.num_rows - 1)])
    # pyarrow would put every name in quotes, and all text.
    header = io.StringIO(newline="")
    csv.writer(header, lineterminator="\n").writerow(table.column_names)
    handle.write(header.getvalue().encode())
    text = [column for column in table.columns if kinds.is_string(column.type)]
    special = any(pc.any(pc.match_substring_regex(column, '[",\r\n]')).as_py() for column in text)
    pacsv.write_csv(table, handle, pacsv.WriteOptions(include_header=False, quoting_style="needed" if special else "none"))


def _to_columns(fields: Fields, like: TableFile | None, *, as_text: bool) -> Fields:
    """Take ``[N, C]`` scores apart into columns; the split is repeated in every row, dates are written in one way."""
    kind, prefix = ("logits", "logit") if "logits" in fields else ("probs", "p")
    scores = fields[kind]
    # float16 is rare in tables and not understood by every reader; the precision is kept beside the data.
    scores = scores.astype(np.float32) if scores.dtype == np.float16 else scores
    order = like.names if like else []
    known = {"labels": (like.label if like else "") or "label"}
    known["weights"] = next((name for name in _WEIGHTS if name in order), "weight")
    parts = [scores] if scores.ndim == 1 else [np.ascontiguousarray(part) for part in scores.T]
    usual = [f"{prefix}1"] if scores.ndim == 1 else [f"{prefix}{k}" for k in range(len(parts))]
    names = like.scores if like and (like.kind, len(like.scores)) == (kind, len(parts)) else usual
    columns = dict(zip(names, parts, strict=True))
    for name, values in fields.items():
        if name not in (kind, "class_names"):
            column = np.full(len(scores), str(values)) if name == "split" else values
            as_known = known.get(name, name)
            columns[as_known] = column.astype(str) if as_text and column.dtype.kind == "M" else column
    return {name: columns[name] for name in dict.fromkeys([*order, *columns]) if name in columns}
