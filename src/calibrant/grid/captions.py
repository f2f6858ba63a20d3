"""The sentences below a table: what was averaged, what bold and marks mean, what the lines have in common."""

from __future__ import annotations

from collections.abc import Sequence

from calibrant.grid.layout import Line, Table
from calibrant.grid.paper import load_paper
from calibrant.grid.significance import LEAST_SEEDS

MARK = "†"
_WAYS = {
    "seeds": f"a paired t-test over seeds, where two rows have {LEAST_SEEDS} or more in common",
    "examples": "a paired bootstrap of one network each on the same test examples, which is about these networks alone",
}


def notes_of(table: Table, *, tested: bool, base: str) -> tuple[str, ...]:
    """Say what a reader must know of a table.

    Args:
        table: The table, its cells marked.
        tested: Whether differences were tested, where they could be.
        base: What lines were tested against.
    """
    lines = [line for line in table.lines if line.kind != "paper"]
    notes = [_averaged(lines), *_common(table, lines)]
    if any(cell.best for line in lines for cell in line.cells.values()):
        notes.append("Bold: the lowest of a column among rows of the same data, network, epochs and settings.")
    notes += _tests(lines, sections=len(table.sections), base=base) if tested else []
    if "calibrated" in table.info:
        notes.append(
            "p if calibrated: how probable an ECE as large would be for a perfectly calibrated model with these confidences; "
            "above 0.05 the two cannot be told apart (of several seeds: how many are above, and the least)."
        )
    if len(lines) < len(table.lines):
        paper = load_paper()
        notes.append(f"The paper: {paper.reference} {paper.url}")
    return tuple(notes)


def _averaged(lines: Sequence[Line]) -> str:
    if {line.runs for line in lines} == {1}:
        return "One run each."
    return "Mean ± standard deviation over runs of different seeds (n − 1); Seeds is their number."


def _common(table: Table, lines: Sequence[Line]) -> list[str]:
    notes = []
    epochs = {line.epochs for line in lines} - {None}
    presets = {line.preset for line in lines} - {None}
    if "epochs" not in table.info and len(epochs) == 1:
        notes.append(f"{epochs.pop()} epochs.")
    if "preset" not in table.info and len(presets) == 1:
        notes.append(f"Preset {presets.pop()}.")
    known = [line.settings for line in lines if line.epochs is not None and line.kind == "ours"]
    shared = [text for text in known[0] if all(text in other for other in known)] if known else []
    if shared:
        notes.append(f"Settings: {', '.join(shared)}.")
    return notes


def _tests(lines: Sequence[Line], *, sections: int, base: str) -> list[str]:
    cells = [cell for line in lines for cell in line.cells.values() if cell.p_value is not None]
    if not cells:
        lacking = f"Differences were not tested: that takes {LEAST_SEEDS} common seeds, or one run each with its predictions."
        return [lacking] if len(lines) > sections else []
    ways = {cell.over for cell in cells if cell.over is not None}
    how = ", or by ".join(_WAYS[over] for over in sorted(ways, reverse=True))
    found = f"differs from {base}" if any(cell.differs for cell in cells) else f"would mark a difference from {base}"
    return [f"{MARK} {found} with p < 0.05 by {how}; corrected after Holm over the rows of a column."]
