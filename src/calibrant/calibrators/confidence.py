"""Calibrators of the confidence alone: the top class gets a new probability, the others fill up the rest in proportion."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

from calibrant.calibrators.base import Learned
from calibrant.calibrators.fit_data import FitData
from calibrant.calibrators.maps import Vector, floor_logits, interpolate, pad_steps, replace_confidence, step_values
from calibrant.calibrators.per_class import LinesCalibrator, Question, StepsCalibrator, bin_values, equal_mass_edges, merge_ties
from calibrant.core.checks import check_count

# Points at which the recalibrated confidence is kept.
_POINTS = 256


def spline_log_probs(logits: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Map the confidence by straight lines between ``knots [L]``, and scale the other classes to fill up the rest."""
    log_probs = floor_logits(logits).log_softmax(-1)
    return replace_confidence(log_probs, interpolate(log_probs.amax(-1).exp(), knots, values))


def top_label_log_probs(logits: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Map the confidence by the steps (``edges [C, L]``) of the predicted class, and scale the others to fill up the rest."""
    log_probs = floor_logits(logits).log_softmax(-1)
    confidence, top = log_probs.max(-1)
    return replace_confidence(log_probs, step_values(confidence.exp(), edges, values, top))


def top_question(data: FitData) -> tuple[Question, Tensor]:
    """The confidence, whether the predicted class is right, and weights; beside it the predicted class ``[N]``."""
    confidence, predicted = floor_logits(data.logits.double()).softmax(1).max(1)
    correct = (predicted == data.labels).double()
    return Question(confidence.numpy(), correct.numpy(), data.weights.numpy()), predicted


def recalibrate(confidence: Vector, correct: Vector, weights: Vector, *, n_knots: int) -> tuple[Vector, Vector]:
    r"""Fit the curve of Gupta et al.

    With examples in ascending order of confidence and t their share of the total weight so far, a natural cubic spline is
    fitted to :math:`h(t) = \sum_{j: t_j \le t} w_j (a_j - c_j)`; its slope is the mean difference between correctness a and
    confidence c at t, so that the new confidence is :math:`c + h'(t)`.

    Returns:
        Ascending confidences ``[L]`` and their new values ``[L]`` in ``[0, 1]``.
    """
    order = np.argsort(confidence, kind="stable")
    share = weights[order] / weights.sum()
    ordered = confidence[order]
    # The middle of an example's own share, so that both ends are treated alike.
    at = np.cumsum(share) - share / 2
    gap = (correct[order] - ordered) * share
    drift = np.cumsum(gap) - gap / 2
    places = np.linspace(0, 1, n_knots)
    basis = CubicSpline(places, np.eye(n_knots), bc_type="natural")
    root = np.sqrt(share)[:, None]
    heights = np.linalg.lstsq(basis(at) * root, drift * root[:, 0], rcond=None)[0]
    spline = CubicSpline(places, heights, bc_type="natural")
    picked = np.unique(np.linspace(0, len(ordered) - 1, _POINTS).round().astype(int))
    knots = np.unique(ordered[picked])
    # Examples of equal confidence stand for one point: the middle of their run.
    first, last = (np.searchsorted(ordered, knots, side=side) for side in ("left", "right"))
    middle = (at[first] + at[last - 1]) / 2
    return knots, np.clip(knots + spline(middle, 1), 0.0, 1.0)


class SplineCalibration(LinesCalibrator):
    """Maps the confidence by a curve whose slope a spline gives, and scales the other classes in proportion.

    Where the new confidence would hand the top to another class it is raised to a tie, so that predictions stay.

    Args:
        n_knots: Knots of the spline.

    Attributes:
        knots_: Confidences ``[L]``.
        values_: Their recalibrated values ``[L]``; between them the map is straight.

    Reference:
        Gupta et al., "Calibration of Neural Networks using Splines", ICLR 2021.
    """

    label = "spline calibration"
    rules = {"n_knots": partial(check_count, least=3)}
    formula = staticmethod(spline_log_probs)
    preserves_accuracy = True
    needs_every_class = False

    def __init__(self, *, n_knots: int = 6) -> None:
        self.n_knots = n_knots

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns."""
        return 50 * self.n_knots

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        question, _ = top_question(data)
        knots, values = recalibrate(merge_ties(question.probs), question.answers, question.weights, n_knots=self.n_knots)
        if len(knots) == 1:
            knots, values = np.repeat(knots, 2), np.repeat(values, 2)
        return {"knots": torch.from_numpy(knots), "values": torch.from_numpy(values)}


class TopLabelBinning(StepsCalibrator):
    """Replaces the confidence by the accuracy in its bin, with bins of their own for every predicted class.

    Bins of a class hold ``points_per_bin`` examples or a few more; a class predicted less often than that is given the bins
    of all examples together. The other classes are scaled in proportion; where the new confidence would hand the top to
    another class it is raised to a tie, so that predictions stay.

    Args:
        points_per_bin: Examples in a bin, at least.

    Attributes:
        edges_: Inner edges for every predicted class ``[C, L]``, filled up with 2.
        values_: Accuracy in each bin ``[C, L + 1]``.

    Reference:
        Gupta and Ramdas, "Top-label calibration and multiclass-to-binary reductions", ICLR 2022.
    """

    label = "top-label binning"
    rules = {"points_per_bin": check_count}
    formula = staticmethod(top_label_log_probs)
    preserves_accuracy = True

    def __init__(self, *, points_per_bin: int = 50) -> None:
        self.points_per_bin = points_per_bin

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns."""
        return 2 * self.points_per_bin * num_classes

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        question, predicted = top_question(data)
        everything = self._steps(question)
        found = []
        for k in range(data.num_classes):
            rows = (predicted == k).numpy()
            enough = rows.sum() >= self.points_per_bin
            found.append(self._steps(Question(*(part[rows] for part in question))) if enough else everything)
        return pad_steps(found)

    def _steps(self, question: Question) -> tuple[Vector, Vector]:
        n_bins = max(len(question.probs) // self.points_per_bin, 1)
        edges = equal_mass_edges(question.probs, question.weights, n_bins)
        return edges, bin_values(question, edges)
