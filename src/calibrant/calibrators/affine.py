"""Vector, matrix and Dirichlet calibration: affine maps of logits, fitted by penalised likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from calibrant.calibrators.base import Calibrator, Learned
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
        >>> vector_log_probs(torch.zeros(2), torch.ones(2), torch.tensor([1.0986, 0.0])).exp()
        tensor([0.7500, 0.2500])

    Reference:
        Guo, Pleiss, Sun and Weinberger, ICML 2017, section 4.2.
    """
    return (floor_logits(logits) * weight + bias).log_softmax(-1)


def matrix_log_probs(logits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    r"""Log-probabilities of an affine map of logits.

    .. math:: \log q = \log \mathrm{softmax}(W z + b)

    Args:
        logits: Scores ``[..., C]``.
        weight: The matrix W ``[C, C]``.
        bias: Biases b ``[C]``.

    Returns:
        Log-probabilities ``[..., C]``.

    Example:
        >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> matrix_log_probs(torch.tensor([1.0986, 0.0]), swap, torch.zeros(2)).exp()
        tensor([0.2500, 0.7500])

    Reference:
        Guo, Pleiss, Sun and Weinberger, ICML 2017, section 4.2.
    """
    return (floor_logits(logits) @ weight.T + bias).log_softmax(-1)


def dirichlet_log_probs(logits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    r"""Log-probabilities of an affine map of log-probabilities.

    .. math:: \log q = \log \mathrm{softmax}(W \log p + b), \qquad p = \mathrm{softmax}(z)

    Args:
        logits: Scores ``[..., C]``.
        weight: The matrix W ``[C, C]``.
        bias: Biases b ``[C]``.

    Returns:
        Log-probabilities ``[..., C]``.

    Example:
        >>> dirichlet_log_probs(torch.tensor([1.0986, 0.0]), torch.eye(2), torch.zeros(2)).exp()
        tensor([0.7500, 0.2500])

    Reference:
        Kull et al., "Beyond temperature scaling", NeurIPS 2019, eq. 3.
    """
    return matrix_log_probs(floor_logits(logits).log_softmax(-1), weight, bias)


@dataclass(frozen=True)
class AffineProblem:
    r"""Least penalised NLL of :math:`\mathrm{softmax}(W x + b)`, over a full or a diagonal W that starts at the identity.

    .. math:: \sum_i \frac{w_i}{N} \mathrm{NLL}_i + \frac{r}{2N} \sum_k (W_{kk} - 1)^2
        + \frac{\lambda}{C(C-1)} \sum_{k \ne l} W_{kl}^2 + \frac{\mu}{C} \sum_k b_k^2

    Attributes:
        data: Features x as its logits ``[N, C]``, float64, with labels and weights w.
        diagonal: Whether W is diagonal.
        ridge: Strength r that keeps the diagonal near one, in examples.
        off_diagonal: The penalty lambda; without meaning for a diagonal W.
        bias: The penalty mu.
    """

    data: FitData
    diagonal: bool
    ridge: float
    off_diagonal: float
    bias: float

    def start(self) -> Vector:
        """Parameters of the identity map."""
        classes = self.data.num_classes
        return np.concatenate([np.ones(classes) if self.diagonal else np.eye(classes).ravel(), np.zeros(classes)])

    def split(self, parameters: Vector) -> tuple[Tensor, Tensor]:
        """Return W (``[C]`` if diagonal, else ``[C, C]``) and b ``[C]``."""
        classes = self.data.num_classes
        flat = torch.from_numpy(np.ascontiguousarray(parameters, dtype=np.float64))
        weight, bias = flat[:-classes], flat[-classes:]
        return (weight if self.diagonal else weight.view(classes, classes)), bias

    def loss(self, parameters: Vector) -> tuple[float, Vector]:
        """Objective and its gradient."""
        weight, bias = self.split(parameters)
        n = len(self.data)
        value, slope, bias_slope = self._penalty(weight, bias)
        for inputs, labels, weights in self.data.chunks():
            log_probs = (inputs * weight if self.diagonal else inputs @ weight.T).add_(bias).log_softmax(1)
            index, share = labels.unsqueeze(1), (weights / n).unsqueeze(1)
            value -= float(share.T @ log_probs.gather(1, index))
            residual = log_probs.exp_().scatter_add_(1, index, -torch.ones_like(share)).mul_(share)
            bias_slope += residual.sum(0)
            if self.diagonal:
                slope += residual.mul_(inputs).sum(0)
            else:
                slope.addmm_(residual.T, inputs)
        return value, np.concatenate([slope.flatten().numpy(), bias_slope.numpy()])

    def _penalty(self, weight: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
        """The penalties, and their gradients by W and b."""
        classes = self.data.num_classes
        ridge, on_bias = self.ridge / len(self.data), self.bias / classes
        # Half of the second derivative by each entry of W, and the value from which it is pulled away.
        centre = torch.ones_like(weight) if self.diagonal else torch.eye(classes, dtype=torch.float64)
        around = 0.0 if self.diagonal else self.off_diagonal / (classes * (classes - 1))
        strength = centre * (ridge / 2 - around) + around
        off = weight - centre
        pull = strength * off
        return float((pull * off).sum() + on_bias * bias @ bias), 2 * pull, 2 * on_bias * bias

    def solve(self, *, start: Vector | None = None, max_iter: int, tolerance: float = 1e-9, where: str) -> Vector:
        """Return the parameters of least loss, by L-BFGS, until a step improves the loss by less than ``tolerance`` of it."""
        first = self.start() if start is None else start
        options = {"maxiter": max_iter, "ftol": tolerance, "gtol": 1e-7, "maxcor": 10}
        found = minimize(self.loss, first, jac=True, method="L-BFGS-B", options=options)
        if not np.isfinite(found.x).all() or not np.isfinite(found.fun):
            raise FitError(f"{where}: the fit must give finite numbers, and did not. Look at the scale of the logits.")
        return np.asarray(found.x, dtype=np.float64)


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

    label: ClassVar[str] = "vector scaling"
    learned: ClassVar[tuple[str, ...]] = ("weight", "bias")
    formula = staticmethod(vector_log_probs)

    weight_: Tensor
    bias_: Tensor

    def __init__(self, *, ridge: float = 1.0, max_iter: int = 500) -> None:
        self.ridge = ridge
        self.max_iter = max_iter

    def check_params(self) -> None:
        """Raise ``ValueError`` if a hyper-parameter cannot be used."""
        check_positive(self.ridge, where="VectorScaling", name="ridge")
        check_count(self.max_iter, where="VectorScaling", name="max_iter")

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        where = "VectorScaling.fit"
        scale, _ = find_temperature(data, where=where)
        inputs = FitData(floor_logits(data.logits.double()) / scale, data.labels, data.weights)
        # mu / C equals the ridge of the factors: r / (2 N).
        bias = self.ridge * data.num_classes / (2 * len(data))
        problem = AffineProblem(inputs, diagonal=True, ridge=self.ridge, off_diagonal=0.0, bias=bias)
        weight, shift = problem.split(problem.solve(max_iter=self.max_iter, where=where))
        return {"weight": weight / scale, "bias": shift.clone()}


class MatrixScaling(Calibrator):
    r"""Maps logits by a matrix and a bias, :math:`q = \mathrm{softmax}(W z + b)`, with penalties chosen by cross-validation.

    ODIR penalises off-diagonal entries by :math:`\lambda / (C (C-1)) \sum_{k \ne l} W_{kl}^2` and biases by
    :math:`\mu / C \sum_k b_k^2`. Two departures from the published form make one grid fit all data: W acts on logits divided
    by their best temperature, and the grid is over the standard deviation (``spreads``) that the penalty, read as a normal
    prior, allows an off-diagonal entry. The map starts at temperature scaling and is followed from narrow to wide spreads.

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

    label: ClassVar[str] = "matrix scaling"
    learned: ClassVar[tuple[str, ...]] = ("weight", "bias")
    also_kept: ClassVar[tuple[str, ...]] = ("spread",)
    formula: ClassVar[Callable[..., Tensor]] = staticmethod(matrix_log_probs)

    weight_: Tensor
    bias_: Tensor
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

    def check_params(self) -> None:
        """Raise ``ValueError`` if a hyper-parameter cannot be used."""
        where = type(self).__name__
        if not self.spreads or list(self.spreads) != sorted(self.spreads):
            raise ValueError(f"{where}: `spreads` must be ascending numbers, at least one, got {self.spreads}.")
        check_positive(self.spreads[0], where=where, name="spreads")
        check_positive(self.ridge, where=where, name="ridge")
        check_count(self.n_folds, where=where, name="n_folds", least=2)
        check_count(self.max_iter, where=where, name="max_iter")

    def features(self, logits: Tensor) -> Tensor:
        """What the matrix acts on, float64 ``[N, C]``."""
        return floor_logits(logits.double())

    def settle(self, data: FitData) -> MatrixScaling:
        """Return a calibrator with the one spread that cross-validation on ``data`` chooses."""
        spread = self._choose_spread(self._scaled(data)[0])
        return type(self)(**{**self.get_params(), "spreads": (spread,)})

    def _scaled(self, data: FitData) -> tuple[FitData, float]:
        scale, _ = find_temperature(data, where=f"{type(self).__name__}.fit")
        return FitData(self.features(data.logits) / scale, data.labels, data.weights), scale

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        inputs, scale = self._scaled(data)
        self.spread_ = self._choose_spread(inputs)
        problem = self._problem(inputs, self.spread_)
        found = problem.solve(max_iter=self.max_iter, tolerance=1e-8, where=f"{type(self).__name__}.fit")
        weight, bias = problem.split(found)
        return {"weight": weight / scale, "bias": bias.clone()}

    def _problem(self, inputs: FitData, spread: float) -> AffineProblem:
        r"""The problem whose prior lets off-diagonal entries have the standard deviation ``spread``.

        A normal prior of variance :math:`s^2` is :math:`\lambda = C (C - 1) / (2 N s^2)`, so one grid of spreads fits any
        number of classes and examples; biases have ten times the spread.
        """
        n, classes = len(inputs), inputs.num_classes
        off_diagonal = classes * (classes - 1) / (2 * n * spread**2)
        bias = classes / (2 * n * (_BIAS_SPREAD * spread) ** 2)
        return AffineProblem(inputs, diagonal=False, ridge=self.ridge, off_diagonal=off_diagonal, bias=bias)

    def _choose_spread(self, inputs: FitData) -> float:
        """The spread of least held-out NLL, followed from narrow to wide until it gets worse."""
        if len(self.spreads) == 1 or len(inputs) < self.n_folds:
            return self.spreads[0]
        folds = inputs.folds(self.n_folds, seed=self.seed)
        parts = [(inputs.subset(kept), inputs.subset(held)) for kept, held in folds]
        steps = max(5, min(_PATH_STEPS, self.max_iter, _PATH_ENTRIES // inputs.num_classes**2))
        paths: list[Vector | None] = [None] * len(parts)
        best, least = self.spreads[0], np.inf
        for spread in self.spreads:
            total = 0.0
            for k, (kept, held) in enumerate(parts):
                problem = self._problem(kept, spread)
                where = f"{type(self).__name__}.fit"
                path = problem.solve(start=paths[k], max_iter=steps, tolerance=_PATH_TOLERANCE, where=where)
                paths[k] = path
                log_probs = matrix_log_probs(held.logits, *problem.split(path))
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

    label: ClassVar[str] = "Dirichlet calibration"
    formula: ClassVar[Callable[..., Tensor]] = staticmethod(dirichlet_log_probs)

    def features(self, logits: Tensor) -> Tensor:
        """Log-probabilities, float64 ``[N, C]``."""
        return super().features(logits).log_softmax(1)
