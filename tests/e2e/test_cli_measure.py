"""``calibrant measure`` and ``calibrant demo`` from file to output, as a user runs them."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from calibrant import Predictions
from calibrant.cli import measure as command
from calibrant.cli import train as demo
from calibrant.data.synthetic import synthetic_predictions
from calibrant.metrics.table import METRICS
from helpers import golden
from helpers import run_command as run

KEYS = {name for name in METRICS.builtin if METRICS[name].is_score and not METRICS[name].positive}


def measure_json(capsys, *arguments):
    code, out, err = run(capsys, "measure", "--json", "--resamples", 100, *arguments)
    assert code == 0, err
    # No NaN or Infinity, which are no JSON.
    return json.loads(out, parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files of the same 2,000 examples: over-confident, repaired, and one with groups, weights and names."""
    place = tmp_path_factory.mktemp("files")
    first, _ = synthetic_predictions(2000, 4, temperature=2.0)
    first.save(place / "first.npz")
    first.replace(logits=first.logits / 2).save(place / "repaired.csv")
    Predictions(
        logits=first.logits,
        labels=first.labels,
        weights=torch.arange(2000) % 3 + 1.0,
        columns={"site": np.array(["a", "b"] * 1000), "age": np.arange(2000) * 0.01},
        class_names=["ant", "bee", "cat", "dog"],
    ).save(place / "rich.parquet")
    other, _ = synthetic_predictions(500, 4, seed=7)
    other.save(place / "other.pt")
    (place / "bad.csv").write_text("p0,p1,label\n0.5,0.4,0\n")
    return place


def test_measure_json_of_the_golden_input(capsys, tmp_path):
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
    path = tmp_path / "golden.parquet"
    Predictions(logits=logits, labels=labels).save(path)
    found = measure_json(capsys, path)
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


def test_measure_json_infinite_loss_is_null_and_ignored_labels_are_left_out(capsys, tmp_path):
    (tmp_path / "x.csv").write_text("p0,p1,label\n1,0,1\n0.5,0.5,0\n0.3,0.7,1\n0.2,0.8,-1\n")
    found = measure_json(capsys, tmp_path / "x.csv", "--ignore-index", "-1")
    assert (found["n"], found["metrics"]["error"]["value"]) == (3, pytest.approx(1 / 3))
    assert found["metrics"]["nll"]["value"] is None
    assert math.isfinite(found["metrics"]["brier"]["value"])


def test_measure_json_same_seed_gives_the_same_bytes(capsys, folder):
    outputs = [run(capsys, "measure", "--json", "--resamples", 100, "--seed", s, folder / "first.npz")[1] for s in (1, 1, 2)]
    assert outputs[0] == outputs[1] != outputs[2]


@pytest.mark.parametrize("stream_rows", [100, None])
def test_measure_json_of_several_files_pairs_them_with_the_first(capsys, folder, monkeypatch, stream_rows):
    if stream_rows:
        monkeypatch.setattr(command, "STREAM_ROWS", stream_rows)
    found = measure_json(capsys, folder / "first.npz", folder / "repaired.csv", folder / "first.npz")
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


def test_measure_json_of_other_examples_has_no_paired_test(capsys, folder):
    code, out, err = run(capsys, "measure", "--json", "--resamples", 100, folder / "first.npz", folder / "other.pt")
    assert code == 0
    assert json.loads(out)[1]["paired"] is None
    assert "no paired test" in err
    assert "other.pt" in err


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_measure_by_class_and_slice_agrees_streamed_and_in_memory(capsys, folder, tmp_path, ending, monkeypatch):
    path = tmp_path / f"x.{ending}"
    Predictions.load(folder / "rich.parquet").save(path)
    arguments = (path, "--by-class", "--slice", "site", "--slice", "age", "--slice", "site,age")
    kept = measure_json(capsys, *arguments)
    assert {entry["name"] for entry in kept["classes"]} == {"ant", "bee", "cat", "dog"}
    assert [entry["ece"] for entry in kept["classes"]] == sorted((entry["ece"] for entry in kept["classes"]), reverse=True)
    assert {name: kept["slices"][name]["n"] for name in ("site: a", "site: b")} == {"site: a": 1000, "site: b": 1000}
    assert len(kept["slices"]) == 2 + 5 + 10
    monkeypatch.setattr(command, "STREAM_ROWS", 100)
    monkeypatch.setattr(command, "_BATCH_ENTRIES", 4 * 150)
    streamed = measure_json(capsys, *arguments)
    exact = ("error", "nll", "brier", "ece", "mce", "classwise_ece", "signed_gap")
    assert list(kept["slices"]) == list(streamed["slices"])
    pairs = [(kept, streamed), *((kept["slices"][name], streamed["slices"][name]) for name in kept["slices"])]
    for first, second in pairs:
        assert first["n"] == second["n"]
        for key in (key for key in KEYS if METRICS[key].read):
            tolerance = 1e-9 if key in exact else 1e-3
            assert second["metrics"][key]["value"] == pytest.approx(first["metrics"][key]["value"], abs=tolerance), key
    assert [entry["name"] for entry in kept["classes"]] == [entry["name"] for entry in streamed["classes"]]


def test_measure_with_too_many_groups_is_refused(capsys, tmp_path, monkeypatch):
    rows = "".join(f"0.5,0.5,0,user{k}\n" for k in range(1200))
    (tmp_path / "x.csv").write_text("p0,p1,label,user\n" + rows)
    for rows_in_memory in (10_000, 100):
        monkeypatch.setattr(command, "STREAM_ROWS", rows_in_memory)
        code, out, err = run(capsys, "measure", tmp_path / "x.csv", "--slice", "user")
        assert (code, out) == (2, "")
        assert "at most 1000 groups" in err


def test_measure_table_says_what_a_person_wants_to_know(capsys, folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = run(capsys, "measure", "--resamples", 100, "--slice", "site", folder / "rich.parquet")
    assert (code, err) == (0, "")
    for said in ("over-confident", "95% interval", "if calibrated", "Classes", "bee", "Groups", "2,000 examples"):
        assert said in out.replace("Over-", "over-"), said
    assert max(map(len, out.splitlines())) <= 100
    assert "\x1b" not in out
    code, out, _ = run(capsys, "measure", "--resamples", 100, folder / "first.npz", folder / "repaired.csv")
    assert code == 0
    assert "repaired minus first" in out
    assert re.search(r"expected calibration error +−\d+\.\d+% .* better", out)


def test_measure_class_names_come_from_a_file_and_read_labels_that_are_names(capsys, folder, tmp_path):
    rows = [("0.7,0.2,0.1", "dog"), ("0.2,0.7,0.1", "cat"), ("0.1,0.2,0.7", "eel")] * 10
    file, names = tmp_path / "x.csv", tmp_path / "names.txt"
    file.write_text("p0,p1,p2,label\n" + "".join(f"{probs},{label}\n" for probs, label in rows))
    names.write_text("dog\ncat\neel\n")
    found = measure_json(capsys, file, "--class-names", names, "--by-class")
    assert (found["n"], found["metrics"]["error"]["value"]) == (30, 0)
    assert {entry["name"] for entry in found["classes"]} == {"dog", "cat", "eel"}
    code, _, err = run(capsys, "measure", file)
    assert (code, "'dog' in row 0" in err) == (2, True)
    code, out, err = run(capsys, "measure", folder / "first.npz", "--class-names", names)
    assert (code, out, "`class_names`" in err) == (2, "", True)


def test_measure_of_a_run_folder_is_that_of_its_test_predictions_and_limits_end_with_3(capsys, folder, tmp_path):
    Predictions.load(folder / "first.npz").save(tmp_path / "test.npz")
    found = measure_json(capsys, tmp_path, "--fail-if", "ece<0.01", "--fail-if", "ece.high>0.9")
    assert (found["file"], found["n"]) == (str(tmp_path / "test.npz"), 2000)
    code, out, err = run(capsys, "measure", folder / "first.npz", "--resamples", 100, "--fail-if", "ece>0.05", "--json")
    assert (code, json.loads(out)["n"], err.count("\n")) == (3, 2000, 1)
    assert re.search(r"first.npz: ece is 0.\d+ \(ece>0.05\)", err)
    code, out, err = run(capsys, "measure", folder / "first.npz", "--fail-if", "ecee>0.05")
    assert (code, out, "Did you mean 'ece'" in err) == (2, "", True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("missing.npz",), "missing.npz"),
        (("first.npz", "--slice", "site"), "unknown column of first.npz 'site'. There are: none."),
        (("rich.parquet", "--slice", "sight"), "Did you mean 'site'?"),
        (("first.npz", "--class-names", "missing.txt"), "missing.txt"),
        (("bad.csv",), "bad.csv: rows of `probs` must sum to 1"),
    ],
)
def test_measure_bad_input_ends_with_2_and_one_sentence(capsys, folder, arguments, said, monkeypatch):
    monkeypatch.chdir(folder)
    code, out, err = run(capsys, "measure", "--json", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("calibrant: ")
    assert err.count("\n") == 1
    assert said in err


def test_measure_in_a_pipe_that_closes_says_nothing(folder):
    shell = f"{sys.executable} -m calibrant measure --resamples 100 --json {folder / 'first.npz'} | head -c 1"
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=600, env=environment)
    assert (done.stdout, done.stderr) == ("{", "")


# Runs the command and reports the peak of its own resident memory in KiB (`getrusage` would report at least the parent's).
MEASURE = """
import re, sys
from calibrant.cli.main import run
try:
    run(sys.argv[1:])
finally:
    print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
"""
PIECE, PIECES = 100_000, 25


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak memory as Linux reports it")
def test_measure_millions_of_rows_never_has_them_in_memory(tmp_path):
    predictions, truth = synthetic_predictions(PIECE, 10, temperature=1.5)
    probs = predictions.probs.numpy()
    table = pa.table({f"p{k}": probs[:, k].copy() for k in range(10)} | {"label": predictions.labels.numpy()})
    path = tmp_path / "big.parquet"
    with pq.ParquetWriter(path, table.schema, use_dictionary=False) as writer:
        for _ in range(PIECES):
            writer.write_table(table)
    shell = [sys.executable, "-c", MEASURE, "measure", str(path), "--json", "--resamples", "100"]
    done = subprocess.run(shell, capture_output=True, text=True, check=True, timeout=900)
    found = json.loads(done.stdout)
    assert found["n"] == PIECE * PIECES
    assert found["metrics"]["ece"]["value"] == pytest.approx(truth, abs=0.01)
    # The probabilities alone are 200 MB, of which any way through memory makes several copies; torch takes 250 MB before.
    assert int(done.stderr.split()[-1]) < 600 * 1024


def test_demo_finds_the_truth_and_shows_what_to_run_next(capsys, tmp_path):
    code, out, err = run(capsys, "demo", "--measure", "--out", tmp_path / "new")
    assert (code, err) == (0, "")
    found = re.search(r"Measured ([\d.]+)%, true ([\d.]+)%: the 95% interval\s+([\d.]+) – ([\d.]+)%", out)
    assert found is not None
    measured, true, low, high = map(float, found.groups())
    assert low <= true <= high
    assert measured == pytest.approx(true, abs=1)
    following = re.search(r"calibrant (measure .*)", out)[1].split()
    assert run(capsys, *following, "--resamples", 100)[0] == 0


def test_demo_trains_four_ways_and_compares_them(capsys):
    code, out, _ = run(capsys, "demo", "--seeds", "1", "--epochs", "2")
    assert code == 0
    for words in ("cross-entropy + temperature", "focal loss", "gamma-Net + SECE", "90 – 100% sure", "calibrant measure"):
        assert words in out
    assert demo.demo_recipe("ce", seed=1, epochs=3).data.meta


def test_demo_score_compares_confidence_with_the_truth():
    predictions = Predictions(probs=[[0.9, 0.1], [0.3, 0.7]], labels=[0, 0])
    posterior = torch.tensor([[0.6, 0.4], [0.5, 0.5]], dtype=torch.float64)
    found = demo.score(predictions, posterior)
    assert (found["error"], found["gap"]) == (0.5, pytest.approx((0.3 + 0.2) / 2))


def test_demo_comparison_marks_the_best_of_each_column():
    keys = ("error", "nll", "ece", "gap")
    numbers = {"first": (0.1, 1.0, 0.2, 0.3), "second": (0.2, 0.5, 0.1, 0.2)}
    rows = {name: [dict(zip(keys, values, strict=True))] for name, values in numbers.items()}
    table = demo.comparison(rows, width=100)
    assert [str(cell) for cell in table.columns[1].cells] == ["10.0 ± 0.0%", "20.0 ± 0.0%"]
    bold = [[cell.style == "bold" for cell in column.cells] for column in table.columns[1:]]
    assert bold == [[True, False], [False, True], [False, True], [False, True]]


def test_demo_shows_how_often_each_method_is_right_by_its_confidence():
    sure = Predictions(probs=[[0.95, 0.05], [0.95, 0.05], [0.55, 0.45]], labels=[0, 1, 0])
    # The second seed counts with the first: three of four that are 90 - 100 % sure are right.
    right = Predictions(probs=[[0.95, 0.05], [0.05, 0.95], [0.35, 0.65]], labels=[0, 1, 0])
    table = demo.right_by_confidence({"cross-entropy": [sure, right], "gamma-Net + SECE": [sure]}, width=100)
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    assert cells[1:] == [["100%", "0%", "–", "–", "75%"], ["100%", "–", "–", "–", "50%"]]
