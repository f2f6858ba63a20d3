"""Tiny-ImageNet in its official layout, extracted or still in the archive; its validation part is the test set.

The labels of the official test part were never published.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import torch

from calibrant.data.image_set import DataSet, ImageSet
from calibrant.data.own_images import Form, Picture, decode, open_binary
from calibrant.data.source import DataSource, RemoteFile, Shape, not_there
from calibrant.io.download import file_md5

FOLDER, ARCHIVE = "tiny-imagenet-200", "tiny-imagenet-200.zip"
ARCHIVE_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
# ImageNet's statistics, with which the published calibration code normalises this set.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FORM = Form(64, 64, 3)


# Classes, and images of each to train and to test on.
COUNTS = (200, 500, 50)


class _Tree(NamedTuple):
    """The files of the set, by their path in it; the same for a folder and an archive."""

    place: str
    paths: Sequence[str]
    open: Callable[[str], IO[bytes]]

    def text(self, path: str) -> str:
        try:
            with self.open(path) as handle:
                return handle.read().decode()
        except (OSError, KeyError, UnicodeDecodeError):
            raise ValueError(f"{self.place}/{path}: must be there as text, got none. Unpack the archive again.") from None


def load_tiny_imagenet(root: str | Path) -> DataSet:
    """Read Tiny-ImageNet: 100,000 training and 10,000 test images of 64x64 pixels in two hundred classes.

    Classes are numbered in the order of their sorted WordNet ids and named by their first word in ``words.txt``; grey images
    become colour ones.

    Args:
        root: Folder that holds ``tiny-imagenet-200/`` or ``tiny-imagenet-200.zip`` (or is that folder).

    Returns:
        The set; raises ``FileNotFoundError`` with the way to get it, ``ValueError`` if files are missing or changed.
    """
    with ExitStack() as stack:
        tree = _open(Path(root), stack)
        wnids = sorted(tree.text("wnids.txt").split())
        if len(set(wnids)) != COUNTS[0]:
            raise ValueError(f"{tree.place}/wnids.txt: must name {COUNTS[0]} classes, got {len(set(wnids))}.")
        names = _names(tree.text("words.txt"), wnids)
        train, test = (
            ImageSet(
                decode([Picture(f"{tree.place}/{path}", partial(tree.open, path)) for path, _ in files], FORM),
                torch.tensor([label for _, label in files], dtype=torch.int64),
                len(wnids),
                MEAN,
                STD,
                class_names=names,
                pad=4,
                flip=True,
            )
            for files in (_train_files(tree, wnids), _val_files(tree, wnids))
        )
    return DataSet("tiny-imagenet", train, test)


def _open(root: Path, stack: ExitStack) -> _Tree:
    for place in (root / FOLDER, root):
        if (place / "wnids.txt").is_file():
            paths = [p.relative_to(place).as_posix() for part in ("train", "val") for p in (place / part).rglob("*.JPEG")]
            return _Tree(str(place), paths, partial(open_binary, place))
    packed = root / ARCHIVE
    if not packed.is_file():
        raise not_there("tiny-imagenet", root, f"{FOLDER}/ or {ARCHIVE}")
    if file_md5(packed) != ARCHIVE_MD5:
        raise ValueError(f"{packed}: must be the published file (MD5 {ARCHIVE_MD5}), got another one. Fetch it again.")
    # Members are read where they lie and looked up by name: nothing is extracted, so no path can lead elsewhere.
    archive = stack.enter_context(zipfile.ZipFile(packed))
    paths = [name.removeprefix(f"{FOLDER}/") for name in archive.namelist() if name.startswith(f"{FOLDER}/")]
    return _Tree(str(packed), paths, lambda path: archive.open(f"{FOLDER}/{path}"))


def _names(words: str, wnids: list[str]) -> tuple[str, ...]:
    """Return the first word for each class, or all its words where another class has the same first one."""
    lines = dict(line.split("\t", 1) for line in words.splitlines() if "\t" in line)
    full = [lines.get(wnid, wnid).strip() for wnid in wnids]
    short = [text.split(",")[0].strip() for text in full]
    return tuple(whole if short.count(first) > 1 else first for first, whole in zip(short, full, strict=True))


def _train_files(tree: _Tree, wnids: list[str]) -> list[tuple[str, int]]:
    by_class: dict[str, list[str]] = {wnid: [] for wnid in wnids}
    for path in tree.paths:
        pieces = PurePosixPath(path).parts
        if len(pieces) == 4 and pieces[0] == "train" and pieces[2] == "images" and pieces[1] in by_class:
            by_class[pieces[1]].append(path)
    for wnid, found in by_class.items():
        _check_count(len(found), COUNTS[1], f"{tree.place}/train/{wnid}/images")
    return [(path, label) for label, wnid in enumerate(wnids) for path in sorted(by_class[wnid])]


def _val_files(tree: _Tree, wnids: list[str]) -> list[tuple[str, int]]:
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    there = set(tree.paths)
    files: dict[str, int] = {}
    for number, line in enumerate(tree.text("val/val_annotations.txt").splitlines(), 1):
        name, _, rest = line.partition("\t")
        wnid, path = rest.partition("\t")[0], f"val/images/{name}"
        if wnid not in labels or path not in there:
            raise ValueError(
                f"{tree.place}/val/val_annotations.txt: line {number} must name an image in val/images and its class, "
                f"got {line[:60]!r}. Unpack the archive again."
            )
        files[path] = labels[wnid]
    _check_count(len(files), COUNTS[0] * COUNTS[2], f"{tree.place}/val/images")
    return sorted(files.items())


def _check_count(found: int, wanted: int, place: str) -> None:
    if found != wanted:
        raise ValueError(f"{place}: must hold {wanted:,} labelled images, got {found:,}. Unpack the archive again.")


TINY_IMAGENET = DataSource(
    name="tiny-imagenet",
    label="Tiny-ImageNet",
    about="Tiny-ImageNet: 110,000 images of 64x64 pixels, 200 classes",
    load=load_tiny_imagenet,
    shape=Shape(100_000, 10_000, (64, 64), 3, 200),
    files=(
        RemoteFile(
            ARCHIVE, 248_100_043, ARCHIVE_MD5, tuple(f"{web}://cs231n.stanford.edu/{ARCHIVE}" for web in ("http", "https"))
        ),
    ),
    others=(f"{FOLDER}/wnids.txt",),
)
