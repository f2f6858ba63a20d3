"""What a page says in words, for every kind of finding."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from calibrant import Predictions
from calibrant.core.records import Bins
from calibrant.core.scores import Estimate, IfCalibrated, Paired, Scores
from calibrant.metrics.verdict import judge
from calibrant.report.page import _calibrator_row, key_figures, metric_rows
from calibrant.report.page_content import Candidate, Examined, Repair
from calibrant.report.verdict import give_verdict

KEYS = ("error", "nll", "brier", "ece", "mce", "aurc", "signed_gap")
NONE = torch.empty(0)


def made(*, ece: float = 0.041, gap: float = 0.041, p_value: float = 0.001, n: int = 10_000, error: float = 0.2) -> Examined:
    values = dict.fromkeys(KEYS, 0.3) | {"error": error, "ece": ece, "signed_gap": gap}
    metrics = {key: Estimate(value, value - 0.005, value + 0.005) for key, value in values.items()}
    predictions = Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0])
    return Examined(
        predictions,
        Scores(n, 2, 15, metrics, IfCalibrated(0.006, 0.009, p_value), Bins(NONE, NONE, NONE, NONE), file="a/t.npz"),
    )


def repair(
    before: Examined,
    *,
    ece: float = 0.009,
    p_value: float = 0.001,
    name: str = "temperature",
    after_p: float = 0.4,
    error: float = 0.2,
    worse: tuple[str, ...] = (),
) -> Repair:
    after = made(ece=ece, gap=0.001, p_value=after_p, error=error)
    risen = {key: Estimate(0.4, 0.3, 0.5) for key in worse if key != "error"}
    after = replace(after, scores=replace(after.scores, metrics={**after.scores.metrics, **risen}))
    paired = {
        key: Paired(after.scores[key].value - before.scores[key].value, -0.1, 0.1, p_value if key == "ece" else 0.5)
        for key in KEYS
    } | {key: Paired(0.1, 0.05, 0.15, 0.001) for key in worse}
    tried = tuple(Candidate(other, 0.5, None, after.scores, True) for other in ("temperature", "vector", "none"))
    return Repair(name, after, paired, 5000, "val.npz", 1.9 if "temp" in name else None, True, "", tried)


def test_verdict_over_confident_says_by_how_much_and_what_repair_brings() -> None:
    before = made()
    verdict = give_verdict(before, repair(before))
    assert verdict.headline == "Over-confident by 4.1 points"
    assert verdict.tone == "over"
    assert verdict.sentences == (
        "The model is 84.1% sure on average and 80.0% right: over-confident by 4.10 points, 95% interval 3.60 to 4.60. Its "
        "calibration error (ECE) is 4.10%; a perfectly calibrated model of this size would show 0.60%.",
        "Temperature 1.90, fitted on 5,000 examples of val.npz, brings it to 0.90%, which can no longer be told from "
        "calibrated; the error rate stays at 20.0%.",
    )


def test_verdict_under_confident_gives_the_size_without_sign() -> None:
    verdict = give_verdict(made(gap=-0.05, ece=0.05), None)
    assert verdict.headline == "Under-confident by 5.0 points"
    assert verdict.tone == "under"
    assert (
        "75.0% sure on average and 80.0% right: under-confident by 5.00 points, 95% interval 4.50 to 5.50"
        in verdict.sentences[0]
    )
    assert len(verdict.sentences) == 1


def test_verdict_of_gaps_in_both_directions_names_both() -> None:
    verdict = give_verdict(made(gap=0.001, ece=0.04), None)
    assert verdict.headline == "Over-confident here, under-confident there: off by 4.0 points"
    assert verdict.tone == "both"
    assert "ECE) is 4.00%, 95% interval 3.50 to 4.50" in verdict.sentences[0]


def test_verdict_calibrated_does_not_claim_proof() -> None:
    verdict = give_verdict(made(ece=0.007, gap=0.001, p_value=0.31), None)
    assert verdict.headline == "Not distinguishable from calibrated"
    assert verdict.tone == "good"
    assert "is what chance alone shows" in verdict.sentences[0]
    assert "p = 0.31" in verdict.sentences[0]
    assert verdict.sentences[1] == "A calibration error of up to 1.20% cannot be excluded."


@pytest.mark.parametrize(
    ("p_value", "headline", "tone", "caution"),
    [
        (
            0.5,
            "Too few examples to see an error",
            "unsure",
            "With 40 examples nothing smaller than 0.90% could have been seen.",
        ),
        (0.001, "Over-confident by 4.1 points", "over", "These are only 40 examples: the direction is clear"),
    ],
)
def test_verdict_of_few_examples_says_so(p_value: float, headline: str, tone: str, caution: str) -> None:
    verdict = give_verdict(made(n=40, p_value=p_value), None)
    # What cannot be seen is not shown in the colour of what is good.
    assert (verdict.headline, verdict.tone) == (headline, tone)
    assert verdict.sentences[1].startswith(caution)


def test_verdict_of_a_repair_that_does_not_help_says_so() -> None:
    before = made()
    sentence = give_verdict(before, repair(before, ece=0.039, p_value=0.4)).sentences[-1]
    assert sentence.endswith(
        "changes it to 3.90%, a difference that chance explains (p = 0.40): this repair does not help. The examples it was "
        "fitted on seem to be unlike these, or too few; fit on examples of the kind that is to be repaired."
    )


@pytest.mark.parametrize("p_value", [0.001, 0.4])
def test_verdict_of_a_repair_that_changes_nothing_that_is_shown_does_not_claim_it(p_value: float) -> None:
    before = made(ece=0.175, gap=0.175)
    sentence = give_verdict(before, repair(before, ece=0.1749, p_value=p_value)).sentences[-1]
    assert "val.npz, leaves it at 17.5%: this repair does not help. The examples it was fitted on" in sentence


@pytest.mark.parametrize(
    ("ece", "p_value", "worse", "told"),
    [
        (0.02, 0.001, ("error", "nll"), "brings it to 2.00%, but the error rate rises from 20.0% to 30.0% and the negative "),
        (0.039, 0.4, ("nll", "brier"), "(p = 0.40), and the negative log-likelihood rises from 0.3000 to 0.4000 and the "),
    ],
)
def test_verdict_of_a_repair_that_harms_elsewhere_warns(ece: float, p_value: float, worse: tuple[str, ...], told: str) -> None:
    before = made()
    given = repair(before, ece=ece, p_value=p_value, name="vector", worse=worse, error=0.3, after_p=0.001)
    sentence = give_verdict(before, given).sentences[-1]
    assert told in sentence
    assert (
        "0.4000: this repair does harm. The examples it was fitted on seem to be unlike these, or too few; do not" in sentence
    )


def test_verdict_says_why_the_repair_may_not_be_trusted() -> None:
    before = made()
    given = replace(repair(before), doubts=("2 of 10 classes have no example in the fit data (3, 7).",))
    assert give_verdict(before, given).sentences[-1] == "2 of 10 classes have no example in the fit data (3, 7)."


def test_verdict_of_a_repair_that_harms_warns() -> None:
    before = made()
    sentence = give_verdict(before, repair(before, ece=0.08, name="isotonic")).sentences[-1]
    assert sentence.startswith("Isotonic calibration, fitted on 5,000 examples of val.npz, makes it worse here: 8.00%")
    assert sentence.endswith("do not use it.")


def test_verdict_of_doing_nothing_counts_what_was_tried() -> None:
    before = made(ece=0.007, gap=0.001, p_value=0.31)
    sentence = give_verdict(before, repair(before, name="none")).sentences[-1]
    assert sentence.startswith("Of 2 repairs tried on 5,000 examples of val.npz none was clearly better than doing nothing")
    assert sentence.endswith("the probabilities are left as they are.")
    # What was left out was not tried.
    given = repair(made(), name="none")
    failed = Candidate("platt", float("nan"), None, None, False, "needs an example of every class")
    sentence = give_verdict(made(), replace(given, candidates=(*given.candidates, failed))).sentences[-1]
    assert sentence.startswith("Of 2 repairs tried")
    assert sentence.endswith("The error remains; fit on more examples, of the kind that is to be repaired.")


def test_metric_rows_write_values_as_measure_does() -> None:
    before = made()
    rows = {row["key"]: row for row in metric_rows(before, repair(before))}
    ece = rows["ece"]
    assert (ece["before"], ece["before_interval"], ece["after"]) == ("4.10%", "3.60 – 4.60", "0.90%")
    assert (ece["change"], ece["judgement"], ece["starts_group"]) == ("−3.20%", "better", True)
    assert (rows["nll"]["before"], rows["nll"]["judgement"]) == ("0.3000", "unclear")
    assert list(rows) == ["error", "nll", "brier", "aurc", "ece", "mce", "signed_gap"]
    assert "after" not in metric_rows(before, None)[0]


def test_calibrator_rows_mark_the_chosen_and_the_failed() -> None:
    before, gain = made(), Estimate(0.2, 0.1, 0.3)
    gained = _calibrator_row(Candidate("vector", 0.51, gain, before.scores, False), "vector")
    assert (gained["name"], gained["chosen"], gained["failure"]) == ("vector", True, None)
    assert (gained["gain"], gained["gain_interval"], gained["ece"]) == ("+0.2000", "+0.1000 – +0.3000", "4.10%")
    failed = _calibrator_row(Candidate("matrix", float("nan"), None, None, False, "no minimum"), "vector")
    assert (failed["chosen"], failed["failure"], failed["ece"]) == (False, "no minimum", "")
    # Doing nothing gains nothing on itself.
    idle = _calibrator_row(Candidate("none", 0.5, gain, before.scores, True), "vector")
    assert (idle["name"], idle["gain"], idle["gain_interval"]) == ("doing nothing", "", "")


def test_key_figures_show_after_only_where_it_differs() -> None:
    before = made()
    figures = {figure["key"]: figure for figure in key_figures(before, repair(before))}
    assert (figures["ece"]["value"], figures["ece"]["after"], figures["ece"]["note"]) == (
        "4.10%",
        "0.90%",
        "0.60% if calibrated",
    )
    assert figures["error"]["after"] == ""
    assert key_figures(before, repair(before, name="none"))[0]["after"] == ""


@pytest.mark.parametrize(
    ("key", "difference", "p_value", "judgement"),
    [
        ("ece", -0.1, 0.049, "better"),
        ("ece", -0.1, 0.05, "unclear"),
        ("nll", 0.1, 0.049, "worse"),
        ("ece", -0.1, math.nan, "unclear"),
        ("ece", 0.0, 0.01, "unclear"),
        ("signed_gap", -0.1, 0.001, "less sure"),
        ("signed_gap", 0.1, 0.001, "more sure"),
    ],
)
def test_judge_calls_differences_clear_only_below_the_limit(
    key: str, difference: float, p_value: float, judgement: str
) -> None:
    assert judge(key, Paired(difference, difference - 0.05, difference + 0.05, p_value)) == judgement
