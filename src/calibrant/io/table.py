"""Predictions as a table, a row for each example: ``.csv`` text and ``.parquet`` files, both read and written by pyarrow.

Columns are ``p0…`` or ``logit0…`` (or a single score of a binary problem, or one column of lists), ``label``, and optionally
``split`` and ``weight``; all others can be sliced by.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from calibrant.core.records import Column
from calibrant.io.arrays import EXTRAS_KEY, Extras, Fields
from calibrant.io.files import decoding

SCORE_COLUMN = re.compile(r"(p|logit)(0|[1-9]\d*)")
_KINDS = {"p": "probs", "logit": "logits"}
# The only score column of a binary problem: of the positive class.
_BINARY = {name: "probs" for name in ("p1", "p", "prob", "score", "y_score")} | {"logit1": "logits", "logit": "logits"}
_LABELS = ("label", "labels")
_WEIGHTS = ("weight", "weights", "sample_weight")
_NOT_SLICED = {*_LABELS, *_WEIGHTS, "split", "probs", "logits", EXTRAS_KEY}
# Cells that pyarrow takes for a missing number.
_MISSING = {"", "NA", "N/A", "#N/A", "NULL", "null", "NaN", "nan", "-NaN", "-nan", "n/a", "#NA"}
# Bytes of text that are parsed at a time, and from which the number of rows is estimated.
_BLOCK_BYTES, _SAMPLE_BYTES = 1 << 22, 1 << 18
_WRITE_ROWS = 1 << 16


class Layout(NamedTuple):
    """What the columns of a table are, by their names.

    Attributes:
        kind: "probs" or "logits".
        scores: The score columns in the order of the classes; one alone holds the positive class of a binary problem, or
            lists; none if the table has no scores.
        others: The columns to slice by.
    """

    kind: str
    scores: tuple[str, ...]
    others: tuple[str, ...]

    def is_number(self, name: str) -> bool:
        """Whether a column must hold numbers; labels may be names."""
        return name in _WEIGHTS or SCORE_COLUMN.fullmatch(name) is not None or (name,) == self.scores


def find_layout(names: Sequence[str], *, path: str | Path) -> Layout:
    """Find out what the columns of a table are; the cost grows with their number, whatever they are called."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{path}: every column must have a name of its own, got `{name}` twice. Rename one of them.")
        seen.add(name)
    numbered = {prefix: {m[2] for name in names if (m := SCORE_COLUMN.fullmatch(name)) and m[1] == prefix} for prefix in _KINDS}
    if numbered["p"] and numbered["logit"]:
        raise ValueError(f"{path}: must hold either columns p0… or logit0…, got both. Remove one kind.")
    prefix = "logit" if numbered["logit"] else "p"
    lists: list[str] = [name for name in _KINDS.values() if name in seen]
    single = lists or [name for name in _BINARY if name in seen]
    if numbered[prefix] - {"1"}:
        kind, scores = _KINDS[prefix], tuple(f"{prefix}{number}" for number in range(len(numbered[prefix])))
        missing = next((name for name in scores if name not in seen), None)
        if missing:
            raise ValueError(f"{path}: columns {prefix}0, {prefix}1, … must have no gap, got none named {missing}.")
        if len(scores) == 1:
            raise ValueError(f"{path}: must hold two classes or more, got only {prefix}0. Name the positive class {prefix}1.")
        if kind in seen:
            raise ValueError(f"{path}: must hold either a column `{kind}` or columns {prefix}0…, got both. Remove one kind.")
    elif len(single) > 1:
        raise ValueError(f"{path}: must hold one column of scores, got `{single[0]}` and `{single[1]}`. Rename one of them.")
    else:
        kind, scores = "".join(_BINARY.get(name, name) for name in single), tuple(single)
    taken = {*scores, *_NOT_SLICED}
    return Layout(kind, scores, tuple(name for name in names if name not in taken and not SCORE_COLUMN.fullmatch(name)))


@dataclass(frozen=True)
class TableFile:
    """A table of which only the names of its columns are known yet, and of text (which has a delimiter) about how many rows."""

    path: Path
    names: list[str]
    layout: Layout
    extras: Extras
    rows: int
    delimiter: str = ""

    def stream(self, batch_rows: int | None = None, columns: Sequence[str] | None = None) -> Iterator[Fields]:
        """Read pieces of up to ``batch_rows`` rows, or all at once; of the columns to slice by those named, or all."""
        unwanted = {EXTRAS_KEY} if columns is None else {*self.layout.others, EXTRAS_KEY} - set(columns)
        wanted = [name for name in self.names if name not in unwanted]
        rows = 0
        for table in (self._csv_tables if self.delimiter else self._parquet_tables)(batch_rows, wanted):
            if table.num_rows:
                arrays = {name: _to_numpy(table.column(name), name, self) for name in wanted}
                yield self._stack({name: values for name, values in arrays.items() if values is not None})
            rows += table.num_rows
        if rows == 0:
            raise ValueError(f"{self.path}: must hold at least one row of predictions, got none.")

    def _stack(self, arrays: Fields) -> Fields:
        """Put the score columns side by side."""
        kind, scores, _ = self.layout
        columns = [arrays.pop(name) for name in scores]
        if columns:
            arrays[kind] = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
        return text_precision(arrays) if self.delimiter and self.extras.dtype is None else arrays

    def _parquet_tables(self, batch_rows: int | None, wanted: list[str]) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # With a read buffer, pages are fetched as they are needed; without one, pyarrow reads a row group's whole column at
        # once, and some writers put all rows in one group.
        with decoding(self.path), pq.ParquetFile(self.path, buffer_size=1 << 16, pre_buffer=False) as file:
            if batch_rows is None:
                yield file.read(wanted)
                return
            for batch in file.iter_batches(batch_rows, columns=wanted):
                yield pa.Table.from_batches([batch])

    def _csv_tables(self, batch_rows: int | None, wanted: list[str]) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.csv as pacsv

        narrow = self.extras.dtype in ("float16", "bfloat16", "float32")
        types = {name: "string" for name in (*_LABELS, "split", *self.extras.columns)}
        if batch_rows is not None:
            types |= dict.fromkeys(self.layout.others, "string")
        types |= {name: "double" for name in self.names if self.layout.is_number(name)}
        types |= {name: "float" for name in self.layout.scores if narrow}
        # Dates stay text.
        convert = pacsv.ConvertOptions(
            column_types=types, include_columns=wanted, strings_can_be_null=False, timestamp_parsers=["never"]
        )
        # A row must fit into a block.
        block = max(_BLOCK_BYTES, 64 * len(self.names))
        read = pacsv.ReadOptions(column_names=self.names, skip_rows=1, block_size=block)
        parse = pacsv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        try:
            if batch_rows is None:
                yield pacsv.read_csv(self.path, read, parse, convert)
                return
            with pacsv.open_csv(self.path, read, parse, convert) as reader:
                for batch in reader:
                    for start in range(0, batch.num_rows, batch_rows):
                        yield pa.Table.from_batches([batch.slice(start, batch_rows)])
        except pa.ArrowInvalid:
            raise self._find_mistake() from None

    def _find_mistake(self) -> ValueError:
        """The first thing wrong with the text of a table that could not be read."""
        numbers = [k for k, name in enumerate(self.names) if self.layout.is_number(name)]
        row = -1
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as handle:
                lines = csv.reader(handle, delimiter=self.delimiter)
                next(lines)
                for row, cells in enumerate(cells for cells in lines if cells):
                    if len(cells) != len(self.names):
                        rule = f"every row must have the {len(self.names)} cells of the header"
                        return ValueError(f"{self.path}: {rule}, got {len(cells)} in row {row}.")
                    for k in numbers:
                        if cells[k].strip() not in _MISSING and not _is_number(cells[k]):
                            hint = " Write decimals with a point." if _is_number(cells[k].replace(",", ".")) else ""
                            rule = f"column `{self.names[k]}` must hold numbers"
                            return ValueError(f"{self.path}: {rule}, got {cells[k]!r} in row {row}.{hint}")
        except (UnicodeDecodeError, csv.Error) as error:
            return _no_text(self.path, error)
        got = "one that cannot be read" if row >= 0 else "only the header"
        return ValueError(f"{self.path}: must be a table of text with a header and rows, got {got}.")


def open_table(path: Path) -> TableFile:
    """Open a ``.csv`` or ``.parquet`` file; raises ``ValueError`` with one sentence where its columns are wrong."""
    return _open_csv(path) if path.suffix.lower() == ".csv" else _open_parquet(path)


def _open_parquet(path: Path) -> TableFile:
    import pyarrow.parquet as pq

    with decoding(path), pq.ParquetFile(path) as file:
        schema, rows = file.schema_arrow, int(file.metadata.num_rows)
    said = (schema.metadata or {}).get(EXTRAS_KEY.encode(), b"").decode(errors="replace")
    return TableFile(path, schema.names, find_layout(schema.names, path=path), Extras.from_json(said, path=path), rows)


def _open_csv(path: Path) -> TableFile:
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            line = handle.readline()
            delimiter = max(",;\t", key=line.count)
            names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
            first = next(csv.reader(handle, delimiter=delimiter), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise _no_text(path, error) from None
    layout = find_layout(names, path=path)
    if not layout.scores and names and all(_is_number(name) for name in names):
        raise ValueError(f"{path}: the first line must name the columns (p0, p1, …, label), got {line.strip()[:60]!r}.")
    said = first[names.index(EXTRAS_KEY)] if EXTRAS_KEY in names and len(first) == len(names) else ""
    return TableFile(path, names, layout, Extras.from_json(said, path=path), _estimate_rows(path), delimiter)


def _estimate_rows(path: Path) -> int:
    """Rows of a text file from the mean length of those in its first part; exact where that part is all of it."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        sample = handle.read(_SAMPLE_BYTES)
    lines = sample.count(b"\n")
    if len(sample) == size:
        return max(lines - 1 + (not sample.endswith(b"\n")), 0)
    return int(size / len(sample) * max(lines, 1))


def _no_text(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path}: must be a table of UTF-8 text, got other bytes ({error}). Check the file's ending.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _to_numpy(column: Any, name: str, file: TableFile) -> Column | None:
    """An Arrow column as numpy: numbers and dates as they are, a missing number as NaN, all else as text, missing text as "".

    Lists of scores become ``[N, C]``. Columns that are no text either (structs, bytes) give None.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if name in _KINDS.values() and hasattr(column.type, "value_type"):
        return _stack_lists(column, name, file.path)
    if name in _LABELS and file.delimiter:
        # Labels in text are numbers, or names of classes, or both: names and -100 for examples to leave out.
        with suppress(pa.ArrowInvalid):
            column = column.cast("float64")
    elif kinds.is_decimal(column.type) or (file.layout.is_number(name) and not kinds.is_primitive(column.type)):
        column = _to_float(column, name, file.path)
    if kinds.is_primitive(column.type) and not (file.delimiter and kinds.is_temporal(column.type)):
        values = np.asarray(column.to_numpy())
        if values.dtype.kind in "fiubM":
            return values
    if kinds.is_binary(column.type) or kinds.is_large_binary(column.type):
        return None
    with suppress(pa.ArrowNotImplementedError):
        return np.asarray(pc.fill_null(column.cast("string"), "").to_numpy()).astype(str)
    return None


def _to_float(column: Any, name: str, path: Path) -> Any:
    import pyarrow as pa

    try:
        return column.cast("float64")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise ValueError(f"{path}: column `{name}` must hold numbers, got {column.type}. Save it as numbers.") from None


def _stack_lists(column: Any, name: str, path: Path) -> Column:
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) != 1 or lengths[0] is None:
        said = ", ".join(str(length or "no") for length in lengths[:4])
        raise ValueError(f"{path}: `{name}` must hold one score for each class in every row, got rows of {said} scores.")
    flat = pc.list_flatten(column)
    flat = flat if kinds.is_floating(flat.type) else _to_float(flat, name, path)
    return np.asarray(flat.to_numpy()).reshape(-1, lengths[0])


def text_precision(fields: Fields) -> Fields:
    """Give probabilities read from text the precision that they really have.

    Text holds no precision, and decides how far a row may be from summing to one. Probabilities that are float32 numbers
    exactly, or whose rows sum to one only as float32 rows do (a file with four decimals), are float32; others stay float64.
    """
    probs = fields.get("probs")
    if probs is None or probs.ndim != 2 or probs.dtype != np.float64 or not len(probs):
        return fields
    rough = probs.astype(np.float32)
    off = np.abs(probs.sum(axis=1) - 1).max()
    return {**fields, "probs": rough} if off > 1e-6 or np.array_equal(rough.astype(np.float64), probs) else fields


def write_parquet(fields: Fields, extras: Extras, handle: BinaryIO) -> None:
    """Write the table, with what its columns cannot say in the metadata of the schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(_to_columns(fields)).replace_schema_metadata({EXTRAS_KEY: extras.to_json()})
    pq.write_table(table, handle, row_group_size=2 * _WRITE_ROWS)


def write_csv(fields: Fields, extras: Extras, handle: BinaryIO) -> None:
    """Write the table; what text cannot say goes, as JSON, into a last column's first row, if there is any."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    columns = _to_columns(fields)
    plain = extras.dtype == "float64" and text_precision(fields).get("probs") is fields.get("probs")
    said = Extras(None if plain else extras.dtype, extras.class_names, extras.columns).to_json()
    if said:
        columns[EXTRAS_KEY] = np.array([said] + [""] * (len(fields["labels"]) - 1), dtype=object)
    handle.write((",".join(_quoted(name) for name in columns) + "\n").encode())
    for start in range(0, len(fields["labels"]), _WRITE_ROWS):
        part = {name: values[start : start + _WRITE_ROWS] for name, values in columns.items()}
        pacsv.write_csv(pa.table(part), handle, pacsv.WriteOptions(include_header=False))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',"\n\r') else name


def _to_columns(fields: Fields) -> Fields:
    """Take ``[N, C]`` scores apart into columns; dates become text, the split is repeated in every row."""
    kind, prefix = ("logits", "logit") if "logits" in fields else ("probs", "p")
    scores = fields[kind]
    # float16 is rare in tables and not understood by every reader; the precision is kept beside the data.
    scores = scores.astype(np.float32) if scores.dtype == np.float16 else scores
    columns: Fields = {f"{prefix}{k}": np.ascontiguousarray(scores[:, k]) for k in range(scores.shape[1])}
    columns["label"] = fields["labels"]
    if "split" in fields:
        columns["split"] = np.full(len(scores), str(fields["split"]))
    if "weights" in fields:
        columns["weight"] = fields["weights"]
    for name, values in fields.items():
        if name not in _NOT_SLICED and name != "class_names":
            columns[name] = values.astype(str) if values.dtype.kind == "M" else values
    return columns
