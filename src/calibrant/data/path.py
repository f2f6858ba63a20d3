"""A data set of one's own, named by its path."""

from __future__ import annotations

import os
from pathlib import Path

from calibrant.data.folder import load_folder
from calibrant.data.image_set import DataSet
from calibrant.data.npz import load_npz
from calibrant.data.tiny_imagenet import load_tiny_imagenet


def is_path(name: str) -> bool:
    """Whether ``name`` is meant as a path: it has a separator or the ending ``.npz``, or there is such a folder.

    Example:
        >>> is_path("photos/birds"), is_path("birds.npz"), is_path("cifar10")
        (True, True, False)
    """
    return os.sep in name or "/" in name or name.lower().endswith(".npz") or Path(name).expanduser().is_dir()


def load_path(path: str | Path) -> DataSet:
    """Read an ``.npz`` of images, or a folder: of class folders, or of Tiny-ImageNet.

    Args:
        path: The file or folder.

    Returns:
        The set. Raises as `load_npz` and `load_folder`.
    """
    given = Path(path).expanduser()
    if given.suffix.lower() == ".npz" and not given.is_dir():
        return load_npz(given)
    if given.is_file():
        raise ValueError(f"{path}: must be a folder of class folders or an .npz of images, got another file.")
    if (given / "wnids.txt").is_file():
        return load_tiny_imagenet(given)
    return load_folder(given)
