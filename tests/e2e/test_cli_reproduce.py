"""The commands ``reproduce`` and ``results`` from end to end; the grid's runs have processes of their own."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from calibrant.cli.main import run
from made_up_runs import no_files

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command in an empty folder: exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    # What the command changes for its own process is put back.
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setenv("OMP_WAIT_POLICY", os.environ.get("OMP_WAIT_POLICY", "PASSIVE"))

    def command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            run(list(arguments))
        said = capsys.readouterr()
        return int(str(left.value.code)), said.out, said.err

    return command


def test_reproduce_quick_runs_and_reports_then_keeps_results(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rendering takes most of the time, and has tests of its own.
    monkeypatch.setattr("calibrant.report.save.render_figure", no_files)
    short = ("--quick", "--seeds", "1", "--set", "train.epochs=2", "--set", "train.batch_size=200")
    code, out, err = call("reproduce", "table2", *short, "--out", "here", "--device", "cpu")
    assert code == 0, err
    assert "table2: The calibration gain from SECE (quick version)" in out
    assert "1 x 2 x 1 = 2, of which 2 are trained; 2 are left" in out
    assert "mixture (quick), mlp" in out
    here = tmp_path / "here"
    assert {"table2-quick.md", "table2-quick.tex", "report.html", "figures", "runs"} <= {p.name for p in here.iterdir()}
    found = json.loads((here / "table2-quick.json").read_text())
    assert [line["method"] for line in found["sections"][0]["lines"]] == ["flgamma", "flgamma-sece"]

    code, out, err = call("results", "add", "here/runs", "--to", "kept", "--note", "a test")
    assert code == 0, err
    (name,) = [file.name for file in (tmp_path / "kept").iterdir() if file.name.startswith("mixture-mlp-flgamma-default-")]
    record = json.loads((tmp_path / "kept" / name).read_text())
    assert (record["epochs"], record["note"], record["data"]) == (2, "a test", "mixture")
    assert "--set train.batch_size=200" in record["command"]
    code, out, err = call("results", "render", "kept", "--out", "page/results.md")
    assert code == 0, err
    page = (tmp_path / "page" / "results.md").read_text()
    assert "flgamma-sece" in page
    assert f"](../kept/{name})" in page
    assert "calibrant results render kept --out page/results.md\n" in page
    # Where one record is refused, no other is written.
    last = tmp_path / "kept" / name
    next(file for file in (tmp_path / "kept").iterdir() if file != last).unlink()
    last.write_text(last.read_text().replace('"epochs": 2', '"epochs": 9', 1))
    code, out, err = call("results", "add", "here/runs", "--to", "kept")
    assert (code, out) == (2, "")
    assert "must be the record of one run, got two" in err
    assert [*(tmp_path / "kept").iterdir()] == [last]


def test_reproduce_dry_run_needs_no_data_and_writes_nothing(call: Call, tmp_path: Path) -> None:
    options = ("--data", "cifar10", "--data-root", "nowhere", "--device", "cpu", "--out", "here")
    code, out, err = call("reproduce", "table2", *options, "--dry-run")
    assert code == 0, err
    assert "1 x 2 x 5 = 10, of which 10 are trained; 10 are left in here" in out
    code, out, err = call("reproduce", "table2", *options)
    assert (code, err.count("\n")) == (2, 1)
    assert "calibrant data fetch cifar10" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("reproduce tabel1", "Did you mean 'table1'"),
        ("reproduce table1 --quick --data cifar10,digts --data-root empty --dry-run", "Did you mean 'digits'"),
        ("results add empty", "empty: must hold finished runs, got none"),
        ("results add mine.npz", "mine.npz: must hold finished runs, got none"),
        ("results add nothere", "nothere: must hold finished runs, got none"),
    ],
)
def test_reproduce_and_results_of_what_cannot_be_say_so_once(words: str, said: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine.npz").write_bytes(b"")
    code, out, err = call(*words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert not (tmp_path / "results").exists()
