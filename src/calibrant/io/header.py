"""The first lines of ``.csv`` text: names of the columns, what separates them, and how each is to be read."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from calibrant.io.extras import EXTRAS_KEY, Extras
from calibrant.io.table import LABELS, is_number_column, is_score_column, score_columns

# Cells that mean "missing" in a column of numbers: those that pyarrow takes for it.
MISSING = {"", "NA", "N/A", "#N/A", "NULL", "null", "NaN", "nan", "-NaN", "-nan", "n/a", "#NA"}


@dataclass(frozen=True)
class Header:
    """The first lines of a file.

    Attributes:
        names: Names of the columns, without surrounding blanks.
        delimiter: What separates the cells.
        extras: What the first row says about the whole file.
        named_labels: Whether the first label that tells is a name, so that all are read as text.
    """

    names: list[str]
    delimiter: str
    extras: Extras
    named_labels: bool = False


def read_header(path: Path) -> Header:
    """Read the names of the columns and, where `write_csv` put it, what the file says about itself."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            line = handle.readline()
            delimiter = max(",;\t", key=line.count)
            names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
            rows = csv.reader(handle, delimiter=delimiter)
            first = next(rows, [])
            named = _has_named_labels(names, chain([first], rows))
    except UnicodeDecodeError:
        raise ValueError(
            f"{path}: must be UTF-8 text, got other bytes. Save it as UTF-8, or check the file's ending."
        ) from None
    except csv.Error as error:
        raise ValueError(f"{path}: must be a table of text, got a line that is none ({error}).") from None
    if not score_columns(names, path=path)[1] and names and all(_is_number(name) for name in names):
        raise ValueError(f"{path}: the first line must name the columns (p0, p1, …, label), got {line.strip()[:60]!r}.")
    said = first[names.index(EXTRAS_KEY)] if EXTRAS_KEY in names and len(first) == len(names) else ""
    return Header(names, delimiter, Extras.from_json(said, path=path), named)


def _has_named_labels(names: Sequence[str], rows: Iterable[Sequence[str]]) -> bool:
    """Whether labels are names: no label, or a number below zero for examples to leave out, leaves that to the next row."""
    at = next((place for place, name in enumerate(names) if name in LABELS), None)
    if at is None:
        return False
    for cells in rows:
        label = cells[at].strip().replace(",", ".") if at < len(cells) else ""
        if label not in MISSING and not (_is_number(label) and float(label) < 0):
            return not _is_number(label)
    return False


def column_kind(name: str, header: Header, *, infer: bool) -> str:
    """How the cells of a column are read: "float32", "float64", "text", or "infer"."""
    if name in LABELS and header.named_labels:
        return "text"
    if is_number_column(name):
        narrow = header.extras.dtype in ("float16", "bfloat16", "float32")
        return "float32" if is_score_column(name) and narrow else "float64"
    return "infer" if infer and name not in header.extras.columns and name not in ("split", EXTRAS_KEY) else "text"


def not_a_number(path: Path, name: str, value: str, row: int | None) -> ValueError:
    """The error for a cell that should hold a number."""
    at = "" if row is None else f" in row {row}"
    comma = "," in value and _is_number(value.replace(",", "."))
    if name in LABELS and not comma:
        return ValueError(
            f"{path}: column `{name}` must hold either class indices or names, got {value!r}{at} after an index. "
            "Write one kind in every row, and -100 for examples to leave out."
        )
    remedy = "Write decimals with a point" if comma else "Repair or remove that row"
    return ValueError(f"{path}: column `{name}` must hold numbers, got {value!r}{at}. {remedy}.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
