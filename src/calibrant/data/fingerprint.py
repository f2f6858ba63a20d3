"""By what one knows again the images and labels that a run was trained and tested on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b

import numpy as np

from calibrant.data.image_set import DataSet, ImageSet

# Bytes that one thread hashes at a time; another number makes other fingerprints.
_BLOCK = 16 * 2**20
_WORKERS = 8
# Key → what is said where it differs, the plainest first.
_COUNTS = {"num_classes": "classes", "test_examples": "test images", "train_examples": "images to train on"}
_HASHES = {"class_names": "names of classes", "test": "test images or labels", "train": "images or labels to train on"}


def fingerprint(data: DataSet) -> dict[str, int | str]:
    """Return how many images a set has and a hash of them, as plain data.

    It is that of the set as it was read, before a run divides what may be trained on: neither seed nor the sizes of the parts
    of a run change it. Machines and versions of this package agree on it, as long as pictures are decoded to the same pixels.

    Args:
        data: The set.

    Returns:
        ``num_classes``, ``train_examples`` and ``test_examples``, and hashes: ``class_names``, ``train``, ``test`` (of pixels
        and labels, in order).

    Example:
        >>> from calibrant.data import load_digits
        >>> found = fingerprint(load_digits())
        >>> found["num_classes"], found["train_examples"], found["test_examples"], found["test"]
        (10, 1297, 500, '179527b82a61bc8a5b44041355a6e60c')
    """
    return {
        "num_classes": data.test.num_classes,
        "train_examples": len(data.train),
        "test_examples": len(data.test),
        "class_names": _digest("\0".join(data.test.class_names or ()).encode(), size=8),
        "train": _part(data.train),
        "test": _part(data.test),
    }


def difference(then: Mapping[str, object], now: Mapping[str, object], *, when: tuple[str, str] = ("then", "now")) -> str:
    """Say in a few words what two fingerprints differ in, the first thing found; empty where they are the same.

    Args:
        then: What was.
        now: What is; keys that one of the two lacks are not compared.
        when: What the two are called.

    Example:
        >>> difference({"num_classes": 3, "test_examples": 36}, {"num_classes": 3, "test_examples": 40, "test": "9a"})
        '36 test images then and 40 now'
        >>> difference({"test_examples": 40, "test": "17"}, {"test_examples": 40, "test": "9a"})
        'other test images or labels'
    """
    differ = {key for key in then.keys() & now.keys() if then[key] != now[key]}
    for key, words in _COUNTS.items():
        if key in differ:
            return f"{_number(then[key])} {words} {when[0]} and {_number(now[key])} {when[1]}"
    return next((f"other {words}" for key, words in _HASHES.items() if key in differ), "")


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _part(part: ImageSet) -> str:
    pixels = np.ascontiguousarray(part.images.numpy()).reshape(-1)
    labels = part.labels.numpy().astype("<i8").tobytes()
    starts = range(0, len(pixels), _BLOCK)
    blocks = [pixels[start : start + _BLOCK] for start in starts]
    # Hashing leaves Python's lock; 180 MB of CIFAR-10 take 0.2 s of one core.
    with ThreadPoolExecutor(min(_WORKERS, os.cpu_count() or 1, max(len(blocks), 1))) as pool:
        hashed = pool.map(lambda block: blake2b(block, digest_size=32).digest(), blocks)
        return _digest(str(list(part.images.shape)).encode(), labels, *hashed, size=16)


def _digest(*pieces: bytes, size: int) -> str:
    whole = blake2b(digest_size=size)
    for piece in pieces:
        whole.update(piece)
    return whole.hexdigest()
