"""Ensemble temperature scaling: a mixture of the scaled, the original and the uniform distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.fit_data import FitData
from calibrant.calibrators.temperature import check_bounds, find_temperature, temperature_log_probs, warn_at_bound

Vector = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def ensemble_log_probs(logits: Tensor, temperature: Tensor | float, mixture: Tensor) -> Tensor:
    r"""Log-probabilities of a mixture of three distributions.

    .. math:: q = w_1\, \mathrm{softmax}(z / T) + w_2\, \mathrm{softmax}(z) + w_3 / C

    Args:
        logits: Scores ``[..., C]``.
        temperature: The positive number T, ``[]``.
        mixture: Weights w ``[3]``, non-negative, summing to one.

    Returns:
        Log-probabilities ``[..., C]``.

    Example:
        >>> logits = torch.tensor([1.0986, 0.0])
        >>> ensemble_log_probs(logits, 1.0, torch.tensor([0.5, 0.0, 0.5])).exp()
        tensor([0.6250, 0.3750])

    Reference:
        Zhang, Kailkhura and Han, "Mix-n-Match", ICML 2020, eq. 9.
    """
    parts = [temperature_log_probs(logits, temperature), logits.log_softmax(-1)]
    flat = torch.zeros_like(logits) - torch.log(torch.full_like(logits[..., :1], logits.shape[-1]))
    return torch.logsumexp(torch.stack([*parts, flat], -1) + mixture.log(), -1)


def find_mixture(log_parts: Tensor, weights: Tensor) -> Tensor:
    """Return the mixture weights ``[P]`` of least NLL, from the log-probability of the label under each part ``[N, P]``.

    The NLL is convex in them.

    Example:
        >>> log_parts = torch.tensor([[0.0, -9.0], [0.0, -9.0], [-9.0, 0.0]], dtype=torch.float64)
        >>> find_mixture(log_parts, torch.ones(3, dtype=torch.float64))
        tensor([0.6667, 0.3333], dtype=torch.float64)
    """
    from scipy.optimize import minimize

    # Only ratios within an example matter; dividing by the largest part keeps the exponential finite.
    ratio = (log_parts - log_parts.amax(1, keepdim=True)).exp().numpy()
    share = (weights / weights.sum()).numpy()

    def loss(mixture: Vector) -> tuple[float, Vector]:
        mean = np.maximum(ratio @ mixture, 1e-300)
        return -float(share @ np.log(mean)), -(share / mean) @ ratio

    parts = ratio.shape[1]
    whole = {"type": "eq", "fun": lambda mixture: mixture.sum() - 1, "jac": lambda mixture: np.ones(parts)}
    start = np.full(parts, 1 / parts)
    options = {"ftol": 1e-12, "maxiter": 200}
    found = minimize(loss, start, jac=True, method="SLSQP", bounds=[(0, 1)] * parts, constraints=whole, options=options)
    mixture = np.clip(found.x, 0, 1) / np.clip(found.x, 0, 1).sum()
    # The solver stops a little short of a corner: a corner that is better is the answer.
    best = min([mixture, *np.eye(parts)], key=lambda candidate: loss(candidate)[0])
    return torch.from_numpy(np.ascontiguousarray(best))


class EnsembleTemperatureScaling(Calibrator):
    r"""Mixes the temperature-scaled, the original and the uniform distribution: repairs heavy tails that one T cannot.

    T is that of temperature scaling; the mixture weights then minimise the NLL (the published code minimises the squared
    error by default, or the NLL).

    Args:
        bounds: Smallest and largest T.

    Attributes:
        temperature_: The learned T.
        mixture_: Weights ``[3]`` of the scaled, the original and the uniform distribution.

    Reference:
        Zhang, Kailkhura and Han, "Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration in Deep
        Learning", ICML 2020.
    """

    preserves_accuracy: ClassVar[bool] = True
    learned: ClassVar[tuple[str, ...]] = ("temperature", "mixture")
    transform = staticmethod(ensemble_log_probs)
    needs_every_class: ClassVar[bool] = False

    temperature_: float
    mixture_: Tensor

    def __init__(self, *, bounds: tuple[float, float] = (1e-3, 1e5)) -> None:
        check_bounds(bounds, where="EnsembleTemperatureScaling")
        self.bounds = bounds

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns."""
        return 100

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        where = "EnsembleTemperatureScaling.fit"
        temperature, at_bound = find_temperature(data, bounds=self.bounds, where=where)
        if at_bound:
            warn_at_bound(temperature, data, where=where)
        rows = data.labels.unsqueeze(1)
        own = [temperature_log_probs(data.logits.double(), t).gather(1, rows) for t in (temperature, 1.0)]
        flat = torch.full_like(own[0], -float(np.log(data.num_classes)))
        mixture = find_mixture(torch.cat([*own, flat], 1), data.weights)
        return {"temperature": temperature, "mixture": mixture}
