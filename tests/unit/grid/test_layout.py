"""The sentences below a table."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from calibrant.cli.compare import show_table
from calibrant.core.scores import Entry
from calibrant.grid.export import to_json, to_latex, to_markdown
from calibrant.grid.tables import Line, choice_notes, compare_table, row_notes
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
    told = "data.val=300 optim.lr=0.2"
    runs = [
        run_of("ce", told="optim.lr=0.2"),
        *(run_of(m, data="digits", told=told) for m in ("ce", "focal")),
    ]
    notes = compare_table(runs).notes
    assert "Settings on CIFAR-10, resnet18: optim.lr=0.2." in notes
    assert "Settings on digits, resnet18: data.val=300, optim.lr=0.2." in notes


def test_caption_is_silent_where_all_rows_average_and_select_alike() -> None:
    told = "train.average=no train.select=last"
    alike = [run_of("ce", told=told), run_of("flgamma-sece", told=told)]
    theirs = run_of("theirs", model=None, epochs=None, seed=None, preset=None)
    for runs in ([run_of("ce"), run_of("focal"), theirs], alike, [run_of("flgamma-sece"), run_of("flgamma")]):
        assert choice_notes(compare_table(runs).lines) == []


def test_caption_names_rows_whose_labels_do_not_say_how_they_average() -> None:
    usual, own = ("train.average=no", "train.select=error"), ("train.average=phase", "train.select=error")
    ce = Line("CE", "ce", {}, choices=usual)
    gammas = [Line("FL", "flgamma", {}, choices=own, preset="paper"), Line("FL", "flgamma", {}, choices=own)]
    told = Line("CE, train.average=phase", "ce", {}, choices=own, shown=own[:1])
    assert choice_notes([ce, told, *gammas]) == [
        "CE predicts with weights as they are; all others with averaged weights (train.average=phase)."
    ]
    said = "By preset, FL (paper) and FL predict with averaged weights (train.average=phase)"
    assert choice_notes([ce, *gammas, *(replace(ce, label=name) for name in ("a", "b"))])[0].startswith(said)
    # A way of selecting that has no words of its own is named by its key.
    other = Line("FLγ", "flgamma", {}, choices=("train.average=no", "train.select=brier"))
    assert (
        "FLγ predicts with weights of an epoch chosen in another way (train.select=brier)" in choice_notes([ce, ce, other])[0]
    )


def test_caption_tells_presets_of_one_method_apart() -> None:
    table = compare_table([run_of("ce"), run_of("flgamma-sece"), run_of("flgamma-sece", preset="paper")])
    assert choice_notes(table.lines) == [
        f"By preset, flgamma-sece (default) predicts with {_AVERAGED}; all others with {_USUAL}."
    ]


def scaled(temperature: float, seed: int = 0, *, val: int = 300) -> Entry:
    entry = run_of("ce+ts", 0.05, 0.0, seed=seed)
    return replace(entry, temperature=temperature, facts={"examples": {"train": 130, "val": val, "test": 36}})


def test_caption_says_where_a_temperature_ended_at_its_bound() -> None:
    table = compare_table([*seeds("ce", 0.05), scaled(1e5, 0), scaled(1.2, 1), scaled(1e5, 2), scaled(1e-3, 3)])
    notes = [f"ce+ts on cifar10: a temperature ended at its bound {bound}; do not trust it." for bound in ("0.001", "100000")]
    assert row_notes(table) == notes
    assert set(notes) <= set(json.loads(to_json(table))["notes"])
    assert all(note in to_markdown(table) for note in notes)
    assert "ended at its bound 100000; do not trust it" in to_latex(table)


def test_caption_says_where_a_temperature_was_fitted_on_few_examples() -> None:
    few = "ce+ts on cifar10: temperatures were fitted on 14 validation examples, which are few."
    assert few in compare_table([run_of("ce"), scaled(1.4, val=14)]).notes
    usual = compare_table([replace(run_of("ce"), facts=scaled(1.4, val=14).facts), scaled(1.4, val=50)])
    assert row_notes(usual) == []


def test_terminal_says_which_rows_are_special() -> None:
    stream = io.StringIO()
    show_table(compare_table([run_of("ce"), scaled(1e5), run_of("flgamma-sece")]), console=Console(file=stream, width=300))
    assert f"By preset, flgamma-sece predicts with {_AVERAGED}; all others with {_USUAL}." in stream.getvalue()
    assert "ce+ts on cifar10: a temperature ended at its bound 100000; do not trust it." in stream.getvalue()
