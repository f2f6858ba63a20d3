"""Isotonic calibration: the best non-decreasing map, for every class or one for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.fit_data import FitData
from calibrant.calibrators.log_space import floor_logits, log_mix, normalise
from calibrant.calibrators.one_vs_rest import Question, Vector, lines_log_probs, questions
from calibrant.calibrators.piecewise import PAD, interpolate_rows, pad_rows

# More than the 1e-9 of the published code, which rounding swallows where two probabilities differ by less than 1e-7.
JOINT_MIXED_IN = 1e-6


def isotonic_lines(question: Question) -> tuple[Vector, Vector]:
    """Knots and values of the non-decreasing map of least squared error (pool adjacent violators).

    Example:
        >>> probs, answers = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.0, 1.0, 0.0, 1.0])
        >>> knots, values = isotonic_lines(Question(probs, answers, np.ones(4)))
        >>> knots.tolist(), values.tolist()
        ([0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.5, 1.0])
    """
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    fitted.fit(question.probs, question.answers, sample_weight=question.weights)
    return np.asarray(fitted.X_thresholds_, dtype=np.float64), np.asarray(fitted.y_thresholds_, dtype=np.float64)


class IsotonicCalibration(Calibrator):
    """Maps every class's probability by its own non-decreasing function, then normalises.

    The function is that of scikit-learn's ``IsotonicRegression``: constant where neighbours violate the order, straight
    between, clipped outside. Its zeros would make the likelihood infinite; 1e-9 of the original probability is added.

    Attributes:
        knots_: Positions ``[C, L]`` (``[1, L]``, of the second class, for two), filled up with 2.
        values_: Values at the knots ``[C, L]``.

    Reference:
        Zadrozny and Elkan, "Transforming Classifier Scores into Accurate Multiclass Probability Estimates", KDD 2002.
    """

    learned: ClassVar[tuple[str, ...]] = ("knots", "values")
    transform = staticmethod(lines_log_probs)
    layer_dtype: ClassVar[torch.dtype] = torch.float64

    knots_: Tensor
    values_: Tensor

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns."""
        return 50 * num_classes

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        found = [isotonic_lines(question) for question in questions(data)]
        return {
            "knots": pad_rows([knots for knots, _ in found], least=2, fill=PAD),
            "values": pad_rows([values for _, values in found], least=2, fill=None),
        }


def joint_log_probs(logits: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Apply one non-decreasing map (``knots``, ``values [L]``) to the probabilities of all classes and normalise; ``[..., C]``.

    A small part of the original probability keeps the order of classes that share a step.

    Example:
        >>> joint_log_probs(torch.tensor([[1.0986, 0.0]]), torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])).exp()
        tensor([[0.7500, 0.2500]])
    """
    log_probs = floor_logits(logits).log_softmax(-1)
    row = torch.zeros(1, dtype=torch.long, device=logits.device)
    mapped = interpolate_rows(log_probs.exp(), knots.unsqueeze(0), values.unsqueeze(0), row)
    return normalise(log_mix(mapped, log_probs, part=JOINT_MIXED_IN))


class OrderPreservingIsotonic(Calibrator):
    """Maps the probabilities of all classes by one non-decreasing function, then normalises: the order of classes stays.

    The function is fitted to all pairs of a class's probability and whether it is the label, N C of them. A part of 1e-6 of
    the original probability is added, so that the map is strictly increasing and the top class never changes.

    Attributes:
        knots_: Positions ``[L]``.
        values_: Values at the knots ``[L]``.

    Reference:
        Zhang, Kailkhura and Han, "Mix-n-Match", ICML 2020, section 3.3 (IRM).
    """

    preserves_accuracy: ClassVar[bool] = True
    learned: ClassVar[tuple[str, ...]] = ("knots", "values")
    transform = staticmethod(joint_log_probs)
    layer_dtype: ClassVar[torch.dtype] = torch.float64
    needs_every_class: ClassVar[bool] = False

    knots_: Tensor
    values_: Tensor

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns."""
        return 200

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        probs = floor_logits(data.logits.double()).softmax(1)
        answers = torch.zeros_like(probs).scatter_(1, data.labels.unsqueeze(1), 1.0)
        weights = data.weights.unsqueeze(1).expand_as(probs)
        knots, values = isotonic_lines(Question(*(part.reshape(-1).numpy() for part in (probs, answers, weights))))
        rows = [pad_rows([row], least=2, fill=fill)[0] for row, fill in ((knots, PAD), (values, None))]
        return {"knots": rows[0], "values": rows[1]}
