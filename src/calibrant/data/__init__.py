"""Data sets by name, and your own images by their path."""

from collections.abc import Callable
from pathlib import Path

from calibrant.core.checks import Registry
from calibrant.data.image_set import DEFAULT_ROOT, DataSet, DataSource, ImageSet, RemoteFile
from calibrant.data.sets import (
    CIFAR10,
    CIFAR100,
    DIGITS,
    FASHION_MNIST,
    MNIST,
    TINY_IMAGENET,
    is_path,
    load_cifar10,
    load_cifar100,
    load_digits,
    load_fashion_mnist,
    load_folder,
    load_mnist,
    load_npz,
    load_path,
    load_tiny_imagenet,
)
from calibrant.data.synthetic import CORRUPTIONS, MIXTURE, corrupt, load_mixture, shifted_sets

_BUILT_IN = (DIGITS, MIXTURE, CIFAR10, CIFAR100, TINY_IMAGENET, MNIST, FASHION_MNIST)
DATASETS = Registry("data set", "calibrant.datasets", {source.name: source for source in _BUILT_IN}, of=DataSource)


def fetch(name: str, *, root: str | Path | None = None, report: Callable[[int], None] | None = None) -> list[Path]:
    """Download a data set, or what is missing of it; see `DataSource.fetch`."""
    return DATASETS[name].fetch(root, report=report)


def data_name(name: str) -> str:
    """The name of a data set in print; your own keep their name.

    Example:
        >>> data_name("cifar100"), data_name("birds")
        ('CIFAR-100', 'birds')
    """
    return DATASETS[name].label if name in DATASETS else name


__all__ = [
    "CORRUPTIONS",
    "DATASETS",
    "DEFAULT_ROOT",
    "DataSet",
    "DataSource",
    "ImageSet",
    "RemoteFile",
    "corrupt",
    "data_name",
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
