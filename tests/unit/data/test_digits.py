from __future__ import annotations

import pytest
import torch
from sklearn import datasets

from calibrant.data import load_digits


def test_load_digits_holds_every_image_of_scikit_learn_once() -> None:
    data, raw = load_digits(), datasets.load_digits()
    assert (len(data.train), len(data.test)) == (1297, 500)
    images = torch.cat([data.test.images, data.train.images])
    labels = torch.cat([data.test.labels, data.train.labels])
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    expected = torch.from_numpy(raw.images)[order].mul(255 / 16).round().to(torch.uint8)
    assert torch.equal(images.squeeze(3), expected)
    assert torch.equal(labels, torch.from_numpy(raw.target).long()[order])


def test_load_digits_does_not_import_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("imports a second's worth of modules")

    monkeypatch.setattr(datasets, "load_digits", refuse)
    assert len(load_digits().train) == 1297
