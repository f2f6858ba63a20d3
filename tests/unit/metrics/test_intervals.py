from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant import Predictions
from calibrant.core.binning import TopLabel, cells_of, summarize, top_label
from calibrant.metrics import METRICS, Metric, adaptive_calibration_error
from calibrant.metrics.intervals import (
    Evidence,
    Inversion,
    Range,
    accepted_range,
    all_gaps,
    aurc_interval,
    bias_corrected,
    classwise_interval,
    few_gaps,
    mean_interval,
    rate_interval,
    signed_gap_interval,
    spread_of_confidences,
)
from calibrant.metrics.levels import Levels, ace_of_levels, draw_rows, ece_of_levels, levels_of
from calibrant.metrics.measure import measure, values_of
from helpers import mixed_gaps

ERRORS = ("ece", "mce", "ace", "classwise_ece", "sece", "smece", "mmce", "ece_debiased")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def levels_of_top(confidence: Tensor, correct: Tensor, *, n_bins: int = 15) -> Levels:
    return levels_of(cells_of(TopLabel(confidence.double(), correct.double())), size=len(confidence), n_bins=n_bins)


def some_levels(n: int = 3000) -> Levels:
    top = top_label(*mixed_gaps(n), where="test")
    return levels_of_top(top.confidence, top.correct)


def evidence_of(predictions: Predictions, *, seed: int = 0, n_resamples: int = 200) -> Evidence:
    return Evidence(summarize(predictions), n_resamples=n_resamples, seed=seed)


def evidence_on(levels: Levels, *, n_resamples: int = 200, seed: int = 0) -> Evidence:
    """Evidence that knows nothing but levels."""
    found = evidence_of(Predictions(probs=[[0.9, 0.1]], labels=[0]), seed=seed, n_resamples=n_resamples)
    found.levels = levels
    return found


def intervals(predictions: Predictions, *, seed: int = 0, n_resamples: int = 200) -> dict[str, Range]:
    evidence = evidence_of(predictions, seed=seed, n_resamples=n_resamples)
    values = values_of(evidence.summary)
    return {key: METRICS[key].interval(evidence, values[key]) for key in values}  # type: ignore[misc]


def sums(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([values.sum(), values.square().sum(), (values**3).sum()])


def test_mean_interval_symmetric_values_give_the_normal_interval() -> None:
    values = torch.tensor([1.0, 3.0] * 50, dtype=torch.float64)
    low, high = mean_interval(sums(values), weight=100, size=100)
    half = 1.959964 * math.sqrt(1 / 99)
    assert (low, high) == pytest.approx((2 - half, 2 + half), rel=1e-6)


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
    low, high = signed_gap_interval(evidence_on(levels_of_top(confidence, correct)), 0.0)
    # Levels are 0.0125 wide, and the score interval is a little off centre.
    assert low == pytest.approx(float(residual.mean()) - half, abs=half / 25)
    assert high == pytest.approx(float(residual.mean()) + half, abs=half / 25)


def test_signed_gap_interval_all_right_allows_for_unseen_errors() -> None:
    low, high = signed_gap_interval(evidence_on(levels_of_top(torch.full((20,), 0.999), torch.ones(20))), 0.0)
    assert low == pytest.approx(-0.001, abs=1e-6)
    # The accuracy may be as low as 0.8389.
    assert high == pytest.approx(0.999 - 0.8389, abs=1e-3)


def test_aurc_interval_all_right_ends_at_the_largest_possible_error_rate() -> None:
    levels = levels_of_top(torch.full((20,), 0.9), torch.ones(20))
    assert aurc_interval(evidence_on(levels), 0.0) == pytest.approx((0, 0.1611), abs=1e-4)
    assert aurc_interval(evidence_on(levels_of_top(torch.full((20,), 0.9), torch.zeros(20))), 1.0).high == 1


def test_bias_corrected_moves_against_a_bias() -> None:
    drawn = torch.distributions.Normal(0.0, 1.0).icdf(torch.linspace(0.0005, 0.9995, 2000, dtype=torch.float64))
    assert bias_corrected(drawn, 0.0) == pytest.approx((-1.96, 1.96), abs=0.01)
    # Resamples half a standard deviation above the value: the interval is moved by twice as much, down (the tails are few).
    assert bias_corrected(drawn, -0.5) == pytest.approx((-2.96, 0.96), abs=0.1)


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

    levels = levels_of_top(torch.from_numpy(confidence), torch.from_numpy(1 - wrong))
    found = aurc_interval(evidence_on(levels, n_resamples=4000, seed=1), area(confidence, wrong))
    other = bootstrap(
        (confidence, wrong),
        area,
        paired=True,
        vectorized=False,
        n_resamples=1500,
        method="BCa",
        random_state=np.random.default_rng(2),
    ).confidence_interval
    # The ends of 1,500 resamples vary by about 4 % of the length.
    assert found == pytest.approx((other.low, other.high), abs=0.1 * (other.high - other.low))


def rows(levels: Levels, truths: torch.Tensor) -> tuple[Levels, torch.Tensor, torch.Tensor]:
    return levels, levels.share.expand_as(truths), levels.share * truths


@pytest.mark.parametrize("family", [all_gaps, few_gaps])
def test_truths_begin_calibrated_and_are_possible(family: object) -> None:
    levels = some_levels()
    truths = family(levels, levels.bin_index)  # type: ignore[operator]
    assert truths.shape == (12, len(levels))
    assert torch.equal(truths[0], levels.confidence)
    assert float(truths.min()) >= 0
    assert float(truths.max()) <= 1


@pytest.mark.parametrize("family", [all_gaps, few_gaps])
def test_truths_true_error_rises_through_the_observed_one(family: object) -> None:
    levels = some_levels()
    truth = ece_of_levels(*rows(levels, family(levels, levels.bin_index)))  # type: ignore[operator]
    observed = float(ece_of_levels(*rows(levels, levels.accuracy.unsqueeze(0))))
    assert bool((truth.diff() > -1e-12).all())
    assert float(truth[0]) == pytest.approx(0, abs=1e-12)
    # The last of the family of few gaps is the observed truth itself.
    assert float(truth[-1]) >= observed - 1e-9


def test_draw_rows_keeps_whole_numbers_and_rounds_others_at_random() -> None:
    levels = some_levels(300)
    mass, right = draw_rows(levels, levels.confidence[None], n_resamples=50, rng=rng())
    torch.testing.assert_close(mass, levels.share.expand(50, -1))
    assert bool((right <= mass).all())
    fractions = replace(levels, count=torch.full_like(levels.share, 2.5))
    mass, right = draw_rows(fractions, levels.confidence[None], n_resamples=4000, rng=rng())
    torch.testing.assert_close(mass, levels.share.expand(4000, -1))
    # Half of the rows have two examples in a level, half three.
    chance = levels.confidence * (1 - levels.confidence)
    torch.testing.assert_close((right / mass).var(0), chance * (1 / 2 + 1 / 3) / 2, rtol=0.2, atol=0.003)


def test_draw_rows_of_calibrated_truths_show_the_equal_mass_error_of_examples() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = 0.5 + 0.5 * torch.rand(1000, generator=generator, dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], 1)
    labels = [(torch.rand(1000, generator=generator) > confidence).long() for _ in range(400)]
    expected = torch.stack([adaptive_calibration_error(probs, drawn) for drawn in labels]).mean()
    levels = levels_of_top(confidence, confidence)
    drawn = draw_rows(levels, levels.confidence[None], n_resamples=2000, rng=rng())
    # The spread of the error is 18 % of its mean: the standard error over 400 data sets is 0.9 %.
    assert float(ace_of_levels(levels, *drawn).mean() / expected) == pytest.approx(1, abs=0.02)


def normal_truths(truth: torch.Tensor, bias: torch.Tensor, *, spread: float) -> torch.Tensor:
    chances = torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64)
    z = torch.distributions.Normal(0.0, 1.0).icdf(chances)
    return (truth + bias).unsqueeze(1) + spread * z


def test_accepted_range_takes_off_a_bias() -> None:
    truth = torch.linspace(0, 10, 41, dtype=torch.float64)
    low, high = accepted_range(truth, normal_truths(truth, torch.full((41,), 2.0), spread=1.0), 8.0)
    assert low == pytest.approx(6 - 1.96, abs=0.02)
    assert high == pytest.approx(6 + 1.96, abs=0.02)


@pytest.mark.parametrize(("observed", "begins_at_zero"), [(0.945, True), (0.955, False)])
def test_accepted_range_null_rejects_where_the_p_value_does(observed: float, begins_at_zero: bool) -> None:
    # Of 99 values 0.01 ... 0.99, five reach 0.945, p = 6 / 100, and four 0.955, p = 5 / 100.
    truth = torch.linspace(0, 1, 41, dtype=torch.float64)
    drawn = normal_truths(truth, torch.full((41,), 0.5), spread=0.05)
    null = torch.arange(1, 100, dtype=torch.float64) / 100
    assert (accepted_range(truth, drawn, observed, null=null)[0] == 0) is begins_at_zero


def test_accepted_range_goes_beyond_the_last_truth_as_its_values_do() -> None:
    # The worst truth shows 1 with a spread of 0.1; having seen 1, or 1.5, the truth may be beyond it.
    truth = torch.linspace(0, 1, 11, dtype=torch.float64)
    drawn = normal_truths(truth, torch.zeros(11), spread=0.1)
    assert accepted_range(truth, drawn, 1.0) == pytest.approx((0.804, 1.196), abs=0.01)
    assert accepted_range(truth, drawn, 1.5) == pytest.approx((1.304, 1.696), abs=0.01)


def test_spread_of_confidences_is_that_of_the_gaps_between_examples() -> None:
    levels = Levels(
        share=torch.tensor([0.5, 0.5], dtype=torch.float64),
        confidence=torch.tensor([0.7, 0.9], dtype=torch.float64),
        accuracy=torch.ones(2, dtype=torch.float64),
        bin_index=torch.tensor([10, 13]),
        last_cell=torch.tensor([10, 13]),
        count=torch.tensor([200.0, 200.0]),
        size=400,
        n_bins=15,
    )
    truths = torch.stack([levels.confidence, levels.confidence + 0.1, levels.accuracy])
    found = spread_of_confidences(truths, levels, ece_of_levels, n_resamples=2000, rng=np.random.default_rng(0))
    # Gaps 0 and 0; 0.1 and 0.1; 0.3 and 0.1, whose standard deviation of 0.1 is divided by the root of 400.
    assert found.tolist() == pytest.approx([0, 0, 0.005], rel=0.06, abs=1e-12)


def calibrated(n: int, num_classes: int = 5, *, scale: float = 1.0) -> Predictions:
    """Labels drawn from the softmax of logits; probabilities from ``scale`` times as much."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, num_classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return Predictions(logits=scale * logits, labels=labels)


def test_intervals_of_calibrated_predictions_begin_at_zero() -> None:
    found = intervals(calibrated(2000))
    assert set(found) == {key for key, metric in METRICS.items() if metric.is_score and metric.read and not metric.positive}
    for key in ERRORS:
        assert found[key].low == 0, key
        assert 0 < found[key].high < (0.5 if key == "mce" else 0.1), key
    assert found["signed_gap"].low < 0 < found["signed_gap"].high


def test_intervals_of_over_confident_predictions_exclude_zero() -> None:
    predictions = calibrated(2000, scale=2.0)
    found, values = intervals(predictions), values_of(summarize(predictions))
    # The largest gap may be that of a bin with few examples, which excludes nothing.
    for key in set(ERRORS) - {"mce"}:
        assert 0 < found[key].low < found[key].high, key
        assert found[key].low < values[key], key
    assert found["signed_gap"].low > 0
    # Chance adds little to an error this large, so the interval surrounds the value.
    assert found["ece"].low < values["ece"] < found["ece"].high


def test_intervals_of_the_largest_gap_begin_near_those_of_the_mean_gap() -> None:
    # Bins with few examples hide the largest gap; that the mean gap is 20 % or more cannot be hidden by them.
    confidence = torch.cat([torch.linspace(0.6, 0.9, 1000), torch.tensor([0.2, 0.21, 0.3])]).double()
    rest = ((1 - confidence) / 9).unsqueeze(1).expand(-1, 9)
    labels = torch.cat([torch.arange(1000) % 2, torch.ones(3, dtype=torch.long)])
    found = intervals(Predictions(probs=torch.cat([confidence.unsqueeze(1), rest], dim=1), labels=labels))
    assert 0.2 < found["mce"].low < found["ece"].low + 0.01 < found["mce"].high


def test_interval_of_the_mce_asks_for_more_than_either_test_alone() -> None:
    # One bin, so that the two errors and their tests are the same: 2 % off with a standard error of 0.95 % is p = 0.035.
    found = intervals(Predictions(probs=[[0.9, 0.1]] * 1000, labels=[0] * 880 + [1] * 120), n_resamples=1000)
    assert found["ece"].low > 0
    assert found["mce"].low == 0


def test_intervals_of_sure_predictions_are_as_wide_for_the_mmce_as_for_the_others() -> None:
    # Confidences within 1e-9 of 1: if calibrated there would be no error but for rounding.
    sure = 1e-9 * torch.linspace(0.5, 1, 1000, dtype=torch.float64)
    predictions = Predictions(probs=torch.stack([1 - sure, sure], dim=1), labels=(torch.arange(1000) % 10 > 0).long())
    found = intervals(predictions)
    for key in ERRORS:
        assert 0.85 < found[key].low < 0.9 < found[key].high < 0.95, key


@pytest.mark.parametrize("right", [1.0, 0.0])
def test_intervals_of_predictions_all_right_or_all_wrong_are_as_wide_as_that_of_the_signed_gap(right: float) -> None:
    # Gaps have one sign everywhere, so these errors are the size of the signed gap; labels do not vary, confidences do.
    confidence = torch.linspace(0.55, 0.9, 1000, dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    found = intervals((Predictions(probs=probs, labels=torch.full((1000,), int(1 - right)))), n_resamples=300)
    gap = sorted(abs(end) for end in found["signed_gap"])
    for key in ("ece", "ace", "sece", "smece"):
        assert found[key] == pytest.approx(gap, abs=0.01), key
    for key in ERRORS:
        assert found[key].high - found[key].low > 0.003, key


def test_intervals_of_the_ece_vary_little_between_seeds() -> None:
    predictions = calibrated(2000, scale=1.3)
    ends = np.array([intervals(predictions, seed=s, n_resamples=1000)["ece"] for s in range(5)])
    # The ends should be known far better than the interval is wide.
    assert ends.std(0).max() < 0.06 * (ends[:, 1] - ends[:, 0]).mean()


def test_intervals_unequal_weights_are_those_of_the_effective_number() -> None:
    plain = calibrated(4000, scale=1.5)
    weights = torch.ones(4000)
    weights[1000:] = 1e-9
    weighted = Predictions(logits=plain.logits, labels=plain.labels, weights=weights)
    one = intervals(weighted)
    two = intervals(plain.subset(torch.arange(1000)))
    for key in ("error", "nll", "brier", "ece", "signed_gap"):
        assert one[key] == pytest.approx(two[key], rel=0.1, abs=0.003), key


def test_classwise_interval_of_two_classes_is_that_of_the_positive_class() -> None:
    # Two classes mirror each other, so the classwise error is the error of either.
    evidence = evidence_of(calibrated(3000, 2, scale=1.6), n_resamples=1500)
    value = values_of(evidence.summary)["classwise_ece"]
    found = classwise_interval(evidence, value)
    assert 0 < found.low < value < found.high
    # Chance: sqrt(p (1 - p) / N) of about 0.4 / sqrt(3000) = 0.007 on either side, twice.
    assert 0.015 < found.high - found.low < 0.045


def test_intervals_where_nothing_was_seen_to_be_wrong_allow_for_errors_unseen() -> None:
    # 300 right predictions do not rule out an error rate of 1 %, which costs 2 % in Brier score and 1 % in every other error.
    probs = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(300, 1)
    scores = measure(Predictions(probs=probs, labels=torch.zeros(300, dtype=torch.long)), n_resamples=300)
    for key in ("brier", *ERRORS):
        assert scores[key].value == scores[key].low == 0
        assert scores["error"].high <= scores[key].high < 0.03, key


@pytest.mark.parametrize(("key", "gap"), [("mmce", 0.04), ("smece", 0.08)])
def test_interval_of_a_kernel_error_holds_a_gap_of_one_sign(key: str, gap: float) -> None:
    # Chance gives gaps of either sign, which a kernel averages away: with truths in which those grow, 85 % of these held it.
    confidence = torch.linspace(0.3, 0.95, 400, dtype=torch.float64)
    probs, rng = torch.stack([confidence, *[(1 - confidence) / 9] * 9], dim=1), np.random.default_rng(0)
    norm = float((-(confidence[:, None] - confidence).abs() / 0.4).exp().mean().sqrt()) if key == "mmce" else 1.0
    held = []
    for seed in range(60):
        labels = torch.from_numpy(rng.random(400) > (confidence - gap).numpy()).long()
        evidence = evidence_of(Predictions(probs=probs, labels=labels), seed=seed, n_resamples=100)
        low, high = METRICS[key].interval(evidence, 0.0)  # type: ignore[misc]
        held.append(low <= gap * norm <= high)
    assert np.mean(held) >= 0.9


def test_interval_of_a_debiased_error_of_zero_reaches_to_what_it_may_have_taken_away() -> None:
    # All confidences tie, so each bin of 20 has the same 4 errors of 300, and 1.3 % is taken for chance.
    probs = torch.tensor([[1 - 1e-6, 1e-6]], dtype=torch.float64).repeat(300, 1)
    found = intervals(Predictions(probs=probs, labels=(torch.arange(300) < 4).long()))
    assert found["ece_debiased"].low == 0
    assert 4 / 300 < found["ece"].high < found["ece_debiased"].high


def test_intervals_of_scores_do_not_depend_on_other_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    predictions = Predictions(probs=mixed_gaps(400)[0], labels=mixed_gaps(400)[1])
    alone = measure(predictions, n_resamples=100)
    added = Metric(adaptive_calibration_error, label="x", read=METRICS["ace"].read, interval=Inversion(ace_of_levels, "width"))
    monkeypatch.setattr(METRICS, "_entries", {**METRICS._entries, "x": added})
    monkeypatch.setattr(METRICS, "builtin", ("x", *METRICS.builtin))
    beside = measure(predictions, n_resamples=100)
    assert "x" in beside
    assert {key: beside[key] for key in alone} == dict(alone.metrics)
