"""What measurements are called in words, and how their numbers are written."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from calibrant.core.records import Bins, Estimate, IfCalibrated, Paired, Scores
from calibrant.metrics.verdict import direction, verdict, worst_slice, write_interval, write_p, write_value
from calibrant.report.page import give_verdict


def made_scores(*, ece: float = 0.05, gap: float = 0.04, p_value: float = 0.0001, n: int = 1000) -> Scores:
    values = {"error": 0.2, "nll": 0.71, "brier": 0.3, "ece": ece, "signed_gap": gap}
    return Scores(
        n=n,
        num_classes=3,
        n_bins=1,
        metrics={key: Estimate(value, value - 0.01, value + 0.01) for key, value in values.items()},
        ece_if_calibrated=IfCalibrated(0.0071, 0.0103, p_value),
        bins=Bins(torch.tensor([0.0, 1.0]), torch.tensor([1000.0]), torch.tensor([0.84]), torch.tensor([0.8])),
    )


def test_write_value_in_per_cent_or_plain() -> None:
    assert write_value(0.12345, "%") == "12.35%"
    assert write_value(-0.02, "%", signed=True) == "−2.00%"
    assert write_value(0.02, "%", signed=True) == "+2.00%"
    # What rounds to nothing has no direction.
    assert [write_value(value, "%", signed=True) for value in (0.0, -0.0, -0.00001, 0.00001)] == ["0.00%"] * 4
    assert write_value(-0.00001, "nats") == "0.0000"
    assert write_value(1.23456, "nats") == "1.2346"
    assert write_value(math.inf, "nats") == "inf"
    assert [write_value(value, "nats", signed=True) for value in (math.inf, -math.inf)] == ["+inf", "−inf"]
    assert write_value(math.nan, "%") == "n/a"


def test_write_interval_drops_the_unit() -> None:
    assert write_interval(Estimate(0.5, 0.4, 0.6), "%") == "40.00 – 60.00"
    assert write_interval(Paired(0.5, -0.4, 0.6, 1.0), "", signed=True) == "−0.4000 – +0.6000"


@pytest.mark.parametrize(
    ("p_value", "text"),
    [(0.0, "p < 0.001"), (0.0123, "p = 0.012"), (0.434, "p = 0.43"), (1.0, "p = 1.00"), (math.nan, "p = n/a")],
)
def test_write_p_is_never_zero(p_value: float, text: str) -> None:
    assert write_p(p_value) == text


@pytest.mark.parametrize(
    ("scores", "word"),
    [
        (made_scores(gap=0.04), "over-confident"),
        (made_scores(gap=-0.04), "under-confident"),
        (made_scores(gap=0.005), "over- and under-confident"),
        (made_scores(gap=0.04, p_value=0.2), "no clear error"),
    ],
)
def test_direction_needs_a_gap_that_chance_does_not_explain(scores: Scores, word: str) -> None:
    assert direction(scores) == word


@pytest.mark.parametrize(("n", "p_value", "few"), [(1, 0.9, True), (199, 0.2, True), (200, 0.2, False), (20, 0.001, False)])
def test_verdict_of_few_examples_is_that_of_the_report(n: int, p_value: float, few: bool) -> None:
    scores = made_scores(n=n, p_value=p_value)
    page = give_verdict(scores, None)
    headline = "Too few examples to see an error"
    assert [page.headline == headline, verdict(scores).startswith(headline + ": an ECE of 5.00% is what")] == [few, few]
    assert verdict(made_scores(n=1, p_value=0.9)).endswith("shows on 1 example (0.71% on average, rarely over 1.03%).")


def test_verdict_says_how_sure_how_right_and_whether_it_is_real() -> None:
    assert verdict(made_scores()) == (
        "Over-confident: 84.0% sure on average, 80.0% right; the ECE is 5.00% where a calibrated model would show 0.71% "
        "(p < 0.001)."
    )
    assert verdict(made_scores(ece=0.012, gap=-0.011)).startswith(
        "Slightly under-confident: 78.9% sure on average, 80.0% right"
    )
    assert verdict(made_scores(ece=0.2, gap=0.0)).startswith("Strongly over-confident here and under-confident there:")
    assert verdict(made_scores(ece=0.009, p_value=0.2)) == (
        "No sign of miscalibration: an ECE of 0.90% is what a perfectly calibrated model shows on 1,000 examples (0.71% on "
        "average, rarely over 1.03%)."
    )


def test_worst_slice_is_named_only_if_it_stands_out() -> None:
    fine, bad = made_scores(ece=0.008, p_value=0.4), made_scores(ece=0.09)
    # The group of the highest ECE need not be the one: a small group has more of it by chance.
    said = worst_slice(replace(fine, slices={"day": fine, "night": bad}))
    assert said == "night stands out most, with ECE 9.00%"
    assert worst_slice(replace(fine, slices={"day": fine})).startswith("none stands out")
