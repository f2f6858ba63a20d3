"""Calibrators that scale: one temperature and its relatives, affine maps of the logits, a sigmoid for every class."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import numpy as np
import torch
from scipy.optimize import brentq, minimize, minimize_scalar
from torch import Tensor
from torch.nn import functional

from calibrant.calibrators.base import (
    ABSENT,
    BoundWarning,
    Calibrator,
    FitData,
    Learned,
    Vector,
    check_ascending,
    floor_logits,
    log_complements,
    option,
    warn,
)
from calibrant.core.checks import check_choice, check_count, check_positive, check_share
from calibrant.metrics import expected_calibration_error

__all__ = [
    "AttendedTemperatureScaling",
    "BetaCalibration",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "MatrixScaling",
    "MonteCarloTemperatureScaling",
    "PlattScaling",
    "TemperatureScaling",
    "VectorScaling",
]

# Smallest and largest temperature, by default.
BOUNDS = (1e-3, 1e5)
# Relative error of the temperature.
_TOLERANCE = 1e-12
# A first estimate comes from this many entries; on all of them the search begins within this factor of it (as a logarithm).
_FIRST_ENTRIES, _NEAR = 1_000_000, 0.1
# The grid of the published code of Mukhoti et al., NeurIPS 2020.
_GRID = tuple(k / 10 for k in range(1, 101))
# With fewer classes the bias of attended temperature scaling is half of the temperature and more.
_FEWEST_CLASSES = 10
# A bias moves a logit by itself, an off-diagonal entry by itself times another logit, which is about ten.
_BIAS_SPREAD = 10.0
# Steps of L-BFGS for every spread that is tried, and how much a step must improve; few digits are enough to compare them.
_PATH_STEPS, _PATH_TOLERANCE = 20, 1e-6
# Entries of W for all these steps: with 1,000 classes there are five steps.
_PATH_ENTRIES = 5_000_000
# Entries [K, N] of one round of regressions, which stay in the cache; and few classes wait for the slowest.
_ROUND_ENTRIES = 100_000
# Keeps Newton's equations solvable where features do not vary; too weak to be seen in the result.
_FAINT = 1e-9
_MOST_STEPS = 100


def temperature_log_probs(logits: Tensor, temperature: Tensor | float) -> Tensor:
    """Log-probabilities of logits divided by a temperature."""
    return (logits / temperature).log_softmax(-1)


def nll_slope(data: FitData, beta: float) -> float:
    r"""Derivative of the summed NLL by the inverse temperature :math:`\beta = 1/T`.

    .. math:: D(\beta) = \sum_i w_i \bigl(\mathbb{E}_i[z] - z_{i y_i}\bigr)

    with expectations over the classes under :math:`\mathrm{softmax}(\beta z_i)`. D never falls: the NLL is convex in beta.
    """

    def slope(logits: Tensor, labels: Tensor) -> Tensor:
        below = (logits - logits.amax(1, keepdim=True)).clamp_(min=ABSENT)
        own = below.gather(1, labels.unsqueeze(1)).squeeze(1)
        power = (beta * below).exp_()
        return (power * below).sum(1) / power.sum(1) - own

    return data.total(slope)


def find_temperature(data: FitData, *, bounds: tuple[float, float] = BOUNDS) -> tuple[float, bool]:
    """Return the temperature of least NLL within ``bounds``, and whether it is one of the bounds.

    It is the root of the NLL's derivative, found in the logarithm of the inverse temperature by Brent's method. If every label
    has the top logit, it is the smaller bound.
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

    The loss need not be convex: the whole range is searched coarsely, at two places for every factor of e, then the best place
    finely.
    """
    low, high = (math.log(bound) for bound in bounds)
    grid = np.linspace(low, high, max(math.ceil(2 * (high - low)), 2) + 1)
    values = [loss(math.exp(at)) for at in grid]
    best = int(np.nanargmin(values))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    found = minimize_scalar(lambda at: loss(math.exp(at)), bounds=around, method="bounded", options={"xatol": 1e-9})
    # Where rounding makes the loss flat down to a bound, it is the bound.
    at = float(found.x) if found.fun < values[best] else float(grid[best])
    edge = [bound for bound, end in zip(bounds, (low, high), strict=True) if abs(at - end) < 1e-4]
    return (edge[0], True) if edge else (math.exp(at), False)


@dataclass(kw_only=True, eq=False, repr=False)
class _TemperatureMethod(Calibrator, formula=temperature_log_probs):
    """What calibrators that learn a temperature share: its bounds, and a warning if it ends at one."""

    bounds: tuple[float, float] = option(BOUNDS, check_ascending, count=2)

    preserves_accuracy = True
    few_samples = 50

    def _check_learned(self) -> None:
        check_positive(self.temperature_, where=type(self).__name__, name="temperature_")
        super()._check_learned()

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        temperature, at_bound = self._find(data)
        if at_bound:
            warn(
                f"{type(self).__name__}.fit: the temperature ended at its bound {temperature:g}: the best one lies beyond, or "
                "there is none. Do not trust it; use more or other data.",
                BoundWarning,
            )
        return {"temperature": temperature}

    def _find(self, data: FitData) -> tuple[float, bool]:
        """Return the temperature, and whether it is one of the bounds."""
        return find_temperature(data, bounds=self.bounds)


@dataclass(kw_only=True, eq=False, repr=False)
class TemperatureScaling(_TemperatureMethod):
    r"""Divides all logits by one learned temperature T: :math:`q = \mathrm{softmax}(z / T)`.

    With ``objective="nll"`` T minimises the negative log-likelihood, which is convex in 1/T. With ``objective="ece"`` it is the
    one of least ECE on the grid 0.1, 0.2, ..., 10, as in the code published with Mukhoti et al. (NeurIPS 2020); that depends
    on the binning and is there to reproduce published numbers.

    Args:
        objective: "nll" or "ece".
        bounds: Smallest and largest T; a fit that ends at one warns. If every prediction is right, the NLL falls towards the
            smallest T.
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

    objective: Literal["nll", "ece"] = option("nll", check_choice, choices=("nll", "ece"))
    n_bins: int = option(15, check_count)

    label = "temperature scaling"

    def _find(self, data: FitData) -> tuple[float, bool]:
        if self.objective == "nll":
            return super()._find(data)

        def ece(temperature: float) -> float:
            probs = temperature_log_probs(data.logits.double(), temperature).exp_()
            return float(expected_calibration_error(probs, data.labels, n_bins=self.n_bins, weights=data.weights))

        temperature = min(_GRID, key=ece)
        return temperature, temperature in (_GRID[0], _GRID[-1])


def attended_nll(data: FitData, temperature: float, *, threshold: float) -> float:
    r"""The attended negative log-likelihood, summed, at a temperature.

    Besides its label, an example counts for every other class k that is its top class or whose probability at T = 1 exceeds
    the threshold, as if drawn from it:

    .. math:: L(T) = -\sum_i w_i \Bigl[ \log q_{i y_i} + \sum_{k \in A_i} \log \frac{q_{ik}^2}{1 - q_{ik}} \Bigr],
        \qquad q_i = \mathrm{softmax}(z_i / T)
    """

    def nll(logits: Tensor, labels: Tensor) -> Tensor:
        index, top = labels.unsqueeze(1), logits.argmax(1, keepdim=True)
        attended = (logits.softmax(1) > threshold).scatter_(1, top, value=True).scatter_(1, index, value=False)
        log_probs = temperature_log_probs(logits, temperature)
        # One minus a probability of one has no logarithm; float64's smallest number stands for it.
        extra = torch.where(attended, 2 * log_probs - log_complements(log_probs).clamp_(min=-745.0), 0.0)
        return -(log_probs.gather(1, index).squeeze(1) + extra.sum(1))

    return data.total(nll)


@dataclass(kw_only=True, eq=False, repr=False)
class AttendedTemperatureScaling(_TemperatureMethod):
    """Divides all logits by a temperature found from labels and from the other likely classes of every example.

    The extra terms make the estimate vary less from one small fit set to the next, and depend less on single wrong labels. The
    price is a bias that no number of examples removes: a true temperature of 2 becomes 4 with 2 classes, 3.0 with 5, 2.5 with
    10, 1.6 with 100; and more below the threshold of 0.01. Prefer `TemperatureScaling`; with 10 classes or more, fewer than
    some hundred examples and labels that may be wrong, compare the two. A fit on fewer classes warns. The objective is that of
    the authors' released code.

    Args:
        threshold: Classes other than the label count if their probability exceeds this.
        bounds: Smallest and largest T.

    Attributes:
        temperature_: The learned T.

    Reference:
        Mozafari, Gomes, Leão, Janny and Gagné, "Attended Temperature Scaling: A Practical Approach for Calibrating Deep Neural
        Networks", arXiv 1810.11586, 2018.
    """

    threshold: float = option(0.01, check_share)

    label = "attended temperature scaling"
    few_samples = 20

    def doubts(self, data: FitData) -> list[str]:
        """As of every calibrator; and that there are too few classes."""
        few = [f"its temperature is far too high with fewer than {_FEWEST_CLASSES} classes. Use temperature scaling."]
        return super().doubts(data) + few * (data.num_classes < _FEWEST_CLASSES)

    def _find(self, data: FitData) -> tuple[float, bool]:
        return least_in_log(partial(attended_nll, data, threshold=self.threshold), bounds=self.bounds)


def monte_carlo_log_probs(logits: Tensor, temperature: Tensor | float) -> Tensor:
    """Log of the mean, over samples, of the probabilities of scaled logits ``[S, ..., C]``; ``[N, C]`` is a single sample."""
    log_probs = temperature_log_probs(logits, temperature)
    if logits.ndim == 2:
        return log_probs
    return log_probs.logsumexp(0) - torch.log(torch.full_like(log_probs[0, ..., :1], log_probs.shape[0]))


class MonteCarloTemperatureScaling(_TemperatureMethod, formula=monte_carlo_log_probs):
    r"""Divides the logits of all samples by one temperature before their probabilities are averaged.

    .. math:: q = \frac1S \sum_{s=1}^{S} \mathrm{softmax}(z_s / T)

    Averaging makes a model less confident, so the best T differs from that of a single sample. It is the one of least NLL of
    the average; the whole range is searched.

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
    preserves_accuracy = False
    in_auto = False
    takes_samples = True

    def _find(self, data: FitData) -> tuple[float, bool]:
        def nll(temperature: float, logits: Tensor, labels: Tensor) -> Tensor:
            return -monte_carlo_log_probs(logits, temperature).gather(1, labels.unsqueeze(1)).squeeze(1)

        return least_in_log(lambda temperature: data.total(partial(nll, temperature)), bounds=self.bounds)


def ensemble_log_probs(logits: Tensor, temperature: Tensor | float, mixture: Tensor) -> Tensor:
    """Log-probabilities of a mixture ``[3]`` of the scaled, the original and the uniform distribution."""
    parts = [temperature_log_probs(logits, temperature), logits.log_softmax(-1)]
    flat = torch.zeros_like(logits) - torch.log(torch.full_like(logits[..., :1], logits.shape[-1]))
    return torch.logsumexp(torch.stack([*parts, flat], -1) + mixture.log(), -1)


def find_mixture(log_parts: Tensor, weights: Tensor) -> Tensor:
    """Return the mixture weights ``[P]`` of least NLL, from the log-probability of the label under each part ``[N, P]``."""
    # Only ratios within an example matter; dividing by the largest part keeps the exponential finite.
    ratio = (log_parts - log_parts.amax(1, keepdim=True)).exp().numpy()
    share = (weights / weights.sum()).numpy()

    def loss(mixture: Vector) -> tuple[float, Vector]:
        mean = np.maximum(ratio @ mixture, 1e-300)
        return float(mixture.sum() - share @ np.log(mean)), 1 - (share / mean) @ ratio

    # Since the loss adds the sum of the weights, the best ones sum to one by themselves.
    start = np.full(ratio.shape[1], 1 / ratio.shape[1])
    found = minimize(loss, start, jac=True, bounds=[(0, 1)] * len(start), options={"ftol": 1e-14, "gtol": 1e-10}).x
    return torch.from_numpy(found / found.sum())


class EnsembleTemperatureScaling(_TemperatureMethod, formula=ensemble_log_probs):
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
    few_samples = 100

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        learned, index = super()._fit(data), data.labels.unsqueeze(1)
        own = [temperature_log_probs(data.logits.double(), t).gather(1, index) for t in (learned["temperature"], 1.0)]
        flat = torch.full_like(own[0], -math.log(data.num_classes))
        return {**learned, "mixture": find_mixture(torch.cat([*own, flat], 1), data.weights)}


# Affine maps by penalised likelihood.


def affine_log_probs(logits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Log-probabilities of logits mapped by a matrix ``[C, C]``, or scaled class by class ``[C]``, and shifted."""
    finite = floor_logits(logits)
    return ((finite * weight if weight.ndim == 1 else finite @ weight.T) + bias).log_softmax(-1)


def dirichlet_log_probs(logits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Log-probabilities of an affine map of log-probabilities."""
    return affine_log_probs(floor_logits(logits).log_softmax(-1), weight, bias)


def affine_loss(parameters: Vector, data: FitData, precision: Tensor, bias_precision: float) -> tuple[float, Vector]:
    r"""Mean NLL of :math:`\mathrm{softmax}(x + A x + b)` with normal priors around zero, and its gradient.

    .. math:: \frac1N \Bigl[\sum_i w_i \mathrm{NLL}_i + \tfrac12 \sum_{kl} r_{kl} A_{kl}^2 + \tfrac12 r_b \sum_k b_k^2\Bigr]

    Args:
        parameters: A ``[C, C]``, or ``[C]`` if it is diagonal, and then b ``[C]``, in one row.
        data: Features x as its logits ``[N, C]``, float64, with labels and weights w.
        precision: Inverse variances r, shaped as A.
        bias_precision: The inverse variance of a bias.
    """
    away, bias = split_parameters(parameters, precision)
    slope, bias_slope = precision * away, bias_precision * bias
    value = 0.5 * float((slope * away).sum() + bias_slope @ bias)
    for inputs, labels, weights in data.chunks():
        moved = inputs * away if away.ndim == 1 else inputs @ away.T
        log_probs = moved.add_(inputs).add_(bias).log_softmax(1)
        index, share = labels.unsqueeze(1), weights.unsqueeze(1)
        value -= float(weights @ log_probs.gather(1, index).squeeze(1))
        residual = log_probs.exp_().scatter_add_(1, index, -torch.ones_like(share)).mul_(share)
        bias_slope += residual.sum(0)
        slope += residual.mul_(inputs).sum(0) if away.ndim == 1 else residual.T @ inputs
    return value / len(data), torch.cat([slope.flatten(), bias_slope]).numpy() / len(data)


def split_parameters(parameters: Vector, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Return A, shaped as ``precision``, and b ``[C]``."""
    flat, classes = torch.from_numpy(parameters), len(precision)
    return flat[:-classes].view_as(precision), flat[-classes:]


def fit_affine(
    data: FitData, precision: Tensor, bias_precision: float, *, max_iter: int, tolerance: float, start: Vector | None = None
) -> Vector:
    """Return A and b of least loss by L-BFGS, which stops when a step improves the loss by less than ``tolerance`` of it."""
    options = {"maxiter": max_iter, "ftol": tolerance, "gtol": 1e-7, "maxcor": 10}
    start = np.zeros(precision.numel() + len(precision)) if start is None else start
    given = (data, precision, bias_precision)
    return np.asarray(minimize(affine_loss, start, given, jac=True, method="L-BFGS-B", options=options).x)


class _AffineCalibrator(Calibrator, formula=affine_log_probs):
    def _features(self, logits: Tensor) -> Tensor:
        return floor_logits(logits.double())

    def _scaled(self, data: FitData) -> tuple[FitData, float]:
        """What the map acts on, divided by the best temperature, which is returned too."""
        scale, _ = find_temperature(data)
        return FitData(self._features(data.logits) / scale, data.labels, data.weights), scale


@dataclass(kw_only=True, eq=False, repr=False)
class VectorScaling(_AffineCalibrator):
    r"""Scales and shifts the logit of every class: :math:`q = \mathrm{softmax}(w \odot z + b)`, by least NLL.

    The search starts from temperature scaling and is held near it by a weak prior: factors (relative to 1/T) and biases are
    normal with variance 1 / ``ridge``. Without it nothing finite is best for a class without examples, or always right.

    Args:
        ridge: Strength of the prior, in examples; the data outweighs it soon.
        max_iter: Steps of L-BFGS at most.

    Attributes:
        weight_: The factors w ``[C]``.
        bias_: The biases b ``[C]``.

    Reference:
        Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.
    """

    ridge: float = option(1.0, check_positive)
    max_iter: int = option(500, check_count)

    label = "vector scaling"

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        inputs, scale = self._scaled(data)
        precision = torch.full((data.num_classes,), self.ridge, dtype=torch.float64)
        found = fit_affine(inputs, precision, self.ridge, max_iter=self.max_iter, tolerance=1e-9)
        away, bias = split_parameters(found, precision)
        return {"weight": (1 + away) / scale, "bias": bias}


@dataclass(kw_only=True, eq=False, repr=False)
class MatrixScaling(_AffineCalibrator):
    r"""Maps logits by a matrix and a bias, :math:`q = \mathrm{softmax}(W z + b)`, with penalties chosen by cross-validation.

    ODIR penalises off-diagonal entries by :math:`\lambda / (C (C-1)) \sum_{k \ne l} W_{kl}^2` and biases by
    :math:`\mu / C \sum_k b_k^2`. Two departures from the published form make one grid fit all data: W acts on logits divided
    by their best temperature, and the grid is over the standard deviation s (``spreads``) that the penalty, read as a normal
    prior, allows an off-diagonal entry: :math:`\lambda = C (C - 1) / (2 N s^2)`; a bias has ten times the spread. The map
    starts at temperature scaling and is followed from narrow to wide spreads.

    Args:
        spreads: Spreads to choose from, ascending; a single one is taken as it is.
        ridge: Strength of the prior of the diagonal, in examples.
        n_folds: Folds of the cross-validation.
        max_iter: Steps of L-BFGS at most, for every fit.
        seed: Seed of the folds.

    Attributes:
        weight_: The matrix W ``[C, C]``.
        bias_: The biases b ``[C]``.
        spread_: The spread chosen.

    Reference:
        Kull et al., "Beyond temperature scaling: obtaining well-calibrated multiclass probabilities with Dirichlet
        calibration", NeurIPS 2019 (MS-ODIR).
    """

    spreads: Sequence[float] = option((0.01, 0.03, 0.1, 0.3, 1.0), check_ascending)
    ridge: float = option(1.0, check_positive)
    n_folds: int = option(3, check_count, least=2)
    max_iter: int = option(200, check_count)
    seed: int = 0

    label = "matrix scaling"
    also_kept = ("spread",)

    def doubts(self, data: FitData) -> list[str]:
        """As of every calibrator; and that there are more than ten numbers to learn for each example."""
        few = data.too_few(data.num_classes**2 // 10, what=f"a matrix of {data.num_classes**2} numbers")
        return super().doubts(data) + ([few] if few else [])

    def tuned(self, data: FitData) -> MatrixScaling:
        """Return a calibrator with the one spread that cross-validation on ``data`` chooses."""
        spread = self._choose_spread(self._scaled(data)[0])
        return type(self)(**{**self.get_params(), "spreads": (spread,)})

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        inputs, scale = self._scaled(data)
        self.spread_ = self._choose_spread(inputs)
        prior = self._prior(inputs, self.spread_)
        away, bias = split_parameters(fit_affine(inputs, *prior, max_iter=self.max_iter, tolerance=1e-8), prior[0])
        return {"weight": (torch.eye(data.num_classes, dtype=torch.float64) + away) / scale, "bias": bias}

    def _prior(self, inputs: FitData, spread: float) -> tuple[Tensor, float]:
        """Inverse variances of the entries of W - I and of a bias."""
        precision = torch.full((inputs.num_classes, inputs.num_classes), spread**-2, dtype=torch.float64)
        return precision.fill_diagonal_(self.ridge), (_BIAS_SPREAD * spread) ** -2

    def _choose_spread(self, inputs: FitData) -> float:
        """The spread of least held-out NLL, followed from narrow to wide until it gets worse."""
        if len(self.spreads) == 1 or len(inputs) < self.n_folds:
            return self.spreads[0]
        parts = [(inputs.subset(kept), inputs.subset(held)) for kept, held in inputs.folds(self.n_folds, seed=self.seed)]
        steps = max(5, min(_PATH_STEPS, self.max_iter, _PATH_ENTRIES // inputs.num_classes**2))
        paths: list[Vector | None] = [None] * len(parts)
        best, least = self.spreads[0], np.inf
        for spread in self.spreads:
            total = 0.0
            for k, (kept, held) in enumerate(parts):
                prior = self._prior(kept, spread)
                paths[k] = path = fit_affine(kept, *prior, max_iter=steps, tolerance=_PATH_TOLERANCE, start=paths[k])
                total += len(held) * affine_loss(path, held, torch.zeros_like(prior[0]), 0.0)[0]
            if total >= least:
                break
            best, least = spread, total
        return best


class DirichletCalibration(MatrixScaling, formula=dirichlet_log_probs):
    r"""Maps log-probabilities by a matrix and a bias: :math:`q = \mathrm{softmax}(W \log p + b)`, with ODIR penalties.

    As `MatrixScaling`, with its arguments and attributes, but on log-probabilities, so that a shift of all logits of an example
    changes nothing.

    Reference:
        Kull et al., NeurIPS 2019.
    """

    label = "Dirichlet calibration"

    def _features(self, logits: Tensor) -> Tensor:
        return super()._features(logits).log_softmax(1)


# Platt scaling and beta calibration: a sigmoid for every class; of two only the second has one.


def beta_log_probs(logits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Log-probabilities of one beta curve for every class (``weight [C, 2]``, ``bias [C]``; one row for two), normalised."""
    log_probs = floor_logits(logits).log_softmax(-1)
    rows = weight.shape[0]
    own, rest = log_probs[..., -rows:], -log_complements(log_probs)[..., -rows:]
    odds = own * weight[:, 0] + rest * weight[:, 1] + bias
    if rows == 1:
        return functional.logsigmoid(torch.cat([-odds, odds], -1))
    return functional.logsigmoid(odds).log_softmax(-1)


def platt_log_probs(logits: Tensor, slope: Tensor, intercept: Tensor) -> Tensor:
    """Log-probabilities of one sigmoid of the log-odds of every class, normalised: a beta curve with a = b."""
    return beta_log_probs(logits, slope.unsqueeze(1).expand(-1, 2), intercept)


def fit_logistic(features: Tensor, answers: Tensor, weights: Tensor, *, strength: float, centre: Tensor) -> Tensor:
    r"""Coefficients of least penalised cross-entropy of many small regressions at once, by Newton's method with step halving.

    .. math:: \sum_i w_i \bigl[\log(1 + e^{s_i}) - t_i s_i\bigr] + \tfrac12 r \sum_p (\theta_p - c_p)^2, \qquad s = F \theta

    with features F ``[K, N, P]``, answers t ``[K, N]``, weights w ``[N]``, strength r and centre c ``[K, P]``.
    """
    # Features of order one, and examples last, so that memory is read in one stride.
    unit = features.abs().amax(1).clamp(min=1e-12)
    across = (features / unit.unsqueeze(1)).transpose(1, 2).contiguous()
    ridge, centre = strength / unit**2 + _FAINT, centre * unit

    def loss(theta: Tensor) -> tuple[Tensor, Tensor]:
        score = (theta.unsqueeze(1) @ across).squeeze(1)
        fit = (functional.softplus(score) - answers * score) @ weights
        return fit + 0.5 * (ridge * (theta - centre) ** 2).sum(1), score

    theta = centre.clone()
    value, score = loss(theta)
    for _ in range(_MOST_STEPS):
        probs = score.sigmoid()
        slope = (across @ ((probs - answers) * weights).unsqueeze(2)).squeeze(2) + ridge * (theta - centre)
        bend = (across * (probs * (1 - probs) * weights).unsqueeze(1)) @ across.transpose(1, 2) + torch.diag_embed(ridge)
        step = torch.linalg.solve(bend, slope)
        found, score = loss(theta - step)
        while bool((worse := found > value + 1e-13 * (1 + value.abs())).any()):
            step = torch.where(worse.unsqueeze(1), step / 2, step)
            found, score = loss(theta - step)
        theta = theta - step
        last, value = value, found
        # One small gain is enough: every step squares Newton's error.
        if bool((last - value <= 1e-12 * (1 + value.abs())).all()):
            break
    return theta / unit


class _SigmoidCalibrator(Calibrator):
    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        """Fit the features and an intercept of every class (of two only the second), some classes at a time."""
        log_probs = floor_logits(data.logits.double()).log_softmax(-1)
        features = (*self._features(log_probs, -log_complements(log_probs)), torch.ones_like(log_probs))
        classes = torch.arange(1 if data.num_classes == 2 else 0, data.num_classes)
        found = []
        for some in classes.split(max(_ROUND_ENTRIES // len(data), 1)):
            is_label = data.labels.unsqueeze(0) == some.unsqueeze(1)
            own = torch.stack([feature[:, some].T for feature in features], 2)
            found.append(self._fit_classes(own, is_label, data.weights))
        coefficients = torch.cat(found)
        return dict(zip(self.learned, (coefficients[:, :-1].squeeze(1), coefficients[:, -1]), strict=True))


class PlattScaling(_SigmoidCalibrator, formula=platt_log_probs):
    r"""Fits a sigmoid to the log-odds of every class, then normalises.

    .. math:: q_k \propto \sigma(a_k f_k + b_k), \qquad f_k = \log \frac{p_k}{1 - p_k}, \quad p = \mathrm{softmax}(z)

    Targets are smoothed as Platt's: with N+ examples of the class and N- others they are (N+ + 1) / (N+ + 2) and
    1 / (N- + 2), so the fit is finite where a class is separable, or absent.

    Attributes:
        slope_: Slopes ``[C]`` (``[1]``, of the second class, for two).
        intercept_: Intercepts, shaped as the slopes.

    Reference:
        Platt, "Probabilistic outputs for support vector machines and comparisons to regularized likelihood methods", 1999;
        Zadrozny and Elkan, KDD 2002 for many classes.
    """

    label = "Platt scaling"

    def _features(self, own: Tensor, rest: Tensor) -> tuple[Tensor, ...]:
        return (own + rest,)

    def _fit_classes(self, features: Tensor, is_label: Tensor, weights: Tensor) -> Tensor:
        hits = (is_label * weights).sum(1, keepdim=True)
        misses = weights.sum() - hits
        answers = torch.where(is_label, (hits + 1) / (hits + 2), 1 / (misses + 2))
        centre = torch.cat([torch.zeros_like(hits), torch.log((hits + 1) / (misses + 1))], 1)
        return fit_logistic(features, answers, weights, strength=0.0, centre=centre)


@dataclass(kw_only=True, eq=False, repr=False)
class BetaCalibration(_SigmoidCalibrator, formula=beta_log_probs):
    r"""Fits a beta curve, which can bend either way at both ends, to the probability of every class, then normalises.

    .. math:: q_k \propto \sigma\bigl(a_k \log p_k - b_k \log(1 - p_k) + c_k\bigr), \qquad p = \mathrm{softmax}(z)

    If a or b comes out negative, the curve is fitted again without it. A weak prior around the identity (a = b = 1, c = 0,
    variance 1 / ``ridge``) keeps the fit finite where a class is separable or absent.

    Args:
        ridge: Strength of the prior, in examples.

    Attributes:
        weight_: a and b of every class ``[C, 2]`` (``[1, 2]``, of the second class, for two).
        bias_: c ``[C]``.

    Reference:
        Kull, Silva Filho and Flach, "Beta calibration: a well-founded and easily implemented improvement on logistic
        calibration for binary classifiers", AISTATS 2017.
    """

    ridge: float = option(0.01, check_positive)

    label = "beta calibration"

    def _features(self, own: Tensor, rest: Tensor) -> tuple[Tensor, ...]:
        return own, rest

    def _fit_classes(self, features: Tensor, is_label: Tensor, weights: Tensor) -> Tensor:
        centre = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64).repeat(len(features), 1)
        found = torch.zeros_like(centre)
        again = torch.arange(len(features))
        while len(again):
            # A feature of zeros, with a prior around zero, has a coefficient of zero.
            kept = features[again] * torch.cat([centre[again, :2], torch.ones(len(again), 1)], 1).unsqueeze(1)
            answers = is_label[again].double()
            found[again] = fit_logistic(kept, answers, weights, strength=self.ridge, centre=centre[again])
            # Of two negative coefficients the more negative goes first.
            lowest, which = found[:, :2].min(1)
            again = (lowest < 0).nonzero().flatten()
            centre[again, which[again]] = 0.0
        return found
