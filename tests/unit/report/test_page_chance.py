"""Which rows these runs do not tell from the best, by the tests of tables."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from calibrant import Predictions, measure
from calibrant.core.entry import Entry
from calibrant.core.scores import Estimate
from calibrant.grid.outputs import best_metrics, told_by, write_outputs
from calibrant.grid.reproduce import plan_reproduction, write_report
from calibrant.grid.tables import compare_table
from calibrant.report import figures, page_chance
from calibrant.report.page import verdict_of
from calibrant.report.page_chance import labels_not_told
from calibrant.report.page_content import InTable
from calibrant.report.page_runs import group_entries
from figure_data import run_of


def near(entries: list[Entry], key: str = "ece") -> list[str]:
    """Rows that are not told from the first."""
    groups = group_entries(entries)
    return labels_not_told(groups, {key: groups[0]})[key]


def seeds(method: str, *eces: float, first: int = 0) -> list[Entry]:
    return [replace(run_of(method, seed=seed, ece=ece), test=None) for seed, ece in enumerate(eces, first)]


def single(method: str, ece: float) -> Entry:
    """A run without predictions whose interval reaches 0.01 to both sides."""
    entry = replace(run_of(method, ece=ece), test=None)
    metrics = dict(entry.scores.metrics) | {"ece": Estimate(ece, ece - 0.01, ece + 0.01)}
    return replace(entry, scores=replace(entry.scores, metrics=metrics))


def test_three_common_seeds_are_tested_in_pairs() -> None:
    # Every seed gains as much, however much seeds differ: 0.019, 0.02 and 0.021.
    first, second = (0.02, 0.05, 0.09), (0.039, 0.07, 0.111)
    assert near([*seeds("ce", *first), *seeds("focal", *second)]) == []
    # Other seeds are no pairs, and two samples of this spread are one.
    assert near([*seeds("ce", *first), *seeds("focal", *second, first=5)]) == ["Focal"]


def test_two_seeds_must_be_far_apart() -> None:
    # A standard error of 0.01 with two degrees of freedom: t = 4.30 is the limit.
    apart = math.sqrt(0.5e-4)
    rows = {"ce": 0.05, "focal": 0.092, "mmce": 0.094}
    runs = {name: seeds(name, mean - apart, mean + apart) for name, mean in rows.items()}
    assert near([*runs["ce"], *runs["focal"]]) == ["Focal"]
    assert near([*runs["ce"], *runs["mmce"]]) == []
    # Two tests are corrected for being two.
    assert near([run for many in runs.values() for run in many]) == ["Focal", "MMCE"]


def test_single_runs_without_predictions_are_told_apart_by_their_intervals() -> None:
    assert near([single("ce", 0.03), single("focal", 0.049), single("mmce", 0.051)]) == ["Focal"]
    assert near([*seeds("ce", 0.03, 0.031), single("focal", 0.04), single("mmce", 0.042)]) == ["Focal"]
    assert labels_not_told([], {}) == {}


def test_any_interval_of_the_best_may_meet_that_of_another() -> None:
    best = [replace(single("ce", ece), seed=seed) for seed, ece in enumerate((0.03, 0.05))]
    # Up to 0.04 and 0.06, against one from 0.055 and one from 0.065 on.
    assert near([*best, single("focal", 0.065), single("mmce", 0.075)]) == ["Focal"]


def test_a_part_of_the_test_set_is_not_compared() -> None:
    groups = group_entries([single("ce", 0.03), single("focal", 0.035)])
    assert labels_not_told(groups, {"ece": groups[0]}) == {"ece": ["Focal"]}
    part = replace(groups[1], size_note="Of 50 test examples.")
    assert labels_not_told([groups[0], part], {"ece": groups[0]}) == {"ece": []}


def predicted(method: str, confidence: float, *, model: str = "mlp") -> Entry:
    """Nine of ten are right, with this confidence in all."""
    labels = (torch.arange(400) % 10 == 0).long()
    test = Predictions(probs=torch.tensor([confidence, 1 - confidence], dtype=torch.float64).repeat(400, 1), labels=labels)
    return Entry("coins", method, measure(test, n_resamples=100), preset=None, model=model, epochs=3, seed=0, test=test)


def test_single_runs_are_tested_on_their_examples_as_in_tables() -> None:
    runs = [predicted("ce", 0.93), predicted("focal", 0.94), predicted("brier", 0.93 + 1e-9), predicted("flsd", 0.6)]
    low, high = runs[1].scores["ece"].low, runs[0].scores["ece"].high
    assert low < high
    # The same wrong answers with more confidence are worse on every resample, though intervals meet.
    marked = [line.label for line in compare_table(runs).lines if line.cells["ece"].differs]
    assert marked == ["focal", "flsd"]
    assert near(runs) == ["Brier"]
    assert near(runs, "error") == ["Focal", "Brier", "FLSD"]


def test_single_runs_whose_intervals_do_not_meet_are_not_resampled(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(page_chance, "compare_runs", lambda first, *_: asked.append(first) or {})
    groups = group_entries([predicted("ce", 0.91), predicted("flsd", 0.6)])
    assert labels_not_told(groups, {"ece": groups[0]}) == {"ece": []}
    assert asked == []
    # Once for both metrics.
    assert labels_not_told(groups, dict.fromkeys(("ece", "error"), groups[0])) == {"ece": [], "error": ["FLSD"]}
    assert len(asked) == 1


def test_verdict_says_of_the_error_too_what_is_not_told() -> None:
    wrong = predicted("brier", 0.6)
    assert wrong.test is not None
    # Two more of 400 are wrong.
    probs = wrong.test.probs.clone()
    probs[1:3] = probs[1:3].flip(1)
    test = Predictions(probs=probs, labels=wrong.test.labels)
    more = replace(wrong, scores=measure(test, n_resamples=100), test=test)
    runs = [predicted("ce", 0.93), predicted("flsd", 0.6), more]
    assert verdict_of(entries=runs, best=best_metrics(runs)).sentences == (
        "On coins · mlp, CE has both the least calibration error (ECE 3.00%) and the least error (10.0%).",
        "FLSD has the same error.",
        "One run each is too little to tell the error of Brier from the least.",
    )


def far_apart() -> list[Entry]:
    """Three methods far from the first, of which the best differs from seed to seed."""
    eces = {"ce": (0.2, 0.2, 0.2), "ce+ts": (0.13, 0.1, 0.07), "focal": (0.1011, 0.1001, 0.0991), "mmce": (0.1012, 0.1, 0.0992)}
    return [run for method, values in eces.items() for run in seeds(method, *values)]


def test_verdict_takes_the_p_value_of_a_pair_from_the_table() -> None:
    runs = far_apart()
    table = compare_table(runs)
    # The other two of the table are told with less doubt, so that its correction leaves this p-value as it is.
    assert [line.method for line in table.lines if line.cells["ece"].differs] == ["ce+ts", "focal", "mmce"]
    told = verdict_of(entries=runs, best=best_metrics(runs), told=told_by(table, runs))
    assert told.sentences[-1] == "3 seeds are too few to tell the ECE of Focal and MMCE from the least."
    # Among the pairs with the best it would be the first of three.
    alone = verdict_of(entries=runs, best=best_metrics(runs))
    assert alone.sentences[-1] == "3 seeds are too few to tell the ECE of CE, Focal and MMCE from the least."


def test_verdict_takes_no_p_value_from_another_part_of_the_table() -> None:
    first, other = InTable(0, True), InTable(1, False, {"ece": 0.001})
    groups = group_entries([*seeds("ce", 0.1, 0.2), *seeds("focal", 0.11, 0.21)], told=[first] * 2 + [other] * 2)
    assert labels_not_told(groups, {"ece": groups[0]}) == {"ece": ["Focal"]}
    groups = [groups[0], replace(groups[1], told=replace(other, section=0))]
    assert labels_not_told(groups, {"ece": groups[0]}) == {"ece": []}


@pytest.mark.parametrize("way", ["compare", "reproduce"])
def test_report_does_not_say_of_a_marked_difference_that_it_is_not_told(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "draw_all", lambda *_, **__: figures.Drawing([], {}))
    if way == "compare":
        write_outputs(far_apart(), tmp_path, figures=False)
    else:
        plan = plan_reproduction("table5", data=["digits"], quick=True)
        write_report(plan, far_apart(), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "3 seeds are too few to tell the ECE of Focal and MMCE from the least." in page
