from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import numpy as np
import pytest

from calibrant import Predictions, measure
from calibrant.core.records import Entry, Estimate
from calibrant.grid.export import to_csv, to_markdown
from calibrant.grid.tables import compare_table
from calibrant.report.rows import Row, Table, columns_of
from made_up_runs import run_of, seeds


def bold(table: Table, key: str) -> list[str]:
    return [row.method for row in table.rows if key in row.cells and row.cells[key].best]


def line(table: Table, method: str, kind: str = "ours") -> Row:
    return next(found for found in table.rows if (found.method, found.kind) == (method, kind))


def test_compare_table_cell_is_mean_and_std_over_seeds() -> None:
    table = compare_table([run_of("ce", 0.05, seed=0), run_of("ce", 0.052, seed=1), run_of("focal", seed=0)])
    cell = line(table, "ce").cells["error"]
    assert cell.mean == pytest.approx(0.051)
    assert cell.std == pytest.approx(0.002 / 2**0.5)
    assert cell.values == (0.05, 0.052)
    assert line(table, "focal").cells["error"].std is None
    assert [found.info("seeds") for found in table.rows] == ["2", "1"]
    assert table.notes[0] == "Mean ± standard deviation over runs of different seeds (n − 1); Seeds is their number."


def test_compare_table_ties_as_printed_are_all_bold() -> None:
    runs = [run_of("ce", 0.05), run_of("focal", 0.0500001), run_of("flsd", 0.06)]
    table = compare_table(runs)
    assert bold(table, "error") == ["ce", "focal"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_compare_table_best_is_marked_wherever_a_row_has_no_number(place: int) -> None:
    runs = [run_of("ce", 0.05), run_of("focal", 0.04)]
    runs.insert(place, run_of("mmce", math.nan))
    table = compare_table(runs, metrics=("error",), test=False)
    assert bold(table, "error") == ["focal"]


def test_compare_table_best_of_a_metric_of_which_more_is_better_is_the_highest() -> None:
    runs = [run_of("ce", 0.05), run_of("focal", 0.06)]
    values = zip(runs, (0.7, 0.9), strict=True)
    more = [
        replace(run, scores=replace(run.scores, metrics={**run.scores.metrics, "auroc": Estimate(value, value, value)}))
        for run, value in values
    ]
    assert bold(compare_table(more, metrics=("error", "auroc"), test=False), "auroc") == ["focal"]


def test_compare_table_of_one_row_marks_nothing() -> None:
    table = compare_table([run_of("ce")])
    assert bold(table, "error") == []
    assert table.notes == ("One run each.", "All rows: 350 epochs; 15 bins.")


def test_compare_table_takes_somebodys_predictions() -> None:
    theirs = run_of("theirs", 0.01, model=None, epochs=None, seed=None, preset=None)
    table = compare_table([run_of("ce", 0.05), run_of("focal", 0.06), theirs])
    assert [section.title for section in table.sections] == ["CIFAR-10, resnet18"]
    assert bold(table, "error") == ["theirs"]
    found = line(table, "theirs")
    assert (found.info("choices"), found.info("seeds")) == ("–", "1")
    assert "theirs" in to_markdown(table)


def test_compare_table_of_two_classes_begins_with_the_error_of_the_positive_one() -> None:
    probs = np.linspace(0.01, 0.4, 200)
    labels = np.arange(200) % 10 == 0
    pair = [Predictions.from_binary(probs=given, labels=labels) for given in (probs, probs / 2)]
    entries = [Entry("fraud", f"model {k}", measure(given, n_resamples=100), test=given) for k, given in enumerate(pair)]
    assert columns_of(entries)[:3] == ("binary_ece", "binary_ace", "error")
    assert "binary_ece" not in columns_of([run_of("ce")])
    first, second = compare_table(entries, metrics=columns_of(entries)).rows
    assert first.cells["binary_ece"].mean == entries[0].scores["binary_ece"].value
    assert second.cells["binary_ece"].p_value is not None


def test_compare_table_part_of_a_test_set_is_neither_best_nor_tested_and_its_label_says_why() -> None:
    theirs = run_of("theirs", 0.01, model=None, epochs=None, seed=None, preset=None)
    part = replace(theirs, method="part", scores=replace(theirs.scores, n=500))
    table = compare_table([run_of("ce", 0.05), run_of("focal", 0.06), part])
    assert bold(table, "error") == ["ce"]
    assert line(table, "part").cells["error"].p_value is None
    assert line(table, "part").label == "part (500 examples)"
    assert [row["examples"] for row in csv.DictReader(io.StringIO(to_csv(table)))][::6] == ["10000", "10000", "500"]


def test_compare_table_several_values_are_bold_if_only_some_rows_may_be_compared() -> None:
    told = "train.average=phase"
    runs = [run_of("ce", 0.05), run_of("ce", 0.04, told=told), run_of("focal", 0.06), run_of("focal", 0.03, told=told)]
    table = compare_table(runs)
    assert [found.cells["error"].best for found in table.rows] == [True, False, False, True]
    # One alone has nothing to be compared with, and is not marked though it is the lowest.
    short = compare_table([run_of("ce", 0.05), run_of("focal", 0.06), run_of("flsd", 0.01, 0.01, epochs=20)])
    assert bold(short, "error") == ["ce"]
    # More images to train on are an advantage.
    less, more = ({"examples": {"train": count}} for count in (40000, 45000))
    unlike = [replace(run_of("ce", 0.03), facts=more), replace(run_of("flsd", 0.04), facts=more)]
    unlike += [replace(run_of("flgamma", 0.05), facts=less), replace(run_of("flgamma-sece", 0.06), facts=less)]
    table = compare_table(unlike)
    assert bold(table, "error") == ["ce", "flgamma"]
    assert [found.info("trained") for found in table.rows] == ["45,000", "45,000", "40,000", "40,000"]
    assert "trained" in table.info
    assert "trained" not in compare_table(unlike[:2]).info


def test_compare_table_what_a_method_chooses_and_others_are_told_is_common() -> None:
    told = "train.average=phase train.select=error+nll"
    runs = [run_of("ce", 0.05, told=told), run_of("flgamma-sece", 0.04, told="", preset="default")]
    table = compare_table(runs)
    assert [found.label for found in table.rows] == ["CE", "FLγ-SECE"]
    assert bold(table, "error") == ["flgamma-sece"]
    other = compare_table([runs[0], run_of("flgamma-sece", 0.04, told="", preset="paper")])
    assert bold(other, "error") == []


def test_compare_table_marks_what_differs_from_the_first_row() -> None:
    table = compare_table([*seeds("ce", 0.05), *seeds("focal", 0.08), *seeds("flsd", 0.05001)])
    assert line(table, "focal").cells["error"].differs
    assert line(table, "ce").cells["error"].p_value is None
    assert [cell for cell in to_markdown(table).split("|") if "†" in cell and "8." in cell]
    assert any("paired t-test over seeds" in note and "Holm" in note for note in table.notes)
    assert not any(cell.p_value for found in compare_table(seeds("ce", 0.05), test=False).rows for cell in found.cells.values())


def test_compare_table_corrects_for_the_number_of_rows() -> None:
    alone = compare_table([*seeds("ce", 0.05), *seeds("focal", 0.0515)])
    many = compare_table([*seeds("ce", 0.05), *seeds("focal", 0.0515), *seeds("flsd", 0.05001), *seeds("mmce", 0.04999)])
    first, second = (line(table, "focal").cells["error"].p_value for table in (alone, many))
    assert first is not None
    assert second == pytest.approx(3 * first)


def test_compare_table_calibrated_column_is_one_test_of_all_seeds() -> None:
    runs = [run_of("ce", seed=s, p_value=p) for s, p in enumerate((0.2, 0.01, 0.3))]
    some = [run_of("mmce", seed=s, p_value=p) for s, p in enumerate((0.2, 0.0004))]
    table = compare_table([*runs, run_of("focal", p_value=0.412), run_of("flsd", p_value=0.0002), *some], calibrated=True)
    shown = [found.info("calibrated") for found in table.rows]
    assert shown == ["0.030", "0.412", "< 0.001", "< 0.001"]
    assert any("perfectly calibrated" in note for note in table.notes)


def test_compare_table_tests_no_row_that_may_not_be_compared_with_the_first() -> None:
    short = [replace(entry, epochs=20) for entry in seeds("focal", 0.08)]
    table = compare_table([*seeds("ce", 0.05), *short, *seeds("flsd", 0.08)])
    assert line(table, "focal").cells["error"].p_value is None
    # A test that was not made does not count for the correction of the others.
    alone = compare_table([*seeds("ce", 0.05), *seeds("flsd", 0.08)])
    assert line(table, "flsd").cells["error"].p_value == line(alone, "flsd").cells["error"].p_value


def test_compare_table_metric_that_a_seed_lacks_is_left_out() -> None:
    whole, part = run_of("focal", seed=0), run_of("focal", seed=1)
    metrics = {key: value for key, value in part.scores.metrics.items() if key != "mce"}
    table = compare_table([run_of("ce"), whole, replace(part, scores=replace(part.scores, metrics=metrics))])
    assert "mce" not in line(table, "focal").cells
    assert line(table, "focal").cells["error"].values == (0.05, 0.05)
