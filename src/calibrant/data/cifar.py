"""CIFAR-10 and CIFAR-100 in their official python layout, extracted or still in the archive (Krizhevsky, 2009).

The files are pickles. They are read by an unpickler that knows three numpy names and nothing else, so a forged file cannot
run code, and every file is compared with its published MD5.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.data.image_set import DataSet, ImageSet
from calibrant.data.source import DataSource, RemoteFile, Shape, check_md5, not_there

# Published with the sets; both are normalised by CIFAR-10's statistics, as in the published calibration code.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

CIFAR10_FILES = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
CIFAR100_FILES = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
# CIFAR-100's training part, with room to spare.
_LARGEST_FILE = 200_000_000
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a CIFAR file")
        if name == "_reconstruct":
            from numpy._core.multiarray import _reconstruct

            return _reconstruct
        return getattr(np, name)


def load_cifar10(root: str | Path) -> DataSet:
    """Read CIFAR-10: 50,000 training and 10,000 test images of 32x32 pixels in ten classes.

    Args:
        root: Folder that holds ``cifar-10-batches-py/`` or ``cifar-10-python.tar.gz`` (or is that folder).

    Returns:
        The set; raises ``FileNotFoundError`` with the way to get it, ``ValueError`` if a file is not the published one.
    """
    files = _read_files(Path(root), "cifar-10-batches-py", "cifar-10-python.tar.gz", CIFAR10_FILES, "cifar10")
    names = files["batches.meta"][b"label_names"]
    train, test = ([files[name] for name in sorted(files) if name.startswith(part)] for part in ("data_batch", "test_batch"))
    return DataSet("cifar10", _set(train, b"labels", names), _set(test, b"labels", names))


def load_cifar100(root: str | Path) -> DataSet:
    """Read CIFAR-100: 50,000 training and 10,000 test images of 32x32 pixels in a hundred (fine) classes.

    Args:
        root: Folder that holds ``cifar-100-python/`` or ``cifar-100-python.tar.gz`` (or is that folder).

    Returns:
        The set; raises as `load_cifar10`.
    """
    files = _read_files(Path(root), "cifar-100-python", "cifar-100-python.tar.gz", CIFAR100_FILES, "cifar100")
    train, test = (_set([files[part]], b"fine_labels", files["meta"][b"fine_label_names"]) for part in ("train", "test"))
    return DataSet("cifar100", train, test)


def _read_files(root: Path, folder: str, archive: str, files: dict[str, str], name: str) -> dict[str, dict[bytes, Any]]:
    """Read the pickles of a set from its folder, or else from its archive."""
    place = next((place for place in (root / folder, root) if any((place / file).is_file() for file in files)), None)
    if place is not None:
        contents = {file: (place / file).read_bytes() for file in files if (place / file).is_file()}
    elif (root / archive).is_file():
        place = root / archive
        contents = _unpack(place, {f"{folder}/{file}": file for file in files})
    else:
        raise not_there(name, root, f"{folder}/ or {archive}")
    found: dict[str, dict[bytes, Any]] = {}
    for file, md5 in files.items():
        content = io.BytesIO(contents.get(file, b""))
        check_md5(content, md5, place / file)
        found[file] = _RestrictedUnpickler(content, encoding="bytes").load()
    return found


def _unpack(packed: Path, wanted: dict[str, str]) -> dict[str, bytes]:
    """Read some members of an archive, or of what is good of it, in one pass; nothing is extracted, no link is followed."""
    found: dict[str, bytes] = {}
    with suppress(tarfile.TarError, EOFError, zlib.error, OSError), tarfile.open(packed, "r|gz") as tar:
        for member in tar:
            if member.name in wanted and member.isreg() and member.size <= _LARGEST_FILE:
                handle = tar.extractfile(member)
                found[wanted[member.name]] = b"" if handle is None else handle.read()
    return found


def _set(batches: list[dict[bytes, Any]], key: bytes, names: list[bytes]) -> ImageSet:
    planes = torch.from_numpy(np.concatenate([batch[b"data"] for batch in batches])).view(-1, 3, 32, 32)
    labels = torch.tensor([label for batch in batches for label in batch[key]])
    classes = tuple(name.decode() for name in names)
    images = planes.permute(0, 2, 3, 1).contiguous()
    return ImageSet(images, labels, len(classes), MEAN, STD, class_names=classes, pad=4, flip=True)


def _source(label: str, archive: RemoteFile, sign: str, load: Callable[[Path], DataSet], num_classes: int) -> DataSource:
    about = f"{label}: 60,000 images of 32x32 pixels, {num_classes} classes"
    shape = Shape(50_000, 10_000, (32, 32), 3, num_classes)
    return DataSource(label.lower().replace("-", ""), label, about, load, shape, (archive,), (sign,))


def _archive(name: str, size: int, md5: str) -> RemoteFile:
    urls = ("https://www.cs.toronto.edu/~kriz", "https://cave.cs.toronto.edu/kriz")
    return RemoteFile(name, size, md5, tuple(f"{url}/{name}" for url in urls))


_PACKED10 = _archive("cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a")
_PACKED100 = _archive("cifar-100-python.tar.gz", 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85")
CIFAR10 = _source("CIFAR-10", _PACKED10, "cifar-10-batches-py/test_batch", load_cifar10, 10)
CIFAR100 = _source("CIFAR-100", _PACKED100, "cifar-100-python/test", load_cifar100, 100)
