"""How every figure looks: sizes for print, and one label, colour, marker and line per method that all figures share."""

from __future__ import annotations

import textwrap
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from calibrant.metrics.diagram import PALETTE

# Widths in inches of a column and of a page's text; every size below is in points at these widths, without scaling.
COLUMN_WIDTH, TEXT_WIDTH = 3.3, 6.8

_RC: dict[str, object] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that a figure looks the same on every machine
    "font.size": 8,
    "text.parse_math": False,  # a name is shown as it is, whatever it holds
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.1,
    "lines.markersize": 4,
    "hatch.linewidth": 0.4,
    "grid.color": "0.88",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "pdf.fonttype": 42,  # TrueType: editable text, and accepted where Type 3 fonts are not
    "svg.fonttype": "none",  # text stays text
    "savefig.dpi": 300,
}

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
_LONGEST = 40


def _methods() -> Mapping[str, Any]:
    """The catalogue of methods, whose entries say what they are called and how they are drawn."""
    from calibrant.engine.methods import METHODS

    return METHODS


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

    def options(self) -> dict[str, object]:
        """Keyword arguments of a plotted line in this style."""
        face = self.color if self.filled else "white"
        edge = {"markeredgecolor": self.color, "markeredgewidth": 0.8, "markerfacecolor": face}
        return {"color": self.color, "linestyle": self.line, "marker": self.marker, **edge}


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
    r"""Return somebody's name for something on one line and not too long."""
    # A name read from a file system may hold half a surrogate pair, which no font and no file format has.
    said = " ".join(name.encode(errors="replace").decode().split())
    return said if len(said) <= longest else f"{said[: longest - 13]}…{said[-12:]}"


def fold_text(text: str, inches: float) -> str:
    r"""Break a text into lines of about so many inches, at spaces where that is possible."""
    return textwrap.fill(text, max(4, characters(inches)), break_on_hyphens=False)


def characters(inches: float) -> int:
    """How many characters of a figure's text fit on a line."""
    return int(17 * inches)


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
    wanted = list(dict.fromkeys(variants))
    given = dict.fromkeys(_base(method) for method, _ in wanted)
    # In the order of the catalogue: of two methods with one colour the first keeps it.
    looks = {base: _methods()[base].look for base in _methods() if base in given} | {
        b: None for b in given if b not in _methods()
    }
    colors = _colors_of(looks)
    others = [color for color in _SPARE if color not in colors.values()]
    chosen: dict[tuple[str, str], Style] = {}
    # Plain rows first: none of them gives way to a variant.
    for key in sorted(wanted, key=lambda key: (not _is_plain(*key), [*looks].index(_base(key[0])))):
        base = _base(key[0])
        taken = {(style.color, style.marker, style.line) for style in chosen.values()}
        styles = list(_candidates(base, looks[base], colors[base], others, plain=_is_plain(*key)))
        chosen[key] = next((style for style in styles if (style.color, style.marker, style.line) not in taken), styles[0])
    return {key: chosen[key] for key in wanted}


def _colors_of(looks: Mapping[str, Look | None]) -> dict[str, str]:
    """The colour of every method: its own, or a free one where it has none or another method before it has the same."""
    own = [look[0] for look in looks.values() if look is not None]
    free = [color for color in _SPARE if color not in own]
    found: dict[str, str] = {}
    for base, look in looks.items():
        home = _SPARE[_number(base) % len(_SPARE)] if look is None else look[0]
        is_free = look is not None and home not in found.values()
        found[base] = home if is_free or not free else free.pop(0)
    return found


def _candidates(base: str, look: Look | None, color: str, others: Sequence[str], *, plain: bool) -> Iterator[Style]:
    """Looks for a row, the best first: each pair of a marker and dashes once, and neighbours differ in both."""
    # A number of its own, so that somebody's row keeps its marker and line when other rows come and go.
    marker, line = _number(base) % len(_MARKERS), _number(base) % len(_LINES)
    if look is not None:
        marker, line = _MARKERS.index(look[1]), [*_LINES].index(look[2])
    lines = [*_LINES.values()]
    for shift in range(len(lines)):
        for place in range(len(_MARKERS)):
            own = plain or place < _SAME_COLOR or not others
            hue = color if own else others[(place - _SAME_COLOR) % len(others)]
            dashes = lines[(line + place + shift + (not plain)) % len(lines)]
            yield Style(PALETTE[hue], _MARKERS[(marker + place) % len(_MARKERS)], dashes, filled=plain)


def _number(name: str) -> int:
    return zlib.crc32(name.encode(errors="replace"))


def _base(method: str) -> str:
    return method.removesuffix("+ts")


def _is_plain(method: str, variant: str) -> bool:
    return _base(method) == method and variant in ("", "default")


@contextmanager
def print_style() -> Iterator[None]:
    """Use these sizes and fonts inside the block, and whatever was set before after it."""
    import matplotlib

    with matplotlib.rc_context(_RC):  # type: ignore[arg-type]
        yield
