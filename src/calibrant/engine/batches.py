"""The data of a run, and the batches made from them on the device, without going through the host.

The order is drawn once an epoch, and a cursor on the device picks the next batch from it; so a captured step can be replayed
and sees a new batch each time. With several processes each takes its own slice of one global batch. Images that do not fit on
the device are sent there one batch ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from calibrant.data import DATASETS, DEFAULT_ROOT, is_path, load_path
from calibrant.data.image_set import DataSet, ImageSet, crop_batch, difference, draw_epoch, fingerprint, normalize, pad_images
from calibrant.engine.recipe import DataPart
from calibrant.engine.setup import Hardware

# Images of CIFAR-10's size in one pass on a GPU.
_AT_ONCE = 2000


def is_own(part: DataPart) -> bool:
    """Whether a recipe names a path, whose images may change, and not a published set."""
    return part.name not in DATASETS


def load_data(part: DataPart) -> DataSet:
    """Read the data set that a recipe names, by its name or its path."""
    if is_own(part) and is_path(part.name):
        return load_path(part.name, size=part.size)
    try:
        source = DATASETS[part.name]
    except ValueError as error:
        # This also happens if the data have a relative path and the run is read from another folder.
        raise ValueError(f"{error} To use your own images, give their path; there is nothing at {part.name!r}.") from None
    if part.size is not None:
        raise ValueError(f"train: `data.size` must be left out for {part.name}; only images in a folder are resized.")
    return source.load(Path(part.root or DEFAULT_ROOT).expanduser())


def check_same_data(facts: Mapping[str, Any], part: DataPart, *, where: str, now: Mapping[str, object] | None = None) -> None:
    """Raise ``ValueError`` if the data of a run have changed since it was trained.

    Published sets do not change, and data that are gone are no fault. ``now`` is the fingerprint of the data, if it is known.
    """
    if not is_own(part):
        return
    try:
        now = fingerprint(load_data(part)) if now is None else now
    except (OSError, ValueError):
        return
    if differ := difference(facts.get("data") or {}, now):
        raise ValueError(
            f"train: `data` must be what {where} was trained on, got other data in {part.name}: {differ}. Put the old data "
            "back, or use another folder."
        )


@dataclass(frozen=True)
class RunData:
    """The parts of a run's data; if ``meta`` is None, methods that learn on held-out data use ``val``."""

    train: ImageSet
    val: ImageSet
    meta: ImageSet | None
    test: ImageSet


class ImageBatch(NamedTuple):
    """A batch on the device: standardised ``images [B, channels, H, W]``, ``labels [B]``, ``examples [B]`` and ``step []``.

    ``examples`` are positions in the set; ``step`` counts from the start of the epoch.
    """

    images: Tensor
    labels: Tensor
    examples: Tensor
    step: Tensor


def check_batch_size(batch_size: int, *, examples: int, world_size: int = 1) -> None:
    """Raise ``ValueError`` if a batch size does not suit the number of training examples or of processes."""
    if batch_size % world_size:
        raise ValueError(f"train: `train.batch_size` must be a multiple of {world_size} processes, got {batch_size}.")
    if batch_size > examples:
        raise ValueError(
            f"train: `train.batch_size` must be at most the {examples} training examples, got {batch_size}. "
            "Lower it with `--set train.batch_size=…`."
        )


class Batches:
    """What training and held-out batches share: labels and statistics on the device, the cursor, images sent by the host.

    ``draw`` holds everything that is random in an epoch; its first row is the order of the examples.
    """

    def __init__(
        self, data: ImageSet, hardware: Hardware, *, batch_size: int, draw: Tensor, seed: int, resident: bool, pad: int = 0
    ) -> None:
        device, group = hardware.device, hardware.group
        self.batch_size, self.seed, self.resident = batch_size, seed, resident
        self.steps_per_epoch = draw.shape[1] // batch_size
        local = batch_size // group.world_size
        self._images = pad_images(data.images, pad).to(device) if resident else data.images
        self._feed = None if resident else _HostFeed(data.images, batch_size=local, device=device)
        self._labels = data.labels.to(device)
        self._mean = torch.tensor(data.mean, dtype=hardware.dtype, device=device)
        self._std = torch.tensor(data.std, dtype=hardware.dtype, device=device)
        self._places = torch.arange(local, device=device)
        self._local = self._places + group.rank * local
        self._draw = draw.to(device)
        self._cursor = torch.zeros((), dtype=torch.int64, device=device)

    def feed(self) -> None:
        """Send the images of the next batch to the device, unless all images are there."""
        if self._feed is not None:
            self._feed.advance()

    def state(self) -> dict[str, Tensor]:
        """The tensors that `next` changes."""
        return {"cursor": self._cursor}

    def _begin(self, draw: Tensor, *, steps: int) -> None:
        """Begin the first of ``steps`` batches of a new draw."""
        self._draw.copy_(draw.pin_memory() if self._draw.is_cuda else draw, non_blocking=True)
        self._cursor.zero_()
        if self._feed is not None:
            self._feed.begin(draw[0, : steps * self.batch_size].view(steps, self.batch_size)[:, self._local.cpu()])

    def next(self) -> ImageBatch:
        """Make the next batch; after the last comes the first again (warm-up steps may run past the end)."""
        step = self._cursor % self.steps_per_epoch
        order, *augmentation = self._draw.index_select(1, step * self.batch_size + self._local).unbind(0)
        images = self._look_up(order, *augmentation)
        self._cursor += 1
        return ImageBatch(normalize(images, self._mean, self._std), self._labels[order], order, step)

    def _look_up(self, order: Tensor, *augmentation: Tensor) -> Tensor:
        """Return the images at these positions, or those that the host has sent."""
        return self._images[order] if self._feed is None else self._feed.buffer


class TrainBatches(Batches):
    """Augmented training batches; an epoch has no smaller last batch. Call `feed` before each `next`.

    ``batch_size`` counts the examples of all processes; ``resident`` images are all on the device.
    """

    def __init__(self, data: ImageSet, hardware: Hardware, *, batch_size: int, seed: int, resident: bool = True) -> None:
        check_batch_size(batch_size, examples=len(data), world_size=hardware.group.world_size)
        self.size, self.flip, self.pad = data.size, data.flip, data.pad
        draw = torch.zeros(4, len(data), dtype=torch.int64)
        super().__init__(data, hardware, batch_size=batch_size, draw=draw, seed=seed, resident=resident, pad=data.pad)
        self.begin_epoch(0)

    def begin_epoch(self, epoch: int, *, kept: Tensor | None = None) -> int:
        """Draw the order and augmentation of an epoch (of the examples ``kept`` only, if given); return its number of steps."""
        draw = draw_epoch(self._draw.shape[1], pad=self.pad, flip=self.flip, seed=self.seed, epoch=epoch)
        order, steps = draw[0], self.steps_per_epoch
        if kept is not None and len(kept) < len(order):
            # Kept examples come first, in the order drawn; the others fill up the buffer and are never reached.
            held = torch.isin(order, kept.cpu())
            draw[0] = torch.cat([order[held], order[~held]])
            steps = max(1, len(kept) // self.batch_size)
        self._begin(draw, steps=steps)
        return steps

    def _look_up(self, order: Tensor, *augmentation: Tensor) -> Tensor:
        """Crop the images, and mirror some."""
        rows, columns, mirrored = augmentation
        if self._feed is None:
            padded, index = self._images, order
        else:
            padded, index = pad_images(self._feed.buffer, self.pad), self._places
        return crop_batch(padded, index, rows, columns, mirrored.bool(), size=self.size)


class HeldOutBatches(Batches):
    """Held-out batches, not augmented, drawn anew for every pass and without a smaller last batch.

    A batch is at most the whole set; ``steps_per_epoch`` counts meta steps. With ``in_order`` they follow the order of the set
    and start again at its end.
    """

    def __init__(
        self,
        data: ImageSet,
        hardware: Hardware,
        *,
        batch_size: int,
        steps_per_epoch: int,
        seed: int,
        resident: bool = True,
        in_order: bool = False,
    ) -> None:
        size = min(batch_size, len(data))
        size -= size % hardware.group.world_size
        draw = torch.zeros(1, steps_per_epoch * size, dtype=torch.int64)
        super().__init__(data, hardware, batch_size=size, draw=draw, seed=seed, resident=resident)
        self._in_order, self.examples = in_order, len(data)
        self.begin_epoch(0)

    def begin_epoch(self, epoch: int) -> None:
        """Draw as many fresh permutations of the set as the epoch's meta steps need."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63 ^ 0x5EED)
        examples, length = len(self._images), self._draw.shape[1]
        per_pass = examples // self.batch_size
        passes, kept = -(-self.steps_per_epoch // per_pass), per_pass * self.batch_size
        if self._in_order:
            order = torch.arange(epoch * length, (epoch + 1) * length) % kept
        else:
            order = torch.cat([torch.randperm(examples, generator=generator)[:kept] for _ in range(passes)])
        self._begin(order[:length].unsqueeze(0), steps=self.steps_per_epoch)

    def once(self) -> Iterator[ImageBatch]:
        """Every batch of one pass in order; the cursor stays where it is."""
        for start in range(0, len(self._images) - self.batch_size + 1, self.batch_size):
            index = start + self._local
            images = self._images[index.to(self._images.device)].to(index.device)
            yield ImageBatch(normalize(images, self._mean, self._std), self._labels[index], index, self._cursor)


class _HostFeed:
    """Copies the images of one batch after the other into a buffer at a fixed address on the device.

    The next batch is picked and sent while the device works on this one: two staging buffers in page-locked memory take turns,
    and the host only waits for the copy before last.
    """

    def __init__(self, images: Tensor, *, batch_size: int, device: torch.device) -> None:
        shape = (batch_size, *images.shape[1:])
        self._images, self._cuda = images, device.type == "cuda"
        self.buffer = torch.zeros(shape, dtype=torch.uint8, device=device)
        self._staging = [torch.empty(shape, dtype=torch.uint8, pin_memory=self._cuda) for _ in range(2)]
        self._sent: list[torch.cuda.Event | None] = [None, None]

    def begin(self, order: Tensor) -> None:
        """Begin an epoch; ``order [steps, batch_size]`` holds the positions of its examples."""
        self._order, self._place = order, 0

    def advance(self) -> None:
        """Send the next batch to the buffer."""
        slot, row = self._place % 2, self._order[self._place % len(self._order)]
        sent = self._sent[slot]
        if sent is not None:
            sent.synchronize()
        torch.index_select(self._images, 0, row, out=self._staging[slot])
        self.buffer.copy_(self._staging[slot], non_blocking=True)
        if self._cuda:
            event = self._sent[slot] = torch.cuda.Event()
            event.record()
        self._place += 1


def at_once(image: Tensor, device: torch.device) -> int:
    """How many images like ``image`` to pass through a network at a time in evaluation mode.

    On a GPU 2,000 of CIFAR-10's size, and fewer of larger ones, so that activations take no more memory. On a CPU few enough
    for its caches: ResNet-18 needs 5.6 s for 1,024 images of CIFAR-10 in batches of 32, and 7.3 s for all at once.
    """
    if device.type == "cuda":
        return min(_AT_ONCE, max(32, _AT_ONCE * 3 * 32**2 // image.numel()))
    return max(32, 3 * 32**3 // image.numel())
