"""Any ``.npz`` of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.core.records import Column
from calibrant.data.image_set import DataSet, ImageSet
from calibrant.data.splits import held_out_rows
from calibrant.data.statistics import channel_statistics
from calibrant.io.arrays import Fields, npz_headers, read_npz
from calibrant.io.files import check_readable

# Keys under which the four arrays are found, in the order in which they are looked for.
_IMAGES, _LABELS = ("images", "x", "train_images", "x_train"), ("labels", "y", "train_labels", "y_train")
_TEST_IMAGES, _TEST_LABELS = ("test_images", "x_test"), ("test_labels", "y_test")
_MOST_CHANNELS = 4


def load_npz(path: str | Path, *, seed: int = 0) -> DataSet:
    """Read images and labels from numpy's ``.npz``; nothing in the file can run code.

    Keys are ``images`` (or ``x``, ``train_images``, ``x_train``) and ``labels`` (``y``, …), and ``test_images`` and
    ``test_labels`` (``x_test``, ``y_test``) where there is a test part; otherwise a fifth of each class is held out.
    ``class_names`` is optional.

    Args:
        path: The file. Images are ``[N, H, W]``, ``[N, H, W, channels]`` or ``[N, channels, H, W]`` with values 0 to 255; up to
            four channels, and where both ends could be channels they are the last.
        seed: Seed of the held-out part.

    Returns:
        The set, with the training part's mean and standard deviation, padded by an eighth of the shorter side for random crops
        and not mirrored. Raises ``OSError`` or ``ValueError`` with one sentence that names the file.
    """
    where = Path(path).expanduser()
    check_readable(where, content="images and labels", remedy="Write it again with `numpy.savez`.")
    there = npz_headers(where)
    if not any(key in there for key in _IMAGES):
        hint = " It holds predictions: measure them with `calibrant measure`." if {"logits", "probs"} & set(there) else ""
        raise ValueError(f"{where}: must hold `images` (or {', '.join(_IMAGES[1:])}), found {', '.join(there)[:200]}.{hint}")
    fields = read_npz(where, {*_IMAGES, *_LABELS, *_TEST_IMAGES, *_TEST_LABELS, "class_names"})
    images, labels = _images(fields, _IMAGES, where), _labels(fields, _LABELS, where)
    tested = [key for key in (*_TEST_IMAGES, *_TEST_LABELS) if key in fields]
    parts = [(images, labels)]
    if tested:
        parts.append((_images(fields, _TEST_IMAGES, where), _labels(fields, _TEST_LABELS, where)))
    for i, y in parts:
        if len(i) != len(y) or not len(y):
            raise ValueError(f"{where}: there must be one label for each image, got {len(y)} for {len(i)}.")
    names = tuple(str(n) for n in fields["class_names"].reshape(-1)) if "class_names" in fields else None
    num_classes = _num_classes(labels if len(parts) == 1 else torch.cat([labels, parts[1][1]]), names, where)
    _check_classes(labels, parts[-1][1], names, where)
    if len(parts) == 1:
        parts = [(images[rows], labels[rows]) for rows in held_out_rows(labels, seed=seed)]
    if parts[0][0].shape[1:] != parts[1][0].shape[1:] or not len(parts[1][1]):
        got = f"{list(parts[0][0].shape)} and {list(parts[1][0].shape)}"
        raise ValueError(f"{where}: training and test images must have one size and some of each, got {got}.")
    mean, std = channel_statistics(parts[0][0])
    pad = min(images.shape[1:3]) // 8
    train, test = (ImageSet(i, y, num_classes, mean, std, class_names=names, pad=pad) for i, y in parts)
    return DataSet(where.stem, train, test)


def _find(fields: Fields, keys: tuple[str, ...], path: Path) -> tuple[str, Column]:
    for key in keys:
        if key in fields:
            return key, fields[key]
    found = ", ".join(list(fields)[:12]) or "nothing"
    raise ValueError(f"{path}: must hold `{keys[0]}` (or {', '.join(keys[1:])}), found {found}.")


def _images(fields: Fields, keys: tuple[str, ...], path: Path) -> Tensor:
    key, array = _find(fields, keys, path)
    if array.ndim == 2:
        raise ValueError(
            f"{path}: `{key}` must be images [N, H, W], [N, H, W, channels] or [N, channels, H, W], got {list(array.shape)}. "
            "Reshape them; or, if they are a table of features, train in a loop of your own with `calibrant.MetaLearner`."
        )
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: `{key}` must be whole numbers 0 to 255, got {array.dtype}. "
            "Save `(255 * images).round().astype('uint8')` if they lie between 0 and 1."
        )
    if array.dtype != np.uint8 and array.size and not 0 <= array.min() <= array.max() <= 255:
        raise ValueError(f"{path}: `{key}` must lie in [0, 255], got {array.min()} to {array.max()}.")
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim == 4 and array.shape[3] > _MOST_CHANNELS and array.shape[1] <= _MOST_CHANNELS:
        array = array.transpose(0, 2, 3, 1)
    if array.ndim != 4 or array.shape[3] > _MOST_CHANNELS or 0 in array.shape:
        got = list(fields[key].shape)
        raise ValueError(f"{path}: `{key}` must be [N, H, W], [N, H, W, channels] or [N, channels, H, W], got {got}.")
    return torch.from_numpy(np.array(array, dtype=np.uint8, order="C"))


def _labels(fields: Fields, keys: tuple[str, ...], path: Path) -> Tensor:
    key, array = _find(fields, keys, path)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        hint = " They look one-hot: take `argmax`." if array.ndim == 2 else ""
        raise ValueError(f"{path}: `{key}` must be class indices [N], got {list(array.shape)}.{hint}")
    if array.dtype.kind not in "iub":
        raise ValueError(f"{path}: `{key}` must be class indices 0, 1, 2, …, got {array.dtype}. Save names as `class_names`.")
    if array.size and int(array.min()) < 0:
        raise ValueError(f"{path}: `{key}` must be class indices 0, 1, 2, …, got {array.min()}.")
    return torch.from_numpy(array.astype(np.int64))


def _check_classes(labels: Tensor, test_labels: Tensor, names: tuple[str, ...] | None, path: Path) -> None:
    """Raise if a class is tested but never trained on, or left out in the numbering where there are no names to leave out."""
    trained, tested = set(labels.unique().tolist()), set(test_labels.unique().tolist())
    if tested - trained:
        raise ValueError(
            f"{path}: a class of the test part must be one that is trained on, got {min(tested - trained)}, which has no image "
            "to train on."
        )
    absent = sorted(set(range(max(trained) + 1)) - trained)
    if absent and names is None:
        raise ValueError(
            f"{path}: classes must be numbered 0, 1, 2, … without a gap, got no image of class {absent[0]} and some of "
            f"{max(trained)}. Number them anew, or save `class_names` if it is meant so."
        )


def _num_classes(labels: Tensor, names: tuple[str, ...] | None, path: Path) -> int:
    """Return C: as many as there are names, or up to the largest label in any part."""
    largest = int(labels.max())
    count = largest + 1 if names is None else len(names)
    if largest >= count:
        raise ValueError(f"{path}: `labels` must lie in [0, {count - 1}] as there are {count} names, got {largest}.")
    if count < 2:
        raise ValueError(f"{path}: `labels` must name two classes or more, got 0 alone.")
    return count
