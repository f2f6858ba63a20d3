"""Histogram binning: the frequency of a class in each bin of its probability."""

from __future__ import annotations

from typing import Literal

import numpy as np

from calibrant.calibrators.one_vs_rest import Question, StepCalibrator, Vector
from calibrant.calibrators.ties import edges_behind, just_above, merge_ties
from calibrant.core.binning import equal_width_edges
from calibrant.core.checks import check_count


def equal_mass_edges(probs: Vector, weights: Vector, n_bins: int) -> Vector:
    """Inner edges that give every bin the same weight, as far as ties allow: equal probabilities stay together.

    An edge lies right behind the last probability of its bin.

    Example:
        >>> equal_mass_edges(np.array([0.1, 0.2, 0.3, 0.4, 0.9, 0.9]), np.ones(6), 3).round(4).tolist()
        [0.2, 0.4]
    """
    probs = merge_ties(probs)
    order = np.argsort(probs, kind="stable")
    ordered, mass = probs[order], np.cumsum(weights[order])
    cuts = np.searchsorted(mass, mass[-1] * np.arange(1, n_bins) / n_bins * (1 - 1e-12))
    ends = np.unique(np.searchsorted(ordered, ordered[np.minimum(cuts, len(probs) - 1)], side="right"))
    # Nothing lies above an edge at the largest probability.
    return edges_behind(ordered, ends[ends < len(probs)])


def bin_values(question: Question, edges: Vector) -> Vector:
    """Weighted frequency of the class in each bin ``(lower, upper]``; the middle of the bin where it is empty.

    Example:
        >>> question = Question(np.array([0.1, 0.2, 0.9]), np.array([0.0, 1.0, 1.0]), np.ones(3))
        >>> bin_values(question, np.array([0.5, 0.8])).tolist()
        [0.5, 0.65, 1.0]
    """
    index = np.searchsorted(edges, question.probs)
    mass = np.bincount(index, question.weights, len(edges) + 1)
    hits = np.bincount(index, question.weights * question.answers, len(edges) + 1)
    ends = np.concatenate([[0.0], edges, [1.0]])
    return np.asarray(np.where(mass > 0, hits / np.where(mass > 0, mass, 1.0), (ends[1:] + ends[:-1]) / 2))


class HistogramBinning(StepCalibrator):
    """Replaces every class's probability by the class's frequency in its bin, then normalises.

    A bin without examples keeps its middle. 1e-9 of the original probability is added, as frequencies of zero would make the
    likelihood infinite.

    Args:
        n_bins: Number of bins of each class.
        binning: "width" for bins ``(m/M, (m+1)/M]``, "mass" for bins of equal weight.

    Attributes:
        edges_: Inner edges ``[C, L]`` (``[1, L]``, of the second class, for two), filled up with 2.
        values_: Frequency in each bin ``[C, L + 1]``.

    Reference:
        Zadrozny and Elkan, "Obtaining calibrated probability estimates from decision trees and naive Bayesian classifiers",
        ICML 2001.
    """

    def __init__(self, *, n_bins: int = 15, binning: Literal["width", "mass"] = "width") -> None:
        check_count(n_bins, where="HistogramBinning", name="n_bins")
        if binning not in ("width", "mass"):
            raise ValueError(f"HistogramBinning: `binning` must be 'width' or 'mass', got {binning!r}.")
        self.n_bins = n_bins
        self.binning: Literal["width", "mass"] = binning

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns."""
        return 10 * self.n_bins * (1 if num_classes == 2 else num_classes)

    def _steps(self, question: Question) -> tuple[Vector, Vector]:
        if self.binning == "width":
            # A rounded score on an edge is in the bin below it, whichever way its probability was rounded.
            edges = just_above(equal_width_edges(self.n_bins).numpy()[1:-1])
        else:
            edges = equal_mass_edges(question.probs, question.weights, self.n_bins)
        return edges, bin_values(question, edges)
