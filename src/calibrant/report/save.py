"""Writing a figure to disk, twice: as PNG for screens and as PDF for print."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.report.style import print_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Nothing that differs between two runs on the same data: no time, no version.
_METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": "calibrant"},
    "pdf": {"Creator": "calibrant", "Producer": "calibrant", "CreationDate": None},
}
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

    Example:
        >>> import tempfile
        >>> from matplotlib.figure import Figure
        >>> [file.name for file in save_figure(Figure(), Path(tempfile.mkdtemp()) / "empty")]
        ['empty.png', 'empty.pdf']
    """
    from calibrant.io.atomic import atomic_writer

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

    Example:
        >>> import tempfile
        >>> from matplotlib.figure import Figure
        >>> folder = Path(tempfile.mkdtemp())
        >>> files = save_figure(Figure(), folder / "curves-digits")
        >>> _ = (folder / "curves-mine.png").write_bytes(b"mine")
        >>> [file.name for file in clear_figures(folder, ["curves"])], [file.name for file in folder.iterdir()]
        (['curves-digits.pdf', 'curves-digits.png'], ['curves-mine.png'])
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
    buffer = io.BytesIO()
    with print_style(), warnings.catch_warnings():
        # A name in letters that the font lacks is shown as boxes; the figure is no worse for the rest.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format=kind, metadata=_METADATA[kind])
    return buffer.getvalue()
