"""Bayesian binning into quantiles (BBQ): an average over many equal-mass histograms, weighted by their evidence."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from calibrant.calibrators.one_vs_rest import Question, StepCalibrator, Vector
from calibrant.calibrators.ties import edges_behind, merge_ties
from calibrant.core.checks import check_positive

Positions = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
# A binning this much less likely than the best adds nothing that can be seen.
_LEAST_WEIGHT = 1e-3


class Sorted(NamedTuple):
    """A question in ascending order: probabilities ``[N]``, and sums before each position ``[N + 1]``.

    ``ties`` is the first position after the run of equal probabilities that ends before or at each one.
    """

    probs: Vector
    mass: Vector
    hits: Vector
    hit_probs: Vector
    ties: Positions


class Binning(NamedTuple):
    """One histogram: inner edges ``[L]``, values ``[L + 1]`` and the logarithm of its evidence."""

    edges: Vector
    values: Vector
    log_evidence: float


def sort_question(question: Question) -> Sorted:
    """Sort a question and take running sums."""
    probs = merge_ties(question.probs)
    order = np.argsort(probs, kind="stable")
    probs, weights = probs[order], question.weights[order]
    hits = weights * question.answers[order]

    def running(values: Vector) -> Vector:
        return np.concatenate([[0.0], np.cumsum(values)])

    # Cutting inside a run of equal probabilities moves the cut behind the run.
    ends = np.searchsorted(probs, probs, side="right").astype(np.int64)
    ties = np.concatenate([[0], ends])
    return Sorted(probs, running(weights), running(hits), running(hits * probs), ties)


def make_binnings(data: Sorted, sizes: range) -> list[Binning]:
    r"""Equal-mass histograms with each of ``sizes`` bins, or fewer where probabilities tie.

    With :math:`n_1` of the n examples of a bin in the class and its middle m, clipped to [0.005, 0.995], the evidence is
    that of a Beta prior with :math:`\alpha = 2m, \beta = 2(1 - m)`; the value is :math:`(n_1 + p_0) / (n + 1)` with
    :math:`p_0 = (\sum_{\text{hits}} p + m) / (n_1 + 1)`. A bin that ties left empty has evidence one.
    """
    from scipy.special import betaln

    # All bins of all histograms lie in one array, so that one class costs a dozen numpy calls and not a dozen for every size.
    count = np.array(sizes)
    starts = np.concatenate([[0], np.cumsum(count)[:-1]])
    number = np.arange(count.sum()) - np.repeat(starts, count) + 1
    share = number / np.repeat(count, count)
    n = len(data.probs)
    cuts = data.ties[np.minimum(np.searchsorted(data.mass, data.mass[-1] * share * (1 - 1e-12)), n)]
    cuts[share == 1] = n
    upper = np.where(cuts == n, 1.0, data.probs[cuts - 1])
    edges = np.where(cuts == n, 1.0, edges_behind(data.probs, np.minimum(cuts, n - 1)))
    before, lower = np.roll(cuts, 1), np.roll(upper, 1)
    before[starts], lower[starts] = 0, 0.0
    mass, hits, hit_probs = (sums[cuts] - sums[before] for sums in (data.mass, data.hits, data.hit_probs))
    middle = np.clip((upper + lower) / 2, 0.005, 0.995)
    alpha, beta = 2 * middle, 2 * (1 - middle)
    evidence = betaln(hits + alpha, np.maximum(mass - hits, 0) + beta) - betaln(alpha, beta)
    values = np.clip((hits + (hit_probs + middle) / (hits + 1)) / (mass + 1), 0.0, 1.0)
    totals = np.add.reduceat(evidence, starts)
    return [
        Binning(edges[first : first + size - 1], values[first : first + size], float(total))
        for first, size, total in zip(starts, count, totals, strict=True)
    ]


def average_binnings(binnings: list[Binning]) -> tuple[Vector, Vector]:
    """Weighted mean of step functions: inner edges ``[L]`` and values ``[L + 1]``.

    Example:
        >>> one = Binning(np.array([]), np.array([0.5]), 0.0)
        >>> two = Binning(np.array([0.4]), np.array([0.1, 0.9]), 0.0)
        >>> edges, values = average_binnings([one, two])
        >>> edges.tolist(), values.tolist()
        ([0.4], [0.3, 0.7])
    """
    best = max(binning.log_evidence for binning in binnings)
    weights = np.array([math.exp(binning.log_evidence - best) for binning in binnings])
    kept = [(binning, weight) for binning, weight in zip(binnings, weights, strict=True) if weight >= _LEAST_WEIGHT]
    # The mean jumps where one of them does: a sum over all edges instead of a look into every binning at every edge.
    edges, place = np.unique(np.concatenate([binning.edges for binning, _ in kept]), return_inverse=True)
    jumps = np.concatenate([weight * np.diff(binning.values) for binning, weight in kept])
    first = sum(weight * binning.values[0] for binning, weight in kept)
    total = np.cumsum(np.append(first, np.bincount(place, jumps, len(edges)))) / sum(weight for _, weight in kept)
    inner = int((edges < 1.0).sum())
    return edges[:inner], np.clip(total[: inner + 1], 0.0, 1.0)


class BayesianBinning(StepCalibrator):
    """Averages equal-mass histograms of many sizes, each weighted by how likely it makes the labels (BBQ), then normalises.

    The sizes run from N^(1/3) / ``span`` to ``span`` N^(1/3), and never over N / 5. Binnings less than a thousandth as likely
    as the best are left out; the published code prunes by the variance of the weights instead.

    Args:
        span: How far the sizes reach to both sides of N^(1/3).

    Attributes:
        edges_: Inner edges of the mean ``[C, L]`` (``[1, L]``, of the second class, for two), filled up with 2.
        values_: Its values ``[C, L + 1]``.

    Reference:
        Naeini, Cooper and Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015.
    """

    def __init__(self, *, span: float = 10.0) -> None:
        check_positive(span, where="BayesianBinning", name="span")
        self.span = span

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns."""
        return 50 * num_classes

    def _steps(self, question: Question) -> tuple[Vector, Vector]:
        n = len(question.probs)
        root = n ** (1 / 3)
        least = max(1, math.floor(root / self.span))
        most = max(least, min(math.ceil(n / 5), math.ceil(self.span * root)))
        data = sort_question(question)
        return average_binnings(make_binnings(data, range(least, most + 1)))
