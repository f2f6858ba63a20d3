from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

from rich.console import Console

from calibrant.cli.grid_table import show_table
from calibrant.core.entry import Entry
from calibrant.grid.choices import choice_notes
from calibrant.grid.doubts import doubt_notes
from calibrant.grid.export import to_csv, to_json
from calibrant.grid.latex import to_latex
from calibrant.grid.layout import Line
from calibrant.grid.markdown import to_markdown
from calibrant.grid.paper_tables import make_paper_table
from calibrant.grid.tables import compare_table
from made_up_runs import run_of, seeds

_AVERAGED = "averaged weights (train.average=phase), of an epoch chosen by validation error and NLL (train.select=error+nll)"
_USUAL = "weights as they are, of the epoch of least validation error"


def test_caption_names_rows_that_average_and_select_in_another_way() -> None:
    table = compare_table([run_of("ce"), run_of("ce+ts"), run_of("flgamma-sece"), run_of("ce-dece")])
    note = f"By preset, flgamma-sece and ce-dece predict with {_AVERAGED}; all others with {_USUAL}."
    assert note in table.notes
    assert note in json.loads(to_json(table))["notes"]
    assert "all others with weights as they are" in to_markdown(table)
    assert "train.average=phase" in to_latex(table)
    assert any("epochs and given settings (--set)" in said for said in table.notes)
    assert json.loads(to_json(table))["sections"][0]["lines"][2]["choices"] == ["train.average=phase", "train.select=error+nll"]


def test_caption_says_nothing_of_how_somebodys_predictions_were_averaged() -> None:
    theirs = run_of("theirs", model=None, epochs=None, seed=None, preset=None)
    table = compare_table([run_of("ce"), run_of("focal"), run_of("flgamma-sece"), theirs])
    assert f"By preset, flgamma-sece predicts with {_AVERAGED}; all other runs with {_USUAL}." in table.notes


def test_caption_says_settings_that_the_runs_on_one_data_set_have_in_common() -> None:
    told = "calibrant train --set data.val=300 --set optim.lr=0.2"
    runs = [
        run_of("ce", command="calibrant train --set optim.lr=0.2"),
        *(run_of(m, data="digits", command=told) for m in ("ce", "focal")),
    ]
    notes = compare_table(runs).notes
    assert "Settings: optim.lr=0.2." in notes
    assert "Settings on digits, resnet18: data.val=300." in notes


def test_caption_is_silent_where_all_rows_average_and_select_alike() -> None:
    told = "calibrant train --set train.average=no --set train.select=last"
    alike = [run_of("ce", command=told), run_of("flgamma-sece", command=told)]
    theirs = run_of("theirs", model=None, epochs=None, seed=None, preset=None)
    for runs in ([run_of("ce"), run_of("focal"), theirs], alike, [run_of("flgamma-sece"), run_of("flgamma")]):
        assert choice_notes(compare_table(runs).lines) == []


def test_caption_is_silent_where_labels_say_how_rows_average() -> None:
    runs = [run_of("ce"), run_of("ce", command="calibrant train --set train.average=phase"), run_of("flgamma-sece")]
    assert choice_notes(compare_table(runs).lines) == []


def test_caption_names_rows_whose_labels_do_not_say_how_they_average() -> None:
    usual, own = ("train.average=no", "train.select=error"), ("train.average=phase", "train.select=error")
    lines = [
        Line("CE", "ce", {}, choices=usual),
        Line("CE, train.average=phase", "ce", {}, choices=own),
        Line("FL", "flgamma", {}, choices=own, preset="paper"),
        Line("FL", "flgamma", {}, choices=own),
    ]
    assert choice_notes(lines) == [
        "By preset, CE predicts with weights as they are; all others with averaged weights (train.average=phase)."
    ]
    told = "By preset, FL (paper) and FL predict with averaged weights (train.average=phase)"
    assert choice_notes([lines[0], *lines[2:], *(replace(lines[0], label=name) for name in ("a", "b"))])[0].startswith(told)


def test_caption_tells_presets_of_one_method_apart() -> None:
    table = compare_table([run_of("ce"), run_of("flgamma-sece"), run_of("flgamma-sece", preset="paper")])
    assert choice_notes(table.lines) == [
        f"By preset, flgamma-sece (default) predicts with {_AVERAGED}; all others with {_USUAL}."
    ]


def test_caption_names_the_one_of_the_two_that_differs() -> None:
    effective = {"train.average": "no", "train.select": "nll"}
    kept = replace(run_of("flgamma"), facts={"effective": effective})
    assert choice_notes(compare_table([run_of("ce"), kept]).lines) == [
        "By preset, flgamma predicts with weights of the epoch of least validation NLL (train.select=nll); "
        "all others with weights of the epoch of least validation error."
    ]


def test_table5_caption_says_how_cross_entropy_was_trained_and_the_common_settings() -> None:
    told = "calibrant train --set optim.lr=0.2"
    table = make_paper_table("table5", [run_of("ce", command=told), run_of("flgamma-sece", command=told)])
    assert f"By preset, FLγ-SECE predicts with {_AVERAGED}; all others with {_USUAL}." in table.notes
    assert "Settings: optim.lr=0.2." in table.notes


def test_table5_differences_have_the_value_of_every_common_seed() -> None:
    table = make_paper_table("table5", [*seeds("ce", 0.05), *seeds("focal", 0.06)[1:]])
    row = next(row for row in csv.DictReader(io.StringIO(to_csv(table))) if row["metric"] == "error")
    values = [float(text) for text in row["values"].split()]
    assert (row["seeds"], row["runs"], len(values)) == ("1 2 3", "3", 3)
    assert abs(sum(values) / 3 - float(row["mean"])) < 1e-12


def test_table5_says_the_seeds_of_each_data_set_where_they_differ() -> None:
    few = [replace(entry, data="cifar100") for entry in (run_of("ce", 0.05), run_of("focal", 0.06))]
    table = make_paper_table("table5", [*seeds("ce", 0.05), *seeds("focal", 0.06), *few])
    (line,) = table.lines
    assert (line.info("seeds"), line.seeds) == ("–", ())
    assert "Focal: seeds in common with CE are 4 on CIFAR-10 and 1 on CIFAR-100." in table.notes
    (line,) = make_paper_table("table5", [*seeds("ce", 0.05), *seeds("focal", 0.06)]).lines
    assert (line.info("seeds"), line.doubts) == ("4", ())


def test_table2_gains_have_the_value_of_every_common_seed() -> None:
    table = make_paper_table("table2", [*seeds("flgamma", 0.05), *seeds("flgamma-sece", 0.06)])
    gain = next(line for line in table.lines if line.kind == "difference")
    assert gain.seeds == (0, 1, 2, 3)
    assert len(gain.cells["error"].values) == 4
    assert table.notes[-1].startswith("Gain: ")


def test_table2_says_why_there_is_no_gain_between_presets() -> None:
    literal = replace(run_of("flgamma", 0.05, 0.0), preset="paper")
    table = make_paper_table("table2", [literal, run_of("flgamma-sece", 0.06, 0.0)])
    assert all(line.kind != "difference" for line in table.lines)
    assert table.notes[-1] == (
        "No gain is given: that takes runs of FLγ and FLγ-SECE with the same preset, epochs and settings."
    )


def scaled(temperature: float, seed: int = 0, *, val: int = 300) -> Entry:
    entry = run_of("ce+ts", 0.05, 0.0, seed=seed)
    return replace(entry, temperature=temperature, facts={"examples": {"train": 130, "val": val, "test": 36}})


def test_caption_says_where_a_temperature_ended_at_its_bound() -> None:
    runs = [*seeds("ce", 0.05), scaled(1e5, 0), scaled(1.2, 1), scaled(1e5, 2), scaled(1e-3, 3)]
    table = compare_table(runs)
    notes = [
        "ce+ts on cifar10: the temperature of seed 3 ended at its bound 0.001; do not trust it.",
        "ce+ts on cifar10: the temperature of seeds 0, 2 ended at its bound 100000; do not trust it.",
    ]
    assert doubt_notes(table) == notes
    assert set(notes) <= set(json.loads(to_json(table))["notes"])
    assert all(note in to_markdown(table) for note in notes)
    assert "ended at its bound 100000; do not trust it" in to_latex(table)
    assert doubt_notes(compare_table([run_of("ce"), scaled(1e5)])) == [
        "ce+ts on cifar10: the temperature ended at its bound 100000; do not trust it."
    ]


def test_caption_says_where_a_temperature_was_fitted_on_few_examples() -> None:
    few = "ce+ts on cifar10: its temperature was fitted on 14 validation examples, which are few."
    assert few in compare_table([run_of("ce"), scaled(1.4, val=14)]).notes
    usual = compare_table([replace(run_of("ce"), facts=scaled(1.4, val=14).facts), scaled(1.4, val=50)])
    assert doubt_notes(usual) == []
    assert doubt_notes(compare_table([replace(scaled(1.4), facts={"examples": "many"})])) == []


def test_terminal_says_which_rows_are_special() -> None:
    stream = io.StringIO()
    show_table(compare_table([run_of("ce"), scaled(1e5), run_of("flgamma-sece")]), console=Console(file=stream, width=300))
    assert f"By preset, flgamma-sece predicts with {_AVERAGED}; all others with {_USUAL}." in stream.getvalue()
    assert "ce+ts on cifar10: the temperature ended at its bound 100000; do not trust it." in stream.getvalue()
