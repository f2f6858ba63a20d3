"""A data set of one's own, named by its path."""

from __future__ import annotations

import os
from pathlib import Path

from calibrant.data.folder import load_folder
from calibrant.data.image_set import DataSet
from calibrant.data.npz import load_npz
from calibrant.data.tiny_imagenet import load_tiny_imagenet


def is_path(name: str) -> bool:
    """Whether ``name`` is meant as a path: it has a separator or the ending ``.npz``, or there is such a folder or file.

    Example:
        >>> is_path("photos/birds"), is_path("birds.npz"), is_path("cifar10")
        (True, True, False)
    """
    return os.sep in name or "/" in name or name.lower().endswith(".npz") or Path(name).expanduser().exists()


def load_path(path: str | Path, *, size: int | None = None) -> DataSet:
    """Read an ``.npz`` of images, or a folder: of class folders, or of Tiny-ImageNet.

    Args:
        path: The file or folder.
        size: Side of the squares that the pictures of class folders are resized to; other sets keep their size.

    Returns:
        The set. Raises as `load_npz` and `load_folder`, and ``ValueError`` where a size is given for a set that has one.
    """
    given = Path(path).expanduser()
    arrays = given.suffix.lower() == ".npz" and not given.is_dir()
    if given.is_file() and not arrays:
        raise ValueError(f"{path}: must be a folder of class folders or an .npz of images, got another file.")
    tiny = (given / "wnids.txt").is_file()
    if size is not None and (arrays or tiny):
        raise ValueError(f"{path}: `size` must be left out, got {size}; only pictures of class folders are resized.")
    if arrays:
        return load_npz(given)
    return load_tiny_imagenet(given) if tiny else load_folder(given, size=size)
