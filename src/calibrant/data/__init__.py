"""Data sets by name, and your own images by their path."""

from collections.abc import Callable
from pathlib import Path

from calibrant.core.checks import Registry
from calibrant.data import image_set, sets, synthetic
from calibrant.data.image_set import *
from calibrant.data.sets import *
from calibrant.data.synthetic import *

__all__ = ["DATASETS", "data_name", "fetch", *image_set.__all__, *sets.__all__, *synthetic.__all__]

_BUILT_IN = (sets.DIGITS, synthetic.MIXTURE, sets.CIFAR10, sets.CIFAR100, sets.TINY_IMAGENET, sets.MNIST, sets.FASHION_MNIST)
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
