"""MNIST (LeCun, Cortes and Burges, 1998) and Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): idx files, plain or packed.

What is compared with the published MD5 is the content: a file may lie there as it was published, unpacked, or packed again.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.data.image_set import DataSet, ImageSet


class Content(NamedTuple):
    """Bytes and MD5 of an unpacked file."""

    size: int
    md5: str


MNIST_FILES = {
    "train-images-idx3-ubyte": Content(47_040_016, "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": Content(60_008, "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": Content(7_840_016, "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": Content(10_008, "27ae3e4e09519cfbb04c329615203637"),
}
FASHION_FILES = {
    "train-images-idx3-ubyte": Content(47_040_016, "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    "train-labels-idx1-ubyte": Content(60_008, "9018921c3c673c538a1fc5bad174d6f9"),
    "t10k-images-idx3-ubyte": Content(7_840_016, "8181f5470baa50b63fa0f6fddb340f0a"),
    "t10k-labels-idx1-ubyte": Content(10_008, "15d484375f8d13e6eb1aabb0c3f46965"),
}
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def load_mnist(root: str | Path) -> DataSet:
    """Read MNIST: 60,000 training and 10,000 test images of handwritten digits, 28x28 pixels, one channel.

    Args:
        root: Folder that holds the four idx files, plain or ``.gz``, in ``mnist/`` or ``MNIST/raw/`` or itself.

    Returns:
        The set; raises ``FileNotFoundError`` with the way to get it, ``ValueError`` if a file is not the published one.
    """
    parts = _read(Path(root), ("mnist", "MNIST/raw", "."), MNIST_FILES, "mnist")
    names = tuple(str(digit) for digit in range(10))
    return _set("mnist", parts, ImageFacts((0.1307,), (0.3081,), names, 2, False))


def load_fashion_mnist(root: str | Path) -> DataSet:
    """Read Fashion-MNIST: 60,000 training and 10,000 test images of clothes, 28x28 pixels, one channel.

    Args:
        root: Folder that holds the four idx files, plain or ``.gz``, in ``fashion-mnist/`` or ``FashionMNIST/raw/`` or itself.

    Returns:
        The set; raises as `load_mnist`.
    """
    parts = _read(Path(root), ("fashion-mnist", "FashionMNIST/raw", "."), FASHION_FILES, "fashion-mnist")
    return _set("fashion-mnist", parts, ImageFacts((0.2860,), (0.3530,), FASHION_CLASSES, 2, True))


class ImageFacts(NamedTuple):
    """What both parts of a set share."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    pad: int
    flip: bool


def _set(name: str, parts: list[Tensor], facts: ImageFacts) -> DataSet:
    train, test = (
        ImageSet(images.unsqueeze(3), labels.long(), 10, **facts._asdict()) for images, labels in (parts[:2], parts[2:])
    )
    return DataSet(name, train, test)


def _read(root: Path, folders: tuple[str, ...], files: dict[str, Content], name: str) -> list[Tensor]:
    for folder in folders:
        paths = [_plain_or_packed(root / folder / file) for file in files]
        found = [path for path in paths if path is not None]
        if len(found) == len(files):
            return [_parse(_content(path, files[path.name.removesuffix(".gz")]), path) for path in found]
    raise FileNotFoundError(
        f"{name}: `root` must hold {', '.join(files)} (or .gz) in {folders[0]}/, got {root} without them. "
        f"Get it with `calibrant data fetch {name}`, or name the folder that has it with `--data-root`."
    )


def _plain_or_packed(path: Path) -> Path | None:
    return next((p for p in (path, path.with_name(f"{path.name}.gz")) if p.is_file()), None)


def _content(path: Path, wanted: Content) -> bytes:
    # One byte more than wanted tells a longer file; a packed file without end fills no memory.
    most = wanted.size + 1
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as handle:
            content = handle.read(most)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        content = b""
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != wanted.md5:
        raise ValueError(f"{path}: must be the published file, got another one. Delete it and fetch it again.")
    return content


def _parse(content: bytes, path: Path) -> Tensor:
    """Read the idx format: two zeros, 8 for bytes, the number of dimensions, their sizes (big-endian), the values."""
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError(f"{path}: must be an idx file of bytes, got one that begins with {content[:4].hex()}.")
    header = 4 + 4 * content[3]
    shape = [int(n) for n in np.frombuffer(content[4:header], dtype=">u4")]
    if len(shape) != content[3] or len(content) != header + int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{path}: must hold as many bytes as its header says, {shape}, got {len(content) - header}.")
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy())
