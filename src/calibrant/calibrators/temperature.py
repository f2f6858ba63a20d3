"""Temperature scaling and its relatives: one number that divides all logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from calibrant.calibrators.base import Calibrator, Learned, Rule, check_ascending
from calibrant.calibrators.fit_data import BoundWarning, FitData, Vector, floor_logits, possible_labels, warn
from calibrant.core.checks import FitError, check_choice, check_count, check_positive, check_share
from calibrant.metrics import expected_calibration_error

# Smallest and largest temperature, unless told otherwise; also where other fits begin, for which T is only a scale.
BOUNDS = (1e-3, 1e5)
# The search ends when the bracket, in the logarithm of the inverse temperature, is this narrow: a relative error in T.
_TOLERANCE = 1e-9
# Newton's error is squared by every step: after one this short it is of the order of 1e-9, and no pass need confirm it.
_LAST_STEP, _LONGEST_STEP, _MOST_STEPS = 3e-5, 2.0, 200
# A first estimate is found on this many entries; the full data then needs about three passes.
_FIRST_ENTRIES = 1_000_000
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


def nll_slope(data: FitData, beta: float) -> tuple[float, float]:
    r"""First and second derivative of the summed NLL by the inverse temperature :math:`\beta = 1/T`.

    .. math:: D(\beta) = \sum_i w_i \bigl(\mathbb{E}_i[z] - z_{i y_i}\bigr), \qquad D'(\beta) = \sum_i w_i \mathrm{Var}_i[z]

    with expectations over the classes under :math:`\mathrm{softmax}(\beta z_i)`. D never falls: the NLL is convex in beta.
    """
    first, second = 0.0, 0.0
    for logits, labels, weights in data.chunks():
        below = logits - logits.amax(1, keepdim=True)
        own = below.gather(1, labels.unsqueeze(1)).squeeze(1)
        power = (beta * below).exp_()
        total = power.sum(1)
        mean = power.mul_(below).sum(1) / total
        square = power.mul_(below).sum(1) / total
        first += float(weights @ (mean - own))
        second += float(weights @ (square - mean**2))
    return first, second


def find_temperature(data: FitData, *, bounds: tuple[float, float] = BOUNDS, start: float = 1.0) -> tuple[float, bool]:
    """Return the temperature of least NLL within ``bounds``, and whether it is one of the bounds.

    The root of the NLL's derivative is found by Newton's method in the logarithm of the inverse temperature; a step that
    leaves the bracket is replaced by halving it, so the search cannot diverge or turn negative. Examples whose label has
    probability zero say nothing about it and are left out.
    """
    data = possible_labels(data)
    stride = data.logits.numel() // _FIRST_ENTRIES
    if stride > 1:
        start, _ = find_temperature(data.subset(torch.arange(0, len(data), stride)), bounds=bounds)
    # Where every label has the top logit no temperature is best, and rounding would hide it.
    if all(bool((z.gather(1, y.unsqueeze(1)) == z.amax(1, keepdim=True)).all()) for z, y, _ in data.chunks()):
        return bounds[0], True
    ends = low, high = -math.log(bounds[1]), -math.log(bounds[0])
    at = min(max(-math.log(start), low), high)
    for _ in range(_MOST_STEPS):
        slope, bend = nll_slope(data, math.exp(at))
        low, high = (at if slope <= 0 else low), (at if slope >= 0 else high)
        if high - low < _TOLERANCE:
            # The bracket closes on a bound only if the derivative has its sign even there.
            return math.exp(-at), slope != 0 and min(abs(at - end) for end in ends) < _TOLERANCE
        step = -slope / (math.exp(at) * bend) if bend > 0 else math.copysign(math.inf, -slope)
        step = max(-_LONGEST_STEP, min(_LONGEST_STEP, step))
        end = high if step > 0 else low
        if low < at + step < high:
            at += step
            if abs(step) < _LAST_STEP:
                return math.exp(-at), False
        else:
            # A bound that was not looked at yet, if it is near; else half way.
            at = end if end in ends and end != at and abs(end - at) <= _LONGEST_STEP else (low + high) / 2
    raise FitError(f"fit: the temperature must settle within {_MOST_STEPS} steps, and did not. Look at the logits.")


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


class _TemperatureMethod(Calibrator):
    """What calibrators that learn a temperature share: its bounds, and the warning that it ended at one."""

    learned: ClassVar[tuple[str, ...]] = ("temperature",)
    formula: ClassVar[Callable[..., Tensor]] = staticmethod(temperature_log_probs)
    preserves_accuracy = True
    needs_every_class = False
    rules: ClassVar[Mapping[str, Rule]] = {"bounds": partial(check_ascending, count=2)}

    def __init__(self, *, bounds: tuple[float, float] = BOUNDS) -> None:
        self.bounds = bounds

    def _from_plain(self, learned: Mapping[str, object]) -> None:
        super()._from_plain(learned)
        check_positive(self.temperature_, where=f"{type(self).__name__}.from_dict", name="temperature")

    def _doubt_bound(self, temperature: float, at_bound: bool) -> float:
        """Return the temperature; warn if it ended at a bound."""
        if at_bound:
            warn(
                f"{type(self).__name__}.fit: the temperature ended at its bound {temperature:g}: every prediction of the fit "
                "data is right, the logits say nothing about the labels, or the best temperature lies beyond the bound. Do not "
                "trust it; use more or other data.",
                BoundWarning,
            )
        return temperature


class TemperatureScaling(_TemperatureMethod):
    r"""Divides all logits by one learned temperature T: :math:`q = \mathrm{softmax}(z / T)`.

    With ``objective="nll"`` T is the minimiser of the negative log-likelihood, which is convex in 1/T, found to a relative
    1e-8. With ``objective="ece"`` it is the one of least ECE on the grid 0.1, 0.2, ..., 10, as in the code published with
    Mukhoti et al. (NeurIPS 2020); that depends on the binning and is there to reproduce published numbers.

    Args:
        objective: "nll" or "ece".
        bounds: Smallest and largest T; a fit that ends at one warns. If every example is predicted right no T is best: the
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

    label = "temperature scaling"
    rules = {**_TemperatureMethod.rules, "objective": partial(check_choice, choices=("nll", "ece")), "n_bins": check_count}

    def __init__(
        self, *, objective: Literal["nll", "ece"] = "nll", bounds: tuple[float, float] = BOUNDS, n_bins: int = 15
    ) -> None:
        self.objective = objective
        self.bounds = bounds
        self.n_bins = n_bins

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        if self.objective == "nll":
            kept = possible_labels(data, warn_as="TemperatureScaling.fit")
            return {"temperature": self._doubt_bound(*find_temperature(kept, bounds=self.bounds))}
        logits = floor_logits(data.logits.double())

        def ece(temperature: float) -> float:
            probs = temperature_log_probs(logits, temperature).exp_()
            return float(expected_calibration_error(probs, data.labels, n_bins=self.n_bins, weights=data.weights))

        temperature = min(_GRID, key=ece)
        return {"temperature": self._doubt_bound(temperature, temperature in (_GRID[0], _GRID[-1]))}


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
    parts = []
    for logits, labels, weights in possible_labels(data).chunks():
        index = labels.unsqueeze(1)
        peak, top = logits.max(1, keepdim=True)
        attended = (logits.softmax(1) > threshold).scatter_(1, top, value=True).scatter_(1, index, value=False)
        rows, classes = attended.nonzero(as_tuple=True)
        below = logits - peak
        # All logits relative to the top one, which is taken out: no 1 - q that would cancel.
        others = below.scatter(1, top, -torch.inf)
        parts.append((others, below.gather(1, index).squeeze(1), weights, rows, below[rows, classes], top[rows, 0] == classes))

    def nll(temperature: float) -> float:
        found = 0.0
        for others, own, weights, rows, below, on_top in parts:
            rest = (others / temperature).logsumexp(1)
            total = torch.logaddexp(rest, torch.zeros_like(rest))
            log_probs = below / temperature - total[rows]
            # A class that is not on top has at most probability one half, where log1p is exact.
            complement = torch.where(on_top, (rest - total)[rows], torch.log1p(-log_probs.exp().clamp(max=0.75)))
            # One minus a probability of one has no logarithm; float64's smallest number stands for it.
            extra = 2 * log_probs - complement.clamp(min=-745.0)
            found -= float(weights @ (own / temperature - total) + weights[rows] @ extra)
        return found

    return nll


class AttendedTemperatureScaling(_TemperatureMethod):
    """Divides all logits by a temperature found from labels and from the other likely classes of every example.

    The extra terms make the estimate vary less from one small fit set to the next, and depend less on single wrong labels;
    the price is a bias that no number of examples removes. At a true temperature of 2 it is near 4 with 2 classes, 3.0 with 5,
    2.5 with 10, 1.6 with 100; and it grows fast below the threshold of 0.01. Prefer `TemperatureScaling`; with 10 classes or
    more, fewer than some hundred examples and labels that may be wrong, compare the two. A fit on fewer classes warns. The
    objective is that of the authors' released code.

    Args:
        threshold: Probability that a class which is not the label must exceed to be attended.
        bounds: Smallest and largest T.

    Attributes:
        temperature_: The learned T.

    Reference:
        Mozafari, Gomes, Leão, Janny and Gagné, "Attended Temperature Scaling: A Practical Approach for Calibrating Deep Neural
        Networks", arXiv 1810.11586, 2018.
    """

    label = "attended temperature scaling"
    few_samples = 20
    rules = {**_TemperatureMethod.rules, "threshold": check_share}

    def __init__(self, *, threshold: float = 0.01, bounds: tuple[float, float] = BOUNDS) -> None:
        self.threshold = threshold
        self.bounds = bounds

    def doubts(self, data: FitData) -> list[str]:
        """Why a fit on ``data`` may not be trusted: too few examples, or too few classes."""
        few = f"its temperature is far too high with fewer than {_FEWEST_CLASSES} classes. Use temperature scaling."
        return super().doubts(data) + ([few] if data.num_classes < _FEWEST_CLASSES else [])

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        kept = possible_labels(data, warn_as="AttendedTemperatureScaling.fit")
        found = least_in_log(attended_nll(kept, threshold=self.threshold), bounds=self.bounds)
        return {"temperature": self._doubt_bound(*found)}


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
        kept = possible_labels(data, warn_as="MonteCarloTemperatureScaling.fit")

        def loss(temperature: float) -> float:
            total = 0.0
            for logits, labels, weights in kept.chunks():
                found = monte_carlo_log_probs(logits, temperature)
                total -= float(weights @ found.gather(1, labels.unsqueeze(1)).squeeze(1))
            return total

        return {"temperature": self._doubt_bound(*least_in_log(loss, bounds=self.bounds))}

    def log_probs(self, logits: Tensor) -> Tensor:
        """Apply the temperature to checked logits and average; no guard rails."""
        return monte_carlo_log_probs(logits.double(), self.temperature_)


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
    share, parts = (weights / weights.sum()).numpy(), log_parts.shape[1]

    def loss(mixture: Vector) -> tuple[float, Vector]:
        mean = np.maximum(ratio @ mixture, 1e-300)
        return -float(share @ np.log(mean)), -(share / mean) @ ratio

    whole = {"type": "eq", "fun": lambda mixture: mixture.sum() - 1, "jac": lambda mixture: np.ones(parts)}
    solver = {"method": "SLSQP", "bounds": [(0, 1)] * parts, "options": {"ftol": 1e-12, "maxiter": 200}}
    found = np.clip(minimize(loss, np.full(parts, 1 / parts), jac=True, constraints=whole, **solver).x, 0, 1)
    # The solver stops a little short of a corner: a corner that is better is the answer.
    best = min([found / found.sum(), *np.eye(parts)], key=lambda candidate: loss(candidate)[0])
    return torch.from_numpy(np.ascontiguousarray(best))


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
        temperature = self._doubt_bound(*find_temperature(data, bounds=self.bounds))
        index = data.labels.unsqueeze(1)
        own = [temperature_log_probs(data.logits.double(), t).gather(1, index) for t in (temperature, 1.0)]
        flat = torch.full_like(own[0], -math.log(data.num_classes))
        return {"temperature": temperature, "mixture": find_mixture(torch.cat([*own, flat], 1), data.weights)}
