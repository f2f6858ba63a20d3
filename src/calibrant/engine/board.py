"""A run's history as TensorBoard events, where TensorBoard is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from calibrant.engine.loop import EpochRecord


class Board(Protocol):
    """Takes an epoch's numbers."""

    def add(self, record: EpochRecord) -> None:
        """Write one epoch."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class NoBoard:
    """Stands in where TensorBoard is missing."""

    def add(self, record: EpochRecord) -> None:
        """Write nothing."""

    def close(self) -> None:
        """Nothing is left."""


class TensorBoard:
    """Writes every number of an epoch as a scalar, ``val/error`` and so on.

    Args:
        folder: Where the events go.
        first_epoch: The run goes on here; older events of this and later epochs are hidden.
    """

    def __init__(self, folder: Path, *, first_epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=first_epoch or None)

    def add(self, record: EpochRecord) -> None:
        """Write one epoch."""
        for name, value in record.to_dict().items():
            if name != "epoch" and value is not None:
                part, _, rest = name.partition("_")
                tag = f"{part}/{rest}" if part in ("train", "val", "test", "gamma") else f"run/{name}"
                self._writer.add_scalar(tag, value, record.epoch)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


def open_board(folder: Path, *, first_epoch: int) -> Board:
    """Return a writer of events, or one that writes nothing where TensorBoard is not installed."""
    try:
        return TensorBoard(folder, first_epoch=first_epoch)
    except ImportError:
        return NoBoard()
