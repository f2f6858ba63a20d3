"""Entries as the rows of a comparison: the seeds of each together, with one label and one look for all figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from calibrant.core.entry import Entry
from calibrant.data import data_name
from calibrant.report.style import Style, method_name, plain_text, styles_of

# A recipe's key at the beginning of a setting, and what of it a label can do without.
_SETTING = re.compile(r"(?:^|(?<=, ))([\w.]+)(?==)")
_PREFIX = re.compile(r"^(?:train|method\.options|optim|data)\.")
# Settings are folded where they do not fit, so that more of them can be shown than of a name.
_LONGEST_SETTINGS = 120
_NO_NETWORK = "network unknown"


class Key(NamedTuple):
    """What the seeds of a row share, on one data set and network."""

    method: str
    preset: str | None
    epochs: int | None
    model: str | None


@dataclass(frozen=True)
class Row:
    """The runs of one method on one data set that differ in their seed only, by rising seed, with their label and look."""

    label: str
    style: Style
    runs: tuple[Entry, ...]

    def run(self, seed: int | None = None) -> Entry:
        """The run of ``seed``; the last one if that is None or there is none of that seed."""
        return next((entry for entry in self.runs if entry.seed == seed and seed is not None), self.runs[-1])

    @property
    def is_repaired(self) -> bool:
        """Whether a run was repaired afterwards (``+ts``), so that its history is that of the network before."""
        return any(run.temperature is not None for run in self.runs)


@dataclass(frozen=True)
class Group:
    """The rows of one data set and one network, or an unknown one, which are shown in one figure."""

    data: str
    model: str | None
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """What stands above its figures."""
        return ", ".join(plain_text(name) for name in (data_name(self.data), self.model) if name is not None)

    @property
    def common_seed(self) -> int | None:
        """The highest seed that all rows have a run of, so that figures of single runs compare like with like; None without.

        Rows of unknown seed, as somebody's predictions, have no say in it.
        """
        seeds = [{entry.seed for entry in row.runs if entry.seed is not None} for row in self.rows]
        known = [found for found in seeds if found]
        return max(set.intersection(*known), default=None) if known else None


def group_rows(entries: Sequence[Entry]) -> list[Group]:
    """Put the seeds of a row together, and the rows of a data set and network.

    A label is the method's, with the preset where it is not the only one of the method, with the settings (``key=value``) that
    the preset names, and with the epochs where the rows of a group differ in them. A method has the same colour, marker and
    line in all groups. A row whose network is not known stands in the group of every network of its data set, and in one of its
    own where there is none.

    Args:
        entries: Runs, in any order.

    Returns:
        The groups, in the order in which their first runs came. Raises ``ValueError`` if there are no entries.
    """
    if not entries:
        raise ValueError("group_rows: `entries` must hold at least one run, got none.")
    networks: dict[str, dict[str | None, None]] = {}
    for entry in entries:
        if entry.model is not None:
            networks.setdefault(entry.data, {})[entry.model] = None
    found: dict[tuple[str, str | None], dict[Key, list[Entry]]] = {}
    for entry in entries:
        for model in [entry.model] if entry.model is not None else networks.get(entry.data, [None]):
            rows = found.setdefault((entry.data, model), {})
            rows.setdefault(Key(entry.method, entry.preset, entry.epochs, entry.model), []).append(entry)
    styles = styles_of((key.method, _variant(key, [*rows])) for rows in found.values() for key in rows)
    return [
        Group(
            *place,
            tuple(
                Row(label, styles[key.method, _variant(key, [*rows])], _by_seed(rows[key]))
                for key, label in zip(rows, _labels([*rows]), strict=True)
            ),
        )
        for place, rows in found.items()
    ]


def short_settings(presets: Iterable[str]) -> dict[str, str]:
    """Write settings without the part of the recipe that they are of, unless two of them would then have one name.

    Example:
        >>> list(short_settings(["paper, train.average=ema, optim.lr=0.1", "train.average=no, data.lr=1"]).values())
        ['paper, average=ema, optim.lr=0.1', 'average=no, data.lr=1']
    """
    given = list(presets)
    names = {key: _PREFIX.sub("", key) for text in given for key in _SETTING.findall(text)}
    count = Counter(names.values())
    alone = {key: name for key, name in names.items() if count[name] == 1}
    return {text: _SETTING.sub(lambda found: alone.get(found[1], found[1]), text) for text in given}


def _variant(key: Key, keys: Sequence[Key]) -> str:
    """What tells ``key`` from others of the same method in its group; nothing for the plainest preset, or the first length."""
    same = [other for other in keys if other.method == key.method]
    # None, the default, others, and the more the more settings they name.
    plainest = min((other.preset for other in same), key=lambda p: (p is not None, p != "default", (p or "").count("=")))
    first = next(other.epochs for other in same if other.preset == key.preset)
    said = ["" if key.preset == plainest else str(key.preset), "" if key.epochs == first else str(key.epochs)]
    return " ".join(filter(None, [*said, _NO_NETWORK if _is_doubled(key, keys) else ""]))


def _preset(key: Key, keys: Sequence[Key]) -> str:
    """The preset, where another row of the group has the same method with another one, or it names settings.

    The default is said only where that other one has none.
    """
    others = {other.preset for other in keys if other.method == key.method}
    if key.preset is None or (key.preset == "default" and None not in others):
        return ""
    if len(others) == 1 and "=" not in key.preset:
        return ""
    return plain_text(short_settings(other.preset for other in keys if other.preset)[key.preset], longest=_LONGEST_SETTINGS)


def _is_doubled(key: Key, keys: Sequence[Key]) -> bool:
    """Whether another row differs from one of unknown network in its network alone."""
    return key.model is None and any(other[:3] == key[:3] and other != key for other in keys)


def _labels(keys: Sequence[Key]) -> list[str]:
    """The labels of a group's rows; those that became one by being cut are numbered."""
    labels = [_label(key, keys) for key in keys]
    return [f"{text} [{labels[: k + 1].count(text)}]" if labels.count(text) > 1 else text for k, text in enumerate(labels)]


def _label(key: Key, keys: Sequence[Key]) -> str:
    said = [_preset(key, keys)]
    # Somebody's predictions, of unknown length, are no reason to name that of all others.
    lengths = {other.epochs for other in keys if other.epochs is not None or other.method == key.method}
    if len(lengths) > 1 and key.epochs is not None:
        said.append(f"{key.epochs} epochs")
    if _is_doubled(key, keys):
        said.append(_NO_NETWORK)
    told = ", ".join(filter(None, said))
    return plain_text(method_name(key.method)) + (f" ({told})" if told else "")


def _by_seed(runs: Sequence[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(runs, key=lambda entry: -1 if entry.seed is None else entry.seed))
