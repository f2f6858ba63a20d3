"""Matrix scaling and Dirichlet calibration: an affine map that mixes classes, with off-diagonal and bias penalties (ODIR)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor

from calibrant.calibrators.affine import AffineProblem, Vector, solve_affine
from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.fit_data import FitData
from calibrant.calibrators.folds import fold_data, split_folds
from calibrant.calibrators.log_space import floor_logits
from calibrant.calibrators.temperature import find_temperature
from calibrant.calibrators.threads import one_thread
from calibrant.calibrators.vector import START_BOUNDS
from calibrant.core.checks import check_count, check_positive

# A bias moves a logit by itself, an off-diagonal entry by itself times another logit, of size ten or so.
_BIAS_SPREAD = 10.0
# Steps of L-BFGS for every spread that is tried, and how much a step must improve: comparing them needs few digits.
_PATH_STEPS, _PATH_TOLERANCE = 20, 1e-6
# Entries of W over which those steps are stretched: with 1,000 classes there are five.
_PATH_ENTRIES = 5_000_000
# The path of spreads ends when this many in a row were no better than the best before them.
_PATIENCE = 1


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
        >>> import torch
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
        >>> import torch
        >>> dirichlet_log_probs(torch.tensor([1.0986, 0.0]), torch.eye(2), torch.zeros(2)).exp()
        tensor([0.7500, 0.2500])

    Reference:
        Kull et al., "Beyond temperature scaling", NeurIPS 2019, eq. 3.
    """
    return matrix_log_probs(floor_logits(logits).log_softmax(-1), weight, bias)


class Penalties(NamedTuple):
    """The two penalties of ODIR: ``off_diagonal`` is lambda, ``bias`` is mu."""

    off_diagonal: float
    bias: float


def odir_penalties(spread: float, *, n: int, num_classes: int) -> Penalties:
    r"""Penalties whose prior lets off-diagonal entries have the standard deviation ``spread``.

    A normal prior of variance :math:`s^2` is :math:`\lambda = C (C - 1) / (2 N s^2)`, so one grid of spreads fits any number
    of classes and examples; biases have ten times the spread.
    """
    off_diagonal = num_classes * (num_classes - 1) / (2 * n * spread**2)
    return Penalties(off_diagonal, num_classes / (2 * n * (_BIAS_SPREAD * spread) ** 2))


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

    learned: ClassVar[tuple[str, ...]] = ("weight", "bias")
    # The work grows with the square of the classes.
    most_for_one_thread: ClassVar[int] = 200_000
    transform = staticmethod(matrix_log_probs)

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
        where = type(self).__name__
        for spread in spreads:
            check_positive(spread, where=where, name="spreads")
        if not spreads or list(spreads) != sorted(spreads):
            raise ValueError(f"{where}: `spreads` must be ascending numbers, at least one, got {tuple(spreads)}.")
        check_positive(ridge, where=where, name="ridge")
        check_count(n_folds, where=where, name="n_folds", least=2)
        check_count(max_iter, where=where, name="max_iter")
        self.spreads = tuple(spreads)
        self.ridge = ridge
        self.n_folds = n_folds
        self.max_iter = max_iter
        self.seed = seed

    def features(self, logits: Tensor) -> Tensor:
        """What the matrix acts on, float64 ``[N, C]``."""
        return floor_logits(logits.double())

    def settle(self, data: FitData) -> MatrixScaling:
        """Return a calibrator with the one spread that cross-validation on ``data`` chooses."""
        where = f"{type(self).__name__}.settle"
        with one_thread(when=data.logits.numel() <= self.most_for_one_thread):
            inputs, _ = self._scaled(data, where=where)
            spread = self._choose_spread(inputs, where=where)
        return type(self)(**{**self.get_params(), "spreads": (spread,)})  # type: ignore[arg-type]

    def _scaled(self, data: FitData, *, where: str) -> tuple[FitData, float]:
        scale, _ = find_temperature(data, bounds=START_BOUNDS, where=where)
        return FitData(self.features(data.logits) / scale, data.labels, data.weights), scale

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        where = f"{type(self).__name__}.fit"
        inputs, scale = self._scaled(data, where=where)
        self.spread_ = self._choose_spread(inputs, where=where)
        problem = self._problem(inputs, self.spread_)
        weight, bias = problem.split(solve_affine(problem, max_iter=self.max_iter, tolerance=1e-8, where=where))
        return {"weight": weight / scale, "bias": bias.clone()}

    def to_dict(self) -> dict[str, object]:
        """Return hyper-parameters, what was learned and the spread as plain data."""
        data = super().to_dict()
        return {**data, "learned": {**data["learned"], "spread": self.spread_}}  # type: ignore[dict-item]

    def _restore(self, learned: Mapping[str, object], num_classes: int) -> None:
        super()._restore(learned, num_classes)
        self.spread_ = float(str(learned["spread"]))

    def _problem(self, inputs: FitData, spread: float) -> AffineProblem:
        off_diagonal, bias = odir_penalties(spread, n=len(inputs), num_classes=inputs.num_classes)
        return AffineProblem(
            inputs.logits, inputs.labels, inputs.weights, diagonal=False, ridge=self.ridge, off_diagonal=off_diagonal, bias=bias
        )

    def _choose_spread(self, inputs: FitData, *, where: str) -> float:
        """The spread of least held-out NLL, followed from narrow to wide until it gets worse."""
        if len(self.spreads) == 1 or len(inputs) < self.n_folds:
            return self.spreads[0]
        parts = list(fold_data(inputs, split_folds(inputs, n_folds=self.n_folds, seed=self.seed)))
        steps = max(5, min(_PATH_STEPS, self.max_iter, _PATH_ENTRIES // inputs.num_classes**2))
        paths: list[Vector | None] = [None] * len(parts)
        found: list[float] = []
        for spread in self.spreads:
            losses = []
            for k, (kept, held) in enumerate(parts):
                problem = self._problem(kept, spread)
                path = solve_affine(problem, start=paths[k], max_iter=steps, tolerance=_PATH_TOLERANCE, where=where)
                paths[k] = path
                losses.append(held_out_nll(problem, path, held))
            found.append(sum(losses))
            if len(found) - 1 - found.index(min(found)) >= _PATIENCE:
                break
        return self.spreads[found.index(min(found))]


def held_out_nll(problem: AffineProblem, parameters: Vector, held: FitData) -> float:
    """Summed weighted NLL of the fitted map on other examples."""
    weight, bias = problem.split(parameters)
    log_probs = (held.logits @ weight.T + bias).log_softmax(1)
    return -float(held.weights @ log_probs.gather(1, held.labels.unsqueeze(1)).squeeze(1))


class DirichletCalibration(MatrixScaling):
    r"""Maps log-probabilities by a matrix and a bias: :math:`q = \mathrm{softmax}(W \log p + b)`, with ODIR penalties.

    As `MatrixScaling`, on the log-probabilities :math:`\log p` instead of the logits, so that a shift of all logits of an
    example changes nothing.

    Args:
        spreads: As in `MatrixScaling`.
        ridge: As in `MatrixScaling`.
        n_folds: As in `MatrixScaling`.
        max_iter: As in `MatrixScaling`.
        seed: As in `MatrixScaling`.

    Attributes:
        weight_: The matrix W ``[C, C]``.
        bias_: The biases b ``[C]``.
        spread_: The spread chosen.

    Reference:
        Kull et al., NeurIPS 2019.
    """

    transform: ClassVar[Callable[..., Tensor]] = staticmethod(dirichlet_log_probs)

    def features(self, logits: Tensor) -> Tensor:
        """Log-probabilities, float64 ``[N, C]``."""
        return super().features(logits).log_softmax(1)
