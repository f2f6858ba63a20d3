"""Handwritten digits, embedded in scikit-learn: 1,797 images of 8x8 pixels. Needs no download."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.data.image_set import DataSet, ImageSet


def load_digits() -> DataSet:
    """Read the digits: 1,297 to train on and 500 to test on, the same ones every time.

    Returns:
        The set in ten classes, one channel, grey levels 0..16 stretched to 0..255.
    """
    table = torch.from_numpy(_read_table())
    images = table[:, :-1].reshape(-1, 8, 8, 1).mul(255 / 16).round().to(torch.uint8)
    labels = table[:, -1].long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    names = tuple(str(digit) for digit in range(10))
    whole = ImageSet(images, labels, 10, (0.3053,), (0.3761,), class_names=names, pad=1)
    return DataSet("digits", whole.pick(order[500:]), whole.pick(order[:500]))


def _read_table() -> NDArray[np.float64]:
    """64 grey levels and the digit, one image a line."""
    package = find_spec("sklearn")
    file = Path((package and package.origin) or "").parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        # 20 ms; importing scikit-learn takes more than a second, in every process that trains.
        with gzip.open(file, "rt") as lines:
            return np.loadtxt(lines, delimiter=",")
    from sklearn import datasets

    found = datasets.load_digits()
    return np.column_stack([found.data, found.target])
