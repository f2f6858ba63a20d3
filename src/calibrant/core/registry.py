"""Tables of named things (losses, metrics, methods, ...), and finding a name in one of them."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar, cast

T = TypeVar("T")


class UnknownNameError(ValueError, KeyError):
    """A name that a table does not have; a ``KeyError``, so that ``get`` works on tables."""

    __str__ = Exception.__str__


class Registry(Mapping[str, T]):
    """The entries of one kind by name: the built-in ones first, then those that installed packages offer.

    A package adds an entry through a Python entry point of ``group``. Its name shows up in every list at once; its code is
    loaded only when somebody asks for the entry. Built-in names cannot be replaced.

    Args:
        kind: What the entries are ("metric"), for messages.
        group: Entry-point group of other packages ("calibrant.metrics").
        entries: The built-in entries.
        of: The class every entry must have.

    Example:
        >>> numbers = Registry("number", "calibrant.numbers", {"one": 1, "two": 2}, of=int)
        >>> list(numbers), numbers["two"]
        (['one', 'two'], 2)
        >>> numbers["tow"]
        Traceback (most recent call last):
        ...
        calibrant.core.registry.UnknownNameError: unknown number 'tow'. Did you mean 'two'? There are: one, two.
    """

    def __init__(self, kind: str, group: str, entries: Mapping[str, T], *, of: type[T] | tuple[type, ...]) -> None:
        self.kind, self.group, self._of = kind, group, of
        self._entries = dict(entries)
        self.builtin = tuple(entries)

    @cached_property
    def _offered(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.builtin}

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            # Says which names there are if this is none of them.
            self._entries[name] = self._load(lookup(self._offered, name, kind=self.kind, known=self))
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._offered

    def __iter__(self) -> Iterator[str]:
        return iter([*self.builtin, *self._offered])

    def __len__(self) -> int:
        return len(self.builtin) + len(self._offered)

    def available(self) -> dict[str, T]:
        """Return all entries by name; those of other packages that cannot be loaded are left out with a warning."""
        found = {}
        for name in self:
            try:
                found[name] = self[name]
            except ValueError as error:
                warnings.warn(f"left out: {error}", stacklevel=2)
        return found

    def _load(self, point: EntryPoint) -> T:
        where = f"{self.kind} {point.name!r} of the installed package {point.dist.name if point.dist else point.value!r}"
        try:
            entry = point.load()
        except Exception as error:
            raise ValueError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
        if not isinstance(entry, self._of):
            wanted = " or ".join(kind.__name__ for kind in (self._of if isinstance(self._of, tuple) else (self._of,)))
            raise ValueError(f"{where} must be a {wanted}, got {type(entry).__name__}.")
        return cast("T", entry)


def lookup(table: Mapping[str, T], name: str, *, kind: str, also: Iterable[str] = (), known: Iterable[str] | None = None) -> T:
    """Return ``table[name]``.

    Args:
        table: Name → entry.
        name: The name looked for.
        kind: What the entries are ("metric"), for the message.
        also: Names that are not listed but may be meant.
        known: The names to list; those of the table unless given.

    Returns:
        The entry. Raises `UnknownNameError`, a ``ValueError``, with all names, and the nearest one, if there is none.

    Example:
        >>> lookup({"ece": 1, "mce": 2}, "ecee", kind="metric")
        Traceback (most recent call last):
        ...
        calibrant.core.registry.UnknownNameError: unknown metric 'ecee'. Did you mean 'ece'? There are: ece, mce.
    """
    if name in table:
        return table[name]
    names = list(table if known is None else known)
    # Ignoring case: figures write CE for ce.
    folded = {known.casefold(): known for known in (*names, *also)}
    near = difflib.get_close_matches(str(name).casefold(), list(folded), n=1, cutoff=0.5)
    hint = f" Did you mean {folded[near[0]]!r}?" if near else ""
    raise UnknownNameError(f"unknown {kind} {name!r}.{hint} There are: {', '.join(names) or 'none'}.")
