from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from calibrant.core.entry import Entry
from calibrant.core.records import Predictions
from calibrant.grid.collect import load_entries
from calibrant.grid.results import (
    entry_from_result,
    load_result,
    load_results,
    portable_command,
    result_from_entry,
    result_name,
    save_result,
)
from calibrant.metrics.measure import measure
from calibrant.metrics.sweep import bin_sweep
from helpers import mixed_gaps
from made_up_runs import run_of

ROOT = Path(__file__).parents[3]


def run(**other: object) -> Entry:
    probs, labels = mixed_gaps(400, 4)
    test = Predictions(probs=probs, labels=labels, split="test")
    history = tuple(
        {"epoch": e, "lr": 0.1 if e < 4 else 0.01, "train_loss": 1 / (e + 1), "val_error": 0.5 / (e + 1) if e % 2 else None}
        | {
            "val_ece": 0.1 if e % 2 else None,
            "test_error": 0.6 / (e + 1) if e % 2 else None,
            "test_ece": 0.2 if e % 2 else None,
        }
        | {"gamma_mean": None, "seconds": 3.0 * e}
        for e in range(6)
    )
    facts = {"command": "calibrant train --method ce --set data.root=/mnt --set train.eval_every_epochs=2", "seconds": 18.0}
    entry = Entry("cifar10", "ce", measure(test, n_resamples=20), "paper", "resnet18", 6, 1, test, history, facts=facts)
    return replace(entry, best_epoch=5, **other)  # type: ignore[arg-type]


def test_result_read_back_has_the_numbers_bins_sweep_and_curves(tmp_path: Path) -> None:
    entry = run()
    again = load_result(save_result(entry, tmp_path))
    assert (again.data, again.method, again.preset, again.model, again.epochs, again.seed, again.best_epoch) == (
        *("cifar10", "ce", "paper", "resnet18"),
        *(6, 1, 5),
    )
    assert again.scores.metrics == entry.scores.metrics
    assert again.scores.ece_if_calibrated == entry.scores.ece_if_calibrated
    for part in ("edges", "count", "confidence", "accuracy"):
        torch.testing.assert_close(getattr(again.scores.bins, part), getattr(entry.scores.bins, part), rtol=1e-9, atol=0)
    assert entry.test is not None
    expected = bin_sweep(entry.test)
    assert again.sweep is not None
    assert again.sweep.n_bins == expected.n_bins
    assert again.sweep.mce == pytest.approx(expected.mce, rel=1e-5)
    assert again.sweep.ece_if_calibrated == pytest.approx(expected.ece_if_calibrated, rel=1e-5)
    assert again.sweep.mce_if_calibrated == pytest.approx(expected.mce_if_calibrated, rel=1e-5)
    assert again.curve("test_error") == ([2, 4, 6], pytest.approx([0.3, 0.15, 0.1]))
    assert again.curve("lr") == ([1, 2, 3, 4, 5, 6], [0.1, 0.1, 0.1, 0.1, 0.01, 0.01])
    assert len(again.history) == 6
    assert again.test is None


def test_result_of_an_older_version_is_read_and_written_without_what_chance_gives() -> None:
    record = result_from_entry(run())
    for key in ("ece_if_calibrated", "mce_if_calibrated"):
        assert len(record["sweep"].pop(key)) == len(record["sweep"]["n_bins"])
    entry = entry_from_result(record)
    assert entry.sweep is not None
    assert (entry.sweep.ece_if_calibrated, entry.sweep.mce_if_calibrated) == ((), ())
    assert result_from_entry(entry)["sweep"] == record["sweep"]


def test_result_metrics_are_the_schema_of_measure() -> None:
    entry = run()
    assert result_from_entry(entry)["metrics"] == json.loads(entry.scores.to_json()) | {"file": None}


def test_result_says_no_place_of_this_machine_and_how_often_validation_was_looked_at() -> None:
    record = result_from_entry(run())
    assert record["command"] == "calibrant train --method ce --set train.eval_every_epochs=2"
    assert record["note"] == "validation looked at every 2 epochs"
    assert "seconds" not in record["history"]
    usual = replace(run(), facts={"command": "calibrant train --method ce --set train.eval_every_epochs=1"})
    assert "note" not in result_from_entry(usual)


def test_result_given_note_is_kept(tmp_path: Path) -> None:
    file = save_result(run(), tmp_path, note="by hand")
    assert json.loads(file.read_text())["note"] == "by hand"


def test_result_of_repaired_run_keeps_its_temperature_and_no_history() -> None:
    record = result_from_entry(run(method="ce+ts", temperature=1.7))
    assert record["temperature"] == 1.7
    assert "history" not in record
    assert entry_from_result(record).temperature == 1.7


def test_result_smooth_learning_rate_is_left_out() -> None:
    history = tuple({"lr": 0.1 / (e + 1), "val_error": 0.5, "test_ece": 0.1} for e in range(30))
    assert "lr" not in result_from_entry(run(history=history))["history"]


def test_result_without_predictions_keeps_what_is_known() -> None:
    record = result_from_entry(run_of("ce"))
    assert "bins" not in record
    assert "sweep" not in record
    assert entry_from_result(record).scores["ece"].value == 0.04


def test_result_name_is_data_model_method_preset_seed() -> None:
    assert result_name(run()) == "cifar10-resnet18-ce-paper-seed1.json"
    theirs = run_of("their best/one", model=None, preset=None, seed=None)
    assert result_name(theirs) == "cifar10-their-best-one.json"
    command = "calibrant train --set train.select=error+nll --set method.options.betas=0.5,0.9 --set train.eval_every_epochs=5"
    told = run_of("ce", command=command)
    assert result_name(told) == "cifar10-resnet18-ce-default-betas-0.5-0.9-select-error+nll-seed0.json"
    first, second = (run_of("ce", command=f"calibrant train --init runs/v1.2=x/{name}") for name in ("a", "b"))
    assert result_name(first) == "cifar10-resnet18-ce-default-init-runs-v1.2-x-a-seed0.json"
    long = [run_of("ce", command=f"calibrant train --init {'folder/' * 40}{name}") for name in ("a", "b")]
    names = {result_name(entry) for entry in long}
    assert len(names) == 2
    assert all(re.fullmatch(r"cifar10-resnet18-ce-default-[0-9a-f]{12}-seed0\.json", name) for name in names)
    assert result_name(first) != result_name(second)


def test_save_result_again_replaces_the_same_run_only(tmp_path: Path) -> None:
    file = save_result(run(), tmp_path)
    assert save_result(run(facts={"seconds": 1.0}), tmp_path) == file
    with pytest.raises(ValueError, match="is the record of a run of 6 epochs, and is not replaced by one of 7 epochs"):
        save_result(run(epochs=7), tmp_path)
    other, more = (run(facts={"command": f"calibrant train --set {key}.name=x"}) for key in ("optim", "data"))
    told = save_result(other, tmp_path)
    assert told != file
    with pytest.raises(ValueError, match="of 6 epochs optim.name=x, and is not replaced by one of 6 epochs data.name=x"):
        save_result(more, tmp_path)
    assert load_result(file).epochs == 6


@pytest.mark.parametrize("folder", ["taken", "taken/below", "taken/far/below"])
def test_save_result_where_a_file_lies_is_one_sentence(folder: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(NotADirectoryError, match=r"must be a folder, got the file .*taken in its place. Name another."):
        save_result(run(), tmp_path / folder)


def test_save_result_where_nothing_may_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(PermissionError, match="kept: must be a folder that can be made, got: Permission denied. Name another."):
        save_result(run(), tmp_path / "kept")


def test_result_keeps_what_the_preset_decided(tmp_path: Path) -> None:
    effective = {"train.average": "phase", "train.average_share": 0.5, "train.select": "error+nll"}
    again = load_result(save_result(run(facts={"command": "calibrant train", "effective": effective}), tmp_path))
    assert again.facts == {"command": "calibrant train", "effective": effective}


def test_save_result_keeps_lists_in_one_line(tmp_path: Path) -> None:
    text = save_result(run(), tmp_path).read_text()
    assert sum(line.strip().startswith('"mce": [') for line in text.splitlines()) == 1
    assert max(map(len, text.splitlines())) > 80
    assert text.splitlines()[1] == ' "data": "cifar10",'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": None}, "but"),
        ({"metric": {}}, "unknown key of a result 'metric'. Did you mean 'metrics'"),
        ({"bins": {"edges": [0.0, 1.0]}}, "but no `count`"),
        ({"history": {"epoch": [0, 1], "test_ece": [0.1]}}, "but zip"),
        ({"sweep": {"n_bins": [10]}}, "but no `ece`"),
        (
            {"sweep": {"n_bins": [10, 20], "ece": [0.1, 0.2], "mce": [0.3]}},
            "but `mce` of `sweep` must have a value for each of 2 numbers of bins, got 1",
        ),
        (
            {"sweep": {"n_bins": [10], "ece": [0.1], "mce": [0.3], "ece_if_calibrated": [0.1, 0.2]}},
            "but `ece_if_calibrated` of `sweep` must have a value for each of 1 numbers of bins, got 2",
        ),
    ],
)
def test_entry_from_result_malformed_names_the_key(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        entry_from_result(result_from_entry(run()) | change, where="x.json")


def test_entry_from_result_needs_data_method_and_metrics() -> None:
    with pytest.raises(ValueError, match="result: must be the record of a result, with .* got one without `method`"):
        entry_from_result({"data": "cifar10"})
    with pytest.raises(ValueError, match="a JSON object, got list"):
        entry_from_result([])  # type: ignore[arg-type]


def test_load_result_of_no_or_another_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="must be the record of a result, got nothing there"):
        load_result(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match="x.json: must be the record of a result, got: Expecting"):
        load_result(tmp_path / "x.json")


def test_load_results_of_an_empty_folder_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got none. `calibrant results add` makes them"):
        load_results(tmp_path)
    with pytest.raises(ValueError, match="nowhere: must be a folder with records of results, got nothing there"):
        load_results(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file: must be a folder with records of results, got a file"):
        load_results(tmp_path / "file")


def test_portable_command_takes_out_places_alone() -> None:
    given = "calibrant train --data-root /mnt --data cifar10 --set data.root=/x --set data.val=10 --set"
    assert portable_command(given) == "calibrant train --data cifar10 --set data.val=10 --set"


def test_committed_results_are_whole_records() -> None:
    for entry in load_results(ROOT / "results"):
        assert entry.epochs is not None
        assert entry.seed is not None
        assert {"command", "effective", "machine", "versions", "seconds", "examples"} <= set(entry.facts)
        named = {"data": entry.data, "model": entry.model, "method": entry.method, "preset": entry.preset}
        said = " ".join(f"--{flag} {value}" for flag, value in (named | {"epochs": entry.epochs, "seed": entry.seed}).items())
        assert str(entry.facts["command"]).startswith(f"calibrant train {said} ")
        assert entry.sweep is not None
        assert entry.folder is not None
        assert Path(entry.folder).name == result_name(entry)
        bins = entry.scores.bins
        # The same ECE from the bins and from the sweep as from the metrics.
        assert float((bins.weight * bins.gap.abs()).sum()) == pytest.approx(entry.scores["ece"].value, rel=1e-6)
        assert dict(zip(entry.sweep.n_bins, entry.sweep.ece, strict=True))[15] == pytest.approx(
            entry.scores["ece"].value, rel=1e-5
        )
        # Two means over 500 and over 1,000 draws, each of a standard error of about 1 %.
        assert dict(zip(entry.sweep.n_bins, entry.sweep.ece_if_calibrated, strict=True))[15] == pytest.approx(
            entry.scores.ece_if_calibrated.mean, rel=0.06
        )
        assert len(entry.sweep.mce_if_calibrated) == len(entry.sweep.n_bins)
        assert " /" not in str(entry.facts["command"]).replace("=", " ")
        if entry.history:
            assert entry.best_epoch is not None
            best = entry.history[entry.best_epoch]
            # Predicted anew at the end, in bf16; a few of 10,000 may tip over.
            assert best["test_error"] == pytest.approx(entry.scores["error"].value, abs=5e-4)


def test_load_entries_of_records_have_their_sweep_and_curves() -> None:
    entries = load_entries(ROOT / "results")
    assert [entry.sweep for entry in entries] == [entry.sweep for entry in load_results(ROOT / "results")]
    assert any(entry.curve("test_ece")[0] for entry in entries)
