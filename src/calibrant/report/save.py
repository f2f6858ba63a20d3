"""Figures as files, PNG for screens and PDF for print, and as SVG in a page."""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.report.style import print_style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

# Nothing that differs between two runs on the same data: no time, no version.
_METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": "calibrant"},
    "pdf": {"Creator": "calibrant", "Producer": "calibrant", "CreationDate": None},
}
# Between the row that an artist shows and what is told of it.
_TOLD = "␞"
_SVG, _LINK = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
# How these read in a file.
_MARKS = {".png": b"Software\0calibrant", ".pdf": b"/Creator (calibrant)"}


def save_figure(figure: Figure, path: str | Path) -> list[Path]:
    """Write a figure as ``path.png`` (300 dots per inch) and ``path.pdf`` (vectors, TrueType fonts).

    Nobody sees half a file, and the same figure gives the same bytes.

    Args:
        figure: A figure.
        path: The file without its ending; the folder must exist.

    Returns:
        The two files. Raises ``OSError`` with one sentence where they cannot be written.
    """
    from calibrant.io.files import atomic_writer

    files = []
    for kind in _METADATA:
        content = render_figure(figure, kind=kind)
        # Not `with_suffix`: a name such as ls-0.05 has a dot of its own.
        file = Path(f"{path}.{kind}")
        with atomic_writer(file) as handle:
            handle.write(content)
        files.append(file)
    return files


def figure_stem(kind: str, data: str, model: str | None) -> str:
    """Return the name, without ending, of the file of a kind of figure about one data set and network.

    Example:
        >>> figure_stem("curves", "my data/v2", "own:net"), figure_stem("curves", "digits (quick)", None)
        ('curves-my_data_v2-own_net', 'curves-digits-quick')
    """
    return "-".join([kind, *(_file_name(part) for part in (data, model) if part)])


def _file_name(name: str) -> str:
    """A name with only characters that every file system takes; what stands in brackets is set off by a hyphen."""
    parts = (part.strip() for part in re.split(r"[()]", name))
    return "-".join(re.sub(r"[^\w.+]+", "_", part) for part in parts if part) or "_"


def clear_figures(folder: str | Path, kinds: Iterable[str]) -> list[Path]:
    """Remove the figures that calibrant wrote into a folder, so that none outlives the table that it belongs to.

    Args:
        folder: The folder; it need not exist, and is removed too if nothing else is in it.
        kinds: Beginnings of file names, as in `figure_stem`.

    Returns:
        What was removed. A file stays unless its name begins with a kind, ends with ``.png`` or ``.pdf``, and says inside that
        calibrant made it.
    """
    place, starts = Path(folder), tuple(f"{kind}-" for kind in kinds)
    if not place.is_dir():
        return []
    removed = [file for file in sorted(place.iterdir()) if file.name.startswith(starts) and _is_own(file)]
    for file in removed:
        file.unlink()
    if removed and not any(place.iterdir()):
        place.rmdir()
    return removed


def _is_own(file: Path) -> bool:
    mark = _MARKS.get(file.suffix)
    return mark is not None and file.is_file() and not file.is_symlink() and mark in file.read_bytes()


def render_figure(figure: Figure, *, kind: str) -> bytes:
    """Return the content of a ``"png"`` or ``"pdf"`` file of ``figure``."""
    return _rendered(figure, format=kind, metadata=_METADATA[kind])


def _rendered(figure: Figure, **options: object) -> bytes:
    buffer = io.BytesIO()
    with print_style(), warnings.catch_warnings():
        # A name in letters that the font lacks is shown as boxes; the figure is no worse for the rest.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def tell(artist: Artist, label: str, facts: str) -> None:
    """Say whose row an artist shows, and what; pages show that where the pointer is, and can hide the row."""
    artist.set_gid(f"{label}{_TOLD}{facts}")


def svg_element(figure: Figure, *, name: str, label: str) -> str:
    """Return a figure as an ``<svg>`` element that a page holds and colours.

    What `tell` said of an artist becomes its ``data-run`` and its tooltip, and all of that together
    the description of the picture. Colours are attributes, which a style sheet replaces for dark pages.

    Args:
        figure: A figure.
        name: What makes its parts differ from those of other figures in the page.
        label: What the picture shows, for those who do not see it.
    """
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _LINK[1:-5])
    root = ET.fromstring(_rendered(figure, format="svg", transparent=True))
    told: dict[str, None] = {}
    for part in root.iter():
        for child in [child for child in part if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")]:
            part.remove(child)
        _clean(part, name, told)
    for key in ("width", "height", "version"):
        root.attrib.pop(key)
    root.attrib |= {"role": "img", "aria-label": label, "stroke-linejoin": "round", "fill": "#000000"}
    description = ET.Element(f"{{{_SVG}}}desc")
    description.text = " ".join(f"{text}." for text in told)
    root.insert(0, description)
    return ET.tostring(root, encoding="unicode")


def _clean(part: ET.Element, name: str, told: dict[str, None]) -> None:
    """Make one element fit for a page: no style of its own, short numbers, an id only where something refers to it."""
    # A page's security policy forbids styles that are written at an element.
    rules = dict(rule.split(":", 1) for rule in part.attrib.pop("style", "").split(";") if rule.strip())
    part.attrib |= {key.strip(): value.strip() for key, value in rules.items()}
    part.attrib.pop("font-family", None)
    if part.attrib.get("transform", "").startswith("rotate(-0 "):
        part.attrib.pop("transform")
    part.text, part.tail = (None if text is None or text.isspace() else text for text in (part.text, part.tail))
    identity = part.attrib.pop("id", "")
    if _TOLD in identity:
        tip = ET.Element(f"{{{_SVG}}}title")
        tip.text = identity.replace(_TOLD, ": ")
        part.attrib["data-run"] = identity.split(_TOLD)[0]
        part.insert(0, tip)
        told[tip.text] = None
    elif part.tag != f"{{{_SVG}}}g" and identity:
        part.attrib["id"] = f"{name}-{identity}"
    for key in ("clip-path", _LINK):
        if "#" in part.attrib.get(key, ""):
            part.attrib[key] = part.attrib[key].replace("#", f"#{name}-")
    for key in ("d", "x", "y", "transform"):
        if key in part.attrib:
            part.attrib[key] = " ".join(re.sub(r"(\.\d)\d+", r"\1", part.attrib[key]).split())
