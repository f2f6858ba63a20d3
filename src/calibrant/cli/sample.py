"""A random part of a file's rows: the same rows of every file, in whatever pieces they are read."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from calibrant.core.records import Predictions

SAMPLE_ROWS = 200_000


class RowSample:
    """Keeps the ``size`` rows with the smallest random keys, where the key of a row depends on its number and the seed only.

    Args:
        size: Rows to keep at most.
        seed: Seed of the keys.
    """

    def __init__(self, *, size: int = SAMPLE_ROWS, seed: int = 0) -> None:
        self._size, self._random = size, np.random.default_rng(seed)
        self._parts: list[tuple[Tensor, ...]] = []
        self._limit, self._kept = 1.0, 0
        self._has_logits = self._has_weights = False

    def add(self, batch: Predictions) -> None:
        """Take rows of the next piece."""
        keys = torch.from_numpy(self._random.random(len(batch)))
        picked = (keys < self._limit).nonzero().squeeze(1)
        self._has_logits, self._has_weights = batch.has_logits, batch.weights is not None
        scores = batch.logits if batch.has_logits else batch.probs
        weights = torch.empty(len(batch)) if batch.weights is None else batch.weights
        self._parts.append((keys[picked], scores[picked], batch.labels[picked], weights[picked]))
        self._kept += len(picked)
        if self._kept > 2 * self._size:
            self._prune()

    def predictions(self) -> Predictions:
        """Return the rows kept, in the order of the file."""
        self._prune()
        _, scores, labels, weights = self._parts[0]
        return Predictions(
            logits=scores if self._has_logits else None,
            probs=None if self._has_logits else scores,
            labels=labels,
            weights=weights if self._has_weights else None,
        )

    def _prune(self) -> None:
        joined = tuple(torch.cat(columns) for columns in zip(*self._parts, strict=True))
        if len(joined[0]) > self._size:
            self._limit = float(joined[0].kthvalue(self._size).values)
            below = joined[0] <= self._limit
            joined = tuple(column[below] for column in joined)
        self._parts, self._kept = [joined], len(joined[0])
