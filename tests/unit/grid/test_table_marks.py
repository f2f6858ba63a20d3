"""What a table marks, tests and leaves out, and what of it the CSV keeps."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from calibrant.core.entry import Entry
from calibrant.grid.export import to_csv
from calibrant.grid.layout import Cell, Line, Table
from calibrant.grid.paper_tables import make_paper_table
from calibrant.grid.tables import compare_table, metric_column
from calibrant.metrics.differences import compare_runs, holm, paired_t
from made_up_runs import run_of, seeds


def line(table: Table, method: str) -> Line:
    return next(found for found in table.lines if found.method == method)


@pytest.mark.parametrize(("p_value", "differs"), [(0.0499, True), (0.05, False), (None, False)])
def test_cell_differs_below_the_level_that_the_note_names(p_value: float | None, differs: bool) -> None:
    assert Cell(0.1, p_value=p_value).differs is differs


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


def test_compare_table_number_of_bins_is_unknown_where_seeds_differ_in_it() -> None:
    def binned(entry: Entry, n_bins: int) -> Entry:
        return replace(entry, scores=replace(entry.scores, n_bins=n_bins))

    table = compare_table([binned(run_of("ce", seed=0), 15), binned(run_of("ce", seed=1), 10), binned(run_of("focal"), 15)])
    assert [found.bins for found in table.lines] == [None, 15]


def test_compare_table_predictions_do_not_put_the_runs_common_setting_into_their_labels() -> None:
    lr = "calibrant train --set optim.lr=0.2"
    theirs = run_of("theirs", model=None, epochs=None, preset=None, seed=None)
    table = compare_table([theirs, run_of("ce", command=lr), run_of("focal", command=lr)], test=False)
    assert [found.label for found in table.lines] == ["theirs", "ce", "focal"]
    assert "Settings: optim.lr=0.2." in table.notes


@pytest.mark.parametrize(("key", "heading"), [("ece", "ECE (%)"), ("nll", "NLL"), ("brier", "brier")])
def test_metric_column_is_in_per_cent_where_the_metric_is_a_rate(key: str, heading: str) -> None:
    assert metric_column(key).heading == heading


def test_csv_says_what_each_test_sampled() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(compare_table([*seeds("ce", 0.05), *seeds("focal", 0.08)])))))
    found = {(row["method"], row["test_over"]) for row in rows if row["metric"] == "error"}
    assert found == {("ce", ""), ("focal", "seeds")}


def test_table3_tests_nothing_as_it_has_no_row_that_others_are_measured_by() -> None:
    table = make_paper_table("table3", [*seeds("adafocal", 0.05), *seeds("flgamma-sece", 0.08)])
    assert len(table.lines) == 2
    assert [cell.p_value for found in table.lines for cell in found.cells.values()] == [None] * 4
    assert not any("†" in note or "not tested" in note for note in table.notes)


def test_table5_corrects_for_its_number_of_rows() -> None:
    runs = {name: seeds(name, error) for name, error in (("ce", 0.05), ("focal", 0.0515), ("flsd", 0.052), ("mmce", 0.0499))}
    table = make_paper_table("table5", [entry for part in runs.values() for entry in part])
    plain = [compare_runs(runs["ce"], runs[name], ["error"])["error"].p_value for name in ("focal", "flsd", "mmce")]
    found = [line(table, name).cells["cifar10:error"].p_value for name in ("focal", "flsd", "mmce")]
    assert found == holm(plain) != plain


def test_table5_has_the_papers_order_also_where_methods_differ_from_set_to_set() -> None:
    runs = [run_of("ce"), run_of("mmce"), run_of("ce", data="cifar100"), run_of("focal", data="cifar100")]
    assert [found.method for found in make_paper_table("table5", runs, test=False).lines] == ["focal", "mmce"]


def test_table5_corrects_for_the_methods_of_a_column() -> None:
    errors = {"ce": (0.05, 0.05, 0.05), "focal": (0.06, 0.061, 0.065), "mixup": (0.051, 0.05, 0.052)}
    runs = [run_of(method, error, seed=seed) for method, found in errors.items() for seed, error in enumerate(found)]
    lines = make_paper_table("table5", runs).lines
    focal, mixup = (paired_t([error - 0.05 for error in errors[method]]) for method in ("focal", "mixup"))
    assert focal < 0.05 < mixup
    found = {line.method: line.cells["cifar10:error"].p_value for line in lines}
    assert found == pytest.approx({"focal": 2 * focal, "mixup": mixup})
