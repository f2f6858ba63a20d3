"""The records of a data set: images as bytes with labels and facts, its entry in the table of sets; parts, fingerprint, crops.

All randomness of an epoch is drawn beforehand (`draw_epoch`), so that a step captured once and replayed sees new crops every
time and a resumed epoch sees the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.checks import check_label_values
from calibrant.io.files import download

__all__ = ["DEFAULT_ROOT", "DataSet", "DataSource", "ImageSet", "RemoteFile"]

# Where `calibrant data fetch` puts sets, and where they are looked for.
DEFAULT_ROOT = Path("~/.cache/calibrant/data").expanduser()

# Bytes that are hashed at a time; another number makes other fingerprints.
_BLOCK = 16 * 2**20
# Key of a fingerprint → what is said where it differs, the plainest first.
_DIFFERENCES = {
    "num_classes": "classes",
    "test_examples": "test images",
    "train_examples": "images to train on",
    "class_names": "names of classes",
    "test": "test images or labels",
    "train": "images or labels to train on",
}


def check_images(images: Tensor, *, where: str) -> None:
    """Raise unless ``images`` are bytes ``[N, H, W, channels]``."""
    if images.ndim != 4 or images.dtype != torch.uint8:
        got = f"{images.dtype} {list(images.shape)}"
        raise ValueError(f"{where}: `images` must be uint8 [N, H, W, channels], got {got}.")


@dataclass(frozen=True)
class ImageSet:
    """N labelled images.

    Attributes:
        images: ``[N, H, W, channels]``, uint8: the layout that a GPU crops and normalises fastest.
        labels: Class indices ``[N]``, int64.
        num_classes: Number of classes C, also those without a label.
        mean: Mean of each channel after division by 255, for normalising.
        std: Standard deviation of each channel.
        class_names: C names, or None.
        pad: Pixels of zero padding for random crops (0: no cropping).
        flip: Whether mirrored images are the same class.
        posterior: True class probabilities ``[N, C]`` where they are known (synthetic sets), else None.
    """

    images: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...] | None = None
    pad: int = 0
    flip: bool = False
    posterior: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        where = "ImageSet"
        check_images(self.images, where=where)
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            got = f"{self.labels.dtype} {list(self.labels.shape)}"
            raise ValueError(f"{where}: `labels` must be int64 [N] = [{len(self.images)}], got {got}.")
        if len(self.labels):
            check_label_values(self.labels, self.num_classes, where=where)
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"{where}: `mean` and `std` must have {self.channels} entries, one a channel.")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def channels(self) -> int:
        """Number of channels."""
        return int(self.images.shape[3])

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return int(self.images.shape[1]), int(self.images.shape[2])

    def pick(self, index: Tensor | Sequence[int]) -> ImageSet:
        """Return the examples at ``index``, in that order."""
        rows = torch.as_tensor(index, dtype=torch.int64)
        posterior = None if self.posterior is None else self.posterior[rows]
        return replace(self, images=self.images[rows], labels=self.labels[rows], posterior=posterior)


@dataclass(frozen=True)
class DataSet:
    """A loaded data set: everything to train on, and the test set."""

    name: str
    train: ImageSet
    test: ImageSet


class RemoteFile(NamedTuple):
    """A published file: where it goes below the root, its bytes, its checksum, and its addresses in the order to be tried."""

    path: str
    size: int
    md5: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class DataSource:
    """A named data set. Installed packages add theirs through the entry points ``calibrant.datasets``.

    Attributes:
        name: Name in commands.
        label: Name in tables and figures.
        about: A short description.
        load: Reads it from the folder of data sets; a set without files ignores the folder.
        files: Files to download.
        others: Other paths below the root that show the set is there.
        settings: Recipe settings that suit it better than those for CIFAR.
    """

    name: str
    label: str
    about: str
    load: Callable[[Path], DataSet]
    files: tuple[RemoteFile, ...] = ()
    others: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def embedded(self) -> bool:
        """Whether the set needs no files."""
        return not self.files and not self.others

    @property
    def bytes(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)

    def is_there(self, root: str | Path | None = None) -> bool:
        """Whether the set seems to lie below ``root`` (its content is looked at when it is read)."""
        place = Path(root or DEFAULT_ROOT).expanduser()
        fetched = all((place / file.path).is_file() for file in self.files)
        return (fetched and bool(self.files)) or self.embedded or any((place / path).is_file() for path in self.others)

    def fetch(self, root: str | Path | None = None, *, report: Callable[[int], None] | None = None) -> list[Path]:
        """Download the set, or what is missing of it, and return its files; ``report`` is called with numbers of new bytes."""
        place = Path(root or DEFAULT_ROOT).expanduser()
        return [download(file.urls, place / file.path, md5=file.md5, report=report) for file in self.files]


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, after division by 255; 1 for the latter where a channel is constant."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean, std = [], []
    for channel in images.unbind(3):
        share = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        centre = float(share @ levels)
        spread = float(share @ (levels - centre).square()) ** 0.5
        mean.append(centre)
        std.append(spread if spread > 1e-9 else 1.0)
    return tuple(mean), tuple(std)


def split_indices(n: int, *, val: int, meta: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Shuffle ``n`` positions once and cut: first ``val``, then ``meta``, the rest for training; return train, val, meta.

    The validation part depends on the seed alone, so it is the same for every method. Raises ``ValueError`` if nothing is left
    to train on.
    """
    if not 1 <= val <= val + meta < n:
        rule = "`val` (a tenth unless given) must be >= 1, `meta` >= 0, and examples must be left to train on"
        raise ValueError(f"split_indices: {rule}, got {val} and {meta} of {n}.")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[val + meta :], order[:val], order[val : val + meta]


def held_out_rows(labels: Tensor, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Hold out a fifth of every class for testing, where a set comes without a test part.

    At least one example of a class is held out, and at least one stays. The seed is not that of a run: all runs on a set are
    tested on the same examples.
    """
    generator = torch.Generator().manual_seed(seed)
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero().squeeze(1)
        count = min(len(rows) - 1, max(1, round(0.2 * len(rows))))
        held[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    return (~held).nonzero().squeeze(1), held.nonzero().squeeze(1)


def fingerprint(data: DataSet) -> dict[str, int | str]:
    """How many images a set has and a hash of them, as plain data, whatever parts a run makes of it."""
    names = "\0".join(data.test.class_names or ()).encode()
    return {
        "num_classes": data.test.num_classes,
        "train_examples": len(data.train),
        "test_examples": len(data.test),
        "class_names": blake2b(names, digest_size=8).hexdigest(),
        "train": _hash(data.train),
        "test": _hash(data.test),
    }


def _hash(part: ImageSet) -> str:
    found = blake2b(str(list(part.images.shape)).encode(), digest_size=16)
    found.update(part.labels.numpy().astype("<i8").tobytes())
    for block in part.images.reshape(-1).split(_BLOCK):
        found.update(blake2b(block.numpy().tobytes(), digest_size=32).digest())
    return found.hexdigest()


def difference(then: Mapping[str, object], now: Mapping[str, object]) -> str:
    """Say in a few words what two fingerprints differ in; empty where all that both of them say is the same."""
    for key, words in _DIFFERENCES.items():
        if key in then and key in now and then[key] != now[key]:
            return f"other {words}" if isinstance(now[key], str) else f"{then[key]:,} and {now[key]:,} {words}"
    return ""


def draw_epoch(n: int, *, pad: int, flip: bool, seed: int, epoch: int) -> Tensor:
    """Draw an epoch's order and augmentation from ``(seed, epoch)`` alone, on the CPU.

    Returns:
        ``[4, n]``: the order of the examples; for each place in it the row and column of the crop, 0..2 pad, and 1 to mirror.
    """
    # Seeds of neighbouring epochs must not overlap between runs: one run's epoch 1 is not another's epoch 0.
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    order = torch.randperm(n, generator=generator)
    corner = torch.randint(0, 2 * pad + 1, (2, n), generator=generator)
    coin = torch.rand(n, generator=generator) < 0.5
    return torch.stack([order, *corner, (coin & flip).long()])


def pad_images(images: Tensor, pad: int) -> Tensor:
    """Surround ``[N, H, W, channels]`` with ``pad`` pixels of zero, once, so that a crop is a plain lookup."""
    return images if pad == 0 else F.pad(images, (0, 0, pad, pad, pad, pad))


def crop_batch(
    padded: Tensor, index: Tensor, rows: Tensor, columns: Tensor, mirrored: Tensor, *, size: tuple[int, int]
) -> Tensor:
    """Look up the examples ``index [B]`` of padded images, crop each at its row and column, and mirror some."""
    height, width = size
    down = torch.arange(height, device=padded.device)
    across = torch.arange(width, device=padded.device)
    y = rows.unsqueeze(1) + down
    x = columns.unsqueeze(1) + torch.where(mirrored.unsqueeze(1), width - 1 - across, across)
    return padded[index[:, None, None], y[:, :, None], x[:, None, :]]


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Turn uint8 ``[B, H, W, channels]`` into standardised floats ``[B, channels, H, W]`` (channels-last in memory)."""
    scaled = images.to(mean.dtype).div(255).sub(mean).div(std)
    return scaled.permute(0, 3, 1, 2)
