"""Images of one's own, named by their path: a folder of class folders, or an ``.npz``. Decoding pictures is here, too."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import ArrayLike, check_count, check_label_values, read_labels, to_tensor
from calibrant.core.records import Column
from calibrant.core.registry import lookup
from calibrant.data.image_set import DataSet, ImageSet, channel_statistics, held_out_rows
from calibrant.io.files import check_readable
from calibrant.io.predictions import npz_headers, read_npz

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")
# Height, width and channels.
Form = tuple[int, int, int]
_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".gif", ".tif", ".tiff")
# Only these decoders are let loose on a file, whatever its name; some of the others call programs.
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "GIF", "TIFF")
_GREY, _COLOUR = ("1", "L", "LA"), ("RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB")
# Pictures of one size are kept as they are up to the first; what has to be scaled gets at most the second.
_KEPT, _SCALED = 256, 224
# Threads, and pictures that each takes at a time: handing them out one by one costs a third of the time.
_WORKERS, _RUN = 8, 256
_TEST_FOLDERS = ("test", "val", "valid", "validation")
# Keys under which the arrays of an .npz are found, in the order in which they are looked for.
_KEYS = (
    ("images", "x", "train_images", "x_train"),
    ("labels", "y", "train_labels", "y_train"),
    ("test_images", "x_test"),
    ("test_labels", "y_test"),
)
_MOST_CHANNELS = 4


def is_path(name: str) -> bool:
    """Whether ``name`` is meant as a path: it has a separator or the ending ``.npz``, or there is such a folder or file.

    Example:
        >>> is_path("photos/birds"), is_path("birds.npz"), is_path("cifar10")
        (True, True, False)
    """
    return os.sep in name or "/" in name or name.lower().endswith(".npz") or Path(name).expanduser().exists()


def load_path(path: str | Path, *, size: int | None = None) -> DataSet:
    """Read an ``.npz`` of images, or a folder: of class folders, pictures resized to ``size`` if given, or of Tiny-ImageNet.

    Raises as `load_npz` and `load_folder`, and ``ValueError`` where a size is given for a set that has one.
    """
    from calibrant.data.published import load_tiny_imagenet

    given = Path(path).expanduser()
    tiny = (given / "wnids.txt").is_file()
    if given.suffix.lower() != ".npz" and not tiny:
        return load_folder(given, size=size)
    if size is not None:
        raise ValueError(f"{path}: `size` must be left out, got {size}; only pictures of class folders are resized.")
    return load_tiny_imagenet(given) if tiny else load_npz(given)


def load_folder(path: str | Path, *, size: int | None = None, seed: int = 0) -> DataSet:
    """Read ``train/<class>/*`` and ``test/<class>/*``, or ``<class>/*`` of which a fifth of each class is held out.

    Classes are the sorted names of the class folders. Pictures may lie in folders of their own below these; files and
    folders that start with a dot, and files that are no pictures by their name, are passed over. Where there is no
    ``test``, ``val`` is the test part, and without either a fifth of ``train``; ``val`` beside ``test`` is not read, since
    every run draws its own validation part.

    Pictures of one size, at most 256 pixels a side, are kept as they are. Others are resized to squares of the median
    shorter side, at most 224: scaled so that they cover it, and cut to the middle.

    Args:
        path: The folder.
        size: Side of the squares, where the pictures are to be resized to another one.
        seed: Seed of the held-out part.

    Returns:
        The set: colour unless every picture is grey, with the training part's mean and standard deviation, padded by an
        eighth of the shorter side for random crops and not mirrored. Raises ``OSError`` or ``ValueError`` with one sentence
        that names the file or folder at fault.
    """
    root = Path(path).expanduser()
    if size is not None:
        check_count(size, where="load_folder", name="size")
    if not root.is_dir():
        raise FileNotFoundError(f"{path}: must be a folder of class folders or an .npz of images, got neither. Check the path.")
    parts = [root / name for name in ("train", *_TEST_FOLDERS) if (root / name).is_dir()][:2]
    parts = parts if (root / "train").is_dir() else [root]
    names = _class_folders(parts[0])
    found = [_find_pictures(part, names) for part in parts]
    form = common_form([picture for pictures in found for picture, _ in pictures], size=size)
    read = [(decode([path for path, _ in part], form), torch.tensor([label for _, label in part])) for part in found]
    return _make_set(root.resolve().name, read, names, seed=seed, path=path)


def load_npz(path: str | Path, *, seed: int = 0) -> DataSet:
    """Read images and labels from numpy's ``.npz``; nothing in the file can run code.

    Keys are ``images`` (or ``x``, ``train_images``, ``x_train``) and ``labels`` (``y``, …), and ``test_images`` and
    ``test_labels`` (``x_test``, ``y_test``) where there is a test part; otherwise a fifth of each class is held out, by
    ``seed``. ``class_names`` is optional. Images are ``[N, H, W]``, ``[N, H, W, channels]`` or ``[N, channels, H, W]`` of
    whole numbers from 0 to 255 or others from 0 to 1; up to
    four channels, and where both ends could be channels they are the last.

    Returns:
        The set, as `load_folder` makes it. Raises ``OSError`` or ``ValueError`` with one sentence that names the file.
    """
    file = Path(path).expanduser()
    check_readable(file, content="images and labels")
    there = npz_headers(file)
    tested = any(key in there for keys in _KEYS[2:] for key in keys)
    keys = [_find_key(there, wanted, path) for wanted in (_KEYS if tested else _KEYS[:2])]
    fields = read_npz(file, {*keys, "class_names"})
    names = tuple(str(name) for name in fields["class_names"].reshape(-1)) if "class_names" in fields else None
    parts = []
    for key, label_key in zip(keys[::2], keys[1::2], strict=True):
        given = fields[label_key]
        given = given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given
        images, labels = _images(fields[key], key, path), read_labels(given, given.shape, where=str(path), names=names)
        if labels.shape != (len(images),):
            raise ValueError(f"{path}: `{label_key}` must be class indices [N] = [{len(images)}], got {list(labels.shape)}.")
        parts.append((images, labels.long()))
    return _make_set(file.stem, parts, names, seed=seed, path=path)


def read_images(given: ArrayLike | str | Path, *, form: Form, where: str) -> tuple[Tensor, list[str]]:
    """Read images without labels as uint8 ``[N, height, width, channels]`` of one form, and what each is called.

    Args:
        given: An array as `load_npz` describes it; an ``.npz`` with such an array; a picture; or a
            folder of pictures, at any depth. Pictures of another size are scaled and cut as `load_folder` does.
        form: Height, width and channels; an array must have them.
        where: Who asks, for messages about an array.

    Returns:
        The images, and their paths in the folder, or their numbers.
    """
    if isinstance(given, (str, Path)):
        path, where = Path(given).expanduser(), str(given)
        if path.suffix.lower() != ".npz":
            pictures = _pictures_in(path) if path.is_dir() else [path]
            return decode(pictures, form), [str(p.relative_to(path) if path.is_dir() else p.name) for p in pictures]
        check_readable(path, content="images")
        key = _find_key(npz_headers(path), (*_KEYS[0], *_KEYS[2]), given)
        array = read_npz(path, {key})[key]
    else:
        key, array = "images", to_tensor(given, where=where, name="images").cpu().numpy()
    images = _images(array, key, where)
    if tuple(images.shape[1:]) != form:
        raise ValueError(
            f"{where}: `{key}` must be [N, {', '.join(map(str, form))}], as those of the run, got {list(images.shape)}."
        )
    return images, [str(number) for number in range(len(images))]


def _find_key(there: Collection[str], wanted: Sequence[str], path: str | Path) -> str:
    """The first of some names that an archive has."""
    for key in wanted:
        if key in there:
            return key
    found = ", ".join(list(there)[:12])
    raise ValueError(f"{path}: must hold `{wanted[0]}` (or {', '.join(wanted[1:])}), found {found}.")


def _make_set(
    name: str, parts: list[tuple[Tensor, Tensor]], names: tuple[str, ...] | None, *, seed: int, path: str | Path
) -> DataSet:
    """Make a set of images and labels to train on and, unless some are to be held out, to test on."""
    if len(parts) == 1:
        images, labels = parts[0]
        parts = [(images[rows], labels[rows]) for rows in held_out_rows(labels, seed=seed)]
    (images, labels), (tested, test_labels) = parts
    if images.shape[1:] != tested.shape[1:] or not len(test_labels):
        got = f"{list(images.shape)} and {list(tested.shape)}"
        raise ValueError(f"{path}: there must be images to train and to test on, of one size, got {got}.")
    # Names may be those of more classes than there are images of.
    num_classes = max(2, int(labels.max()) + 1) if names is None else len(names)
    for part in (labels, test_labels):
        check_label_values(part, num_classes, where=str(path))
    needed = test_labels if names is not None else torch.arange(num_classes)
    absent = needed[~torch.isin(needed, labels)]
    if len(absent):
        rule = "every class, of two or more numbered 0, 1, 2, …, must have images to train on"
        raise ValueError(f"{path}: {rule}, got none of class {int(absent[0])}. Number them anew, or save `class_names`.")
    mean, std = channel_statistics(images)
    pad = min(images.shape[1:3]) // 8
    train, test = (ImageSet(i, y, num_classes, mean, std, class_names=names, pad=pad) for i, y in parts)
    return DataSet(name, train, test)


def _class_folders(part: Path) -> tuple[str, ...]:
    names = tuple(sorted(entry.name for entry in part.iterdir() if entry.is_dir() and not entry.name.startswith(".")))
    if len(names) < 2:
        raise ValueError(f"{part}: must hold a folder for each of two or more classes, got {', '.join(names) or 'none'}.")
    return names


def _find_pictures(part: Path, names: tuple[str, ...]) -> list[tuple[Path, int]]:
    """The pictures of one part, each with its label."""
    numbers = {name: number for number, name in enumerate(names)}
    found: list[tuple[Path, int]] = []
    for name in _class_folders(part):
        label = lookup(numbers, name, kind=f"class to train on in {part}")
        found += [(picture, label) for picture in _pictures_in(part / name)]
    return found


def _pictures_in(folder: Path) -> list[Path]:
    """Pictures by their names at any depth, sorted; what begins with a dot is passed over."""
    files = [path for path in folder.rglob("*") if path.suffix.lower() in _ENDINGS and path.is_file()]
    found = sorted(path for path in files if not any(piece.startswith(".") for piece in path.relative_to(folder).parts))
    if not found:
        raise ValueError(f"{folder}: must hold pictures ({', '.join(_ENDINGS)}), got none.")
    return found


def _images(given: Column, key: str, path: str | Path) -> Tensor:
    array = given[..., None] if given.ndim == 3 else given
    if array.ndim == 4 and array.shape[3] > _MOST_CHANNELS and array.shape[1] <= _MOST_CHANNELS:
        array = array.transpose(0, 2, 3, 1)
    if array.ndim != 4 or array.shape[3] > _MOST_CHANNELS or 0 in array.shape:
        shape = list(given.shape)
        raise ValueError(f"{path}: `{key}` must be [N, H, W], [N, H, W, channels] or [N, channels, H, W], got {shape}.")
    most = {"i": 255, "u": 255, "f": 1}.get(array.dtype.kind, -1)
    if not 0 <= array.min() <= array.max() <= most:
        got = f"{array.dtype} from {array.min():.4g} to {array.max():.4g}"
        raise ValueError(f"{path}: `{key}` must be whole numbers from 0 to 255 or others from 0 to 1, got {got}.")
    array = array if most == 255 else (255 * array.astype(np.float64)).round()
    return torch.from_numpy(np.array(array, dtype=np.uint8, order="C"))


def common_form(pictures: Sequence[Path], *, size: int | None = None) -> Form:
    """Choose the form of a set from the headers of its files, as `load_folder` says; raise on a file that is no picture."""
    with warnings.catch_warnings():
        # A header that promises more pixels than memory holds is refused before anything is decoded.
        warnings.simplefilter("error")
        headers = [_open_picture(picture, lambda image: (image.size, image.mode in _GREY)) for picture in pictures]
    channels = 1 if all(grey for _, grey in headers) else 3
    sizes = {size for size, _ in headers}
    if size is None and len(sizes) == 1 and max(width_height := next(iter(sizes))) <= _KEPT:
        return width_height[1], width_height[0], channels
    side = size or min(_SCALED, median_low([min(size) for size, _ in headers]))
    return side, side, channels


def decode(pictures: Sequence[Path | zipfile.Path], form: Form) -> Tensor:
    """Read pictures into uint8 ``[N, height, width, channels]``; another size is scaled to cover it and cut to its middle."""
    from PIL import ImageOps

    height, width, channels = form
    mode = "L" if channels == 1 else "RGB"
    images = np.empty((len(pictures), *form), dtype=np.uint8)

    def bring(image: Image) -> Column:
        if image.size != (width, height):
            # JPEG can be decoded at a fraction of its size, which spares most of the work on photographs.
            image.draft(mode, (width, height))
            image = ImageOps.fit(image.convert(mode), (width, height))
        return np.asarray(image.convert(mode), dtype=np.uint8).reshape(form)

    def fill(start: int) -> None:
        for place in range(start, min(start + _RUN, len(pictures))):
            images[place] = _open_picture(pictures[place], bring)

    # Decoding leaves Python's lock. A JPEG of 64x64 pixels takes 0.11 ms of one core.
    with ThreadPoolExecutor(min(_WORKERS, os.cpu_count() or 1)) as pool:
        list(pool.map(fill, range(0, len(pictures), _RUN)))
    return torch.from_numpy(images)


def _open_picture(picture: Path | zipfile.Path, use: Callable[[Image], T]) -> T:
    from PIL import Image

    try:
        with picture.open("rb") as handle, Image.open(handle, formats=_FORMATS) as image:
            if image.mode not in _GREY + _COLOUR:
                raise ValueError(image.mode)
            return use(image)
    except Exception as error:
        raise ValueError(
            f"{picture}: must be a picture ({', '.join(_FORMATS)}) with 8 bits a channel, got a file that is missing, damaged, "
            "too large or of another kind. Repair or remove it."
        ) from error
