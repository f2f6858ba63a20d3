"""The paper's five tables of one's own runs."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from calibrant.grid.export import to_csv
from calibrant.grid.tables import Line, Table, compare_table, paper_notes
from calibrant.metrics.paired import compare_runs, holm
from calibrant.paper.tables import make_paper_table, make_paper_tables
from made_up_runs import run_of, seeds


def line(table: Table, method: str, kind: str = "ours") -> Line:
    return next(found for found in table.lines if (found.method, found.kind) == (method, kind))


def test_paper_table_takes_runs_of_its_network_and_of_an_unknown_one() -> None:
    runs = [run_of("ce"), run_of("focal", model="mlp"), run_of("mixup", model=None)]
    assert [found.method for found in make_paper_table("table1", runs, test=False).lines] == ["ce", "mixup"]
    every = make_paper_table("table1", runs, test=False, any_model=True)
    assert sorted(found.method for found in every.lines) == ["ce", "focal", "mixup"]


def test_table5_takes_no_cross_entropy_of_another_or_unknown_network() -> None:
    unknown = run_of("ce", model=None, epochs=None, preset=None)
    with pytest.raises(ValueError, match="must hold a run of ce, and one of another method that it may be compared with"):
        make_paper_table("table5", [unknown, run_of("focal")], test=False)


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


def test_table5_corrects_for_its_number_of_rows() -> None:
    runs = {name: seeds(name, error) for name, error in (("ce", 0.05), ("focal", 0.0515), ("flsd", 0.052), ("mmce", 0.0499))}
    table = make_paper_table("table5", [entry for part in runs.values() for entry in part])
    plain = [compare_runs(runs["ce"], runs[name], ["error"])["error"].p_value for name in ("focal", "flsd", "mmce")]
    found = [line(table, name, "difference").cells["cifar10:error"].p_value for name in ("focal", "flsd", "mmce")]
    assert found == holm(plain) != plain


def test_make_paper_tables_makes_those_that_have_their_runs() -> None:
    assert list(make_paper_tables([run_of("ce")])) == ["table1"]
    assert list(make_paper_tables([run_of("ce"), run_of("flgamma"), run_of("flgamma-sece")])) == ["table1", "table2", "table5"]
    assert list(make_paper_tables([run_of("mdca"), run_of("ce-dece", model="densenet100")])) == ["table3", "table4"]
    assert make_paper_tables([run_of("brier")]) == {}
    # A short run has no cross-entropy of its length to differ from.
    assert list(make_paper_tables([run_of("ce"), run_of("focal", epochs=20)])) == ["table1"]


def test_table5_caption_says_how_cross_entropy_was_trained_and_the_common_settings() -> None:
    told = "optim.lr=0.2"
    table = make_paper_table("table5", [run_of("ce", told=told), run_of("flgamma-sece", told=told)])
    assert table.remarks == ("Weights, epoch of CE: raw, error.",)
    assert [line.info("choices") for line in table.lines] == ["phase, error+nll"]
    assert "Settings: optim.lr=0.2." in table.notes


def test_table5_says_the_seeds_of_each_data_set_where_they_differ() -> None:
    few = [replace(entry, data="cifar100") for entry in (run_of("ce", 0.05), run_of("focal", 0.06))]
    table = make_paper_table("table5", [*seeds("ce", 0.05), *seeds("focal", 0.06), *few])
    (line,) = table.lines
    assert (line.info("seeds"), line.seeds) == ("–", ())
    assert "Focal: seeds in common with CE are 4 on CIFAR-10 and 1 on CIFAR-100." in table.notes
    (line,) = make_paper_table("table5", [*seeds("ce", 0.05), *seeds("focal", 0.06)]).lines
    assert (line.info("seeds"), line.doubts) == ("4", ())


def test_table2_says_why_there_is_no_gain_between_presets() -> None:
    literal = replace(run_of("flgamma", 0.05, 0.0), preset="paper")
    table = make_paper_table("table2", [literal, run_of("flgamma-sece", 0.06, 0.0)])
    assert all(line.kind != "difference" for line in table.lines)
    assert table.remarks == (
        "No gain is given: that takes runs of FLγ and FLγ-SECE with the same preset, epochs and settings.",
    )


UNDER_TUNED = "The paper's Table 1, CIFAR-10, CE (TS), ECE: Temperature scaling seems under-tuned"


def test_table_with_the_papers_numbers_says_what_is_known_about_them_and_no_others() -> None:
    table = compare_table([run_of("ce"), run_of("ce+ts")], paper=True)
    assert [note for note in table.notes if note.startswith(UNDER_TUNED)]
    assert not any("FLSD" in note or "CIFAR-100" in note or "Table 5" in note for note in table.notes)
    for runs, paper in (([run_of("ce"), run_of("ce+ts")], False), ([run_of("ce+ts", data="digits")], True)):
        assert not any("The paper's" in note for note in compare_table(runs, paper=paper).notes)
    dense = compare_table([run_of(method, model="densenet100") for method in ("ce", "ce-sece")], paper=True)
    assert {note[:7] for note in paper_notes(dense)} == {"Table 4"}
