"""The parts of which intervals are made, each by hand-computed values or by what it hands to the next one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant import Predictions
from calibrant.core.summary import Summary, summarize
from calibrant.metrics import intervals as module
from calibrant.metrics.batched import BATCHED
from calibrant.metrics.intervals import binned_intervals, classwise_interval, score_intervals
from calibrant.metrics.levels import Levels, levels_of
from calibrant.metrics.ordinary import Range
from calibrant.metrics.values import KEYS, values_of_summary
from calibrant.metrics.worlds import draw_from, draw_right, worlds_by_embedding, worlds_by_mean_gap
from helpers import mixed_gaps

STRETCHED = ("ace", "sece", "smece", "mmce", "ece_debiased", "aurc")


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def some_summary(n: int = 500, *, num_classes: int = 4, n_bins: int = 15) -> Summary:
    probs, labels = mixed_gaps(n, num_classes)
    return summarize(Predictions(probs=probs, labels=labels), n_bins=n_bins)


def levels(
    confidence: list[float],
    accuracy: list[float],
    *,
    share: list[float] | None = None,
    bins: list[int] | None = None,
    size: int,
) -> Levels:
    g = len(confidence)
    index = torch.tensor(bins or list(range(g)))
    shares = torch.tensor(share or [1 / g] * g).double()
    return Levels(shares, torch.tensor(confidence).double(), torch.tensor(accuracy).double(), index, index, size, 15)


def test_stretch_moves_both_ends_by_a_ratio_near_one_alone() -> None:
    given = Range(0.1, 0.2)
    assert module._stretch(given, 0.24, 0.2) == pytest.approx((0.12, 0.24))
    assert module._stretch(given, 0.18, 0.2) == pytest.approx((0.09, 0.18))
    assert module._stretch(Range(0.5, 0.95), 0.96, 0.8) == pytest.approx((0.6, 1.0))
    for value, observed in ((0.26, 0.2), (0.15, 0.2), (0.1, 0.0)):
        assert module._stretch(given, value, observed) == given


def test_intervals_move_with_the_exact_values_given() -> None:
    summary, null = some_summary(), torch.zeros(99, dtype=torch.float64)
    values = values_of_summary(summary)
    more = {**values, **{key: 1.03 * values[key] for key in STRETCHED}}
    one, two = (score_intervals(summary, values=v, null=null, n_resamples=20, rng=rng()) for v in (values, more))
    for key in KEYS:
        assert two[key] == pytest.approx([(1.03 if key in STRETCHED else 1) * end for end in one[key]]), key


def test_intervals_of_few_resamples_are_numbers() -> None:
    summary, null = some_summary(60), torch.zeros(99, dtype=torch.float64)
    found = score_intervals(summary, values=values_of_summary(summary), null=null, n_resamples=2, rng=rng())
    assert all(math.isfinite(end) for key in KEYS for end in found[key])


def test_interval_of_the_brier_score_ends_at_two() -> None:
    probs = torch.tensor([[1.0, 0.0]] * 4 + [[0.9, 0.1]]).double()
    summary = summarize(Predictions(probs=probs, labels=torch.ones(5, dtype=torch.long)))
    null = torch.zeros(99, dtype=torch.float64)
    found = score_intervals(summary, values=values_of_summary(summary), null=null, n_resamples=20, rng=rng())["brier"]
    assert 1.5 < found.low < 1.93
    assert found.high == 2.0


def test_binned_intervals_the_null_decides_whether_that_of_the_ece_begins_at_zero() -> None:
    # Four of five are right, at a confidence of 0.95.
    given = levels([0.95], [0.8], bins=[14], size=500)

    def low(null: float, key: str) -> float:
        values = torch.full((99,), null, dtype=torch.float64)
        return binned_intervals(given, null=values, n_resamples=60, rng=rng(), keys=(key,))[key].low

    assert low(1.0, "ece") == 0 < 0.1 < low(0.0, "ece")
    # It is one of the ECE, and says nothing of the largest gap.
    assert low(1.0, "mce") == low(0.0, "mce") > 0.1


@pytest.mark.parametrize(
    ("ece", "even", "mce", "expected"),
    [
        # Even gaps lower the beginning alone; the largest gap begins no lower than the mean one.
        (Range(0.3, 0.5), Range(0.2, 0.9), Range(0.1, 0.6), (Range(0.2, 0.5), Range(0.2, 0.6))),
        (Range(0.3, 0.5), Range(0.35, 0.4), Range(0.4, 0.6), (Range(0.3, 0.5), Range(0.4, 0.6))),
        # It ends no earlier than it begins, and not beyond the widest gap of its bins: 0.8 in the last of five.
        (Range(0.3, 0.5), Range(0.3, 0.4), Range(0.1, 0.2), (Range(0.3, 0.5), Range(0.3, 0.3))),
        (Range(0.3, 0.5), Range(0.3, 0.4), Range(0.4, 1.0), (Range(0.3, 0.5), Range(0.4, 0.8))),
    ],
)
def test_binned_intervals_join_their_families(
    ece: Range, even: Range, mce: Range, expected: tuple[Range, Range], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = iter([ece, even, mce])
    monkeypatch.setattr(module, "_invert", lambda *_, **__: next(parts))
    monkeypatch.setattr(module, "_widest_gap", lambda bins: 0.8)
    null = torch.zeros(99, dtype=torch.float64)
    found = binned_intervals(levels([0.9], [0.8], bins=[13], size=100), null=null, n_resamples=5, rng=rng())
    assert (found["ece"], found["mce"]) == expected


@pytest.mark.parametrize(("used", "widest"), [([2], 13 / 15), ([12], 13 / 15), ([7], 8 / 15), ([0, 7], 1.0)])
def test_widest_gap_is_that_to_the_farther_end(used: list[int], widest: float) -> None:
    given = levels([0.5] * len(used), [0.5] * len(used), bins=used, size=10)
    assert module._widest_gap(given) == pytest.approx(widest)


def test_vary_within_bins_adds_the_spread_of_confidences_but_to_the_calibrated_world() -> None:
    # One bin of ten examples, half at 0.61 and half at 0.65: squares of 10 · 0.02², and two more of 1 / (12 · 15²) each in all.
    fine = levels([0.61, 0.65], [1.0, 1.0], bins=[9, 9], size=10)
    whole = levels([0.63], [1.0], bins=[9], size=10)
    n = 4000
    mass = torch.tensor([1.0] * n + [0.5] * n).double().unsqueeze(1)
    same, right = module._vary_within_bins((mass, mass / 2), fine, whole, n_resamples=n // 2, rng=rng())
    assert torch.equal(same, mass)
    moved = (right - mass / 2).squeeze(1)
    assert float(moved[: n // 2].abs().max()) == 0
    variance = (10 * 0.02**2 + 2 / (12 * 15**2)) / 12
    # The standard error of a standard deviation of 2,000 and 4,000 is 1.6 % and 1.1 %.
    assert float(moved[n // 2 : n].std()) == pytest.approx(math.sqrt(variance / 10), rel=0.06)
    assert float(moved[n:].std()) == pytest.approx(math.sqrt(variance / 20), rel=0.05)


def test_mass_intervals_have_their_own_worlds_draws_and_truths(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = some_summary()
    given = levels_of(summary.grid, size=summary.effective_n, n_bins=summary.n_bins)
    seen: dict[str, dict[str, Any]] = {}

    def invert(of: Levels, worlds: Tensor, data: tuple[Tensor, Tensor], metric: Any, **options: Any) -> Range:
        key = next((name for name, known in BATCHED.items() if known is metric), "ece_debiased")
        seen[key] = {"worlds": worlds, "metric": metric, "rows": len(data[0]), **options}
        return Range(0.0, 1.0)

    monkeypatch.setattr(module, "_invert", invert)
    values = {key: 0.1 for key in KEYS}
    keys = {"ace", "sece", "smece", "ece_debiased", "mmce"}
    module._mass_intervals(given, keys=sorted(keys), values=values, n_resamples=10, rng=rng())
    assert set(seen) == keys
    for key, part in seen.items():
        family = worlds_by_embedding if key == "mmce" else worlds_by_mean_gap
        assert torch.equal(part["worlds"], family(given, given.mass_index)), key
        assert part["rows"] == 10 * len(part["worlds"]), key
        # More is drawn from the calibrated world, which says whether an interval begins at zero.
        assert len(part["null"]) == 30, key
        assert part["noise"].shape == (len(part["worlds"]), 10), key
        if key != "ece_debiased":
            assert part["in_truth"] is part["metric"], key
    debiased = seen["ece_debiased"]
    assert (debiased["metric"].keywords, debiased["in_truth"].keywords) == ({"size": given.size}, {"size": math.inf})


@pytest.mark.parametrize(("n_bins", "calls"), [(128, 1), (129, 2)])
def test_intervals_of_kernels_have_at_most_128_gaps(n_bins: int, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[set[str], int]] = []

    def by_mass(given: Levels, *, keys: Sequence[str], **_: Any) -> dict[str, Range]:
        seen.append((set(keys), given.n_bins))
        return {key: Range(0.0, 1.0) for key in keys}

    def of_area(given: Levels, **_: Any) -> tuple[Range, float]:
        assert given.n_bins == 128
        return Range(0.0, 1.0), 0.5

    monkeypatch.setattr(module, "_mass_intervals", by_mass)
    monkeypatch.setattr(module, "aurc_interval", of_area)
    summary = some_summary(n_bins=n_bins)
    null = torch.zeros(99, dtype=torch.float64)
    found = score_intervals(summary, values=values_of_summary(summary), null=null, n_resamples=5, rng=rng())
    assert set(found) == set(KEYS)
    bins, kernels = {"ace", "ece_debiased"}, {"sece", "smece", "mmce"}
    assert seen == ([(bins | kernels, 128)] if calls == 1 else [(bins, 129), (kernels, 128)])


@pytest.mark.parametrize(("bins", "drawn"), [(128, 100), (256, 50), (1000, 20)])
def test_binned_intervals_draw_less_where_there_are_many_bins(bins: int, drawn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def draw(worlds: Tensor, given: Levels, *, n_resamples: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        asked.append(n_resamples)
        return draw_from(worlds, given, n_resamples=n_resamples, rng=rng)

    monkeypatch.setattr(module, "draw_from", draw)
    middles = [(k + 0.5) / bins for k in range(bins)]
    given = levels(middles, [0.9 * c for c in middles], size=5000)
    found = binned_intervals(given, null=torch.zeros(99).double(), n_resamples=100, rng=rng())
    assert asked == [drawn] * 3
    assert 0 < found["ece"].low <= found["ece"].high < 0.1


def test_invert_ends_at_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given = levels([0.9], [0.0], size=4)
    monkeypatch.setattr(module, "accepted_range", lambda *_, **__: (0.2, 1.7))
    drawn = torch.ones(4, 1, dtype=torch.float64)
    assert module._invert(given, torch.zeros(2, 1).double(), (drawn, drawn), BATCHED["ece"]) == Range(0.2, 1.0)


@pytest.mark.parametrize("found", [(Range(0.2, 0.3), Range(0.1, 0.4)), (Range(0.1, 0.4), Range(0.2, 0.3))])
def test_classwise_interval_holds_those_of_both_families(found: tuple[Range, Range], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = iter(found)
    monkeypatch.setattr(module, "_invert_classwise", lambda *_: next(parts))
    assert classwise_interval(some_summary(), n_resamples=5, rng=rng()) == Range(0.1, 0.4)


@pytest.mark.parametrize(("num_classes", "n_resamples"), [(2, 200), (300, 40)])
def test_classwise_interval_draws_less_where_there_is_more_to_draw(
    num_classes: int, n_resamples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def invert(given: Levels, worlds: Tensor, of_class: Tensor, n: int, _: np.random.Generator) -> Range:
        asked.append((given.size, n))
        return Range(0.0, 1.0)

    monkeypatch.setattr(module, "_invert_classwise", invert)
    classwise_interval(some_summary(num_classes=num_classes), n_resamples=200, rng=rng())
    # Every class has all examples.
    assert asked == [(500 * num_classes, n_resamples)] * 2


def test_classwise_interval_takes_probabilities_rounded_above_one() -> None:
    probs = torch.tensor([[1 + 1.1920928955078125e-07, 0.0]] * 50)
    found = classwise_interval(summarize(Predictions(probs=probs, labels=[0] * 50)), n_resamples=20, rng=rng())
    assert found.low == 0 < found.high


def classwise_values(given: Levels, world: Tensor, of_class: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """What data from one world show, as it is handed on; the interval found is too wide and must be cut."""
    seen: list[Tensor] = []

    def accept(truth: Tensor, values: Tensor, observed: float) -> tuple[float, float]:
        seen.append(values)
        return 0.1, 5.0

    monkeypatch.setattr(module, "accepted_range", accept)
    found = module._invert_classwise(given, world.unsqueeze(0), of_class, 4000, rng())
    assert found == Range(0.1, 2 / (int(of_class.max()) + 1))
    return seen[0].squeeze(0)


def test_invert_classwise_of_a_model_that_is_always_right_varies_with_its_confidences(monkeypatch: pytest.MonkeyPatch) -> None:
    # Gaps of either class are 0.1 and 0.3, half of the examples each: a standard deviation of 0.1 over the root of 400.
    given = levels([0.1, 0.3, 0.7, 0.9] * 2, [0.0, 0.0, 1.0, 1.0] * 2, size=2 * 400)
    values = classwise_values(given, given.accuracy, torch.tensor([0] * 4 + [1] * 4), monkeypatch)
    assert float(values.mean()) == pytest.approx(0.2, rel=0.005)
    assert float(values.std()) == pytest.approx(0.1 / 20, rel=0.05)


@pytest.mark.parametrize("num_classes", [2, 5])
def test_invert_classwise_of_a_calibrated_world_widens_by_what_classes_share(
    num_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    confidence = [0.2, 0.6] * num_classes
    given = levels(confidence, confidence, size=400 * num_classes)
    of_class = torch.arange(num_classes).repeat_interleave(2)
    values = classwise_values(given, given.confidence, of_class, monkeypatch)
    count, right = draw_right(given, given.confidence, n_resamples=4000, rng=rng())
    alone = (count * given.confidence - right).abs().sum(1) / given.size
    assert float(values.mean()) == pytest.approx(float(alone.mean()), rel=1e-9)
    assert float(values.std() / alone.std()) == pytest.approx(math.sqrt(1 + 1 / (num_classes - 1)), rel=1e-6)
