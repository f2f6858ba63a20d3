"""Runs as a page sees them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from calibrant import Predictions, measure
from calibrant.core.records import Bins
from calibrant.core.scores import Entry, Estimate, IfCalibrated, Scores
from calibrant.report.page import render_page, verdict_of
from calibrant.report.page_runs import FinishedTable, InTable, group_entries, labels_not_told, table_view
from figure_data import run_of

NONE = torch.empty(0)


def scores(error: float, ece: float) -> Scores:
    metrics = {
        key: Estimate(value, value - 0.01, value + 0.01) for key, value in (("error", error), ("ece", ece), ("nll", 0.5))
    }
    return Scores(100, 10, 15, metrics, IfCalibrated(0.01, 0.02, 0.5), Bins(NONE, NONE, NONE, NONE))


def entry(method: str, seed: int = 0, *, error: float = 0.1, ece: float = 0.05, **more: Any) -> Entry:
    history: tuple[Mapping[str, float | int | None], ...] = more.pop("history", ())
    return Entry(data=more.pop("data", "digits"), method=method, scores=scores(error, ece), seed=seed, history=history, **more)


def test_group_entries_puts_seeds_together_and_names_only_what_differs() -> None:
    many = [
        entry("ce", 0, preset="default", epochs=10, model="convnet"),
        entry("ce", 1, preset="default", epochs=10, model="convnet"),
        entry("ce", 0, preset="paper", epochs=10, model="convnet"),
        entry("flgamma-sece", 0, preset="default", epochs=10, model="convnet"),
        entry("flgamma-sece", 0, preset="default", epochs=20, model="convnet"),
        entry("ce", 0, data="cifar10"),
    ]
    groups = group_entries(many)
    assert [(group.label, group.place, len(group.runs)) for group in groups] == [
        ("CE (10 epochs)", "digits · convnet", 2),
        ("CE (paper, 10 epochs)", "digits · convnet", 1),
        ("FLγ-SECE (10 epochs)", "digits · convnet", 1),
        ("FLγ-SECE (20 epochs)", "digits · convnet", 1),
        ("CE", "CIFAR-10", 1),
    ]


def test_run_rows_give_mean_and_deviation_or_the_interval_of_one_run() -> None:
    rows = group_entries([entry("ce", 0, error=0.10), entry("ce", 1, error=0.12), entry("focal", error=0.3)])
    assert table_view(rows, ())["columns"] == {"error": "Error", "nll": "NLL", "ece": "ECE"}
    # Two values 2 apart: their sample deviation is the square root of two.
    assert rows[0].cell("error") == {"value": "11.00%", "mark": "", "spread": "± 1.41", "is_best": True}
    assert rows[1].cell("error") == {"value": "30.00%", "mark": "", "spread": "29.00 – 31.00", "is_best": False}


def test_verdict_of_runs_names_one_where_errors_tie_and_says_when_nothing_is_known() -> None:
    tie = verdict_of(entries=[entry("ce", ece=0.06), entry("ce+ts", ece=0.03)])
    assert tie.sentences == (
        "On digits, CE (TS) has both the least calibration error (ECE 3.00%) and the least error (10.0%).",
        "CE has the same error.",
    )
    bare = replace(entry("bare"), scores=replace(scores(0.2, 0.1), metrics={}))
    verdict = verdict_of(entries=[bare, replace(bare, seed=1)])
    assert verdict.headline == "bare on digits, 2 runs"
    assert verdict.sentences == ("On digits, no run has both an error and a calibration error (ECE).",)


THEIRS = {"preset": None, "epochs": None, "model": None}


def test_run_rows_show_what_a_table_says_of_them() -> None:
    info = {"Epochs": "6", "p if calibrated": "0.020"}
    told = [InTable(0, True, info=info), InTable(0, False, {"ece": 0.03, "error": 0.2}, info)]
    runs = [entry("ce"), entry("focal", ece=0.01)]
    page = render_page(entries=runs, told=told, notes=["6 epochs."])
    table = page[page.rindex("<table") :]
    assert re.findall(r'<th scope="col">([^<]*)<', table) == ["Method", "Seeds", *info, "Error", "NLL", "ECE"]
    assert table.count("<td>6</td><td>0.020</td>") == 2
    assert re.findall(r'([^>]*)<span class="dagger">', table) == ["1.00%"]
    # What it does not test is not taken for what it found no difference in.
    assert "6 epochs. Not tested: NLL." in page
    assert "Not tested" not in render_page(entries=runs)


def test_table_of_runs_can_be_opened_where_a_finished_one_has_its_numbers() -> None:
    runs = [entry("ce"), entry("focal", ece=0.01)]
    full, part = (FinishedTable("Table", ("Method", *heads), ()) for heads in (("Error (%)", "NLL", "ECE (%)"), ("ECE (%)",)))
    assert '<details class="more">' in render_page(entries=runs, tables=[full])
    assert '<details class="more">' not in render_page(entries=runs, tables=[part])


def test_verdict_of_runs_and_predictions_of_one_data_set_counts_it_once() -> None:
    runs = [entry("ce", model="convnet", epochs=4), entry("theirs", ece=0.02, **THEIRS)]
    assert verdict_of(entries=runs).headline == "2 methods on digits · convnet, 2 runs"
    assert "<title>digits · convnet</title>" in render_page(entries=runs)
    networks = [*runs, entry("ce", model="mlp", epochs=4)]
    assert verdict_of(entries=networks).headline == "2 methods on digits with 2 networks, 3 runs"
    both = [*networks, entry("ce", data="mixture", model="mlp", epochs=4)]
    assert verdict_of(entries=both).headline == "2 methods on 2 data sets, 4 runs"
    told = verdict_of(entries=[*both, entry("mine", data="?", **THEIRS)])
    assert [sentence.partition(",")[0] for sentence in told.sentences] == [
        "On digits · convnet",
        "On digits · mlp",
        "On mixture · mlp",
        "On data without a name",
    ]
    assert told.sentences[2] == "On mixture · mlp, CE has an error of 10.0% and a calibration error (ECE) of 5.00%."
    assert told.sentences[0].endswith("CE has the same error.")
    settings = [entry("ce", preset=preset) for preset in (None, "train.average=ema", "train.select=last")]
    assert verdict_of(entries=settings).headline == "3 rows of 1 method on digits, 3 runs"


def test_verdict_of_runs_leaves_out_what_may_not_be_compared() -> None:
    runs = [entry("ce", ece=0.05), entry("focal", ece=0.04), entry("mmce", ece=0.01, error=0.2)]
    best = [{"error"}, {"ece", "error"}, set()]
    told = verdict_of(entries=runs, told=[InTable(best=frozenset(keys)) for keys in best])
    assert told.sentences == (
        "On digits, Focal has both the least calibration error (ECE 4.00%) and the least error (10.0%).",
        "Rows that have no run of the same length and settings beside them are left out here.",
        "CE has the same error.",
        "One run each is too little to tell the ECE of CE from the least.",
    )


def test_page_says_of_a_part_of_the_test_set_how_large_it_is_and_compares_it_with_nothing() -> None:
    easy = entry("theirs", error=0.001, ece=0.001, **THEIRS)
    part = replace(easy, scores=replace(easy.scores, n=40))
    runs = [part, entry("ce", model="convnet", epochs=4), entry("focal", model="convnet", epochs=4, ece=0.07)]
    assert [sorted(group.told.best) for group in group_entries(runs)] == [[], ["ece", "error", "nll"], ["error", "nll"]]
    page = render_page(entries=runs)
    note = "40 test examples, other rows 100; not compared with them."
    assert f'<th scope="row">theirs<small class="note">{note}</small></th>' in page
    assert page.count('class="note">') == 1
    told = verdict_of(entries=runs)
    assert told.sentences[:2] == (
        "On digits · convnet, CE has both the least calibration error (ECE 5.00%) and the least error (10.0%).",
        "theirs is of another number of test examples and not compared.",
    )
    assert "theirs" not in "".join(told.sentences[2:])
    # Not even where nothing else is marked as the best.
    told = verdict_of(entries=runs[:2], told=[InTable(), InTable()])
    assert told.sentences[0] == "On digits · convnet, CE has an error of 10.0% and a calibration error (ECE) of 5.00%."
    assert told.headline == "2 methods on digits · convnet, 2 runs"


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
    assert near(runs) == ["Brier"]
    assert near(runs, "error") == ["Focal", "Brier", "FLSD"]


def test_verdict_takes_the_p_value_of_a_pair_from_the_table() -> None:
    """Three methods far from the first, of which the best differs from seed to seed."""
    eces = {"ce": (0.2, 0.2, 0.2), "ce+ts": (0.13, 0.1, 0.07), "focal": (0.1011, 0.1001, 0.0991), "mmce": (0.1012, 0.1, 0.0992)}
    runs = [run for method, values in eces.items() for run in seeds(method, *values)]
    tested = {"ce": InTable(0, True), "ce+ts": InTable(0, False, {"ece": 0.03})}
    told = verdict_of(entries=runs, told=[tested.get(run.method, InTable(0, False, {"ece": 0.001})) for run in runs])
    assert told.sentences[-1] == "3 seeds are too few to tell the ECE of Focal and MMCE from the least."
    # Among the pairs with the best it would be the first of three.
    assert verdict_of(entries=runs).sentences[-1] == "3 seeds are too few to tell the ECE of CE, Focal and MMCE from the least."


def test_verdict_takes_no_p_value_from_another_part_of_the_table() -> None:
    first, other = InTable(0, True), InTable(1, False, {"ece": 0.001})
    groups = group_entries([*seeds("ce", 0.1, 0.2), *seeds("focal", 0.11, 0.21)], told=[first] * 2 + [other] * 2)
    assert labels_not_told(groups, {"ece": groups[0]}) == {"ece": ["Focal"]}
    groups = [groups[0], replace(groups[1], told=replace(other, section=0))]
    assert labels_not_told(groups, {"ece": groups[0]}) == {"ece": []}
