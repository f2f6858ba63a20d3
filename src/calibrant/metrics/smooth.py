"""The smooth calibration error of Blasiok and Nakkiran (smECE): as their package computes it, or by its exact definition.

The paper's SECE, another thing in spite of its name, lives in `kernel`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import ArrayLike, check_positive
from calibrant.core.gauss_transform import gaussian_sums
from calibrant.core.top_label import TopLabel, top_label

Convention: TypeAlias = Literal["grid", "relplot", "exact"]
Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
Spectrum: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.complex128]]"

# Bandwidths below this are not tried: the published code stops there too.
_LEAST_BANDWIDTH = 1e-3
# A given bandwidth may be smaller, but the grid grows with its inverse.
_LEAST_GIVEN = 1e-5
# Evaluation points per bandwidth of the exact integral; its error is below 1e-7 of the value.
_POINTS_PER_BANDWIDTH = 64


def smooth_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bandwidth: float | None = None,
    convention: Convention = "grid",
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
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        bandwidth: A fixed :math:`\sigma` in its stead, at least 1e-5.
        convention: "grid", "relplot" or "exact", see above.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if the input is not probabilities with labels.

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
    if convention not in get_args(Convention):
        raise ValueError(f"{where}: `convention` must be 'grid', 'relplot' or 'exact', got {convention!r}.")
    top = top_label(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    return smoothed_residual(top, bandwidth=bandwidth, convention=convention)


def smoothed_residual(top: TopLabel, *, bandwidth: float | None = None, convention: Convention = "grid") -> Tensor:
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
        weights = np.ones(len(top)) if top.weights is None else (top.weights / top.weights.mean()).numpy()
        self._values = (weights * (self._confidence - top.correct.numpy()), weights)
        self._spectra: dict[int, Spectrum] = {}

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
        weights = torch.full_like(top.confidence, 1 / len(top)) if top.weights is None else top.weights / top.weights.sum()
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
