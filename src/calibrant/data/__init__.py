"""Data sets by name: each entry reads files (or nothing, where the set is embedded) and returns a `DataSet`."""

from collections.abc import Callable
from pathlib import Path

from calibrant.data.cifar import load_cifar10, load_cifar100
from calibrant.data.digits import load_digits
from calibrant.data.folder import load_folder
from calibrant.data.image_set import DataSet, ImageSet
from calibrant.data.mixture import load_mixture
from calibrant.data.mnist import load_fashion_mnist, load_mnist
from calibrant.data.npz import load_npz
from calibrant.data.path import is_path, load_path
from calibrant.data.shift import CORRUPTIONS, corrupt, shifted_sets
from calibrant.data.sources import DEFAULT_ROOT, SOURCES, fetch
from calibrant.data.tiny_imagenet import load_tiny_imagenet

# Sets that are part of the package and need no files.
EMBEDDED: dict[str, Callable[[], DataSet]] = {"digits": load_digits, "mixture": load_mixture}
# Sets that lie in a folder.
ON_DISK: dict[str, Callable[[str | Path], DataSet]] = {
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "tiny-imagenet": load_tiny_imagenet,
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
}
DATASETS = [*EMBEDDED, *ON_DISK]

__all__ = [
    "CORRUPTIONS",
    "DATASETS",
    "DEFAULT_ROOT",
    "EMBEDDED",
    "ON_DISK",
    "SOURCES",
    "DataSet",
    "ImageSet",
    "corrupt",
    "fetch",
    "is_path",
    "load_cifar10",
    "load_cifar100",
    "load_digits",
    "load_fashion_mnist",
    "load_folder",
    "load_mixture",
    "load_mnist",
    "load_npz",
    "load_path",
    "load_tiny_imagenet",
    "shifted_sets",
]
