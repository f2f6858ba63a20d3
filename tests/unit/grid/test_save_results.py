"""Records of several runs: all are checked before the first is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from calibrant.core.entry import Entry
from calibrant.grid.results import load_result, save_result, save_results
from figure_data import run_of


def runs() -> list[Entry]:
    return [replace(run_of(method), folder=f"runs/{method}") for method in ("ce", "focal", "brier")]


def test_save_results_writes_all_with_the_note(tmp_path: Path) -> None:
    files = save_results(runs(), tmp_path / "kept", note="a test")
    assert [file.name for file in files] == [f"digits-convnet-{name}-default-seed0.json" for name in ("ce", "focal", "brier")]
    assert {load_result(file).facts["note"] for file in files} == {"a test"}
    assert save_results([], tmp_path / "kept") == []


def test_save_results_of_which_the_last_is_refused_writes_none(tmp_path: Path) -> None:
    there = save_result(replace(runs()[2], epochs=7), tmp_path)
    before = there.read_bytes()
    with pytest.raises(ValueError, match="is the record of a run of 7 epochs, and is not replaced by one of 3 epochs"):
        save_results(runs(), tmp_path)
    assert [*tmp_path.iterdir()] == [there]
    assert there.read_bytes() == before


@pytest.mark.parametrize("change", [{"epochs": 7}, {"scores": run_of(ece=0.5).scores}])
def test_save_results_of_two_runs_for_one_record_are_refused(change: dict[str, object], tmp_path: Path) -> None:
    other = replace(runs()[0], folder="elsewhere/ce", **change)
    message = r"ce-default-seed0.json: must be the record of one run, got two, runs/ce and elsewhere/ce. Leave one out."
    with pytest.raises(ValueError, match=message):
        save_results([*runs(), other], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_save_results_of_a_copy_keeps_it_once(tmp_path: Path) -> None:
    assert len(save_results([*runs(), replace(runs()[0], folder="copy")], tmp_path)) == 3


def test_save_result_of_a_gamma_that_ran_away_leaves_that_epoch_open(tmp_path: Path) -> None:
    history = tuple({"val_error": 0.1, "gamma_mean": gamma, "gamma_std": 0.1} for gamma in (1.5, float("inf"), float("nan")))
    kept = load_result(save_result(replace(run_of("flgamma"), history=history), tmp_path))
    assert kept.curve("gamma_mean") == ([1], [1.5])
    assert kept.curve("gamma_std") == ([1, 2, 3], [0.1, 0.1, 0.1])
