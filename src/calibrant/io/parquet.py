"""Predictions in ``.parquet`` (needs the extra ``parquet``): read whole, or row by row in constant memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from calibrant.core.records import Column
from calibrant.io.arrow import require_pyarrow, to_numpy
from calibrant.io.content import Fields
from calibrant.io.extras import EXTRAS_KEY, Extras
from calibrant.io.table import from_table, further_columns, score_columns, to_table

# With a read buffer, pages are fetched as they are needed; without one, pyarrow reads a row group's whole column at once,
# and some writers put all rows in one group.
_BUFFER_BYTES = 1 << 16
_ROWS_PER_GROUP = 1 << 17


def open_parquet(path: Path) -> Any:
    """Open the file and check the names of its columns."""
    require_pyarrow(path)
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    score_columns(file.schema_arrow.names, path=path)
    if file.metadata.num_rows == 0:
        file.close()
        raise ValueError(f"{path}: must hold at least one row of predictions, got none.")
    return file


def read_parquet(path: Path) -> tuple[Fields, Extras]:
    """Read the whole file."""
    with contextlib.closing(open_parquet(path)) as file:
        return _to_fields(file.read(), path), _extras(file, path)


def iter_parquet(path: Path, *, batch_rows: int, columns: Sequence[str] | None) -> Iterator[tuple[Fields, Extras]]:
    """Read the file piece by piece, only the columns that are asked for."""
    with contextlib.closing(open_parquet(path)) as file:
        import pyarrow as pa

        names = file.schema_arrow.names
        unwanted = set() if columns is None else set(further_columns(names)) - set(columns)
        extras = _extras(file, path)
        batches = file.iter_batches(batch_rows, columns=[name for name in names if name not in unwanted])
        for batch in batches:
            yield _to_fields(pa.Table.from_batches([batch]), path), extras


def write_parquet(fields: Fields, extras: Extras, handle: BinaryIO) -> None:
    """Write the table, with what its columns cannot say in the metadata of the schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(to_table(fields))
    metadata = {EXTRAS_KEY: extras.to_json()}
    pq.write_table(table.replace_schema_metadata(metadata), handle, row_group_size=_ROWS_PER_GROUP)


def _to_fields(table: Any, path: Path) -> Fields:
    columns: dict[str, Column] = {}
    for name in table.column_names:
        values = to_numpy(table.column(name), name, path=path)
        if values is not None:
            columns[name] = values
    return from_table(columns, path=path)


def _extras(file: Any, path: Path) -> Extras:
    metadata = file.schema_arrow.metadata or {}
    return Extras.from_json(metadata.get(EXTRAS_KEY.encode(), b"").decode(errors="replace"), path=path)
