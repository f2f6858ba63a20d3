"""``calibrant decide`` learns thresholds on one file and tries them on another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrant.data.synthetic import synthetic_predictions
from calibrant.decisions import SelectiveClassifier
from helpers import run_command


def test_decide_tries_on_the_second_file_what_it_learned_on_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    val, test = (synthetic_predictions(2000, 5, seed=seed, split=name)[0] for seed, name in enumerate(("val", "test")))
    files = tmp_path / "val.npz", tmp_path / "test.npz"
    for part, file in zip((val, test), files, strict=True):
        part.save(file)
    code, out, _ = run_command(capsys, "decide", *files, "--max-error", 0.05, "--max-error", 0.0001, "--json")
    found, impossible = json.loads(out)
    threshold = SelectiveClassifier(max_error=0.05).fit(val).threshold_
    assert code == 0
    assert found["threshold"] == threshold
    assert found["answered"] == int((test.confidence > threshold).sum())
    assert impossible["threshold"] is None
    code, out, _ = run_command(capsys, "decide", *files)
    assert "cannot be guaranteed" in out
    assert "probability for each row" in " ".join(out.split())
    code, out, _ = run_command(capsys, "decide", *files, "--max-error", 0.0001)
    assert "must hold at least 29,956 examples for this `max_error`, got 2,000." in " ".join(out.split())
    assert "for each row" not in " ".join(out.split())
    for arguments, fault in (((*files, "--max-error", 2), "`max_error`"), (reversed(files), "test")):
        code, _, err = run_command(capsys, "decide", *arguments)
        assert code == 2
        assert fault in err


def test_decide_and_repair_take_the_folder_of_a_run_for_its_test_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, name in enumerate(("val", "test")):
        synthetic_predictions(500, 3, seed=seed, split=name)[0].save(tmp_path / f"{name}.npz")
    val = tmp_path / "val.npz"
    found = [run_command(capsys, "decide", val, place, "--json") for place in (tmp_path / "test.npz", tmp_path)]
    assert found[0] == found[1]
    made = ("--method", "temperature", "--out", tmp_path / "r.npz", "--resamples", 100)
    code, out, _ = run_command(capsys, "repair", val, tmp_path, *made)
    assert (code, "applied to 500 of test.npz" in out) == (0, True)
