import gzip
import hashlib
import struct

import numpy as np
import pytest
import torch
from sklearn import datasets

from calibrant.data import load_digits, sets


def idx(array):
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_set(folder, monkeypatch, *, table="MNIST_FILES", packed=True):
    rng = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte": rng.integers(0, 256, (12, 28, 28), dtype=np.uint8),
        "train-labels-idx1-ubyte": np.arange(12, dtype=np.uint8) % 10,
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (5, 28, 28), dtype=np.uint8),
        "t10k-labels-idx1-ubyte": np.arange(5, dtype=np.uint8),
    }
    folder.mkdir(parents=True)
    files = {}
    for name, array in arrays.items():
        content = idx(array)
        gz = gzip.compress(content)
        files[name] = (hashlib.md5(content).hexdigest(), len(gz), hashlib.md5(gz).hexdigest())
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gz if packed else content)
    monkeypatch.setattr(sets, table, files)
    return arrays


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
def test_load_mnist_reads_every_place_plain_and_packed(tmp_path, monkeypatch, folder, packed):
    arrays = write_set(tmp_path / "root" / folder if folder != "." else tmp_path / "root", monkeypatch, packed=packed)
    data = sets.load_mnist(tmp_path / "root")
    assert (data.name, data.train.num_classes, data.train.pad, data.train.flip) == ("mnist", 10, 2, False)
    assert data.train.images.shape == (12, 28, 28, 1)
    assert data.train.images[3, 5, 7, 0] == arrays["train-images-idx3-ubyte"][3, 5, 7]
    assert data.train.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert data.test.labels.tolist() == [0, 1, 2, 3, 4]
    assert data.test.images[..., 0].numpy().tobytes() == arrays["t10k-images-idx3-ubyte"].tobytes()


def test_load_fashion_mnist_has_names_and_mirrors(tmp_path, monkeypatch):
    write_set(tmp_path / "fashion-mnist", monkeypatch, table="FASHION_FILES")
    data = sets.load_fashion_mnist(tmp_path)
    assert data.train.class_names[9] == "Ankle boot"
    assert data.test.flip
    assert data.test.mean == (0.2860,)


@pytest.mark.parametrize("wrong", ["changed", "cut", "not packed"])
def test_load_mnist_other_content_is_refused(tmp_path, monkeypatch, wrong):
    write_set(tmp_path / "mnist", monkeypatch)
    file = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    content = gzip.decompress(file.read_bytes())
    file.write_bytes(
        {
            "changed": gzip.compress(content[:-1] + b"\7"),
            "cut": file.read_bytes()[:-10],
            "not packed": content,
        }[wrong]
    )
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte.gz: must be the published file"):
        sets.load_mnist(tmp_path)


def test_load_digits_holds_every_image_of_scikit_learn_once():
    data, raw = load_digits(), datasets.load_digits()
    assert (len(data.train), len(data.test)) == (1297, 500)
    images = torch.cat([data.test.images, data.train.images])
    labels = torch.cat([data.test.labels, data.train.labels])
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    expected = torch.from_numpy(raw.images)[order].mul(255 / 16).round().to(torch.uint8)
    assert torch.equal(images.squeeze(3), expected)
    assert torch.equal(labels, torch.from_numpy(raw.target).long()[order])
