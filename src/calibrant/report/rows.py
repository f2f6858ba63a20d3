"""Entries as the rows of a comparison: the seeds of each together, with one label and one look for all figures."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from calibrant.core.scores import Entry
from calibrant.data import data_name
from calibrant.metrics.diagram import PALETTE

# What a label can do without at the beginning of a setting.
_PREFIX = re.compile(r"(^|, )(?:train|method\.options|optim|data)\.(?=[\w.]+=)")
# Settings are folded where they do not fit, so that more of them can be shown than of a name.
_LONGEST, _LONGEST_SETTINGS = 40, 120

Dashes = str | tuple[float, tuple[float, ...]]
# What the record of a method says: colour of the palette, marker, and line.
Look = tuple[str, str, str]

_LINES: dict[str, Dashes] = {
    "-": "-",
    ":": (0.0, (1.0, 1.1)),
    "--": (0.0, (4.0, 1.6)),
    "-.": (0.0, (5.0, 1.4, 1.2, 1.4)),
    "-..": (0.0, (5.0, 1.2, 1.0, 1.2, 1.0, 1.2)),
}
# From the ones that are easiest to tell apart when they are empty.
_MARKERS = ("o", "s", "^", "D", "v", "P", "*", "X", "<", ">", "d", "p", "h", "8")
# Colours in the order in which they are given to names without one of their own.
_SPARE = ("purple", "blue", "orange", "grey", "sky", "green", "vermillion", "black")


@dataclass(frozen=True)
class Style:
    """The look of a row: told apart by colour, and without colour by marker and line.

    Attributes:
        color: From the palette of Okabe and Ito, or grey.
        marker: Shape of its points.
        line: Dashes of its line.
        filled: Whether its points are filled; those of a variant (``+ts``, other settings) are not.
    """

    color: str
    marker: str
    line: Dashes
    filled: bool = True

    def options(self) -> dict[str, Any]:
        """Keyword arguments of a plotted line in this style."""
        face = self.color if self.filled else "white"
        edge = {"markeredgecolor": self.color, "markeredgewidth": 0.8, "markerfacecolor": face}
        return {"color": self.color, "linestyle": self.line, "marker": self.marker, **edge}


class Key(NamedTuple):
    """What the seeds of a row share, on one data set."""

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
        seeds = [found for row in self.rows if (found := {entry.seed for entry in row.runs if entry.seed is not None})]
        return max(set.intersection(*seeds), default=None) if seeds else None


def group_rows(entries: Sequence[Entry]) -> list[Group]:
    """Put the seeds of a row together, and the rows of a data set and network.

    A label is the method's, with the preset where it is not the only one of the method, with the settings (``key=value``) that
    the preset names, and with the epochs where the rows of a group differ in them. A method has the same colour, marker and
    line in all groups. A row of unknown network joins the first network of its data set, as in tables.

    Args:
        entries: Runs, in any order.

    Returns:
        The groups, in the order in which their first runs came. Raises ``ValueError`` if there are no entries.
    """
    if not entries:
        raise ValueError("group_rows: `entries` must hold at least one run, got none.")
    first = {entry.data: entry.model for entry in reversed(entries) if entry.model is not None}
    found: dict[tuple[str, str | None], dict[Key, list[Entry]]] = {}
    for entry in entries:
        rows = found.setdefault((entry.data, entry.model or first.get(entry.data)), {})
        rows.setdefault(Key(entry.method, entry.preset, entry.epochs, entry.model), []).append(entry)
    styles = styles_of((key.method, _variant(key, [*rows])) for rows in found.values() for key in rows)
    groups = []
    for (data, model), rows in found.items():
        looks = [styles[key.method, _variant(key, [*rows])] for key in rows]
        runs = [tuple(sorted(part, key=lambda run: -1 if run.seed is None else run.seed)) for part in rows.values()]
        groups.append(Group(data, model, tuple(map(Row, _labels([*rows]), looks, runs))))
    return groups


def short_settings(preset: str) -> str:
    """Write settings without the part of the recipe that they are of.

    Example:
        >>> short_settings("paper, train.average=ema, optim.lr=0.1")
        'paper, average=ema, lr=0.1'
    """
    return _PREFIX.sub(r"\1", preset)


def _variant(key: Key, keys: Sequence[Key]) -> str:
    """What tells ``key`` from others of the same method in its group; nothing for the plainest preset, or the first length."""
    same = [other for other in keys if other.method == key.method]
    # None, the default, others, and the more the more settings they name.
    plainest = min((other.preset for other in same), key=lambda p: (p is not None, p != "default", (p or "").count("=")))
    first = next(other.epochs for other in same if other.preset == key.preset)
    twin = any(other[:3] == key[:3] and other.model for other in same) and key.model is None
    parts = {str(key.preset): key.preset != plainest, str(key.epochs): key.epochs != first, "network unknown": twin}
    return " ".join(text for text, differs in parts.items() if differs)


def _labels(keys: Sequence[Key]) -> list[str]:
    """The labels of a group's rows; equal ones are numbered."""
    labels = [_label(key, keys) for key in keys]
    return [f"{text} [{labels[: k + 1].count(text)}]" if labels.count(text) > 1 else text for k, text in enumerate(labels)]


def _label(key: Key, keys: Sequence[Key]) -> str:
    """Method, and in brackets what tells it from other rows: preset and settings, epochs."""
    presets = {other.preset for other in keys if other.method == key.method}
    is_default = key.preset is None or (key.preset == "default" and None not in presets)
    said = []
    if key.preset is not None and not is_default and (len(presets) > 1 or "=" in key.preset):
        said.append(plain_text(short_settings(key.preset), longest=_LONGEST_SETTINGS))
    # Somebody's predictions, of unknown length, are no reason to name that of all others.
    lengths = {other.epochs for other in keys if other.epochs is not None or other.method == key.method}
    if len(lengths) > 1 and key.epochs is not None:
        said.append(f"{key.epochs} epochs")
    return plain_text(method_name(key.method)) + (f" ({', '.join(said)})" if said else "")


def _methods() -> Mapping[str, Any]:
    """The catalogue of methods, whose entries say what they are called and how they are drawn."""
    from calibrant.engine.methods import METHODS

    return METHODS


def method_name(method: str) -> str:
    """Return what a method is called in print; a name that is not in the catalogue stays as it is.

    Example:
        >>> method_name("flgamma-sece"), method_name("ce+ts"), method_name("mine")
        ('FLγ-SECE', 'CE (TS)', 'mine')
    """
    base = _base(method)
    name = _methods()[base].label if base in _methods() else base
    return f"{name} (TS)" if base != method else name


def plain_text(name: str, *, longest: int = _LONGEST) -> str:
    """Return somebody's name for something on one line and not too long."""
    # A name read from a file system may hold half a surrogate pair, which no font and no file format has.
    said = " ".join(name.encode(errors="replace").decode().split())
    return said if len(said) <= longest else f"{said[: longest - 13]}…{said[-12:]}"


def styles_of(variants: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Style]:
    """Give every ``(method, variant)`` its look.

    A known method always has the same marker and line, and the same colour unless another method has it and one is free. A
    variant of a method (``+ts``, or other settings) has its colour, an empty marker and other dashes: the first has the
    method's marker, every further one another marker. Unknown names take what is free.

    Args:
        variants: Method and what tells its row from others of the same method ("" if nothing does).

    Example:
        >>> styles = styles_of([("ce", ""), ("ce+ts", ""), ("mine", "")])
        >>> [style.filled for style in styles.values()], len({style.color for style in styles.values()})
        ([True, False, True], 2)
    """
    wanted, methods = list(dict.fromkeys(variants)), _methods()
    given = dict.fromkeys(_base(method) for method, _ in wanted)
    # In the order of the catalogue: of two methods with one colour the first keeps it.
    order = [*(base for base in methods if base in given), *(base for base in given if base not in methods)]
    looks = {base: methods[base].look if base in methods and methods[base].look else _free_look(base) for base in order}
    spare = [color for color in _SPARE if color not in {look[0] for look in looks.values()}]
    colors: dict[str, str] = {}
    for base, (color, *_) in looks.items():
        colors[base] = color if color not in colors.values() or not spare else spare.pop(0)
    found, count, lines = {}, Counter[str](), [*_LINES]
    for method, variant in wanted:
        base = _base(method)
        count[base] += (is_variant := bool(method != base or variant))
        number = is_variant * count[base]
        marker = _MARKERS[(_MARKERS.index(looks[base][1]) + max(number - 1, 0)) % len(_MARKERS)]
        dashes = _LINES[lines[(lines.index(looks[base][2]) + number) % len(lines)]]
        found[method, variant] = Style(PALETTE[colors[base]], marker, dashes, filled=not number)
    return found


def _free_look(base: str) -> Look:
    """A look of its own, so that somebody's row keeps its marker and line when other rows come and go."""
    number = zlib.crc32(base.encode(errors="replace"))
    return _SPARE[number % len(_SPARE)], _MARKERS[number % len(_MARKERS)], [*_LINES][number % len(_LINES)]


def _base(method: str) -> str:
    return method.removesuffix("+ts")
