"""How every figure looks: sizes for print, and one colour, marker and line style per method that all figures share."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

from calibrant.metrics.diagram import PALETTE

# Widths in inches of a column and of a page's text; every size below is in points at these widths, without scaling.
COLUMN_WIDTH, TEXT_WIDTH = 3.3, 6.8

_RC: dict[str, object] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that a figure looks the same on every machine
    "font.size": 8,
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
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
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
    "ps.fonttype": 42,
    "savefig.dpi": 300,
}

Dashes = str | tuple[float, tuple[float, ...]]

_SOLID, _DASHED, _DASHDOT = "-", (0.0, (4.0, 1.6)), (0.0, (5.0, 1.4, 1.2, 1.4))
_DASHDOTDOT, _DOTTED = (0.0, (5.0, 1.2, 1.0, 1.2, 1.0, 1.2)), (0.0, (1.0, 1.1))


@dataclass(frozen=True)
class Style:
    """The look of a method: told apart by colour, and without colour by marker and line.

    Attributes:
        color: From the palette of Okabe and Ito, or grey.
        marker: Shape of its points.
        line: Dashes of its line.
        filled: Whether its points are filled; those of a repaired (``+ts``) variant are not.
    """

    color: str
    marker: str
    line: Dashes
    filled: bool = True

    def line_options(self) -> dict[str, object]:
        """Keyword arguments of a plotted line in this style."""
        face = self.color if self.filled else "white"
        return {"color": self.color, "linestyle": self.line, "markerfacecolor": face, **self._marker()}

    def point_options(self) -> dict[str, object]:
        """Keyword arguments of a single point in this style."""
        return self.line_options() | {"linestyle": "none"}

    def _marker(self) -> dict[str, object]:
        return {"marker": self.marker, "markeredgecolor": self.color, "markeredgewidth": 0.8}


# By colour: method, marker, line. No two of a colour share either, and those that papers compare most share no pair of both
# whatever their colours. An empty name is free for rows that are not in the catalogue.
_LOOKS: dict[str, tuple[tuple[str, str, Dashes], ...]] = {
    "black": (("ce", "o", _SOLID), ("dual-focal", "d", _DASHED), ("ecp", "s", _DASHDOT), ("patra", "^", _DASHDOTDOT)),
    "green": (("focal", "s", _SOLID), ("flsd", "^", _DASHED), ("focal+sb-ece", "h", _DASHDOT), ("crl", ">", _DASHDOTDOT)),
    "sky": (("ls-0.05", "D", _SOLID), ("ls-0.1", "h", _DASHED), ("mbls", "<", _DASHDOT), ("cpc", "p", _DASHDOTDOT)),
    "grey": (("mmce", "v", _DASHDOT), ("mixup", "p", _DASHED), ("mbls-0", "X", _SOLID), ("acls", "o", _DASHDOTDOT)),
    "blue": (("ce-dece", "P", _DASHDOT), ("adafocal", "<", _DASHED), ("focal+s-avuc", "D", _SOLID), ("", "h", _DASHDOTDOT)),
    "purple": (("ce-sece", "X", _DASHED), ("brier", ">", _SOLID), ("avuc", "o", _DASHDOT), ("", "8", _DASHDOTDOT)),
    "orange": (("flgamma-dece", "^", _DASHDOT), ("flgamma-skce", "8", _SOLID), ("mdca", "p", _DASHED), ("", "d", _DASHDOTDOT)),
    "vermillion": (("flgamma-sece", "*", _SOLID), ("flgamma", "s", _DASHED), ("dca", "v", _DASHDOT), ("", "P", _DASHDOTDOT)),
}
_ALL = [(name, Style(PALETTE[color], marker, line)) for color, looks in _LOOKS.items() for name, marker, line in looks]
METHOD_STYLES = {name: style for name, style in _ALL if name}
# Who keeps the colour where several have it: those that stand first.
_RANKS = {name: place for looks in _LOOKS.values() for place, (name, _, _) in enumerate(looks)}
# Free colours in the order in which they are given to others; last those of the methods that are compared most.
_SPARE = tuple(PALETTE[color] for color in ("purple", "blue", "orange", "grey", "sky", "green", "vermillion", "black"))
_FREE = [style for name, style in _ALL if not name]

# Those that the page can draw too, from the ones that are easiest to tell apart when they are empty.
_MARKERS = ("o", "s", "^", "D", "v", "P", "*", "X", "<", ">", "d", "p", "h", "8")
# So many variants keep the colour of their method, where other colours are free for the rest.
_SAME_COLOUR = 3

_GAMMA = r"$_\gamma$"
_LONGEST = 40
# What a method is called wherever it is shown and not typed: in figures, on pages and in the paper's tables.
_NAMES = {
    "ce": "CE",
    "focal": "Focal",
    "flsd": "FLSD",
    "ls-0.05": "LS-0.05",
    "ls-0.1": "LS-0.1",
    "mixup": "Mixup",
    "mmce": "MMCE",
    "brier": "Brier",
    "ce-dece": "CE-DECE",
    "ce-sece": "CE-SECE",
    "flgamma-dece": "FLγ-DECE",
    "flgamma-sece": "FLγ-SECE",
    "flgamma-skce": "FLγ-SKCE",
    "flgamma": "FLγ",
    "adafocal": "AdaFocal",
    "dual-focal": "Dual Focal",
    "mbls": "MbLS",
    "mbls-0": "MbLS (no margin)",
    "ecp": "ECP",
    "focal+sb-ece": "Focal+SB-ECE",
    "focal+s-avuc": "Focal+S-AvUC",
    "avuc": "AvUC",
    "mdca": "MDCA",
    "dca": "DCA",
    "patra": "Huber-DCA",
    "cpc": "CPC",
    "acls": "ACLS",
    "crl": "CRL",
}


def method_name(method: str) -> str:
    """Return what a method is called in print, as plain text; a name that it does not know stays as it is.

    Example:
        >>> method_name("flgamma-sece"), method_name("ce+ts"), method_name("mine")
        ('FLγ-SECE', 'CE (TS)', 'mine')
    """
    base = method.removesuffix("+ts")
    name = _NAMES.get(base, base)
    return f"{name} (TS)" if base != method else name


def method_label(method: str) -> str:
    r"""Return how a figure writes the name of a method, in matplotlib's mathtext; see `method_name`.

    Example:
        >>> method_label("flgamma-sece"), method_label("ce+ts"), method_label("mine")
        ('FL$_\\gamma$-SECE', 'CE (TS)', 'mine')
    """
    base = method.removesuffix("+ts")
    # Somebody's own name is shown as it is, and not too long.
    label = _NAMES[base].replace("γ", _GAMMA) if base in _NAMES else plain_text(base)
    return f"{label} (TS)" if base != method else label


def plain_text(name: str, *, longest: int = _LONGEST) -> str:
    r"""Return somebody's name for something as text that a figure shows as it is: on one line, not too long, no mathtext.

    Example:
        >>> plain_text("a\nb costs $5"), len(plain_text("x" * 100))
        ('a b costs \\$5', 40)
    """
    # A name read from a file system may hold half a surrogate pair, which no font and no file format has.
    said = " ".join(name.encode(errors="replace").decode().split())
    if len(said) > longest:
        said = f"{said[: longest - 13]}…{said[-12:]}"
    return said.replace("$", r"\$")


def seen_length(label: str) -> int:
    r"""How many characters a label shows.

    Example:
        >>> seen_length(r"FL$_\gamma$-SECE")
        8
    """
    return len(label.replace(_GAMMA, "y"))


def fold_label(label: str, width: int) -> str:
    r"""Break a label into lines of at most ``width`` characters, at spaces; a longer word behind ``_``, ``=`` or ``/``.

    Example:
        >>> fold_label("CE (paper, 350 epochs)", 12)
        'CE (paper,\n350 epochs)'
        >>> fold_label("CE (average_share=1.0)", 12)
        'CE (average_\nshare=1.0)'
    """
    wide = max(width, 4)
    lines: list[str] = []
    # Mathtext is no place to break at, and takes less room than it is long.
    for word in label.replace(_GAMMA, "\0").split():
        for place, part in enumerate(_parts(word, wide)):
            space = " " if place == 0 else ""
            if lines and len(lines[-1]) + len(space) + len(part) <= wide:
                lines[-1] += space + part
            else:
                lines.append(part)
    return "\n".join(lines).replace("\0", _GAMMA)


def fold_to_width(text: str, inches: float, *, size: float = 8.0) -> str:
    r"""Break a text as `fold_label` does, into even lines of at most ``inches`` as the font of figures writes them.

    Args:
        text: The text, in matplotlib's mathtext.
        inches: Room for a line.
        size: Of the letters, in points.

    Example:
        >>> fold_to_width("digits, convnet", 3.0), fold_to_width("digits, convnet", 0.6)
        ('digits, convnet', 'digits,\nconvnet')
    """
    widths = range(seen_length(text), 3, -1)
    fits = (w for w in widths if max(_width_of(line, size) for line in fold_label(text, w).splitlines()) <= 72 * inches)
    widest = next(fits, 4)
    lines = fold_label(text, widest).count("\n")
    # As narrow as that many lines allow, without dividing a word for it.
    least = min(widest, max((seen_length(word) for word in text.split()), default=4))
    return next(even for w in range(least, widest + 1) if (even := fold_label(text, w)).count("\n") == lines)


@lru_cache(maxsize=1024)
def _width_of(line: str, size: float) -> float:
    """How many points a line of text takes."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), line, size=size, prop=FontProperties(family=str(_RC["font.family"]))).get_extents().width)


def _parts(word: str, width: int) -> list[str]:
    """A word that fits, or else pieces that do."""
    if len(word) <= width:
        return [word]
    pieces = re.findall(r"[^_=/]*[_=/]|[^_=/]+", word)
    return [piece[start : start + width] for piece in pieces for start in range(0, len(piece), width)]


def styles_of(variants: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Style]:
    """Give every ``(method, variant)`` its look.

    A method of the catalogue always has the same marker and line, and the same colour unless another method has it and one is
    free: no two methods share a colour while there are any. A variant of a method (``+ts``, or other settings) has its colour,
    an empty marker and other dashes: the first has the method's marker, every further one another marker, and from the fourth
    on a colour of its own, if any is free. Names that are not in the catalogue take what is free.

    Args:
        variants: Method and what tells its row from others of the same method ("" if nothing does).

    Returns:
        The styles. No two have colour, marker and dashes in common while no method has more than 50 variants.

    Example:
        >>> styles = styles_of([("ce", ""), ("ce+ts", ""), ("mine", "")])
        >>> [style.filled for style in styles.values()], len({style.color for style in styles.values()})
        ([True, False, True], 2)
    """
    wanted = list(dict.fromkeys(variants))
    known = [key for key in wanted if _base(key[0]) in METHOD_STYLES]
    colors = _colors_of(dict.fromkeys(_base(method) for method, _ in wanted))
    others = [PALETTE[color] for color in reversed(_LOOKS) if PALETTE[color] not in colors.values()]
    chosen: dict[tuple[str, str], Style] = {}
    # Plain rows first: none of them gives way to a variant.
    for key in sorted(wanted, key=lambda key: (key not in known, not _is_plain(*key))):
        beside = [style for (method, _), style in chosen.items() if _base(method) == _base(key[0])]
        chosen[key] = _choose(list(_candidates(*key, colors[_base(key[0])], others)), [*chosen.values()], beside)
    return {key: chosen[key] for key in wanted}


def _colors_of(bases: Iterable[str]) -> dict[str, str]:
    """The colour of every method: its own, or a free one where another one of the same colour comes before it."""
    found: dict[str, str] = {}
    for base in sorted(bases, key=lambda base: (base not in METHOD_STYLES, _RANKS.get(base, 0))):
        found[base] = _homes(base)[0].color
    firsts = {color: base for base, color in reversed(found.items())}
    free = [color for color in _SPARE if color not in firsts]
    return {base: color if firsts[color] == base or not free else free.pop(0) for base, color in found.items()}


def _choose(candidates: Sequence[Style], taken: Collection[Style], beside: Collection[Style]) -> Style:
    """The first that looks like no other, if possible with another marker than all rows of its method."""
    looks = {_look(style) for style in taken}
    free = [style for style in candidates if _look(style) not in looks] or [candidates[0]]
    empty = {style.marker for style in beside if not style.filled}
    return next((style for style in free if style.filled or style.marker not in empty), free[0])


def _look(style: Style) -> tuple[str, str, Dashes]:
    return style.color, style.marker, style.line


def _base(method: str) -> str:
    return method.removesuffix("+ts")


def _is_plain(method: str, variant: str) -> bool:
    return _base(method) == method and variant in ("", "default")


def _homes(base: str) -> list[Style]:
    """Looks of a method, the best first."""
    if base in METHOD_STYLES:
        return [METHOD_STYLES[base]]
    # A stable start, so that somebody's row keeps its look when other rows come and go.
    free = [*_FREE, *METHOD_STYLES.values()]
    start = zlib.crc32(base.encode()) % len(_FREE)
    return [*free[start : len(_FREE)], *free[:start], *free[len(_FREE) :]]


def _candidates(method: str, variant: str, color: str, others: Sequence[str]) -> Iterator[Style]:
    first, *rest = _homes(_base(method))
    home = [replace(first, color=color), *rest]
    changed = [style for one in home for style in _changed(one, others)]
    yield from [*home, *changed] if _is_plain(method, variant) else [*changed, *home]


def _changed(home: Style, others: Sequence[str]) -> Iterator[Style]:
    """Looks of variants, each pair of a marker and dashes once; neighbours differ in both."""
    markers = [home.marker, *(marker for marker in _MARKERS if marker != home.marker)]
    dashes = [line for line in (_DOTTED, _DASHED, _DASHDOT, _DASHDOTDOT, _SOLID) if line != home.line]
    for shift in range(len(dashes)):
        for place, marker in enumerate(markers):
            own = place < _SAME_COLOUR or not others
            color = home.color if own else others[(place - _SAME_COLOUR) % len(others)]
            yield Style(color, marker, dashes[(place + shift) % len(dashes)], filled=False)


@contextmanager
def print_style() -> Iterator[None]:
    """Use these sizes and fonts inside the block, and whatever was set before after it."""
    import matplotlib

    with matplotlib.rc_context(_RC):  # type: ignore[arg-type]
        yield
