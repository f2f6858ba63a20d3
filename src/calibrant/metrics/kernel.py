"""Top-label calibration errors that smooth over confidence with a kernel in place of bins: SECE, smECE, ECE-KDE, MMCE, SKCE."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import TopLabel, top_label
from calibrant.core.checks import ArrayLike, check_choice, check_positive
from calibrant.core.kernels import all_pairs_accuracy, gaussian_sums, laplace_pair_sum
from calibrant.core.records import Predictions, as_predictions

__all__ = [
    "kde_calibration_error",
    "maximum_mean_calibration_error",
    "smooth_calibration_error",
    "smooth_expected_calibration_error",
    "squared_kernel_calibration_error",
]

SmoothConvention: TypeAlias = Literal["grid", "relplot"]
Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"

# smECE: bandwidths below this are not tried (the published code stops there too); a given one may be smaller, but the grid
# grows with its inverse.
_LEAST_BANDWIDTH, _LEAST_GIVEN = 1e-3, 1e-5
# ECE-KDE: confidences are kept this far from 0 and 1, where a Beta density is 0 or infinite; kernel values held at once, which
# stay in a core's cache; and where the authors look for a bandwidth.
_MARGIN, _BLOCK = 1e-7, 32_000
_BANDWIDTHS = (*np.logspace(-5, -1, 15).tolist(), *np.linspace(0.2, 1, 5).tolist())


def smooth_expected_calibration_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    bandwidth: float = 0.05,
    accuracy: Literal["hard", "soft"] = "hard",
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean gap between confidence and the kernel-smoothed accuracy around it (SECE).

    With confidence :math:`c_i = \max_k p_{ik}` and correctness :math:`a_i = [\arg\max_k p_{ik} = y_i]`,

    .. math:: \mathrm{SECE} = \frac{1}{N} \sum_{i=1}^{N} \Bigl| \frac{\sum_j a_j K_{ij}}{\sum_j K_{ij}} - c_i \Bigr|,
        \qquad K_{ij} = e^{-(c_i - c_j)^2 / 2h^2}

    with :math:`h` the ``bandwidth``. The sums include j = i, as the paper's limit needs: for h → 0 and distinct confidences
    SECE is the mean of :math:`|a_i - c_i|`. It is not unbiased: small h inflates it, and for large h it is positive even
    for a calibrated model, since accuracy is smoothed and confidence is not. The paper trains with h = 0.01 and
    ``accuracy="soft"`` (one minus the soft number of classes ranked above the true one). Computed to rounding by a fast Gauss
    transform: a million examples take about a second.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        bandwidth: Standard deviation h of the kernel.
        accuracy: "hard" for a_i as above, "soft" for its differentiable stand-in with sharpness 100.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
        >>> smooth_expected_calibration_error(probs, torch.tensor([0, 0]), bandwidth=0.1)
        tensor(0.3500, dtype=torch.float64)

    Reference:
        Wang and Golebiowski, TMLR 2024.
    """
    where = "smooth_expected_calibration_error"
    check_positive(bandwidth, where=where, name="bandwidth")
    check_choice(accuracy, ("hard", "soft"), where=where, name="accuracy")
    top = top_label(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    if accuracy == "soft":
        given = as_predictions(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
        top = replace(top, correct=all_pairs_accuracy(given.probs.double(), given.labels))
    near, right = gaussian_sums(top.confidence, torch.stack([top.mass, top.mass * top.correct]), bandwidth=bandwidth)
    # An example counts in full for itself, whatever rounding does beside much heavier ones. One without weight may be alone.
    smooth: Tensor = right / torch.maximum(near, top.mass).clamp_min(torch.finfo(torch.float64).tiny)
    return top.mass @ (smooth - top.confidence).abs() / top.mass.sum()


def smooth_calibration_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    bandwidth: float | None = None,
    convention: SmoothConvention = "grid",
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean size of the Gaussian-smoothed residual, at the bandwidth that equals it (smECE).

    With confidence :math:`c_i = \max_k p_{ik}`, correctness :math:`a_i = [\arg\max_k p_{ik} = y_i]` and the Gaussian
    density :math:`\varphi_\sigma` of standard deviation :math:`\sigma`, reflected at 0 and 1,

    .. math:: \mathrm{smECE}_\sigma = \int_0^1 \Bigl| \frac1N \sum_{i=1}^{N} (c_i - a_i) K_\sigma(t, c_i) \Bigr| dt, \qquad
        K_\sigma(t, c) = \sum_{n} \varphi_\sigma(t - c + 2n) + \varphi_\sigma(t + c + 2n)

    It falls as :math:`\sigma` rises; smECE is its value where :math:`\mathrm{smECE}_\sigma = \sigma`. It is computed as the
    authors' package does: residuals and density are spread over a grid of at least 1,001 points and reflected once, the
    Gaussian is cut at distance 1/2, the sum of the density divides, and :math:`\sigma` is a multiple of 1/1024. That agrees
    with the integral within about one part in a hundred.

    ``convention="relplot"`` gives that package's own number. Its reflection counts what lies on the last grid point half, so
    that saturated predictions weigh too little (0.136 instead of 0.104 on an over-confident model with 58 % of its
    confidences above 0.999). Below that point the two agree to rounding.

    Arguments and result are those of `smooth_expected_calibration_error`, but for ``bandwidth``, a fixed :math:`\sigma` of at
    least 1e-5 in its stead, and ``convention``, "grid" or "relplot".

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.7, 0.3]], dtype=torch.float64)
        >>> smooth_calibration_error(probs, torch.tensor([0, 1]), bandwidth=0.01)  # (0.1 + 0.7) / 2
        tensor(0.4000, dtype=torch.float64)

    Reference:
        Blasiok and Nakkiran, ICLR 2024; their package relplot 1.0.
    """
    where = "smooth_calibration_error"
    if bandwidth is not None:
        check_positive(bandwidth, where=where, name="bandwidth")
        if bandwidth < _LEAST_GIVEN:
            raise ValueError(f"{where}: `bandwidth` must be >= {_LEAST_GIVEN:g}, got {bandwidth!r}.")
    check_choice(convention, get_args(SmoothConvention), where=where, name="convention")
    top = top_label(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    error = _smoothed_residual(top, whole_ends=convention == "grid")
    return torch.tensor(error(_halve(error) if bandwidth is None else bandwidth), dtype=torch.float64)


def kde_calibration_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    bandwidth: float | None = None,
    p: float = 1,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean gap between confidence and a Beta-kernel estimate of the accuracy around it (ECE-KDE).

    With confidence :math:`c_i = \max_k p_{ik}` and correctness :math:`a_i = [\arg\max_k p_{ik} = y_i]`,

    .. math:: \mathrm{ECE}^{\mathrm{KDE}}_p = \frac1N \sum_{i=1}^{N} \Bigl|
        \frac{\sum_{j \ne i} a_j \, k(c_i; c_j)}{\sum_{j \ne i} k(c_i; c_j)} - c_i \Bigr|^p

    where :math:`k(c; m)` is the density at c of the Beta distribution with parameters :math:`m/b + 1` and
    :math:`(1 - m)/b + 1` and :math:`b` is the ``bandwidth``. No root is taken. If the bandwidth is not given, it is the one
    of 20 from 1e-5 to 1 under which the examples are likeliest, each under the density of the others. Everything is
    computed in log space; confidences are kept 1e-7 away from 0 and 1. O(N²) time for N distinct confidences (10,000: a
    quarter of a second, and twenty times that to choose the bandwidth), O(N) memory.

    The arguments are those of `smooth_expected_calibration_error`, but for the ``bandwidth`` b, which the data choose if it is
    None, and ``p``, the exponent of the gap, at least 1.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if fewer than two examples count.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
        >>> kde_calibration_error(probs, torch.tensor([0, 0]), bandwidth=0.1)  # (|0 - 0.9| + |1 - 0.8|) / 2
        tensor(0.5500, dtype=torch.float64)

    Reference:
        Popordanoska, Sayer and Blaschko, NeurIPS 2022.
    """
    where = "kde_calibration_error"
    if bandwidth is not None:
        check_positive(bandwidth, where=where, name="bandwidth")
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 1 <= p < float("inf"):
        raise ValueError(f"{where}: `p` must be a finite number >= 1, got {p!r}.")
    top = top_label(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    if top.size < 2:
        raise ValueError(f"{where}: `probs` must hold N >= 2 examples of positive weight, got 1.")
    if bandwidth is None:
        bandwidth = max(_BANDWIDTHS, key=lambda candidate: _beta_accuracy(top, candidate)[1])
    gap = np.abs(_beta_accuracy(top, bandwidth)[0] - top.confidence.numpy()) ** p
    return torch.tensor(float(np.average(gap, weights=top.mass.numpy())), dtype=torch.float64)


def maximum_mean_calibration_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    scale: float = 0.4,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Largest mean residual over smooth functions of confidence: the norm of a kernel mean embedding (MMCE).

    .. math:: \mathrm{MMCE} = \sqrt{ \frac{1}{N^2} \sum_{i,j} (a_i - c_i)(a_j - c_j) \, e^{-|c_i - c_j| / s} }

    with confidence :math:`c` and correctness :math:`a` as in `smooth_expected_calibration_error` and :math:`s` the
    ``scale``. Pairs with i = j count (the V-statistic), so it is positive even for a calibrated model and falls as
    :math:`1/\sqrt N`. Some published code returns the square, without the root. With weights :math:`w` a pair counts
    :math:`w_i w_j / (\sum_k w_k)^2` instead of :math:`1/N^2`. The kernel factorises after a sort: O(N log N) time.

    Other arguments and result are those of `smooth_expected_calibration_error`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
        >>> maximum_mean_calibration_error(probs, torch.tensor([0, 0]))
        tensor(0.4000, dtype=torch.float64)

    Reference:
        Kumar, Sarawagi and Jain, ICML 2018.
    """
    where = "maximum_mean_calibration_error"
    check_positive(scale, where=where, name="scale")
    top = top_label(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    residual = (top.correct - top.confidence) * (top.mass / top.mass.sum())
    # The kernel is positive definite: only rounding can bring the sum below zero.
    return laplace_pair_sum(top.confidence, residual, scale=scale).clamp(min=0).sqrt()


def squared_kernel_calibration_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    bandwidth: float = 0.1,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean product of the residuals of two different examples of similar confidence (SKCE, unbiased).

    .. math:: \mathrm{SKCE} = \frac{1}{N(N-1)} \sum_{i \ne j} (a_i - c_i)(a_j - c_j) \, e^{-(c_i - c_j)^2 / 2h^2}

    with confidence :math:`c` and correctness :math:`a` as in `smooth_expected_calibration_error` and :math:`h` the
    ``bandwidth``. Its expectation is the squared kernel calibration error, zero for a calibrated model: so it scatters
    around zero there and can be negative. With weights :math:`w` a pair counts
    :math:`w_i w_j / \sum_{k \ne l} w_k w_l` instead of :math:`1 / N(N-1)`.

    The other arguments are those of `smooth_expected_calibration_error`.

    Returns:
        Scalar ``[]`` in ``[-1, 1]``, float64; nearest 0 is best. Raises ``ValueError`` if fewer than two examples count.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
        >>> squared_kernel_calibration_error(probs, torch.tensor([0, 0]))  # 0.1 * -0.9
        tensor(-0.0900, dtype=torch.float64)

    Reference:
        Widmann, Lindsten and Zachariah, NeurIPS 2019 (SKCE, quadratic unbiased estimator), of the top label.
    """
    where = "squared_kernel_calibration_error"
    check_positive(bandwidth, where=where, name="bandwidth")
    top = top_label(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    if top.size < 2:
        raise ValueError(f"{where}: `probs` must hold N >= 2 examples of positive weight, got 1.")
    weight = top.mass / top.mass.mean()
    residual = weight * (top.correct - top.confidence)
    smooth = gaussian_sums(top.confidence, residual.unsqueeze(0), bandwidth=bandwidth)[0]
    return residual @ (smooth - residual) / (weight.sum().square() - weight.square().sum())


def _halve(error: Callable[[float], float]) -> float:
    """Smallest multiple of 1/1024 at which the error is at most the bandwidth, as the published search finds it."""
    high, low = 1.0, 0.0
    for _ in range(10):
        middle = (high + low) / 2
        if middle < _LEAST_BANDWIDTH or middle < error(middle):
            low = middle
        else:
            high = middle
    return high


def _smoothed_residual(top: TopLabel, *, whole_ends: bool) -> Callable[[float], float]:
    """The error at a bandwidth, by convolution on a grid as in the authors' package."""
    confidence = top.confidence.numpy()
    weights = (top.mass / top.mass.mean()).numpy()
    values = (weights * (confidence - top.correct.numpy()), weights)

    @cache
    def spectrum(nodes: int, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.complex128]]:
        """Residuals and weights, shared between the two grid points around each example and reflected once."""
        place = confidence * (nodes - 1)
        left = place.astype(np.int64).clip(0, nodes - 2)
        share = place - left
        low, high = ([np.bincount(left, weights=part * v, minlength=nodes) for v in values] for part in (1 - share, share))
        # The last grid point has no right neighbour, so nothing wraps around.
        once = np.stack(low) + np.roll(high, 1, axis=1)
        if whole_ends:
            # An end of the grid is its own mirror image: it counts once where every other point counts twice.
            once[:, [0, -1]] *= 2
        return np.fft.rfft(np.concatenate([once[:, :0:-1], once, once[:, -2::-1]], axis=1), size)

    def error(bandwidth: float) -> float:
        nodes = max(2000, round(20 / bandwidth)) // 2 + 1
        size = 1 << (4 * nodes - 3).bit_length()
        grid = np.linspace(0, 1, nodes)
        kernel = np.exp(-((grid - 0.5) ** 2) / (2 * bandwidth**2)) / (math.sqrt(2 * math.pi) * bandwidth)
        start = nodes - 1 + nodes // 2
        smooth = np.fft.irfft(spectrum(nodes, size) * np.fft.rfft(kernel, size), size)[:, start : start + nodes]
        at = np.linspace(0, 1, max(round(10 / bandwidth), 200))
        residual, density = (np.interp(at, grid, row) for row in smooth)
        # The package adds 1e-4 to the density of N examples before it divides by it.
        return float(np.abs(residual).sum() / (density + 1e-4).sum())

    return error


def _beta_accuracy(top: TopLabel, bandwidth: float) -> tuple[Array, float]:
    """Accuracy around each example, by Beta kernels on the others ``[N]``, and the mean log-likelihood under their density."""
    points = top.confidence.numpy().clip(_MARGIN, 1 - _MARGIN)
    weight, right = top.mass.numpy(), (top.mass * top.correct).numpy()
    a, b = torch.from_numpy(points / bandwidth + 1), torch.from_numpy((1 - points) / bandwidth + 1)
    log_norm = (torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)).numpy()
    log_one_minus = np.log1p(-points)
    # log k(c; m) = m * logit(c) / b + log(1 - c) / b - log B(m): a product of two columns, but for a term of the row.
    rows = np.stack([(np.log(points) - log_one_minus) / bandwidth, np.full(len(points), -1.0)], axis=1)
    columns = np.stack([points, log_norm])
    sums, shift = np.zeros((2, len(points))), log_one_minus / bandwidth
    step = max(_BLOCK // len(points), 1)
    for start in range(0, len(points), step):
        block = slice(start, start + step)
        kernel = rows[block] @ columns
        kernel[np.arange(len(kernel)), np.arange(len(kernel)) + start] = -np.inf
        largest = kernel.max(1)
        shift[block] += largest
        sums[:, block] = np.stack([weight, right]) @ np.exp(kernel - largest[:, None]).T
    density = np.log(sums[0] / (weight.sum() - weight)) + shift
    return sums[1] / sums[0], float(np.average(density, weights=weight))
