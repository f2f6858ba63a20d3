"""What is kept of a run once its folder is gone, and old records."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from calibrant.core.records import Entry, Predictions
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.train import train
from calibrant.grid.collect import (
    entry_from_result,
    load_result,
    load_results,
    load_variants,
    pack_predictions,
    result_from_entry,
    result_name,
    save_results,
    settings_of,
    unpack_predictions,
)
from calibrant.grid.tables import compare_table
from calibrant.metrics.levels import bin_sweep
from calibrant.metrics.measure import measure
from calibrant.metrics.paired import compare_runs, paired_test
from calibrant.metrics.table import is_top_label
from calibrant.report.rows import group_rows
from helpers import mixed_gaps
from made_up_runs import run_of

ROOT = Path(__file__).parents[3]


def run(**other: object) -> Entry:
    probs, labels = mixed_gaps(400, 4)
    test = Predictions(probs=probs, labels=labels, split="test")
    history = tuple(
        {"epoch": e, "lr": 0.1 if e < 4 else 0.01, "train_loss": 1 / (e + 1), "seconds": 3.0 * e, "gamma_mean": None}
        | dict.fromkeys(("val_error", "val_ece", "test_error", "test_ece"), 0.6 / (e + 1) if e % 2 else None)
        for e in range(6)
    )
    entry = Entry("cifar10", "ce", measure(test, n_resamples=100), "paper", "resnet18", 6, 1, test, history, best_epoch=5)
    return replace(entry, recipe={"train.eval_every_epochs": 2}, facts={"seconds": 18.0}, folder="runs/ce", **other)  # type: ignore[arg-type]


def save(entry: Entry, folder: Path) -> Path:
    return save_results([entry], folder)[0]


def test_record_read_back_has_the_numbers_bins_sweep_recipe_and_curves(tmp_path: Path) -> None:
    entry = run()
    again = load_result(save(entry, tmp_path))
    for name in ("data", "method", "preset", "model", "epochs", "seed", "best_epoch", "recipe"):
        assert getattr(again, name) == getattr(entry, name)
    assert again.scores.metrics == entry.scores.metrics
    assert again.scores.ece_if_calibrated == entry.scores.ece_if_calibrated
    for part in ("edges", "count", "confidence", "accuracy"):
        torch.testing.assert_close(getattr(again.scores.bins, part), getattr(entry.scores.bins, part), rtol=1e-9, atol=0)
    assert entry.test is not None
    assert again.sweep is not None
    assert again.sweep.ece == pytest.approx(bin_sweep(entry.test).ece, rel=1e-5)
    assert again.curve("test_ece") == ([2, 4, 6], pytest.approx([0.3, 0.15, 0.1]))
    assert [line.get("lr") for line in again.history] == [0.1] * 4 + [0.01] * 2
    assert again.facts == {"seconds": 18.0}


def test_record_keeps_of_every_example_what_top_label_metrics_diagrams_and_paired_tests_need() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(10_000, 10, generator=generator)
    labels = torch.multinomial((0.6 * logits).softmax(1), 1, generator=generator)[:, 0]
    tests = [Predictions(logits=by * logits, labels=labels) for by in (1.0, 0.8)]
    packed = [pack_predictions(test) for test in tests]
    assert len(json.dumps(packed[0])) < 60_000
    kept = [unpack_predictions(found, 10) for found in packed]
    assert kept[0].correct.equal(tests[0].correct)
    assert kept[0].labels.equal(labels)
    now, then = (measure(found[0], n_resamples=100) for found in (kept, tests))
    for key in filter(is_top_label, then):
        assert now[key].value == pytest.approx(then[key].value, abs=1e-4 if key == "nll" else 1e-7), key
    sweeps = [bin_sweep(found[0], n_bins=(10, 20, 50, 100), n_resamples=0).ece for found in (kept, tests)]
    assert sweeps[0] == pytest.approx(sweeps[1], abs=1e-7)
    first, second = (paired_test(*found, n_resamples=200) for found in (kept, tests))
    assert {key: first[key].p_value for key in first if is_top_label(key)} == pytest.approx(
        {key: second[key].p_value for key in second if is_top_label(key)}
    )


def test_record_of_two_classes_and_of_a_class_without_probability_can_be_unpacked() -> None:
    for probs in ([[0.8, 0.2], [0.4, 0.6]], [[1.0, 0.0, 0.0], [0.25, 0.25, 0.5]]):
        test = Predictions(probs=torch.tensor(probs, dtype=torch.float64), labels=[1, 1])
        again = unpack_predictions(pack_predictions(test), test.num_classes)
        torch.testing.assert_close(again.probs[[0, 1], [1, 1]], test.probs[[0, 1], [1, 1]], atol=1e-3, rtol=0)
        torch.testing.assert_close(again.confidence, test.confidence, atol=1e-7, rtol=0)


def test_rows_of_records_are_tested_on_their_examples_but_not_in_what_needs_all_probabilities(tmp_path: Path) -> None:
    second = run(method="focal")
    assert second.test is not None
    test = Predictions(logits=2 * second.test.logits, labels=second.test.labels, split="test")
    other = replace(second, test=test, scores=measure(test, n_resamples=100))
    save_results([run(), other], tmp_path)
    for entries in (load_results(tmp_path), [run(), *load_results(tmp_path)[1:]]):
        found = compare_runs([entries[0]], [entries[1]], ["ece", "nll", "brier", "classwise_ece"])
        assert [found[key].over for key in found] == ["examples", "examples", None, None]


def test_record_of_older_statistics_is_marked() -> None:
    record = result_from_entry(run())
    marked = entry_from_result({key: value for key, value in record.items() if key not in ("measured", "predictions")})
    table = compare_table([marked, run(method="focal")], calibrated=True, metrics=("ece",))
    assert [line.info("calibrated").endswith("‡") for line in table.rows] == [True, False]
    assert [line.spread(table.columns[0]).endswith("‡") for line in table.rows] == [True, False]
    assert any(note.startswith("‡") for note in table.notes)
    assert "measured" not in result_from_entry(marked)


def test_variants_of_a_run_are_rows_of_their_own_each_also_repaired(tmp_path: Path) -> None:
    told = {"data.name": "mixture", "backbone.name": "mlp", "train.epochs": 4, "train.average": "phase", "train.device": "cpu"}
    for method in ("ce", "flgamma"):
        recipe = override(Recipe(), told | {"method.name": method, "train.alternatives": True, "train.batch_size": 200})
        kept = train(recipe, out=tmp_path / method)
        found = load_variants(tmp_path / method, repairs=["temperature", "vector"])
        # The run's own choice is one of the four.
        assert len(found) == 4 * 3
        (section,) = group_rows(found)
        rows = section.rows
        assert len(rows) == 12
        names = save_results(found, tmp_path / "results")
        assert len(set(names)) == 12
        raw = next(row for row in rows if (row.recipe["train.average"], row.recipe["train.select"]) == ("no", "error"))
        assert raw.runs[0].scores["nll"].value == pytest.approx(measure(kept.alternatives["raw-error"].test)["nll"].value)
        assert ("alternative.of" in raw.settings) == (method == "flgamma")
        assert sorted({str(row.runs[0].recipe.get("repair")) for row in rows}) == ["None", "vector"]
        assert sum(row.method == f"{method}+ts" for row in rows) == 4
        assert all(entry.temperature for entry in found if entry.method == f"{method}+ts")
    assert len(group_rows(load_results(tmp_path / "results"))[0].rows) == 24


def test_record_of_a_repaired_run_keeps_its_temperature() -> None:
    record = result_from_entry(run(method="ce+ts", temperature=1.7))
    assert entry_from_result(record).temperature == 1.7


def test_record_leaves_out_what_is_not_finite(tmp_path: Path) -> None:
    gammas = (1.5, float("inf"), float("nan"))
    history = tuple({"val_error": 0.1, "gamma_mean": gamma, "lr": 0.1 / (e + 1)} for e, gamma in enumerate(gammas * 10))
    kept = load_result(save(run(history=history), tmp_path))
    assert kept.curve("gamma_mean")[0] == list(range(1, 31, 3))


def test_record_without_predictions_keeps_what_is_known() -> None:
    record = result_from_entry(run_of("ce"))
    assert not {"bins", "sweep"} & set(record)
    assert entry_from_result(record).scores["ece"].value == 0.04


def test_early_record_without_a_recipe_knows_how_it_averaged_and_selected() -> None:
    old = result_from_entry(run_of("ce"))
    effective = {"train.average": "phase", "train.average_share": 0.5, "train.select": "error"}
    assert settings_of(entry_from_result(old | {"effective": effective})) == {"train.average": "phase"}
    assert settings_of(entry_from_result(old)) == {}


def test_result_name_is_data_model_method_preset_settings_seed() -> None:
    assert result_name(run()) == "cifar10-resnet18-ce-paper-seed1.json"
    theirs = run_of("their best/one", model=None, preset=None, seed=None, epochs=None)
    assert result_name(theirs) == "cifar10-their-best-one.json"
    told = run_of("ce", told="train.select=error+nll method.options.betas=0.5,0.9 train.eval_every_epochs=5")
    assert result_name(told) == "cifar10-resnet18-ce-default-betas-0.5-0.9-select-error+nll-seed0.json"
    long = {result_name(run_of("ce", told=f"backbone.init={'folder/' * 40}{name}")) for name in ("a", "b")}
    assert len(long) == 2
    assert all(re.fullmatch(r"cifar10-resnet18-ce-default-[0-9a-f]{12}-seed0\.json", name) for name in long)


def test_save_results_replaces_the_same_run_only_and_writes_all_or_nothing(tmp_path: Path) -> None:
    file = save(run(), tmp_path)
    before = file.read_bytes()
    assert save(replace(run(), facts={"seconds": 1.0}), tmp_path) == file
    assert file.read_bytes() != before
    with pytest.raises(ValueError, match="must be the record of one run, got two: .* of 6 epochs and .* of 7 epochs"):
        save_results([run(method="focal"), run(epochs=7)], tmp_path)
    assert [*tmp_path.iterdir()] == [file]
    assert load_result(file).epochs == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": None}, "x.json: must be the record"),
        ({"bins": {"edges": [0.0, 1.0]}}, "no `count`"),
        ({"history": {"epoch": [0, 1], "test_ece": [0.1]}}, "must be the record"),
        ({"sweep": {"n_bins": [10]}}, "must be the record.*'ece'"),
    ],
)
def test_entry_from_result_malformed_names_the_key(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        entry_from_result(result_from_entry(run()) | change, where="x.json")


def test_load_result_of_something_else_says_so(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    with pytest.raises(FileNotFoundError, match="No such file"):
        load_result(file)
    for text, message in (("{", "got: Expecting"), ("[]", "must be the record"), ('{"data": "cifar10"}', "no `metrics`")):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_result(file)
    with pytest.raises(ValueError, match="got none. `calibrant results add` makes them"):
        load_results(tmp_path / "nowhere")


def test_committed_results_are_whole_records() -> None:
    for entry in load_results(ROOT / "results"):
        assert {"command", "effective", "machine", "versions", "seconds", "examples"} <= set(entry.facts)
        named = {"data": entry.data, "model": entry.model, "method": entry.method, "preset": entry.preset}
        said = " ".join(f"--{flag} {value}" for flag, value in (named | {"epochs": entry.epochs, "seed": entry.seed}).items())
        assert str(entry.facts["command"]).startswith(f"calibrant train {said} ")
        assert " /" not in str(entry.facts["command"]).replace("=", " ")
        assert Path(str(entry.folder)).name == result_name(entry)
        bins, sweep = entry.scores.bins, entry.sweep
        # The same ECE from the bins and from the sweep as from the metrics.
        assert float((bins.weight * bins.gap.abs()).sum()) == pytest.approx(entry.scores["ece"].value, rel=1e-6)
        assert sweep is not None
        at = sweep.n_bins.index(15)
        assert sweep.ece[at] == pytest.approx(entry.scores["ece"].value, rel=1e-5)
        # Two means over 500 and over 1,000 draws, each of a standard error of about 1 %.
        assert sweep.ece_if_calibrated[at] == pytest.approx(entry.scores.ece_if_calibrated.mean, rel=0.06)
        if entry.history:
            assert entry.best_epoch is not None
            # Predicted anew at the end, in bf16; a few of 10,000 may tip over.
            assert entry.history[entry.best_epoch]["test_error"] == pytest.approx(entry.scores["error"].value, abs=5e-4)
