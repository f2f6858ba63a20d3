"""``calibrant repair`` from two files to a third, as a user runs it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import Calibrator, TemperatureScaling
from calibrant.cli import main
from calibrant.data.synthetic import synthetic_predictions


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    shown = warnings.showwarning
    with pytest.raises(SystemExit) as ended:
        main.run([str(argument) for argument in arguments])
    warnings.showwarning = shown
    out, err = capsys.readouterr()
    return int(str(ended.value.code)), out, err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Over-confident predictions to fit on and to repair."""
    place = tmp_path_factory.mktemp("repair")
    for name, seed, split in (("val", 0, "val"), ("test", 1, "test")):
        synthetic_predictions(2000, 4, temperature=2.4, seed=seed, split=split)[0].save(place / f"{name}.npz")
    return place


def repair(capsys: pytest.CaptureFixture[str], folder: Path, out: Path, *more: object) -> tuple[int, str, str]:
    return run(capsys, "repair", folder / "val.npz", folder / "test.npz", "--out", out, "--resamples", 50, *more)


def test_repair_by_temperature_writes_what_the_calibrator_gives(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    out, kept = tmp_path / "repaired.npz", tmp_path / "calibrator.json"
    code, text, err = repair(capsys, folder, out, "--method", "temperature", "--calibrator", kept, "--json")
    assert code == 0, err
    found = json.loads(text)
    expected = TemperatureScaling().fit(Predictions.load(folder / "val.npz"))
    test = Predictions.load(folder / "test.npz")
    repaired = Predictions.load(out)
    torch.testing.assert_close(repaired.probs, expected.predict_proba(test.logits.double()))
    assert repaired.split is not None
    assert repaired.split.value == "test"
    assert torch.equal(repaired.labels, test.labels)
    assert found["learned"]["temperature"] == pytest.approx(expected.temperature_)
    assert found["before"]["metrics"]["error"]["value"] == found["after"]["metrics"]["error"]["value"]
    assert found["after"]["metrics"]["ece"]["value"] < found["before"]["metrics"]["ece"]["value"] / 2
    assert found["paired"]["ece"]["p_value"] < 0.05
    assert found["paired"]["ece"]["difference"] == pytest.approx(
        found["after"]["metrics"]["ece"]["value"] - found["before"]["metrics"]["ece"]["value"]
    )
    loaded = Calibrator.load(kept)
    assert isinstance(loaded, TemperatureScaling)
    assert loaded.temperature_ == expected.temperature_


def test_repair_prints_before_after_and_the_test(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    code, text, err = repair(capsys, folder, tmp_path / "r.npz", "--method", "temperature")
    assert code == 0, err
    for part in ("divided by a temperature of 2.", "before", "after", "After minus before", "better", "p = ", "r.npz"):
        assert part in text, part


def test_repair_auto_ranks_methods(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from calibrant.calibrators import CALIBRATORS

    few = {name: CALIBRATORS[name] for name in ("temperature", "platt", "histogram")}
    monkeypatch.setattr("calibrant.calibrators.auto.candidates", lambda: few)
    code, text, err = repair(capsys, folder, tmp_path / "r.npz")
    assert code == 0, err
    assert "temperature is best: it lowers the held-out negative log-likelihood" in " ".join(text.split())
    assert "doing nothing" in text
    assert "chosen" in text
    code, text, err = repair(capsys, folder, tmp_path / "r.npz", "--json")
    found = json.loads(text)
    assert found["chosen"] == "temperature"
    assert {entry["name"] for entry in found["ranking"]} == {"none", *few}


def test_repair_fit_on_test_data_is_refused(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    code, _, err = run(capsys, "repair", folder / "test.npz", folder / "val.npz", "--out", tmp_path / "r.npz")
    assert code == 2
    assert "test.npz: the data must not be marked as test data" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "r.npz").exists()


def test_repair_same_data_warns(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, err = run(
            capsys,
            *("repair", folder / "val.npz", folder / "val.npz", "--out", tmp_path / "r.npz"),
            *("--method", "temperature", "--resamples", 20),
        )
    assert code == 0
    assert "warning" in err
    assert "were used to fit the calibrator" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "temprature"), "unknown method 'temprature'. Did you mean 'temperature'"),
        (("--out", "missing/folder/r.npz", "--method", "temperature"), "must exist before a file is written"),
        (("--out", "r.xyz", "--method", "temperature"), "r.xyz"),
    ],
)
def test_repair_bad_input_is_one_sentence_and_code_2(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = repair(capsys, folder, tmp_path / "r.npz", *arguments)
    assert code == 2, err
    assert message in err
    assert err.count("\n") == 1


def test_repair_different_classes_are_named(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    synthetic_predictions(50, 3)[0].save(tmp_path / "three.npz")
    code, _, err = run(capsys, "repair", folder / "val.npz", tmp_path / "three.npz", "--out", tmp_path / "r.npz")
    assert code == 2
    assert "must have the 4 classes of" in err
