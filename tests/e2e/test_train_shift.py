"""Evaluation under shift: beside training, and for a run that was finished before."""

import json

import pytest
import torch

from calibrant.cli.main import run as run_command
from calibrant.core.records import Split
from calibrant.data.shift import CORRUPTIONS, SEVERITIES, corrupt
from calibrant.engine.folder import is_finished, load_run
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.setup import load_data
from calibrant.engine.shift import evaluate_shift, load_shift, shifted_predictions
from calibrant.engine.train import scale_run, train

TINY = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "method.name": "ce",
    "train.batch_size": "200",
    "train.epochs": "2",
    "train.device": "cpu",
}
NAMES = [f"{kind}-{severity}" for kind in CORRUPTIONS for severity in SEVERITIES]


def recipe(**settings):
    return override(Recipe(), TINY | {key.replace("__", "."): value for key, value in settings.items()})


def numbers(shift, *, severity=None):
    return {name: scores.to_dict() for name, scores in shift.items() if severity is None or name.endswith(f"-{severity}")}


@pytest.fixture
def mild(monkeypatch):
    """Evaluate on the first severity alone."""
    monkeypatch.setattr("calibrant.engine.shift.SEVERITIES", (1,))
    monkeypatch.setattr("calibrant.cli.train.SEVERITIES", (1,))


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "shifted"
    return train(recipe(data__shift="true"), out=folder), folder


def test_train_shift_measures_every_corruption_and_severity(shifted):
    run, folder = shifted
    assert list(run.shift) == NAMES
    written = json.loads((folder / "shift.json").read_text())
    assert (written["seed"], list(written["sets"])) == (0, NAMES)
    assert set(written["sets"]["contrast-5"]) >= {"metrics", "n", "num_classes"}
    assert written["sets"]["contrast-5"]["n"] == 4000
    # By hand for one of them: the network sees the corrupted images, normalised as the clean ones.
    test = load_data(run.recipe.data).test
    images = corrupt(test.images, kind="gaussian_noise", severity=5).permute(0, 3, 1, 2)
    with torch.no_grad():
        logits = run.model((images / 255 - test.mean[0]) / test.std[0])
    wrong = float((logits.argmax(1) != test.labels).float().mean())
    assert run.shift["gaussian_noise-5"]["error"].value == pytest.approx(wrong, abs=1e-3)
    # Less contrast makes for more errors, severity by severity.
    errors = [run.shift[f"contrast-{severity}"]["error"].value for severity in (1, 3, 5)]
    assert run.history[run.best_epoch].test_error <= errors[0] < errors[1] < errors[2]


def test_load_run_reads_the_scores_under_shift_back(shifted, mild):
    run, folder = shifted
    loaded = load_run(folder)
    assert numbers(loaded.shift) == numbers(run.shift)
    assert numbers(evaluate_shift(loaded)) == numbers(run.shift, severity=1)
    (folder.parent / "bad.json").write_text("[]")
    with pytest.raises(ValueError, match="bad.json` must hold what `calibrant train --shift` wrote"):
        load_shift(folder.parent / "bad.json")
    name, predictions = next(shifted_predictions(loaded, seed=1))
    assert (name, predictions.split, len(predictions)) == ("gaussian_noise-1", Split.TEST, 4000)


def test_train_finished_run_is_evaluated_under_shift_when_asked_later(shifted, tmp_path, mild):
    plain = train(recipe(), out=tmp_path / "run")
    assert (plain.shift, load_run(tmp_path / "run").shift) == ({}, {})
    later = train(recipe(data__shift="true"), out=tmp_path / "run", resume=True)
    assert numbers(later.shift) == numbers(load_run(tmp_path / "run").shift) == numbers(shifted[0].shift, severity=1)
    before = (tmp_path / "run" / "shift.json").stat().st_mtime_ns
    train(recipe(data__shift="true"), out=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "shift.json").stat().st_mtime_ns == before


def test_train_killed_while_evaluating_under_shift_goes_on_to_the_same(shifted, tmp_path, monkeypatch, mild):
    with monkeypatch.context() as patch:
        patch.setattr("calibrant.engine.train.evaluate_shift", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(recipe(data__shift="true"), out=tmp_path / "run")
    assert not is_finished(tmp_path / "run")
    assert not (tmp_path / "run" / "shift.json").exists()
    again = train(recipe(data__shift="true"), out=tmp_path / "run", resume=True)
    assert numbers(again.shift) == numbers(shifted[0].shift, severity=1)
    assert is_finished(tmp_path / "run")


def test_scale_run_measures_the_scaled_predictions_under_shift(shifted, tmp_path, mild):
    run, folder = shifted
    scaled = scale_run(folder, out=tmp_path / "ts")
    assert scaled.shift["contrast-1"]["error"].value == run.shift["contrast-1"]["error"].value
    assert scaled.shift["contrast-1"]["nll"].value != run.shift["contrast-1"]["nll"].value
    assert numbers(load_run(tmp_path / "ts").shift) == numbers(scaled.shift)


def test_cli_train_shift_prints_a_table(shifted, tmp_path, capsys, mild):
    run, _ = shifted
    words = ["--data", "mixture", "--model", "mlp", "--method", "ce", "--epochs", "2", "--device", "cpu"]
    with pytest.raises(SystemExit) as ended:
        run_command(["train", *words, "--set", "train.batch_size=200", "--shift", "--out", str(tmp_path / "r")])
    out, err = capsys.readouterr()
    assert (ended.value.code, err) == (0, "")
    table = out.splitlines()[3:7]
    assert table[0].split() == ["under", "shift,", "error", "/", "ECE", "in", "%", "severity", "1"]
    assert [line.split()[0] for line in table[1:]] == list(CORRUPTIONS)
    noise = run.shift["gaussian_noise-1"]
    assert table[1].split()[1:4] == [f"{100 * noise['error'].value:.2f}", "/", f"{100 * noise['ece'].value:.2f}"]
