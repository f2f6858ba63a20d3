"""Runs as a page sees them."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from typing import Any

import torch

from calibrant import Predictions, measure
from calibrant.core.records import Entry, Estimate
from calibrant.grid.tables import compare_table
from calibrant.report.page import give_runs_verdict, render_page
from calibrant.report.rows import group_rows
from figure_data import run_of

THEIRS: dict[str, Any] = {"preset": None, "epochs": None, "model": None}


def entry(method: str, seed: int = 0, *, error: float = 0.1, ece: float = 0.05, half: float = 0.01, **more: Any) -> Entry:
    """A run without predictions; its intervals reach ``half`` to both sides."""
    made = replace(run_of(method, seed=seed, error=error, ece=ece, **more), test=None)
    metrics = {key: Estimate(e.value, e.value - half, e.value + half) for key, e in made.scores.metrics.items()}
    return replace(made, scores=replace(made.scores, metrics=metrics))


def told(*entries: Entry) -> tuple[str, ...]:
    return give_runs_verdict(group_rows(entries)).sentences


def test_table_of_runs_gives_mean_and_deviation_or_the_interval_of_one_run() -> None:
    runs = [entry("ce", 0, error=0.10), entry("ce", 1, error=0.12), entry("focal", error=0.3)]
    page = render_page(table=compare_table(runs, metrics=("error", "ece"), test=False))
    table = page[page.rindex("<table") :]
    assert re.findall(r'<th scope="col">([^<]*)<', table) == ["Method", "Seeds", "Error (%)", "ECE (%)"]
    # Two values 2 apart: their sample deviation is the square root of two.
    assert "<b>11.000</b><small>± 1.414</small>" in table
    assert "30.000<small>29.00 – 31.00</small>" in table


def test_page_of_a_tested_table_has_its_columns_marks_and_notes() -> None:
    runs = [entry(m, seed, ece=e + seed / 1000) for m, e in (("ce", 0.05), ("focal", 0.02)) for seed in range(3)]
    runs[0] = entry("ce", ece=0.0501)
    table = compare_table(runs, metrics=("error", "ece"), calibrated=True)
    page = render_page(table=table)
    assert re.findall(r'<th scope="col">([^<]*)<', page[page.rindex("<table") :]) == table.heads
    assert "<b>2.100</b>" in page
    assert page.count('<span class="dagger">†') == 1
    assert all(note in html.unescape(page) for note in table.notes)


def test_verdict_names_the_lowest_ece_and_error_of_each_data_set() -> None:
    runs = [entry("ce", ece=0.09), entry("ce+ts", ece=0.03), entry("mmce", error=0.01, ece=0.3, data="mixture")]
    runs += [entry("focal", error=0.2, ece=0.1, data="mixture")]
    assert give_runs_verdict(group_rows(runs)).headline == "4 methods compared in 4 runs"
    first, second = told(*runs)
    assert first == (
        "digits, convnet: CE (TS) has the lowest ECE (3.00%), and the lowest error (10.0%). Some differences were not tested."
    )
    assert second == "mixture, convnet: Focal has the lowest ECE (10.0%), and MMCE has the lowest error (1.00%)."


def test_verdict_of_one_row_and_of_runs_without_numbers() -> None:
    assert told(entry("ce")) == ("digits, convnet: CE has an ECE of 5.00% and an error of 10.0%.",)
    bare = entry("bare")
    (said,) = told(replace(bare, scores=replace(bare.scores, metrics={})))
    assert "no run has both" in said


def test_verdict_leaves_out_what_has_nothing_to_be_compared_with() -> None:
    (said,) = told(entry("ce", ece=0.09), entry("focal", ece=0.04), entry("mmce", ece=0.01, error=0.01, epochs=9))
    assert said.startswith("digits, convnet: of the rows that may be compared, Focal (3 epochs) has the lowest ECE (4.00%)")
    assert "MMCE" not in said


def test_verdict_tests_three_common_seeds_in_pairs() -> None:
    # Every seed gains as much, however much seeds differ: 0.019, 0.02 and 0.021.
    first, second = (0.02, 0.05, 0.09), (0.039, 0.07, 0.111)
    runs = [entry("ce", seed, ece=ece) for seed, ece in enumerate(first)]
    (said,) = told(*runs, *(entry("focal", seed, ece=ece, error=0.2 + seed / 99) for seed, ece in enumerate(second)))
    assert "Too close" not in said
    (said,) = told(*runs, *(entry("focal", seed + 5, ece=ece, error=0.2) for seed, ece in enumerate(second)))
    # Without common seeds there is no test to be close by.
    assert "Too close" not in said
    assert said.endswith("Some differences were not tested.")


def predicted(method: str, confidence: float) -> Entry:
    """Nine of ten are right, with this confidence in all."""
    labels = (torch.arange(400) % 10 == 0).long()
    test = Predictions(probs=torch.tensor([confidence, 1 - confidence], dtype=torch.float64).repeat(400, 1), labels=labels)
    return Entry("coins", method, measure(test, n_resamples=100), preset=None, model="mlp", epochs=3, seed=0, test=test)


def test_verdict_tests_single_runs_on_their_examples_or_takes_their_intervals() -> None:
    (said,) = told(predicted("ce", 0.93), predicted("focal", 0.94), predicted("brier", 0.93 + 1e-9))
    # The same wrong answers with more confidence are worse on every resample, though intervals meet.
    assert said.endswith("Too close to call: the ECE of Brier; the error of Focal and Brier.")
    (said,) = told(entry("ce", ece=0.03), entry("focal", ece=0.049, error=0.2), entry("mmce", ece=0.051, error=0.2))
    assert said.endswith("Some differences were not tested.")
    (said,) = told(entry("ce", ece=0.03), entry("focal", ece=0.051, error=0.2), entry("mmce", ece=0.051, error=0.2))
    assert said.endswith("the lowest error (10.0%).")
