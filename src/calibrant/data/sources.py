"""Where the published sets are downloaded from, and where they lie afterwards. How they are read is in their own modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from calibrant.core.registry import lookup
from calibrant.io.download import download

# Where `calibrant data fetch` puts sets, and where they are looked for.
DEFAULT_ROOT = Path("~/.cache/calibrant/data").expanduser()


class RemoteFile(NamedTuple):
    """A published file.

    Attributes:
        path: Where it goes, below the root.
        size: Its bytes.
        md5: Its checksum.
        urls: Its addresses, in the order in which they are tried.
    """

    path: str
    size: int
    md5: str
    urls: tuple[str, ...]


class Source(NamedTuple):
    """A published set.

    Attributes:
        about: What it is, in a few words.
        files: What is downloaded.
        others: Further paths below the root that show that the set is there, besides the files themselves.
    """

    about: str
    files: tuple[RemoteFile, ...]
    others: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def _idx_files(folder: str, urls: tuple[str, ...], files: dict[str, tuple[int, str]]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(f"{folder}/{name}", size, md5, tuple(f"{url}/{name}" for url in urls)) for name, (size, md5) in files.items()
    )


_KRIZ = ("https://www.cs.toronto.edu/~kriz", "https://cave.cs.toronto.edu/kriz")
SOURCES: dict[str, Source] = {
    "cifar10": Source(
        "CIFAR-10: 60,000 images of 32x32 pixels, 10 classes",
        (
            RemoteFile(
                "cifar-10-python.tar.gz",
                170_498_071,
                "c58f30108f718f92721af3b95e74349a",
                tuple(f"{url}/cifar-10-python.tar.gz" for url in _KRIZ),
            ),
        ),
        ("cifar-10-batches-py/test_batch",),
    ),
    "cifar100": Source(
        "CIFAR-100: 60,000 images of 32x32 pixels, 100 classes",
        (
            RemoteFile(
                "cifar-100-python.tar.gz",
                169_001_437,
                "eb9058c3a382ffc7106e4002c42a8d85",
                tuple(f"{url}/cifar-100-python.tar.gz" for url in _KRIZ),
            ),
        ),
        ("cifar-100-python/test",),
    ),
    "tiny-imagenet": Source(
        "Tiny-ImageNet: 110,000 images of 64x64 pixels, 200 classes",
        (
            RemoteFile(
                "tiny-imagenet-200.zip",
                248_100_043,
                "90528d7ca1a48142e341f4ef8d21d0de",
                ("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "https://cs231n.stanford.edu/tiny-imagenet-200.zip"),
            ),
        ),
        ("tiny-imagenet-200/wnids.txt",),
    ),
    "mnist": Source(
        "MNIST: 70,000 handwritten digits of 28x28 pixels, 10 classes",
        _idx_files(
            "mnist",
            ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
            {
                "train-images-idx3-ubyte.gz": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                "train-labels-idx1-ubyte.gz": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
                "t10k-images-idx3-ubyte.gz": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
                "t10k-labels-idx1-ubyte.gz": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
            },
        ),
        ("mnist/train-images-idx3-ubyte", "MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/train-images-idx3-ubyte.gz"),
    ),
    "fashion-mnist": Source(
        "Fashion-MNIST: 70,000 clothes of 28x28 pixels, 10 classes",
        _idx_files(
            "fashion-mnist",
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            ),
            {
                "train-images-idx3-ubyte.gz": (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                "train-labels-idx1-ubyte.gz": (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
                "t10k-images-idx3-ubyte.gz": (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
                "t10k-labels-idx1-ubyte.gz": (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
            },
        ),
        (
            "fashion-mnist/train-images-idx3-ubyte",
            "FashionMNIST/raw/train-images-idx3-ubyte",
            "FashionMNIST/raw/train-images-idx3-ubyte.gz",
        ),
    ),
}


def fetch(name: str, *, root: str | Path | None = None, report: Callable[[int], None] | None = None) -> list[Path]:
    """Download a published set, or what is missing of it.

    Args:
        name: A key of ``SOURCES``.
        root: Folder to put it in; the usual place by default.
        report: Called with the number of bytes that were added.

    Returns:
        The files. Raises as `download`.
    """
    place = Path(root or DEFAULT_ROOT).expanduser()
    source = lookup(SOURCES, name, kind="data set to fetch")
    return [download(file.urls, place / file.path, md5=file.md5, report=report) for file in source.files]


def is_there(name: str, *, root: str | Path | None = None) -> bool:
    """Whether a published set seems to lie below ``root`` (its content is looked at when it is read)."""
    place = Path(root or DEFAULT_ROOT).expanduser()
    source = SOURCES[name]
    fetched = all((place / file.path).is_file() for file in source.files)
    return fetched or any((place / path).is_file() for path in source.others)
