"""What losses and metrics share: Laplace and Gaussian kernels between confidences, and a differentiable correctness.

`laplace_pair_sum`, `gaussian_weights` and `all_pairs_accuracy` are differentiable; `gaussian_sums` and `gaussian_means`, for
whole data sets, are not.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from calibrant.core.checks import check_positive

# Smallest scale for which exp(x / scale) on [0, 1], times sums of a million weights and their gradients, stays far from
# overflow: exponents up to 40 in float32 (1e17 of 3e38), up to 300 in float64 (1e130 of 1e308).
_SMALLEST_FACTORED = {torch.float32: 0.5 / 40, torch.float64: 0.5 / 300}
# Smallest bandwidth for which squares of differences may be expanded: (1 / 0.01)² roundings are 6e-4 in float32.
_SMALLEST_EXPANDED = 0.01
# Kernel values computed at once, which stay in a core's cache; and the bandwidths within which a Gaussian, and its spectrum,
# fall to 1e-17 of their top.
_BLOCK, _REACH = 32_000, 9


def laplace_pair_sum(x: Tensor, values: Tensor, *, scale: float) -> Tensor:
    r"""Sum of a Laplace kernel over all pairs, in O(N log N) time and O(N) memory.

    .. math:: S = \sum_{i=1}^{N} \sum_{j=1}^{N} v_i \, v_j \, e^{-|x_i - x_j| / s}

    with points :math:`x` ``[N]`` in [0, 1], ``values`` :math:`v` ``[N]`` and :math:`s` the ``scale``. Pairs with i = j count.
    After a sort the kernel factorises, :math:`e^{-(x_i - x_j)/s} = e^{-x_i/s} e^{x_j/s}`, so a cumulative sum does. It is exact
    to rounding for every scale: below 1/80 (float32) or 1/600 (float64), where the factors could overflow, the cumulative sum
    is built by doubling windows instead, which takes O(N log N) memory for a gradient. Twice differentiable, tied points having
    no slope between them; no device synchronisation. Half precision is computed in float32.

    Example:
        >>> x = torch.tensor([0.0, 0.5], dtype=torch.float64)
        >>> laplace_pair_sum(x, torch.ones_like(x), scale=0.5)  # 2 + 2/e
        tensor(2.7358, dtype=torch.float64)
    """
    check_positive(scale, where="laplace_pair_sum", name="scale")
    dtype = torch.promote_types(torch.promote_types(x.dtype, values.dtype), torch.float32)
    x, values = x.to(dtype), values.to(dtype)
    orders = [torch.argsort(x.detach(), stable=True)]
    if x.requires_grad:
        # At a tie the slope of |x_i - x_j| would come out as +1 or -1 by the order of samples; the mean of both is its 0.
        orders.append(torch.argsort(x.detach(), descending=True, stable=True).flip(0))
    order, shape = torch.cat(orders), (len(orders), len(orders[0]))
    x, values = (v.index_select(0, order).unflatten(-1, shape) for v in (x, values))
    # The cumulative sum counts the pairs i = j, so that twice it has them twice.
    return (2 * (values * _decayed_cumsum(x, values, scale=scale)).sum(-1) - values.square().sum(-1)).mean(-1)


def _decayed_cumsum(x: Tensor, values: Tensor, *, scale: float) -> Tensor:
    """For ``x [O, N]``, rows sorted, and ``values [O, N]``: sum over j <= i of values_j exp(-(x_i - x_j) / scale)."""
    # PyTorch has no deterministic cumulative sum on CUDA; whoever asks for determinism gets the other way.
    exact_repeat = x.is_cuda and torch.are_deterministic_algorithms_enabled()
    if scale >= _SMALLEST_FACTORED[x.dtype] and not exact_repeat:
        growth = torch.exp((x - 0.5) / scale)
        # Both factors grow or fall with the sorted x, so every partial sum is dominated by its last terms: no cancellation.
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

    with points :math:`x` ``[N]`` in [0, 1] and :math:`h` the ``bandwidth``; ``[N, N]``, rows summing to one. Computed as a
    softmax over j, so no row is 0/0 however small h is, and twice differentiable. Half precision is computed in float32: a
    bandwidth of 0.01 is finer than its spacing near one. With ``leave_one_out`` a point has no weight at itself.

    Example:
        >>> gaussian_weights(torch.tensor([0.5, 0.6]), bandwidth=0.1)
        tensor([[0.6225, 0.3775],
                [0.3775, 0.6225]])

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

    From a bandwidth of 0.01 on they are computed as :math:`(2 x_i x_j - x_i^2 - x_j^2) / 2h^2` around the mean point, in one
    tensor, with products of a matrix and a vector as gradient; with 512 points a kernel and its gradient then take a third
    to a half of the time of differences. In float32 that moves SECE by less than 3e-7 and its gradient by 2e-5 of itself.
    Below 0.01 rounding would show, and differences are used.
    """
    if bandwidth < _SMALLEST_EXPANDED:
        # Scaling the points and not their differences saves passes over all pairs, and so does (x - y)(y - x) in backward.
        point = math.sqrt(0.5) / bandwidth * x
        column, row = point.unsqueeze(-1), point.unsqueeze(-2)
        return (column - row) * (row - column)
    point = (x - x.detach().mean()) * (math.sqrt(0.5) / bandwidth)
    minus_square = -point.square()
    # Autocast would round the outer product to half precision.
    with torch.autocast(x.device.type, enabled=False):
        return torch.addr(minus_square, 2 * point, point).add_(minus_square.unsqueeze(1))


def gaussian_sums(x: Tensor, values: Tensor, *, bandwidth: float, at: Tensor | None = None) -> Tensor:
    r"""Sum Gaussians centred on N points at the same or other points, in nearly linear time and without gradient.

    .. math:: g_k(t) = \sum_{j=1}^{N} v_{kj} \, e^{-(t - x_j)^2 / 2h^2}

    with points :math:`x` ``[N]``, ``values`` :math:`v` ``[K, N]`` and ``bandwidth`` :math:`h`; ``[K, T]`` at T points ``at``,
    or at ``x``. A wide Gaussian has few frequencies, so the sum is a short Fourier series; narrow ones are summed over the
    pairs within reach. The error is below 1e-15 of :math:`\sum_j |v_{kj}|`. Computed in float64 on the CPU; a million points
    take about a second at h = 0.05.

    Example:
        >>> x = torch.tensor([0.5, 0.6], dtype=torch.float64)
        >>> gaussian_sums(x, torch.ones(1, 2), bandwidth=0.1)  # 1 + exp(-1/2)
        tensor([[1.6065, 1.6065]], dtype=torch.float64)
    """
    check_positive(bandwidth, where="gaussian_sums", name="bandwidth")
    points, rows = x.detach().double().cpu(), values.detach().double().cpu()
    targets = points if at is None else at.detach().double().cpu()
    # Where the two ways take equally long.
    if bandwidth**2 * len(points) > 0.5:
        return _fourier_sums(targets, points, rows, bandwidth=bandwidth)
    order, (near, place) = torch.argsort(points), torch.unique(targets, return_inverse=True)
    # Below the least bandwidth everything that is not equal is far apart, and squares would overflow.
    return _banded_sums(near, points[order], rows[:, order], bandwidth=max(bandwidth, 1e-100)).index_select(1, place)


def gaussian_means(
    x: Tensor, values: Tensor, *, bandwidth: float, weights: Tensor | None = None, leave_one_out: bool = False
) -> Tensor:
    r"""Kernel-weighted means of values around each of N points (Nadaraya-Watson regression), without gradient.

    .. math:: m_k(x_i) = \frac{\sum_j w_j v_{kj} e^{-(x_i - x_j)^2 / 2h^2}}{\sum_j w_j e^{-(x_i - x_j)^2 / 2h^2}}

    with ``values`` :math:`v`, ``weights`` :math:`w` and ``bandwidth`` :math:`h`; with ``leave_one_out`` both sums run over
    :math:`j \ne i` (N >= 2), and a point far from all others takes the value of its nearest neighbour. Time, memory and
    accuracy are those of `gaussian_sums`. Points ``[N]``, values and means ``[K, N]``, weights ``[N]``, all > 0.

    Example:
        >>> x, right = torch.tensor([0.5, 0.6]), torch.tensor([[1.0, 0.0]])
        >>> gaussian_means(x, right, bandwidth=0.1)
        tensor([[0.6225, 0.3775]], dtype=torch.float64)

    Reference:
        Nadaraya, Theory of Probability and its Applications 1964; Watson, Sankhya 1964.
    """
    x = x.detach().double().cpu()
    weight = torch.ones_like(x) if weights is None else weights.detach().double().cpu()
    rows = torch.cat([weight.unsqueeze(0), weight * values.detach().double().cpu()])
    sums = gaussian_sums(x, rows, bandwidth=bandwidth)
    if not leave_one_out:
        # A point counts fully for itself, whatever rounding says beside much heavier ones.
        return sums[1:] / torch.maximum(sums[0], weight)
    sums -= rows
    # Where nearly nothing but the point itself was summed, subtracting it leaves rounding errors.
    lonely = (sums[0] <= 1e-3 * weight).nonzero().squeeze(1)
    means = sums[1:] / sums[0].index_fill(0, lonely, 1.0)
    for part in lonely.split(max(_BLOCK // len(x), 1)):
        distance = (x[part].unsqueeze(1) - x).abs()
        distance[torch.arange(len(part)), part] = torch.inf
        nearest = distance.amin(1, keepdim=True)
        # Kernels relative to that of the nearest other point, so never 0/0.
        kernel = torch.exp(-0.5 * ((distance - nearest) / bandwidth) * ((distance + nearest) / bandwidth))
        total = rows @ kernel.nan_to_num_(nan=0.0).T
        means[:, part] = total[1:] / total[0]
    return means


def _fourier_sums(targets: Tensor, points: Tensor, values: Tensor, *, bandwidth: float) -> Tensor:
    """Sum over all pairs by the Fourier series of a Gaussian whose period is out of its own reach ``[K, T]``."""
    start = min(points.min(), targets.min())
    period = float(max(points.max(), targets.max()) - start) + _REACH * bandwidth
    number = torch.arange(math.ceil(_REACH * period / (2 * math.pi * bandwidth)) + 1, dtype=torch.float64)
    frequency = number * (2 * math.pi / period)
    share = torch.exp(-0.5 * (bandwidth * frequency) ** 2) * (math.sqrt(8 * math.pi) * bandwidth / period)
    share[0] /= 2

    def waves(some: Tensor) -> Tensor:
        angle = (some - start).unsqueeze(1) * frequency
        return torch.cat([angle.cos(), angle.sin()], 1)

    step = max(_BLOCK // len(frequency), 1)
    found = torch.zeros(len(values), 2 * len(frequency), dtype=torch.float64)
    for at in range(0, len(points), step):
        found += values[:, at : at + step] @ waves(points[at : at + step])
    found *= share.repeat(2)
    return torch.cat([found @ waves(part).T for part in targets.split(step)], 1)


def _banded_sums(targets: Tensor, sources: Tensor, weights: Tensor, *, bandwidth: float) -> Tensor:
    """Sum over all pairs within reach, block by block ``[K, T]``; both sides sorted."""
    rows = 64
    begin = torch.arange(0, len(targets), rows)
    last = (begin + rows).clamp_max(len(targets)) - 1
    first = torch.searchsorted(sources, targets[begin] - _REACH * bandwidth).tolist()
    end = torch.searchsorted(sources, targets[last] + _REACH * bandwidth, right=True).tolist()
    # In numpy: PyTorch divides even small blocks among threads, and waiting for them on a busy machine made everything 40 times
    # slower. Some versions of BLAS report invalid values in small products where there are none.
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

    with probabilities :math:`p`, labels :math:`y`, the logistic function :math:`\sigma` and :math:`t` the ``sharpness``. The
    soft rank of Qin et al. is taken of the true class alone, which needs O(N C) time and memory where the published code
    compares all pairs of classes in O(N C²).

    It is 1 where the true class wins clearly, 0.5 where two classes tie, 0 where it loses. It underrates right predictions
    of low confidence among many classes: with C = 100 and the rest uniform it is 0.99 at a top probability of 0.10, 0.77 at
    0.07 and 0 (without gradient) at 0.05. Raise the sharpness where that matters.

    With ``probs [N, C]`` and ``labels [N]`` the result is ``[N]`` in [0, 1], differentiable in ``probs``. A sharpness of 100 is
    the published default (called a temperature there, but multiplied).

    Example:
        >>> all_pairs_accuracy(torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]]), torch.tensor([0, 0, 0]))
        tensor([1.0000, 0.5000, 0.0000])

    Reference:
        Qin, Liu and Li, Information Retrieval 2010; used by Bohdal, Yang and Hospedales, TMLR 2023.
    """
    check_positive(sharpness, where="all_pairs_accuracy", name="sharpness")
    true = probs.gather(1, labels.long().unsqueeze(1))
    # The true class compares with itself as 1/2, which the constant takes out.
    beaten_by = torch.sigmoid(sharpness * (probs - true)).sum(1) - 0.5
    return torch.relu(1 - beaten_by)
