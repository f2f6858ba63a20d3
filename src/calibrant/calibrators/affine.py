"""Fitting affine maps of logits by penalised likelihood: what vector, matrix and Dirichlet calibration share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.fit_data import chunk_rows
from calibrant.core.checks import FitError

Vector = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True)
class AffineProblem:
    r"""Least penalised NLL of :math:`\mathrm{softmax}(W x + b)`, over a full or a diagonal W that starts at the identity.

    .. math:: \sum_i \frac{w_i}{N} \mathrm{NLL}_i + \frac{r}{2N} \sum_k (W_{kk} - 1)^2
        + \frac{\lambda}{C(C-1)} \sum_{k \ne l} W_{kl}^2 + \frac{\mu}{C} \sum_k b_k^2

    Attributes:
        inputs: Features x ``[N, C]``, float64.
        labels: Class indices ``[N]``.
        weights: Weights w ``[N]`` with mean one.
        diagonal: Whether W is diagonal.
        ridge: Strength r that keeps the diagonal near one, in examples.
        off_diagonal: The penalty lambda; without meaning for a diagonal W.
        bias: The penalty mu.
    """

    inputs: Tensor
    labels: Tensor
    weights: Tensor
    diagonal: bool
    ridge: float
    off_diagonal: float
    bias: float

    def start(self) -> Vector:
        """Parameters of the identity map."""
        classes = self.inputs.shape[1]
        weight = torch.ones(classes) if self.diagonal else torch.eye(classes).flatten()
        return np.concatenate([weight.double().numpy(), np.zeros(classes)])

    def split(self, parameters: Vector) -> tuple[Tensor, Tensor]:
        """Return W (``[C]`` if diagonal, else ``[C, C]``) and b ``[C]``."""
        classes = self.inputs.shape[1]
        flat = torch.from_numpy(np.ascontiguousarray(parameters, dtype=np.float64))
        weight, bias = flat[:-classes], flat[-classes:]
        return (weight if self.diagonal else weight.view(classes, classes)), bias

    def loss(self, parameters: Vector) -> tuple[float, Vector]:
        """Objective and its gradient."""
        weight, bias = self.split(parameters)
        n, classes = self.inputs.shape
        value, slope, bias_slope = 0.0, torch.zeros_like(weight), torch.zeros_like(bias)
        rows = chunk_rows(classes)
        # Some rows at a time stay in the cache: 0.05 s of processor time for 10,000 x 1,000 and a diagonal W, 0.25 s at once.
        for inputs, labels, weights in zip(
            *(part.split(rows) for part in (self.inputs, self.labels, self.weights)), strict=True
        ):
            log_probs = (inputs * weight if self.diagonal else inputs @ weight.T).add_(bias).log_softmax(1)
            index, share = labels.unsqueeze(1), (weights / n).unsqueeze(1)
            value -= float(share.T @ log_probs.gather(1, index))
            residual = log_probs.exp_().scatter_add_(1, index, -torch.ones_like(share)).mul_(share)
            bias_slope += residual.sum(0)
            if self.diagonal:
                slope += residual.mul_(inputs).sum(0)
            else:
                slope.addmm_(residual.T, inputs)
        extra, penalty_slope = self._penalty(weight)
        bias_slope += 2 * self.bias / classes * bias
        value += extra + self.bias / classes * float(bias @ bias)
        return value, np.concatenate([(slope + penalty_slope).flatten().numpy(), bias_slope.numpy()])

    def _penalty(self, weight: Tensor) -> tuple[float, Tensor]:
        n, classes = self.inputs.shape
        ridge = self.ridge / n
        off_diagonal = 0.0 if self.diagonal else self.off_diagonal / (classes * (classes - 1))
        main = weight if self.diagonal else weight.diagonal()
        slope = 2 * off_diagonal * weight
        (slope if self.diagonal else slope.diagonal()).copy_(ridge * (main - 1))
        around = 0.0 if self.diagonal else off_diagonal * float((weight**2).sum() - (main**2).sum())
        return 0.5 * ridge * float(((main - 1) ** 2).sum()) + around, slope


def solve_affine(
    problem: AffineProblem, *, start: Vector | None = None, max_iter: int, tolerance: float = 1e-9, where: str
) -> Vector:
    """Return the parameters of least loss, by L-BFGS, until a step improves the loss by less than ``tolerance`` of it."""
    from scipy.optimize import minimize

    first = problem.start() if start is None else start
    options = {"maxiter": max_iter, "ftol": tolerance, "gtol": 1e-7, "maxcor": 10}
    found = minimize(problem.loss, first, jac=True, method="L-BFGS-B", options=options)
    if not np.isfinite(found.x).all() or not np.isfinite(found.fun):
        raise FitError(f"{where}: the fit must give finite numbers, and did not. Look at the scale of the logits.")
    return np.asarray(found.x, dtype=np.float64)
