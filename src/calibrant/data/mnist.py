"""Small grey images: MNIST (LeCun, Cortes and Burges, 1998), Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017), and the digits.

The idx files of the first two lie there as published, unpacked, or packed again: their content is compared with its MD5. The
digits are part of scikit-learn.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.data.image_set import DataSet, ImageSet
from calibrant.data.source import DataSource, RemoteFile, Shape, check_md5, not_there

_DIGITS = tuple(str(digit) for digit in range(10))
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


class IdxFile(NamedTuple):
    """Size and MD5 of a file, unpacked and as published (``.gz``)."""

    size: int
    md5: str
    packed_size: int = 0
    packed_md5: str = ""


MNIST_FILES = {
    "train-images-idx3-ubyte": IdxFile(
        47_040_016, "6bbc9ace898e44ae57da46a324031adb", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"
    ),
    "train-labels-idx1-ubyte": IdxFile(60_008, "a25bea736e30d166cdddb491f175f624", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
    "t10k-images-idx3-ubyte": IdxFile(
        7_840_016, "2646ac647ad5339dbf082846283269ea", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"
    ),
    "t10k-labels-idx1-ubyte": IdxFile(10_008, "27ae3e4e09519cfbb04c329615203637", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
}
FASHION_FILES = {
    "train-images-idx3-ubyte": IdxFile(
        47_040_016, "f4a8712d7a061bf5bd6d2ca38dc4d50a", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"
    ),
    "train-labels-idx1-ubyte": IdxFile(60_008, "9018921c3c673c538a1fc5bad174d6f9", 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte": IdxFile(
        7_840_016, "8181f5470baa50b63fa0f6fddb340f0a", 4_422_102, "bef4ecab320f06d8554ea6380940ec79"
    ),
    "t10k-labels-idx1-ubyte": IdxFile(10_008, "15d484375f8d13e6eb1aabb0c3f46965", 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
}


def load_mnist(root: str | Path) -> DataSet:
    """Read MNIST: 60,000 training and 10,000 test images of handwritten digits, 28x28 pixels, one channel.

    Args:
        root: Folder that holds the four idx files, plain or ``.gz``, in ``mnist/`` or ``MNIST/raw/`` or itself.

    Returns:
        The set; raises ``FileNotFoundError`` with the way to get it, ``ValueError`` if a file is not the published one.
    """
    part = partial(ImageSet, num_classes=10, mean=(0.1307,), std=(0.3081,), class_names=_DIGITS, pad=2)
    return _read(Path(root), ("mnist", "MNIST/raw", "."), MNIST_FILES, part)


def load_fashion_mnist(root: str | Path) -> DataSet:
    """Read Fashion-MNIST: 60,000 training and 10,000 test images of clothes, 28x28 pixels, one channel.

    Args:
        root: Folder that holds the four idx files, plain or ``.gz``, in ``fashion-mnist/`` or ``FashionMNIST/raw/`` or itself.

    Returns:
        The set; raises as `load_mnist`.
    """
    part = partial(ImageSet, num_classes=10, mean=(0.2860,), std=(0.3530,), class_names=_CLOTHES, pad=2, flip=True)
    return _read(Path(root), ("fashion-mnist", "FashionMNIST/raw", "."), FASHION_FILES, part)


def _read(root: Path, folders: tuple[str, ...], files: dict[str, IdxFile], part: Callable[..., ImageSet]) -> DataSet:
    for folder in folders:
        either = [(root / folder / name, root / folder / f"{name}.gz") for name in files]
        found = [next(path for path in paths if path.is_file()) for paths in either if any(path.is_file() for path in paths)]
        if len(found) == len(files):
            images, labels, tested, test_labels = map(_parse, found, files.values())
            train, test = part(images.unsqueeze(3), labels.long()), part(tested.unsqueeze(3), test_labels.long())
            return DataSet(folders[0], train, test)
    raise not_there(folders[0], root, f"{', '.join(files)} (or .gz) in {folders[0]}/")


def _parse(path: Path, wanted: IdxFile) -> Tensor:
    """Read the idx format: two zeros, 8 for bytes, the number of dimensions, their sizes (big-endian), the values."""
    content = b""
    with (
        suppress(EOFError, zlib.error, gzip.BadGzipFile),
        gzip.open(path) if path.suffix == ".gz" else path.open("rb") as handle,
    ):
        # One byte more than wanted tells a longer file; a packed file without end fills no memory.
        content = handle.read(wanted.size + 1)
    check_md5(io.BytesIO(content), wanted.md5, path)
    header = 4 + 4 * content[3]
    shape = [int(n) for n in np.frombuffer(content[4:header], dtype=">u4")]
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy())


def load_digits() -> DataSet:
    """Read the digits of scikit-learn, 8x8 pixels: 1,297 to train on and 500 to test on, the same ones every time.

    Returns:
        The set in ten classes, one channel, grey levels 0..16 stretched to 0..255.
    """
    package = find_spec("sklearn")
    assert package is not None
    # Importing scikit-learn would take more than a second, in every process that trains.
    with gzip.open(Path(package.origin or "").parent / "datasets" / "data" / "digits.csv.gz", "rt") as lines:
        table = torch.from_numpy(np.loadtxt(lines, delimiter=","))
    images = table[:, :-1].reshape(-1, 8, 8, 1).mul(255 / 16).round().to(torch.uint8)
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(0))
    whole = ImageSet(images, table[:, -1].long(), 10, (0.3053,), (0.3761,), class_names=_DIGITS, pad=1)
    return DataSet("digits", whole.pick(order[500:]), whole.pick(order[:500]))


def _source(name: str, label: str, about: str, load: Callable[[Path], DataSet], raw: str, *urls: str) -> DataSource:
    files = tuple(
        RemoteFile(f"{name}/{file}.gz", facts.packed_size, facts.packed_md5, tuple(f"{url}/{file}.gz" for url in urls))
        for file, facts in (MNIST_FILES if load is load_mnist else FASHION_FILES).items()
    )
    first = "train-images-idx3-ubyte"
    others = (f"{name}/{first}", f"{raw}/{first}", f"{raw}/{first}.gz")
    return DataSource(name, label, about, load, Shape(60_000, 10_000, (28, 28), 1, 10), files, others)


DIGITS = DataSource(
    name="digits",
    label="digits",
    about="handwritten digits of 8x8 pixels, 10 classes, embedded in scikit-learn",
    load=lambda root: load_digits(),
    shape=Shape(1297, 500, (8, 8), 1, 10),
    # Of a tenth of them every image is often classified right, and then no temperature can be fitted.
    settings={"backbone.name": "convnet", "train.epochs": 30, "data.val": 300},
)
MNIST = _source(
    "mnist",
    "MNIST",
    "MNIST: 70,000 handwritten digits of 28x28 pixels, 10 classes",
    load_mnist,
    "MNIST/raw",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
FASHION_MNIST = _source(
    "fashion-mnist",
    "Fashion-MNIST",
    "Fashion-MNIST: 70,000 clothes of 28x28 pixels, 10 classes",
    load_fashion_mnist,
    "FashionMNIST/raw",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
)
