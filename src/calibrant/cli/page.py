"""What ``calibrant measure`` prints for people: a verdict, then tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from calibrant.cli.tables import bins_table, classes_table, comparison_table, paired_table, parts_table, scores_table
from calibrant.core.records import Predictions, Split
from calibrant.core.scores import Paired, Scores
from calibrant.metrics.verdict import count_examples, verdict, worst_slice

_WORST_CLASSES = 5
# Lines of prose longer than this are hard to read, however wide the terminal is.
_PROSE_WIDTH = 100


@dataclass(frozen=True)
class Measured:
    """The scores of a file, its split, and its predictions or a random part of them if they were asked for."""

    scores: Scores
    split: Split | None
    predictions: Predictions | None = None
    is_sample: bool = False


def show_scores(measured: Measured, *, all_classes: bool, console: Console | None = None) -> None:
    """Print everything about one file."""
    console = console or Console(highlight=False)
    scores = measured.scores
    split = f" · {measured.split.value} split" if measured.split else ""
    name = Path(scores.file).name if scores.file else "predictions"
    _heading(console, name, f"{count_examples(scores.n)} · {scores.num_classes} classes{split}")
    show_prose(console, verdict(scores), style="bold")
    console.print()
    console.print(scores_table(scores, width=console.width))
    _heading(console, "By confidence", "what each bin adds to the ECE")
    console.print(bins_table(scores.bins, width=console.width))
    _show_classes(console, scores, all_classes)
    _show_slices(console, scores)
    console.print()


def show_comparison(
    measured: Sequence[Measured],
    tests: Sequence[Mapping[str, Paired] | None],
    *,
    all_classes: bool,
    console: Console | None = None,
) -> None:
    """Print several files side by side, and the test of each against the first."""
    console = console or Console(highlight=False)
    names = short_names([Path(entry.scores.file or "predictions") for entry in measured])
    _heading(console, f"{len(names)} files", "best values in bold")
    console.print(
        comparison_table({name: entry.scores for name, entry in zip(names, measured, strict=True)}, width=console.width)
    )
    console.print()
    for name, entry in zip(names, measured, strict=True):
        show_prose(console, f"{name}: {verdict(entry.scores)}")
    for name, entry, test in zip(names[1:], measured[1:], tests, strict=True):
        if test is None:
            continue
        on = f"on a random {len(entry.predictions):,} of the same examples" if entry.predictions and entry.is_sample else ""
        _heading(console, f"{name} minus {names[0]}", on or "on the same examples, paired bootstrap")
        console.print(paired_table(test, width=console.width))
    for name, entry in zip(names, measured, strict=True):
        if all_classes or entry.scores.slices:
            _heading(console, name, "")
        _show_classes(console, entry.scores, all_classes) if all_classes else None
        _show_slices(console, entry.scores)
    console.print()


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return names that tell the files apart: their stems, with as much of their folders as that needs."""
    if len({path.stem for path in paths}) == len(paths):
        return [path.stem for path in paths]
    if len({path.name for path in paths}) == len(paths):
        return [path.name for path in paths]
    absolute = [str(path.resolve()) for path in paths]
    common = os.path.commonpath(absolute) if len(set(absolute)) > 1 else str(paths[0].parent.resolve())
    names = [os.path.relpath(path, common) for path in absolute]
    return [f"{name} ({k})" if names.count(name) > 1 else name for k, name in enumerate(names, 1)]


def _show_classes(console: Console, scores: Scores, all_classes: bool) -> None:
    shown = scores.classes if all_classes else scores.classes[:_WORST_CLASSES]
    if not shown or (scores.num_classes == 2 and not all_classes):
        return
    _heading(console, "Classes" if len(shown) == scores.num_classes else "Worst classes", "by the ECE of their own probability")
    console.print(classes_table(shown, width=console.width, total=scores.weight))


def _show_slices(console: Console, scores: Scores) -> None:
    if scores.slices:
        _heading(console, "Groups", worst_slice(scores))
        console.print(parts_table("Group", scores.slices, width=console.width, total=scores.weight))


def _heading(console: Console, title: str, rest: str) -> None:
    console.print()
    console.print(Text.assemble((title, "bold cyan"), ("  " + rest if rest else "", "dim")), soft_wrap=False)


def show_prose(console: Console, text: str, *, style: str = "") -> None:
    """Print a paragraph in lines of a length that is easy to read."""
    console.print(Text(text, style=style), width=min(console.width, _PROSE_WIDTH))
