"""What a fit is given: labels and weights of any form, folds, and rows that were seen before."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import nll_loss

from calibrant import Predictions
from calibrant.calibrators import AutoCalibrator, MonteCarloTemperatureScaling, TemperatureScaling, VectorScaling
from calibrant.calibrators.base import FitData, floor_logits, keep_top, log_complements
from calibrant.data.synthetic import synthetic_predictions
from helpers import golden

Kind = type[TemperatureScaling | MonteCarloTemperatureScaling]

GIVEN, _ = synthetic_predictions(300, 3, temperature=2.0, hardness=0.5, split="val")
LOGITS, LABELS = GIVEN.logits.double(), GIVEN.labels
# A few examples weigh a hundred times as much, so that the mean weight differs from part to part.
WEIGHTS = torch.where(torch.arange(300) % 41 == 0, 100.0, 1.0).double()


def fit_data(weights: torch.Tensor | None = None, rows: slice = slice(None)) -> FitData:
    given = None if weights is None else weights[rows]
    return FitData.of(Predictions(logits=LOGITS[rows], labels=LABELS[rows], weights=given))


def test_auto_weighted_folds_are_fits_on_their_rows_alone() -> None:
    auto = AutoCalibrator(methods=("vector",), n_folds=3).fit(LOGITS, LABELS, weights=WEIGHTS)
    scores = torch.empty(300, dtype=torch.float64)
    for kept, held in fit_data(WEIGHTS).folds(3, seed=0):
        fitted = VectorScaling().fit(LOGITS[kept], LABELS[kept], weights=WEIGHTS[kept])
        scores[held] = nll_loss(fitted.predict_log_proba(LOGITS[held]), LABELS[held], reduction="none")
    entry = next(entry for entry in auto.ranking_ if entry.name == "vector")
    assert entry.score == pytest.approx(float(WEIGHTS @ scores / WEIGHTS.sum()), rel=1e-9)


@pytest.mark.parametrize("kind", [TemperatureScaling, MonteCarloTemperatureScaling])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_fit_leaves_out_examples_with_the_label_to_ignore(kind: Kind, weights: torch.Tensor | None) -> None:
    logits = LOGITS.clone()
    # What is left out is not looked at.
    logits[:100] = torch.nan
    labels = torch.where(torch.arange(300) < 100, -100, LABELS)
    alone = kind().fit(LOGITS[100:], LABELS[100:], weights=None if weights is None else weights[100:])
    assert kind().fit(logits, labels, weights=weights, ignore_index=-100).temperature_ == alone.temperature_
    with pytest.raises(ValueError, match="`ignore_index` must not be given with a `Predictions`"):
        kind().fit(GIVEN, ignore_index=0)
    samples = torch.stack([LOGITS, LOGITS + 0.1 * LOGITS.roll(1, 1)])
    if kind is MonteCarloTemperatureScaling:
        found, alone = kind().fit(samples, labels, ignore_index=-100), kind().fit(samples[:, 100:], LABELS[100:])
        assert found.temperature_ == alone.temperature_


def test_logits_of_whole_numbers_are_taken() -> None:
    whole = (2 * LOGITS).round()
    fitted = TemperatureScaling().fit(whole.long(), LABELS)
    assert fitted.temperature_ == TemperatureScaling().fit(whole, LABELS).temperature_
    torch.testing.assert_close(fitted.predict_proba(whole.long() + 1), fitted.predict_proba(whole + 1))


def test_folds_hold_every_example_out_once_and_do_not_share_out_a_class_evenly() -> None:
    labels = torch.arange(1000) % 2
    folds = FitData(torch.zeros(1000, 2), labels, torch.ones(1000).double()).folds(5, seed=0)
    assert sorted(torch.cat([held for _, held in folds]).tolist()) == list(range(1000))
    assert {len(held) for _, held in folds} == {200}
    assert all(sorted([*kept.tolist(), *held.tolist()]) == list(range(1000)) for kept, held in folds)
    ones = [int(labels[held].sum()) for _, held in folds]
    assert max(ones) - min(ones) > 5


def test_folds_fit_on_every_class_that_has_two_examples() -> None:
    # Two examples of a class meet in one of five folds by a chance of a fifth.
    labels = torch.cat([torch.arange(200), torch.arange(200), torch.tensor([200])])
    for kept, _ in FitData(torch.zeros(401, 201), labels, torch.ones(401).double()).folds(5, seed=0):
        assert set(labels[kept].tolist()) >= set(range(200))


def test_floor_logits_replaces_only_minus_infinity_below_the_rest() -> None:
    floored = floor_logits(torch.tensor([[1.0, -math.inf, 0.0], [0.0, -500.0, -math.inf]]))
    torch.testing.assert_close(floored, torch.tensor([[1.0, -102.2789, 0.0], [0.0, -500.0, -500.0]]))


def test_log_complements_of_a_saturated_class_keep_their_digits() -> None:
    log_probs = torch.tensor([[1000.0, 0.0, 0.0]], dtype=torch.float64).log_softmax(1)
    expected = torch.tensor([[math.log(2) - 1000, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(log_complements(log_probs), expected)
    logits, _ = golden()
    torch.testing.assert_close(log_complements(logits.log_softmax(1)).exp(), 1 - logits.softmax(1))


def test_keep_top_changes_only_rows_whose_top_class_would_be_lost() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [2.0, 2.0, 0.0]], dtype=torch.float64)
    log_probs = torch.tensor([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2], [0.4, 0.4, 0.2]], dtype=torch.float64).log()
    found = keep_top(log_probs, logits)
    assert torch.equal(found[[0, 2]], log_probs[[0, 2]])
    # ln p_1 - ln p_0 is 2e-6, and the row sums to one.
    assert float(found[1, 1] - found[1, 0]) == pytest.approx(2e-6, abs=1e-12)
    assert float(found[1].exp().sum()) == pytest.approx(1, abs=1e-12)


def test_keep_top_survives_single_precision_with_many_classes() -> None:
    logits = torch.zeros(1, 50_000, dtype=torch.float64)
    logits[0, -1] = 1e-9
    flat = torch.full_like(logits, 1 / 50_000).log()
    assert int(keep_top(flat, logits).float().argmax()) == 49_999
    assert int(keep_top(flat, logits).exp().float().argmax()) == 49_999
