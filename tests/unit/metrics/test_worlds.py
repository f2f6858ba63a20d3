from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calibrant.core.grid import grid_of
from calibrant.core.top_label import top_label
from calibrant.metrics.adaptive import adaptive_calibration_error
from calibrant.metrics.batched import batched_ace, batched_ece, batched_mce, batched_mmce
from calibrant.metrics.levels import Levels, levels_of, merge_bins
from calibrant.metrics.worlds import (
    _quantiles,
    accepted_range,
    draw_from,
    draw_labels,
    draw_right,
    spread_of_confidences,
    worlds_by_embedding,
    worlds_by_largest_gap,
    worlds_by_mean_gap,
    worlds_of_even_gaps,
    worlds_of_few_gaps,
)
from helpers import mixed_gaps

FAMILIES = [worlds_by_mean_gap, worlds_by_largest_gap, worlds_by_embedding, worlds_of_few_gaps, worlds_of_even_gaps]


def some_bins(n: int = 3000) -> Levels:
    top = top_label(*mixed_gaps(n), where="test")
    return merge_bins(levels_of(grid_of(top.confidence, top.correct), size=n, n_bins=15, within_bins=True))


def rows(levels: Levels, worlds: torch.Tensor) -> tuple[Levels, torch.Tensor, torch.Tensor]:
    return levels, levels.share.expand_as(worlds), levels.share * worlds


@pytest.mark.parametrize("family", FAMILIES)
def test_worlds_begin_calibrated_and_are_possible(family: object) -> None:
    levels = some_bins()
    worlds = family(levels, levels.bin_index)  # type: ignore[operator]
    assert worlds.shape == (14 if family is worlds_by_largest_gap else 12, len(levels))
    assert torch.equal(worlds[0], levels.confidence)
    assert float(worlds.min()) >= 0
    assert float(worlds.max()) <= 1


def test_worlds_by_mean_gap_begin_below_what_chance_may_have_added() -> None:
    # Twenty bins of a hundred examples, gaps of 0.1: chance alone gives each 0.04 on average.
    confidence = torch.linspace(0.5, 0.69, 20, dtype=torch.float64)
    index = torch.arange(20)
    levels = Levels(torch.full((20,), 0.05).double(), confidence, confidence - 0.1, index, index, 2000, 20)
    worlds = worlds_by_mean_gap(levels, index)
    guess = (100 * (confidence - 0.1) + 2) / 104
    variance = guess * (1 - guess)
    chance = float((variance / 100).sqrt().mean()) * (2 / math.pi) ** 0.5
    noise = float((variance.mean() / 2000).sqrt())
    truth = batched_ece(*rows(levels, worlds))
    most = 0.1 + 4 * noise
    assert float(truth[1]) == pytest.approx(max(0.1 - chance - 5 * noise, most / 11), rel=1e-6)
    assert float(truth[-1]) == pytest.approx(most, rel=1e-6)


@pytest.mark.parametrize(
    ("family", "metric"),
    [
        (worlds_by_mean_gap, batched_ece),
        (worlds_by_largest_gap, batched_mce),
        (worlds_by_embedding, batched_mmce),
        (worlds_of_few_gaps, batched_ece),
        (worlds_of_even_gaps, batched_ece),
    ],
)
def test_worlds_true_error_rises_through_the_observed_one(family: object, metric: object) -> None:
    levels = some_bins()
    truth = metric(*rows(levels, family(levels, levels.bin_index)))  # type: ignore[operator]
    observed = float(metric(*rows(levels, levels.accuracy.unsqueeze(0))))  # type: ignore[operator]
    assert bool((truth.diff() > -1e-12).all())
    assert float(truth[0]) == pytest.approx(0, abs=1e-12)
    # The last of the family of few gaps is the observed world itself.
    assert float(truth[-1]) >= observed - 1e-9


def test_worlds_by_mean_gap_soften_all_gaps_by_their_variance() -> None:
    # Two bins of equal weight, gaps 0.3 and 0.1, both half right of many: the same is taken from both, the smaller at most 0.1.
    levels = Levels(
        share=torch.tensor([0.5, 0.5]).double(),
        confidence=torch.tensor([0.8, 0.6]).double(),
        accuracy=torch.tensor([0.5, 0.5]).double(),
        bin_index=torch.tensor([9, 11]),
        last_cell=torch.tensor([1, 2]),
        size=10**8,
        n_bins=15,
    )
    gaps = levels.confidence - worlds_by_mean_gap(levels, levels.bin_index, count=200)
    both = gaps[(gaps[:, 1] > 1e-6)]
    torch.testing.assert_close(both[:, 0] - both[:, 1], torch.full((len(both),), 0.2, dtype=torch.float64), rtol=0, atol=1e-6)


def test_worlds_seen_without_errors_try_over_confidence() -> None:
    # Twenty right of twenty at confidence 0.999: accuracy may well be 0.9, but not above 1.
    top = (torch.full((20,), 0.999).double(), torch.ones(20).double())
    levels = levels_of(grid_of(*top), size=20, n_bins=15)
    for family in (worlds_by_mean_gap, worlds_by_embedding):
        assert float(family(levels, levels.bin_index).min()) < 0.9


def test_worlds_of_few_gaps_keep_the_clearest_in_full() -> None:
    levels = some_bins()
    worlds = worlds_of_few_gaps(levels, levels.bin_index)
    kept = (levels.confidence - worlds).abs() > 1e-12
    torch.testing.assert_close(worlds[-1], levels.accuracy)
    assert torch.equal(worlds[kept], levels.accuracy.expand_as(worlds)[kept])
    assert bool((kept.sum(1).diff() >= 0).all())


def test_worlds_of_even_gaps_go_where_the_data_go_on_the_whole() -> None:
    levels = some_bins()
    over = levels.confidence - worlds_of_even_gaps(levels, levels.bin_index)
    torch.testing.assert_close(over[3], over[3, :1].expand(len(levels)))
    mirrored = Levels(**{**vars(levels), "accuracy": (2 * levels.confidence - levels.accuracy).clamp(0, 1)})
    under = levels.confidence - worlds_of_even_gaps(mirrored, levels.bin_index)
    assert float(over[3, 0]) * float(under[3, 0]) < 0


def test_draw_from_gives_shares_with_the_right_means() -> None:
    levels = some_bins()
    worlds = torch.stack([levels.confidence, levels.accuracy])
    mass, right = draw_from(worlds, levels, n_resamples=4000, rng=np.random.default_rng(0))
    assert mass.shape == right.shape == (8000, len(levels))
    torch.testing.assert_close(mass.sum(1), torch.ones(8000, dtype=torch.float64))
    # Standard errors of a share p over 4,000 data sets of 3,000: below sqrt(0.25 / 3000 / 4000) = 1.4e-4.
    torch.testing.assert_close(mass.mean(0), levels.share, rtol=0, atol=5e-4)
    torch.testing.assert_close(right[4000:].mean(0), levels.share * levels.accuracy, rtol=0, atol=7e-4)
    again = draw_from(worlds, levels, n_resamples=4000, rng=np.random.default_rng(0))
    assert torch.equal(right, again[1])


def test_draw_from_draws_world_after_world_what_one_call_would() -> None:
    levels = some_bins(400)
    worlds = worlds_by_mean_gap(levels, levels.bin_index)
    mass, right = draw_from(worlds, levels, n_resamples=30, rng=np.random.default_rng(1))
    hits = levels.share * worlds
    chances = torch.cat([hits, levels.share - hits], dim=1).numpy()[:, None]
    drawn = np.random.default_rng(1).multinomial(400, chances, size=(len(worlds), 30)).reshape(-1, 2, len(levels))
    np.testing.assert_allclose(right.numpy(), drawn[:, 0] / 400, rtol=1e-12)
    np.testing.assert_allclose(mass.numpy(), drawn.sum(1) / 400, rtol=1e-12)


def test_draw_right_keeps_whole_numbers_and_rounds_others_at_random() -> None:
    levels = some_bins(300)
    count, right = draw_right(levels, levels.confidence, n_resamples=50, rng=np.random.default_rng(0))
    torch.testing.assert_close(count, levels.share * 300)
    assert bool((right <= count).all())
    thinned = Levels(**{**vars(levels), "size": 101})
    count, _ = draw_right(thinned, levels.confidence, n_resamples=4000, rng=np.random.default_rng(0))
    assert count.shape == (4000, len(levels))
    assert torch.equal(count, count.round())
    torch.testing.assert_close(count.mean(0), levels.share * 101, rtol=0, atol=0.05)


def test_draw_labels_of_calibrated_worlds_shows_the_equal_mass_error_of_examples() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = 0.5 + 0.5 * torch.rand(1000, generator=generator, dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], 1)
    labels = [(torch.rand(1000, generator=generator) > confidence).long() for _ in range(400)]
    expected = torch.stack([adaptive_calibration_error(probs, drawn) for drawn in labels]).mean()
    levels = levels_of(grid_of(confidence, confidence), size=1000, n_bins=15)
    found = []
    for draw in (draw_labels, draw_from):
        mass, right = draw(levels.confidence.unsqueeze(0), levels, n_resamples=2000, rng=np.random.default_rng(0))
        found.append(float(batched_ace(levels, mass, right).mean() / expected))
    # The spread of the error is 18 % of its mean: the standard error over 400 data sets is 0.9 %.
    assert found[0] == pytest.approx(1, abs=0.02)
    # Confidences drawn anew move the cuts into levels.
    assert found[1] < found[0] - 0.015
    mass, _ = draw_labels(levels.confidence.unsqueeze(0), levels, n_resamples=3, rng=np.random.default_rng(0))
    torch.testing.assert_close(mass, levels.share.expand(3, -1))


def normal_worlds(truth: torch.Tensor, bias: torch.Tensor, *, spread: float) -> torch.Tensor:
    chances = torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64)
    z = torch.distributions.Normal(0.0, 1.0).icdf(chances)
    return (truth + bias).unsqueeze(1) + spread * z


@pytest.mark.parametrize(
    ("rows", "chance", "expected"),
    [
        # Its shape, -1 0 1, three times: of nine values the 0.33-quantile lies at 0.33 · 10 - 1 = 2.3, between -1 and 0.
        ([[0, 1, 2]], 0.33, [0.3]),
        ([[0, 1, 2]], 0.0, [0.0]),
        ([[0, 1, 2]], 1.0, [2.0]),
        # The shape of the second, -0.577 twice and 1.155, is known to the first, and that of the first to the second, once.
        ([[0, 1, 2], [0, 0, 3]], 0.0, [0.0, 1 - math.sqrt(3)]),
        ([[0, 1, 2], [0, 0, 3]], 1.0, [1 + 2 / math.sqrt(3), 3.0]),
        ([[0, 1, 2], [0, 0, 3]], 0.5, [1.0, 0.0]),
        # A row without spread has no shape to give, and needs none.
        ([[5, 5, 5], [0, 1, 2], [7, 7, 7]], 0.33, [5.0, 0.3, 7.0]),
    ],
)
def test_quantiles_take_their_shape_from_neighbours(rows: list[list[int]], chance: float, expected: list[float]) -> None:
    values = torch.tensor(rows, dtype=torch.float64)
    found = _quantiles(values, torch.full((len(rows),), chance, dtype=torch.float64))
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_quantiles_of_rows_have_chances_of_their_own() -> None:
    values = torch.tensor([[0, 1, 2], [10, 11, 12]], dtype=torch.float64)
    assert _quantiles(values, torch.tensor([0.0, 1.0]).double()).tolist() == [0, 12]


def test_accepted_range_of_an_unbiased_normal_value_is_the_usual_interval() -> None:
    truth = torch.linspace(0, 10, 41, dtype=torch.float64)
    low, high = accepted_range(truth, normal_worlds(truth, torch.zeros(41), spread=1.0), 6.0)
    assert low == pytest.approx(6 - 1.96, abs=0.02)
    assert high == pytest.approx(6 + 1.96, abs=0.02)


def test_accepted_range_takes_off_a_bias() -> None:
    truth = torch.linspace(0, 10, 41, dtype=torch.float64)
    low, high = accepted_range(truth, normal_worlds(truth, torch.full((41,), 2.0), spread=1.0), 8.0)
    assert low == pytest.approx(6 - 1.96, abs=0.02)
    assert high == pytest.approx(6 + 1.96, abs=0.02)


@pytest.mark.parametrize(("observed", "begins_at_zero"), [(3.6, True), (3.7, False)])
def test_accepted_range_begins_at_zero_unless_the_upper_5_percent_are_reached(observed: float, begins_at_zero: bool) -> None:
    # The calibrated world shows 2 ± 1, of which 5 % lie beyond 2 + 1.645.
    truth = torch.linspace(0, 10, 41, dtype=torch.float64)
    low, _ = accepted_range(truth, normal_worlds(truth, torch.full((41,), 2.0), spread=1.0), observed)
    assert (low == 0) is begins_at_zero


def test_accepted_range_uses_the_null_given_for_the_calibrated_world() -> None:
    truth = torch.linspace(0, 10, 41, dtype=torch.float64)
    drawn = normal_worlds(truth, torch.full((41,), 2.0), spread=1.0)
    assert accepted_range(truth, drawn, 3.0)[0] == 0
    assert accepted_range(truth, drawn, 3.0, null=torch.full((100,), 2.5).double())[0] > 0


@pytest.mark.parametrize(("observed", "begins_at_zero"), [(0.945, True), (0.955, False)])
def test_accepted_range_null_rejects_where_the_p_value_does(observed: float, begins_at_zero: bool) -> None:
    # Of 99 values 0.01 ... 0.99, five reach 0.945, p = 6 / 100, and four 0.955, p = 5 / 100.
    truth = torch.linspace(0, 1, 41, dtype=torch.float64)
    drawn = normal_worlds(truth, torch.full((41,), 0.5), spread=0.05)
    null = torch.arange(1, 100, dtype=torch.float64) / 100
    assert (accepted_range(truth, drawn, observed, null=null)[0] == 0) is begins_at_zero


def test_accepted_range_null_of_few_values_rejects_nothing() -> None:
    truth = torch.linspace(0, 1, 41, dtype=torch.float64)
    drawn = normal_worlds(truth, torch.full((41,), 0.5), spread=0.05)
    assert accepted_range(truth, drawn, 0.9, null=torch.zeros(18, dtype=torch.float64))[0] == 0
    assert accepted_range(truth, drawn, 0.9, null=torch.zeros(19, dtype=torch.float64))[0] > 0


def test_accepted_range_value_that_is_often_zero_still_has_an_upper_end() -> None:
    # A debiased error is cut off at 0: seeing 0 excludes only worlds in which that is rare.
    truth = torch.linspace(0, 10, 41, dtype=torch.float64)
    drawn = normal_worlds(truth, torch.zeros(41), spread=1.0).clamp_min(0)
    low, high = accepted_range(truth, drawn, 0.0)
    assert low == 0
    assert high == pytest.approx(1.96, abs=0.3)


def test_accepted_range_values_that_differ_by_rounding_have_no_shape_to_give() -> None:
    # A calibrated model that is sure shows no error, but for rounding; its neighbour is not to be widened by that.
    truth = torch.tensor([0.0, 0.8, 1.0], dtype=torch.float64)
    drawn = normal_worlds(truth, torch.zeros(3), spread=0.02)
    # The spread of a thousand of these is zero, their distance from their mean 3e-25.
    drawn[0] = 9.0322e-10
    low, high = accepted_range(truth, drawn, 0.9)
    assert low == pytest.approx(0.9 - 0.0392, abs=0.01)
    assert high == pytest.approx(0.9 + 0.0392, abs=0.01)


def test_accepted_range_goes_beyond_the_last_world_as_its_values_do() -> None:
    # The worst world shows 1 with a spread of 0.1; having seen 1, or 2, the truth may be beyond it.
    truth = torch.linspace(0, 1, 11, dtype=torch.float64)
    drawn = normal_worlds(truth, torch.zeros(11), spread=0.1)
    assert accepted_range(truth, drawn, 1.0) == pytest.approx((0.804, 1.196), abs=0.01)
    assert accepted_range(truth, drawn, 2.0) == pytest.approx((1.804, 2.196), abs=0.01)


def test_spread_of_confidences_is_that_of_the_gaps_between_examples() -> None:
    levels = Levels(
        share=torch.tensor([0.5, 0.5], dtype=torch.float64),
        confidence=torch.tensor([0.7, 0.9], dtype=torch.float64),
        accuracy=torch.ones(2, dtype=torch.float64),
        bin_index=torch.tensor([10, 13]),
        last_cell=torch.tensor([10, 13]),
        size=400,
        n_bins=15,
    )
    worlds = torch.stack([levels.confidence, levels.confidence + 0.1, levels.accuracy])
    found = spread_of_confidences(worlds, levels, batched_ece, n_resamples=2000, rng=np.random.default_rng(0))
    # Gaps 0 and 0; 0.1 and 0.1; 0.3 and 0.1, whose standard deviation of 0.1 is divided by the root of 400.
    assert found.tolist() == pytest.approx([0, 0, 0.005], rel=0.06, abs=1e-12)


def test_worlds_by_largest_gap_try_errors_in_a_bin_seen_without() -> None:
    confidence = torch.full((100,), 0.55, dtype=torch.float64)
    levels = merge_bins(levels_of(grid_of(confidence, torch.ones(100).double()), size=100, n_bins=15, within_bins=True))
    worlds = worlds_by_largest_gap(levels, levels.bin_index)
    # 102 of 104 right has a standard deviation of 0.0137 among 100.
    assert worlds[4:8, 0].tolist() == pytest.approx(
        [0.55 + 0.45 * 4 / 6, 0.55 + 0.45 * 5 / 6, 1 - 0.0275, 1 - 0.0137], abs=1e-4
    )
