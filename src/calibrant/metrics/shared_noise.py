"""The chance that resamples of few examples lack, for two models at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from calibrant.metrics.blocks import Array
from calibrant.metrics.bootstrap import Sample

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


class SharedNoise:
    """Chance that resamples lack, drawn for the bins of two models at once.

    Every example adds its part, which is the same for both models where these predict the same class: there they are right or
    wrong together. The parts of all examples that share a bin of each model add up to one normal number.

    Args:
        one: The examples of the first model.
        two: Those of the second, in the same order.
        same: Where both predict the same class, bool ``[N]``.
    """

    def __init__(self, one: Sample, two: Sample, same: Tensor) -> None:
        most, size = len(two.lacking), len(one.lacking)
        pair, place = torch.unique((one.bin_of_example * most + two.bin_of_example)[same], return_inverse=True)
        together = torch.bincount(place, weights=one.weights[same].square(), minlength=len(pair)).sqrt()
        # A column for every pair of bins, then one for what is the first model's alone in each of its bins, then the second's.
        columns = len(pair) + size + most
        self.first = _noise_matrix(one, pair // most, together, ~same, at=len(pair), columns=columns)
        self.second = _noise_matrix(two, pair % most, together, ~same, at=len(pair) + size, columns=columns)

    def draw(self, rng: np.random.Generator, size: int) -> tuple[Array, Array]:
        """Draw what to add to the accuracies of the bins of both models, ``[M, r]`` each, for ``size`` resamples."""
        normal = rng.standard_normal((self.first.shape[1], size), dtype=np.float32)
        return self.first @ normal, self.second @ normal


def _noise_matrix(sample: Sample, row: Tensor, together: Tensor, apart: Tensor, *, at: int, columns: int) -> csr_matrix:
    """What each of the independent normal numbers adds to the accuracy of each bin, sparse ``[M, columns]``."""
    from scipy.sparse import csr_matrix

    bins = torch.arange(len(sample.lacking))
    variance = sample.weights[apart].square()
    alone = torch.bincount(sample.bin_of_example[apart], weights=variance, minlength=len(bins)).sqrt()
    rows, column = torch.cat([row, bins]), torch.cat([torch.arange(len(row)), at + bins])
    values = sample.lacking[rows] * torch.cat([together, alone])
    return csr_matrix((values.float().numpy(), (rows.numpy(), column.numpy())), shape=(len(bins), columns))
