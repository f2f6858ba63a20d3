from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import pytest
import torch

from calibrant.core.records import Predictions
from calibrant.grid.captions import several_best
from calibrant.grid.export import to_csv, to_json
from calibrant.grid.layout import Cell, Column, Line, Table
from calibrant.grid.markdown import to_markdown
from calibrant.grid.paper_tables import make_paper_table
from calibrant.grid.tables import compare_table
from made_up_runs import run_of, seeds


def bold(table: Table, key: str) -> list[str]:
    return [line.label for line in table.lines if key in line.cells and line.cells[key].best]


def line(table: Table, method: str, kind: str = "ours") -> Line:
    return next(found for found in table.lines if (found.method, found.kind) == (method, kind))


def test_compare_table_cell_is_mean_and_std_over_seeds() -> None:
    table = compare_table([run_of("ce", 0.05, seed=0), run_of("ce", 0.052, seed=1), run_of("focal", seed=0)])
    cell = line(table, "ce").cells["error"]
    assert cell.mean == pytest.approx(0.051)
    assert cell.std == pytest.approx(0.002 / 2**0.5)
    assert cell.values == (0.05, 0.052)
    assert line(table, "focal").cells["error"].std is None
    assert [found.info("seeds") for found in table.lines] == ["2", "1"]
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
    assert not several_best(table)


@pytest.mark.parametrize("worst", [math.nan, math.inf])
def test_compare_table_best_of_two_is_the_one_that_is_finite(worst: float) -> None:
    runs = [run_of("ce", worst), run_of("focal", 0.04)]
    assert bold(compare_table(runs, metrics=("error",), test=False), "error") == ["focal"]


def test_compare_table_bold_only_among_equal_epochs() -> None:
    runs = [run_of("ce", 0.05), run_of("focal", 0.06), run_of("flsd", 0.01, epochs=20)]
    table = compare_table(runs)
    assert bold(table, "error") == ["ce"]
    assert table.info == ("epochs", "seeds")
    assert any("same data, network, epochs" in note for note in table.notes)


def test_compare_table_of_one_row_marks_nothing() -> None:
    table = compare_table([run_of("ce")])
    assert bold(table, "error") == []
    binned = "ECE, MCE and classwise ECE over 15 bins of equal width, ACE over 15 of equal mass."
    assert table.notes == ("One run each.", binned, "350 epochs.")
    assert "ECE over 15 bins of equal width." in compare_table([run_of("ce")], metrics=("error", "ece")).notes
    assert not any("bins" in note for note in compare_table([run_of("ce")], metrics=("error", "nll")).notes)
    other = run_of("focal")
    mixed = compare_table([run_of("ce"), replace(other, scores=replace(other.scores, n_bins=10))])
    assert not any("15 bins" in note for note in mixed.notes)


def test_compare_table_takes_somebodys_predictions() -> None:
    theirs = run_of("theirs", 0.01, model=None, epochs=None, seed=None, preset=None)
    table = compare_table([run_of("ce", 0.05), run_of("focal", 0.06), theirs])
    assert [section.title for section in table.sections] == ["CIFAR-10, resnet18"]
    assert bold(table, "error") == ["theirs"]
    found = line(table, "theirs")
    assert [found.info(name) for name in table.info] == ["–", "1"]
    assert "theirs" in to_markdown(table)


def test_compare_table_one_run_and_somebodys_predictions_compete_on_equal_terms() -> None:
    def marked(of_theirs: float) -> list[str]:
        theirs = run_of("theirs", of_theirs, model=None, epochs=None, seed=None)
        return bold(compare_table([run_of("ce", 0.05, epochs=20), theirs]), "error")

    assert marked(0.9) == ["ce"]
    assert marked(0.01) == ["theirs"]


def test_compare_table_run_among_others_is_not_best_for_beating_somebody_alone() -> None:
    theirs = run_of("theirs", 0.9, 0.9, model=None, epochs=None, seed=None)
    assert bold(compare_table([run_of("ce", 0.05, epochs=20), run_of("focal", 0.04), theirs]), "error") == []


def test_compare_table_preset_is_a_column_only_where_it_differs() -> None:
    one = compare_table([run_of("ce"), run_of("flgamma-sece")])
    assert "preset" not in one.info
    assert "Preset default." in one.notes
    both = compare_table([run_of("ce"), run_of("flgamma-sece"), run_of("flgamma-sece", preset="paper")])
    assert both.info == ("preset", "seeds")
    assert [found.info("preset") for found in both.lines] == ["–", "default", "paper"]


def test_compare_table_part_of_a_test_set_is_neither_best_nor_tested_and_a_note_says_why() -> None:
    theirs = run_of("theirs", 0.01, model=None, epochs=None, seed=None, preset=None)
    part, again = (replace(theirs, method=name, scores=replace(theirs.scores, n=500)) for name in ("part", "again"))
    table = compare_table([run_of("ce", 0.05), run_of("focal", 0.06), part, again])
    assert bold(table, "error") == ["ce"]
    assert line(table, "part").cells["error"].p_value is None
    assert "part on cifar10: 500 test examples, other rows 10,000; not compared with them." in table.notes
    assert (line(table, "ce").examples, line(table, "part").examples) == (10000, 500)
    assert [row["examples"] for row in csv.DictReader(io.StringIO(to_csv(table)))][::6] == ["10000", "10000", "500", "500"]
    alone = compare_table([part, replace(again, scores=replace(run_of("x", 0.02).scores, n=500))])
    assert bold(alone, "error") == ["part"]
    assert not any("test examples" in note for note in alone.notes)


def test_compare_table_runs_on_a_part_of_a_test_set_are_not_the_best_of_each_other() -> None:
    part = [replace(run, scores=replace(run.scores, n=500)) for run in (run_of("flsd", 0.01), run_of("mmce", 0.02))]
    table = compare_table([run_of("ce", 0.05), run_of("focal", 0.06), run_of("mixup", 0.07), *part], test=False)
    assert bold(table, "error") == ["ce"]


def test_compare_table_of_one_run_here_and_seeds_there_says_how_each_was_tested() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]] * 50)
    test = Predictions(probs=probs, labels=torch.tensor([0, 1, 1, 1] * 25), split="test")
    alone = [run_of(method, data="birds", test=test) for method in ("ce", "focal")]
    table = compare_table([*seeds("ce", 0.05), *seeds("focal", 0.06), *alone], metrics=("error",))
    assert {cell.over for found in table.lines for cell in found.cells.values()} == {None, "seeds", "examples"}
    (note,) = (note for note in table.notes if note.startswith("†"))
    assert "by a paired t-test over seeds, where two rows have 3 or more in common, or by a paired bootstrap of one" in note


def test_compare_table_has_the_papers_line_once_below_the_last_of_its_method() -> None:
    table = compare_table([run_of("ce", epochs=20), run_of("focal", epochs=20), run_of("ce")], paper=True, test=False)
    told = [(found.method, found.kind, found.epochs) for found in table.lines]
    assert told == [
        ("ce", "ours", 20),
        ("focal", "ours", 20),
        ("focal", "paper", 350),
        ("ce", "ours", 350),
        ("ce", "paper", 350),
    ]


def test_paper_table_has_data_sets_in_the_papers_order_and_others_behind() -> None:
    runs = [run_of("ce", data=data) for data in ("birds", "tiny-imagenet", "apes", "cifar100", "cifar10")]
    found = make_paper_table("table1", runs, test=False)
    assert [section.data for section in found.sections] == ["cifar10", "cifar100", "tiny-imagenet", "apes", "birds"]


def test_table5_of_other_seeds_on_each_data_set_names_none() -> None:
    shared = {"cifar10": (0, 1, 2), "cifar100": (0, 1)}
    runs = [run_of(method, data=data, seed=k) for data, found in shared.items() for k in found for method in ("ce", "focal")]
    (found,) = make_paper_table("table5", runs, test=False).lines
    assert (found.seeds, found.runs) == ((), None)
    (alike,) = make_paper_table("table5", [run for run in runs if run.seed != 2], test=False).lines
    assert (alike.seeds, alike.runs) == ((0, 1), 2)


def test_paper_table_takes_runs_of_its_network_and_of_an_unknown_one() -> None:
    runs = [run_of("ce"), run_of("focal", model="mlp"), run_of("mixup", model=None)]
    assert [found.method for found in make_paper_table("table1", runs, test=False).lines] == ["ce", "mixup"]
    every = make_paper_table("table1", runs, test=False, any_model=True)
    assert sorted(found.method for found in every.lines) == ["ce", "focal", "mixup"]


def test_table5_takes_no_cross_entropy_of_another_or_unknown_network() -> None:
    unknown = run_of("ce", model=None, epochs=None, preset=None)
    with pytest.raises(ValueError, match="must hold a run of ce, and one of another method that it may be compared with"):
        make_paper_table("table5", [unknown, run_of("focal")], test=False)


def test_compare_table_where_one_row_names_its_averaging_all_rows_do() -> None:
    told = "calibrant train --set train.average=phase"
    theirs = run_of("theirs", 0.07, model=None, epochs=None, seed=None, preset=None)
    runs = [run_of("ce", 0.05), run_of("ce", 0.04, command=told), run_of("flgamma-sece", 0.06), theirs]
    table = compare_table(runs)
    assert [found.label for found in table.lines] == [
        "ce (train.average=no, train.select=error)",
        "ce (train.average=phase, train.select=error)",
        "flgamma-sece (train.average=phase, train.select=error+nll)",
        "theirs",
    ]
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert rows[0]["settings"] == "train.average=no train.select=error"
    assert json.loads(to_json(table))["sections"][0]["lines"][2]["settings"] == [
        "train.average=phase",
        "train.select=error+nll",
    ]
    plain = compare_table([runs[0], runs[2]])
    assert [found.label for found in plain.lines] == ["ce", "flgamma-sece"]


def test_compare_table_says_why_several_values_are_bold_and_whom_predictions_compete_with() -> None:
    told = "calibrant train --set train.average=phase"
    runs = [run_of("ce", 0.05), run_of("ce", 0.04, command=told), run_of("focal", 0.06), run_of("focal", 0.03, command=told)]
    several = "Several values of a column are bold, or not its lowest, where only some rows may be compared with each other."
    files = "Predictions from files, of which only the data are known, compete with all rows beside them."
    table = compare_table(runs)
    assert bold(table, "error") == ["ce (train.average=no)", "focal (train.average=phase)"]
    assert (several in table.notes, files in table.notes) == (True, False)
    theirs = run_of("theirs", 0.01, 0.01, model=None, epochs=None, seed=None, preset=None)
    both = compare_table([*runs[::2], theirs])
    assert (several in both.notes, files in both.notes) == (False, True)
    # One alone has nothing to be compared with, and is not marked though it is the lowest.
    short = compare_table([run_of("ce", 0.05), run_of("focal", 0.06), run_of("flsd", 0.01, 0.01, epochs=20)])
    assert bold(short, "error") == ["ce"]
    assert several in short.notes
    assert several not in compare_table([run_of("ce", 0.05), run_of("focal", 0.06)]).notes


def test_compare_table_says_where_the_paper_has_no_number_of_any_row() -> None:
    said = "The paper has no numbers for these data, networks and methods."
    assert said in compare_table([run_of("ce", data="digits")], paper=True).notes
    assert said not in compare_table([run_of("ce", data="digits")]).notes
    assert said not in compare_table([run_of("ce")], paper=True).notes


def test_compare_table_own_settings_are_in_the_label_common_ones_in_a_note() -> None:
    command = "calibrant train --set train.batch_size=64"
    runs = [run_of("ce", command=command), run_of("flgamma", command=f"{command} --set method.options.every=8")]
    table = compare_table(runs)
    assert [found.label for found in table.lines] == ["ce", "flgamma (method.options.every=8)"]
    assert "Settings: train.batch_size=64." in table.notes


def test_compare_table_what_a_method_chooses_and_others_are_told_is_common() -> None:
    told = "calibrant train --set train.average=phase --set train.select=error+nll"
    runs = [run_of("ce", 0.05, command=told), run_of("flgamma-sece", 0.04, command="calibrant train", preset="default")]
    table = compare_table(runs)
    assert [found.label for found in table.lines] == ["ce", "flgamma-sece"]
    assert "Settings: train.average=phase, train.select=error+nll." in table.notes
    assert bold(table, "error") == ["flgamma-sece"]
    other = compare_table([runs[0], run_of("flgamma-sece", 0.04, command="calibrant train", preset="paper")])
    assert other.lines[0].label == "ce (train.average=phase, train.select=error+nll)"
    assert bold(other, "error") == []


def test_compare_table_marks_what_differs_from_the_first_row() -> None:
    table = compare_table([*seeds("ce", 0.05), *seeds("focal", 0.08), *seeds("flsd", 0.05001)])
    assert line(table, "focal").cells["error"].differs
    assert line(table, "ce").cells["error"].p_value is None
    assert [cell for cell in to_markdown(table).split("|") if "†" in cell and "8." in cell]
    assert any("paired t-test over seeds" in note and "Holm" in note for note in table.notes)
    assert not any(
        cell.p_value for found in compare_table(seeds("ce", 0.05), test=False).lines for cell in found.cells.values()
    )


def test_compare_table_corrects_for_the_number_of_rows() -> None:
    alone = compare_table([*seeds("ce", 0.05), *seeds("focal", 0.0515)])
    many = compare_table([*seeds("ce", 0.05), *seeds("focal", 0.0515), *seeds("flsd", 0.05001), *seeds("mmce", 0.04999)])
    first, second = (line(table, "focal").cells["error"].p_value for table in (alone, many))
    assert first is not None
    assert second == pytest.approx(3 * first)


def test_compare_table_untested_differences_say_so() -> None:
    table = compare_table([run_of("ce"), run_of("focal")])
    assert any(note.startswith("Differences were not tested: that takes 3 common seeds") for note in table.notes)


def test_compare_table_calibrated_column_counts_seeds() -> None:
    runs = [run_of("ce", seed=s, p_value=p) for s, p in enumerate((0.2, 0.01, 0.3))]
    some = [run_of("mmce", seed=s, p_value=p) for s, p in enumerate((0.2, 0.0004))]
    table = compare_table([*runs, run_of("focal", p_value=0.412), run_of("flsd", p_value=0.0002), *some], calibrated=True)
    shown = [found.info("calibrated") for found in table.lines]
    assert shown == ["2/3 (≥ 0.010)", "0.412", "< 0.001", "1/2 (< 0.001)"]
    assert any("perfectly calibrated" in note for note in table.notes)


def test_compare_table_paper_is_below_ours() -> None:
    table = compare_table([run_of("ce"), run_of("brier"), run_of("focal")], paper=True)
    assert [(found.method, found.kind) for found in table.lines] == [
        ("ce", "ours"),
        ("ce", "paper"),
        ("brier", "ours"),
        ("focal", "ours"),
        ("focal", "paper"),
    ]
    printed = line(table, "ce", "paper")
    assert (printed.cells["error"].mean, printed.runs, printed.epochs) == (0.04812, 5, 350)
    assert "4.812 ± 0.122" in to_markdown(table)
    assert any("Golebiowski" in note for note in table.notes)


def test_compare_table_paper_epochs_are_shown_beside_a_short_run() -> None:
    table = compare_table([run_of("ce", epochs=20)], paper=True)
    assert [found.info("epochs") for found in table.lines] == ["20", "350"]
    assert "epochs" in table.info


def test_compare_table_paper_of_densenet_is_table4() -> None:
    table = compare_table([run_of("ce", model="densenet100")], paper=True)
    assert line(table, "ce", "paper").cells["error"].mean == 0.05354


def test_compare_table_without_entries_is_refused() -> None:
    with pytest.raises(ValueError, match="`entries` must hold at least one run"):
        compare_table([])


def test_cell_that_rounds_to_zero_has_no_sign() -> None:
    assert Cell(-0.000001).shown(Column("e", "E", "e")) == ("0.000", None)
    assert Cell(-0.0123, 0.004).shown(Column("e", "E", "e", percent=False)) == ("-0.012", "0.004")


def test_table1_follows_the_order_of_the_paper() -> None:
    runs = [run_of(method) for method in ("flgamma-sece", "ls-0.05", "ce+ts", "ce", "adafocal")]
    runs += [run_of("ce", data="cifar100"), run_of("ce", model="densenet100")]
    table = make_paper_table("table1", runs)
    assert [section.title for section in table.sections] == ["CIFAR-10, resnet18", "CIFAR-100, resnet18"]
    assert [found.label for found in table.sections[0].lines] == ["CE", "CE (TS)", "LS-0.05", "FLγ-SECE"]
    assert [column.key for column in table.columns] == ["error", "nll", "ece", "mce", "ace", "classwise_ece"]


def test_table2_shows_the_gain_from_sece_over_common_seeds() -> None:
    runs = [run_of("flgamma", 0.05, 0.02, seed=0), run_of("flgamma", 0.07, 0.03, seed=1)]
    runs += [run_of("flgamma-sece", 0.05, 0.01, seed=0), run_of("flgamma-sece", 0.05, 0.012, seed=1)]
    table = make_paper_table("table2", runs)
    gain = table.lines[-1]
    assert (gain.label, gain.kind, gain.runs) == ("gain from SECE", "difference", 2)
    assert gain.cells["ece"].mean == pytest.approx(-0.014)
    assert gain.cells["ece"].std == pytest.approx(0.008 / 2**0.5)


def test_table2_compares_no_other_preset() -> None:
    table = make_paper_table("table2", [run_of("flgamma", preset="paper"), run_of("flgamma-sece")])
    assert [found.kind for found in table.lines] == ["ours", "ours"]


def test_table3_lists_published_numbers_with_their_networks() -> None:
    table = make_paper_table("table3", [run_of("adafocal", ece=0.006), run_of("ce")], paper=True)
    assert [column.key for column in table.columns] == ["ece", "error"]
    labels = [found.label for found in table.lines if found.method in ("adafocal", "dual-focal", "ce")]
    assert labels == [
        "published: Tao et al. 2023 (Dual Focal) [resnet50]",
        "published: Tao et al. 2023 (Dual Focal) [resnet110]",
        "AdaFocal",
        "published: Ghosh et al. 2022 (AdaFocal) [resnet50]",
        "published: Ghosh et al. 2022 (AdaFocal) [resnet50]",
    ]
    assert sum(found.kind == "paper" for found in table.lines) == 12


def test_table4_is_densenet_alone() -> None:
    table = make_paper_table("table4", [run_of("ce"), run_of("ce", 0.07, model="densenet100")], paper=True)
    assert [found.cells["error"].mean for found in table.lines] == [0.07, 0.05354]
    with pytest.raises(ValueError, match="table4: `entries` must hold runs of ce, .* with densenet100, got none"):
        make_paper_table("table4", [run_of("ce")])
    assert make_paper_table("table4", [run_of("ce")], any_model=True).lines[0].method == "ce"


def test_table5_is_the_difference_to_cross_entropy_of_the_same_seeds() -> None:
    runs = [run_of("ce", 0.05, 0.04, seed=0), run_of("ce", 0.06, 0.04, seed=1), run_of("ce", 0.9, 0.9, seed=2)]
    runs += [run_of("focal", 0.052, 0.03, seed=0), run_of("focal", 0.066, 0.03, seed=1)]
    runs += [run_of("ce", 0.25, 0.09, data="cifar100"), run_of("focal", 0.24, 0.05, data="cifar100")]
    table = make_paper_table("table5", runs, paper=True)
    assert [(c.key, c.group) for c in table.columns] == [
        ("cifar10:error", "CIFAR-10"),
        ("cifar10:ece", "CIFAR-10"),
        ("cifar100:error", "CIFAR-100"),
        ("cifar100:ece", "CIFAR-100"),
    ]
    ours, printed = table.lines
    assert ours.label == "Focal"
    assert table.base == "CE"
    assert ours.cells["cifar10:error"].mean == pytest.approx(0.004)
    assert ours.cells["cifar10:error"].std == pytest.approx(0.004 / 2**0.5)
    assert ours.cells["cifar100:ece"].mean == pytest.approx(-0.04)
    assert printed.cells["cifar10:ece"].mean == -0.00863
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert [(row["data"], row["metric"], row["source"]) for row in rows[:3]] == [
        ("cifar10", "error", "difference"),
        ("cifar10", "ece", "difference"),
        ("cifar100", "error", "difference"),
    ]
