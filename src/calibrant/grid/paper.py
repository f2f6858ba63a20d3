"""The numbers of the paper's tables, as data, with what is known to be wrong with them. Our own results are not here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from calibrant.core.registry import lookup
from calibrant.data import data_name
from calibrant.metrics import METRICS

NOT_IN_PAPER = "The paper has no numbers for these data, networks and methods."


class PaperValue(NamedTuple):
    """A printed number, in the unit of `calibrant.measure`: a mean over runs where it has a standard deviation."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class PaperRow:
    """One row of a table: our name of the method and what the paper calls it, our name of the network, metric → number."""

    method: str
    label: str
    model: str | None
    values: Mapping[str, PaperValue]


class PaperNote(NamedTuple):
    """Something known about printed numbers; None, or no methods, means all."""

    text: str
    table: str
    data: str | None = None
    methods: tuple[str, ...] = ()
    metric: str | None = None


@dataclass(frozen=True)
class PaperTable:
    """One table: data set → its rows in the printed order, and what these have in common."""

    name: str
    title: str
    rows: Mapping[str, tuple[PaperRow, ...]]
    model: str | None = None
    epochs: int | None = None
    seeds: int | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        """Every method of the table once, in the printed order."""
        return tuple(dict.fromkeys(row.method for rows in self.rows.values() for row in rows))

    def row(self, data: str, method: str) -> PaperRow | None:
        """The first row of a method on a data set, or None."""
        return next((row for row in self.rows.get(data, ()) if row.method == method), None)


@dataclass(frozen=True)
class Paper:
    """All tables of the paper: name → table, what it calls our methods, its claims in text, and notes on its numbers."""

    reference: str
    url: str
    labels: Mapping[str, str]
    tables: Mapping[str, PaperTable]
    claims: tuple[Mapping[str, Any], ...]
    notes: tuple[PaperNote, ...]


@cache
def load_paper() -> Paper:
    """Read the paper's numbers; the file is part of the package.

    Example:
        >>> table = load_paper().tables["table1"]
        >>> table.row("cifar10", "flgamma-sece").values["ece"]
        PaperValue(mean=0.02138, std=0.00819)

    Reference:
        Wang and Golebiowski, TMLR 2024, tables 1 to 5.
    """
    found = json.loads(files("calibrant.grid").joinpath("paper.json").read_text(encoding="utf-8"))
    tables = {}
    for name, table in found["tables"].items():
        model, facts = table.get("model"), {key: table.get(key) for key in ("epochs", "seeds")}
        rows = {data: tuple(_rows(rows, found["labels"], model)) for data, rows in table["values"].items()}
        tables[name] = PaperTable(name, table["title"], rows, model, **facts)
    return Paper(
        reference=f"{found['authors']}: {found['title']}. {found['venue']}.",
        url=found["url"],
        labels=found["labels"],
        tables=tables,
        claims=tuple(found["claims"]),
        notes=tuple(PaperNote(**note | {"methods": tuple(note.get("methods", ()))}) for note in found["notes"]),
    )


def paper_table(name: str) -> PaperTable:
    """Return a table by its name; an unknown one is answered with the nearest."""
    return lookup(load_paper().tables, name, kind="table of the paper")


def paper_row(data: str, method: str, *, model: str | None) -> PaperRow | None:
    """Return what the paper found for a method on a data set with a network, or None if it has nothing."""
    source = _source_of(data, method, model)
    return None if source is None else paper_table(source).row(data, method)


def notes_about(shown: Iterable[tuple[str, str, str | None, str]], *, table: str) -> list[str]:
    """Return the notes on some of the paper's numbers, each with what it is about in front, in the paper's order.

    Args:
        shown: Data set, method, network and metric of every number.
        table: Name of the table they stand in; if it is none of the paper's, they are found by data, network and method.
    """
    found: dict[PaperNote, None] = {}
    for data, method, model, metric in shown:
        source = table if table in load_paper().tables else _source_of(data, method, model)
        for note in load_paper().notes:
            right = note.table == source and note.data in (None, data) and note.metric in (None, metric)
            if right and method in (note.methods or (method,)):
                found[note] = None
    return [say_note(note) for note in load_paper().notes if note in found]


def say_note(note: PaperNote) -> str:
    """A note with what it is about in front."""
    about = [f"Table {note.table.removeprefix('table')}", *([data_name(note.data)] if note.data else [])]
    about += [load_paper().labels[method] for method in note.methods]
    if note.metric:
        first, *rest = (METRICS[note.metric].short or METRICS[note.metric].label).split()
        about.append(" ".join([first if first.isupper() else first.lower(), *rest]))
    return f"{', '.join(about)}: {note.text}"


def _source_of(data: str, method: str, model: str | None) -> str | None:
    """Name of the table with the paper's numbers for a run, or None."""
    tables = [load_paper().tables[name] for name in ("table1", "table2", "table4")]
    return next((table.name for table in tables if table.model == model and table.row(data, method) is not None), None)


def _rows(found: Mapping[str, Any] | list[Any], labels: Mapping[str, str], model: str | None) -> Iterator[PaperRow]:
    # The table of other papers' networks has several rows of a method, and so is a list.
    listed = [{"method": m, "model": model, **v} for m, v in found.items()] if isinstance(found, Mapping) else found
    for row in listed:
        values = {key: _value(key, value) for key, value in row.items() if key not in ("method", "model")}
        yield PaperRow(row["method"], labels[row["method"]], row["model"], values)


def _value(metric: str, printed: float | list[float]) -> PaperValue:
    numbers = printed if isinstance(printed, list) else [printed]
    # Dividing by 100 would leave 0.048119999...; one more digit than is printed is enough.
    return PaperValue(*(round(number / 100, 7) if METRICS[metric].unit == "%" else number for number in numbers))
