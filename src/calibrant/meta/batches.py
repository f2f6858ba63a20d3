"""Meta batches: drawn anew in every pass over the held-out data, never a cached cycle, never a small remainder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler

from calibrant.core.checks import check_count
from calibrant.core.collect import split_batch


class MetaBatches(Iterator[tuple[Any, Tensor]]):
    """Endless batches of held-out tensors.

    Every pass takes a new order; what is left at its end and does not fill a batch waits for another pass. A small remainder
    would be worse than none: a calibration error of eight samples is noise.

    Args:
        x: Inputs ``[N, ...]``, or a mapping of the model's keyword arguments to such tensors.
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

    def __init__(
        self,
        x: Tensor | Mapping[str, Tensor],
        labels: Tensor,
        *,
        batch_size: int = 1024,
        generator: torch.Generator | None = None,
    ) -> None:
        check_count(batch_size, where="MetaBatches", name="batch_size")
        for part in x.values() if isinstance(x, Mapping) else (x,):
            if len(part) != len(labels) or len(labels) == 0:
                raise ValueError(f"MetaBatches: `labels` must be [N] = [{len(part)}] with N >= 1, got {list(labels.shape)}.")
        self.x, self.labels, self.batch_size = x, labels, min(batch_size, len(labels))
        self.generator = generator if generator is not None else torch.Generator().manual_seed(torch.initial_seed())
        self._order = torch.empty(0, dtype=torch.int64)
        self._place = 0

    def __next__(self) -> tuple[Any, Tensor]:
        if self._place + self.batch_size > len(self._order):
            self._order, self._place = torch.randperm(len(self.labels), generator=self.generator), 0
        index = self._order[self._place : self._place + self.batch_size]
        self._place += self.batch_size
        x = {name: part[index] for name, part in self.x.items()} if isinstance(self.x, Mapping) else self.x[index]
        return x, self.labels[index]

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to draw the same batches."""
        return {"order": self._order, "place": self._place, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self._order, self._place = state["order"].cpu().clone(), int(state["place"])
        self.generator.set_state(state["generator"].cpu())


class LoaderBatches(Iterator[tuple[Any, Tensor]]):
    """Endless batches of a `DataLoader`, iterated anew in every pass; batches shorter than its ``batch_size`` are skipped.

    ``itertools.cycle`` would replay one cached pass for ever.

    Args:
        loader: Loader of the held-out data, which must shuffle. Its batches are (x, labels), or mappings of the model's keyword
            arguments with the labels under "labels". A ``DistributedSampler`` is told of every new pass.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        if isinstance(loader.sampler, SequentialSampler):
            raise ValueError(
                "LoaderBatches: `loader` must shuffle, got a sequential one. Pass `DataLoader(..., shuffle=True)`."
            )
        self.loader, self.passes, self._taken = loader, 0, 0
        self._current: Iterator[Any] = iter(())

    def __next__(self) -> tuple[Any, Tensor]:
        for begin in (False, True):
            if begin:
                self._begin()
            for batch in self._current:
                self._taken += 1
                x, labels = split_batch(batch, where="LoaderBatches")
                if self.loader.batch_size is None or len(labels) >= self.loader.batch_size:
                    return x, labels
        raise ValueError(
            f"LoaderBatches: `loader` must hold at least one full batch of {self.loader.batch_size}, got none in a whole pass. "
            "Lower its `batch_size`."
        )

    def _begin(self) -> None:
        sampler: Any = self.loader.sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.passes)
        self.passes, self._taken = self.passes + 1, 0
        self._current = iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of passes begun, and of batches taken in the last."""
        return {"passes": self.passes, "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken if the sampler repeats the order of a pass (`set_epoch`), else with the next pass."""
        self.passes, self._current, self._taken = int(state["passes"]), iter(()), 0
        if state["taken"] and hasattr(self.loader.sampler, "set_epoch"):
            # What the samples of the batches passed over draw was drawn before.
            with torch.random.fork_rng(devices=[]):
                self.passes -= 1
                self._begin()
                for _ in range(int(state["taken"])):
                    next(self._current, None)
            self._taken = int(state["taken"])
