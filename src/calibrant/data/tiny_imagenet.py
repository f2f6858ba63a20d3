"""Tiny-ImageNet in its official layout, extracted or still in the archive; its validation part is the test set.

The labels of the official test part were never published.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch

from calibrant.data.image_set import DataSet, ImageSet
from calibrant.data.own_images import decode
from calibrant.data.source import DataSource, RemoteFile, Shape, check_md5, not_there

FOLDER, ARCHIVE = "tiny-imagenet-200", "tiny-imagenet-200.zip"
ARCHIVE_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
# ImageNet's statistics, with which the published calibration code normalises this set.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Classes, and images of each to train and to test on.
COUNTS = (200, 500, 50)


def load_tiny_imagenet(root: str | Path) -> DataSet:
    """Read Tiny-ImageNet: 100,000 training and 10,000 test images of 64x64 pixels in two hundred classes.

    Classes are numbered in the order of their sorted WordNet ids and named by their first word in ``words.txt``; grey images
    become colour ones.

    Args:
        root: Folder that holds ``tiny-imagenet-200/`` or ``tiny-imagenet-200.zip`` (or is that folder).

    Returns:
        The set; raises ``FileNotFoundError`` with the way to get it, ``ValueError`` if files are missing or changed.
    """
    for place in (Path(root) / FOLDER, Path(root)):
        if (place / "wnids.txt").is_file():
            return _read(place)
    packed = Path(root) / ARCHIVE
    if not packed.is_file():
        raise not_there("tiny-imagenet", Path(root), f"{FOLDER}/ or {ARCHIVE}")
    with packed.open("rb") as handle:
        check_md5(handle, ARCHIVE_MD5, packed)
        with zipfile.ZipFile(handle) as archive:
            return _read(zipfile.Path(archive, f"{FOLDER}/"))


def _read(place: Path | zipfile.Path) -> DataSet:
    """Read the set where it lies. No path comes from a file in it, so none can lead elsewhere."""
    classes, per_class, tested = COUNTS
    try:
        wnids = sorted((place / "wnids.txt").read_text().split())
        words = (place / "words.txt").read_text().splitlines()
        notes = (place / "val" / "val_annotations.txt").read_text().splitlines()
        numbers = {wnid: number for number, wnid in enumerate(wnids)}
        labels = {line.split("\t")[0]: numbers[line.split("\t")[1]] for line in notes}
        test_files = sorted(f"val_{number}.JPEG" for number in range(classes * tested))
        test_labels = [labels[file] for file in test_files]
    except (OSError, KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{place}: must hold wnids.txt, words.txt and all of val/, got {error!r}. Unpack it again.") from None
    if len(numbers) != classes:
        raise ValueError(f"{place}: wnids.txt must name {classes} classes, got {len(numbers)}. Unpack it again.")
    names = _names(words, wnids)
    train_files = [
        place / "train" / wnid / "images" / file
        for wnid in wnids
        for file in sorted(f"{wnid}_{number}.JPEG" for number in range(per_class))
    ]
    train_labels = [label for label in range(classes) for _ in range(per_class)]
    train, test = (
        ImageSet(decode(files, (64, 64, 3)), torch.tensor(own), classes, MEAN, STD, class_names=names, pad=4, flip=True)
        for files, own in (
            (train_files, train_labels),
            ([place / "val" / "images" / file for file in test_files], test_labels),
        )
    )
    return DataSet("tiny-imagenet", train, test)


def _names(words: list[str], wnids: list[str]) -> tuple[str, ...]:
    """Return the first word for each class, or all its words where another class has the same first one."""
    lines = dict(line.split("\t", 1) for line in words if "\t" in line)
    full = [lines.get(wnid, wnid).strip() for wnid in wnids]
    short = [text.split(",")[0].strip() for text in full]
    return tuple(whole if short.count(first) > 1 else first for first, whole in zip(short, full, strict=True))


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
