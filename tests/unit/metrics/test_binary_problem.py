"""Of two classes, measuring speaks of the probability of the positive class first."""

import json

import numpy as np
import pytest
import torch

from calibrant import Predictions, measure, repair
from calibrant.core.binning import summarize
from calibrant.core.records import Scores
from calibrant.metrics import binary_expected_calibration_error, binary_signed_calibration_gap
from calibrant.metrics.measure import measure_summary
from calibrant.metrics.paired import paired_test
from calibrant.metrics.verdict import direction, tell_effect, verdict


def fraud(times: float, n: int = 6000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a rare class, which occurs one time in ``times`` as often as they say."""
    rng = np.random.default_rng(seed)
    probs = 1 / (1 + np.exp(3.0 - 1.5 * rng.standard_normal(n)))
    return probs, (rng.random(n) < probs / times).astype(int)


def test_too_much_fraud_is_called_so_though_the_top_label_is_under_confident() -> None:
    probs, labels = fraud(3)
    scores = measure(Predictions.from_binary(probs=probs, labels=labels, class_names=["fine", "fraud"]))
    assert scores["signed_gap"].high < 0
    assert direction(scores) == "too often"
    said = verdict(scores)
    assert "fraud too often" in said
    assert f"{100 * probs.mean():.2f}%" in said
    assert "times as much" in said
    assert "confident" not in said
    assert scores["binary_gap"].value == pytest.approx(probs.mean() - labels.mean(), abs=1e-12)


def test_the_place_named_is_where_the_error_is() -> None:
    probs = np.repeat([0.1, 0.5, 0.9], 1000)
    rates = np.repeat([0.1, 0.8, 0.9], 1000)
    labels = (np.random.default_rng(0).random(3000) < rates).astype(int)
    scores = measure(probs, labels)
    assert direction(scores) == "too rarely"
    assert "lies between 47 and 53%" in verdict(scores)


def test_the_place_with_most_error_may_go_the_other_way() -> None:
    probs = np.concatenate([np.full(9000, 0.01), np.repeat([0.3, 0.5, 0.7, 0.9], 40)])
    scores = measure(probs, np.arange(9160) < 135)
    assert direction(scores) == "too often"
    assert "error goes the other way, between 0 and 7%: 1.00% predicted, 1.50% observed." in verdict(scores)


@pytest.mark.parametrize("label", [0, 1])
def test_labels_that_are_all_the_same_are_pointed_out(label: int) -> None:
    probs = np.full(300, 0.3)
    assert "Every example has the same label" in verdict(measure(probs, np.full(300, label)))
    assert "same label" not in verdict(measure(probs, np.arange(300) % 100 == label))


def test_text_of_scores_and_repairs_is_of_the_positive_class() -> None:
    probs, labels = fraud(3)
    given = Predictions.from_binary(probs=probs, labels=labels, columns={"half": np.repeat(["a", "b"], 3000)})
    scores = measure(given, slice_by="half", n_resamples=100)
    assert f"would show binary_ece {scores.positive.if_calibrated.mean:.4f}" in str(scores)
    assert f"binary_ece {scores.slices['a']['binary_ece'].value:.4f}" in str(scores).splitlines()[-2]
    assert f"{scores.slices['a']['binary_ece'].value:.2%}</td>" in scores._repr_html_()
    assert "  binary_ece " in str(repair(given.subset(np.arange(9)), given, method="none", n_resamples=100))


def test_effect_of_a_repair_is_told_of_the_binary_ece() -> None:
    labels = np.tile([1, 0], 3000)
    before, after = (Predictions.from_binary(probs=np.repeat([0.5 - d, 0.5 + d], 3000), labels=labels) for d in (0.4, 0.1))
    scores = [measure(given, n_resamples=100) for given in (before, after)]
    said = tell_effect(*scores, paired_test(before, after, n_resamples=100))
    assert said.startswith(f"brings the binary ECE to {100 * scores[1]['binary_ece'].value:.2f}%")


def test_calibrated_rare_probabilities_are_not_accused() -> None:
    found = [measure(*fraud(1, n=2000, seed=seed), n_resamples=200) for seed in range(40)]
    assert sum(direction(scores) != "no clear error" for scores in found) <= 6
    assert sum(scores["binary_ece"].low > 0 for scores in found) <= 6
    assert sum(not scores["binary_gap"].low <= 0 <= scores["binary_gap"].high for scores in found) <= 6


def test_intervals_of_a_rare_class_hold_the_truth() -> None:
    # The true gap is p - p / 2 at every p.
    covered = [
        scores["binary_ece"].low <= probs.mean() / 2 <= scores["binary_ece"].high
        for seed in range(40)
        for probs, labels in [fraud(2, n=2000, seed=seed)]
        for scores in [measure(probs, labels, n_resamples=200)]
    ]
    assert sum(covered) >= 34


def test_values_are_those_of_the_binary_metrics_however_the_examples_are_given() -> None:
    probs, labels = fraud(2, n=500)
    scores = measure(probs, labels, n_resamples=100)
    assert scores["binary_ece"].value == pytest.approx(float(binary_expected_calibration_error(probs, labels)), abs=1e-12)
    both = torch.tensor(np.stack([1 - probs, probs], 1))
    assert float(binary_signed_calibration_gap(both, labels)) == pytest.approx(scores["binary_gap"].value, abs=1e-12)
    again = measure(probs=probs, labels=labels, n_resamples=100)
    odds = measure(logits=np.log(probs / (1 - probs)), labels=labels, n_resamples=100)
    assert again.metrics == scores.metrics
    assert odds["binary_ece"].value == pytest.approx(scores["binary_ece"].value, abs=1e-9)


def test_sums_of_parts_give_what_the_whole_gives() -> None:
    probs, labels = fraud(2, n=900)
    whole = Predictions.from_binary(probs=probs, labels=labels)
    parts = [summarize(whole.subset(np.arange(k, k + 300))) for k in (0, 300, 600)]
    joined, expected = measure_summary(parts[0] + parts[1] + parts[2]), measure(whole)
    assert joined.main_error == expected.main_error
    for key in joined:
        assert joined[key] == pytest.approx(expected[key], abs=1e-12), key


def test_two_calibrated_models_of_unlike_sharpness_are_rarely_told_apart() -> None:
    found = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        coarse = rng.choice([0.02, 0.1, 0.3], 2000)
        probs = coarse * rng.choice([0.2, 1.8], 2000)
        labels = (rng.random(2000) < probs).astype(int)
        sharp, blunt = (Predictions.from_binary(probs=given, labels=labels) for given in (probs, coarse))
        tests = paired_test(sharp, blunt, n_resamples=100)
        found.append([tests[key].p_value < 0.05 for key in ("binary_ece", "binary_ace")])
    assert np.mean(found) <= 0.1


def test_too_much_fraud_is_told_from_a_calibrated_model() -> None:
    probs, labels = fraud(2, n=3000)
    first, second = (Predictions.from_binary(probs=given, labels=labels) for given in (probs, probs / 2))
    tests = paired_test(first, second, n_resamples=100)
    assert tests["binary_ece"].high < 0
    assert tests["binary_gap"].difference == pytest.approx(-probs.mean() / 2)


def test_json_keeps_what_was_found_of_the_positive_class() -> None:
    scores = measure(*fraud(2, n=300), n_resamples=100)
    back = Scores.from_dict(json.loads(scores.to_json()))
    assert back.positive == scores.positive
    assert "too often" in verdict(back)


def test_more_classes_have_no_positive_one() -> None:
    probs = torch.full((30, 3), 1 / 3, dtype=torch.float64)
    scores = measure(probs, torch.arange(30) % 3, n_resamples=100)
    assert scores.positive is None
    assert not any(key.startswith("binary") for key in scores)
