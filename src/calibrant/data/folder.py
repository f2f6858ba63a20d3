"""Any folder of class folders: the name of a folder is the class of the pictures in it."""

from __future__ import annotations

import difflib
from pathlib import Path

import torch
from torch import Tensor

from calibrant.core.checks import check_count
from calibrant.data.image_set import DataSet, ImageSet
from calibrant.data.pictures import ENDINGS, Picture, common_form, decode
from calibrant.data.splits import held_out_rows
from calibrant.data.statistics import channel_statistics

_TEST_NAMES = ("test", "val", "valid", "validation")


def load_folder(path: str | Path, *, size: int | None = None, seed: int = 0) -> DataSet:
    """Read ``train/<class>/*`` and ``test/<class>/*``, or ``<class>/*`` of which a fifth of each class is held out.

    Classes are the sorted names of the class folders. Pictures may lie in folders of their own below these; files and
    folders that start with a dot, and files that are no pictures by their name, are passed over. Where there is no
    ``test``, ``val`` is the test part; ``val`` beside ``test`` is not read, since every run draws its own validation part.

    Pictures of one size, at most 256 pixels a side, are kept as they are. Others are resized to squares of the median
    shorter side, at most 224: scaled so that they cover it, and cut to the middle.

    Args:
        path: The folder.
        size: Side of the squares, where the pictures are to be resized to another one.
        seed: Seed of the held-out part.

    Returns:
        The set: colour unless every picture is grey, with the training part's mean and standard deviation, padded by an
        eighth of the shorter side for random crops and not mirrored. Raises ``OSError`` or ``ValueError`` with one sentence
        that names the file or folder at fault.
    """
    root = Path(path).expanduser()
    if size is not None:
        check_count(size, where="load_folder", name="size")
    if not root.is_dir():
        raise FileNotFoundError(f"{path}: must be a folder of class folders, got no folder. Check the path.")
    if (root / "train").is_dir():
        parts = [root / "train", _test_folder(root)]
    else:
        parts = [root]
    names = _class_names(parts[0])
    found = [_pictures(part, names) for part in parts]
    form = common_form([picture for pictures, _ in found for picture in pictures], size=size)
    images = [decode(pictures, form) for pictures, _ in found]
    labels = [labels for _, labels in found]
    if len(parts) == 1:
        rows = held_out_rows(labels[0], seed=seed)
        if not len(rows[1]):
            raise ValueError(f"{path}: must hold two pictures of a class or more, to test on some of them, got one of each.")
        images, labels = [images[0][r] for r in rows], [labels[0][r] for r in rows]
    mean, std = channel_statistics(images[0])
    pad = min(form.height, form.width) // 8
    train, test = (
        ImageSet(i, y, len(names), mean, std, class_names=names, pad=pad) for i, y in zip(images, labels, strict=True)
    )
    return DataSet(root.resolve().name, train, test)


def _test_folder(root: Path) -> Path:
    for name in _TEST_NAMES:
        if (root / name).is_dir():
            return root / name
    raise FileNotFoundError(
        f"{root}: must hold test/ beside train/, got train/ alone. Add it, or name {root / 'train'}, "
        "of which a fifth will be held out."
    )


def _class_names(part: Path) -> tuple[str, ...]:
    names = tuple(sorted(entry.name for entry in part.iterdir() if entry.is_dir() and not entry.name.startswith(".")))
    if len(names) < 2:
        got = f"the folder {names[0]} alone" if names else "no folder"
        raise ValueError(f"{part}: must hold a folder for each of two or more classes, got {got}.")
    return names


def _pictures(part: Path, names: tuple[str, ...]) -> tuple[list[Picture], Tensor]:
    """Return the pictures of one part and their labels; every class must have some in what is trained on."""
    pictures: list[Picture] = []
    labels: list[int] = []
    for name in _class_names(part):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{part / name}: a class of the test part must be one that is trained on, got another.{hint}")
        paths = sorted(path for path in (part / name).rglob("*") if _is_picture(path, part))
        if not paths:
            raise ValueError(f"{part / name}: must hold pictures ({', '.join(ENDINGS)}), got none.")
        pictures += [Picture.from_path(p) for p in paths]
        labels += [names.index(name)] * len(paths)
    return pictures, torch.tensor(labels, dtype=torch.int64)


def _is_picture(path: Path, part: Path) -> bool:
    hidden = any(piece.startswith(".") for piece in path.relative_to(part).parts)
    return path.suffix.lower() in ENDINGS and not hidden and path.is_file()
