"""Spline calibration of the confidence: no binning, a smooth curve through the running difference to the accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.fit_data import FitData
from calibrant.calibrators.log_space import floor_logits, replace_confidence
from calibrant.calibrators.piecewise import interpolate_rows
from calibrant.calibrators.ties import merge_ties
from calibrant.core.checks import check_count

Vector = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
# Points at which the recalibrated confidence is kept.
_POINTS = 256


def spline_log_probs(logits: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Map the confidence by straight lines between ``knots [L]``, and scale the other classes to fill up the rest.

    Args:
        logits: Scores ``[..., C]``.
        knots: Ascending confidences ``[L]``.
        values: Their new values ``[L]``.

    Returns:
        Log-probabilities ``[..., C]``.

    Example:
        >>> spline_log_probs(torch.tensor([[1.0986, 0.0]]), torch.tensor([0.5, 1.0]), torch.tensor([0.5, 0.9])).exp()
        tensor([[0.7000, 0.3000]])
    """
    log_probs = floor_logits(logits).log_softmax(-1)
    row = torch.zeros(1, dtype=torch.long, device=logits.device)
    mapped = interpolate_rows(log_probs.amax(-1).exp(), knots.unsqueeze(0), values.unsqueeze(0), row)
    return replace_confidence(log_probs, mapped)


def recalibrate(confidence: Vector, correct: Vector, weights: Vector, *, n_knots: int) -> tuple[Vector, Vector]:
    r"""Fit the curve of Gupta et al.

    With examples in ascending order of confidence and t their share of the total weight so far, a natural cubic spline is
    fitted to :math:`h(t) = \sum_{j: t_j \le t} w_j (a_j - c_j)`; its slope is the mean difference between correctness a and
    confidence c at t, so that the new confidence is :math:`c + h'(t)`.

    Returns:
        Ascending confidences ``[L]`` and their new values ``[L]`` in ``[0, 1]``.
    """
    from scipy.interpolate import CubicSpline

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
    middle = (at[first] + at[np.minimum(last, len(at)) - 1]) / 2
    return knots, np.clip(knots + spline(middle, 1), 0.0, 1.0)


class SplineCalibration(Calibrator):
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

    preserves_accuracy: ClassVar[bool] = True
    learned: ClassVar[tuple[str, ...]] = ("knots", "values")
    transform = staticmethod(spline_log_probs)
    layer_dtype: ClassVar[torch.dtype] = torch.float64
    needs_every_class: ClassVar[bool] = False

    knots_: Tensor
    values_: Tensor

    def __init__(self, *, n_knots: int = 6) -> None:
        check_count(n_knots, where="SplineCalibration", name="n_knots", least=3)
        self.n_knots = n_knots

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns."""
        return 50 * self.n_knots

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        probs = floor_logits(data.logits.double()).softmax(1)
        confidence, predicted = probs.max(1)
        knots, values = recalibrate(
            merge_ties(confidence.numpy()),
            (predicted == data.labels).double().numpy(),
            data.weights.numpy(),
            n_knots=self.n_knots,
        )
        if len(knots) == 1:
            knots, values = np.repeat(knots, 2), np.repeat(values, 2)
        return {"knots": torch.from_numpy(knots), "values": torch.from_numpy(values)}
