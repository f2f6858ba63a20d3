"""Top-label calibration error by kernel density estimation with Beta kernels (ECE-KDE).

Gaussian-smoothed errors live in `kernel` (SECE) and `smooth` (smECE).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import ArrayLike, check_positive
from calibrant.core.top_label import TopLabel, top_label
from calibrant.metrics.kernel import positive

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"

# Confidences are kept this far from 0 and 1, about the spacing of float32 below one: a Beta density is 0 or infinite there.
_MARGIN = 1e-7
# Kernel values held at once: they stay in a core's cache.
_BLOCK = 32_000
# Where the authors look for a bandwidth.
BANDWIDTHS = (*np.logspace(-5, -1, 15).tolist(), *np.linspace(0.2, 1, 5).tolist())


def kde_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
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
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
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
    return beta_kernel_gap(top, bandwidth=bandwidth, p=p)


def beta_kernel_gap(top: TopLabel, *, bandwidth: float | None = None, p: float = 1) -> Tensor:
    """ECE-KDE of checked examples, at least two and all of positive weight."""
    tied = _Tied(top)
    if bandwidth is None:
        bandwidth = max(BANDWIDTHS, key=lambda candidate: tied.others(candidate)[2])
    right, every, _ = tied.others(bandwidth)
    gap = np.abs(right / every - top.confidence.numpy()) ** p
    return torch.tensor(float(np.average(gap, weights=tied.weights)), dtype=torch.float64)


class _Tied:
    """Examples grouped by equal confidence, and the leave-one-out kernel sums around each of them."""

    def __init__(self, top: TopLabel) -> None:
        confidence = top.confidence.numpy().clip(_MARGIN, 1 - _MARGIN)
        self.weights: Array = np.ones(len(top)) if top.weights is None else top.weights.numpy()
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
