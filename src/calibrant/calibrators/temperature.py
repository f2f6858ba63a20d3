"""Temperature scaling: one number that divides all logits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.fit_data import BoundWarning, FitData, chunk_rows, possible_labels, warn
from calibrant.calibrators.log_space import floor_logits
from calibrant.core.checks import FitError, check_count, check_positive
from calibrant.core.top_label import TopLabel
from calibrant.metrics.binned import width_error

# The search ends when the bracket, in the logarithm of the inverse temperature, is this narrow: a relative error in T.
_TOLERANCE = 1e-9
# Newton's error is squared by every step: after one this short it is of the order of 1e-9, and no pass need confirm it.
_LAST_STEP = 3e-5
_MOST_STEPS = 200
_LONGEST_STEP = 2.0
# A first estimate is found on this many entries; the full data then needs about three passes.
_FIRST_ENTRIES = 1_000_000
# The grid of the published code of Mukhoti et al., NeurIPS 2020.
_GRID = tuple(k / 10 for k in range(1, 101))


def temperature_log_probs(logits: Tensor, temperature: Tensor | float) -> Tensor:
    r"""Log-probabilities of logits divided by a temperature.

    .. math:: \log q_k = \log \mathrm{softmax}(z / T)_k

    Args:
        logits: Scores ``[..., C]``.
        temperature: The positive number T, ``[]``.

    Returns:
        Log-probabilities ``[..., C]``.

    Example:
        >>> temperature_log_probs(torch.tensor([2 * math.log(3.0), 0.0]), 2.0).exp()
        tensor([0.7500, 0.2500])

    Reference:
        Guo, Pleiss, Sun and Weinberger, ICML 2017, eq. 9.
    """
    return (logits / temperature).log_softmax(-1)


class Slope(NamedTuple):
    """First and second derivative of the summed NLL by the inverse temperature, and whether every label has the top logit."""

    first: float
    second: float
    all_on_top: bool


def nll_slope(data: FitData, beta: float) -> Slope:
    r"""Derivatives of the NLL by the inverse temperature :math:`\beta = 1/T`.

    .. math:: D(\beta) = \sum_i w_i \bigl(\mathbb{E}_i[z] - z_{i y_i}\bigr), \qquad D'(\beta) = \sum_i w_i \mathrm{Var}_i[z]

    with expectations over the classes under :math:`\mathrm{softmax}(\beta z_i)`. D never falls: the NLL is convex in beta.
    """
    first = second = 0.0
    all_on_top = True
    rows = chunk_rows(data.num_classes)
    for logits, labels, weights in zip(data.logits.split(rows), data.labels.split(rows), data.weights.split(rows), strict=True):
        below = logits.double()
        below = below - below.amax(1, keepdim=True)
        own = below.gather(1, labels.unsqueeze(1)).squeeze(1)
        power = (beta * below).exp_()
        total = power.sum(1)
        mean = power.mul_(below).sum(1) / total
        square = power.mul_(below).sum(1) / total
        first += float(weights @ (mean - own))
        second += float(weights @ (square - mean**2))
        all_on_top = all_on_top and bool((own == 0).all())
    return Slope(first, second, all_on_top)


def find_temperature(
    data: FitData, *, bounds: tuple[float, float], start: float = 1.0, where: str = "find_temperature"
) -> tuple[float, bool]:
    """Return the temperature of least NLL within ``bounds``, and whether it is one of the bounds.

    The root of the NLL's derivative is found by Newton's method in the logarithm of the inverse temperature; a step that
    leaves the bracket is replaced by halving it, so the search cannot diverge or turn negative. Examples whose label has
    probability zero say nothing about it and are left out.
    """
    data = possible_labels(data)
    stride = data.logits.numel() // _FIRST_ENTRIES
    if stride > 1:
        part = data.subset(torch.arange(0, len(data), stride))
        start, _ = find_temperature(part, bounds=bounds, start=start, where=where)
    low, high = -math.log(bounds[1]), -math.log(bounds[0])
    at = min(max(-math.log(start), low), high)
    for _ in range(_MOST_STEPS):
        slope = nll_slope(data, math.exp(at))
        if slope.all_on_top:
            return bounds[0], True
        if slope.first < 0:
            low = at
        elif slope.first > 0:
            high = at
        if slope.first == 0 or high - low < _TOLERANCE:
            # The bracket closes on a bound only if the derivative has its sign even there.
            at_bound = slope.first != 0 and min(abs(at + math.log(bound)) for bound in bounds) < _TOLERANCE
            return math.exp(-at), at_bound
        steepness = math.exp(at) * slope.second
        step = -slope.first / steepness if steepness > 0 else math.inf
        step = max(-_LONGEST_STEP, min(_LONGEST_STEP, step))
        if low < at + step < high:
            if abs(step) < _LAST_STEP:
                return math.exp(-(at + step)), False
            at += step
        else:
            at = _next_in_bracket(at, step, low, high, bounds)
    raise FitError(f"{where}: the temperature must settle within {_MOST_STEPS} steps, and did not. Look at the logits.")


def _next_in_bracket(at: float, step: float, low: float, high: float, bounds: tuple[float, float]) -> float:
    """Where to look next if Newton's step leaves the bracket: at the bound if that was never looked at, else half way."""
    end = high if step > 0 else low
    untried = end in (-math.log(bounds[0]), -math.log(bounds[1])) and end != at
    return end if untried and abs(end - at) <= _LONGEST_STEP else (low + high) / 2


def find_temperature_by_ece(data: FitData, *, n_bins: int) -> float:
    """Return the temperature of least ECE on the grid 0.1, 0.2, ..., 10 (the first of several)."""
    logits = floor_logits(data.logits)
    top, predicted = logits.max(1)
    correct = (predicted == data.labels).double()
    weights = None if bool((data.weights == 1).all()) else data.weights
    rows = chunk_rows(data.num_classes)

    def ece(temperature: float) -> float:
        parts = zip(logits.split(rows), top.split(rows), strict=True)
        total = [((part.double() - peak.double().unsqueeze(1)) / temperature).exp_().sum(1) for part, peak in parts]
        return float(width_error(TopLabel(1 / torch.cat(total), correct, weights), n_bins=n_bins))

    return min(_GRID, key=ece)


class TemperatureScaling(Calibrator):
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
        >>> import warnings; warnings.simplefilter("ignore")
        >>> calibrator = TemperatureScaling().fit(logits, labels)
        >>> round(calibrator.temperature_, 4), calibrator.predict_proba([[4.0, 0.0]]).round(2)
        (1.8205, array([[0.9, 0.1]]))

    Reference:
        Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.
    """

    preserves_accuracy: ClassVar[bool] = True
    learned: ClassVar[tuple[str, ...]] = ("temperature",)
    transform = staticmethod(temperature_log_probs)
    needs_every_class: ClassVar[bool] = False

    temperature_: float

    def __init__(
        self,
        *,
        objective: Literal["nll", "ece"] = "nll",
        bounds: tuple[float, float] = (1e-3, 1e5),
        n_bins: int = 15,
    ) -> None:
        where = "TemperatureScaling"
        if objective not in ("nll", "ece"):
            raise ValueError(f"{where}: `objective` must be 'nll' or 'ece', got {objective!r}.")
        check_bounds(bounds, where=where)
        check_count(n_bins, where=where, name="n_bins")
        self.objective: Literal["nll", "ece"] = objective
        self.bounds = bounds
        self.n_bins = n_bins

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns: one number is soon known."""
        return 50

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        where = "TemperatureScaling.fit"
        if self.objective == "ece":
            temperature = find_temperature_by_ece(data, n_bins=self.n_bins)
            at_bound = temperature in (_GRID[0], _GRID[-1])
        else:
            kept = possible_labels(data, warn_as=where)
            temperature, at_bound = find_temperature(kept, bounds=self.bounds, where=where)
        if at_bound:
            warn_at_bound(temperature, data, where=where)
        return {"temperature": temperature}


def check_bounds(bounds: tuple[float, float], *, where: str) -> None:
    """Raise unless ``bounds`` are two positive numbers in order."""
    if len(bounds) != 2 or not bounds[0] < bounds[1]:
        raise ValueError(f"{where}: `bounds` must be two numbers in order, got {bounds}.")
    for bound in bounds:
        check_positive(bound, where=where, name="bounds")


def warn_at_bound(temperature: float, data: FitData, *, where: str) -> None:
    """Warn that the temperature ended at a bound, and say what that means for the ``data`` of the fit."""
    # Of several samples of logits the first will do, to say why.
    logits = floor_logits(data.logits if data.logits.ndim == 2 else data.logits[0])
    slope = nll_slope(FitData(logits, data.labels, data.weights), 0.0)
    why = "the best one lies beyond it"
    if slope.second == 0:
        why = "every example has the same logit for all classes, which no temperature changes"
    elif slope.all_on_top and temperature < 1:
        why = "every prediction of the fit data is right, so that more confidence always looks better"
    elif slope.first >= 0:
        why = "the logits say less about the labels than guessing does"
    message = f"{where}: the temperature ended at its bound {temperature:g}: {why}. Do not trust it; use more or other data."
    warn(message, BoundWarning)
