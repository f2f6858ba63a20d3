"""``calibrant repair`` from two files to a third, as a user runs it."""

from __future__ import annotations

import json
import logging
import re
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import CALIBRATORS, Calibrator, PlattScaling, TemperatureScaling
from calibrant.data.synthetic import synthetic_predictions
from helpers import run_command as run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Over-confident predictions to fit on and to repair."""
    place = tmp_path_factory.mktemp("repair")
    for name, seed, split in (("val", 0, "val"), ("test", 1, "test")):
        synthetic_predictions(2000, 4, temperature=2.4, seed=seed, split=split)[0].save(place / f"{name}.npz")
    return place


def repair(capsys: pytest.CaptureFixture[str], folder: Path, out: Path, *more: object) -> tuple[int, str, str]:
    return run(capsys, "repair", folder / "val.npz", folder / "test.npz", "--out", out, "--resamples", 100, *more)


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
    for part in ("The temperature is 2.", "before", "after", "after minus before", "better", "p = ", "r.npz"):
        assert part in text, part
    assert "fitted on 2,000 examples of val.npz, applied to 2,000 of test.npz" in text
    assert "The repair brings the ECE to " in text


def test_repair_auto_ranks_methods_and_says_how_long_it_will_take(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: CALIBRATORS[name] for name in ("temperature", "platt", "histogram", "attended_temperature")}
    monkeypatch.setattr("calibrant.calibrators.auto.candidates", lambda: few)
    monkeypatch.setattr("calibrant.cli.repair._SILENT_SECONDS", -1.0)
    code, text, err = repair(capsys, folder, tmp_path / "r.npz")
    assert code == 0, err
    assert re.search("trying platt, part 1 of 5, at most about [0-9]+ s left", err)
    assert "Not used: attended_temperature: " in text
    assert "temperature is best: it lowers the held-out negative log-likelihood" in " ".join(text.split())
    assert "doing nothing" in text
    assert "chosen" in text
    code, text, err = repair(capsys, folder, tmp_path / "r.npz", "--json")
    found = json.loads(text)
    assert found["chosen"] == "temperature"
    assert {entry["name"] for entry in found["ranking"]} == {"none", *few}


def test_repair_says_once_why_methods_are_not_used(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "calibrant.calibrators.auto.candidates", lambda: {"temperature": TemperatureScaling, "platt": PlattScaling}
    )
    logits = Predictions.load(folder / "val.npz").logits
    Predictions(logits=logits, labels=logits.argmax(1)).save(tmp_path / "right.npz")
    with warnings.catch_warnings(action="ignore"):
        code, text, _ = run(capsys, "repair", tmp_path / "right.npz", folder / "test.npz", "--out", tmp_path / "r.npz")
    assert (code, text.count("every example is predicted right")) == (0, 1)
    assert "Not used: temperature and platt: every example" in text


def test_repair_raises_zeros_to_the_floor_and_writes_no_larger_file(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: CALIBRATORS[name] for name in ("temperature", "histogram")}
    monkeypatch.setattr("calibrant.calibrators.auto.candidates", lambda: few)
    for name in ("val", "test"):
        given = Predictions.load(folder / f"{name}.npz")
        probs = given.probs.float()
        probs[:2].scatter_(1, given.labels[:2].unsqueeze(1), 0.0)
        Predictions(probs=probs / probs.sum(1, keepdim=True), labels=given.labels).save(tmp_path / f"{name}.npz")
    out = tmp_path / "r.npz"
    for words, floor in (((), 1 / 8000), (("--floor", 0.01), 0.01)):
        with warnings.catch_warnings(action="default"):
            code, text, err = run(capsys, "repair", tmp_path / "val.npz", tmp_path / "test.npz", "--out", out, *words)
        assert code == 0, err
        assert ("2 of 2000 examples have a label of probability zero" in err) == (not words)
        assert f"holds the predictions repaired by {TemperatureScaling.label}" in " ".join(text.split())
        assert f"at least {floor:.3g}" in " ".join(text.split())
        assert Predictions.load(out).scores.dtype == torch.float32
        assert out.stat().st_size <= 1.02 * (tmp_path / "test.npz").stat().st_size


@pytest.mark.parametrize("coarse", [False, True])
def test_repair_same_data_warns(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, coarse: bool) -> None:
    val, test = folder / "val.npz", folder / "test.npz"
    if coarse:
        # The votes of nine trees: few rows are distinct, so that none is a mark of the fit.
        rng = np.random.default_rng(0)
        val, test = tmp_path / "val.npz", tmp_path / "test.npz"
        for path in (val, test):
            np.savez(path, probs=rng.multinomial(9, [0.5, 0.3, 0.2], size=200) / 9, labels=rng.integers(3, size=200))
    said = []
    for path in (val, test):
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            command = ("repair", val, path, "--out", tmp_path / "r.npz", "--method", "temperature", "--resamples", 100)
            code, _, err = run(capsys, *command)
        assert code == 0
        said.append("fitted on these examples" in " ".join(err.split()))
    assert said == [True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "temprature"), "unknown calibrator 'temprature'. Did you mean 'temperature'"),
        (("--out", "missing/folder/r.npz", "--method", "temperature"), "must exist before a file is written"),
        (("--out", "r.xyz", "--method", "temperature"), "r.xyz: the file name must end in .npz"),
        (("--calibrator", "missing/c.json"), "missing/c.json: the folder missing must exist before a file is written"),
        (("--calibrator", "c.txt"), "c.txt: the file name must end in .json"),
        (("third.npz",), "third.npz"),
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


def test_repair_of_files_that_do_not_fit_together_is_refused(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    val, test, three, other = folder / "val.npz", folder / "test.npz", tmp_path / "three.npz", tmp_path / "other.npz"
    synthetic_predictions(50, 3)[0].save(three)
    for path, given, names in ((tmp_path / "named.npz", val, "abcd"), (other, test, "badc")):
        Predictions.load(given).replace(class_names=list(names)).save(path)
    before = test.read_bytes()
    for words, message in (
        (("repair", val, test, "--out", test), "must not replace the predictions it is made from"),
        (("repair", test, val, "--out", tmp_path / "r.npz"), "test.npz: the data must not be marked as test data"),
        (("repair", val, three, "--out", tmp_path / "r.npz"), "val.npz: must have the same classes"),
        (("repair", tmp_path / "named.npz", other, "--out", tmp_path / "r.npz"), "in the same order as"),
        (("report", other, "--fit", tmp_path / "named.npz", "--out", tmp_path / "r.html"), "in the same order as"),
    ):
        code, _, err = run(capsys, *words)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    assert test.read_bytes() == before
    assert not (tmp_path / "r.npz").exists()


def write_named(path: Path, predictions: Predictions, ignored: int) -> None:
    """A .csv with names for labels, whose last ``ignored`` rows have the label -100."""
    names = np.array(["ant", "bee", "cat", "dog"])[predictions.labels.numpy()].tolist()
    rows = zip(predictions.logits.tolist(), names[:-ignored] + ["-100"] * ignored, strict=True)
    lines = [",".join([*(repr(value) for value in logits), name]) for logits, name in rows]
    path.write_text("\n".join(["logit0,logit1,logit2,logit3,label", *lines]))


@pytest.mark.parametrize("command", ["repair", "report"])
def test_repair_and_report_take_the_options_that_refusals_recommend(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, command: str
) -> None:
    val, test, names = tmp_path / "val.csv", tmp_path / "test.csv", tmp_path / "names.txt"
    write_named(val, Predictions.load(folder / "val.npz"), ignored=100)
    write_named(test, Predictions.load(folder / "test.npz"), ignored=200)
    names.write_text("ant\nbee\ncat\ndog\n")
    out = tmp_path / ("out.npz" if command == "repair" else "out.html")
    files = [val, test] if command == "repair" else [test, "--fit", val]
    base = [command, *files, "--out", out, "--method", "temperature", "--resamples", 100]
    code, _, err = run(capsys, *base)
    assert (code, "--class-names" in err) == (2, True)
    code, _, err = run(capsys, *base, "--class-names", names)
    assert (code, "-100" in err) == (2, True)
    code, _, err = run(capsys, *base, "--class-names", names, "--ignore-index", -100)
    assert code == 0, err
    if command == "repair":
        repaired = Predictions.load(out)
        assert (len(repaired), repaired.class_names) == (1800, ("ant", "bee", "cat", "dog"))
        kept = Predictions.load(folder / "val.npz").subset(torch.arange(1900))
        expected = TemperatureScaling().fit(kept).apply(Predictions.load(folder / "test.npz").subset(torch.arange(1800)))
        torch.testing.assert_close(repaired.logits.float(), expected.logits, atol=1e-6, rtol=1e-6)
    else:
        page = out.read_text()
        assert "1,900" in page
        assert "1,800" in page


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet", "pt"])
def test_apply_a_saved_calibrator_to_predictions_with_and_without_labels(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, ending: str
) -> None:
    kept, new, out = tmp_path / "c.json", tmp_path / f"new.{ending}", tmp_path / f"out.{ending}"
    code, _, err = repair(capsys, folder, tmp_path / "r.npz", "--method", "temperature", "--save-calibrator", kept)
    assert code == 0, err
    test = Predictions.load(folder / "test.npz")
    named = Predictions(logits=test.logits, labels=test.labels, columns={"site": np.array(["a", "b"] * 1000)})
    named.save(new)
    code, text, err = run(capsys, "apply", kept, new, "--out", out)
    assert (code, err, str(out) in text) == (0, "", True)
    found = Predictions.load(out)
    torch.testing.assert_close(found.logits, TemperatureScaling.load(kept).apply(named).logits, rtol=0, atol=1e-6)
    assert found.labels.equal(named.labels)
    assert found.columns["site"].tolist() == named.columns["site"].tolist()
    without_labels(new)
    code, _, err = run(capsys, "apply", kept, new, "--out", out)
    assert (code, err) == (0, "")
    with pytest.raises(ValueError, match="must hold `labels`"):
        Predictions.load(out)


def without_labels(path: Path) -> None:
    """Take the labels out of a file."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            np.savez(path, **{key: arrays[key] for key in arrays if key != "labels"})
    elif path.suffix == ".pt":
        content = torch.load(path)
        torch.save({key: content[key] for key in content if key != "labels"}, path)
    elif path.suffix == ".parquet":
        pq.write_table(pq.read_table(path).drop_columns("label"), path)
    else:
        pacsv.write_csv(pacsv.read_csv(path).drop_columns("label"), path)


def test_saved_onnx_model_gives_the_probabilities_of_the_calibrator(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, folder: Path, tmp_path: Path
) -> None:
    import onnxruntime

    code, _, err = repair(capsys, folder, tmp_path / "r.npz", "--method", "vector", "--save-calibrator", tmp_path / "c.onnx")
    assert code == 0, err
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
    session = onnxruntime.InferenceSession(tmp_path / "c.onnx", providers=["CPUExecutionProvider"])
    logits = Predictions.load(folder / "test.npz").logits.float()
    (log_probs,) = session.run(["log_probs"], {"logits": logits.numpy()})
    expected = Predictions.load(tmp_path / "r.npz").probs
    np.testing.assert_allclose(np.exp(log_probs), expected.numpy(), rtol=0, atol=1e-5)


def test_repair_shows_groups_before_and_after_and_no_test_of_doing_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    site = {"site": np.array(["a", "b"] * 500)}
    for name, seed, split in (("val", 0, "val"), ("test", 1, "test")):
        given = synthetic_predictions(1000, 4, temperature=2.4, seed=seed, split=split)[0]
        Predictions(logits=given.logits, labels=given.labels, columns=site, split=split).save(tmp_path / f"{name}.npz")
    out = tmp_path / "r.npz"
    code, text, err = repair(capsys, tmp_path, out, "--method", "temperature", "--slice", "site", "--json")
    assert code == 0, err
    found = json.loads(text)
    assert found["after"]["slices"]["a"]["metrics"]["ece"]["value"] < found["before"]["slices"]["a"]["metrics"]["ece"]["value"]
    _, text, _ = repair(capsys, tmp_path, out, "--method", "temperature", "--slice", "site")
    assert all(words in text for words in ("before: Groups", "after: Groups", "after minus before"))
    _, text, _ = repair(capsys, tmp_path, out, "--method", "none")
    assert "minus before" not in text


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("scores", [("risk",), ("score",), ("p0", "p1"), ("logit1",), ("logit0", "logit1")])
def test_repair_and_apply_give_back_the_columns_that_came_in(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ending: str, scores: tuple[str, ...]
) -> None:
    reader, writer = (pacsv.read_csv, pacsv.write_csv) if ending == "csv" else (pq.read_table, pq.write_table)
    random, kind = np.random.default_rng(0), "logits" if "logit" in scores[-1] else "probs"
    log_odds = random.normal(size=300)
    both = np.stack([np.zeros(300), log_odds], 1)
    both = both if kind == "logits" else np.exp(both) / np.exp(both).sum(1, keepdims=True)
    given = {"id": ["00012"] * 300, "day": np.full(300, np.datetime64("2024-05-01"))}
    given |= zip(scores, both[:, -len(scores) :].T, strict=True)
    given |= {"happened": (random.random(300) < 1 / (1 + np.exp(-log_odds / 2))).astype(int)}
    table, file, out = pa.table(given), tmp_path / f"new.{ending}", tmp_path / f"out.{ending}"
    kept, columns = tmp_path / "c.json", ("--label-column", "happened", "--prob-column", "risk")[: 4 if "risk" in scores else 2]
    writer(table, file)
    fit = ("--method", "temperature", "--save-calibrator", kept, "--resamples", 100)
    with warnings.catch_warnings(action="ignore"):
        code, _, err = run(capsys, "repair", file, file, "--out", out, *fit, *columns)
    assert code == 0, err
    repaired = reader(out)
    assert repaired.column_names == table.column_names
    assert repaired.drop_columns([*scores]).equals(reader(file).drop_columns([*scores]))
    assert ending == "parquet" or out.read_text().splitlines()[1].startswith("00012,2024-05-01,")
    writer(table.drop_columns("happened"), file)
    code, _, err = run(capsys, "apply", kept, file, "--out", out, *columns[2:])
    assert code == 0, err
    assert reader(out).equals(repaired.drop_columns("happened"))
    expected = TemperatureScaling.load(kept).predict_proba(np.stack([np.zeros(300), log_odds], 1))[:, 1]
    found = repaired[scores[-1]].to_numpy()
    found = found - (repaired[scores[0]].to_numpy() if len(scores) == 2 else 0) if kind == "logits" else found
    np.testing.assert_allclose(1 / (1 + np.exp(-found)) if kind == "logits" else found, expected, rtol=1e-12)


@pytest.mark.parametrize("ending", ["npz", "pt", "csv", "parquet"])
def test_apply_to_probabilities_gives_probabilities(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, ending: str
) -> None:
    kept, new, out = tmp_path / "c.json", tmp_path / f"new.{ending}", tmp_path / f"out.{ending}"
    given = Predictions.load(folder / "test.npz")
    calibrator = TemperatureScaling().fit(Predictions.load(folder / "val.npz"))
    calibrator.save(kept)
    Predictions(probs=given.probs.float(), labels=given.labels).save(new)
    code, _, err = run(capsys, "apply", kept, new, "--out", out)
    assert code == 0, err
    found = Predictions.load(out)
    assert (found.has_logits, found.scores.dtype) == (False, torch.float32)
    torch.testing.assert_close(found.probs, calibrator.apply(Predictions.load(new)).probs.float(), rtol=1e-5, atol=1e-7)


def test_apply_and_decide_say_which_option_names_a_column(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kept, file = tmp_path / "c.json", tmp_path / "new.csv"
    TemperatureScaling().fit(synthetic_predictions(100, 2, split="val")[0]).save(kept)
    file.write_text("risk,day,country\n0.1,1,no\n0.7,2,ch\n")
    code, _, err = run(capsys, "apply", kept, file, "--out", tmp_path / "out.csv")
    assert (code, "label" in err) == (2, False)
    assert "--prob-column` names) once, got risk, day, country." in err
    code, _, err = run(capsys, "decide", file, file, "--prob-column", "risk")
    assert (code, "--prob-column" in err) == (2, False)
    assert "--label-column` names) once, got risk, day, country." in err


def test_repair_asks_for_onnxscript_before_it_begins(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrant.cli.repair.find_spec", lambda name: None)
    code, _, err = repair(capsys, folder, tmp_path / "r.npz", "--save-calibrator", tmp_path / "c.onnx")
    assert (code, (tmp_path / "r.npz").exists()) == (2, False)
    assert "pip install 'calibrant[onnx]'" in err
