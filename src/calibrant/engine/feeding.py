"""Handing images of a set that does not fit on the device to a step that reads them at a fixed address."""

from __future__ import annotations

import torch
from torch import Tensor


class HostFeed:
    """Copies the images of one batch after another into a buffer on the device.

    The next batch is picked and sent while the device works on the present one: two staging buffers in page-locked memory take
    turns, and the host waits only until the last but one copy is done.

    Args:
        images: ``[N, H, W, channels]``, uint8, in the host's memory (or mapped from a file).
        batch_size: Examples of a batch.
        device: Where the buffer lies.
    """

    def __init__(self, images: Tensor, *, batch_size: int, device: torch.device) -> None:
        shape = (batch_size, *images.shape[1:])
        self._images, self._cuda = images, device.type == "cuda"
        self.buffer = torch.zeros(shape, dtype=torch.uint8, device=device)
        self._staging = [torch.empty(shape, dtype=torch.uint8, pin_memory=self._cuda) for _ in range(2)]
        self._sent: list[torch.cuda.Event | None] = [None, None]
        self._order = torch.zeros(1, batch_size, dtype=torch.int64)
        self._place = 0

    def begin(self, order: Tensor) -> None:
        """Start at the first batch of an epoch; ``order [steps, batch_size]`` holds the positions of its examples."""
        self._order, self._place = order, 0

    def advance(self) -> None:
        """Bring the next batch into the buffer."""
        slot, row = self._place % 2, self._order[self._place % len(self._order)]
        sent = self._sent[slot]
        if sent is not None:
            sent.synchronize()
        torch.index_select(self._images, 0, row, out=self._staging[slot])
        self.buffer.copy_(self._staging[slot], non_blocking=True)
        if self._cuda:
            self._sent[slot] = torch.cuda.Event()
            self._sent[slot].record()  # type: ignore[union-attr]
        self._place += 1
