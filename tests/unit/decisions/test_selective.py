"""Answering only when sure keeps the error it promises, on data whose true error is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.core.checks import FitError
from calibrant.decisions import SelectiveClassifier, cheapest_action, cost_threshold, promise_table

GRID = np.linspace(0.5, 1, 5001)
DRAWS = 300


def honest(c: np.ndarray) -> np.ndarray:
    return c


def too_sure(c: np.ndarray) -> np.ndarray:
    """Right 60 % of the time where it is surest: a higher threshold is no cure."""
    return np.where(c > 0.95, 0.6, np.where(c > 0.9, 1.0, 0.8))


def banded(c: np.ndarray) -> np.ndarray:
    """Right always and 70 % of the time in turn: the true error crosses the limit again and again."""
    return np.where(np.floor(c * 200) % 2 == 0, 1.0, 0.7)


def coarse(c: np.ndarray) -> np.ndarray:
    return np.round(c, 1)


def true_errors(right: Callable[[np.ndarray], np.ndarray], threshold: float) -> tuple[float, float]:
    """The true share of wrong answers, of all answers and of all examples, where confidence is uniform on [0.5, 1]."""
    confidence = coarse(GRID) if right is coarse else GRID
    answered = confidence > threshold
    wrong = (1 - right(confidence)) * answered
    return wrong.sum() / max(answered.sum(), 1), wrong.mean()


def draw(rng: np.random.Generator, n: int, right: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    confidence = rng.uniform(0.5, 1, n)
    confidence = coarse(confidence) if right is coarse else confidence
    return confidence, (rng.random(n) < right(confidence)).astype(int)


@pytest.mark.parametrize(
    ("right", "limit", "most"),
    [
        (honest, 0.1, 0.4),
        (honest, 0.2, 0.8),
        (coarse, 0.1, 0.1),
        (too_sure, 0.18, 0.0),
        (too_sure, 0.05, 0.0),
        (banded, 0.15, 0.0),
    ],
)
def test_error_among_answers_is_kept_with_the_promised_probability(
    right: Callable[[np.ndarray], np.ndarray], limit: float, most: float
) -> None:
    rng = np.random.default_rng(0)
    broken, coverage = 0, []
    for _ in range(DRAWS):
        chooser = SelectiveClassifier(max_error=limit, delta=0.1)
        try:
            chooser.fit(*draw(rng, 1000, right))
        except FitError:
            continue
        # The grid has a point at the limit, which rounding may put on either side.
        broken += true_errors(right, chooser.threshold_)[0] > limit + 1e-3
        coverage.append(chooser.coverage_)
    # Three standard deviations of 300 draws above a tenth.
    assert broken <= DRAWS * 0.1 + 3 * math.sqrt(DRAWS * 0.09)
    # And it is worth having: it answers more than half of what could be.
    assert sum(coverage) / DRAWS >= 0.6 * most


def test_wrong_answers_among_all_examples_are_few_enough_on_average() -> None:
    rng = np.random.default_rng(1)
    found = [
        true_errors(honest, SelectiveClassifier(max_error=0.05, among="all").fit(*draw(rng, 200, honest)).threshold_)[1]
        for _ in range(DRAWS)
    ]
    error = np.std(found) / math.sqrt(DRAWS)
    assert 0.05 - 2 / 201 - 3 * error < np.mean(found) < 0.05 + 3 * error


def test_limit_above_the_error_answers_everything_and_the_attributes_say_so() -> None:
    confidence = np.full(500, 0.7)
    wrong = np.arange(500) % 25 == 3
    chooser = SelectiveClassifier(max_error=0.1).fit(confidence, (~wrong).astype(int))
    assert (chooser.threshold_, chooser.coverage_, chooser.error_) == (0.0, 1.0, 0.04)
    counted = SelectiveClassifier(max_error=0.03, among="all").fit(confidence, (~wrong).astype(int))
    assert (counted.coverage_, counted.error_) == (0.0, 0.0)


def test_predict_abstains_below_the_threshold_in_the_kind_that_was_given() -> None:
    chooser = SelectiveClassifier(max_error=0.2).fit(*draw(np.random.default_rng(0), 2000, honest))
    sure, unsure = chooser.threshold_ + 0.01, chooser.threshold_ - 0.01
    probs = [[sure, 1 - sure], [1 - unsure, unsure], [1 - sure, sure]]
    found = chooser.predict(probs)
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [0, -1, 1]
    tensor = chooser.predict(torch.tensor(probs))
    assert isinstance(tensor, torch.Tensor)
    assert tensor.tolist() == [0, -1, 1]
    assert chooser.predict(np.array([sure, unsure])).tolist() == [1, -1]


def test_fit_says_how_many_examples_a_guarantee_needs() -> None:
    sure = np.full(200, 0.99)
    with pytest.raises(FitError, match="`labels` must hold at least 299 examples.*got 200"):
        SelectiveClassifier(max_error=0.01).fit(sure, np.ones(200, int))
    assert SelectiveClassifier(max_error=0.01).fit(np.linspace(0.9, 1, 299), np.ones(299, int)).coverage_ == 1
    with pytest.raises(FitError, match="`labels` must hold at least 99 examples, got 98"):
        SelectiveClassifier(max_error=0.01, among="all").fit(sure[:98], np.ones(98, int))
    with pytest.raises(FitError, match="`max_error` must be larger"):
        SelectiveClassifier(max_error=0.1).fit(sure, np.arange(200) % 2)


def test_fit_refuses_what_breaks_the_guarantee() -> None:
    probs, labels = np.tile([0.8, 0.2], (100, 1)), np.zeros(100, int)
    for given, fault in (
        (Predictions(probs=probs, labels=labels, split="test"), "test data"),
        (Predictions(probs=probs, labels=labels, weights=np.linspace(1, 2, 100)), "no weights"),
    ):
        with pytest.raises(ValueError, match=fault):
            SelectiveClassifier().fit(given)
    for name, value in (("max_error", 0.0), ("delta", 1.0), ("among", "some")):
        with pytest.raises(ValueError, match=f"`{name}`"):
            SelectiveClassifier(**{name: value}).fit(probs, labels)


def test_promise_table_tries_on_test_what_it_learned_on_fit() -> None:
    rng = np.random.default_rng(3)
    fit, test = (Predictions.from_binary(probs=c, labels=y) for c, y in (draw(rng, 3000, honest) for _ in range(2)))
    rows = promise_table(fit, test)
    assert [row.max_error for row in rows] == sorted((row.max_error for row in rows), reverse=True)
    # A quarter is wrong in all, so that all of the usual errors need abstention; the last cannot be had.
    assert rows[0].max_error == 0.2
    assert rows[-1].threshold is None
    for row in rows[:-1]:
        assert row.threshold is not None
        answered = test.confidence > row.threshold
        assert row.answered == int(answered.sum())
        assert row.error == pytest.approx(float((~test.correct)[answered].double().mean()))
        assert row.error < row.max_error
    assert [row.max_error for row in promise_table(fit, test, max_errors=[0.15, 0.3])] == [0.3, 0.15]


def test_actions_cost_least() -> None:
    threshold = cost_threshold(false_alarm=2, miss=6)
    assert threshold == 0.25
    p = np.array([0.2, 0.24, 0.26, 0.9])
    # Actions: nothing, alarm. The matrix says the same as the threshold.
    assert cheapest_action(p, [[0, 2], [6, 0]]).tolist() == (p > threshold).astype(int).tolist()
    for costs in ([[0, 1], [1, 0], [1, 1]], [0, 1], [[0, math.nan], [1, 0]]):
        with pytest.raises(ValueError, match="`costs`"):
            cheapest_action(p, costs)
    with pytest.raises(ValueError, match="`miss`"):
        cost_threshold(false_alarm=1, miss=0)
