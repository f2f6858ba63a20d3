"""Reading and writing the rows of ``.csv`` text with pyarrow. The header and the choice of reader are in `delimited`."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from calibrant.core.records import Column
from calibrant.io.arrow import to_numpy
from calibrant.io.header import Header, column_kind, not_a_number

# Bytes that pyarrow parses at a time while streaming; a batch of rows is put together from such blocks.
_BLOCK_BYTES = 1 << 22


def read_table(path: Path, header: Header) -> dict[str, Column]:
    """Read all columns of the file."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    read, convert = _options(header, infer=True, columns=None)
    try:
        try:
            table = pacsv.read_csv(path, read, _parse_options(header, newlines=False), convert)
        except pa.ArrowInvalid as error:
            if "conversion error" in str(error):
                raise
            # A quoted cell that spans lines may have met the border of a block; allowing for it costs speed, so second.
            table = pacsv.read_csv(path, read, _parse_options(header, newlines=True), convert)
    except pa.ArrowInvalid as error:
        raise _explain(_first_error(error, path, header, convert), path, header) from None
    return _to_columns(table, path)


def iter_tables(path: Path, header: Header, *, batch_rows: int, columns: Sequence[str]) -> Iterator[dict[str, Column]]:
    """Read the file in pieces of ``batch_rows`` rows, in constant memory."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    read, convert = _options(header, infer=False, columns=columns)
    waiting: list[Any] = []
    rows = 0
    try:
        with pacsv.open_csv(path, read, _parse_options(header, newlines=True), convert) as reader:
            for batch in reader:
                waiting.append(batch)
                rows += batch.num_rows
                if rows >= batch_rows:
                    table = pa.Table.from_batches(waiting)
                    whole = rows - rows % batch_rows
                    for start in range(0, whole, batch_rows):
                        yield _to_columns(table.slice(start, batch_rows), path)
                    waiting = table.slice(whole).to_batches()
                    rows -= whole
    except pa.ArrowInvalid as error:
        raise _explain(_first_error(error, path, header, convert), path, header) from None
    if rows:
        yield _to_columns(pa.Table.from_batches(waiting), path)


def write_rows(table: dict[str, Column], handle: BinaryIO) -> None:
    """Append rows without a header; floating point in the shortest text that reads back to the same number."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    pacsv.write_csv(pa.table(table), handle, pacsv.WriteOptions(include_header=False))


def _options(header: Header, *, infer: bool, columns: Sequence[str] | None) -> tuple[Any, Any]:
    import pyarrow as pa
    import pyarrow.csv as pacsv

    types = {"float32": pa.float32(), "float64": pa.float64(), "text": pa.string()}
    kinds = {name: column_kind(name, header, infer=infer) for name in header.names}
    convert = pacsv.ConvertOptions(
        column_types={name: types[kind] for name, kind in kinds.items() if kind != "infer"},
        include_columns=list(columns) if columns is not None else [],
        strings_can_be_null=False,
        # Dates stay text, whichever reader is used.
        timestamp_parsers=["never"],
    )
    return pacsv.ReadOptions(column_names=header.names, skip_rows=1, block_size=_BLOCK_BYTES), convert


def _parse_options(header: Header, *, newlines: bool) -> Any:
    import pyarrow.csv as pacsv

    return pacsv.ParseOptions(delimiter=header.delimiter, newlines_in_values=newlines)


def _to_columns(table: Any, path: Path) -> dict[str, Column]:
    import pyarrow.types as kinds

    columns: dict[str, Column] = {}
    for name in table.column_names:
        column = table.column(name)
        if kinds.is_temporal(column.type):
            column = column.cast("string")
        values = to_numpy(column, name, path=path)
        if values is not None:
            columns[name] = values
    return columns


def _first_error(error: Exception, path: Path, header: Header, convert: Any) -> Exception:
    """The error of the leftmost bad column: columns are read at the same time, so which one is met first is chance."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    if "conversion error" not in str(error):
        return error
    read = pacsv.ReadOptions(column_names=header.names, skip_rows=1, block_size=_BLOCK_BYTES, use_threads=False)
    try:
        with pacsv.open_csv(path, read, _parse_options(header, newlines=True), convert) as reader:
            for _ in reader:
                pass
    except pa.ArrowInvalid as first:
        error = first
    return error


def _explain(error: Exception, path: Path, header: Header) -> ValueError:
    message = str(error).splitlines()[0]
    conversion = re.search(r"In CSV column #(\d+):.*conversion error to \w+: invalid value '(.*)'", message)
    if conversion:
        name = header.names[int(conversion[1])]
        return not_a_number(path, name, conversion[2], _row_of(path, header, int(conversion[1]), conversion[2]))
    ragged = re.search(r"Expected (\d+) columns, got (\d+)", message)
    if ragged:
        return ValueError(
            f"{path}: every row must have the {ragged[1]} cells of the header, got one with {ragged[2]}. Repair that row."
        )
    if "Could not skip" in message or "Empty CSV" in message:
        return ValueError(f"{path}: must hold at least one row of predictions, got only the header.")
    if "UTF8" in message or "UTF-8" in message:
        return ValueError(f"{path}: must be UTF-8 text, got other bytes. Save it as UTF-8, or check the file's ending.")
    return ValueError(
        f"{path}: must be a table of text with a header, and could not be read as one ({message[:120].rstrip('.')})."
    )


def _row_of(path: Path, header: Header, column: int, value: str) -> int | None:
    with path.open(encoding="utf-8-sig", newline="") as handle:
        rows = csv.reader(handle, delimiter=header.delimiter)
        next(rows)
        for row, cells in enumerate(cells for cells in rows if cells):
            if len(cells) > column and cells[column].strip() == value.strip():
                return row
    return None
