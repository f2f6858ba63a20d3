"""How many test examples the rows of a comparison are of: which number is the usual one, and what is said of another."""

from __future__ import annotations

from collections.abc import Iterable

from calibrant.core.entry import Entry


def usual_size(entries: Iterable[Entry]) -> int | None:
    """Number of test examples of the first run of one data set and network; without runs the largest there is.

    Somebody's predictions, of which neither network nor length of training is known, may be those of a part of the test set,
    so they decide only where there is nothing else.

    Args:
        entries: Runs and predictions, in the order of their rows.

    Returns:
        The number; None where there are no entries.

    Example:
        >>> from calibrant import Predictions, measure
        >>> few, many = (measure(Predictions(probs=[[0.9, 0.1]] * n, labels=[0] * n)) for n in (40, 60))
        >>> usual_size([Entry("coins", "theirs", many), Entry("coins", "ce", few, epochs=1)])
        40
        >>> usual_size([Entry("coins", "mine", few), Entry("coins", "theirs", many)])
        60
    """
    given = list(entries)
    runs = [entry.scores.n for entry in given if entry.model is not None or entry.epochs is not None]
    return runs[0] if runs else max((entry.scores.n for entry in given), default=None)


def common_size(entries: Iterable[Entry]) -> int | None:
    """Number of test examples that all entries are of; None where they differ."""
    sizes = {entry.scores.n for entry in entries}
    return sizes.pop() if len(sizes) == 1 else None


def size_note(size: int | None, usual: int | None) -> str:
    """Say that a row is of another number of test examples than the rows around it; empty where it is not.

    Args:
        size: Number of examples of the row; None where its seeds differ.
        usual: That of the others; None where it is not known.

    Example:
        >>> size_note(500, 4000)
        '500 test examples, other rows 4,000; not compared with them.'
        >>> size_note(None, 4000)
        'seeds of different numbers of test examples, other rows 4,000; not compared with them.'
        >>> size_note(4000, 4000)
        ''
    """
    if usual is None or size == usual:
        return ""
    own = "seeds of different numbers of" if size is None else f"{size:,}"
    return f"{own} test examples, other rows {usual:,}; not compared with them."
