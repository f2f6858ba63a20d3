"""The paper's five tables of one's own runs."""

from __future__ import annotations

import csv
import io

import pytest

from calibrant.grid.export import to_csv
from calibrant.grid.tables import compare_table, paper_notes
from calibrant.metrics.paired import compare_runs, holm
from calibrant.paper.reproduce import make_paper_table, make_paper_tables
from calibrant.report.rows import Row, Table
from made_up_runs import run_of, seeds


def line(table: Table, method: str, kind: str = "ours") -> Row:
    return next(found for found in table.rows if (found.method, found.kind) == (method, kind))


def test_table3_lists_published_numbers_with_their_networks() -> None:
    table = make_paper_table("table3", [run_of("adafocal", ece=0.006), run_of("ce")], paper=True)
    assert [column.key for column in table.columns] == ["ece", "error"]
    labels = [found.label for found in table.rows if found.method in ("adafocal", "dual-focal", "ce")]
    assert labels == [
        "published: Tao et al. 2023 (Dual Focal) [resnet50]",
        "published: Tao et al. 2023 (Dual Focal) [resnet110]",
        "AdaFocal",
        "published: Ghosh et al. 2022 (AdaFocal) [resnet50]",
        "published: Ghosh et al. 2022 (AdaFocal) [resnet50]",
    ]
    assert sum(found.kind == "paper" for found in table.rows) == 12


def test_table5_is_the_difference_to_cross_entropy_of_the_same_seeds() -> None:
    runs = [run_of("ce", 0.05, 0.04, seed=0), run_of("ce", 0.06, 0.04, seed=1), run_of("ce", 0.9, 0.9, seed=2)]
    runs += [run_of("focal", 0.052, 0.03, seed=0), run_of("focal", 0.066, 0.03, seed=1)]
    runs += [run_of("ce", 0.25, 0.09, data="cifar100"), run_of("focal", 0.24, 0.05, data="cifar100")]
    table = make_paper_table("table5", runs, paper=True)
    assert [column.heading for column in table.columns] == ["Δ Error (%)", "Δ ECE (%)"]
    ours, printed, other, _ = table.rows
    assert (ours.label, ours.seeds, table.base) == ("Focal", (0, 1), "CE")
    assert ours.cells["error"].mean == pytest.approx(0.004)
    assert ours.cells["error"].std == pytest.approx(0.004 / 2**0.5)
    assert printed.cells["ece"].mean == -0.00863
    assert other.cells["ece"].mean == pytest.approx(-0.04)
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert [(row["data"], row["metric"], row["source"]) for row in rows if row["source"] != "paper"] == [
        ("cifar10", "error", "difference"),
        ("cifar10", "ece", "difference"),
        ("cifar100", "error", "difference"),
        ("cifar100", "ece", "difference"),
    ]


def test_table5_without_a_run_to_differ_from_is_none() -> None:
    assert make_paper_table("table5", [run_of("focal")]) is None
    assert make_paper_table("table5", [run_of("ce", epochs=20), run_of("focal")]) is None
    assert make_paper_table("table1", [run_of("brier")]) is None


def test_table5_corrects_for_its_number_of_rows() -> None:
    runs = {name: seeds(name, error) for name, error in (("ce", 0.05), ("focal", 0.0515), ("flsd", 0.052), ("mmce", 0.0499))}
    table = make_paper_table("table5", [entry for part in runs.values() for entry in part])
    plain = [compare_runs(runs["ce"], runs[name], ["error"])["error"].p_value for name in ("focal", "flsd", "mmce")]
    found = [line(table, name, "difference").cells["error"].p_value for name in ("focal", "flsd", "mmce")]
    assert found == holm(plain) != plain


def test_make_paper_tables_makes_those_that_have_their_runs() -> None:
    assert list(make_paper_tables([run_of("ce")])) == ["table1"]
    runs = [run_of("ce"), run_of("flgamma"), run_of("flgamma-sece"), run_of("flgamma-sece", data="cifar100")]
    tables = make_paper_tables(runs)
    assert list(tables) == ["table1", "table2"]
    assert [section.data for section in tables["table2"].sections] == ["cifar10"]
    # Only differences that were tested say more than Table 1.
    assert list(make_paper_tables([*seeds("ce", 0.05), *seeds("focal", 0.06)])) == ["table1", "table5"]
    assert list(make_paper_tables([run_of("mdca"), run_of("adafocal")])) == ["table3"]
    # Tables of one network take no run of another, but one of an unknown one.
    runs = [run_of("ce"), run_of("focal", model="mlp"), run_of("mixup", model=None), run_of("ce-dece", model="densenet100")]
    tables = make_paper_tables(runs)
    assert list(tables) == ["table1", "table4"]
    assert [found.method for found in tables["table1"].rows if found.kind == "ours"] == ["ce", "mixup"]
    assert [found.method for found in tables["table4"].rows if found.kind == "ours"] == ["ce-dece"]
    assert make_paper_tables([run_of("brier")]) == {}


UNDER_TUNED = "The paper's Table 1, CIFAR-10, CE (TS), ECE: Temperature scaling seems under-tuned"


def test_table_with_the_papers_numbers_says_what_is_known_about_them_and_no_others() -> None:
    table = compare_table([run_of("ce"), run_of("ce+ts")], paper=True)
    assert [note for note in table.notes if note.startswith(UNDER_TUNED)]
    assert not any("FLSD" in note or "CIFAR-100" in note or "Table 5" in note for note in table.notes)
    for runs, paper in (([run_of("ce"), run_of("ce+ts")], False), ([run_of("ce+ts", data="digits")], True)):
        assert not any("The paper's" in note for note in compare_table(runs, paper=paper).notes)
    dense = compare_table([run_of(method, model="densenet100") for method in ("ce", "ce-sece")], paper=True)
    assert {note[:7] for note in paper_notes(dense)} == {"Table 4"}
