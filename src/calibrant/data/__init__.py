"""Data sets by name: each entry reads files (or nothing, where the set is embedded) and returns a `DataSet`."""

from collections.abc import Callable
from pathlib import Path

from calibrant.data.cifar import load_cifar10, load_cifar100
from calibrant.data.digits import load_digits
from calibrant.data.image_set import DataSet, ImageSet
from calibrant.data.mixture import load_mixture

# Sets that are part of the package and need no files.
EMBEDDED: dict[str, Callable[[], DataSet]] = {"digits": load_digits, "mixture": load_mixture}
# Sets that lie in a folder.
ON_DISK: dict[str, Callable[[str | Path], DataSet]] = {"cifar10": load_cifar10, "cifar100": load_cifar100}
DATASETS = [*EMBEDDED, *ON_DISK]

__all__ = [
    "DATASETS",
    "EMBEDDED",
    "ON_DISK",
    "DataSet",
    "ImageSet",
    "load_cifar10",
    "load_cifar100",
    "load_digits",
    "load_mixture",
]
