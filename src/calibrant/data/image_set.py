"""The record of a data set: images as bytes, labels, and the facts that travel with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageSet:
    """N labelled images.

    Attributes:
        images: ``[N, H, W, channels]``, uint8: the layout that a GPU crops and normalises fastest.
        labels: Class indices ``[N]``, int64.
        num_classes: Number of classes C, also of those that no label names.
        mean: Mean of each channel after division by 255, for normalising.
        std: Standard deviation of each channel.
        class_names: C names, or None.
        pad: Pixels of zero padding for random crops (0: no cropping).
        flip: Whether mirrored images are the same class.
        posterior: True class probabilities ``[N, C]`` where they are known (synthetic sets), else None.
    """

    images: Tensor
    labels: Tensor
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...] | None = None
    pad: int = 0
    flip: bool = False
    posterior: Tensor | None = None

    def __post_init__(self) -> None:
        where = "ImageSet"
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            got = f"{self.images.dtype} {list(self.images.shape)}"
            raise ValueError(f"{where}: `images` must be uint8 [N, H, W, channels], got {got}.")
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            got = f"{self.labels.dtype} {list(self.labels.shape)}"
            raise ValueError(f"{where}: `labels` must be int64 [N] = [{len(self.images)}], got {got}.")
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < self.num_classes:
            got = f"{int(self.labels.min())} to {int(self.labels.max())}"
            raise ValueError(f"{where}: `labels` must lie in [0, {self.num_classes - 1}], got {got}.")
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
    """What a data set's loader returns: everything that may be trained on, and the test set."""

    name: str
    train: ImageSet
    test: ImageSet
