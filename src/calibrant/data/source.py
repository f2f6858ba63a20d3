"""The record of a named data set: what it is, where to download it, and how to read it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import NamedTuple

from calibrant.data.image_set import DataSet
from calibrant.io.download import download

# Where `calibrant data fetch` puts sets, and where they are looked for.
DEFAULT_ROOT = Path("~/.cache/calibrant/data").expanduser()


class RemoteFile(NamedTuple):
    """A published file: where it goes below the root, its bytes, its checksum, and its addresses in the order to be tried."""

    path: str
    size: int
    md5: str
    urls: tuple[str, ...]


class Shape(NamedTuple):
    """How many examples a set has to train and to test on, and what they are."""

    train: int
    test: int
    size: tuple[int, int]
    channels: int
    num_classes: int


@dataclass(frozen=True)
class DataSource:
    """A named data set. Installed packages add theirs through the entry points ``calibrant.datasets``.

    Attributes:
        name: Name in commands.
        label: Name in tables and figures.
        about: A short description.
        load: Reads it from the folder of data sets; a set without files ignores the folder.
        shape: Its size, known before it is downloaded.
        files: Files to download.
        others: Other paths below the root that show the set is there.
        settings: Recipe settings that suit it better than those for CIFAR.
    """

    name: str
    label: str
    about: str
    load: Callable[[Path], DataSet]
    shape: Shape
    files: tuple[RemoteFile, ...] = ()
    others: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def embedded(self) -> bool:
        """Whether the set needs no files."""
        return not self.files and not self.others

    @property
    def bytes(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)

    def is_there(self, root: str | Path | None = None) -> bool:
        """Whether the set seems to lie below ``root`` (its content is looked at when it is read)."""
        place = Path(root or DEFAULT_ROOT).expanduser()
        fetched = all((place / file.path).is_file() for file in self.files)
        return (fetched and bool(self.files)) or self.embedded or any((place / path).is_file() for path in self.others)

    def fetch(self, root: str | Path | None = None, *, report: Callable[[int], None] | None = None) -> list[Path]:
        """Download the set, or what is missing of it, and return its files; ``report`` is called with numbers of new bytes."""
        place = Path(root or DEFAULT_ROOT).expanduser()
        return [download(file.urls, place / file.path, md5=file.md5, report=report) for file in self.files]


def not_there(name: str, root: Path, wanted: str) -> FileNotFoundError:
    """The error for a set whose files are not where they are looked for."""
    return FileNotFoundError(
        f"{name}: `root` must hold {wanted}, got {root} without. "
        f"Get it with `calibrant data fetch {name}`, or name the folder that has it with `--data-root`."
    )


def check_md5(content: BufferedReader | BytesIO, md5: str, path: str | Path) -> None:
    """Raise ``ValueError`` unless ``content`` is that of the published file; then go back to its start."""
    if hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() != md5:
        raise ValueError(
            f"{path}: must be the published file (MD5 {md5}), got another one or none. Delete it and fetch it again."
        )
    content.seek(0)
