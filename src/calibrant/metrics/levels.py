"""Confidence compressed to some hundred levels, on which resampling is cheap. `batched` computes metrics on them.

Only the spread of a metric over resamples is computed so; a metric's own value comes from the module named after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from calibrant.core.binning import equal_width_index
from calibrant.core.grid import WIDTH_CELLS, Grid

# A level is at most this wide (a quarter of SECE's bandwidth), and all examples make about this many levels of equal content
# where a cell does not hold more.
_WIDTH = 0.0125
_PARTS = 64
_SECE_BANDWIDTH = 0.05
_MMCE_WIDTH = 0.4
# Bandwidths at which the smoothed residual is computed; smECE is found between two of them.
LADDER = torch.logspace(-3.5, 0, 29, dtype=torch.float64)


@dataclass(frozen=True)
class Levels:
    """Occupied confidence levels, sorted, float64 ``[G]`` each.

    Attributes:
        share: Share of all examples, summing to one.
        confidence: Mean confidence.
        accuracy: Share of right predictions.
        bin_index: Equal-width bin, int64.
        last_cell: Last cell of the grid that belongs to the level, int64.
        size: (Effective) number of examples.
        n_bins: Number of bins M of the binned metrics.
    """

    share: Tensor
    confidence: Tensor
    accuracy: Tensor
    bin_index: Tensor
    last_cell: Tensor
    size: int
    n_bins: int

    def __len__(self) -> int:
        return len(self.share)

    @cached_property
    def mass_index(self) -> Tensor:
        """Equal-mass bin in which the middle of each level lies ``[G]``."""
        middle = self.share.cumsum(0) - self.share / 2
        return torch.bucketize(middle, self.mass_cuts[1:-1])

    @cached_property
    def mass_cuts(self) -> Tensor:
        """Where equal-mass bins of ``size`` examples begin and end, as a share of all ``[M + 1]``, but for empty ones."""
        return _mass_cuts(self.size, self.n_bins)

    @cached_property
    def in_bin(self) -> Tensor | None:
        """1 where level g is in equal-width bin m, ``[G, M]``; bins without a level are left out. None if each has one."""
        used, index = torch.unique(self.bin_index, return_inverse=True)
        return None if len(used) == len(self) else torch.nn.functional.one_hot(index, len(used)).double()

    def sum_by_bin(self, values: Tensor) -> Tensor:
        """Add up ``values [R, G]`` by equal-width bin; ``[R, M]`` without the bins that hold no level."""
        return values if self.in_bin is None else values @ self.in_bin

    @cached_property
    def gauss(self) -> Tensor:
        """Gaussian kernel of SECE between levels ``[G, G]``."""
        return torch.exp(-0.5 * ((self.confidence.unsqueeze(1) - self.confidence) / _SECE_BANDWIDTH) ** 2)

    @cached_property
    def laplace(self) -> Tensor:
        """Laplace kernel of MMCE between levels ``[G, G]``."""
        return self.laplace_between(self.confidence)

    @staticmethod
    def laplace_between(confidence: Tensor) -> Tensor:
        """Laplace kernel of MMCE between all pairs of ``confidence [K]``; ``[K, K]``."""
        return torch.exp((confidence.unsqueeze(1) - confidence).abs() / -_MMCE_WIDTH)

    @cached_property
    def smoothers(self) -> Tensor:
        """Share of a reflected Gaussian at level g that falls into each of T parts of [0, 1], ``[29, G, T]``, float32.

        Parts end half-way between levels, and at multiples of a level's width. Rows sum to one, so that without overlap, at
        a small bandwidth, the smoothed residual is the residual.
        """
        middle = (self.confidence[1:] + self.confidence[:-1]) / 2
        even = torch.linspace(0, 1, round(1 / _WIDTH) + 1, dtype=torch.float64)
        ends = torch.cat([even, middle]).unique().float()
        center = self.confidence.float().unsqueeze(1)
        # Images of the kernel mirrored at 0 and 1; further ones matter only for bandwidths near 1.
        images = [ends + 2 * k + sign * center for k in (-1, 0, 1) for sign in (-1, 1)]
        share = torch.empty(len(LADDER), len(center), len(ends) - 1)
        # One bandwidth after the other: of 1,000 levels all images at all of them would fill 800 MB.
        for rung, scale in enumerate((LADDER * 2**0.5).float()):
            total = torch.erf(images[0] / scale)
            for image in images[1:]:
                total += torch.erf(image / scale)
            torch.sub(total[:, 1:], total[:, :-1], out=share[rung])
            share[rung] /= share[rung].sum(-1, keepdim=True)
        return share


def levels_of(grid: Grid, *, size: float, n_bins: int, within_bins: bool = False) -> Levels:
    """Merge the cells of ``grid`` to levels that are narrow and hold few examples.

    Args:
        grid: Top-label cells.
        size: (Effective) number of examples.
        n_bins: Number of bins of the binned metrics; no level straddles two equal-mass bins unless a cell does.
        within_bins: Whether no level may straddle two equal-width bins either.

    Returns:
        The levels; at most one per example.
    """
    used = (grid.weight > 0).nonzero().squeeze(1)
    cells = torch.stack([grid.weight, grid.confidence, grid.correct])[:, used]
    share = cells[0] / cells[0].sum()
    confidence = (cells[1] / cells[0]).clamp(0, 1)
    # Cells lie within bins if these divide them; a cell knows better than its mean on which side of a rounded edge it lies.
    if WIDTH_CELLS % n_bins == 0:
        bin_index = used.clamp_max(WIDTH_CELLS - 1) // (WIDTH_CELLS // n_bins)
    else:
        bin_index = equal_width_index(confidence, n_bins)
    cuts, each = _mass_cuts(max(round(size), 1), n_bins), max(_PARTS // n_bins, 1)
    finer = (cuts[:-1].unsqueeze(1) + cuts.diff().unsqueeze(1) * torch.arange(each) / each).flatten()
    slots = [(confidence / _WIDTH).long(), torch.bucketize(share.cumsum(0) - share / 2, finer)]
    new = (torch.stack(slots + [bin_index] * within_bins).diff(dim=1) != 0).any(0).long()
    level = torch.cat([new.new_zeros(1), new.cumsum(0)])
    sums = torch.zeros(3, int(level[-1]) + 1, dtype=torch.float64).index_add_(1, level, cells)
    last = torch.cat([new, new.new_ones(1)]).bool()
    return _from_sums(sums, bin_index[last], used[last], size=max(round(size), 1), n_bins=n_bins)


def _mass_cuts(size: int, n_bins: int) -> Tensor:
    """Where `numpy.array_split` cuts ``size`` examples into M parts, as a share of all ``[M + 1]``, but for empty parts."""
    n_bins = min(n_bins, size)
    part, more = divmod(size, n_bins)
    k = torch.arange(n_bins + 1, dtype=torch.float64)
    return (k * part + k.clamp(max=more)) / size


def merge_bins(levels: Levels) -> Levels:
    """Put together the levels of each equal-width bin."""
    bins, index = torch.unique(levels.bin_index, return_inverse=True)
    parts = torch.stack([levels.share, levels.share * levels.confidence, levels.share * levels.accuracy])
    sums = torch.zeros(3, len(bins), dtype=torch.float64).index_add_(1, index, parts)
    last = torch.cat([index.diff() != 0, index.new_ones(1, dtype=torch.bool)])
    return _from_sums(sums, bins, levels.last_cell[last], size=levels.size, n_bins=levels.n_bins)


def _from_sums(sums: Tensor, bin_index: Tensor, last_cell: Tensor, *, size: int, n_bins: int) -> Levels:
    return Levels(
        share=sums[0] / sums[0].sum(),
        confidence=(sums[1] / sums[0]).clamp(0, 1),
        accuracy=(sums[2] / sums[0]).clamp(0, 1),
        bin_index=bin_index,
        last_cell=last_cell,
        size=size,
        n_bins=n_bins,
    )
