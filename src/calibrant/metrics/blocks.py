"""Which examples a resample draws together: few alone, very many in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Matrix: TypeAlias = "Array | csr_matrix"

# More examples than this are drawn in as many blocks.
_BLOCKS = 20_000
# Of a sparse matrix with more than this share of entries the product is faster dense.
_DENSE = 0.03


class Blocks:
    """What is drawn together: each example alone or, of more than 20,000, some at a time.

    Sums over blocks of equal size that chance put together spread as sums over examples do: their variance comes out right to
    1 %, less than 1,000 resamples can tell, and ten million examples take hardly longer than twenty thousand.

    Args:
        n: Number of examples N.
        seed: Of the random order.
    """

    def __init__(self, n: int, *, seed: int = 0) -> None:
        self._count = min(n, _BLOCKS)
        order = np.arange(n) if n <= _BLOCKS else np.random.default_rng([seed, 2]).permutation(n)
        self.index = order % self._count

    def __len__(self) -> int:
        return self._count

    def columns(self, values: Tensor, row: Tensor, *, rows: int, number: Tensor | None = None) -> Matrix:
        """Sum values of examples by row and block.

        Args:
            values: What to sum ``[K]``.
            row: Where each belongs ``[K]``.
            rows: Number of rows.
            number: The example of each ``[K]``; all, one after the other, unless given.

        Returns:
            Matrix ``[rows, B]``, dense or sparse, whichever multiplies faster.
        """
        from scipy.sparse import csr_matrix

        column = self.index if number is None else self.index[number.numpy()]
        matrix = csr_matrix((values.float().numpy(), (row.numpy(), column)), shape=(rows, len(self)))
        return matrix.toarray() if matrix.nnz > _DENSE * rows * len(self) else matrix

    def sum(self, values: Tensor) -> Array:
        """Sum ``values [N, K]`` over the examples of each block: ``[K, B]``."""
        sums = values.new_zeros(len(self), values.shape[1]).index_add_(0, torch.from_numpy(self.index), values)
        return sums.T.contiguous().float().numpy()
