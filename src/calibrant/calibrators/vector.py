"""Vector scaling: a factor and a bias for every class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from calibrant.calibrators.affine import AffineProblem, solve_affine
from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.fit_data import FitData
from calibrant.calibrators.log_space import floor_logits
from calibrant.calibrators.temperature import find_temperature
from calibrant.core.checks import check_count, check_positive

# Temperatures that other fits start from; wide, since they are only a scale.
START_BOUNDS = (1e-3, 1e5)


def vector_log_probs(logits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    r"""Log-probabilities of logits scaled and shifted class by class.

    .. math:: \log q = \log \mathrm{softmax}(w \odot z + b)

    Args:
        logits: Scores ``[..., C]``.
        weight: Factors w ``[C]``.
        bias: Biases b ``[C]``.

    Returns:
        Log-probabilities ``[..., C]``.

    Example:
        >>> import torch
        >>> vector_log_probs(torch.zeros(2), torch.ones(2), torch.tensor([1.0986, 0.0])).exp()
        tensor([0.7500, 0.2500])

    Reference:
        Guo, Pleiss, Sun and Weinberger, ICML 2017, section 4.2.
    """
    return (floor_logits(logits) * weight + bias).log_softmax(-1)


class VectorScaling(Calibrator):
    r"""Scales and shifts the logit of every class: :math:`q = \mathrm{softmax}(w \odot z + b)`, by least NLL.

    The search starts from temperature scaling and is held near it by a weak prior: factors (relative to 1/T) and biases are
    normal with variance 1 / ``ridge``. Without one, a class that has no example, or that is always right, has no finite best.

    Args:
        ridge: Strength of the prior, in examples; the data outweighs it soon.
        max_iter: Steps of L-BFGS at most.

    Attributes:
        weight_: The factors w ``[C]``.
        bias_: The biases b ``[C]``.

    Reference:
        Guo, Pleiss, Sun and Weinberger, ICML 2017, section 4.2.
    """

    learned: ClassVar[tuple[str, ...]] = ("weight", "bias")
    transform = staticmethod(vector_log_probs)

    weight_: Tensor
    bias_: Tensor

    def __init__(self, *, ridge: float = 1.0, max_iter: int = 500) -> None:
        check_positive(ridge, where="VectorScaling", name="ridge")
        check_count(max_iter, where="VectorScaling", name="max_iter")
        self.ridge = ridge
        self.max_iter = max_iter

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        where = "VectorScaling.fit"
        scale, _ = find_temperature(data, bounds=START_BOUNDS, where=where)
        inputs = floor_logits(data.logits.double()) / scale
        # mu / C equals the ridge of the factors: r / (2 N).
        bias = self.ridge * data.num_classes / (2 * len(data))
        problem = AffineProblem(inputs, data.labels, data.weights, diagonal=True, ridge=self.ridge, off_diagonal=0.0, bias=bias)
        weight, shift = problem.split(solve_affine(problem, max_iter=self.max_iter, where=where))
        return {"weight": weight / scale, "bias": shift.clone()}
