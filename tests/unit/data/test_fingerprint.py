from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from calibrant.data import DataSet, ImageSet
from calibrant.data import image_set as module
from calibrant.data.image_set import difference, fingerprint


def images(n: int, *, first: int = 0, names: tuple[str, ...] | None = ("ant", "bee")) -> ImageSet:
    pixels = (first + torch.arange(n * 12)).remainder(251).to(torch.uint8).view(n, 2, 2, 3)
    return ImageSet(pixels, torch.arange(n) % 2, 2, (0.5,) * 3, (0.5,) * 3, class_names=names)


DATA = DataSet("insects", images(10), images(4, first=7))


def test_fingerprint_counts_and_hashes_are_those_of_the_bytes_on_any_machine():
    assert fingerprint(DATA) == {
        "num_classes": 2,
        "train_examples": 10,
        "test_examples": 4,
        "class_names": "cb375e27548ea219",
        "train": "9f862dd7f4258aaaf60f4e6010620674",
        "test": "19788f9dbcca22cb22df00dc53494841",
    }


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (replace(DATA, test=images(5, first=7)), "4 test images then and 5 now"),
        (replace(DATA, train=images(12)), "10 images to train on then and 12 now"),
        (replace(DATA, test=replace(DATA.test, num_classes=3)), "2 classes then and 3 now"),
        (replace(DATA, test=replace(DATA.test, class_names=("ant", "wasp"))), "other names of classes"),
        (replace(DATA, test=images(4, first=8)), "other test images or labels"),
        (replace(DATA, test=replace(DATA.test, labels=1 - DATA.test.labels)), "other test images or labels"),
        (replace(DATA, train=images(10, first=1)), "other images or labels to train on"),
        (replace(DATA, train=DATA.train.pick([1, 0, *range(2, 10)])), "other images or labels to train on"),
        (DataSet("elsewhere", DATA.train, replace(DATA.test, mean=(0.1,) * 3)), ""),
    ],
)
def test_difference_says_what_is_not_the_same(changed, words):
    assert difference(fingerprint(DATA), fingerprint(changed)) == words


def test_difference_passes_over_what_was_not_kept():
    assert difference({}, fingerprint(DATA)) == ""
    assert difference({"test_examples": 4}, fingerprint(DATA)) == ""
    assert difference(fingerprint(DATA), {"test_examples": 9}, when=("in a", "in b")) == "4 test images in a and 9 in b"


@pytest.mark.parametrize("place", [0, 15, 16, -1])
def test_fingerprint_of_several_blocks_sees_a_change_at_either_end_of_one(place, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 16)
    changed = images(10)
    changed.images.view(-1)[place] += 1
    assert difference(fingerprint(DATA), fingerprint(replace(DATA, train=changed))) == "other images or labels to train on"
