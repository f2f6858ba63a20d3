"""``calibrant report`` from files to a page, as a user runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from calibrant import Predictions
from calibrant.calibrators import CALIBRATORS
from calibrant.data.synthetic import synthetic_predictions
from calibrant.io import load_predictions
from helpers import run_command as run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Over-confident predictions to report on and to fit on."""
    place = tmp_path_factory.mktemp("report")
    for name, seed, split in (("val", 0, "val"), ("test", 1, "test")):
        synthetic_predictions(1000, 4, temperature=2.4, seed=seed, split=split)[0].save(place / f"{name}.npz")
    return place


def value_in(page: str, key: str, column: str) -> str:
    row = re.search(rf'<tr[^>]*data-metric="{key}">(.*?)</tr>', page, flags=re.DOTALL)
    assert row is not None, key
    found = re.search(rf'class="{column}">([^<]*)<', row[1])
    assert found is not None, key
    return found[1]


def test_report_without_fit_says_what_measure_says(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    code, text, err = run(capsys, "report", folder / "test.npz", "--out", out, "--n-bins", 10, "--resamples", 100)
    assert code == 0, err
    assert "Over-confident by" in text
    assert "report.html" in text
    _, measured, _ = run(capsys, "measure", folder / "test.npz", "--json", "--n-bins", 10, "--resamples", 100)
    metrics = json.loads(measured)["metrics"]
    page = out.read_text()
    for key in ("error", "ece", "mce", "ace", "sece", "smece", "classwise_ece", "aurc"):
        assert value_in(page, key, "before") == f"{100 * metrics[key]['value']:.2f}%", key
    assert value_in(page, "nll", "before") == f"{metrics['nll']['value']:.4f}"
    assert 'id="switch"' not in page


def test_report_with_fit_ranks_calibrators_and_measures_each_on_the_test_data(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: CALIBRATORS[name] for name in ("temperature", "platt", "histogram")}
    monkeypatch.setattr("calibrant.calibrators.auto.candidates", lambda: few)
    out = tmp_path / "report.html"
    code, text, err = run(capsys, "report", folder / "test.npz", "--fit", folder / "val.npz", "--out", out, "--resamples", 100)
    assert code == 0, err
    assert "Temperature 2." in text
    page = out.read_text()
    assert re.findall(r'<tr class="chosen" data-calibrator="([^"]*)"', page) == ["temperature"]
    assert set(re.findall(r'data-calibrator="([^"]*)"', page)) == {"temperature", "platt", "histogram", "doing nothing"}
    _, repaired, _ = run(
        capsys,
        *("repair", folder / "val.npz", folder / "test.npz", "--method", "platt", "--out", tmp_path / "r.npz"),
        *("--json", "--resamples", 100),
    )
    row = re.search(r'data-calibrator="platt">(.*?)</tr>', page, flags=re.DOTALL)
    assert row is not None
    after = json.loads(repaired)["after"]["metrics"]
    assert f"<td>{100 * after['ece']['value']:.2f}%" in row[1]
    assert f"<td>{after['nll']['value']:.4f}</td>" in row[1]
    _, promised, _ = run(capsys, "decide", folder / "val.npz", folder / "test.npz", "--json")
    first = json.loads(promised)[0]
    table = re.search(r'<table class="compact" id="promises">(.*?)</table>', page, flags=re.DOTALL)
    assert table is not None
    assert f"{100 * first['max_error']:.4g}%" in table[1]
    assert f"<td>{100 * first['coverage']:.1f}%</td><td>{100 * first['error']:.2f}%</td>" in table[1]


def test_report_with_one_method_shows_before_and_after_as_repair_does(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    out, names = tmp_path / "report.html", tmp_path / "names.txt"
    names.write_text("cat\ndog\n<i>bird</i>\ntruck\n")
    files = ("--fit", folder / "val.npz", "--out", out, "--class-names", names, "--title", "My model")
    code, _, err = run(capsys, "report", folder / "test.npz", *files, "--method", "temperature", "--resamples", 100)
    assert code == 0, err
    _, repaired, _ = run(
        capsys,
        *("repair", folder / "val.npz", folder / "test.npz", "--method", "temperature", "--out", tmp_path / "r.npz"),
        *("--json", "--resamples", 100),
    )
    found = json.loads(repaired)
    page = out.read_text()
    for side in ("before", "after"):
        assert value_in(page, "ece", side) == f"{100 * found[side]['metrics']['ece']['value']:.2f}%"
    assert "<title>My model</title>" in page
    assert "<i>bird</i>" not in page
    assert 'id="calibrators"' not in page


def test_report_of_a_doubtful_repair_says_why_on_the_page(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    val = load_predictions(folder / "val.npz")
    val.subset((val.labels < 2).nonzero().flatten()[:30]).save(tmp_path / "few.npz")
    out, few = tmp_path / "report.html", ("--fit", tmp_path / "few.npz", "--method", "platt")
    code, text, err = run(capsys, "report", folder / "test.npz", *few, "--out", out, "--resamples", 100)
    assert (code, err) == (0, "")
    page, printed = out.read_text(), " ".join(text.split())
    for doubt in (
        "2 of 4 classes (2, 3)",
        "do not use it.",
    ):
        assert doubt in page
        assert doubt in printed


def test_report_of_files_as_runs_compares_them(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    theirs = load_predictions(folder / "test.npz")
    for seed in (0, 1):
        theirs.replace(logits=(0.5 + 0.1 * seed) * theirs.logits).save(tmp_path / f"mine-seed{seed}.npz")
    out = tmp_path / "runs.html"
    code, text, err = run(capsys, "report", "--run", tmp_path, "--run", folder / "test.npz", "--out", out)
    assert code == 0, err
    assert "2 methods" in text
    page = out.read_text()
    assert 'id="runs"' in page
    assert 'id="reliability"' not in page
    assert '<th scope="row">mine</th><td>2</td>' in page


def test_report_of_files_that_share_a_name_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    test = synthetic_predictions(300, 4, temperature=1.0)[0]
    for factor, name in enumerate(("o1", "o2"), 1):
        (tmp_path / name).mkdir()
        test.replace(logits=factor * test.logits).save(tmp_path / name / "m.npz")
    code, _, err = run(capsys, "report", "--run", tmp_path / "o1", "--run", tmp_path / "o2", "--out", tmp_path / "runs.html")
    assert code == 2
    assert re.search(r"o1/m.npz.*o2/m.npz.* rename", err)


def test_report_of_runs_on_other_test_examples_is_refused_but_a_part_is_shown(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    test, out = load_predictions(folder / "test.npz"), tmp_path / "runs.html"
    Predictions(logits=test.logits, labels=test.labels.roll(1)).save(tmp_path / "rolled.npz")
    test.subset(range(200)).save(tmp_path / "part.npz")
    given = [word for name in ("part.npz", "rolled.npz") for word in ("--run", tmp_path / name)]
    code, _, err = run(capsys, "report", "--run", folder / "test.npz", *given, "--out", out)
    assert code == 2
    assert re.search(r"report: `--run` must .*same order.*rolled.npz", err)
    assert not out.exists()
    code, text, err = run(capsys, "report", *given[:2], "--run", folder / "test.npz", "--out", out)
    assert code == 0, err
    assert "part (200 examples)" in out.read_text()
    assert "part" not in text.partition("The report")[0]


def test_report_of_runs_tells_settings_of_one_method_apart_and_says_which_average_their_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = ("--data", "mixture", "--model", "mlp", "--epochs", 1, "--device", "cpu", "--set", "train.batch_size=400")
    runs, steered, page = tmp_path / "runs", tmp_path / "steered", tmp_path / "runs.html"
    settings = {runs / "plain": ("ce",), runs / "mean": ("ce", "--set", "train.average=ema"), steered: ("flgamma-sece",)}
    for seed, (out, words) in enumerate(settings.items()):
        code, _, err = run(capsys, "train", *made, "--seed", seed, "--method", *words, "--out", out)
        assert code == 0, err
    # A run that is named twice, or lies in a folder that is named too, is one run.
    code, text, err = run(capsys, "report", runs, *2 * ("--run", runs / "mean"), "--out", page)
    assert code == 0, err
    assert "2 methods compared in 2 runs" in text
    assert '<th scope="row">CE</th><td>raw, error</td><td>1</td>' in page.read_text()
    assert '<th scope="row">CE (average=ema)</th><td>ema, error</td><td>1</td>' in page.read_text()
    code, _, err = run(capsys, "report", "--run", runs / "plain", "--run", steered, "--out", page)
    assert code == 0, err
    assert '<th scope="row">FLγ-SECE</th><td>phase, error+nll</td><td>1</td>' in page.read_text()
    code, _, err = run(capsys, "report", runs / "plain", "--out", page, "--resamples", 100)
    assert code == 0, err
    for part in ("<title>test.npz</title>", 'id="reliability"', 'id="curves"'):
        assert part in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.npz", "--out", "r.html"), "missing.npz"),
        (("test.npz", "--out", "nowhere/r.html"), "must exist before a file is written to it"),
        (("test.npz", "--out", "r.txt"), "must end in .html, .htm, got '.txt'"),
        (("test.npz", "--fit", "test.npz", "--out", "r.html"), "the file to fit on must not be the test file"),
        (("val.npz", "--fit", "test.npz", "--out", "r.html"), "must not be marked as test data"),
        (("test.npz", "--fit", "three.npz", "--out", "r.html"), "same order as test.npz, got 3, not 4"),
        (("test.npz", "--method", "temprature", "--out", "r.html"), "Did you mean 'temperature'"),
        (("test.npz", "--class-names", "few.txt", "--out", "r.html"), "`class_names` must hold C = 4 names, got 2"),
        (("test.npz", "--run", "nothing", "--out", "r.html"), "nothing: must be a run folder"),
        (("--out", "r.html"), "a file of test predictions must be given"),
        (("--fit", "val.npz", "--run", "x", "--out", "r.html"), "a file of test predictions must be given"),
    ],
)
def test_report_bad_input_is_one_sentence_and_code_2(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    for name in ("test.npz", "val.npz"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    synthetic_predictions(50, 3, split="val")[0].save(tmp_path / "three.npz")
    (tmp_path / "few.txt").write_text("cat\ndog\n")
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "report", *arguments)
    assert code == 2, err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "r.html").exists()
