"""The sentences below a table: what was averaged, what bold and marks mean, what the lines have in common."""

from __future__ import annotations

from collections.abc import Sequence

from calibrant.core.effect import join_words
from calibrant.core.sizes import size_note
from calibrant.grid.choices import choice_notes
from calibrant.grid.doubts import doubt_notes
from calibrant.grid.layout import Line, Table
from calibrant.grid.paper import load_paper
from calibrant.grid.paper_notes import notes_about, say_note
from calibrant.metrics.differences import LEAST_SEEDS

MARK = "†"
NOT_IN_PAPER = "The paper has no numbers for these data, networks and methods."
# How bins are cut → metric → what it is called.
_BINNED = {"width": {"ece": "ECE", "mce": "MCE", "classwise_ece": "classwise ECE"}, "mass": {"ace": "ACE"}}
_WAYS = {
    "seeds": f"a paired t-test over seeds, where two rows have {LEAST_SEEDS} or more in common",
    "examples": "a paired bootstrap of one network each on the same test examples, which is about these networks alone",
}


def notes_of(table: Table, *, tested: bool, paper: bool = False, beside: Sequence[Line] = ()) -> tuple[str, ...]:
    """Say what a reader must know of a table.

    Args:
        table: The table, its cells marked.
        tested: Whether differences were tested, where they could be.
        paper: Whether the paper's numbers were asked for.
        beside: Lines that are not shown, which the others are held against.
    """
    lines = [line for line in table.lines if line.kind != "paper"]
    notes = [_averaged(lines), *_binned(table, lines), *_common(table, lines), *choice_notes([*beside, *lines])]
    notes += [*_bold(table), *size_notes(table), *doubt_notes(table)]
    notes += _tests(lines, sections=len(table.sections), base=table.base) if tested else []
    if "calibrated" in table.info:
        notes.append(
            "p if calibrated: how probable an ECE as large would be for a perfectly calibrated model with these confidences; "
            "above 0.05 the two cannot be told apart (of several seeds: how many are above, and the least)."
        )
    if len(lines) < len(table.lines):
        source = load_paper()
        notes += paper_notes(table)
        notes.append(f"The paper: {source.reference} {source.url}")
    elif paper:
        notes.append(NOT_IN_PAPER)
    return tuple(notes)


def paper_notes(table: Table) -> list[str]:
    """Say what is known about the numbers of the paper that a table shows."""
    return [f"The paper's {say_note(note)}" for note in notes_about(table)]


def row_notes(table: Table) -> list[str]:
    """Say what is special about some rows: how they average and select, of how many examples they are, what is doubtful."""
    return [*choice_notes([line for line in table.lines if line.kind != "paper"]), *size_notes(table), *doubt_notes(table)]


def size_notes(table: Table) -> list[str]:
    """Say of which lines the numbers are of another number of test examples than those of the runs around them."""
    return [
        f"{line.label} on {section.data}: {note}"
        for section in table.sections
        for line in section.lines
        if line.kind == "ours" and (note := size_note(line.examples, section.examples))
    ]


def several_best(table: Table) -> bool:
    """Whether a column of a section has several best values, or one that is not the lowest, as not all rows are comparable."""
    if any(len(values) > 1 for values in _best(table)):
        return True
    for section in table.sections:
        for column in table.columns:
            cells = [line.cells[column.key] for line in section.lines if line.kind == "ours" and column.key in line.cells]
            best = [cell.mean for cell in cells if cell.best]
            if best and any(cell.mean < min(best) for cell in cells):
                return True
    return False


def _best(table: Table) -> list[set[str]]:
    return [
        {
            line.cells[column.key].shown(column)[0]
            for line in section.lines
            if column.key in line.cells and line.cells[column.key].best
        }
        for section in table.sections
        for column in table.columns
    ]


def _bold(table: Table) -> list[str]:
    if not any(_best(table)):
        return []
    notes = [
        "Bold: the lowest of a column among rows of the same data, network, epochs and given settings (--set), "
        "a method's own aside."
    ]
    if several_best(table):
        notes.append(
            "Several values of a column are bold, or not its lowest, where only some rows may be compared with each other."
        )
    if any(line.is_foreign for line in table.lines):
        notes.append("Predictions from files, of which only the data are known, compete with all rows beside them.")
    return notes


def _averaged(lines: Sequence[Line]) -> str:
    if {line.runs for line in lines} == {1}:
        return "One run each."
    return "Mean ± standard deviation over runs of different seeds (n − 1); Seeds is their number."


def _binned(table: Table, lines: Sequence[Line]) -> list[str]:
    """Say over which bins the binned columns are, where that is known and one thing."""
    numbers = {line.bins for line in lines} - {None}
    if len(numbers) != 1:
        return []
    shown, bins = {column.metric for column in table.columns}, numbers.pop()
    said: list[str] = []
    for width, words in _BINNED.items():
        names = [name for metric, name in words.items() if metric in shown]
        if names:
            said.append(f"{join_words(names)} over {f'{bins} bins' if not said else bins} of equal {width}")
    return [f"{', '.join(said)}."] if said else []


def _common(table: Table, lines: Sequence[Line]) -> list[str]:
    notes = []
    epochs = {line.epochs for line in lines} - {None}
    presets = {line.preset for line in lines} - {None}
    if "epochs" not in table.info and len(epochs) == 1:
        notes.append(f"{epochs.pop()} epochs.")
    if "preset" not in table.info and len(presets) == 1:
        notes.append(f"Preset {presets.pop()}.")
    shared = _shared(lines)
    if shared:
        notes.append(f"Settings: {', '.join(shared)}.")
    for section in table.sections if len(table.sections) > 1 else ():
        own = [text for text in _shared([line for line in section.lines if line.kind != "paper"]) if text not in shared]
        if own:
            notes.append(f"Settings on {section.title}: {', '.join(own)}.")
    return notes


def _shared(lines: Sequence[Line]) -> list[str]:
    """Settings of all lines of which something is known; labels do not say them."""
    ours = [line for line in lines if line.kind == "ours"]
    known = [line.settings for line in ours or lines if line.epochs is not None]
    return [text for text in known[0] if all(text in other for other in known)] if known else []


def _tests(lines: Sequence[Line], *, sections: int, base: str) -> list[str]:
    cells = [cell for line in lines for cell in line.cells.values() if cell.p_value is not None]
    if not cells:
        lacking = f"Differences were not tested: that takes {LEAST_SEEDS} common seeds, or one run each with its predictions."
        return [lacking] if len(lines) > sections else []
    ways = {cell.over for cell in cells if cell.over is not None}
    how = ", or by ".join(_WAYS[over] for over in sorted(ways, reverse=True))
    found = f"differs from {base}" if any(cell.differs for cell in cells) else f"would mark a difference from {base}"
    return [f"{MARK} {found} with p < 0.05 by {how}; corrected after Holm over the rows of a column."]
