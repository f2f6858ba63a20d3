"""The commands ``reproduce`` and ``results`` from end to end; the grid's runs have processes of their own."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from calibrant.cli.main import run
from calibrant.paper.reproduce import Forecast
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


def test_reproduce_quick_forecasts_runs_and_reports_then_keeps_results(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rendering takes most of the time, and has tests of its own.
    monkeypatch.setattr("calibrant.report.save.render_figure", no_files)
    short = ("--quick", "--seeds", "1", "--set", "train.epochs=2", "--set", "train.batch_size=200")
    code, out, err = call("reproduce", "table2", *short, "--out", "here", "--device", "cpu")
    assert code == 0, err
    assert "table2: The calibration gain from SECE (quick version)" in out
    assert "1 x 2 x 1 = 2, of which 2 are trained; 2 are left" in out
    assert " to " in next(line for line in out.splitlines() if line.strip().startswith("time"))
    assert "mixture (quick), mlp" in out
    here = tmp_path / "here"
    assert {"table2-quick.md", "table2-quick.tex", "report.html", "figures", "runs"} <= {p.name for p in here.iterdir()}
    found = json.loads((here / "table2-quick.json").read_text())
    assert [line["method"] for line in found["sections"][0]["lines"]] == ["flgamma", "flgamma-sece", "flgamma-sece"]

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


def test_reproduce_dry_run_without_data_says_how_to_get_it_and_writes_nothing(call: Call, tmp_path: Path) -> None:
    # A network small enough to be timed at once; the data are missing either way.
    options = ("--data", "cifar10", "--data-root", "nowhere", "--device", "cpu", "--set", "backbone.name=mlp", "--out", "here")
    code, out, err = call("reproduce", "table2", *options, "--dry-run")
    assert code == 0, err
    assert "1 x 2 x 5 = 10" in out
    assert "calibrant data fetch cifar10" in out
    assert "images/s" in out
    assert list(tmp_path.iterdir()) == []
    code, out, err = call("reproduce", "table2", *options)
    assert code == 2
    assert "calibrant data fetch cifar10" in err
    assert len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_reproduce_with_a_network_of_ones_own_finds_it_where_the_command_is_called(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from calibrant.backbones import mlp\n\ndef small(num_classes):\n    return mlp(num_classes, num_inputs=64)\n"
    (tmp_path / "own_of_reproduce.py").write_text(text)
    # A command that is installed does not look where it is called by itself.
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    options = ("--quick", "--device", "cpu", "--dry-run", "--set")
    code, out, err = call("reproduce", "table2", *options, "backbone.name=own_of_reproduce:small")
    assert code == 0, err
    assert "own_of_reproduce:small, learning on held-out data (default)" in out
    sys.modules.pop("own_of_reproduce")
    code, _, err = call("reproduce", "table2", *options, "backbone.name=own_of_reproduce:smal")
    assert code == 2
    assert "Did you mean 'small'?" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("reproduce tabel1", "Did you mean 'table1'"),
        ("reproduce table1 --quick --data cifar10,digts --data-root empty --dry-run", "Did you mean 'digits'"),
        ("reproduce table1 --quick --data ./nowhere", "nowhere: must be"),
        ("reproduce table2 --quick --dry-run --set train.batch_size=1601", "`train.batch_size` must be at most the 1600"),
        ("reproduce table2 --quick --out run/below --dry-run", "`out` must not lie in a run"),
        ("results add empty", "empty: must hold finished runs, got none"),
        ("results add mine.npz", "mine.npz: must hold finished runs, got none"),
        ("results add nothere", "nothere: must hold finished runs, got nothing there"),
    ],
)
def test_reproduce_and_results_of_what_cannot_be_say_so_once_and_before_the_plan(
    words: str, said: str, call: Call, tmp_path: Path
) -> None:
    for name in ("empty", "run"):
        (tmp_path / name).mkdir()
    for name in ("recipe.toml", "run.json"):
        (tmp_path / "run" / name).touch()
    (tmp_path / "mine.npz").write_bytes(b"")
    code, out, err = call(*words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(("quick", "hours"), [((), 30), (("--quick",), 30), (("--quick",), 0.5)])
def test_reproduce_dry_run_says_how_to_make_long_ones_shorter(
    quick: tuple[str, ...], hours: float, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Forecast(1800 * hours, 3600 * hours, "cpu", 1, ())
    monkeypatch.setattr("calibrant.cli.compare.forecast", lambda *_, **__: found)
    code, out, _ = call("reproduce", "table2", *quick, "--set", "backbone.name=mlp", "--dry-run")
    assert code == 0
    assert ("`--seeds 1`" in out) == ("shorter" in out) == (hours > 1)
