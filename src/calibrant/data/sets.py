"""Data sets in files: published ones as they were published, the digits of scikit-learn, and your own images.

CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), MNIST (LeCun, Cortes and Burges, 1998), Fashion-MNIST (Xiao, Rasul and Vollgraf,
2017) and Tiny-ImageNet, extracted or still packed: every file is compared with its published MD5 before it is parsed, so that
the pickles of CIFAR are the published ones, and nothing is extracted. Your own images are named by their path: a folder of
class folders, or an ``.npz``.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import ArrayLike, check_count, check_label_values, lookup, read_labels, to_tensor
from calibrant.core.records import Column
from calibrant.data.image_set import DataSet, DataSource, ImageSet, RemoteFile, channel_statistics, held_out_rows
from calibrant.io.files import check_readable
from calibrant.io.predictions import npz_headers, read_npz

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["is_path", "load_cifar10", "load_cifar100", "load_digits", "load_fashion_mnist", "load_folder", "load_mnist"]
__all__ += ["load_npz", "load_path", "load_tiny_imagenet"]

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


def set_name(name: str) -> str:
    """Return what a data set is called in records: its name, or ``birds`` for the path ``photos/birds.npz``."""
    if not is_path(name):
        return name
    given = Path(name).expanduser()
    return given.stem if given.suffix.lower() == ".npz" else given.resolve().name


def load_path(path: str | Path, *, size: int | None = None) -> DataSet:
    """Read an ``.npz`` of images, or a folder: of class folders, pictures resized to ``size`` if given, or of Tiny-ImageNet.

    Raises as `load_npz` and `load_folder`, and ``ValueError`` where a size is given for a set that has one.
    """
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
    fields = read_npz(file, {*keys, "class_names"}, main=keys[::2])
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
    """Read images without labels as uint8 ``[N, height, width, channels]``, with their paths in the folder or their numbers.

    They are an array as `load_npz` describes it, which must have this ``form``; an ``.npz`` with such an array; a picture; or a
    folder of pictures, at any depth, which are scaled and cut as `load_folder` does.
    """
    if isinstance(given, (str, Path)):
        path, where = Path(given).expanduser(), str(given)
        if path.suffix.lower() != ".npz":
            pictures = _pictures_in(path) if path.is_dir() else [path]
            return decode(pictures, form), [str(p.relative_to(path) if path.is_dir() else p.name) for p in pictures]
        check_readable(path, content="images")
        key = _find_key(npz_headers(path), (*_KEYS[0], *_KEYS[2]), given)
        array = read_npz(path, {key}, main=[key])[key]
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


# Both are normalised by CIFAR-10's statistics, as in the published calibration code.
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

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


def not_there(name: str, root: Path, wanted: str) -> FileNotFoundError:
    """The error for a set whose files are not where they are looked for."""
    return FileNotFoundError(
        f"{name}: `root` must hold {wanted}, got {root} without. "
        f"Get it with `calibrant data fetch {name}`, or name the folder that has it with `--data-root`."
    )


def check_md5(content: io.BufferedReader | io.BytesIO, md5: str, path: str | Path) -> None:
    """Raise ``ValueError`` unless ``content`` is that of the published file; then go back to its start."""
    if hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() != md5:
        raise ValueError(
            f"{path}: must be the published file (MD5 {md5}), got another one or none. Delete it and fetch it again."
        )
    content.seek(0)


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
    places = (place for place in (root / folder, root) if any((place / file).is_file() for file in files))
    place = next(places, root / archive)
    if place.is_dir():
        contents = {file: (place / file).read_bytes() for file in files if (place / file).is_file()}
    elif place.is_file():
        contents = _unpack(place, {f"{folder}/{file}": file for file in files})
    else:
        raise not_there(name, root, f"{folder}/ or {archive}")
    found: dict[str, dict[bytes, Any]] = {}
    for file, md5 in files.items():
        content = io.BytesIO(contents.get(file, b""))
        check_md5(content, md5, place / file)
        found[file] = pickle.load(content, encoding="bytes")
    return found


def _unpack(packed: Path, wanted: dict[str, str]) -> dict[str, bytes]:
    """Read some members of an archive, or of what is good of it, in one pass; nothing is extracted, no link is followed."""
    found: dict[str, bytes] = {}
    with suppress(tarfile.TarError, EOFError, zlib.error, OSError), tarfile.open(packed, "r|gz") as tar:
        for member in tar:
            if member.name in wanted and member.isreg():
                handle = tar.extractfile(member)
                found[wanted[member.name]] = b"" if handle is None else handle.read()
    return found


def _set(batches: list[dict[bytes, Any]], key: bytes, names: list[bytes]) -> ImageSet:
    planes = torch.from_numpy(np.concatenate([batch[b"data"] for batch in batches])).view(-1, 3, 32, 32)
    labels = torch.tensor([label for batch in batches for label in batch[key]])
    classes = tuple(name.decode() for name in names)
    images = planes.permute(0, 2, 3, 1).contiguous()
    return ImageSet(images, labels, len(classes), CIFAR_MEAN, CIFAR_STD, class_names=classes, pad=4, flip=True)


def _cifar_source(n: int, load: Callable[[Path], DataSet], sign: str, size: int, md5: str) -> DataSource:
    archive = f"cifar-{n}-python.tar.gz"
    urls = tuple(f"https://{site}/{archive}" for site in ("www.cs.toronto.edu/~kriz", "cave.cs.toronto.edu/kriz"))
    return DataSource(
        name=f"cifar{n}",
        label=f"CIFAR-{n}",
        about=f"CIFAR-{n}: 60,000 images of 32x32 pixels, {n} classes",
        load=load,
        files=(RemoteFile(archive, size, md5, urls),),
        others=(sign,),
    )


CIFAR10 = _cifar_source(10, load_cifar10, "cifar-10-batches-py/test_batch", 170_498_071, "c58f30108f718f92721af3b95e74349a")
CIFAR100 = _cifar_source(100, load_cifar100, "cifar-100-python/test", 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85")


_DIGITS = tuple(str(digit) for digit in range(10))
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


# MD5 of every file, and size and MD5 as it was published (``.gz``).
MNIST_FILES = {
    "train-images-idx3-ubyte": ("6bbc9ace898e44ae57da46a324031adb", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    "train-labels-idx1-ubyte": ("a25bea736e30d166cdddb491f175f624", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
    "t10k-images-idx3-ubyte": ("2646ac647ad5339dbf082846283269ea", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
    "t10k-labels-idx1-ubyte": ("27ae3e4e09519cfbb04c329615203637", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
}
FASHION_FILES = {
    "train-images-idx3-ubyte": ("f4a8712d7a061bf5bd6d2ca38dc4d50a", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train-labels-idx1-ubyte": ("9018921c3c673c538a1fc5bad174d6f9", 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte": ("8181f5470baa50b63fa0f6fddb340f0a", 4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
    "t10k-labels-idx1-ubyte": ("15d484375f8d13e6eb1aabb0c3f46965", 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
}


def load_mnist(root: str | Path) -> DataSet:
    """Read MNIST: 60,000 training and 10,000 test images of handwritten digits, 28x28 pixels, one channel.

    Args:
        root: Folder that holds the four idx files, plain or ``.gz``, in ``mnist/`` or ``MNIST/raw/`` or itself.

    Returns:
        The set; raises ``FileNotFoundError`` with the way to get it, ``ValueError`` if a file is not the published one.
    """
    part = partial(ImageSet, num_classes=10, mean=(0.1307,), std=(0.3081,), class_names=_DIGITS, pad=2)
    return _read_idx(Path(root), ("mnist", "MNIST/raw", "."), MNIST_FILES, part)


def load_fashion_mnist(root: str | Path) -> DataSet:
    """Read Fashion-MNIST: 60,000 training and 10,000 test images of clothes, 28x28 pixels, one channel.

    Args:
        root: Folder that holds the four idx files, plain or ``.gz``, in ``fashion-mnist/`` or ``FashionMNIST/raw/`` or itself.

    Returns:
        The set; raises as `load_mnist`.
    """
    part = partial(ImageSet, num_classes=10, mean=(0.2860,), std=(0.3530,), class_names=_CLOTHES, pad=2, flip=True)
    return _read_idx(Path(root), ("fashion-mnist", "FashionMNIST/raw", "."), FASHION_FILES, part)


def _read_idx(
    root: Path, folders: tuple[str, ...], files: dict[str, tuple[str, int, str]], part: Callable[..., ImageSet]
) -> DataSet:
    for folder in folders:
        either = [(root / folder / name, root / folder / f"{name}.gz") for name in files]
        found = [next(path for path in paths if path.is_file()) for paths in either if any(path.is_file() for path in paths)]
        if len(found) == len(files):
            images, labels, tested, test_labels = map(_parse, found, files.values())
            train, test = part(images.unsqueeze(3), labels.long()), part(tested.unsqueeze(3), test_labels.long())
            return DataSet(folders[0], train, test)
    raise not_there(folders[0], root, f"{', '.join(files)} (or .gz) in {folders[0]}/")


def _parse(path: Path, published: tuple[str, int, str]) -> Tensor:
    """Read the idx format: two zeros, 8 for bytes, the number of dimensions, their sizes (big-endian), the values."""
    packed = path.suffix == ".gz"
    with path.open("rb") as handle:
        check_md5(handle, published[2] if packed else published[0], path)
        content = gzip.decompress(handle.read()) if packed else handle.read()
    header = 4 + 4 * content[3]
    shape = [int(n) for n in np.frombuffer(content[4:header], dtype=">u4")]
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy())


def load_digits() -> DataSet:
    """Read the digits of scikit-learn, 8x8 pixels: always the same 1,297 to train on and 500 to test on.

    Returns:
        The set in ten classes, one channel, grey levels 0..16 stretched to 0..255.
    """
    package = find_spec("sklearn")
    assert package is not None
    # Importing scikit-learn would take more than a second, in every process that trains.
    with gzip.open(Path(package.origin or "").parent / "datasets" / "data" / "digits.csv.gz", "rt") as lines:
        table = torch.from_numpy(np.loadtxt(lines, delimiter=","))
    images = table[:, :-1].reshape(-1, 8, 8, 1).mul(255 / 16).round().to(torch.uint8)
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(0))
    whole = ImageSet(images, table[:, -1].long(), 10, (0.3053,), (0.3761,), class_names=_DIGITS, pad=1)
    return DataSet("digits", whole.pick(order[500:]), whole.pick(order[:500]))


def _mnist_source(name: str, label: str, about: str, load: Callable[[Path], DataSet], raw: str, *urls: str) -> DataSource:
    files = tuple(
        RemoteFile(f"{name}/{file}.gz", size, md5, tuple(f"{url}/{file}.gz" for url in urls))
        for file, (_, size, md5) in (MNIST_FILES if load is load_mnist else FASHION_FILES).items()
    )
    first = "train-images-idx3-ubyte"
    others = (f"{name}/{first}", f"{raw}/{first}", f"{raw}/{first}.gz")
    return DataSource(name, label, about, load, files, others)


DIGITS = DataSource(
    name="digits",
    label="digits",
    about="handwritten digits of 8x8 pixels, 10 classes, embedded in scikit-learn",
    load=lambda root: load_digits(),
    # Of a tenth of them every image is often classified right, and then no temperature can be fitted.
    settings={"backbone.name": "convnet", "train.epochs": 30, "data.val": 300},
)
MNIST = _mnist_source(
    "mnist",
    "MNIST",
    "MNIST: 70,000 handwritten digits of 28x28 pixels, 10 classes",
    load_mnist,
    "MNIST/raw",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
FASHION_MNIST = _mnist_source(
    "fashion-mnist",
    "Fashion-MNIST",
    "Fashion-MNIST: 70,000 clothes of 28x28 pixels, 10 classes",
    load_fashion_mnist,
    "FashionMNIST/raw",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
)


TINY_FOLDER, TINY_ARCHIVE = "tiny-imagenet-200", "tiny-imagenet-200.zip"
TINY_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
# ImageNet's statistics, with which the published calibration code normalises this set.
TINY_MEAN, TINY_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Classes, and images of each to train and to test on.
TINY_COUNTS = (200, 500, 50)


def load_tiny_imagenet(root: str | Path) -> DataSet:
    """Read Tiny-ImageNet: 100,000 training and 10,000 test images of 64x64 pixels in two hundred classes.

    Classes are numbered in the order of their sorted WordNet ids and named by their first word in ``words.txt``; grey images
    become colour ones.

    Args:
        root: Folder that holds ``tiny-imagenet-200/`` or ``tiny-imagenet-200.zip`` (or is that folder).

    Returns:
        The set; raises ``FileNotFoundError`` with the way to get it, ``ValueError`` if files are missing or changed.
    """
    for place in (Path(root) / TINY_FOLDER, Path(root)):
        if (place / "wnids.txt").is_file():
            return _read_tiny(place)
    packed = Path(root) / TINY_ARCHIVE
    if not packed.is_file():
        raise not_there("tiny-imagenet", Path(root), f"{TINY_FOLDER}/ or {TINY_ARCHIVE}")
    with packed.open("rb") as handle:
        check_md5(handle, TINY_MD5, packed)
        with zipfile.ZipFile(handle) as archive:
            return _read_tiny(zipfile.Path(archive, f"{TINY_FOLDER}/"))


def _read_tiny(place: Path | zipfile.Path) -> DataSet:
    """Read the set where it lies. No path comes from a file in it, so none can lead elsewhere."""
    classes, per_class, tested = TINY_COUNTS
    try:
        ids, words, notes = (
            (place / file).read_text().splitlines() for file in ("wnids.txt", "words.txt", "val/val_annotations.txt")
        )
        wnids, classes_of = sorted(line.strip() for line in ids if line.strip()), dict(line.split("\t")[:2] for line in notes)
        test_files = sorted(f"val_{number}.JPEG" for number in range(classes * tested))
        test = [(place / f"val/images/{file}", wnids.index(classes_of[file])) for file in test_files]
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"{place}: must hold wnids.txt, words.txt and all of val/, got {error!r}. Unpack it again.") from None
    if len(wnids) != classes:
        raise ValueError(f"{place}: wnids.txt must name {classes} classes, got {len(wnids)}. Unpack it again.")
    train = [
        (place / f"train/{wnid}/images/{file}", label)
        for label, wnid in enumerate(wnids)
        for file in sorted(f"{wnid}_{number}.JPEG" for number in range(per_class))
    ]
    part = partial(
        ImageSet, num_classes=classes, mean=TINY_MEAN, std=TINY_STD, class_names=_tiny_names(words, wnids), pad=4, flip=True
    )
    sets = (
        part(decode([file for file, _ in found], (64, 64, 3)), torch.tensor([y for _, y in found])) for found in (train, test)
    )
    return DataSet("tiny-imagenet", *sets)


def _tiny_names(words: list[str], wnids: list[str]) -> tuple[str, ...]:
    """Return the first word for each class, or all its words where another class has the same first one."""
    lines = dict(line.split("\t", 1) for line in words if "\t" in line)
    full = [lines.get(wnid, wnid).strip() for wnid in wnids]
    short = [text.split(",")[0].strip() for text in full]
    return tuple(whole if short.count(first) > 1 else first for first, whole in zip(short, full, strict=True))


TINY_IMAGENET = DataSource(
    name="tiny-imagenet",
    label="Tiny-ImageNet",
    about="Tiny-ImageNet: 110,000 images of 64x64 pixels, 200 classes",
    load=load_tiny_imagenet,
    files=(
        RemoteFile(
            TINY_ARCHIVE,
            248_100_043,
            TINY_MD5,
            tuple(f"{web}://cs231n.stanford.edu/{TINY_ARCHIVE}" for web in ("http", "https")),
        ),
    ),
    others=(f"{TINY_FOLDER}/wnids.txt",),
)
