"""The sentences below a table."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from calibrant.cli.compare import show_table
from calibrant.core.scores import Entry
from calibrant.grid.export import to_json, to_latex, to_markdown
from calibrant.grid.tables import compare_table, row_notes
from made_up_runs import run_of, seeds


def test_column_says_of_all_rows_how_they_average_and_select_or_of_none() -> None:
    theirs = run_of("theirs", model=None, epochs=None, seed=None, preset=None)
    told = "train.average=no train.select=last"
    runs = [run_of("ce"), run_of("ce", told=told), run_of("flgamma-sece"), run_of("flgamma-sece", preset="paper"), theirs]
    table = compare_table(runs)
    assert [line.info("choices") for line in table.lines] == ["raw, error", "raw, last", "phase, error+nll", "raw, error", "–"]
    assert table.info[0] == "choices"
    assert [line.label for line in table.lines] == ["ce", "ce", "flgamma-sece", "flgamma-sece", "theirs"]
    assert "| ce           |        raw, last |" in to_markdown(table)
    assert json.loads(to_json(table))["sections"][0]["lines"][2]["choices"] == ["train.average=phase", "train.select=error+nll"]
    alike = compare_table([run_of("ce", told=told), run_of("flgamma-sece", told=told), theirs])
    assert "choices" not in alike.info
    assert any("raw, last in all rows" in note for note in alike.notes)
    assert not any("raw" in note for note in compare_table([theirs]).notes)


def test_caption_says_settings_that_the_runs_on_one_data_set_have_in_common() -> None:
    told = "data.val=300 optim.lr=0.2"
    runs = [
        run_of("ce", told="optim.lr=0.2"),
        *(run_of(m, data="digits", told=told) for m in ("ce", "focal")),
    ]
    notes = compare_table(runs).notes
    assert "Settings on CIFAR-10, resnet18: optim.lr=0.2." in notes
    assert "Settings on digits, resnet18: data.val=300, optim.lr=0.2." in notes


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
    assert "phase, error+nll" in stream.getvalue()
    assert "ce+ts on cifar10: a temperature ended at its bound 100000; do not trust it." in stream.getvalue()
