"""Predictions in ``.csv`` text, with a header line; commas, semicolons or tabs between the cells.

pyarrow reads it where it is installed, at about fifty times the speed of Python's own reader, which takes its place elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from calibrant.io import csv_arrow, csv_plain
from calibrant.io.arrow import has_pyarrow
from calibrant.io.content import Fields
from calibrant.io.extras import EXTRAS_KEY, Extras
from calibrant.io.header import read_header
from calibrant.io.table import from_table, further_columns, text_precision, to_table

_WRITE_ROWS = 65536


def read_csv(path: Path) -> tuple[Fields, Extras]:
    """Read the whole file."""
    header = read_header(path)
    table = (csv_arrow if has_pyarrow() else csv_plain).read_table(path, header)
    if not table or not len(next(iter(table.values()))):
        raise ValueError(f"{path}: must hold at least one row of predictions, got only the header.")
    fields = from_table({name: values for name, values in table.items() if name != EXTRAS_KEY}, path=path)
    return (fields if header.extras.dtype else text_precision(fields)), header.extras


def iter_csv(path: Path, *, batch_rows: int, columns: Sequence[str] | None) -> Iterator[tuple[Fields, Extras]]:
    """Read the file piece by piece; further columns come as text, unless the file says of which type they are."""
    header = read_header(path)
    reader = csv_arrow if has_pyarrow() else csv_plain
    kept = set(further_columns(header.names) if columns is None else columns)
    wanted = [name for name in header.names if name in kept or name not in further_columns(header.names)]
    for table in reader.iter_tables(path, header, batch_rows=batch_rows, columns=wanted):
        fields = from_table({name: values for name, values in table.items() if name != EXTRAS_KEY}, path=path)
        yield (fields if header.extras.dtype else text_precision(fields)), header.extras


def write_csv(fields: Fields, extras: Extras, handle: BinaryIO) -> None:
    """Write the table; what text cannot say goes, as JSON, into a last column's first row, if there is any."""
    table = to_table(fields)
    kind = "logits" if "logits" in fields else "probs"
    plain = extras.dtype == "float64" and text_precision({kind: fields[kind]})[kind].dtype == np.float64
    said = Extras(None if plain else extras.dtype, extras.class_names, extras.columns).to_json()
    if said:
        table[EXTRAS_KEY] = np.array([said] + [""] * (len(fields["labels"]) - 1), dtype=object)
    handle.write((",".join(_quoted(name) for name in table) + "\n").encode())
    writer = csv_arrow if has_pyarrow() else csv_plain
    total = len(fields["labels"])
    for start in range(0, total, _WRITE_ROWS):
        writer.write_rows({name: values[start : start + _WRITE_ROWS] for name, values in table.items()}, handle)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',"\n\r') else name
