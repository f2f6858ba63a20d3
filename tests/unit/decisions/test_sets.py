"""Prediction sets hold the label as often as they promise, for honest models and bad ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calibrant.core.checks import FitError
from calibrant.decisions import PredictionSets

C = 6


def world(n: int, *, seed: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Examples whose probabilities are right at scale 1 and too sharp above."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, C, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return (scale * logits).softmax(1), labels


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize(("method", "randomized"), [("lac", False), ("aps", True), ("raps", True), ("aps", False)])
def test_sets_hold_the_label_as_often_as_promised(method: str, randomized: bool, scale: float) -> None:
    n, draws, coverage = 99, 200, 0.9
    probs, labels = world(8_000, seed=1, scale=scale)
    found = []
    for seed in range(draws):
        sets = PredictionSets(coverage=coverage, method=method, randomized=randomized, penalty=0.1, free_ranks=1)  # type: ignore[arg-type]
        held = sets.fit(*world(n, seed=seed + 2, scale=scale)).predict(probs)
        found.append(float(held[torch.arange(len(labels)), labels].double().mean()))
    # The spread of fit data and of the 8,000 examples.
    error = math.sqrt(np.var(found) / draws + 0.09 / len(labels))
    assert coverage - 3 * error < np.mean(found)
    if randomized or method == "lac":
        assert np.mean(found) < coverage + 1 / (n + 1) + 3 * error
    else:
        assert bool(held.any(1).all())


def test_by_class_every_class_is_covered() -> None:
    probs, labels = world(20_000, seed=1, scale=4.0)
    biased = probs * torch.tensor([1.0, 1, 1, 1, 1, 9])
    biased /= biased.sum(1, keepdim=True)
    found = {}
    for by_class in (False, True):
        held = PredictionSets(by_class=by_class).fit(biased[:10_000], labels[:10_000]).predict(biased[10_000:])
        right = held[torch.arange(10_000), labels[10_000:]].double()
        found[by_class] = [float(right[labels[10_000:] == k].mean()) for k in range(C)]
    assert max(found[False]) > 0.93
    assert max(abs(share - 0.9) for share in found[True]) < 0.025
    rows = torch.cat([*(torch.arange(100)[labels[:100] == k] for k in range(5)), (labels == 5).nonzero()[:8, 0]])
    with pytest.raises(FitError, match="at least 9 examples of class 5.*got 8"):
        PredictionSets(by_class=True).fit(probs[rows], labels[rows])


def test_sets_are_those_of_the_papers() -> None:
    probs = np.array([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.05, 0.05, 0.9]])
    sets = PredictionSets(coverage=0.7).fit(np.array([[0.5, 0.3, 0.2]] * 9), [0, 0, 0, 1, 1, 1, 1, 2, 2])
    assert sets.threshold_ == pytest.approx(0.7)
    assert sets.predict(probs).tolist() == [[True, True, False], [False, True, True], [False, False, True]]
    # The threshold is set by hand: what stands before a class in the ranking decides, and penalties from the second rank on.
    for method, threshold, held in (
        ("aps", 0.5, [[True, True, False], [False, True, True], [False, False, True]]),
        ("aps", 0.8, [[True, True, True], [True, True, True], [False, False, True]]),
        ("raps", 0.8, [[True, True, False], [False, True, True], [False, False, True]]),
        ("raps", 1.1, [[True, True, True], [True, True, True], [True, False, True]]),
    ):
        made = PredictionSets(coverage=0.7, method=method, penalty=0.1, free_ranks=1).fit(*world(50, seed=0))  # type: ignore[arg-type]
        made.num_classes_, made.threshold_ = 3, threshold
        assert made.predict(probs).tolist() == held, (method, threshold)


def test_randomized_sets_of_a_row_do_not_depend_on_its_batch() -> None:
    probs, labels = world(500, seed=0)
    sets = PredictionSets(method="aps", randomized=True).fit(probs, labels)
    together = sets.predict(probs)
    assert torch.equal(torch.cat([sets.predict(row[None]) for row in probs]), together)


def test_fit_and_predict_refuse_what_cannot_work() -> None:
    probs, labels = world(50, seed=0)
    with pytest.raises(FitError, match="at least 99 examples for a coverage of 0.99, got 50"):
        PredictionSets(coverage=0.99).fit(probs, labels)
    with pytest.raises(ValueError, match="`method`"):
        PredictionSets(method="best").fit(probs, labels)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="C = 6"):
        PredictionSets().fit(probs, labels).predict([[0.5, 0.5]])
    with pytest.raises(ValueError, match="`labels`"):
        PredictionSets().fit(probs)
