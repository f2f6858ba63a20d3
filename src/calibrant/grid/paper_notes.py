"""What is known to be wrong or missing in the paper's numbers that a table shows. The notes themselves are data, in `paper`."""

from __future__ import annotations

from calibrant.core.entry import data_name
from calibrant.grid.layout import Table
from calibrant.grid.paper import PaperNote, load_paper, source_of

_METRICS = {"mce": "MCE", "ece": "ECE", "nll": "NLL", "ace": "ACE", "classwise_ece": "classwise ECE"}


def notes_about(table: Table) -> list[PaperNote]:
    """Return the notes that concern a number of the paper in a table, in the paper's order."""
    shown = _shown(table)
    return [note for note in load_paper().notes if any(_concerns(note, *number) for number in shown)]


def say_note(note: PaperNote) -> str:
    """A note with what it is about in front.

    Example:
        >>> say_note(next(note for note in load_paper().notes if note.data == "cifar100"))
        "Table 1, CIFAR-100, FLγ-SECE, FLSD, NLL: Bold is on FLγ-SECE's 0.877; the lowest is FLSD with 0.876."
    """
    labels = load_paper().labels
    about = [f"Table {note.table.removeprefix('table')}", *([data_name(note.data)] if note.data else [])]
    about += [labels[method] for method in note.methods]
    about += [_METRICS.get(note.metric, note.metric)] if note.metric else []
    return f"{', '.join(about)}: {note.text}"


def _shown(table: Table) -> set[tuple[str, str, str, str]]:
    """Where every number of the paper in a table comes from: its table, data set, method and metric."""
    found = set()
    for section in table.sections:
        for line in section.lines:
            for column in table.columns if line.kind == "paper" else ():
                # Where data sets are columns, a key begins with its own.
                data = column.key.rpartition(":")[0] or section.data or ""
                source = table.name if table.name in load_paper().tables else source_of(data, line.method, model=line.model)
                if column.key in line.cells and source is not None:
                    found.add((source, data, line.method, column.metric))
    return found


def _concerns(note: PaperNote, table: str, data: str, method: str, metric: str) -> bool:
    return (
        note.table == table
        and note.data in (None, data)
        and (not note.methods or method in note.methods)
        and note.metric in (None, metric)
    )
