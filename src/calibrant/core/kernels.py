"""Laplace and Gaussian kernels between confidences, and a differentiable correctness, for losses and metrics.

`gaussian_sums`, for whole data sets, is not differentiable; the others are.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from calibrant.core.checks import check_positive

# Smallest scale at which exp(x / scale) on [0, 1], times sums of a million weights and their gradients, stays far from
# overflow: exponents up to 40 in float32 (1e17 of 3e38), and to 300 in float64 (1e130 of 1e308).
_SMALLEST_FACTORED = {torch.float32: 0.5 / 40, torch.float64: 0.5 / 300}
# Smallest bandwidth at which squares of differences may be expanded: (1 / 0.01)² roundings are 6e-4 in float32.
_SMALLEST_EXPANDED = 0.01
# Kernel values computed at once, which stay in a core's cache; and the number of bandwidths within which a Gaussian, and its
# spectrum, fall to 1e-17 of their top.
_BLOCK, _REACH = 32_000, 9


def laplace_pair_sum(x: Tensor, values: Tensor, *, scale: float) -> Tensor:
    r"""Sum of a Laplace kernel over all pairs, in O(N log N) time and O(N) memory.

    .. math:: S = \sum_{i=1}^{N} \sum_{j=1}^{N} v_i \, v_j \, e^{-|x_i - x_j| / s}

    with points :math:`x` ``[N]`` in [0, 1], ``values`` :math:`v` ``[N]`` and :math:`s` the ``scale``. Pairs with i = j count.
    After a sort the kernel factorises, :math:`e^{-(x_i - x_j)/s} = e^{-x_i/s} e^{x_j/s}`, so a cumulative sum will do. Below a
    scale of 1/80 (float32) or 1/600 (float64), where the factors could overflow, the sum is built by doubling windows instead,
    with O(N log N) memory for a gradient. Exact to rounding, twice differentiable (tied points have no slope between them), and
    without device synchronisation. Half precision is computed in float32.
    """
    check_positive(scale, where="laplace_pair_sum", name="scale")
    dtype = torch.promote_types(torch.promote_types(x.dtype, values.dtype), torch.float32)
    x, values = x.to(dtype), values.to(dtype)
    orders = [torch.argsort(x.detach(), stable=True)]
    if x.requires_grad:
        # At a tie the slope of |x_i - x_j| would be +1 or -1 by the order of samples; both orders together make it 0.
        orders.append(torch.argsort(x.detach(), descending=True, stable=True).flip(0))
    order, shape = torch.cat(orders), (len(orders), len(orders[0]))
    x, values = (v.index_select(0, order).unflatten(-1, shape) for v in (x, values))
    # Twice the cumulative sum has the pairs i = j twice.
    return (2 * (values * _decayed_cumsum(x, values, scale=scale)).sum(-1) - values.square().sum(-1)).mean(-1)


def _decayed_cumsum(x: Tensor, values: Tensor, *, scale: float) -> Tensor:
    """For ``x [O, N]``, rows sorted, and ``values [O, N]``: sum over j <= i of values_j exp(-(x_i - x_j) / scale)."""
    # PyTorch has no deterministic cumulative sum on CUDA.
    exact_repeat = x.is_cuda and torch.are_deterministic_algorithms_enabled()
    if scale >= _SMALLEST_FACTORED[x.dtype] and not exact_repeat:
        growth = torch.exp((x - 0.5) / scale)
        # The factors grow with the sorted x, so the last terms dominate every partial sum: no cancellation.
        return torch.cumsum(growth * values, -1) / growth
    # A window of length w ending at i, joined with the one ending at i - w; all factors are <= 1.
    total, width = values, 1
    while width < x.shape[-1]:
        decay = torch.exp((x[..., :-width] - x[..., width:]) / scale)
        total = total + pad(decay * total[..., :-width], (width, 0))
        width *= 2
    return total


def gaussian_weights(x: Tensor, *, bandwidth: float, leave_one_out: bool = False) -> Tensor:
    r"""Weights of a Nadaraya-Watson average with a Gaussian kernel, for batches small enough to hold all pairs.

    .. math:: w_{ij} = \frac{e^{-(x_i - x_j)^2 / 2h^2}}{\sum_k e^{-(x_i - x_k)^2 / 2h^2}}

    with points :math:`x` ``[N]`` in [0, 1] and :math:`h` the ``bandwidth``; ``[N, N]``, rows summing to one. It is a softmax
    over j, so no row is 0/0 however small h is, and twice differentiable. Half precision, whose spacing near one is wider than
    a bandwidth of 0.01, is computed in float32. With ``leave_one_out`` a point has no weight at itself.
    Reference:
        Nadaraya, Theory of Probability and its Applications 1964; Watson, Sankhya 1964.
    """
    where = "gaussian_weights"
    check_positive(bandwidth, where=where, name="bandwidth")
    if leave_one_out and len(x) < 2:
        raise ValueError(f"{where}: `leave_one_out` must be used with N >= 2, got N = {len(x)}.")
    exponent = gaussian_exponents(x.to(torch.promote_types(x.dtype, torch.float32)), bandwidth=bandwidth)
    if leave_one_out:
        exponent = exponent.masked_fill(torch.eye(len(x), dtype=torch.bool, device=x.device), float("-inf"))
    return torch.softmax(exponent, dim=-1)


def gaussian_exponents(x: Tensor, *, bandwidth: float) -> Tensor:
    r"""Exponents :math:`-(x_i - x_j)^2 / 2h^2` ``[N, N]`` of a Gaussian kernel between the points ``x [N]`` in [0, 1].

    From a bandwidth of 0.01 on they are computed as :math:`(2 x_i x_j - x_i^2 - x_j^2) / 2h^2` around the mean point. With 512
    points a kernel and its gradient then take a third to a half of the time of differences. In float32 that moves SECE by
    less than 3e-7 and its gradient by 2e-5 of itself. Below 0.01 rounding would show.
    """
    if bandwidth < _SMALLEST_EXPANDED:
        # To scale the points, not their differences, saves passes over all pairs; so does (x - y)(y - x) in backward.
        point = math.sqrt(0.5) / bandwidth * x
        column, row = point.unsqueeze(-1), point.unsqueeze(-2)
        return (column - row) * (row - column)
    point = (x - x.detach().mean()) * (math.sqrt(0.5) / bandwidth)
    minus_square = -point.square()
    # Autocast would round the outer product to half precision.
    with torch.autocast(x.device.type, enabled=False):
        return torch.addr(minus_square, 2 * point, point).add_(minus_square.unsqueeze(1))


def gaussian_sums(x: Tensor, values: Tensor, *, bandwidth: float) -> Tensor:
    r"""Sum Gaussians centred on N points at each of these points, in nearly linear time and without gradient.

    .. math:: g_k(x_i) = \sum_{j=1}^{N} v_{kj} \, e^{-(x_i - x_j)^2 / 2h^2}

    with points :math:`x` ``[N]``, ``values`` :math:`v` ``[K, N]`` and ``bandwidth`` :math:`h`; ``[K, N]``. A wide Gaussian has
    few frequencies, so the sum is a short Fourier series; narrow ones are summed over the pairs within reach. The error is
    below 1e-15 of :math:`\sum_j |v_{kj}|`. Computed in float64 on the CPU; a million points take about a second at h = 0.05.
    """
    check_positive(bandwidth, where="gaussian_sums", name="bandwidth")
    points, rows = x.detach().double().cpu(), values.detach().double().cpu()
    # Where the two ways take equally long.
    if bandwidth**2 * len(points) > 0.5:
        return _fourier_sums(points, rows, bandwidth=bandwidth)
    order, (targets, place) = torch.argsort(points), torch.unique(points, return_inverse=True)
    # At smaller bandwidths squares would overflow; all that is not equal is far apart anyway.
    return _banded_sums(targets, points[order], rows[:, order], bandwidth=max(bandwidth, 1e-100)).index_select(1, place)


def _fourier_sums(points: Tensor, values: Tensor, *, bandwidth: float) -> Tensor:
    """Sum over all pairs by the Fourier series of a Gaussian whose period is out of its own reach ``[K, N]``."""
    start = points.min()
    period = float(points.max() - start) + _REACH * bandwidth
    number = torch.arange(math.ceil(_REACH * period / (2 * math.pi * bandwidth)) + 1, dtype=torch.float64)
    frequency = number * (2 * math.pi / period)
    share = torch.exp(-0.5 * (bandwidth * frequency) ** 2) * (math.sqrt(8 * math.pi) * bandwidth / period)
    share[0] /= 2

    def waves(some: Tensor) -> Tensor:
        angle = (some - start).unsqueeze(1) * frequency
        return torch.cat([angle.cos(), angle.sin()], 1)

    step = max(_BLOCK // len(frequency), 1)
    found = torch.zeros(len(values), 2 * len(frequency), dtype=torch.float64)
    for some, block in zip(points.split(step), values.split(step, 1), strict=True):
        found += block @ waves(some)
    found *= share.repeat(2)
    return torch.cat([found @ waves(some).T for some in points.split(step)], 1)


def _banded_sums(targets: Tensor, sources: Tensor, weights: Tensor, *, bandwidth: float) -> Tensor:
    """Sum over all pairs within reach, block by block ``[K, T]``; both sides sorted."""
    rows = 64
    begin = torch.arange(0, len(targets), rows)
    last = (begin + rows).clamp_max(len(targets)) - 1
    first = torch.searchsorted(sources, targets[begin] - _REACH * bandwidth).tolist()
    end = torch.searchsorted(sources, targets[last] + _REACH * bandwidth, right=True).tolist()
    # In numpy: PyTorch divides even small blocks among threads, and on a busy machine waiting for them took 40 times as long.
    # Some versions of BLAS report invalid values in small products where there are none.
    points, weight, out = sources.numpy(), weights.numpy(), np.zeros((len(weights), len(targets)))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for low, left, right in zip(begin.tolist(), first, end, strict=True):
            column = targets[low : low + rows].unsqueeze(1).numpy()
            for start in range(left, right, _BLOCK // rows):
                stop = min(start + _BLOCK // rows, right)
                kernel = np.exp(-0.5 * ((column - points[start:stop]) / bandwidth) ** 2)
                out[:, low : low + rows] += weight[:, start:stop] @ kernel.T
    return torch.from_numpy(out)


def all_pairs_accuracy(probs: Tensor, labels: Tensor, *, sharpness: float = 100.0) -> Tensor:
    r"""Soft correctness of every example: one minus the soft number of classes ranked above the true one.

    .. math:: \pi_i = \Bigl[ 1 - \sum_{k \ne y_i} \sigma\bigl( t\,(p_{ik} - p_{iy_i}) \bigr) \Bigr]_+

    with ``probs`` :math:`p` ``[N, C]``, ``labels`` :math:`y` ``[N]``, the logistic function :math:`\sigma` and :math:`t` the
    ``sharpness``; ``[N]`` in [0, 1], differentiable in ``probs``. Only the soft rank of the true class is computed, in O(N C);
    the published code compares all pairs of classes in O(N C²). The sharpness of 100 is the published default (called a
    temperature there, but multiplied).

    It is 1 where the true class wins clearly, 0.5 where two classes tie, 0 where it loses. It underrates right predictions
    of low confidence among many classes: with C = 100 and the rest uniform it is 0.99 at a top probability of 0.10, 0.77 at
    0.07 and 0 (without gradient) at 0.05. Raise the sharpness where that matters.
    Reference:
        Qin, Liu and Li, Information Retrieval 2010; used by Bohdal, Yang and Hospedales, TMLR 2023.
    """
    check_positive(sharpness, where="all_pairs_accuracy", name="sharpness")
    true = probs.gather(1, labels.long().unsqueeze(1))
    # The true class compares with itself as 1/2, which the constant takes out.
    beaten_by = torch.sigmoid(sharpness * (probs - true)).sum(1) - 0.5
    return torch.relu(1 - beaten_by)
