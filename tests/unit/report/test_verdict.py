"""What a page says in words, for every kind of finding."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import CALIBRATORS, Repaired, TemperatureScaling
from calibrant.core.records import Bins, Estimate, IfCalibrated, Paired, Scores
from calibrant.metrics.verdict import judge, verdict
from calibrant.report.page import Repair, give_verdict

KEYS = ("error", "nll", "brier", "ece", "mce", "aurc", "signed_gap")
NONE = torch.empty(0)


def made(*, ece: float = 0.041, gap: float = 0.041, p_value: float = 0.001, n: int = 10_000, error: float = 0.2) -> Scores:
    values = dict.fromkeys(KEYS, 0.3) | {"error": error, "ece": ece, "signed_gap": gap}
    metrics = {key: Estimate(value, value - 0.005, value + 0.005) for key, value in values.items()}
    return Scores(n, 2, 15, metrics, IfCalibrated(0.006, 0.009, p_value), Bins(NONE, NONE, NONE, NONE), file="a/t.npz")


def repair(
    before: Scores,
    *,
    ece: float = 0.009,
    p_value: float = 0.001,
    name: str = "temperature",
    after_p: float = 0.4,
    error: float = 0.2,
    worse: tuple[str, ...] = (),
    better: tuple[str, ...] = (),
) -> Repair:
    after = made(ece=ece, gap=0.001, p_value=after_p, error=error)
    moved = {key: Estimate(value, 0.1, 0.5) for keys, value in ((worse, 0.4), (better, 0.2)) for key in keys if key != "error"}
    after = replace(after, metrics={**after.metrics, **moved})
    paired = {
        key: Paired(after[key].value - before[key].value, -0.1, 0.1, p_value if key == "ece" else 0.5) for key in KEYS
    } | {key: Paired(-0.1 if key in better else 0.1, -0.2, 0.2, 0.001) for key in worse + better}
    fitted = CALIBRATORS[name]()
    if isinstance(fitted, TemperatureScaling):
        fitted.temperature_ = 1.9
    shown = Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0])
    return Repair(Repaired(fitted, shown, before, after, paired), 5000, "val.npz")


@pytest.mark.parametrize(
    ("scores", "headline", "tone", "caution"),
    [
        (made(), "Over-confident by 4.1 points", "over", ()),
        (made(gap=-0.05, ece=0.05), "Under-confident by 5.0 points", "under", ()),
        (made(gap=0.001, ece=0.04), "Over-confident here, under-confident there: off by 4.0 points", "both", ()),
        (
            made(ece=0.007, gap=0.001, p_value=0.31),
            "Not distinguishable from calibrated",
            "good",
            ("A calibration error of up to 1.20% cannot be excluded.",),
        ),
        # What cannot be seen is not shown in the colour of what is good.
        (
            made(n=40, p_value=0.5),
            "Too few examples to see an error",
            "unsure",
            ("With 40 examples, an error below 0.90% could not have been seen. Measure more before relying on it.",),
        ),
        (
            made(n=40),
            "Over-confident by 4.1 points",
            "over",
            ("These are only 40 examples: the direction is clear, the size of the error is not.",),
        ),
    ],
)
def test_verdict_says_what_was_found_and_what_not_to_conclude(
    scores: Scores, headline: str, tone: str, caution: tuple[str, ...]
) -> None:
    assert give_verdict(scores, None) == (headline, (verdict(scores), *caution), tone)


@pytest.mark.parametrize(
    ("before", "changes", "said"),
    [
        (
            made(),
            {},
            "Temperature 1.90, fitted on 5,000 examples of val.npz, brings the ECE to 0.90%, which can no longer be told from "
            "calibrated.",
        ),
        (
            made(),
            {"ece": 0.039, "p_value": 0.4},
            "changes the ECE to 3.90%, a difference that chance explains (p = 0.40): this repair does not help. The examples "
            "it was fitted on seem to be unlike these, or too few; fit on examples of the kind that is to be repaired.",
        ),
        (made(ece=0.175, gap=0.175), {"ece": 0.1749}, "leaves the ECE at 17.5%: this repair does not help."),
        (
            made(),
            {"ece": 0.02, "name": "vector", "worse": ("error", "nll"), "error": 0.3, "after_p": 0.001},
            "brings the ECE to 2.00%; the error rate goes from 20.00% to 30.00%; the negative log-likelihood goes "
            "from 0.3000 to 0.4000: this repair does harm. The examples it was fitted on seem to be unlike these, or too few;",
        ),
        (
            made(),
            {"ece": 0.039, "p_value": 0.4, "name": "vector", "worse": ("nll", "brier"), "after_p": 0.001},
            "(p = 0.40); the negative log-likelihood goes from 0.3000 to 0.4000; the Brier score",
        ),
        # What the ECE does not show.
        (
            made(ece=0.007, gap=0.001, p_value=0.31),
            {"p_value": 0.4, "worse": ("nll",)},
            "goes from 0.3000 to 0.4000: this repair does harm.",
        ),
        (
            made(ece=0.007, gap=0.001, p_value=0.31),
            {"p_value": 0.4, "better": ("nll",)},
            "chance explains (p = 0.40); the negative log-likelihood goes from 0.3000 to 0.2000.",
        ),
        (made(ece=0.007, gap=0.001, p_value=0.31), {"p_value": 0.4}, "chance explains (p = 0.40): no repair is needed."),
        (
            made(),
            {"ece": 0.08, "name": "isotonic"},
            "Isotonic calibration, fitted on 5,000 examples of val.npz, makes the ECE worse here: 8.00%",
        ),
    ],
)
def test_verdict_says_what_a_repair_brings_and_when_not_to_use_it(
    before: Scores, changes: dict[str, object], said: str
) -> None:
    assert said in give_verdict(before, repair(before, **changes)).sentences[-1]  # type: ignore[arg-type]


def test_verdict_of_doing_nothing_says_so() -> None:
    before = made(ece=0.007, gap=0.001, p_value=0.31)
    sentence = give_verdict(before, repair(before, name="none")).sentences[-1]
    assert "on 5,000 examples of val.npz, none was clearly better than doing nothing" in sentence


@pytest.mark.parametrize(
    ("key", "difference", "p_value", "judgement"),
    [
        ("ece", -0.1, 0.049, "better"),
        ("ece", -0.1, 0.05, "unclear"),
        ("nll", 0.1, 0.049, "worse"),
        ("ece", -0.1, math.nan, "unclear"),
        ("ece", 0.0, 0.01, "unclear"),
        ("binary_gap", -0.1, 0.001, "lower"),
        ("signed_gap", 0.1, 0.001, "higher"),
    ],
)
def test_judge_calls_differences_clear_only_below_the_limit(
    key: str, difference: float, p_value: float, judgement: str
) -> None:
    assert judge(key, Paired(difference, difference - 0.05, difference + 0.05, p_value)) == judgement


def test_verdict_says_why_the_repair_may_not_be_trusted() -> None:
    given = replace(repair(made()), doubts=("2 of 10 classes have no example in the fit data (3, 7).",))
    assert give_verdict(made(), given).sentences[-1] == given.doubts[0]
