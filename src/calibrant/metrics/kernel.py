"""Top-label calibration errors that smooth over confidence with a kernel in place of bins: SECE, smECE, ECE-KDE, MMCE, SKCE."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import TopLabel, top_label
from calibrant.core.checks import ArrayLike, check_positive
from calibrant.core.kernels import all_pairs_accuracy, gaussian_means, gaussian_sums, laplace_pair_sum
from calibrant.core.records import Predictions, as_predictions

SmoothConvention: TypeAlias = Literal["grid", "relplot", "exact"]
Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"

# smECE: bandwidths below this are not tried (the published code stops there too); a given one may be smaller, but the grid
# grows with its inverse; and evaluation points per bandwidth of the exact integral, whose error is below 1e-7 of the value.
_LEAST_BANDWIDTH, _LEAST_GIVEN, _POINTS_PER_BANDWIDTH = 1e-3, 1e-5, 64
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
    leave_one_out: bool = False,
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
        leave_one_out: Leave each example out of its own smoothed accuracy (needs N >= 2).
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
    if accuracy not in ("hard", "soft"):
        raise ValueError(f"{where}: `accuracy` must be 'hard' or 'soft', got {accuracy!r}.")
    given = as_predictions(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    top = top_label(given, where=where)
    if accuracy == "soft":
        top = replace(top, correct=all_pairs_accuracy(given.probs.double(), given.labels))
    if leave_one_out and len(positive(top)) < 2:
        raise ValueError(f"{where}: `leave_one_out` must have N >= 2 examples of positive weight, got 1.")
    return smoothed_accuracy_gap(top, bandwidth=bandwidth, leave_one_out=leave_one_out)


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

    It falls as :math:`\sigma` rises; smECE is its value where :math:`\mathrm{smECE}_\sigma = \sigma`.

    Conventions: "grid", the default, computes as the authors' package does. It spreads residuals and density over a grid of at
    least 1,001 points, reflects once, cuts the Gaussian at distance 1/2, divides by the sum of the density, and halves
    :math:`\sigma` ten times, so that :math:`\sigma` is a multiple of 1/1024. "relplot" gives that package's own number: its
    reflection counts what lies on the last grid point half, so that saturated predictions weigh too little (0.136 instead of
    0.104 on an over-confident model with 58 % of its confidences above 0.999). Below that point the two agree to rounding.
    "exact" integrates the definition above and solves for :math:`\sigma` to 1e-9 (not below 1e-3); it agrees with "grid"
    within about one part in a hundred.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        bandwidth: A fixed :math:`\sigma` in its stead, at least 1e-5.
        convention: "grid", "relplot" or "exact", see above.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.7, 0.3]], dtype=torch.float64)
        >>> smooth_calibration_error(probs, torch.tensor([0, 1]), convention="exact", bandwidth=0.01)  # (0.1 + 0.7) / 2
        tensor(0.4000, dtype=torch.float64)

    Reference:
        Blasiok and Nakkiran, ICLR 2024; their package relplot 1.0.
    """
    where = "smooth_calibration_error"
    if bandwidth is not None:
        check_positive(bandwidth, where=where, name="bandwidth")
        if bandwidth < _LEAST_GIVEN:
            raise ValueError(f"{where}: `bandwidth` must be >= {_LEAST_GIVEN:g}, got {bandwidth!r}.")
    if convention not in get_args(SmoothConvention):
        raise ValueError(f"{where}: `convention` must be 'grid', 'relplot' or 'exact', got {convention!r}.")
    top = top_label(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    return smoothed_residual(top, bandwidth=bandwidth, convention=convention)


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

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        bandwidth: Width b of the kernel; None to choose it by the data.
        p: Exponent of the gap, at least 1.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

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
    top = positive(top_label(probs, labels, where=where, weights=weights, ignore_index=ignore_index))
    if len(top) < 2:
        raise ValueError(f"{where}: `probs` must hold N >= 2 examples of positive weight, got 1.")
    tied = _Tied(top)
    if bandwidth is None:
        bandwidth = max(_BANDWIDTHS, key=lambda candidate: tied.others(candidate)[2])
    right, every, _ = tied.others(bandwidth)
    gap = np.abs(right / every - top.confidence.numpy()) ** p
    return torch.tensor(float(np.average(gap, weights=tied.weights)), dtype=torch.float64)


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

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        scale: Width s of the Laplace kernel.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best.

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
    return mean_embedding_norm(top, scale=scale)


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

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        bandwidth: Standard deviation h of the kernel.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

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
    if len(positive(top)) < 2:
        raise ValueError(f"{where}: `probs` must hold N >= 2 examples of positive weight, got 1.")
    weight = top.mass / top.mass.mean()
    residual = weight * (top.correct - top.confidence)
    smooth = gaussian_sums(top.confidence, residual.unsqueeze(0), bandwidth=bandwidth)[0]
    return residual @ (smooth - residual) / (weight.sum().square() - weight.square().sum())


def positive(top: TopLabel) -> TopLabel:
    """Return the examples of positive weight; the others count for nothing, but could be 0/0."""
    if top.weights is None or bool((top.weights > 0).all()):
        return top
    kept = top.weights > 0
    squares = None if top.squares is None else top.squares[kept]
    return TopLabel(top.confidence[kept], top.correct[kept], top.weights[kept], top.dtype, squares, top.examples)


def smoothed_accuracy_gap(top: TopLabel, *, bandwidth: float, leave_one_out: bool = False) -> Tensor:
    """SECE of checked examples; their correctness may be a mean of several (cells of a histogram)."""
    top = positive(top)
    smooth = gaussian_means(
        top.confidence, top.correct.unsqueeze(0), bandwidth=bandwidth, weights=top.weights, leave_one_out=leave_one_out
    )
    gap = (smooth[0] - top.confidence).abs_()
    return top.mass @ gap / top.mass.sum()


def mean_embedding_norm(top: TopLabel, *, scale: float = 0.4) -> Tensor:
    """MMCE of checked examples."""
    residual = top.correct - top.confidence
    residual = residual * (top.mass / top.mass.sum())
    # The kernel is positive definite: only rounding can bring the sum below zero.
    return laplace_pair_sum(top.confidence, residual, residual, scale=scale).clamp(min=0).sqrt()


def smoothed_residual(top: TopLabel, *, bandwidth: float | None = None, convention: SmoothConvention = "grid") -> Tensor:
    """SmECE of checked examples; their correctness may be a mean of several (cells of a histogram)."""
    if convention == "exact":
        exact = _Exact(top)
        value = exact(bandwidth) if bandwidth is not None else _solve(exact, guess=_halve(_OnGrid(top, whole_ends=True)))
    else:
        on_grid = _OnGrid(top, whole_ends=convention == "grid")
        value = on_grid(_halve(on_grid) if bandwidth is None else bandwidth)
    return torch.tensor(value, dtype=torch.float64)


def _halve(at_bandwidth: Callable[[float], float]) -> float:
    """Smallest multiple of 1/1024 at which the error is at most the bandwidth, as the published search finds it."""
    high, low = 1.0, 0.0
    if at_bandwidth(high) > high:
        return high
    for _ in range(10):
        middle = (high + low) / 2
        if middle < _LEAST_BANDWIDTH or middle < at_bandwidth(middle):
            low = middle
        else:
            high = middle
    return high


def _solve(at_bandwidth: Callable[[float], float], *, guess: float) -> float:
    """The value at which error and bandwidth are equal; the error falls with the bandwidth, so there is one."""
    value = at_bandwidth(guess)
    # The error at a bandwidth lies on the other side of the solution.
    low, high = max(min(guess, value), _LEAST_BANDWIDTH), max(guess, value, _LEAST_BANDWIDTH)
    at_low, at_high = at_bandwidth(low), at_bandwidth(high)
    if at_low <= low:
        return at_low
    while high - low > 1e-9:
        slope = (at_high - at_low) / (high - low)
        # The secant, kept off the ends so that the bracket always shrinks.
        margin = 0.01 * (high - low)
        middle = min(max((at_low - slope * low) / (1 - slope), low + margin), high - margin)
        error = at_bandwidth(middle)
        if error > middle:
            low, at_low = middle, error
        else:
            high, at_high = middle, error
    return (at_low + at_high) / 2


class _OnGrid:
    """The error at a bandwidth, by convolution on a grid as in the authors' package."""

    def __init__(self, top: TopLabel, *, whole_ends: bool) -> None:
        self._whole_ends = whole_ends
        self._confidence = top.confidence.numpy()
        weights = (top.mass / top.mass.mean()).numpy()
        self._values = (weights * (self._confidence - top.correct.numpy()), weights)
        self._spectra: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.complex128]]] = {}

    def __call__(self, bandwidth: float) -> float:
        nodes = max(2000, round(20 / bandwidth)) // 2 + 1
        residual, density = self._smooth(bandwidth, nodes)
        at = np.linspace(0, 1, max(round(10 / bandwidth), 200))
        share = at * (nodes - 1)
        left = share.astype(np.int64).clip(0, nodes - 2)
        share -= left
        rows = np.stack([residual, density])
        residual, density = rows[:, left] * (1 - share) + rows[:, left + 1] * share
        # The package adds 1e-4 to the density of N examples before it divides by it.
        return float(np.abs(residual).sum() / (density + 1e-4).sum())

    def _smooth(self, bandwidth: float, nodes: int) -> Array:
        """Residual and density on the grid ``[2, nodes]``, reflected once and convolved with a cut Gaussian."""
        size = 1 << (4 * nodes - 3).bit_length()
        if nodes not in self._spectra:
            once = self._spread(nodes)
            if self._whole_ends:
                # An end of the grid is its own mirror image: it counts once where every other point counts twice.
                once[:, [0, -1]] *= 2
            reflected = np.concatenate([once[:, :0:-1], once, once[:, -2::-1]], axis=1)
            self._spectra[nodes] = np.fft.rfft(reflected, size)
        from_centre = np.linspace(0, 1, nodes) - 0.5
        kernel = np.exp(-(from_centre**2) / (2 * bandwidth**2)) / (math.sqrt(2 * math.pi) * bandwidth)
        full = np.fft.irfft(self._spectra[nodes] * np.fft.rfft(kernel, size), size)
        start = nodes - 1 + nodes // 2
        return full[:, start : start + nodes]

    def _spread(self, nodes: int) -> Array:
        """Share the values of every example between the two grid points around it, ``[2, nodes]``."""
        place = self._confidence * (nodes - 1)
        left = place.astype(np.int64).clip(0, nodes - 2)
        share = place - left
        sums = [
            np.bincount(left, weights=(1 - share) * v, minlength=nodes)
            + np.bincount(left + 1, weights=share * v, minlength=nodes)
            for v in self._values
        ]
        return np.stack(sums)


class _Exact:
    """The error at a bandwidth, by its definition."""

    def __init__(self, top: TopLabel) -> None:
        weights = top.mass / top.mass.sum()
        # Joined once here, ties need not be joined at every bandwidth.
        self._confidence, group = torch.unique(top.confidence, return_inverse=True)
        self._residual = torch.bincount(group, weights=weights * (top.confidence - top.correct)).unsqueeze(0)

    def __call__(self, bandwidth: float) -> float:
        points = math.ceil(_POINTS_PER_BANDWIDTH * max(1 / bandwidth, 1)) + 1
        at = torch.linspace(0, 1, points, dtype=torch.float64)
        # Reflecting the point of evaluation is reflecting the examples; images beyond ten bandwidths are below 1e-21.
        reach, turns = 10 * bandwidth, range(-math.ceil(5 * bandwidth), math.ceil(5 * bandwidth) + 1)
        images = torch.cat([sign * at + 2 * n for n in turns for sign in (1, -1)])
        seen = ((images >= -reach) & (images <= 1 + reach)).nonzero().squeeze(1)
        sums = gaussian_sums(self._confidence, self._residual, bandwidth=bandwidth, at=images[seen])
        smooth = torch.bincount(seen % points, weights=sums[0]) / (math.sqrt(2 * math.pi) * bandwidth)
        return _integrate_size(smooth) / (points - 1)


def _integrate_size(values: Tensor) -> float:
    """Integral of the absolute value of a smooth function given by ``values``, spaced by one; error of third order."""
    left, right = values[:-1], values[1:]
    size = left.abs() + right.abs()
    # Where the sign changes a polygon makes two triangles instead of a trapezoid. Between zeros of a smooth function, flat at
    # both ends, it is too small by the slopes there over twelve (Euler and Maclaurin), and each zero ends two such pieces.
    triangles = (left.square() + right.square()) / size.clamp(min=1e-300) + (right - left).abs() / 3
    return float(torch.where(left * right < 0, triangles, size).sum() / 2)


class _Tied:
    """Examples grouped by equal confidence, and the leave-one-out kernel sums around each of them."""

    def __init__(self, top: TopLabel) -> None:
        confidence = top.confidence.numpy().clip(_MARGIN, 1 - _MARGIN)
        self.weights: Array = top.mass.numpy()
        self._correct = top.correct.numpy()
        self._points, self._group, self._count = np.unique(confidence, return_inverse=True, return_counts=True)
        per_group = [np.bincount(self._group, weights=w) for w in (self.weights, self.weights * self._correct)]
        self._totals = np.stack(per_group)

    def others(self, bandwidth: float) -> tuple[Array, Array, float]:
        """Kernel sums at each example over the others, and the mean log-likelihood under their density.

        Args:
            bandwidth: Width b of the kernel.

        Returns:
            The sums ``[N]`` over right predictions and over all, up to a common factor per example; the log-likelihood.
        """
        elsewhere, own, shift = self._between_groups(bandwidth)
        every, right = elsewhere[:, self._group]
        own = own[self._group]
        every = every + own * (self._totals[0, self._group] - self.weights)
        right = right + own * (self._totals[1, self._group] - self.weights * self._correct)
        density = np.log(every / (self.weights.sum() - self.weights)) + shift[self._group]
        return right, every, float(np.average(density, weights=self.weights))

    def _between_groups(self, bandwidth: float) -> tuple[Array, Array, Array]:
        """Sums of weights ``[2, U]`` over other groups, the kernel within the own one ``[U]``, and the log of their factor."""
        points = self._points
        a, b = torch.from_numpy(points / bandwidth + 1), torch.from_numpy((1 - points) / bandwidth + 1)
        log_norm = (torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)).numpy()
        log_one_minus = np.log1p(-points)
        # log k(c; m) = m * logit(c) / b + log(1 - c) / b - log B(m): a product of two columns, but for a term of the row.
        left = np.stack([(np.log(points) - log_one_minus) / bandwidth, np.full(len(points), -1.0)], axis=1)
        right = np.stack([points, log_norm])
        sums, own, shift = np.zeros((2, len(points))), np.zeros(len(points)), np.zeros(len(points))
        for start in range(0, len(points), rows := max(_BLOCK // len(points), 1)):
            block = slice(start, start + rows)
            kernel = left[block] @ right
            diagonal = np.arange(len(kernel)), np.arange(len(kernel)) + start
            # A lone example has no kernel of its own to be compared with: its own would drown that of far neighbours.
            within = np.where(self._count[block] > 1, kernel[diagonal], -np.inf)
            kernel[diagonal] = -np.inf
            shift[block] = np.maximum(kernel.max(1), within)
            own[block] = np.exp(within - shift[block])
            kernel -= shift[block, None]
            sums[:, block] = self._totals @ np.exp(kernel, out=kernel).T
        return sums, own, shift + log_one_minus / bandwidth
