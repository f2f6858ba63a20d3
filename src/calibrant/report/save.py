"""What all figures share: sizes and fonts for print, and how they become PNG, PDF and the SVG of a page."""

from __future__ import annotations

import io
import re
import textwrap
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.io.files import write_file

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

# Widths in inches of a column and of a page's text; every size below is in points at these widths, without scaling.
COLUMN_WIDTH, TEXT_WIDTH = 3.3, 6.8
# Characters of a figure's text to an inch, about.
PER_INCH = 17

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
# Nothing that differs between two runs on the same data: no time, no version.
_METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": "calibrant"},
    "pdf": {"Creator": "calibrant", "Producer": "calibrant", "CreationDate": None},
}
# Between the row that an artist shows and what is told of it.
_TOLD = "␞"
_SVG = "http://www.w3.org/2000/svg"
# How these read in a file.
_MARKS = {".png": b"Software\0calibrant", ".pdf": b"/Creator (calibrant)"}


def print_style() -> AbstractContextManager[None]:
    """Use these sizes and fonts inside the block, and whatever was set before after it."""
    import matplotlib

    return matplotlib.rc_context(_RC)  # type: ignore[arg-type]


@contextmanager
def print_figure(width: float, height: float) -> Iterator[Figure]:
    """A new figure of so many inches, to be drawn in these sizes and fonts inside the block."""
    from matplotlib.figure import Figure

    with print_style():
        yield Figure(figsize=(width, height), layout="constrained")


def fold_text(text: str, inches: float) -> str:
    """Break a text into lines of about so many inches, at spaces where that is possible."""
    return textwrap.fill(text, max(4, int(PER_INCH * inches)), break_on_hyphens=False)


def add_legend(figure: Figure, title: str | None, note: str = "") -> None:
    """Put a title and one legend above all axes; the figure is made higher where the legend has more than three lines."""
    shown: dict[str, Any] = {}
    for ax in figure.axes:
        shown |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    labels = [fold_text(label, 2.6) for label in shown]
    wide = PER_INCH * figure.get_figwidth()
    columns = max(1, int(wide / (max(len(part) for label in labels for part in label.splitlines()) + 9)))
    lines = -(-len(labels) // columns) * max(label.count("\n") + 1 for label in labels)
    figure.set_figheight(figure.get_figheight() + 0.15 * max(lines - 3, 0))
    figure.legend(
        shown.values(),
        labels,
        loc="outside upper center",
        ncols=columns,
        title=fold_text(", ".join(filter(None, (title, note))), figure.get_figwidth() - 0.2) or None,
        title_fontproperties={"size": 8},
        alignment="center",
        columnspacing=1.2,
        borderpad=0.1,
        labelspacing=0.3,
    )


def save_figure(figure: Figure, path: str | Path, *, kinds: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Write a figure as ``path.png`` (300 dots per inch) and ``path.pdf`` (vectors, TrueType fonts).

    Each file appears complete or not at all, and the same figure gives the same bytes.

    Args:
        figure: A figure.
        path: The file without its ending; the folder must exist.
        kinds: The endings of those to write.

    Returns:
        The files. Raises ``OSError`` with one sentence where they cannot be written.
    """
    # Not `with_suffix`: a name such as ls-0.05 has a dot of its own.
    files = [Path(f"{path}.{kind}") for kind in kinds]
    for file, kind in zip(files, kinds, strict=True):
        write_file(file, render_figure(figure, kind=kind))
    return files


def figure_stem(kind: str, data: str, model: str | None) -> str:
    """Return the name, without ending, of the file of a kind of figure about one data set and network."""
    names = [[part.strip() for part in re.split(r"[()]", name)] for name in (data, model) if name]
    return "-".join([kind, *("-".join(re.sub(r"[^\w.+]+", "_", part) for part in parts if part) or "_" for parts in names)])


def clear_figures(folder: str | Path, kinds: Iterable[str]) -> None:
    """Remove the figures that calibrant wrote into a folder, so that none outlives the table that it belongs to.

    A file stays unless its name begins with a kind, ends with ``.png`` or ``.pdf``, and says inside that calibrant made it.
    """
    starts = tuple(f"{kind}-" for kind in kinds)
    for file in sorted(Path(folder).glob("*")):
        is_named = file.is_file() and file.name.startswith(starts) and file.suffix in _MARKS
        if is_named and _MARKS[file.suffix] in file.read_bytes():
            file.unlink()


def render_figure(figure: Figure, *, kind: str) -> bytes:
    """Return the content of a ``"png"``, ``"pdf"`` or (transparent) ``"svg"`` file of ``figure``."""
    buffer = io.BytesIO()
    with print_style(), warnings.catch_warnings():
        # A name in letters that the font lacks is shown as boxes; the figure is no worse for the rest.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format=kind, metadata=_METADATA.get(kind), transparent=kind == "svg")
    return buffer.getvalue()


def tell(artist: Artist, label: str, facts: str) -> None:
    """Say whose row an artist shows, and what; pages show that where the pointer is, and can hide the row."""
    artist.set_gid(f"{label}{_TOLD}{facts}")


def svg_element(figure: Figure, *, name: str, label: str) -> str:
    """Return a figure as an ``<svg>`` element of a page, in which no other has this ``name``; ``label`` says what it shows.

    What `tell` said of an artist becomes its ``data-run`` and its tooltip. Colours are attributes, which a style sheet replaces
    for dark pages: a page's security policy forbids styles that are written at an element.
    """
    import matplotlib

    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    with matplotlib.rc_context({"svg.hashsalt": name}):
        root = ET.fromstring(render_figure(figure, kind="svg"))
    for part in root.iter():
        for child in [child for child in part if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")]:
            part.remove(child)
        rules = (rule.split(":", 1) for rule in part.attrib.pop("style", "").split(";") if rule.strip())
        part.attrib |= {key.strip(): value.strip() for key, value in rules}
        part.attrib.pop("font-family", None)
        for key in {"d", "x", "y", "transform"} & part.attrib.keys():
            part.attrib[key] = " ".join(re.sub(r"(\.\d)\d+", r"\1", part.attrib[key]).split())
        # What other parts refer to has a name with the salt in it; groups are numbered, in every figure alike.
        if part.tag == f"{{{_SVG}}}g":
            row, _, facts = part.attrib.pop("id", "").partition(_TOLD)
            if facts:
                part.attrib["data-run"] = row
                ET.SubElement(part, f"{{{_SVG}}}title").text = f"{row}: {facts}"
    for key in ("width", "height", "version"):
        root.attrib.pop(key)
    root.attrib |= {"role": "img", "aria-label": label, "stroke-linejoin": "round", "fill": "#000000"}
    return ET.tostring(root, encoding="unicode")
