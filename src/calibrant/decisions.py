"""From calibrated probabilities to action: when to answer, which classes to keep, what costs least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from calibrant.core.checks import ArrayLike, FitError, check_choice, check_positive, check_share, to_tensor
from calibrant.core.records import Predictions, Promise, as_record, refuse_test_split

__all__ = ["PredictionSets", "Promise", "SelectiveClassifier", "cheapest_action", "cost_threshold", "promise_table"]

# Share of the examples that the highest threshold answers. Of fewer, one wrong answer would end the search.
_FIRST_SHARE = 0.05
_USUAL_LIMITS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
# Spreads rows that differ in their seventh digit over (0, 1).
_SPREAD = 1e7


@dataclass(kw_only=True, eq=False, repr=False)
class SelectiveClassifier(BaseEstimator):  # type: ignore[misc]
    r"""Answers when its confidence is above a threshold that keeps the error below a limit, and abstains otherwise.

    The guarantee holds if the examples to come are drawn like those of the fit; the model may be calibrated or not.

    With ``among="answered"`` it is about the error among the examples that are answered: with probability
    :math:`1 - \delta` over the fit data, :math:`P(\text{wrong} \mid \text{answered}) \le` ``max_error``. Thresholds are tested
    one after another from the highest to the lowest, so that each answers one example more. Of :math:`n` answers :math:`k` are
    wrong; a test succeeds if :math:`P(\mathrm{Bin}(n, \text{max\_error}) \le k) \le \delta`, which is to say that the exact
    (Clopper-Pearson) upper bound of the error is below ``max_error``. The first failure ends the search, and the threshold
    before it is taken. Testing in a fixed order needs no correction for the number of tests: only the first threshold whose
    true error is too large can do harm, and its test is wrong with probability :math:`\delta` at most. This holds however the
    true error rises and falls with the threshold; ties of confidence are broken at random. The first test has a twentieth of
    the examples, or as many as prove something if no answer is wrong, whichever is more.

    With ``among="all"`` it is about wrong answers as a share of all examples, answered or not, on average over fit data:
    :math:`P(\text{answered and wrong}) \le` ``max_error``. This is conformal risk control. It answers more, and needs few
    examples.

    Args:
        max_error: Largest error that is allowed.
        delta: Probability that the guarantee fails, by bad luck in the fit data; not used with ``among="all"``.
        among: Whether the error is a share of the answers or of all examples.

    Attributes:
        threshold_: It answers if the confidence is larger than this.
        coverage_: Share of the fit examples that it answers.
        error_: Share of these answers that are wrong.

    Example:
        >>> confidence = np.linspace(0.5, 1, 4000)
        >>> labels = (np.arange(4000) * 0.618 % 1 > confidence).astype(int)  # calibrated: right as often as it says
        >>> chooser = SelectiveClassifier(max_error=0.1).fit(np.stack([confidence, 1 - confidence], 1), labels)
        >>> round(chooser.threshold_, 2), round(chooser.coverage_, 2), round(chooser.error_, 2)
        (0.83, 0.35, 0.09)
        >>> chooser.predict([[0.8, 0.2], [0.05, 0.95]]).tolist()
        [-1, 1]

    Reference:
        Geifman and El-Yaniv, NeurIPS 2017 (selection with guaranteed risk); Bates, Angelopoulos, Lei, Malik and Jordan, Journal
        of the ACM 68, 2021 (upper bounds of a risk); Angelopoulos, Bates, Candès, Jordan and Lei, "Learn then test", 2021
        (tests in a fixed order); Angelopoulos, Bates, Fisch, Lei and Schuster, "Conformal risk control", ICLR 2024.
    """

    max_error: float = 0.05
    delta: float = 0.05
    among: Literal["answered", "all"] = "answered"

    def fit(self, probs: ArrayLike | Predictions, labels: ArrayLike | None = None) -> Self:
        """Learn the threshold from examples that the model was not trained on.

        Args:
            probs: Probabilities ``[N, C]``, of a binary problem also those of class 1 ``[N]``; or a `Predictions`.
            labels: Class indices ``[N]``, with probabilities only.

        Returns:
            This object. Raises ``FitError`` if the examples are too few for any guarantee, or no threshold has one.
        """
        where = "SelectiveClassifier.fit"
        check_share(self.max_error, where=where, name="max_error", zero=False)
        check_share(self.delta, where=where, name="delta", zero=False)
        check_choice(self.among, ("answered", "all"), where=where, name="among")
        given = fit_examples(probs, labels, where=where)
        confidence, wrong = given.confidence, ~given.correct
        find = self._limit_share_of_answers if self.among == "answered" else self._limit_share_of_all
        self.threshold_ = find(confidence, wrong, where)
        answered = confidence > self.threshold_
        self.coverage_ = float(answered.double().mean())
        self.error_ = float(wrong[answered].double().mean()) if bool(answered.any()) else 0.0
        return self

    def predict(self, probs: ArrayLike | Predictions) -> Tensor | npt.NDArray[np.int64]:
        """Return the most probable class ``[N]``, or -1 where it abstains; a tensor for a tensor, else a numpy array."""
        check_is_fitted(self)
        record = without_labels(probs, where="SelectiveClassifier.predict")
        chosen = record.predicted.where(record.confidence > self.threshold_, -1)
        return like(chosen, probs)

    def _limit_share_of_answers(self, confidence: Tensor, wrong: Tensor, where: str) -> float:
        from scipy.special import bdtr

        size = len(confidence)
        least = math.ceil(math.log(self.delta) / math.log1p(-self.max_error))
        if size < least:
            raise FitError(f"{where}: `labels` must hold at least {least:,} examples for this `max_error`, got {size:,}.")
        shuffled = torch.randperm(size, generator=torch.Generator().manual_seed(0))
        order = shuffled[confidence[shuffled].argsort(descending=True, stable=True)]
        ranked, mistakes = confidence[order], wrong[order].cumsum(0).numpy()
        answered = np.arange(max(least, math.ceil(_FIRST_SHARE * size)), size + 1)
        failed = bdtr(mistakes[answered - 1], answered, self.max_error) > self.delta
        passed = answered[: failed.argmax() if failed.any() else len(answered)]
        if len(passed) and passed[-1] == size:
            return 0.0
        # Examples of equal confidence are answered together, or not at all.
        passed = passed[ranked.numpy()[passed - 1] > ranked.numpy()[passed]]
        if not len(passed):
            raise FitError(f"{where}: `max_error` must be larger, got {self.max_error:.3g}: no threshold is sure to keep it.")
        return float(ranked[passed[-1]])

    def _limit_share_of_all(self, confidence: Tensor, wrong: Tensor, where: str) -> float:
        # Wrong answers that are allowed, less one for the example to come.
        allowed = math.floor(self.max_error * (len(wrong) + 1) + 1e-9) - 1
        if allowed < 0:
            least = math.ceil(1 / self.max_error - 1 - 1e-9)
            raise FitError(f"{where}: `labels` must hold at least {least:,} examples, got {len(wrong):,}.")
        mistakes = confidence[wrong].sort(descending=True).values
        return float(mistakes[allowed]) if len(mistakes) > allowed else 0.0


def promise_table(
    fit: Predictions, test: Predictions, *, max_errors: Sequence[float] | None = None, delta: float = 0.05
) -> tuple[Promise, ...]:
    """Learn a `SelectiveClassifier` on ``fit`` for each of several errors, and try it on ``test``.

    Args:
        fit: Held-out examples to learn the thresholds from.
        test: Other examples.
        max_errors: Errors to guarantee; by default round numbers, from the first that needs abstention to the first that
            cannot be had.
        delta: Probability that a guarantee fails, for each of them.

    Returns:
        A row for each error, the largest first.
    """
    rows: list[Promise] = []
    for limit in sorted(max_errors or _USUAL_LIMITS, reverse=True):
        try:
            threshold = SelectiveClassifier(max_error=limit, delta=delta).fit(fit).threshold_
        except FitError as failure:
            rows.append(Promise(limit, reason=str(failure).partition(": ")[2]))
        else:
            answered = test.confidence > threshold
            n = int(answered.sum())
            error = 1 - float(test.correct[answered].double().mean()) if n else math.nan
            rows.append(Promise(limit, threshold, n / len(test), error, n))
    if max_errors is None:
        # Of those that need no abstention the least says all; of those that cannot be had the largest.
        full = sum(row.threshold == 0.0 for row in rows)
        had = sum(row.threshold is not None for row in rows)
        rows = rows[max(full - 1, 0) : had + 1]
    return tuple(rows)


@dataclass(kw_only=True, eq=False, repr=False)
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

    coverage: float = 0.9
    method: Literal["lac", "aps", "raps"] = "lac"
    randomized: bool = False
    by_class: bool = False
    penalty: float = 0.01
    free_ranks: int = 5

    def fit(self, probs: ArrayLike | Predictions, labels: ArrayLike | None = None) -> Self:
        """Learn the threshold from examples that the model was not trained on.

        Args:
            probs: Probabilities ``[N, C]``, of a binary problem also those of class 1 ``[N]``; or a `Predictions`.
            labels: Class indices ``[N]``, with probabilities only.

        Returns:
            This object. Raises ``FitError`` if the examples (of a class) are too few.
        """
        where = "PredictionSets.fit"
        check_share(self.coverage, where=where, name="coverage", zero=False)
        check_choice(self.method, ("lac", "aps", "raps"), where=where, name="method")
        given = fit_examples(probs, labels, where=where)
        scores = self._scores(given.probs, randomized=True).gather(1, given.labels[:, None]).squeeze(1)
        self.num_classes_ = given.num_classes
        if self.by_class:
            groups = [(f" of class {k}", scores[given.labels == k]) for k in range(given.num_classes)]
            self.threshold_: float | Tensor = torch.tensor(
                [self._quantile(part, of, where) for of, part in groups], dtype=torch.float64
            )
        else:
            self.threshold_ = self._quantile(scores, "", where)
        return self

    def predict(self, probs: ArrayLike | Predictions) -> Tensor | npt.NDArray[np.bool_]:
        """Return which classes are in the set of each example ``[N, C]``; a tensor for a tensor, else a numpy array."""
        check_is_fitted(self)
        record = without_labels(probs, where="PredictionSets.predict")
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


def cost_threshold(*, false_alarm: float, miss: float) -> float:
    r"""Return the probability above which it pays to act, of a binary problem.

    To act at probability p costs :math:`(1 - p) \cdot` ``false_alarm`` on average, and not to act costs :math:`p \cdot`
    ``miss``; so act where

    .. math:: p > \frac{\text{false\_alarm}}{\text{false\_alarm} + \text{miss}}

    Args:
        false_alarm: What it costs to act without need.
        miss: What it costs not to act where there was need.

    Returns:
        The threshold in (0, 1). It costs least if the probabilities are calibrated.

    Example:
        >>> cost_threshold(false_alarm=1, miss=9)
        0.1

    Reference:
        Elkan, IJCAI 2001.
    """
    check_positive(false_alarm, where="cost_threshold", name="false_alarm")
    check_positive(miss, where="cost_threshold", name="miss")
    return false_alarm / (false_alarm + miss)


def cheapest_action(probs: ArrayLike | Predictions, costs: ArrayLike) -> Tensor | npt.NDArray[np.int64]:
    r"""Return the action of least expected cost for each example.

    .. math:: a_i = \arg\min_a \sum_k p_{ik} \, \text{costs}_{ka}

    Args:
        probs: Calibrated probabilities ``[N, C]``, of a binary problem also those of class 1 ``[N]``; or a `Predictions`.
        costs: Cost ``[C, A]`` of each action where the class is k. An action may be a class, or "ask a person".

    Returns:
        Actions ``[N]``; a tensor for a tensor, else a numpy array.

    Example:
        >>> costs = [[0, 10, 2], [50, 0, 2]]  # say 0, say 1, ask
        >>> cheapest_action([[0.99, 0.01], [0.5, 0.5], [0.1, 0.9]], costs).tolist()
        [0, 2, 1]

    Reference:
        Elkan, IJCAI 2001; Chow, IEEE Transactions on Information Theory 16, 1970 (with the choice to reject).
    """
    where = "cheapest_action"
    record, table = without_labels(probs, where=where), to_tensor(costs, where=where, name="costs").double()
    if table.ndim != 2 or len(table) != record.num_classes or not bool(table.isfinite().all()):
        raise ValueError(f"{where}: `costs` must be finite [C, A] with C = {record.num_classes}, got {list(table.shape)}.")
    return like((record.probs.double() @ table).argmin(1), probs)


def without_labels(probs: ArrayLike | Predictions, *, where: str) -> Predictions:
    """Return checked examples whose labels are unknown."""
    return probs if isinstance(probs, Predictions) else as_record(probs, np.zeros(len(probs), np.int64), where=where)  # type: ignore[arg-type]


def fit_examples(probs: ArrayLike | Predictions, labels: ArrayLike | None, *, where: str) -> Predictions:
    """Return checked examples to learn from; raise for test data and for weights, with which nothing can be guaranteed."""
    record = as_record(probs, labels, where=where)
    refuse_test_split(record, where=where)
    if record.weights is not None:
        raise ValueError(f"{where}: `probs` must have no weights: the guarantee is for examples that count alike.")
    return record


def like(found: Tensor, given: object) -> Tensor | npt.NDArray[Any]:
    """Return a tensor where one was given, or a `Predictions`; else a numpy array."""
    return found if isinstance(given, Tensor | Predictions) else found.numpy()
