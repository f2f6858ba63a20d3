from __future__ import annotations

import pytest
import torch

from calibrant import Predictions
from calibrant.core.summary import summarize
from calibrant.metrics.adaptive import adaptive_calibration_error, debiased_calibration_error
from calibrant.metrics.binned import expected_calibration_error, maximum_calibration_error, reliability_bins
from calibrant.metrics.classwise import classwise_calibration_error
from calibrant.metrics.kernel import maximum_mean_calibration_error, smooth_expected_calibration_error
from calibrant.metrics.ranking import area_under_risk_coverage
from calibrant.metrics.scores import brier_score, error_rate, negative_log_likelihood, signed_calibration_gap
from calibrant.metrics.smooth import smooth_calibration_error
from calibrant.metrics.values import KEYS, bins_of_summary, score_values, values_of_summary
from helpers import golden, mixed_gaps


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("weighted", [False, True])
def test_score_values_are_those_of_the_metric_functions(dtype: torch.dtype, weighted: bool) -> None:
    probs, labels = mixed_gaps(700, 6, dtype=dtype)
    weights = (torch.arange(700) % 4).double() if weighted else None
    values = score_values(Predictions(probs=probs, labels=labels, weights=weights), n_bins=10)
    expected = {
        "error": error_rate(probs, labels, weights=weights),
        "nll": negative_log_likelihood(probs, labels, weights=weights),
        "brier": brier_score(probs, labels, weights=weights),
        "ece": expected_calibration_error(probs, labels, n_bins=10, weights=weights),
        "mce": maximum_calibration_error(probs, labels, n_bins=10, weights=weights),
        "ace": adaptive_calibration_error(probs, labels, n_bins=10, weights=weights),
        "classwise_ece": classwise_calibration_error(probs, labels, n_bins=10, weights=weights),
        "sece": smooth_expected_calibration_error(probs, labels, bandwidth=0.05, weights=weights),
        "smece": smooth_calibration_error(probs, labels, weights=weights),
        "mmce": maximum_mean_calibration_error(probs, labels, weights=weights),
        "ece_debiased": debiased_calibration_error(probs, labels, n_bins=10, weights=weights),
        "signed_gap": signed_calibration_gap(probs, labels, weights=weights),
        "aurc": area_under_risk_coverage(probs, labels, weights=weights),
    }
    assert tuple(values) == KEYS == tuple(expected)
    for key, value in expected.items():
        assert values[key] == pytest.approx(float(value), rel=1e-9, abs=1e-12), key


def test_score_values_golden_input_gives_golden_values() -> None:
    logits, labels = golden()
    values = score_values(Predictions(logits=logits, labels=labels), n_bins=15)
    # Printed from float32 runs of the authors' own functions.
    known = {"error": 1 / 3, "nll": 1.209579, "brier": 0.601093, "ece": 0.268477, "mce": 0.559181, "ace": 0.334314}
    known |= {"classwise_ece": 0.174134, "sece": 0.272692, "smece": 0.197073, "mmce": 0.140817}
    for key, value in known.items():
        assert values[key] == pytest.approx(value, rel=5e-6), key


@pytest.mark.parametrize("n_bins", [15, 7])
def test_values_of_summary_are_near_those_of_the_predictions(n_bins: int) -> None:
    predictions = Predictions(**dict(zip(("probs", "labels"), mixed_gaps(20_000), strict=True)))
    exact = score_values(predictions, n_bins=n_bins)
    found = values_of_summary(summarize(predictions, n_bins=n_bins))
    near = {"ace", "sece", "smece", "mmce", "ece_debiased", "aurc"} | ({"ece", "mce"} if 3000 % n_bins else set())
    for key, value in exact.items():
        assert found[key] == pytest.approx(value, abs=1e-3 if key in near else 1e-12), key


@pytest.mark.parametrize("n_bins", [15, 7])
def test_bins_of_summary_are_the_reliability_bins(n_bins: int) -> None:
    probs, labels = mixed_gaps(2000)
    bins = bins_of_summary(summarize(Predictions(probs=probs, labels=labels), n_bins=n_bins))
    expected = reliability_bins(probs, labels, n_bins=n_bins)
    # A number of bins that does not divide 3,000 cuts through cells, of about one example each.
    torch.testing.assert_close(bins.count, expected.count, rtol=0, atol=1e-9 if 3000 % n_bins == 0 else 4)
    torch.testing.assert_close(bins.confidence, expected.confidence, rtol=0, atol=1e-9 if 3000 % n_bins == 0 else 1e-3)


def test_bins_of_summary_count_rows_without_weight_at_the_middle_of_their_cell() -> None:
    # 4/7 lies in the first half of the cell from 1714/3000 on, and 0.5716 beyond it.
    probs = [[0.5716, 0.4284], [0.9, 0.1]]
    summary = summarize(Predictions(probs=probs, labels=[0, 0], weights=[0.0, 1.0]), n_bins=7)
    bins = bins_of_summary(summary)
    assert bins.rows is not None
    assert bins.rows.tolist() == [0, 0, 0, 0, 1, 0, 1]
