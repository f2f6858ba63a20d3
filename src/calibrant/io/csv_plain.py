"""Reading and writing the rows of ``.csv`` text with Python alone. The header and the choice of reader are in `delimited`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from calibrant.core.records import Column
from calibrant.io.header import MISSING, Header, column_kind, not_a_number

_READ_ROWS = 65536


def read_table(path: Path, header: Header) -> dict[str, Column]:
    """Read all columns; one of unknown type gets the first that fits it: true or false, whole numbers, numbers, text."""
    parts = list(iter_tables(path, header, batch_rows=_READ_ROWS, columns=None))
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
    return {
        name: _inferred(values) if column_kind(name, header, infer=True) == "infer" else values
        for name, values in table.items()
    }


def iter_tables(path: Path, header: Header, *, batch_rows: int, columns: Sequence[str] | None) -> Iterator[dict[str, Column]]:
    """Read the file in pieces of ``batch_rows`` rows; columns that may be of any type come as text."""
    wanted = [(k, name) for k, name in enumerate(header.names) if columns is None or name in columns]
    kinds = {name: column_kind(name, header, infer=False) for _, name in wanted}
    first = 0
    with path.open(encoding="utf-8-sig", newline="") as handle:
        lines = csv.reader(handle, delimiter=header.delimiter)
        next(lines)
        rows = (cells for cells in lines if cells)
        while batch := list(islice(rows, batch_rows)):
            for cells in batch:
                if len(cells) != len(header.names):
                    raise ValueError(
                        f"{path}: every row must have the {len(header.names)} cells of the header, got one with {len(cells)}. "
                        "Repair that row."
                    )
            turned = list(zip(*batch, strict=True))
            yield {
                name: np.array(turned[k]) if kinds[name] == "text" else _numbers(turned[k], name, kinds[name], path, first)
                for k, name in wanted
            }
            first += len(batch)


def write_rows(table: dict[str, Column], handle: BinaryIO) -> None:
    """Append rows without a header; floating point in the shortest text that reads back to the same number."""
    text = io.TextIOWrapper(handle, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(zip(*(values.astype(str).tolist() for values in table.values()), strict=True))
    text.detach()


def _numbers(cells: Sequence[str], name: str, kind: str, path: Path, first: int) -> Column:
    try:
        return np.array(cells).astype(kind)
    except ValueError:
        values = np.empty(len(cells), dtype=kind)
        for row, cell in enumerate(cells):
            try:
                values[row] = np.nan if cell.strip() in MISSING else float(cell)
            except ValueError:
                raise not_a_number(path, name, cell, first + row) from None
        return values


def _inferred(values: Column) -> Column:
    lowered = np.char.lower(np.char.strip(values.astype(str)))
    if set(np.unique(lowered).tolist()) <= {"true", "false"}:
        return np.asarray(lowered == "true")
    for dtype in (np.int64, np.float64):
        try:
            known = np.where(np.isin(values, list(MISSING)), "nan", values) if dtype is np.float64 else values
            return known.astype(dtype)
        except (ValueError, OverflowError):
            continue
    return values
