"""Temperature scaling and its relatives: one number that divides all logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar, Literal

import numpy as np
import torch
from scipy.optimize import brentq, minimize, minimize_scalar
from torch import Tensor

from calibrant.calibrators.base import Calibrator, Learned, Rule, check_ascending
from calibrant.calibrators.fit_data import ABSENT, BoundWarning, FitData, Vector, log_complements, warn
from calibrant.core.checks import check_choice, check_count, check_positive, check_share
from calibrant.metrics import expected_calibration_error

# Smallest and largest temperature, by default; other fits, for which T is only a scale, start within them.
BOUNDS = (1e-3, 1e5)
# Relative error of the temperature.
_TOLERANCE = 1e-12
# A first estimate is found on this many entries; on all of them the search then begins within this factor (as a logarithm).
_FIRST_ENTRIES, _NEAR = 1_000_000, 0.1
# The grid of the published code of Mukhoti et al., NeurIPS 2020.
_GRID = tuple(k / 10 for k in range(1, 101))
# Below this many classes the bias of attended temperature scaling is half of the temperature and more.
_FEWEST_CLASSES = 10


def temperature_log_probs(logits: Tensor, temperature: Tensor | float) -> Tensor:
    """Log-probabilities of logits divided by a temperature.

    Example:
        >>> temperature_log_probs(torch.tensor([2 * math.log(3.0), 0.0]), 2.0).exp()
        tensor([0.7500, 0.2500])
    """
    return (logits / temperature).log_softmax(-1)


def nll_slope(data: FitData, beta: float) -> float:
    r"""Derivative of the summed NLL by the inverse temperature :math:`\beta = 1/T`.

    .. math:: D(\beta) = \sum_i w_i \bigl(\mathbb{E}_i[z] - z_{i y_i}\bigr)

    with expectations over the classes under :math:`\mathrm{softmax}(\beta z_i)`. D never falls: the NLL is convex in beta.
    """
    slope = 0.0
    for logits, labels, weights in data.chunks():
        below = (logits - logits.amax(1, keepdim=True)).clamp_(min=ABSENT)
        own = below.gather(1, labels.unsqueeze(1)).squeeze(1)
        power = (beta * below).exp_()
        slope += float(weights @ ((power * below).sum(1) / power.sum(1) - own))
    return slope


def find_temperature(data: FitData, *, bounds: tuple[float, float] = BOUNDS) -> tuple[float, bool]:
    """Return the temperature of least NLL within ``bounds``, and whether it is one of the bounds.

    It is the root of the NLL's derivative, found in the logarithm of the inverse temperature by Brent's method, which never
    leaves its bracket. Where every label has the top logit, the slope falls to the smallest bound.
    """

    @cache
    def slope(at: float) -> float:
        return nll_slope(data, math.exp(at))

    least, most = -math.log(bounds[1]), -math.log(bounds[0])
    brackets = [(least, most)]
    stride = data.logits.numel() // _FIRST_ENTRIES
    if stride > 1:
        near = -math.log(find_temperature(data.subset(torch.arange(0, len(data), stride)), bounds=bounds)[0])
        brackets.insert(0, (max(near - _NEAR, least), min(near + _NEAR, most)))
    for low, high in brackets:
        if slope(low) < 0 < slope(high):
            return math.exp(-brentq(slope, low, high, xtol=_TOLERANCE)), False
    return bounds[0 if slope(most) <= 0 else 1], True


def least_in_log(loss: Callable[[float], float], *, bounds: tuple[float, float]) -> tuple[float, bool]:
    """Return the positive number of least ``loss`` within ``bounds``, and whether it is one of the bounds.

    The loss need not be convex: the whole range is looked at coarsely first, twice for every factor of e, then the best place
    finely.

    Example:
        >>> found, at_bound = least_in_log(lambda x: math.log(x / 3) ** 2, bounds=(0.01, 100.0))
        >>> round(found, 6), at_bound
        (3.0, False)
    """
    low, high = (math.log(bound) for bound in bounds)
    grid = np.linspace(low, high, max(math.ceil(2 * (high - low)), 2) + 1)
    values = [loss(math.exp(at)) for at in grid]
    best = int(np.nanargmin(values))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    found = minimize_scalar(lambda at: loss(math.exp(at)), bounds=around, method="bounded", options={"xatol": 1e-9})
    # Where the loss is flat down to a bound, as by rounding, the bound it is.
    at = float(found.x) if found.fun < values[best] else float(grid[best])
    edge = [bound for bound, end in zip(bounds, (low, high), strict=True) if abs(at - end) < 1e-4]
    return (edge[0], True) if edge else (math.exp(at), False)


@dataclass(kw_only=True, eq=False, repr=False)
class _TemperatureMethod(Calibrator):
    """What calibrators that learn a temperature share: its bounds, and the warning that it ended at one."""

    bounds: tuple[float, float] = BOUNDS

    learned: ClassVar[tuple[str, ...]] = ("temperature",)
    formula: ClassVar[Callable[..., Tensor]] = staticmethod(temperature_log_probs)
    preserves_accuracy = True
    needs_every_class = False
    rules: ClassVar[Mapping[str, Rule]] = {"bounds": partial(check_ascending, count=2), "temperature_": check_positive}

    def _warn_at_bound(self, temperature: float, at_bound: bool) -> float:
        """Return the temperature; warn if it ended at a bound."""
        if at_bound:
            warn(
                f"{type(self).__name__}.fit: the temperature ended at its bound {temperature:g}: the best one lies beyond, or "
                "there is none. Do not trust it; use more or other data.",
                BoundWarning,
            )
        return temperature


@dataclass(kw_only=True, eq=False, repr=False)
class TemperatureScaling(_TemperatureMethod):
    r"""Divides all logits by one learned temperature T: :math:`q = \mathrm{softmax}(z / T)`.

    With ``objective="nll"`` T is the minimiser of the negative log-likelihood, which is convex in 1/T, found to a relative
    1e-8. With ``objective="ece"`` it is the one of least ECE on the grid 0.1, 0.2, ..., 10, as in the code published with
    Mukhoti et al. (NeurIPS 2020); that depends on the binning and is there to reproduce published numbers.

    Args:
        objective: "nll" or "ece".
        bounds: Smallest and largest T; a fit that ends at one warns. If every prediction is right no T is best: the
            NLL falls towards the smallest.
        n_bins: Bins of the ECE, for ``objective="ece"``.

    Attributes:
        temperature_: The learned T; above 1 the model was over-confident.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]]).repeat(100, 1)
        >>> labels = torch.tensor([0] * 75 + [1] * 25)
        >>> calibrator = TemperatureScaling().fit(logits, labels)
        >>> round(calibrator.temperature_, 4), calibrator.predict_proba([[4.0, 0.0]]).round(2)
        (1.8205, array([[0.9, 0.1]]))

    Reference:
        Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.
    """

    objective: Literal["nll", "ece"] = "nll"
    n_bins: int = 15

    label = "temperature scaling"
    rules = {**_TemperatureMethod.rules, "objective": partial(check_choice, choices=("nll", "ece")), "n_bins": check_count}

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        if self.objective == "nll":
            return {"temperature": self._warn_at_bound(*find_temperature(data, bounds=self.bounds))}

        def ece(temperature: float) -> float:
            probs = temperature_log_probs(data.logits.double(), temperature).exp_()
            return float(expected_calibration_error(probs, data.labels, n_bins=self.n_bins, weights=data.weights))

        temperature = min(_GRID, key=ece)
        return {"temperature": self._warn_at_bound(temperature, temperature in (_GRID[0], _GRID[-1]))}


def attended_nll(data: FitData, *, threshold: float) -> Callable[[float], float]:
    r"""The attended negative log-likelihood, summed, as a function of the temperature.

    Besides the label, an example is counted for every other class k that is its top class or whose probability at T = 1
    exceeds the threshold, as if drawn from it:

    .. math:: L(T) = -\sum_i w_i \Bigl[ \log q_{i y_i} + \sum_{k \in A_i} \log \frac{q_{ik}^2}{1 - q_{ik}} \Bigr],
        \qquad q_i = \mathrm{softmax}(z_i / T)

    Example:
        >>> data = FitData(torch.tensor([[0.0, 0.0]]), torch.tensor([0]), torch.ones(1, dtype=torch.float64))
        >>> round(attended_nll(data, threshold=0.4)(1.0), 4), round(attended_nll(data, threshold=0.6)(1.0), 4)
        (1.3863, 0.6931)
    """

    def nll(temperature: float) -> float:
        found = 0.0
        for logits, labels, weights in data.chunks():
            index, top = labels.unsqueeze(1), logits.argmax(1, keepdim=True)
            attended = (logits.softmax(1) > threshold).scatter_(1, top, value=True).scatter_(1, index, value=False)
            log_probs = temperature_log_probs(logits, temperature)
            # One minus a probability of one has no logarithm; float64's smallest number stands for it.
            extra = torch.where(attended, 2 * log_probs - log_complements(log_probs).clamp_(min=-745.0), 0.0)
            found -= float(weights @ (log_probs.gather(1, index).squeeze(1) + extra.sum(1)))
        return found

    return nll


@dataclass(kw_only=True, eq=False, repr=False)
class AttendedTemperatureScaling(_TemperatureMethod):
    """Divides all logits by a temperature found from labels and from the other likely classes of every example.

    The extra terms make the estimate vary less from one small fit set to the next, and depend less on single wrong labels;
    the price is a bias that no number of examples removes. At a true temperature of 2 it is near 4 with 2 classes, 3.0 with 5,
    2.5 with 10, 1.6 with 100; and it grows fast below the threshold of 0.01. Prefer `TemperatureScaling`; with 10 classes or
    more, fewer than some hundred examples and labels that may be wrong, compare the two. A fit on fewer classes warns. The
    objective is that of the authors' released code.

    Args:
        threshold: Classes other than the label count if their probability exceeds this.
        bounds: Smallest and largest T.

    Attributes:
        temperature_: The learned T.

    Reference:
        Mozafari, Gomes, Leão, Janny and Gagné, "Attended Temperature Scaling: A Practical Approach for Calibrating Deep Neural
        Networks", arXiv 1810.11586, 2018.
    """

    threshold: float = 0.01

    label = "attended temperature scaling"
    few_samples = 20
    rules = {**_TemperatureMethod.rules, "threshold": check_share}

    def doubts(self, data: FitData) -> list[str]:
        """Why a fit on ``data`` may not be trusted: too few examples, or too few classes."""
        few = [f"its temperature is far too high with fewer than {_FEWEST_CLASSES} classes. Use temperature scaling."]
        return super().doubts(data) + few * (data.num_classes < _FEWEST_CLASSES)

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        found = least_in_log(attended_nll(data, threshold=self.threshold), bounds=self.bounds)
        return {"temperature": self._warn_at_bound(*found)}


def monte_carlo_log_probs(logits: Tensor, temperature: Tensor | float) -> Tensor:
    """Log of the mean, over samples, of the probabilities of scaled logits ``[S, ..., C]``; ``[N, C]`` is a single sample.

    Example:
        >>> monte_carlo_log_probs(torch.tensor([[[1.0986, 0.0]], [[0.0, 0.0]]]), 1.0).exp()
        tensor([[0.6250, 0.3750]])
    """
    log_probs = temperature_log_probs(logits, temperature)
    if logits.ndim == 2:
        return log_probs
    return log_probs.logsumexp(0) - torch.log(torch.full_like(log_probs[0, ..., :1], logits.shape[0]))


class MonteCarloTemperatureScaling(_TemperatureMethod):
    r"""Divides the logits of all samples by one temperature before their probabilities are averaged.

    .. math:: q = \frac1S \sum_{s=1}^{S} \mathrm{softmax}(z_s / T)

    Averaging makes a model less confident, so the best T differs from that of a single sample. It is found by least NLL of the
    average, which need not be convex: the whole range is searched.

    Logits are ``[S, N, C]``, S samples (dropout passes, members of an ensemble) of N examples; ``[N, C]`` counts as one sample.
    Probabilities come back as ``[N, C]``. The top class of an average can depend on T, so predictions may change.

    Args:
        bounds: As in `TemperatureScaling`.

    Attributes:
        temperature_: The learned T.

    Reference:
        Laves, Ihler, Kortmann and Ortmaier, "Well-calibrated model uncertainty with temperature scaling for dropout
        variational inference", Bayesian Deep Learning workshop, NeurIPS 2019.
    """

    label = "Monte-Carlo temperature scaling"
    formula = staticmethod(monte_carlo_log_probs)
    preserves_accuracy = False
    in_auto = False
    takes_samples = True

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        def loss(temperature: float) -> float:
            total = 0.0
            for logits, labels, weights in data.chunks():
                found = monte_carlo_log_probs(logits, temperature)
                total -= float(weights @ found.gather(1, labels.unsqueeze(1)).squeeze(1))
            return total

        return {"temperature": self._warn_at_bound(*least_in_log(loss, bounds=self.bounds))}

    def log_probs(self, logits: Tensor) -> Tensor:
        """Apply the temperature to checked logits and average; no guard rails."""
        found: Tensor = self.as_layer(dtype=torch.float64).to(logits.device)(logits)
        return found


def ensemble_log_probs(logits: Tensor, temperature: Tensor | float, mixture: Tensor) -> Tensor:
    """Log-probabilities of a mixture ``[3]`` of the scaled, the original and the uniform distribution.

    Example:
        >>> ensemble_log_probs(torch.tensor([1.0986, 0.0]), 1.0, torch.tensor([0.5, 0.0, 0.5])).exp()
        tensor([0.6250, 0.3750])
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
    # Only ratios within an example matter; dividing by the largest part keeps the exponential finite.
    ratio = (log_parts - log_parts.amax(1, keepdim=True)).exp().numpy()
    share = (weights / weights.sum()).numpy()

    def loss(mixture: Vector) -> tuple[float, Vector]:
        mean = np.maximum(ratio @ mixture, 1e-300)
        return float(mixture.sum() - share @ np.log(mean)), 1 - (share / mean) @ ratio

    # With the sum of the weights added to the loss, the best ones sum to one by themselves.
    start = np.full(ratio.shape[1], 1 / ratio.shape[1])
    found = minimize(loss, start, jac=True, bounds=[(0, 1)] * len(start), options={"ftol": 1e-14, "gtol": 1e-10}).x
    return torch.from_numpy(found / found.sum())


class EnsembleTemperatureScaling(_TemperatureMethod):
    r"""Mixes the temperature-scaled, the original and the uniform distribution: repairs heavy tails that one T cannot.

    .. math:: q = w_1\, \mathrm{softmax}(z / T) + w_2\, \mathrm{softmax}(z) + w_3 / C

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

    label = "ensemble temperature scaling"
    learned = ("temperature", "mixture")
    formula = staticmethod(ensemble_log_probs)
    few_samples = 100

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        temperature = self._warn_at_bound(*find_temperature(data, bounds=self.bounds))
        index = data.labels.unsqueeze(1)
        own = [temperature_log_probs(data.logits.double(), t).gather(1, index) for t in (temperature, 1.0)]
        flat = torch.full_like(own[0], -math.log(data.num_classes))
        return {"temperature": temperature, "mixture": find_mixture(torch.cat([*own, flat], 1), data.weights)}
