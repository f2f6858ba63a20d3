"""Entries as the rows of a comparison: the seeds of each together, with one label and one look for all figures."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from calibrant.core.scores import Entry
from calibrant.data import data_name
from calibrant.metrics.diagram import PALETTE

# A recipe's key at the beginning of a setting, and what of it a label can do without.
_SETTING = re.compile(r"(?:^|(?<=, ))([\w.]+)(?==)")
_PREFIX = re.compile(r"^(?:train|method\.options|optim|data)\.")
# Settings are folded where they do not fit, so that more of them can be shown than of a name.
_LONGEST, _LONGEST_SETTINGS = 40, 120
_NO_NETWORK = "network unknown"

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
# So many variants keep the colour of their method, where other colours are free for the rest.
_SAME_COLOR = 3


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
        seeds = [found for row in self.rows if (found := {entry.seed for entry in row.runs if entry.seed is not None})]
        return max(set.intersection(*seeds), default=None) if seeds else None


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


def _by_seed(runs: Sequence[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(runs, key=lambda entry: -1 if entry.seed is None else entry.seed))


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


def _is_doubled(key: Key, keys: Sequence[Key]) -> bool:
    """Whether another row differs from one of unknown network in its network alone."""
    return key.model is None and any(other[:3] == key[:3] and other != key for other in keys)


def _labels(keys: Sequence[Key]) -> list[str]:
    """The labels of a group's rows; those that became one by being cut are numbered."""
    labels = [_label(key, keys) for key in keys]
    return [f"{text} [{labels[: k + 1].count(text)}]" if labels.count(text) > 1 else text for k, text in enumerate(labels)]


def _label(key: Key, keys: Sequence[Key]) -> str:
    """Method, and in brackets what tells it from other rows: preset and settings, epochs, that its network is unknown."""
    presets = {other.preset for other in keys if other.method == key.method}
    is_default = key.preset is None or (key.preset == "default" and None not in presets)
    said = []
    if key.preset is not None and not is_default and (len(presets) > 1 or "=" in key.preset):
        short = short_settings(other.preset for other in keys if other.preset)[key.preset]
        said.append(plain_text(short, longest=_LONGEST_SETTINGS))
    # Somebody's predictions, of unknown length, are no reason to name that of all others.
    lengths = {other.epochs for other in keys if other.epochs is not None or other.method == key.method}
    if len(lengths) > 1 and key.epochs is not None:
        said.append(f"{key.epochs} epochs")
    if _is_doubled(key, keys):
        said.append(_NO_NETWORK)
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
    method's marker, every further one another marker, and from the fourth on a colour of its own, if any is free. Unknown
    names take what is free.

    Args:
        variants: Method and what tells its row from others of the same method ("" if nothing does).

    Returns:
        The styles; no two look the same while no method has more than 50 variants.

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
    chosen: dict[tuple[str, str], Style] = {}
    # Plain rows first: none of them gives way to a variant.
    for key in sorted(wanted, key=lambda key: (not _is_plain(*key), order.index(_base(key[0])))):
        base = _base(key[0])
        taken = {(style.color, style.marker, style.line) for style in chosen.values()}
        styles = list(_candidates(looks[base], colors[base], spare, plain=_is_plain(*key)))
        chosen[key] = next((style for style in styles if (style.color, style.marker, style.line) not in taken), styles[0])
    return {key: chosen[key] for key in wanted}


def _free_look(base: str) -> Look:
    """A look of its own, so that somebody's row keeps its marker and line when other rows come and go."""
    number = zlib.crc32(base.encode(errors="replace"))
    return _SPARE[number % len(_SPARE)], _MARKERS[number % len(_MARKERS)], [*_LINES][number % len(_LINES)]


def _candidates(look: Look, color: str, spare: Sequence[str], *, plain: bool) -> Iterator[Style]:
    """Looks for a row, the best first: each pair of a marker and dashes once, and neighbours differ in both."""
    marker, line, lines = _MARKERS.index(look[1]), [*_LINES].index(look[2]), [*_LINES.values()]
    for shift in range(len(lines)):
        for place in range(len(_MARKERS)):
            own = plain or place < _SAME_COLOR or not spare
            hue = color if own else spare[(place - _SAME_COLOR) % len(spare)]
            dashes = lines[(line + place + shift + (not plain)) % len(lines)]
            yield Style(PALETTE[hue], _MARKERS[(marker + place) % len(_MARKERS)], dashes, filled=plain)


def _base(method: str) -> str:
    return method.removesuffix("+ts")


def _is_plain(method: str, variant: str) -> bool:
    return _base(method) == method and variant in ("", "default")
