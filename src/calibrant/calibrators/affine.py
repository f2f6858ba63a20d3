"""Vector, matrix and Dirichlet calibration: affine maps of logits, fitted by penalised likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from calibrant.calibrators.base import Calibrator, Learned, check_ascending
from calibrant.calibrators.fit_data import FitData
from calibrant.calibrators.maps import Vector, floor_logits
from calibrant.calibrators.temperature import find_temperature
from calibrant.core.checks import FitError, check_count, check_positive

# A bias moves a logit by itself, an off-diagonal entry by itself times another logit, of size ten or so.
_BIAS_SPREAD = 10.0
# Steps of L-BFGS for every spread that is tried, and how much a step must improve: comparing them needs few digits.
_PATH_STEPS, _PATH_TOLERANCE = 20, 1e-6
# Entries of W over which those steps are stretched: with 1,000 classes there are five.
_PATH_ENTRIES = 5_000_000


def affine_log_probs(logits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Log-probabilities of logits mapped by a matrix ``[C, C]``, or scaled class by class ``[C]``, and shifted.

    Example:
        >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> affine_log_probs(torch.tensor([1.0986, 0.0]), swap, torch.zeros(2)).exp()
        tensor([0.2500, 0.7500])
    """
    finite = floor_logits(logits)
    return ((finite * weight if weight.ndim == 1 else finite @ weight.T) + bias).log_softmax(-1)


def dirichlet_log_probs(logits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Log-probabilities of an affine map of log-probabilities."""
    return affine_log_probs(floor_logits(logits).log_softmax(-1), weight, bias)


class AffineLoss:
    r"""Mean NLL of :math:`\mathrm{softmax}(W x + b)` with normal priors around the identity map.

    .. math:: \frac1N \Bigl[\sum_i w_i \mathrm{NLL}_i + \tfrac12 \sum_{kl} r_{kl} (W_{kl} - [k = l])^2
        + \tfrac12 r_b \sum_k b_k^2\Bigr]

    Args:
        data: Features x as its logits ``[N, C]``, float64, with labels and weights w.
        precision: Inverse variances r, ``[C, C]``, or ``[C]`` for a diagonal W.
        bias_precision: The inverse variance of a bias.
    """

    def __init__(self, data: FitData, precision: Tensor, bias_precision: float) -> None:
        self.data = data
        self.precision = precision
        self.bias_precision = bias_precision
        self.identity = torch.ones_like(precision) if precision.ndim == 1 else torch.eye(len(precision), dtype=torch.float64)

    def split(self, parameters: Vector) -> tuple[Tensor, Tensor]:
        """Return W and b ``[C]``."""
        flat, classes = torch.from_numpy(parameters), len(self.precision)
        return flat[:-classes].view_as(self.precision), flat[-classes:]

    def __call__(self, parameters: Vector) -> tuple[float, Vector]:
        """The loss and its gradient."""
        weight, bias = self.split(parameters)
        away = weight - self.identity
        slope, bias_slope = self.precision * away, self.bias_precision * bias
        value = 0.5 * float((slope * away).sum() + bias_slope @ bias)
        for inputs, labels, weights in self.data.chunks():
            log_probs = (inputs * weight if weight.ndim == 1 else inputs @ weight.T).add_(bias).log_softmax(1)
            index, share = labels.unsqueeze(1), weights.unsqueeze(1)
            value -= float(weights @ log_probs.gather(1, index).squeeze(1))
            residual = log_probs.exp_().scatter_add_(1, index, -torch.ones_like(share)).mul_(share)
            bias_slope += residual.sum(0)
            slope += residual.mul_(inputs).sum(0) if weight.ndim == 1 else residual.T @ inputs
        n = len(self.data)
        return value / n, np.concatenate([slope.flatten().numpy(), bias_slope.numpy()]) / n

    def minimise(self, *, start: Vector | None = None, max_iter: int, tolerance: float = 1e-9, where: str) -> Vector:
        """Return W and b of least loss, by L-BFGS, until a step improves the loss by less than ``tolerance`` of it."""
        identity = np.append(self.identity.numpy(), np.zeros(len(self.precision)))
        options = {"maxiter": max_iter, "ftol": tolerance, "gtol": 1e-7, "maxcor": 10}
        found = minimize(self, identity if start is None else start, jac=True, method="L-BFGS-B", options=options)
        if not np.isfinite(found.x).all() or not np.isfinite(found.fun):
            raise FitError(f"{where}: the fit must give finite numbers, and did not. Look at the scale of the logits.")
        return np.asarray(found.x, dtype=np.float64)


class _AffineCalibrator(Calibrator):
    learned = ("weight", "bias")
    formula: ClassVar[Callable[..., Tensor]] = staticmethod(affine_log_probs)

    weight_: Tensor
    bias_: Tensor

    def features(self, logits: Tensor) -> Tensor:
        """What the map acts on, float64 ``[N, C]``."""
        return floor_logits(logits.double())

    def _scaled(self, data: FitData) -> tuple[FitData, float]:
        """Features divided by the best temperature, which is returned too."""
        scale, _ = find_temperature(data, where=f"{type(self).__name__}.fit")
        return FitData(self.features(data.logits) / scale, data.labels, data.weights), scale


class VectorScaling(_AffineCalibrator):
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
        Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, section 4.2.
    """

    label = "vector scaling"
    rules = {"ridge": check_positive, "max_iter": check_count}

    def __init__(self, *, ridge: float = 1.0, max_iter: int = 500) -> None:
        self.ridge = ridge
        self.max_iter = max_iter

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        inputs, scale = self._scaled(data)
        loss = AffineLoss(inputs, torch.full((data.num_classes,), self.ridge, dtype=torch.float64), self.ridge)
        weight, bias = loss.split(loss.minimise(max_iter=self.max_iter, where="VectorScaling.fit"))
        return {"weight": weight / scale, "bias": bias.clone()}


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
        calibration", NeurIPS 2019, section 3 and supplement (MS-ODIR).
    """

    label = "matrix scaling"
    rules = {
        "spreads": check_ascending,
        "ridge": check_positive,
        "n_folds": partial(check_count, least=2),
        "max_iter": check_count,
    }
    also_kept = ("spread",)

    spread_: float

    def __init__(
        self,
        *,
        spreads: Sequence[float] = (0.01, 0.03, 0.1, 0.3, 1.0),
        ridge: float = 1.0,
        n_folds: int = 3,
        max_iter: int = 200,
        seed: int = 0,
    ) -> None:
        self.spreads = spreads
        self.ridge = ridge
        self.n_folds = n_folds
        self.max_iter = max_iter
        self.seed = seed

    def settle(self, data: FitData) -> MatrixScaling:
        """Return a calibrator with the one spread that cross-validation on ``data`` chooses."""
        spread = self._choose_spread(self._scaled(data)[0])
        return type(self)(**{**self.get_params(), "spreads": (spread,)})

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        inputs, scale = self._scaled(data)
        self.spread_ = self._choose_spread(inputs)
        loss = self._loss(inputs, self.spread_)
        found = loss.minimise(max_iter=self.max_iter, tolerance=1e-8, where=f"{type(self).__name__}.fit")
        weight, bias = loss.split(found)
        return {"weight": weight / scale, "bias": bias.clone()}

    def _loss(self, inputs: FitData, spread: float) -> AffineLoss:
        precision = torch.full((inputs.num_classes, inputs.num_classes), spread**-2, dtype=torch.float64)
        return AffineLoss(inputs, precision.fill_diagonal_(self.ridge), (_BIAS_SPREAD * spread) ** -2)

    def _choose_spread(self, inputs: FitData) -> float:
        """The spread of least held-out NLL, followed from narrow to wide until it gets worse."""
        if len(self.spreads) == 1 or len(inputs) < self.n_folds:
            return self.spreads[0]
        parts = [(inputs.subset(kept), inputs.subset(held)) for kept, held in inputs.folds(self.n_folds, seed=self.seed)]
        steps = max(5, min(_PATH_STEPS, self.max_iter, _PATH_ENTRIES // inputs.num_classes**2))
        where = f"{type(self).__name__}.fit"
        paths: list[Vector | None] = [None] * len(parts)
        best, least = self.spreads[0], np.inf
        for spread in self.spreads:
            total = 0.0
            for k, (kept, held) in enumerate(parts):
                loss = self._loss(kept, spread)
                path = paths[k] = loss.minimise(start=paths[k], max_iter=steps, tolerance=_PATH_TOLERANCE, where=where)
                log_probs = affine_log_probs(held.logits, *loss.split(path))
                total -= float(held.weights @ log_probs.gather(1, held.labels.unsqueeze(1)).squeeze(1))
            if total >= least:
                break
            best, least = spread, total
        return best


class DirichletCalibration(MatrixScaling):
    r"""Maps log-probabilities by a matrix and a bias: :math:`q = \mathrm{softmax}(W \log p + b)`, with ODIR penalties.

    As `MatrixScaling`, with its arguments and attributes, on the log-probabilities :math:`\log p` instead of the logits, so
    that a shift of all logits of an example changes nothing.

    Reference:
        Kull et al., NeurIPS 2019.
    """

    label = "Dirichlet calibration"
    formula = staticmethod(dirichlet_log_probs)

    def features(self, logits: Tensor) -> Tensor:
        """Log-probabilities, float64 ``[N, C]``."""
        return super().features(logits).log_softmax(1)
