"""Entries as the rows of a comparison: the seeds of each together, with one label and one look for all figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from calibrant.core.entry import Entry
from calibrant.report.style import Style, method_label, plain_text, styles_of

Place = tuple[str, str | None]


class Key(NamedTuple):
    """What the seeds of a row share, on one data set and network."""

    method: str
    preset: str | None
    epochs: int | None


@dataclass(frozen=True)
class Row:
    """The runs of one method on one data set that differ in their seed only.

    Attributes:
        label: How figures write it, in matplotlib's mathtext.
        style: How figures draw it.
        runs: The runs, by rising seed.
    """

    label: str
    style: Style
    runs: tuple[Entry, ...]

    def run(self, seed: int | None = None) -> Entry:
        """The run of ``seed``; the last one if that is None or there is none of that seed."""
        return next((entry for entry in self.runs if entry.seed == seed and seed is not None), self.runs[-1])


@dataclass(frozen=True)
class Group:
    """The rows of one data set and one network, which are shown in one figure.

    Attributes:
        data: Name of the data set.
        model: Name of the network, or None.
        rows: The rows, in the order in which their first runs came.
    """

    data: str
    model: str | None
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """What stands above its figures."""
        return ", ".join(plain_text(name) for name in (self.data, self.model) if name is not None)

    @property
    def common_seed(self) -> int | None:
        """The highest seed that all rows have a run of, so that figures of single runs compare like with like; None without."""
        common = set.intersection(*({entry.seed for entry in row.runs} for row in self.rows))
        return max((seed for seed in common if seed is not None), default=None)


def group_rows(entries: Sequence[Entry]) -> list[Group]:
    """Put the seeds of a row together, and the rows of a data set and network.

    A label is the method's, with the preset where it is not the only one of the method, and with the epochs where the rows of
    a group differ in them. A method has the same colour, marker and line in all groups.

    Args:
        entries: Runs, in any order.

    Returns:
        The groups, in the order in which their first runs came. Raises ``ValueError`` if there are no entries.
    """
    if not entries:
        raise ValueError("group_rows: `entries` must hold at least one run, got none.")
    found: dict[Place, dict[Key, list[Entry]]] = {}
    for entry in entries:
        rows = found.setdefault((entry.data, entry.model), {})
        rows.setdefault(Key(entry.method, entry.preset, entry.epochs), []).append(entry)
    styles = styles_of((key.method, _variant(key, [*rows])) for rows in found.values() for key in rows)
    return [
        Group(
            *place,
            tuple(Row(_label(key, [*rows]), styles[key.method, _variant(key, [*rows])], _by_seed(rows[key])) for key in rows),
        )
        for place, rows in found.items()
    ]


def _variant(key: Key, keys: Sequence[Key]) -> str:
    """What tells ``key`` from others of the same method in its group; nothing for the default preset, or the first length."""
    same = [other for other in keys if other.method == key.method]
    first = next(other.epochs for other in same if other.preset == key.preset)
    return _preset(key, keys) + ("" if key.epochs == first else f" {key.epochs}")


def _preset(key: Key, keys: Sequence[Key]) -> str:
    """The preset, where another row of the group has the same method with another one, and it is not the default."""
    alone = len({other.preset for other in keys if other.method == key.method}) == 1
    return "" if alone or key.preset in (None, "default") else plain_text(str(key.preset))


def _label(key: Key, keys: Sequence[Key]) -> str:
    said = [preset] if (preset := _preset(key, keys)) else []
    if len({other.epochs for other in keys}) > 1 and key.epochs is not None:
        said.append(f"{key.epochs} epochs")
    return method_label(key.method) + (f" ({', '.join(said)})" if said else "")


def _by_seed(runs: Sequence[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(runs, key=lambda entry: -1 if entry.seed is None else entry.seed))
