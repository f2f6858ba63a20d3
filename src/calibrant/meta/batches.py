"""Meta batches: drawn anew in every pass over the held-out data, never a cached cycle, never a small remainder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler

from calibrant.core.checks import check_count


class MetaBatches:
    """Endless batches of held-out tensors.

    Every pass takes a new order; what is left at its end and does not fill a batch waits for another pass. A small remainder
    would be worse than none: a calibration error of eight samples is noise.

    Args:
        x: Inputs ``[N, ...]``.
        labels: Class indices ``[N]``.
        batch_size: Samples of a batch; all N where there are fewer.
        generator: Source of the orders. Under distributed training seed it differently in every process, or give every
            process its own part of the data.

    Example:
        >>> batches = MetaBatches(torch.arange(5.0), torch.arange(5), batch_size=2)
        >>> x, labels = next(batches)
        >>> x.shape, bool((x == labels).all())
        (torch.Size([2]), True)
    """

    def __init__(self, x: Tensor, labels: Tensor, *, batch_size: int = 1024, generator: torch.Generator | None = None) -> None:
        check_count(batch_size, where="MetaBatches", name="batch_size")
        if len(x) != len(labels) or len(labels) == 0:
            raise ValueError(f"MetaBatches: `labels` must be [N] = [{len(x)}] with N >= 1, got {list(labels.shape)}.")
        self.x, self.labels, self.batch_size = x, labels, min(batch_size, len(labels))
        self.generator = generator if generator is not None else torch.Generator().manual_seed(torch.initial_seed())
        self._order = torch.empty(0, dtype=torch.int64)
        self._place = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self._place + self.batch_size > len(self._order):
            self._order, self._place = torch.randperm(len(self.labels), generator=self.generator), 0
        index = self._order[self._place : self._place + self.batch_size]
        self._place += self.batch_size
        return self.x[index.to(self.x.device)], self.labels[index.to(self.labels.device)]

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to draw the same batches."""
        return {"order": self._order, "place": self._place, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self._order, self._place = state["order"].cpu().clone(), int(state["place"])
        self.generator.set_state(state["generator"].cpu())


class LoaderBatches:
    """Endless batches of a `DataLoader`, iterated anew in every pass; batches shorter than its ``batch_size`` are skipped.

    ``itertools.cycle`` would replay one cached pass for ever.

    Args:
        loader: Loader of the held-out data, which must shuffle. A ``DistributedSampler`` is told of every new pass.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        if isinstance(getattr(loader, "sampler", None), SequentialSampler):
            raise ValueError(
                "LoaderBatches: `loader` must shuffle, got a sequential one. Pass `DataLoader(..., shuffle=True)`."
            )
        self.loader, self.passes = loader, 0
        self._current: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        return self

    def __next__(self) -> tuple[Any, Tensor]:
        for _ in range(2):
            if self._current is None:
                self._current = self._begin()
            for batch in self._current:
                x, labels = batch[0], batch[1]
                if self.loader.batch_size is None or len(labels) >= self.loader.batch_size:
                    return x, labels
            self._current = None
        raise ValueError(
            f"LoaderBatches: `loader` must hold at least one full batch of {self.loader.batch_size}, got none in a whole pass. "
            "Lower its `batch_size`."
        )

    def _begin(self) -> Iterator[Any]:
        sampler: Any = getattr(self.loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.passes)
        self.passes += 1
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of passes begun; a resumed run begins the next one."""
        return {"passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the pass after those of ``state``."""
        self.passes, self._current = int(state["passes"]), None
