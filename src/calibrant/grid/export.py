"""A table as CSV and JSON, full precision for further work, and all four forms as files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path

from calibrant.grid.latex import to_latex
from calibrant.grid.layout import Line, Section, Table
from calibrant.grid.markdown import to_markdown
from calibrant.io.atomic import atomic_writer

CSV_COLUMNS = (
    *("table", "data", "model", "source", "method", "preset", "epochs", "settings", "metric"),
    *("mean", "std", "runs", "seeds", "values", "best", "p_value", "test_over", "examples"),
)
# How a metric is called in the CSV for the p-values of "could a calibrated model have this ECE?".
CALIBRATED = "p_if_calibrated"


def to_csv(table: Table) -> str:
    """Write a table as tidy CSV: one line for every row and metric, full precision, rates as fractions.

    ``source`` is "ours", "paper" or "difference"; ``seeds`` and ``values`` are lists separated by spaces; ``p_value`` is the
    corrected one of the difference to the first row and ``test_over`` what it sampled; ``examples`` is how many test examples
    there were. What is unknown is empty.

    Example:
        >>> from calibrant.grid.layout import Cell, Column, Line, Section, Table
        >>> line = Line("CE", "ce", {"ece": Cell(0.0418, values=(0.0418,))}, runs=1, seeds=(0,))
        >>> table = Table("t", "One row", (Column("ece", "ECE", "ece"),), (Section("CIFAR-10", (line,), "cifar10"),))
        >>> to_csv(table).splitlines()[1]
        't,cifar10,,ours,ce,,,,ece,0.0418,,1,0,0.0418,false,,,'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for section in table.sections:
        for line in section.lines:
            writer.writerows([_written(found[name]) for name in CSV_COLUMNS] for found in _tidy(table, section, line))
    return text.getvalue()


def to_json(table: Table) -> str:
    """Write a table as strict JSON: its columns, sections, lines and cells as they are, rates as fractions.

    Example:
        >>> from calibrant.grid.layout import Cell, Column, Line, Section, Table
        >>> line = Line("CE", "ce", {"ece": Cell(0.0418)}, runs=1)
        >>> table = Table("t", "One row", (Column("ece", "ECE", "ece"),), (Section("CIFAR-10", (line,)),))
        >>> json.loads(to_json(table))["sections"][0]["lines"][0]["cells"]["ece"]["mean"]
        0.0418
    """
    data = {
        "name": table.name,
        "title": table.title,
        "notes": list(table.notes),
        "columns": [vars(column) for column in table.columns],
        "sections": [
            {
                "title": section.title,
                "data": section.data,
                "model": section.model,
                "lines": [_plain_line(line) for line in section.lines],
            }
            for section in table.sections
        ],
    }
    return json.dumps(_finite(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_table(table: Table, folder: str | Path) -> list[Path]:
    """Write a table as ``NAME.md``, ``NAME.tex``, ``NAME.csv`` and ``NAME.json`` into a folder, which is made if need be.

    Returns:
        The files. Raises ``OSError`` with one sentence where that cannot be.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    forms = {"md": to_markdown, "tex": to_latex, "csv": to_csv, "json": to_json}
    files = {ending: place / f"{table.name}.{ending}" for ending in forms}
    # JSON comes first: by it a folder is known as that of a comparison, also where writing was cut off.
    for ending, form in reversed(forms.items()):
        with atomic_writer(files[ending]) as handle:
            # A name read from a file may hold half a surrogate pair, which UTF-8 has no bytes for.
            handle.write(form(table).encode(errors="replace"))
    return list(files.values())


def _tidy(table: Table, section: Section, line: Line) -> Iterator[dict[str, object]]:
    common = {
        "table": table.name,
        "model": line.model,
        "source": line.kind,
        "method": line.method,
        "preset": line.preset,
        "epochs": line.epochs,
        "settings": line.settings,
        "runs": line.runs,
        "seeds": line.seeds,
        "examples": line.examples,
    }
    empty: dict[str, object] = dict.fromkeys(CSV_COLUMNS)
    for column in table.columns:
        cell = line.cells.get(column.key)
        if cell is None:
            continue
        data = column.key.rpartition(":")[0] if column.group else section.data
        own = {"data": data, "metric": column.metric, "mean": cell.mean, "std": cell.std, "values": cell.values}
        yield empty | common | own | {"best": cell.best, "p_value": cell.p_value, "test_over": cell.over}
    if "calibrated" in table.info and line.calibrated_p:
        yield empty | common | {"data": section.data, "metric": CALIBRATED, "values": line.calibrated_p}


def _plain_line(line: Line) -> dict[str, object]:
    found = {key: value for key, value in vars(line).items() if key != "cells"}
    return found | {"cells": {key: vars(cell) for key, cell in line.cells.items()}}


def _written(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(_written(item) for item in value)
    return repr(value) if isinstance(value, float) else str(value)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
