"""``calibrant measure`` and ``calibrant demo`` from file to output, as a user runs them."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.cli import measure as command
from calibrant.data.synthetic import synthetic_predictions
from helpers import golden
from helpers import run_command as run

KEYS = {
    *("error", "nll", "brier", "ece", "mce", "ace", "classwise_ece", "sece", "smece", "mmce", "ece_debiased", "signed_gap"),
    "aurc",
}


def strict(constant: str) -> None:
    raise ValueError(f"not strict JSON: {constant}")


def measure_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> object:
    code, out, err = run(capsys, "measure", "--json", "--resamples", 50, *arguments)
    assert code == 0, err
    return json.loads(out, parse_constant=strict)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of the same 2,000 examples: over-confident, repaired, and one with groups, weights and names."""
    place = tmp_path_factory.mktemp("files")
    first, _ = synthetic_predictions(2000, 4, temperature=2.0)
    first.save(place / "first.npz")
    first.replace(logits=first.logits / 2).save(place / "repaired.csv")
    Predictions(
        logits=first.logits,
        labels=first.labels,
        weights=torch.arange(2000) % 3 + 1.0,
        columns={"site": np.array(["a", "b"] * 1000)},
        class_names=["ant", "bee", "cat", "dog"],
    ).save(place / "rich.parquet")
    other, _ = synthetic_predictions(500, 4, seed=7)
    other.save(place / "other.pt")
    return place


def test_measure_json_of_the_golden_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    logits, labels = golden()
    expected = {
        "error": 1 / 3,
        "nll": 1.209579,
        "brier": 0.601093,
        "ece": 0.268477,
        "mce": 0.559181,
        "ace": 0.334314,
        "classwise_ece": 0.174134,
        "sece": 0.272692,
        "smece": 0.197073,
        "mmce": 0.140817,
        "signed_gap": 0.678025 - 2 / 3,
    }
    for ending in ("npz", "csv", "parquet", "pt"):
        path = tmp_path / f"golden.{ending}"
        Predictions(logits=logits, labels=labels).save(path)
        found = measure_json(capsys, path)
        assert isinstance(found, dict)
        assert set(found) == {"file", "n", "num_classes", "n_bins", "metrics", "ece_if_calibrated"}
        assert (found["file"], found["n"], found["num_classes"]) == (str(path), 24, 5)
        assert set(found["metrics"]) == KEYS
        for key, value in expected.items():
            # The golden values have six digits.
            assert found["metrics"][key]["value"] == pytest.approx(value, rel=1e-5, abs=1e-6), key
        for key, estimate in found["metrics"].items():
            assert set(estimate) == {"value", "low", "high"}
            assert estimate["low"] <= estimate["high"], key
        assert set(found["ece_if_calibrated"]) == {"mean", "p95", "p_value"}


def test_measure_json_infinite_loss_is_null(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("p0,p1,label\n1,0,1\n0.5,0.5,0\n0.3,0.7,1\n")
    found = measure_json(capsys, tmp_path / "x.csv")
    assert isinstance(found, dict)
    assert found["metrics"]["nll"]["value"] is None
    assert math.isfinite(found["metrics"]["brier"]["value"])


def test_measure_json_same_seed_gives_the_same_bytes(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    outputs = [run(capsys, "measure", "--json", "--resamples", 50, "--seed", s, folder / "first.npz")[1] for s in (1, 1, 2)]
    assert outputs[0] == outputs[1] != outputs[2]


def test_measure_json_of_several_files_pairs_them_with_the_first(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    found = measure_json(capsys, folder / "first.npz", folder / "repaired.csv", folder / "first.npz")
    assert isinstance(found, list)
    assert [Path(entry["file"]).name for entry in found] == ["first.npz", "repaired.csv", "first.npz"]
    assert "paired" not in found[0]
    paired = found[1]["paired"]
    assert paired["against"] == str(folder / "first.npz")
    ece = paired["metrics"]["ece"]
    assert ece["difference"] == pytest.approx(found[1]["metrics"]["ece"]["value"] - found[0]["metrics"]["ece"]["value"])
    assert ece["high"] < 0
    assert ece["p_value"] < 0.05
    same = found[2]["paired"]["metrics"]
    assert {key: same[key]["difference"] for key in KEYS} == dict.fromkeys(KEYS, 0.0)
    assert same["ece"]["p_value"] > 0.9


def test_measure_json_of_other_examples_has_no_paired_test(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, err = run(capsys, "measure", "--json", "--resamples", 20, folder / "first.npz", folder / "other.pt")
    assert code == 0
    assert json.loads(out)[1]["paired"] is None
    assert "no paired test" in err
    assert "other.pt" in err


def test_measure_json_by_class_and_slice(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    found = measure_json(capsys, folder / "rich.parquet", "--by-class", "--slice", "site")
    assert isinstance(found, dict)
    assert {entry["name"] for entry in found["classes"]} == {"ant", "bee", "cat", "dog"}
    assert [entry["ece"] for entry in found["classes"]] == sorted((entry["ece"] for entry in found["classes"]), reverse=True)
    assert {name: part["n"] for name, part in found["slices"].items()} == {"a": 1000, "b": 1000}
    assert set(found["slices"]["a"]["metrics"]) == KEYS


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_measure_streamed_agrees_with_measured_in_memory(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"x.{ending}"
    Predictions.load(folder / "rich.parquet").save(path)
    arguments = (path, "--by-class", "--slice", "site")
    kept = measure_json(capsys, *arguments)
    monkeypatch.setattr(command, "STREAM_ROWS", 100)
    monkeypatch.setattr("calibrant.cli.measure._BATCH_ENTRIES", 4 * 150)
    streamed = measure_json(capsys, *arguments)
    assert isinstance(kept, dict)
    assert isinstance(streamed, dict)
    exact = ("error", "nll", "brier", "ece", "mce", "classwise_ece", "signed_gap")
    pairs = [(kept, streamed), *((kept["slices"][name], streamed["slices"][name]) for name in ("a", "b"))]
    for first, second in pairs:
        assert first["n"] == second["n"]
        for key in KEYS:
            tolerance = 1e-9 if key in exact else 1e-3
            assert second["metrics"][key]["value"] == pytest.approx(first["metrics"][key]["value"], abs=tolerance), key
    assert [entry["name"] for entry in kept["classes"]] == [entry["name"] for entry in streamed["classes"]]


def test_measure_streamed_files_are_paired_on_a_sample(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Predictions.load(folder / "repaired.csv").save(tmp_path / "repaired.parquet")
    monkeypatch.setattr(command, "STREAM_ROWS", 100)
    found = measure_json(capsys, folder / "first.npz", folder / "repaired.csv", tmp_path / "repaired.parquet")
    assert isinstance(found, list)
    for entry in found[1:]:
        assert entry["paired"]["metrics"]["ece"]["high"] < 0
    assert run(capsys, "measure", "--resamples", 20, folder / "rich.parquet", tmp_path / "repaired.parquet")[0] == 0


def test_measure_with_too_many_groups_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(f"0.5,0.5,0,user{k}\n" for k in range(1200))
    (tmp_path / "x.csv").write_text("p0,p1,label,user\n" + rows)
    for rows_in_memory in (10_000, 100):
        monkeypatch.setattr(command, "STREAM_ROWS", rows_in_memory)
        code, out, err = run(capsys, "measure", tmp_path / "x.csv", "--slice", "user")
        assert (code, out) == (2, "")
        assert "x.csv: a column to slice by must have at most 1000 groups, got more in `user`" in err


def test_measure_table_says_what_a_person_wants_to_know(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = run(capsys, "measure", "--resamples", 50, "--slice", "site", folder / "rich.parquet")
    assert (code, err) == (0, "")
    for said in ("over-confident", "95% interval", "if calibrated", "Classes", "bee", "Groups", "2,000 examples"):
        assert said in out.replace("Over-", "over-"), said
    assert max(map(len, out.splitlines())) <= 100
    assert "\x1b" not in out


def test_measure_table_of_several_files_compares_them(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = run(capsys, "measure", "--resamples", 50, folder / "first.npz", folder / "repaired.csv")
    assert code == 0
    assert "repaired minus first" in out
    assert re.search(r"expected calibration error +−\d+\.\d+% .* better", out)


def test_measure_labels_that_are_names_are_read_by_the_class_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [("0.7,0.2,0.1", "dog"), ("0.2,0.7,0.1", "cat"), ("0.1,0.2,0.7", "eel")] * 10
    file, names = tmp_path / "x.csv", tmp_path / "names.txt"
    file.write_text("p0,p1,p2,label\n" + "".join(f"{probs},{label}\n" for probs, label in rows))
    names.write_text("dog\ncat\neel\n")
    found = measure_json(capsys, file, "--class-names", names, "--by-class")
    assert isinstance(found, dict)
    assert (found["n"], found["metrics"]["error"]["value"]) == (30, 0)
    code, _, err = run(capsys, "measure", file)
    assert code == 2
    assert "got 'dog' in row 0. Give indices" in err


def test_measure_class_names_come_from_a_file(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("eins\nzwei\ndrei\nvier\n")
    found = measure_json(capsys, folder / "first.npz", "--by-class", "--class-names", names)
    assert isinstance(found, dict)
    assert {entry["name"] for entry in found["classes"]} == {"eins", "zwei", "drei", "vier"}
    names.write_text("eins\n")
    code, out, err = run(capsys, "measure", folder / "first.npz", "--class-names", names)
    assert (code, out) == (2, "")
    assert "`class_names` must hold C = 4 names, got 1" in err


def test_measure_ignored_labels_are_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("p0,p1,label\n0.9,0.1,0\n0.2,0.8,-1\n0.3,0.7,0\n")
    found = measure_json(capsys, tmp_path / "x.csv", "--ignore-index", "-1")
    assert isinstance(found, dict)
    assert found["n"] == 2
    assert found["metrics"]["error"]["value"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("missing.npz",), "missing.npz: there is no such file"),
        (("first.npz", "--slice", "site"), "got no further columns"),
        (("rich.parquet", "--slice", "sight"), "Did you mean 'site'?"),
        (("first.npz", "--class-names", "missing.txt"), "missing.txt: there is no such file"),
        (("bad.csv",), "bad.csv: rows of `probs` must sum to 1"),
    ],
)
def test_measure_bad_input_ends_with_2_and_one_sentence(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "bad.csv").write_text("p0,p1,label\n0.5,0.4,0\n")
    code, out, err = run(capsys, "measure", "--json", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("calibrant: ")
    assert err.count("\n") == 1
    assert said in err


def test_measure_in_a_pipe_that_closes_says_nothing(folder: Path) -> None:
    command = f"{sys.executable} -m calibrant measure --resamples 20 --json {folder / 'first.npz'} | head -c 1"
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600, env=environment)
    assert (done.stdout, done.stderr) == ("{", "")


def test_demo_finds_the_truth_and_shows_what_to_run_next(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "demo", "--measure", "--out", tmp_path / "new")
    assert (code, err) == (0, "")
    found = re.search(r"Measured ([\d.]+)%, true ([\d.]+)%: the 95% interval\s+([\d.]+) – ([\d.]+)%", out)
    assert found is not None
    measured, true, low, high = map(float, found.groups())
    assert low <= true <= high
    assert measured == pytest.approx(true, abs=1)
    command = re.search(r"calibrant (measure .*)", out)[1].split()
    assert run(capsys, *command, "--resamples", 20)[0] == 0
