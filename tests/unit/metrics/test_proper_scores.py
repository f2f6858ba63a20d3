from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from calibrant.core.records import Predictions
from calibrant.metrics.scores import brier_score, error_rate, negative_log_likelihood, signed_calibration_gap
from helpers import golden, hard_gaps, mixed_gaps

Metric = Callable[..., torch.Tensor]
METRICS: list[Metric] = [negative_log_likelihood, brier_score, error_rate, signed_calibration_gap]

PROBS = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], dtype=torch.float64)
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (negative_log_likelihood, 1.209579),
        (brier_score, 0.601093),
        (error_rate, 1 / 3),
        (signed_calibration_gap, 0.678025 - 2 / 3),
    ],
)
def test_score_golden_input_gives_golden_value(metric, value):
    logits, labels = golden()
    assert metric(logits.softmax(1), labels).item() == pytest.approx(value, abs=6e-7)
    assert metric(Predictions(logits=logits, labels=labels)).item() == pytest.approx(value, abs=6e-7)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (negative_log_likelihood, -(math.log(0.7) + math.log(0.3)) / 2),
        (brier_score, (0.09 + 0.04 + 0.01 + 0.01 + 0.49 + 0.36) / 2),
        (error_rate, 0.5),
        (signed_calibration_gap, (0.7 + 0.6 - 1) / 2),
    ],
)
def test_score_two_examples_match_hand_computation(metric, value):
    assert metric(PROBS, LABELS).item() == pytest.approx(value, rel=1e-12)


def test_nll_saturated_logits_stay_exact():
    predictions = Predictions(logits=torch.tensor([[0.0, 2000.0], [-3000.0, 0.0]]), labels=[0, 1])
    assert negative_log_likelihood(predictions).item() == pytest.approx(1000.0, rel=1e-12)
    assert negative_log_likelihood(Predictions(logits=torch.tensor([[0.0, 40.0]]), labels=[1])).item() == pytest.approx(
        math.exp(-40), rel=1e-12
    )


def test_nll_label_of_probability_zero_is_infinite():
    assert negative_log_likelihood([[1.0, 0.0]], [1]).item() == math.inf
    assert negative_log_likelihood(Predictions(logits=[[0.0, -math.inf]], labels=[1])).item() == math.inf


def test_nll_impossible_label_of_weight_zero_does_not_count():
    value = negative_log_likelihood([[1.0, 0.0], [0.5, 0.5]], [1, 0], weights=[0.0, 2.0])
    assert value.item() == pytest.approx(math.log(2), rel=1e-12)


def test_nll_sure_and_right_is_positive_zero():
    assert math.copysign(1, negative_log_likelihood([[1.0, 0.0]], [0]).item()) == 1


def test_brier_worst_prediction_is_two():
    assert brier_score([[1.0, 0.0]], [1]).item() == 2


def test_error_rate_logits_decide_where_probabilities_tie():
    logits = torch.tensor([[1e20, 1.1e20, 0.0]], dtype=torch.float64)
    assert error_rate(Predictions(logits=logits, labels=[1])).item() == 0
    # 800 below the top is probability zero for both; the larger logit is still the prediction.
    near = torch.tensor([[0.0, 1e-17]], dtype=torch.float64)
    assert error_rate(Predictions(logits=near, labels=[1])).item() == 0


def test_error_rate_first_of_tied_classes_is_the_prediction():
    assert error_rate([[0.5, 0.5], [0.5, 0.5]], [0, 1]).item() == 0.5


def test_signed_gap_sign_says_the_direction():
    assert signed_calibration_gap([[0.9, 0.1]], [1]).item() == pytest.approx(0.9)
    assert signed_calibration_gap([[0.9, 0.1]], [0]).item() == pytest.approx(-0.1)


@pytest.mark.parametrize("metric", METRICS)
def test_score_whole_weights_equal_repeated_examples(metric):
    probs, labels = mixed_gaps(200)
    count = torch.arange(200) % 4
    repeated = metric(probs.repeat_interleave(count, 0), labels.repeat_interleave(count))
    assert metric(probs, labels, weights=count).item() == pytest.approx(repeated.item(), rel=1e-12, abs=1e-15)
    assert metric(probs, labels, weights=count * 0.25).item() == pytest.approx(repeated.item(), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("metric", METRICS)
def test_score_weights_of_predictions_are_used_unless_others_are_given(metric):
    probs, labels = mixed_gaps(50)
    first, second = torch.arange(50).double(), torch.arange(50).flip(0).double()
    predictions = Predictions(probs=probs, labels=labels, weights=first)
    assert metric(predictions).item() == pytest.approx(metric(probs, labels, weights=first).item(), rel=1e-12)
    assert metric(predictions, weights=second).item() == pytest.approx(metric(probs, labels, weights=second).item(), rel=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_score_order_ignored_and_dense_examples_behave(metric):
    probs, labels = hard_gaps(240)
    labels = torch.where(probs.gather(1, labels.unsqueeze(1)).squeeze(1) == 0, probs.argmax(1), labels)
    order = torch.randperm(240, generator=torch.Generator().manual_seed(1))
    value = metric(probs, labels).item()
    assert metric(probs[order], labels[order]).item() == pytest.approx(value, rel=1e-12)
    assert metric(probs.view(4, 60, -1).movedim(2, 1), labels.view(4, 60)).item() == pytest.approx(value, rel=1e-12)
    marked = torch.where(torch.arange(240) % 5 == 0, -100, labels)
    kept = marked != -100
    assert metric(probs, marked, ignore_index=-100).item() == pytest.approx(metric(probs[kept], labels[kept]).item(), rel=1e-12)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 5e-3), (torch.bfloat16, 4e-2)])
def test_score_low_precision_is_accumulated_in_float64(metric, dtype, tolerance):
    probs, labels = mixed_gaps(4000)
    value = metric(probs.to(dtype), labels)
    assert (value.dtype, value.shape, value.device.type) == (torch.float64, torch.Size([]), "cpu")
    given = probs.to(dtype).double()
    assert value.item() == pytest.approx(metric(given / given.sum(1, keepdim=True), labels).item(), abs=tolerance)


def test_score_rows_in_many_chunks_equal_one(monkeypatch):
    probs, labels = mixed_gaps(101)
    predictions = Predictions(logits=probs.log(), labels=labels)
    whole = [metric(p).item() for metric in METRICS for p in (predictions, Predictions(probs=probs, labels=labels))]
    monkeypatch.setattr("calibrant.metrics.scores._CHUNK_ENTRIES", 70)
    parts = [metric(p).item() for metric in METRICS for p in (predictions, Predictions(probs=probs, labels=labels))]
    assert parts == pytest.approx(whole, rel=1e-13)


@pytest.mark.parametrize("metric", METRICS)
def test_score_wrong_calls_raise(metric):
    predictions = Predictions(probs=PROBS, labels=LABELS)
    with pytest.raises(ValueError, match=r"`labels` must be given unless the first argument is a `Predictions`"):
        metric(PROBS)
    with pytest.raises(ValueError, match=r"`labels` must be left out where a `Predictions` is given"):
        metric(predictions, LABELS)
    with pytest.raises(ValueError, match=r"`ignore_index` must be left out where a `Predictions` is given"):
        metric(predictions, ignore_index=0)
    with pytest.raises(ValueError, match=r"`weights` must be \[2\] as the labels, got \[3\]"):
        metric(predictions, weights=[1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match=r"They look like logits"):
        metric(PROBS * 9, LABELS)
