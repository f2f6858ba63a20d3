from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calibrant.core.grid import grid_of
from calibrant.metrics.batched import batched_aurc
from calibrant.metrics.levels import Levels, levels_of
from calibrant.metrics.ordinary import (
    _aurc_acceleration,
    aurc_interval,
    bias_corrected,
    mean_interval,
    rate_interval,
    signed_gap_interval,
)


def sums(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([values.sum(), values.square().sum(), (values**3).sum()])


def some_levels(confidence: torch.Tensor, correct: torch.Tensor) -> Levels:
    return levels_of(grid_of(confidence.double(), correct.double()), size=len(confidence), n_bins=15)


def test_mean_interval_symmetric_values_give_the_normal_interval() -> None:
    values = torch.tensor([1.0, 3.0] * 50, dtype=torch.float64)
    low, high = mean_interval(sums(values), weight=100, size=100)
    half = 1.959964 * math.sqrt(1 / 99)
    assert (low, high) == pytest.approx((2 - half, 2 + half), rel=1e-6)


def test_mean_interval_skewed_values_reach_further_up() -> None:
    values = torch.tensor([0.0] * 90 + [10.0] * 10, dtype=torch.float64)
    low, high = mean_interval(sums(values), weight=100, size=100)
    assert high - 1 > 1 - low > 0


def test_mean_interval_agrees_with_the_accelerated_bootstrap_of_scipy() -> None:
    from scipy.stats import bootstrap

    values = np.random.default_rng(0).exponential(size=400)
    low, high = mean_interval(sums(torch.from_numpy(values)), weight=400, size=400)
    other = bootstrap((values,), np.mean, n_resamples=5000, method="BCa", random_state=np.random.default_rng(1))
    # The standard error is 0.05; ends of 5,000 resamples vary by about 2 % of it.
    assert low == pytest.approx(other.confidence_interval.low, abs=0.004)
    assert high == pytest.approx(other.confidence_interval.high, abs=0.004)


def test_mean_interval_covers_a_skewed_mean_95_percent_of_the_time() -> None:
    draws = np.random.default_rng(0).exponential(size=(2000, 100))
    ends = [mean_interval(sums(torch.from_numpy(row)), weight=100, size=100) for row in draws]
    held = np.mean([low <= 1 <= high for low, high in ends])
    # Four standard errors of a coverage over 2,000 data sets are 0.02.
    assert 0.93 <= held <= 0.97


def test_mean_interval_infinite_constant_and_single_values() -> None:
    infinite = torch.tensor([1.0, math.inf], dtype=torch.float64)
    assert mean_interval(sums(infinite), weight=2, size=2) == (math.inf, math.inf)
    assert mean_interval(sums(torch.full((5,), 0.3).double()), weight=5, size=5) == pytest.approx((0.3, 0.3))
    assert mean_interval(sums(torch.tensor([0.3]).double()), weight=1, size=1, most=2.0) == (0.0, 2.0)


@pytest.mark.parametrize(
    ("rate", "size", "low", "high"),
    # Published values of the score interval: 0 of 20, 10 of 100, all of 20.
    [(0.0, 20, 0.0, 0.1611), (0.1, 100, 0.0552, 0.1744), (1.0, 20, 0.8389, 1.0)],
)
def test_rate_interval_gives_published_values(rate: float, size: int, low: float, high: float) -> None:
    assert rate_interval(rate, size=size) == pytest.approx((low, high), abs=1e-4)


def test_signed_gap_interval_many_examples_is_the_normal_interval_of_the_residuals() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = 0.5 + 0.5 * torch.rand(20_000, generator=generator)
    correct = (torch.rand(20_000, generator=generator) < confidence - 0.1).double()
    residual = confidence.double() - correct
    half = 1.96 * float(residual.std()) / math.sqrt(20_000)
    low, high = signed_gap_interval(some_levels(confidence, correct))
    # Levels are 0.0125 wide, and the score interval is a little off centre.
    assert low == pytest.approx(float(residual.mean()) - half, abs=half / 25)
    assert high == pytest.approx(float(residual.mean()) + half, abs=half / 25)


def test_signed_gap_interval_all_right_allows_for_unseen_errors() -> None:
    low, high = signed_gap_interval(some_levels(torch.full((20,), 0.999), torch.ones(20)))
    assert low == pytest.approx(-0.001, abs=1e-6)
    # The accuracy may be as low as 0.8389.
    assert high == pytest.approx(0.999 - 0.8389, abs=1e-3)


def test_signed_gap_interval_accuracy_that_rounding_carries_past_one_is_one() -> None:
    share = torch.full((49,), 1 / 49, dtype=torch.float64)
    share[0] += 4e-16
    levels = Levels(
        share=share,
        confidence=torch.linspace(0.5, 0.9, 49, dtype=torch.float64),
        accuracy=torch.ones(49, dtype=torch.float64),
        bin_index=torch.zeros(49, dtype=torch.int64),
        last_cell=torch.arange(49),
        size=500,
        n_bins=15,
    )
    assert float(share @ levels.accuracy) > 1
    low, high = signed_gap_interval(levels)
    assert low < -0.3 < high < -0.28


def test_rate_interval_of_a_rate_that_rounding_carries_past_its_ends_is_that_of_the_end() -> None:
    assert rate_interval(1 + 4e-16, size=1e12) == rate_interval(1.0, size=1e12)
    assert rate_interval(-4e-16, size=1e12) == rate_interval(0.0, size=1e12)


def test_aurc_interval_all_right_ends_at_the_largest_possible_error_rate() -> None:
    interval, value = aurc_interval(
        some_levels(torch.full((20,), 0.9), torch.ones(20)), n_resamples=50, rng=np.random.default_rng(0)
    )
    assert value == 0
    assert interval == pytest.approx((0, 0.1611), abs=1e-4)


def test_aurc_interval_all_wrong_begins_at_the_least_possible_error_rate() -> None:
    levels = some_levels(torch.linspace(0.5, 0.9, 50), torch.zeros(50))
    interval, value = aurc_interval(levels, n_resamples=50, rng=np.random.default_rng(0))
    assert value == pytest.approx(1.0)
    assert interval == rate_interval(1.0, size=50)
    assert interval.high == 1


def test_aurc_acceleration_is_a_sixth_of_the_skewness_of_influences() -> None:
    # Ten examples a level; moving one by a little more weight moves the area by its influence (Efron 1987, equation 6.6).
    accuracy = torch.tensor([0.5, 0.7, 0.9], dtype=torch.float64)
    levels = Levels(
        torch.full((3,), 1 / 3).double(), torch.tensor([0.5, 0.7, 0.9]).double(), accuracy, *[torch.arange(3)] * 2, 30, 15
    )

    def area(weights: torch.Tensor) -> float:
        held = (weights / weights.sum()).view(3, 10)
        right = torch.stack([part[: round(10 * float(a))].sum() for part, a in zip(held, accuracy, strict=True)])
        return float(batched_aurc(levels, held.sum(1).unsqueeze(0), right.unsqueeze(0)))

    ones = torch.ones(30, dtype=torch.float64)
    influence = torch.tensor(
        [(area(ones + 1e-5 * e) - area(ones - 1e-5 * e)) / 2e-5 for e in torch.eye(30, dtype=torch.float64)]
    )
    expected = float((influence.double() ** 3).sum() / (influence.double() ** 2).sum() ** 1.5 / 6)
    assert _aurc_acceleration(levels) == pytest.approx(expected, rel=1e-3)
    assert abs(expected) > 0.01


def test_aurc_interval_holds_the_area_and_repeats_with_its_seed() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(500, generator=generator)
    levels = some_levels(confidence, (torch.rand(500, generator=generator) < confidence).double())
    first, value = aurc_interval(levels, n_resamples=200, rng=np.random.default_rng(3))
    again, _ = aurc_interval(levels, n_resamples=200, rng=np.random.default_rng(3))
    assert first == again
    assert first.low < value < first.high


def test_bias_corrected_moves_against_a_bias() -> None:
    drawn = torch.distributions.Normal(0.0, 1.0).icdf(torch.linspace(0.0005, 0.9995, 2000, dtype=torch.float64))
    assert bias_corrected(drawn, 0.0) == pytest.approx((-1.96, 1.96), abs=0.01)
    # Resamples half a standard deviation above the value: the interval is moved by twice as much, down (the tails are few).
    assert bias_corrected(drawn, -0.5) == pytest.approx((-2.96, 0.96), abs=0.1)


def test_bias_corrected_acceleration_reaches_further_where_values_are_skewed() -> None:
    drawn = torch.distributions.Normal(0.0, 1.0).icdf(torch.linspace(0.0005, 0.9995, 2000, dtype=torch.float64))
    # z / (1 - a z) at z = 1.96 and a = 0.05: 1.785 below, 2.173 above.
    assert bias_corrected(drawn, 0.0, acceleration=0.05) == pytest.approx((-1.785, 2.173), abs=0.02)


def test_aurc_interval_agrees_with_the_accelerated_bootstrap_of_scipy() -> None:
    from scipy.stats import bootstrap

    generator = np.random.default_rng(0)
    confidence = generator.choice([0.55, 0.7, 0.85, 0.98], size=300)
    wrong = (generator.random(300) > confidence).astype(float)

    def area(confidence: np.ndarray, wrong: np.ndarray) -> float:
        total = share = errors = 0.0
        for level in (0.98, 0.85, 0.7, 0.55):
            inside = confidence == level
            mass, bad = inside.mean(), wrong[inside].sum() / len(wrong)
            total += mass * (errors + bad / 2) / (share + mass / 2)
            share, errors = share + mass, errors + bad
        return total

    levels = some_levels(torch.from_numpy(confidence), torch.from_numpy(1 - wrong))
    found, value = aurc_interval(levels, n_resamples=4000, rng=np.random.default_rng(1))
    other = bootstrap(
        (confidence, wrong),
        area,
        paired=True,
        vectorized=False,
        n_resamples=1500,
        method="BCa",
        random_state=np.random.default_rng(2),
    ).confidence_interval
    assert value == pytest.approx(area(confidence, wrong))
    # The ends of 1,500 resamples vary by about 4 % of the length.
    assert found == pytest.approx((other.low, other.high), abs=0.1 * (other.high - other.low))
