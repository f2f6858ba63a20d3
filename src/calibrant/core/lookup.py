"""Turning a name into a table entry, with an error that lists the names and suggests the nearest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


def lookup(table: Mapping[str, T], name: str, *, kind: str, also: Iterable[str] = ()) -> T:
    """Return ``table[name]``.

    Args:
        table: Name → entry.
        name: The name looked for.
        kind: What the entries are ("metric"), for the message.
        also: Names that are not in the table but may be meant.

    Returns:
        The entry. Raises ``ValueError`` with all names, and the nearest one, if there is none.

    Example:
        >>> lookup({"ece": 1, "mce": 2}, "ecee", kind="metric")
        Traceback (most recent call last):
        ...
        ValueError: unknown metric 'ecee'. Did you mean 'ece'? There are: ece, mce.
    """
    if name in table:
        return table[name]
    # Capitals aside: figures write CE for ce.
    folded = {known.casefold(): known for known in (*table, *also)}
    near = difflib.get_close_matches(str(name).casefold(), list(folded), n=1, cutoff=0.5)
    hint = f" Did you mean {folded[near[0]]!r}?" if near else ""
    raise ValueError(f"unknown {kind} {name!r}.{hint} There are: {', '.join(table)}.")
