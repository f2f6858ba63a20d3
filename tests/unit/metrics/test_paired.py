from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from calibrant.core.binning import summarize
from calibrant.core.records import Entry, Paired, Predictions
from calibrant.metrics import METRICS
from calibrant.metrics.measure import measure, values_of
from calibrant.metrics.paired import (
    Sample,
    _compare,
    _draw_counts,
    _widening,
    compare_runs,
    holm,
    mean_and_std,
    paired_t,
    paired_test,
)
from calibrant.metrics.table import score_metrics
from helpers import mixed_gaps
from made_up_runs import run_of

KEYS = tuple(key for key, metric in score_metrics().items() if metric.read)


def two_models(n: int, seed: int, *, second_scale: float = 1.0) -> tuple[Predictions, Predictions]:
    """Two models that see the true logits through noise of their own; the second's are then scaled."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    one, two = (logits + 0.5 * torch.randn(n, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    return Predictions(logits=one, labels=labels), Predictions(logits=second_scale * two, labels=labels)


def test_paired_test_of_a_model_with_itself_finds_nothing() -> None:
    probs, labels = mixed_gaps(300)
    same, copy = (Predictions(probs=probs, labels=labels) for _ in range(2))
    found = paired_test(same, copy, n_resamples=100)
    assert tuple(found) == tuple(score_metrics())
    for key, test in found.items():
        assert test == (0.0, 0.0, 0.0, 1.0), key


def test_paired_test_of_nearly_the_same_model_finds_nearly_no_difference_in_the_mce() -> None:
    # One example alone in its bin: its gap is hardly known, but known to be the same for both.
    probs = torch.tensor([[0.9, 0.1]] * 200 + [[0.62, 0.38]], dtype=torch.float64)
    labels = torch.tensor([0] * 180 + [1] * 20 + [1])
    first, second = (Predictions(probs=probs + torch.tensor([move, -move]), labels=labels) for move in (0.0, 0.001))
    found = paired_test(first, second, n_resamples=100)["mce"]
    assert found.difference == pytest.approx(0.001)
    assert -0.01 < found.low <= found.high < 0.01


def test_paired_test_interval_ends_at_the_largest_difference_that_is_possible() -> None:
    # The gap of the only example of its bin, which the second model has in none, is seen or not.
    labels = torch.tensor([0] * 180 + [1] * 20 + [1])
    probs = torch.tensor([[0.9, 0.1]] * 200 + [[0.99, 0.01]], dtype=torch.float64)
    first, second = Predictions(probs=probs, labels=labels), Predictions(probs=probs[:1].repeat(201, 1), labels=labels)
    found = paired_test(first, second, n_resamples=100)
    assert found["mce"].difference == pytest.approx(-0.99, abs=0.01)
    assert found["mce"].low == -1
    assert all(-1 <= test.low <= test.high <= 1 for key, test in found.items() if key not in ("nll", "brier", "signed_gap"))


def test_paired_test_difference_is_second_minus_first() -> None:
    first, second = two_models(500, 0, second_scale=1.5)
    found = paired_test(first, second, n_resamples=100)
    one, two = (values_of(summarize(given)) for given in (first, second))
    for key in KEYS:
        assert found[key].difference == pytest.approx(two[key] - one[key]), key
        assert found[key].low <= found[key].difference <= found[key].high, key


def test_paired_test_planted_over_confidence_is_found() -> None:
    first, second = two_models(2000, 0, second_scale=2.0)
    found = paired_test(first, second, n_resamples=200)
    for key in ("nll", "brier", "ece", "ace", "classwise_ece", "sece", "smece", "mmce", "ece_debiased", "signed_gap"):
        assert found[key].p_value < 0.02, key
        assert found[key].low > 0, key
    # Scaling logits changes no prediction: the two differ by noise only.
    assert found["error"].p_value > 0.05


def test_paired_test_of_equal_models_rarely_finds_a_difference() -> None:
    found = [paired_test(*two_models(400, seed), n_resamples=100, seed=seed) for seed in range(60)]
    for key in KEYS:
        values = np.array([test[key].p_value for test in found])
        # A uniform mean of 60 has standard error 0.037. Of calibration errors the p-value is the larger of two.
        assert 0.38 <= values.mean() <= (0.8 if METRICS[key].is_calibration else 0.65), key
        assert (values <= 0.05).mean() <= 0.12, key


# From benchmarks/paired.py. Before chance was allowed for, differences in ACE were found in 32 %, in classwise ECE in 100 %.
@pytest.mark.parametrize(
    ("n", "num_classes", "spread", "refined", "weighted"),
    [(300, 2, 0.3, 1.0, False), (300, 100, 0.02, 3.0, False), (1000, 2, 0.3, 1.0, True)],
)
def test_paired_test_two_calibrated_models_of_different_accuracy_do_not_differ_in_calibration(
    n: int, num_classes: int, spread: float, refined: float, weighted: bool
) -> None:
    rng, hits = np.random.default_rng(0), Counter[str]()
    for seed in range(25):
        first = rng.dirichlet(np.full(num_classes, spread), n)
        second = rng.standard_gamma(refined * first) + 1e-300
        second /= second.sum(1, keepdims=True)
        labels = (second.cumsum(1)[:, :-1] < rng.random((n, 1))).sum(1)
        weights = rng.lognormal(0, 1, n) if weighted else None
        models = (Predictions(probs=probs, labels=labels, weights=weights) for probs in (first, second))
        for key, test in paired_test(*models, n_resamples=100, seed=seed).items():
            hits[key] += test.p_value <= 0.05
    # Of 25 draws at 5 %, more than 4 are seen in 1 of 140 cases.
    assert all(hits[key] <= 4 for key in hits if METRICS[key].is_calibration), hits
    assert hits["brier"] > 10


def test_paired_test_interval_excludes_zero_where_p_is_small() -> None:
    for seed in range(20):
        for key, test in paired_test(*two_models(300, seed, second_scale=1.2), n_resamples=100, seed=seed).items():
            if test.p_value < 0.04:
                assert test.low > 0 or test.high < 0, key
            if test.p_value > 0.06:
                assert test.low <= 0 <= test.high, key


@pytest.mark.parametrize(("difference", "as_large"), [(0.5, 102), (-0.5, 102), (3.0, 0)])
def test_compare_of_a_difference_with_its_resamples_by_hand(difference: float, as_large: int) -> None:
    # -1, -0.99, ..., 1 around another mean, which does not count; 191 of the 201 are within 0.95 of it.
    drawn = 7 + torch.linspace(-1, 1, 201, dtype=torch.float64)
    found = _compare(difference, drawn, most=math.inf, wider=1.0)
    assert found == pytest.approx((difference, difference - 0.95, difference + 0.95, (1 + as_large) / 202))
    # Three times as wide: 0.5 is reached by what lies more than a sixth from the mean, 3 by the two ends.
    found = _compare(difference, drawn, most=math.inf, wider=3.0)
    as_large = 2 * (100 - 16) if abs(difference) < 1 else 2
    assert found == pytest.approx((difference, difference - 2.85, difference + 2.85, (1 + as_large) / 202))


def test_widening_is_that_of_students_t() -> None:
    # 97.5 % points of t with 9 and 19 degrees of freedom, and of the normal distribution, from tables.
    assert _widening(20) == pytest.approx(math.sqrt(20 / 19) * 2.093024 / 1.959964, rel=1e-6)
    assert _widening(10) == pytest.approx(math.sqrt(10 / 9) * 2.262157 / 1.959964, rel=1e-6)
    assert _widening(99) == pytest.approx(1.017, abs=1e-3)
    assert (_widening(9), _widening(100)) == (math.inf, 1.0)


def test_paired_test_of_few_examples_proves_no_equality_either() -> None:
    # Both are wrong once, in different places; the same model twice is the same, on however few examples.
    one = Predictions(probs=[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], labels=[1, 0, 1])
    two = Predictions(probs=[[0.1, 0.9], [0.4, 0.6], [0.2, 0.8]], labels=[1, 0, 1])
    assert paired_test(one, two)["error"] == Paired(0.0, -1.0, 1.0, 1.0)
    assert paired_test(one, one)["error"] == Paired(0.0, 0.0, 0.0, 1.0)


def test_paired_test_leaves_out_examples_of_weight_zero() -> None:
    first, second = two_models(40, 0)
    weights = (torch.arange(40) < 12).double()
    among_others = paired_test(first.replace(weights=weights), second.replace(weights=weights), n_resamples=100)
    assert among_others == paired_test(first.subset(range(12)), second.subset(range(12)), n_resamples=100)


def test_paired_test_of_blocks_is_near_that_of_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    models = two_models(4000, 0)
    alone = paired_test(*models, n_resamples=400)
    monkeypatch.setattr("calibrant.metrics.paired._BLOCKS", 1000)
    blocks = paired_test(*models, n_resamples=400)
    for key, test in alone.items():
        assert blocks[key].difference == test.difference
        # The 95 % quantile of 400 values is known to 6 %, the variance of 1,000 blocks to 4.5 %.
        assert blocks[key].high - test.difference == pytest.approx(test.high - test.difference, rel=0.3), key


def test_paired_test_infinite_loss_is_worse_than_any() -> None:
    sure = Predictions(probs=[[1.0, 0.0]] * 10, labels=[0] * 9 + [1])
    calm = Predictions(probs=[[0.9, 0.1]] * 10, labels=[0] * 9 + [1])
    worse = paired_test(calm, sure, n_resamples=100)["nll"]
    assert worse.difference == math.inf
    assert worse.p_value == pytest.approx(1 / 101)
    assert paired_test(sure, sure, n_resamples=100)["nll"].p_value == 1.0


@pytest.mark.parametrize("unsure", [slice(-1, None), slice(None)], ids=["last", "all"])
def test_paired_test_of_examples_with_no_probability_above_the_first_bin(unsure: slice) -> None:
    probs, labels = mixed_gaps(300, 20)
    first, second = probs.clone(), probs.clone()
    first[unsure], second[unsure] = 0.05, 0.04
    second[unsure, :10] = 0.06
    found = paired_test(*(Predictions(probs=given, labels=labels) for given in (first, second)), n_resamples=100)
    assert found["classwise_ece"].low < found["classwise_ece"].high
    assert found["nll"].difference != 0


def test_paired_test_of_other_examples_raises() -> None:
    first = Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1])
    others = {
        r"`second` must have the \[N, C\] of `first`": [
            first.subset([0]),
            Predictions(probs=[[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]], labels=[0, 1]),
        ],
        "`second` must have the labels of `first`": [Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0])],
        "`second` must have the weights of `first`": [first.replace(weights=[1.0, 2.0])],
    }
    for message, models in others.items():
        for second in models:
            with pytest.raises(ValueError, match=message):
                paired_test(first, second)
    with pytest.raises(ValueError, match="`n_resamples` must be a whole number from 100 to [0-9,]+, got 0"):
        paired_test(first, first, n_resamples=0)
    with pytest.raises(ValueError, match="`n_bins` must be a whole number from 1 to 10,000, got 0"):
        paired_test(first, first, n_bins=0)
    with pytest.raises(ValueError, match="`seed` must be a whole number >= 0, got -1"):
        paired_test(first, first, seed=-1)


def test_paired_test_of_the_same_model_in_two_precisions_finds_nothing():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2000, 10, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / 2).softmax(1), 1, generator=generator).squeeze(1)
    first, second = (Predictions(logits=scores, labels=labels) for scores in (logits, logits.float()))
    assert all(test.p_value > 0.5 for test in paired_test(first, second, n_resamples=200).values())


def sample_of(predictions: Predictions) -> Sample:
    return Sample(predictions, n_bins=15, block=np.arange(len(predictions)))


def scores_of(predictions: Predictions, counts: np.ndarray, normal: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    still = torch.zeros(counts.shape[1], 15, dtype=torch.float64)
    return sample_of(predictions).scores(counts, still if normal is None else normal)


def test_draw_counts_are_poisson_with_mean_one() -> None:
    counts = np.concatenate(list(_draw_counts(1000, n_resamples=500, seed=0)), axis=1)
    assert counts.shape == (1000, 500)
    # Half a million draws: standard errors 1.4e-3 and 2.4e-3.
    assert float(counts.mean()) == pytest.approx(1, abs=0.006)
    assert float(counts.var()) == pytest.approx(1, abs=0.012)
    assert float((counts == 0).mean()) == pytest.approx(np.exp(-1), abs=0.003)
    assert all((counts.sum(0) > 0).all() for counts in _draw_counts(2, n_resamples=200, seed=0))


@pytest.mark.parametrize("num_classes", [2, 30])
def test_sample_counts_and_weights_are_repetitions(num_classes: int) -> None:
    probs, labels = mixed_gaps(300, num_classes)
    counts = 1 + torch.arange(300) % 3
    repeated = Predictions(probs=probs.repeat_interleave(counts, 0), labels=labels.repeat_interleave(counts))
    values = values_of(summarize(repeated))
    weighted = Predictions(probs=probs, labels=labels, weights=counts.double())
    by_weight = scores_of(weighted, np.ones((300, 1), dtype=np.float32))
    by_count = scores_of(Predictions(probs=probs, labels=labels), counts.float().unsqueeze(1).numpy())
    for key in ("error", "nll", "brier"):
        assert float(by_count[key]) == pytest.approx(values[key], rel=1e-5), key
        assert float(by_weight[key]) == pytest.approx(values[key], rel=1e-5), key
    # Examples of one level share its mean confidence, of which repetition changes the true one a little.
    for key in ("sece", "mmce", "signed_gap"):
        assert float(by_count[key]) == pytest.approx(values[key], rel=0.02, abs=1e-3), key


def test_sample_gaps_within_chance_vanish_and_clear_ones_stay() -> None:
    ones = np.ones((400, 1), dtype=np.float32)
    chance = Predictions(probs=[[0.9, 0.1]] * 400, labels=[0] * 364 + [1] * 36)
    clear = Predictions(probs=[[0.9, 0.1]] * 400, labels=[0] * 200 + [1] * 200)
    # Gap 0.01 where chance gives 0.015; gap 0.4, of which chance may be 0.015² / 0.4.
    found = scores_of(chance, ones)
    assert [float(found[key]) for key in ("ece", "ace", "classwise_ece")] == pytest.approx([0] * 3, abs=1e-6)
    assert float(scores_of(clear, ones)["ece"]) == pytest.approx(0.4 - 0.9 * 0.1 / 400 / 0.4, rel=1e-5)


def test_sample_mce_of_a_single_example_varies_as_its_label_might() -> None:
    predictions = Predictions(probs=[[0.9, 0.1]] * 200 + [[0.6, 0.4]], labels=[0] * 180 + [1] * 20 + [1])
    counts = np.ones((201, 400), dtype=np.float32)
    assert float(scores_of(predictions, counts)["mce"].std()) < 1e-12
    # One example wrong: a guess of (0 + 2) / (1 + 4) right has variance 0.24.
    normal = torch.randn(400, 15, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert 0.2 < float(scores_of(predictions, counts, normal)["mce"].std()) < 0.5


def test_sample_spreads_as_theory_says() -> None:
    predictions = two_models(2000, 0)[0]
    (counts,) = _draw_counts(2000, n_resamples=600, seed=0)
    drawn = scores_of(predictions, counts)
    error = float((~predictions.correct).double().mean())
    # A standard deviation from 600 values is known to 3 %.
    assert float(drawn["error"].std()) == pytest.approx((error * (1 - error) / 2000) ** 0.5, rel=0.12)
    residual = predictions.confidence - predictions.correct.double()
    assert float(drawn["signed_gap"].std()) == pytest.approx(float(residual.std()) / 2000**0.5, rel=0.12)


def two(first: list[Entry], second: list[Entry], *, test: bool = True) -> dict[str, object]:
    return dict(compare_runs(first, second, ["error", "ece"], test=test))


def test_paired_t_agrees_with_scipy() -> None:
    drawn = [0.3, -0.1, 0.7, 0.2]
    assert paired_t(drawn) == pytest.approx(stats.ttest_1samp(drawn, 0).pvalue, rel=1e-12)


def test_paired_t_without_spread_says_only_that_nothing_differs() -> None:
    assert paired_t([0.0, 0.0, 0.0]) == 1.0
    assert paired_t([1e-17, -1e-17, 0.0]) == 1.0
    assert paired_t([0.1, 0.1 + 1e-17, 0.1]) is None
    assert paired_t([0.1, float("inf"), 0.2]) is None


def test_mean_and_std_divides_by_one_less() -> None:
    assert mean_and_std([1.0, 2.0, 6.0]) == (3.0, pytest.approx(math.sqrt(7.0)))
    assert mean_and_std([1.0, math.inf]) == (math.inf, None)
    assert mean_and_std([-math.inf, math.inf]) == (pytest.approx(math.nan, nan_ok=True), None)


def test_holm_by_hand() -> None:
    # Of 4: 0.005*4, 0.011*3, then 0.02*2 and 0.04*1, the latter raised to the one before.
    assert holm([0.04, 0.005, 0.02, 0.011]) == pytest.approx([0.04, 0.02, 0.04, 0.033])
    assert holm([0.6, None, 0.7]) == [1.0, None, 1.0]
    assert holm([]) == []


def test_compare_runs_three_common_seeds_are_tested_over_them() -> None:
    first = [run_of("ce", 0.05 + 0.001 * s, seed=s) for s in range(4)]
    second = [run_of("focal", 0.06 + 0.002 * s, seed=s) for s in (1, 2, 3, 5)]
    found = two(first, second)["error"]
    drawn = [0.011, 0.012, 0.013]
    assert found.mean == pytest.approx(0.012)  # type: ignore[attr-defined]
    assert (found.n, found.over) == (3, "seeds")  # type: ignore[attr-defined]
    assert found.values == pytest.approx(drawn)  # type: ignore[attr-defined]
    assert found.p_value == pytest.approx(stats.ttest_1samp(drawn, 0).pvalue, rel=1e-6)  # type: ignore[attr-defined]


def test_compare_runs_without_common_seeds_or_predictions_is_not_tested() -> None:
    found = two([run_of("ce", 0.05, seed=0)], [run_of("focal", 0.06, seed=1)])["error"]
    assert (found.n, found.p_value, found.over) == (0, None, None)  # type: ignore[attr-defined]
    assert found.mean == pytest.approx(0.01)  # type: ignore[attr-defined]
    again = two([run_of("ce", 0.05)], [run_of("focal", 0.06)])["error"]
    assert (again.n, again.p_value) == (1, None)  # type: ignore[attr-defined]


def predictions(confidence: float, *, n: int = 300, weights: torch.Tensor | None = None) -> Predictions:
    labels = (torch.arange(n) % 10 == 0).long()  # nine of ten are class 0
    probs = torch.tensor([confidence, 1 - confidence], dtype=torch.float64).repeat(n, 1)
    return Predictions(probs=probs, labels=labels, weights=weights, split="test")


def foreign(
    name: str, confidence: float, *, n: int = 300, seed: int | None = None, weights: torch.Tensor | None = None
) -> Entry:
    test = predictions(confidence, n=n, weights=weights)
    return Entry("coins", name, measure(test, n_resamples=100), seed=seed, test=test)


def test_compare_runs_one_run_each_is_tested_on_its_examples() -> None:
    good, bad = foreign("good", 0.9), foreign("bad", 0.6)
    found = two([good], [bad])["ece"]
    expected = paired_test(predictions(0.9), predictions(0.6))["ece"].p_value
    assert (found.p_value, found.over) == (expected, "examples")  # type: ignore[attr-defined]
    assert expected < 0.01
    assert two([good], [bad], test=False)["ece"].p_value is None  # type: ignore[attr-defined]


def test_compare_runs_two_seeds_are_not_tested() -> None:
    first = [foreign("good", 0.9, seed=0), foreign("good", 0.88, seed=1)]
    second = [foreign("bad", 0.6, seed=0), foreign("bad", 0.62, seed=1)]
    found = two(first, second)["ece"]
    assert (found.n, found.p_value) == (2, None)  # type: ignore[attr-defined]


def test_compare_runs_other_examples_are_not_tested() -> None:
    found = two([foreign("good", 0.9)], [foreign("other", 0.6, n=200)])["ece"]
    assert found.p_value is None  # type: ignore[attr-defined]


def test_compare_runs_of_other_weights_are_not_tested() -> None:
    rising, falling = torch.arange(1.0, 301.0), torch.arange(300.0, 0.0, -1.0)
    good = foreign("good", 0.9, weights=rising)
    assert two([good], [foreign("bad", 0.6, weights=rising)])["ece"].over == "examples"  # type: ignore[attr-defined]
    for weights in (falling, None):
        bad = foreign("bad", 0.6, weights=weights)
        assert two([good], [bad])["ece"].p_value is None  # type: ignore[attr-defined]
        assert two([bad], [good])["ece"].p_value is None  # type: ignore[attr-defined]


def test_compare_runs_infinite_values_of_different_seeds_are_not_averaged() -> None:
    sure = Predictions(probs=torch.eye(2).repeat(20, 1), labels=torch.ones(40, dtype=torch.long))
    endless, usual = (measure(test, n_resamples=100) for test in (sure, predictions(0.9)))
    first = [Entry("coins", "a", scores, seed=seed) for seed, scores in enumerate((usual, endless, usual))]
    second = [Entry("coins", "b", scores, seed=seed) for seed, scores in enumerate((endless, usual, usual))]
    found = compare_runs(first, second, ["nll"])["nll"]
    assert math.isnan(found.mean)
    assert (found.std, found.p_value, found.values) == (None, None, (math.inf, -math.inf, 0.0))


def test_compare_runs_several_runs_of_unknown_seed_are_not_paired() -> None:
    several = [replace(foreign("other", confidence), seed=seed) for seed, confidence in enumerate((0.6, 0.7))]
    found = two([foreign("good", 0.9)], several)["ece"]
    assert (found.n, found.p_value) == (0, None)  # type: ignore[attr-defined]
    assert found.mean == pytest.approx(0.25)  # type: ignore[attr-defined]
