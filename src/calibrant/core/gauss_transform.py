"""Sums and means of Gaussians over whole data sets, in nearly linear time and to rounding accuracy, without gradient.

For differentiable kernels on small batches see `calibrant.core.kernels`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import check_positive

# Distinct points up to which all pairs are summed directly: a million kernel values take a few milliseconds.
_EXACT_POINTS = 1024
# Kernel values computed at once; they stay in a core's cache. The loops are in numpy, since PyTorch divides even such
# blocks among threads, and on a busy machine waiting for them made everything 40 times slower.
_BLOCK = 32_000
# (box width in bandwidths, Chebyshev nodes). A point at distance d bandwidths sees a box of width w as exp(-d s) with
# |s| <= w/2; the nodes carry that to 1e-14 of its *smallest* value for all d below the cutoff (< 10), so an isolated point
# is as accurate as a crowded one. Wide boxes have fewer nodes per bandwidth, narrow ones cost less per point.
_NARROW, _WIDE = (0.25, 16), (1.0, 29)
_WIDE_BELOW = 1e-3


# A decorator for what multiplies matrices in numpy. Some versions of BLAS compute with what lies beside small arrays, and
# tell of invalid values and overflow where there are none (numpy issues 24067 and 28967; seen with OpenBLAS at 7 x 5). What is
# really no number shows in the product.
quiet_products = partial(np.errstate, invalid="ignore", over="ignore", divide="ignore")

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"


@dataclass(frozen=True)
class _Places:
    """Sorted positions ``base + offset``, kept apart: their sum would round away digits of offsets much smaller than one."""

    base: Tensor
    offset: Tensor

    @classmethod
    def of(cls, points: Tensor) -> _Places:
        return cls(points, torch.zeros_like(points))


@dataclass(frozen=True)
class _Condensed:
    """Points in which those of crowded boxes have been replaced by Chebyshev nodes.

    Attributes:
        places: The points that stayed and the nodes, sorted, R in all.
        crowded: For each given point, whether its box was replaced ``[U]``.
        count: Points in each crowded box, in order.
        local: Place of each crowded point in its box, from -1 to 1.
        single_at: Where among ``places`` the points are that stayed, in order.
        node_at: Where among ``places`` the q nodes of each crowded box are ``[boxes, q]``.
    """

    places: _Places
    crowded: Tensor
    count: Tensor
    local: Tensor
    single_at: Tensor
    node_at: Tensor


def gaussian_sums(x: Tensor, values: Tensor, *, bandwidth: float, at: Tensor | None = None) -> Tensor:
    r"""Sum Gaussians centred on N points at the same or other points.

    .. math:: g_k(t) = \sum_{j=1}^{N} v_{kj} \, e^{-(t - x_j)^2 / 2h^2}

    with points :math:`x`, ``values`` :math:`v` and ``bandwidth`` :math:`h`. Equal points are joined first. Up to 1,024
    distinct points all pairs are summed. Beyond, boxes of a fraction of h that hold more points than Chebyshev nodes are
    replaced by the nodes, and only pairs closer than about ten bandwidths are summed. The error is below 1e-12 of
    :math:`\sum_j |v_{kj}| e^{-(t - x_j)^2 / 2h^2} + 10^{-14} \max_j |v_{kj}|` for every h > 0. Computed in float64 on
    the CPU; a million points take about half a second on one core.

    Args:
        x: Points ``[N]``, finite.
        values: Weights of the points ``[K, N]``.
        bandwidth: Standard deviation h of the Gaussians, > 0.
        at: Points ``[T]`` to evaluate at; ``x`` itself if not given.

    Returns:
        Sums ``[K, T]``, float64 on the CPU. Raises ``ValueError`` if shapes disagree or the bandwidth is not positive.

    Example:
        >>> x = torch.tensor([0.5, 0.6], dtype=torch.float64)
        >>> gaussian_sums(x, torch.ones(1, 2), bandwidth=0.1)  # 1 + exp(-1/2)
        tensor([[1.6065, 1.6065]], dtype=torch.float64)

    Reference:
        Greengard and Strain, SIAM J. Sci. Stat. Comput. 1991 (the idea); Fong and Darve, J. Comput. Phys. 2009 (the nodes).
    """
    where = "gaussian_sums"
    check_positive(bandwidth, where=where, name="bandwidth")
    if x.ndim != 1 or x.numel() == 0:
        raise ValueError(f"{where}: `x` must be [N] with N >= 1, got {list(x.shape)}.")
    if values.ndim != 2 or values.shape[1] != x.shape[0]:
        raise ValueError(f"{where}: `values` must be [K, N] with N = {x.shape[0]}, got {list(values.shape)}.")
    if at is not None and at.ndim != 1:
        raise ValueError(f"{where}: `at` must be [T], got {list(at.shape)}.")
    points, group = _distinct(x.detach().double().cpu())
    rows = values.detach().double().cpu()
    joined = torch.stack([torch.bincount(group, weights=row, minlength=len(points)) for row in rows])
    if at is None:
        return _sums_at_distinct(points, joined, points, bandwidth).index_select(1, group)
    targets, target_group = _distinct(at.detach().double().cpu())
    return _sums_at_distinct(points, joined, targets, bandwidth).index_select(1, target_group)


def gaussian_means(
    x: Tensor, values: Tensor, *, bandwidth: float, weights: Tensor | None = None, leave_one_out: bool = False
) -> Tensor:
    r"""Kernel-weighted means of values around each of N points (Nadaraya-Watson regression).

    .. math:: m_k(x_i) = \frac{\sum_j w_j v_{kj} e^{-(x_i - x_j)^2 / 2h^2}}{\sum_j w_j e^{-(x_i - x_j)^2 / 2h^2}}

    with ``values`` :math:`v`, ``weights`` :math:`w` and ``bandwidth`` :math:`h`; with ``leave_one_out`` both sums run over
    :math:`j \ne i`, and a point far from all others takes the value of its nearest neighbour. Time, memory and accuracy
    are those of `gaussian_sums`.

    Args:
        x: Points ``[N]``, finite.
        values: Values at the points ``[K, N]``.
        bandwidth: Standard deviation h of the Gaussians, > 0.
        weights: Weights of the points ``[N]``, all > 0; equal if not given.
        leave_one_out: Leave each point out of its own mean (needs N >= 2).

    Returns:
        Means ``[K, N]``, float64 on the CPU. Raises ``ValueError`` as `gaussian_sums` does and on one point to be left out.

    Example:
        >>> x, right = torch.tensor([0.5, 0.6]), torch.tensor([[1.0, 0.0]])
        >>> gaussian_means(x, right, bandwidth=0.1)
        tensor([[0.6225, 0.3775]], dtype=torch.float64)

    Reference:
        Nadaraya, Theory of Probability and its Applications 1964; Watson, Sankhya 1964.
    """
    if leave_one_out and len(x) < 2:
        raise ValueError("gaussian_means: `leave_one_out` must have N >= 2 points, got 1.")
    x = x.detach().double().cpu()
    weight = torch.ones_like(x) if weights is None else weights.detach().double().cpu()
    rows = torch.cat([weight.unsqueeze(0), weight * values.detach().double().cpu()])
    sums = gaussian_sums(x, rows, bandwidth=bandwidth)
    if not leave_one_out:
        return sums[1:] / sums[0]
    sums -= rows
    # Where nearly nothing but the point itself was summed, subtracting it leaves rounding errors.
    lonely = sums[0] <= 1e-3 * weight
    means = sums[1:] / sums[0].masked_fill(lonely, 1.0)
    if bool(lonely.any()):
        means[:, lonely] = _means_of_others(x, rows, lonely, max(bandwidth, 1e-100))
    return means


@quiet_products()
def _means_of_others(x: Tensor, rows: Tensor, chosen: Tensor, bandwidth: float) -> Tensor:
    """Leave-one-out means ``[K, chosen]``, with kernels relative to that of the nearest other point, so never 0/0."""
    order = torch.argsort(x)
    points, weight = x[order].numpy(), rows[:, order].numpy()
    which = chosen[order].nonzero().squeeze(1).numpy()
    gap = np.concatenate([[np.inf], np.diff(points), [np.inf]])
    nearest = np.minimum(gap[:-1], gap[1:])[which]
    reach = np.hypot(nearest, bandwidth * math.sqrt(2 * math.log(1e14 * len(points))))
    first = np.searchsorted(points, points[which] - reach)
    last = np.searchsorted(points, points[which] + reach, side="right")
    sums, rows_at_once = np.zeros((len(weight), len(which))), 64
    for low in range(0, len(which), rows_at_once):
        block = slice(low, low + rows_at_once)
        own, near = which[block, None], nearest[block, None]
        end = int(last[block].max())
        for start in range(int(first[block].min()), end, _BLOCK // rows_at_once):
            columns = np.arange(start, min(start + _BLOCK // rows_at_once, end))
            distance = np.abs(points[own] - points[columns])
            kernel = np.exp(-0.5 * ((distance - near) / bandwidth).clip(0) * ((distance + near) / bandwidth))
            sums[:, block] += weight[:, columns] @ np.where(columns == own, 0.0, kernel).T
    return torch.from_numpy(sums[1:] / sums[0])[:, torch.argsort(order[torch.from_numpy(which)])]


def _distinct(x: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct values of ``x [N]`` in order, and for each of the N which one it is."""
    ordered, order = torch.sort(x)
    points, group = torch.unique_consecutive(ordered, return_inverse=True)
    return points, torch.empty_like(order).scatter_(0, order, group)


def _sums_at_distinct(points: Tensor, values: Tensor, targets: Tensor, bandwidth: float) -> Tensor:
    # Below this everything that is not equal is far apart, and squares of distances in bandwidths would overflow.
    bandwidth = max(bandwidth, 1e-100)
    if max(len(points), len(targets)) <= _EXACT_POINTS:
        return _direct(_Places.of(targets), _Places.of(points), values, bandwidth=bandwidth, cutoff=math.inf)
    width, nodes = _WIDE if bandwidth < _WIDE_BELOW else _NARROW
    sources = _condense(points, width * bandwidth, nodes)
    sinks = sources if targets is points else _condense(targets, width * bandwidth, nodes)
    # What lies beyond adds up to less than 1e-14 of one point at distance zero.
    cutoff = math.sqrt(2 * math.log(1e14 * len(points)))
    weights = _to_nodes(sources, values)
    return _from_nodes(sinks, _direct(sinks.places, sources.places, weights, bandwidth=bandwidth, cutoff=cutoff))


@quiet_products()
def _direct(targets: _Places, sources: _Places, weights: Tensor, *, bandwidth: float, cutoff: float) -> Tensor:
    """Sum over all pairs closer than ``cutoff`` bandwidths, block by block; both sides sorted."""
    total, reach = len(targets.base), cutoff * bandwidth
    position, source_position = targets.base + targets.offset, sources.base + sources.offset
    rows = _block_rows(position, source_position, reach)
    begin = torch.arange(0, total, rows)
    end = (begin + rows).clamp(max=total)
    first = torch.searchsorted(source_position, position[begin] - reach).tolist()
    last = torch.searchsorted(source_position, position[end - 1] + reach, right=True).tolist()
    base, offset, weight = sources.base.numpy(), sources.offset.numpy(), weights.numpy()
    column, column_offset = targets.base.unsqueeze(1).numpy(), targets.offset.unsqueeze(1).numpy()
    out = np.zeros((len(weights), total))
    for low, high, left, right in zip(begin.tolist(), end.tolist(), first, last, strict=True):
        for start in range(left, right, _BLOCK // rows):
            stop = min(start + _BLOCK // rows, right)
            # Differences of bases are exact where it matters, which those from a common origin would not be.
            kernel = column[low:high] - base[start:stop]
            kernel += column_offset[low:high] - offset[start:stop]
            kernel /= bandwidth
            kernel *= kernel
            kernel *= -0.5
            out[:, low:high] += weight[:, start:stop] @ np.exp(kernel, out=kernel).T
    return torch.from_numpy(out)


def _block_rows(position: Tensor, source_position: Tensor, reach: float) -> int:
    """Targets per block: about as many as a target has sources in reach, so that few pairs out of reach are computed."""
    sample = position[:: max(len(position) // 512, 1)]
    low = torch.searchsorted(source_position, sample - reach)
    high = torch.searchsorted(source_position, sample + reach, right=True)
    return int((high - low).double().mean().clamp(16, 128))


def _condense(points: Tensor, width: float, nodes: int) -> _Condensed:
    """Replace the points of every box of the given ``width`` that holds more than ``nodes`` of them."""
    number = ((points - points[0]) / width).floor_()
    _, box, count = torch.unique_consecutive(number, return_inverse=True, return_counts=True)
    crowded_box = count > nodes
    crowded, end = crowded_box[box], count.cumsum(0)[crowded_box]
    count = count[crowded_box]
    first, last = points[end - count], points[end - 1]
    centre = first + (last - first) / 2
    half = torch.maximum(last - centre, centre - first)
    local = (points[crowded] - centre.repeat_interleave(count)) / half.repeat_interleave(count)
    node, _ = _chebyshev(nodes)
    singles = points[~crowded]
    base = torch.cat([singles, centre.repeat_interleave(nodes)])
    offset = torch.cat([torch.zeros_like(singles), (half.unsqueeze(1) * node).flatten()])
    order = torch.argsort(base + offset)
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    places = _Places(base[order], offset[order])
    return _Condensed(places, crowded, count, local, rank[: len(singles)], rank[len(singles) :].view(-1, nodes))


def _to_nodes(where: _Condensed, values: Tensor) -> Tensor:
    """Move the ``values [K, U]`` of crowded points to their nodes such that sums of smooth functions stay, ``[K, R]``."""
    out = torch.empty(len(values), len(where.places.base), dtype=torch.float64)
    out[:, where.single_at] = values[:, ~where.crowded]
    boxes, nodes = where.node_at.shape
    if boxes:
        crowded, begin = values[:, where.crowded].numpy(), (where.count.cumsum(0) - where.count).numpy()
        moments = [np.add.reduceat(crowded * basis, begin, axis=1) for basis in _polynomials(where.local, nodes)]
        out[:, where.node_at] = torch.from_numpy(np.stack(moments, -1)) @ _chebyshev(nodes)[1].T
    return out


def _from_nodes(where: _Condensed, sums: Tensor) -> Tensor:
    """Interpolate ``sums [K, R]`` from the nodes to the points, ``[K, U]``."""
    out = torch.empty(len(sums), len(where.crowded), dtype=torch.float64)
    out[:, ~where.crowded] = sums[:, where.single_at]
    nodes = where.node_at.shape[1]
    coefficients = (sums[:, where.node_at] @ _chebyshev(nodes)[1]).numpy()
    total = np.zeros((len(sums), len(where.local)))
    for degree, basis in enumerate(_polynomials(where.local, nodes)):
        total += np.repeat(coefficients[:, :, degree], where.count.numpy(), axis=1) * basis
    out[:, where.crowded] = torch.from_numpy(total)
    return out


def _polynomials(local: Tensor, count: int) -> Iterator[Array]:
    """Chebyshev polynomials of degree 0 to ``count - 1`` at ``local``, one after another."""
    twice, before, now = 2 * local.numpy(), local.numpy(), np.ones(len(local))
    for _ in range(count):
        yield now
        before, now = now, twice * now - before


@lru_cache(maxsize=4)
def _chebyshev(nodes: int) -> tuple[Tensor, Tensor]:
    """Chebyshev nodes ``[q]`` and the matrix ``[q, q]`` that turns values at them into coefficients of the polynomials."""
    angle = (torch.arange(nodes, dtype=torch.float64) + 0.5) * (math.pi / nodes)
    transform = torch.cos(angle.unsqueeze(1) * torch.arange(nodes)) * (2 / nodes)
    transform[:, 0] /= 2
    return torch.cos(angle), transform
