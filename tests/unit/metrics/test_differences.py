from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from calibrant.core.entry import Entry
from calibrant.core.records import Predictions
from calibrant.metrics.measure import measure
from calibrant.metrics.paired import compare_runs, holm, mean_and_std, paired_t, paired_test, welch_t
from made_up_runs import run_of


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


def test_welch_t_agrees_with_scipy() -> None:
    first, second = [0.3, -0.1, 0.7, 0.2], [0.9, 0.4]
    expected = stats.ttest_ind(first, second, equal_var=False).pvalue
    assert welch_t(first, second) == pytest.approx(expected, rel=1e-12)
    assert welch_t(second, first) == pytest.approx(expected, rel=1e-12)


def test_welch_t_without_spread_or_runs_says_what_can_be_said() -> None:
    assert welch_t([0.1, 0.1], [0.1, 0.1 + 1e-17]) == 1.0
    assert welch_t([0.1, 0.1], [0.2, 0.2]) == 0.0
    assert welch_t([0.1], [0.2, 0.3]) is None
    assert welch_t([0.1, float("nan")], [0.2, 0.3]) is None


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
    return Entry("coins", name, measure(test, n_resamples=20), seed=seed, test=test)


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
    endless, usual = (measure(test, n_resamples=20) for test in (sure, predictions(0.9)))
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
