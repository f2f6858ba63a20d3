"""Sets of classes that hold the true one with a guaranteed probability."""

from __future__ import annotations

import math
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from calibrant.core.checks import ArrayLike, FitError, check_choice
from calibrant.core.records import Predictions
from calibrant.decisions.selective import as_record, check_between, fit_examples, like

# Spreads rows that differ in their seventh digit over (0, 1).
_SPREAD = 1e7


class PredictionSets(BaseEstimator):  # type: ignore[misc]
    r"""Returns the classes that a label may well have: sets that hold it with probability ``coverage`` (split conformal).

    Each class k of an example gets a score :math:`s_k`, large if the model finds it unlikely. With :math:`\tau` the
    :math:`\lceil (N + 1) \cdot \text{coverage} \rceil`-th smallest score of the N labels of the fit data, the set is
    :math:`\{k : s_k \le \tau\}`. With classes ranked by probability, :math:`r_k` the rank of k from 1, and u a number in
    [0, 1], the scores are

    .. math::
        \text{lac: } 1 - p_k, \qquad
        \text{aps: } \sum_{j : r_j < r_k} p_j + u \, p_k, \qquad
        \text{raps: aps} + \text{penalty} \cdot \max(0, r_k - \text{free\_ranks}).

    **Guarantee.** If the examples to come are drawn like those of the fit, their label is in the set with probability
    ``coverage`` at least, on average over fit data and examples, whatever the model. With ``by_class`` that holds for the
    examples of each class. For ``lac``, and for ``aps`` and ``raps`` with ``randomized``, it is at most 1/(N + 1) more unless
    scores tie, and some sets may be empty. Without ``randomized``, u is 0 for the examples to come: sets of these two hold the
    most probable class always, and the label more often than promised.

    Args:
        coverage: Share of the examples whose set must hold the label.
        method: ``"lac"`` has the smallest sets on average; those of ``"aps"`` follow how hard an example is; ``"raps"`` is the
            same with fewer unlikely classes.
        randomized: Whether u varies in ``predict`` as it does in the fit. It is computed from the probabilities of the row, so
            the same row has the same set.
        by_class: Whether each class has a threshold of its own.
        penalty: Of ``raps``, for each rank beyond the free ones.
        free_ranks: Number of ranks without a penalty.

    Attributes:
        threshold_: The threshold :math:`\tau`; with ``by_class`` one for each class ``[C]``.

    Example:
        >>> probs = np.tile([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1]], (50, 1))
        >>> sets = PredictionSets(coverage=0.9).fit(probs, [0, 1] * 50)
        >>> round(sets.threshold_, 2), sets.predict([[0.8, 0.15, 0.05], [0.45, 0.45, 0.1]]).tolist()
        (0.6, [[True, False, False], [True, True, False]])

    Reference:
        Sadinle, Lei and Wasserman, JASA 114, 2019 (lac); Romano, Sesia and Candès, NeurIPS 2020 (aps); Angelopoulos, Bates,
        Malik and Jordan, ICLR 2021 (raps); Vovk, ACML 2012 (by class).
    """

    threshold_: float | Tensor
    num_classes_: int

    def __init__(
        self,
        *,
        coverage: float = 0.9,
        method: Literal["lac", "aps", "raps"] = "lac",
        randomized: bool = False,
        by_class: bool = False,
        penalty: float = 0.01,
        free_ranks: int = 5,
    ) -> None:
        self.coverage = coverage
        self.method = method
        self.randomized = randomized
        self.by_class = by_class
        self.penalty = penalty
        self.free_ranks = free_ranks

    def fit(self, probs: ArrayLike | Predictions, labels: ArrayLike | None = None) -> Self:
        """Learn the threshold from examples that the model was not trained on.

        Args:
            probs: Probabilities ``[N, C]``, of a binary problem also those of class 1 ``[N]``; or a `Predictions`.
            labels: Class indices ``[N]``, with probabilities only.

        Returns:
            This object. Raises ``FitError`` if the examples (of a class) are too few.
        """
        where = "PredictionSets.fit"
        check_between(self.coverage, where=where, name="coverage")
        check_choice(self.method, ("lac", "aps", "raps"), where=where, name="method")
        given = fit_examples(probs, labels, where=where)
        scores = self._scores(given.probs, randomized=True).gather(1, given.labels[:, None]).squeeze(1)
        self.num_classes_ = given.num_classes
        if self.by_class:
            groups = [(f" of class {k}", scores[given.labels == k]) for k in range(given.num_classes)]
            self.threshold_ = torch.tensor([self._quantile(part, of, where) for of, part in groups], dtype=torch.float64)
        else:
            self.threshold_ = self._quantile(scores, "", where)
        return self

    def predict(self, probs: ArrayLike | Predictions) -> Tensor | npt.NDArray[np.bool_]:
        """Return which classes are in the set of each example ``[N, C]``; a tensor for a tensor, else a numpy array."""
        check_is_fitted(self)
        record = as_record(probs, where="PredictionSets.predict")
        if record.num_classes != self.num_classes_:
            got = f"[N, C] with C = {self.num_classes_} as in the fit, got C = {record.num_classes}"
            raise ValueError(f"PredictionSets.predict: `probs` must be {got}.")
        return like(self._scores(record.probs, randomized=self.randomized) <= self.threshold_, probs)

    def _scores(self, probs: Tensor, *, randomized: bool) -> Tensor:
        """The score ``[N, C]`` of every class."""
        probs = probs.double()
        if self.method == "lac":
            return 1 - probs
        ranked, order = probs.sort(dim=1, descending=True, stable=True)
        scores = ranked.cumsum(1) - ranked
        if randomized:
            steps = 1 + torch.arange(probs.shape[1], dtype=torch.float64).sqrt()
            scores += (_SPREAD * (probs * steps).sum(1, keepdim=True)) % 1 * ranked
        if self.method == "raps":
            scores += self.penalty * (torch.arange(1, probs.shape[1] + 1) - self.free_ranks).clamp_min(0)
        return torch.empty_like(scores).scatter_(1, order, scores)

    def _quantile(self, scores: Tensor, of: str, where: str) -> float:
        # A product such as 0.9 * 10 may round to just above a whole number.
        rank = math.ceil((len(scores) + 1) * self.coverage - 1e-9)
        if rank > len(scores):
            least = math.ceil(self.coverage / (1 - self.coverage) - 1e-9)
            raise FitError(
                f"{where}: `labels` must hold at least {least:,} examples{of} for a coverage of {self.coverage:.3g}, "
                f"got {len(scores):,}."
            )
        return float(scores.kthvalue(rank).values)
