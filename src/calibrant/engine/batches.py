"""The training and meta-validation sets on the device, handed out batch by batch without a host in between.

A cursor that lives on the device picks the next batch from an order drawn once an epoch; so a captured step can be replayed
and sees the next batch each time. Under several processes each takes its own slice of one global batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.data.augment import crop_batch, draw_epoch, normalize, pad_images
from calibrant.data.image_set import ImageSet
from calibrant.engine.feeding import HostFeed


class Batch(NamedTuple):
    """A batch on the device.

    Attributes:
        images: Standardised ``[B, channels, H, W]``.
        labels: ``[B]``.
        examples: Position of each example in its set ``[B]``.
        step: Number of this batch within the epoch, ``[]``.
    """

    images: Tensor
    labels: Tensor
    examples: Tensor
    step: Tensor


def check_batch_size(batch_size: int, *, examples: int, world_size: int = 1) -> None:
    """Raise ``ValueError`` with one sentence unless so many training examples, and processes, make a batch."""
    if batch_size % world_size:
        raise ValueError(f"train: `train.batch_size` must be a multiple of {world_size} processes, got {batch_size}.")
    if batch_size > examples:
        raise ValueError(
            f"train: `train.batch_size` must be at most the {examples} training examples, got {batch_size}. "
            "Lower it with `--set train.batch_size=…`."
        )


class TrainBatches:
    """Augmented training batches.

    Args:
        data: The training set.
        batch_size: Examples of one global batch; the remainder of an epoch is left out.
        device: Where images live and batches are made.
        seed: Seed of order and augmentation.
        dtype: Floating type of the images.
        rank: This process.
        world_size: Number of processes that share a batch.
        resident: Whether the images lie on the device; else `feed` must be called before each `next`.
    """

    def __init__(
        self,
        data: ImageSet,
        *,
        batch_size: int,
        device: torch.device,
        seed: int,
        dtype: torch.dtype = torch.float32,
        rank: int = 0,
        world_size: int = 1,
        resident: bool = True,
    ) -> None:
        check_batch_size(batch_size, examples=len(data), world_size=world_size)
        self.batch_size, self.seed, self.size, self.flip, self.pad = batch_size, seed, data.size, data.flip, data.pad
        self.steps_per_epoch = len(data) // batch_size
        local = batch_size // world_size
        self._padded = pad_images(data.images, data.pad).to(device) if resident else None
        self._feed = None if resident else HostFeed(data.images, batch_size=local, device=device)
        self._own = slice(rank * local, (rank + 1) * local)
        self._labels = data.labels.to(device)
        self._mean = torch.tensor(data.mean, dtype=dtype, device=device)
        self._std = torch.tensor(data.std, dtype=dtype, device=device)
        self._places = torch.arange(local, device=device)
        self._local = self._places + rank * local
        self._cursor = torch.zeros((), dtype=torch.int64, device=device)
        self._draw = torch.zeros(4, len(data), dtype=torch.int64, device=device)
        self.begin_epoch(0)

    def begin_epoch(self, epoch: int, *, kept: Tensor | None = None) -> int:
        """Draw the order and augmentation of an epoch and start at its first batch.

        Args:
            epoch: Number of the epoch.
            kept: Positions of the examples to draw from, ascending; all by default.

        Returns:
            Steps of this epoch.
        """
        draw = draw_epoch(self._draw.shape[1], pad=self.pad, flip=self.flip, seed=self.seed, epoch=epoch)
        order = draw.order
        if kept is not None and len(kept) < len(order):
            mask = torch.zeros(len(order), dtype=torch.bool)
            mask[kept.cpu()] = True
            # Kept examples first, in their drawn order; the others fill the buffer behind them and are not reached.
            order = torch.cat([order[mask[order]], order[~mask[order]]])
        rows = torch.stack([order, draw.rows, draw.columns, draw.mirrored.long()])
        self._draw.copy_(rows.pin_memory() if self._draw.is_cuda else rows, non_blocking=True)
        self._cursor.zero_()
        steps = self.steps_per_epoch if kept is None else max(1, len(kept) // self.batch_size)
        if self._feed is not None:
            self._feed.begin(order[: steps * self.batch_size].view(steps, self.batch_size)[:, self._own])
        return steps

    @property
    def fed(self) -> bool:
        """Whether images come from the host."""
        return self._feed is not None

    def feed(self) -> None:
        """Bring the images of the next batch to the device, where they do not lie there."""
        if self._feed is not None:
            self._feed.advance()

    def state(self) -> dict[str, Tensor]:
        """The tensors that `next` changes."""
        return {"cursor": self._cursor}

    def next(self) -> Batch:
        """Make the next batch; wraps to the beginning after the last (warm-up steps may run past it)."""
        step = self._cursor % self.steps_per_epoch
        place = step * self.batch_size + self._local
        order, rows, columns, mirrored = self._draw.index_select(1, place).unbind(0)
        if self._feed is None:
            assert self._padded is not None
            padded, index = self._padded, order
        else:
            padded, index = pad_images(self._feed.buffer, self.pad), self._places
        images = crop_batch(padded, index, rows, columns, mirrored.bool(), size=self.size)
        self._cursor += 1
        return Batch(normalize(images, self._mean, self._std), self._labels[order], order, step)


class MetaBatches:
    """Meta-validation batches, not augmented, re-drawn without replacement: never a cached cycle, never a small remainder.

    Args:
        data: The meta-validation set.
        batch_size: Examples of one global meta batch (at most the whole set is taken).
        steps_per_epoch: Meta steps of an epoch.
        device: Where images live.
        seed: Seed of the order.
        dtype: Floating type of the images.
        rank: This process.
        world_size: Number of processes that share a batch.
        resident: Whether the images lie on the device; else `feed` must be called before each `next`.
    """

    def __init__(
        self,
        data: ImageSet,
        *,
        batch_size: int,
        steps_per_epoch: int,
        device: torch.device,
        seed: int,
        dtype: torch.dtype = torch.float32,
        rank: int = 0,
        world_size: int = 1,
        resident: bool = True,
    ) -> None:
        size = min(batch_size, len(data))
        self.batch_size = size - size % world_size
        if self.batch_size == 0:
            raise ValueError(f"MetaBatches: the meta set must hold at least {world_size} examples, got {len(data)}.")
        local = self.batch_size // world_size
        self.steps_per_epoch, self.seed, self._count = steps_per_epoch, seed, len(data)
        mean, std = torch.tensor(data.mean, dtype=dtype), torch.tensor(data.std, dtype=dtype)
        self._images = data.images.to(device) if resident else None
        self._feed = None if resident else HostFeed(data.images, batch_size=local, device=device)
        self._own = slice(rank * local, (rank + 1) * local)
        self._labels = data.labels.to(device)
        self._mean, self._std = mean.to(device), std.to(device)
        self._local = torch.arange(local, device=device) + rank * local
        self._cursor = torch.zeros((), dtype=torch.int64, device=device)
        self._order = torch.zeros(steps_per_epoch, self.batch_size, dtype=torch.int64, device=device)
        self.begin_epoch(0)

    def begin_epoch(self, epoch: int) -> None:
        """Draw as many fresh permutations of the set as the epoch's meta steps need."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63 ^ 0x5EED)
        per_pass = self._count // self.batch_size
        passes = -(-self.steps_per_epoch // per_pass)
        kept = per_pass * self.batch_size
        order = torch.cat([torch.randperm(self._count, generator=generator)[:kept] for _ in range(passes)])
        order = order[: self.steps_per_epoch * self.batch_size].view(self.steps_per_epoch, self.batch_size)
        self._order.copy_(order)
        self._cursor.zero_()
        if self._feed is not None:
            self._feed.begin(order[:, self._own])

    def feed(self) -> None:
        """Bring the images of the next batch to the device, where they do not lie there."""
        if self._feed is not None:
            self._feed.advance()

    def state(self) -> dict[str, Tensor]:
        """The tensors that `next` changes."""
        return {"cursor": self._cursor}

    def next(self) -> Batch:
        """Make the next meta batch; wraps to the beginning after the last."""
        step = self._cursor % self.steps_per_epoch
        # A 0-d index would be read by the host; selecting a row of length one is not.
        index = self._order.index_select(0, step.view(1)).squeeze(0)[self._local]
        self._cursor += 1
        if self._feed is None:
            assert self._images is not None
            images = self._images[index]
        else:
            images = self._feed.buffer
        return Batch(normalize(images, self._mean, self._std), self._labels[index], index, step)
