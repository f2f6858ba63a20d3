"""Handwritten digits, embedded in scikit-learn: 1,797 images of 8x8 pixels. Needs no download."""

from __future__ import annotations

import torch

from calibrant.data.image_set import DataSet, ImageSet


def load_digits() -> DataSet:
    """Read the digits: 1,297 to train on and 500 to test on, the same ones every time.

    Returns:
        The set in ten classes, one channel, grey levels 0..16 stretched to 0..255.
    """
    from sklearn import datasets

    raw = datasets.load_digits()
    images = torch.from_numpy(raw.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(3)
    labels = torch.from_numpy(raw.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    names = tuple(str(digit) for digit in range(10))
    whole = ImageSet(images, labels, 10, (0.3053,), (0.3761,), class_names=names, pad=1)
    return DataSet("digits", whole.pick(order[500:]), whole.pick(order[:500]))
