"""``calibrant compare`` from the outside: the same table however it is run, interrupted or killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

import calibrant
from calibrant.grid.collect import load_entries
from helpers import run_command as run
from made_up_runs import no_files

TINY = ("--data", "mixture", "--epochs", "2", "--set", "train.batch_size=200", "--set", "train.checkpoint_every_seconds=0")
GRID = ("--methods", "ce,ce+ts,focal", "--model", "own:waiting")
TABLES = ("table.md", "table.tex", "table.csv", "table.json")
PATIENCE = 300
# Networks of one's own, so that what happens does not depend on how fast the machine is. `waiting` stops in the second epoch of
# `focal` until there is a file `go`. The process of `dying` dies the first time that it is built for a run of `ce`, and it
# cannot be built for one of `focal`.
NETWORKS = """
import os, signal, sys, time
from pathlib import Path
from calibrant.backbones import mlp

def waiting(num_classes):
    model, seen = mlp(num_classes, num_inputs=64), []

    def wait(head, inputs):
        seen.extend([1] if head.training else [])
        while len(seen) > 10 and not Path("go").exists():
            time.sleep(0.05)

    if "focal" in sys.argv:
        model.head.register_forward_pre_hook(wait)
    return model

def dying(num_classes):
    if "focal" in sys.argv:
        print("what the log shows", flush=True)
        raise RuntimeError("no such luck")
    if "train" in sys.argv and not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return mlp(num_classes, num_inputs=64)
"""


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    (cwd / "own.py").write_text(NETWORKS)
    return subprocess.Popen(
        [sys.executable, "-m", "calibrant", "compare", *TINY, *arguments, "--out", "out"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        start_new_session=True,
        # A suite that runs in the background of a shell has it switched off, and would hand that down.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def read_until(process: subprocess.Popen[str], beginning: str) -> None:
    """Read what the command says up to a line."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return
    raise AssertionError(finish(process))


def wait_for(file: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not file.exists():
        assert time.monotonic() < end, file
        time.sleep(0.05)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid that was run in one go, two runs at a time."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "go").touch()
    code, out, err = finish(start(*GRID, "--jobs", "2", "--no-figures", cwd=folder))
    assert code == 0, err
    assert "[3/3]" in out
    return folder / "out"


def tables(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in TABLES]


def test_compare_leaves_runs_tables_and_a_report(whole: Path) -> None:
    assert sorted(folder.name for folder in (whole / "runs").iterdir()) == [
        f"mixture-waiting-{method}-seed0" for method in ("ce+ts", "ce", "focal")
    ]
    table = json.loads((whole / "table.json").read_text())
    (section,) = table["sections"]
    assert [(line["method"], line["runs"]) for line in section["lines"]] == [("ce", 1), ("ce+ts", 1), ("focal", 1)]
    (entry,) = (entry for entry in load_entries(whole) if entry.method == "focal")
    assert section["lines"][2]["cells"]["ece"]["mean"] == pytest.approx(entry.scores["ece"].value, rel=1e-12)
    assert (whole / "report.html").read_text().startswith("<!doctype html>")
    assert not (whole / "figures").exists()


def test_compare_of_finished_runs_only_draws_them_unless_told_not_to(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole / "runs", tmp_path / "runs")
    # Rendering takes most of the time, and has tests of its own.
    monkeypatch.setattr("calibrant.report.save.render_figure", no_files)
    code, out, err = run(capsys, "compare", *TINY, *GRID, "--out", tmp_path)
    assert code == 0, err
    assert "3 of 3 runs are finished" in out
    names = {file.name for file in (tmp_path / "figures").iterdir()}
    reliability = {f"reliability-mixture-own_waiting-{number}bins" for number in (10, 15, 20, 50, 100)}
    others = {f"{kind}-mixture-own_waiting" for kind in ("curves", "robustness", "tradeoff")}
    assert names == {f"{name}.{ending}" for name in reliability | others for ending in ("png", "pdf")}


def test_compare_interrupted_killed_and_run_again_gives_the_same_table(whole: Path, tmp_path: Path) -> None:
    process = start(*GRID, "--jobs", "1", "--no-figures", cwd=tmp_path)
    read_until(process, "[1/3]")
    # As a keyboard sends it to all that a terminal runs.
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    assert re.fullmatch(r"calibrant: interrupted, [12] of 3 runs are finished. The same command goes on.\n", err)

    focal = tmp_path / "out" / "runs" / "mixture-waiting-focal-seed0"
    # It may have come as far as that before.
    shutil.rmtree(focal, ignore_errors=True)
    process = start(*GRID, "--jobs", "1", "--no-figures", cwd=tmp_path)
    wait_for(focal / "state.pt")
    os.killpg(process.pid, signal.SIGKILL)
    finish(process)
    stamps = finished_runs(tmp_path)
    # One run at a time: `ce` and what is made of it, while `focal` waits.
    assert 1 <= len(stamps) <= 2

    (tmp_path / "go").touch()
    code, out, err = finish(start(*GRID, "--jobs", "1", "--no-figures", cwd=tmp_path))
    assert code == 0, err
    assert f"{len(stamps)} of 3 runs are finished" in out
    assert tables(tmp_path / "out") == tables(whole)
    for place in focal.parent.iterdir():
        assert (place / "test.npz").read_bytes() == (whole / "runs" / place.name / "test.npz").read_bytes()
    assert stamps.items() <= finished_runs(tmp_path).items()
    assert json.loads((focal / "run.json").read_text())["resumed_at_epochs"] == [1]


def finished_runs(folder: Path) -> dict[str, str]:
    """What stands in ``run.json`` of those that are finished."""
    found = {file.parent.name: file.read_text() for file in (folder / "out" / "runs").glob("*/run.json")}
    return {name: text for name, text in found.items() if json.loads(text).get("finished") is not None}


def test_compare_goes_on_without_runs_that_fail_or_are_killed(tmp_path: Path) -> None:
    methods = ("--methods", "focal,focal+ts,ce", "--model", "own:dying")
    code, out, err = finish(start(*methods, "--jobs", "1", "--no-figures", cwd=tmp_path))
    assert code == 1, err
    assert "mixture ce seed 0: to be tried again, its process was killed (SIGKILL)" in out
    rows = [line["method"] for line in json.loads((tmp_path / "out" / "table.json").read_text())["sections"][0]["lines"]]
    assert rows == ["ce"]
    log = Path("out", "logs", "mixture-dying-focal-seed0.log")
    said = next(line for line in err.splitlines() if "mixture-dying-focal-seed0 failed: train: `model` must be" in line)
    assert "got RuntimeError: no such luck from 'own:dying'" in said
    assert f"(log: {log})" in said
    assert "mixture-dying-focal+ts-seed0 failed: mixture-dying-focal-seed0, which it is made of, failed" in err
    assert "what the log shows" in (tmp_path / log).read_text()


def test_compare_in_python_reads_finished_runs_and_adds_others(whole: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs-seed0.npz"
    load_entries(whole / "runs" / "mixture-waiting-ce-seed0")[0].test.save(theirs)
    settings = {"train.epochs": 2, "train.batch_size": 200, "backbone.name": "own:waiting"}
    found = calibrant.compare("mixture", methods=["focal", "ce"], out=whole, settings=settings, add=[theirs], figures=False)
    assert [(entry.method, entry.seed) for entry in found.entries] == [("focal", 0), ("ce", 0), ("theirs", 0)]
    assert found.entries[1].scores["ece"].value == found.entries[2].scores["ece"].value
    assert found.failures == ()
    assert [row.label for row in found.table.rows] == ["Focal", "CE", "theirs"]
    alone = calibrant.compare("mixture", add=theirs, out=tmp_path, figures=False)
    assert [entry.method for entry in alone.entries] == ["theirs"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--data", "mixture", "--methods", "ce,fokal"), "unknown method 'fokal'. Did you mean 'focal'?"),
        (("--data", "cifar10", "--methods", "ce", "--data-root", "{tmp}"), "calibrant data fetch cifar10"),
        (("--methods", "ce"), "`data` must hold at least one"),
        (("--data", "mixture", "--methods", "ce", "--set", "epochs=3"), "unknown key of recipe 'epochs'"),
        (("--data", "mixture"), "`methods` must hold at least one"),
        (("--data", "mixture", "--add", "x.npz", "--epochs", "3"), "`methods` must be named"),
    ],
)
def test_compare_of_what_cannot_be_says_so_before_anything_starts(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.replace("{tmp}", str(tmp_path)) for word in arguments]
    code, _, err = run(capsys, "compare", *given, "--out", tmp_path / "out")
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_compare_prints_added_rows_and_says_what_is_not_compared(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole / "runs", tmp_path / "out" / "runs")
    test = load_entries(whole / "runs" / "mixture-waiting-ce-seed0")[0].test
    given = {"mine.npz": test.replace(logits=2 * test.logits), "part.npz": test.subset(range(500))}
    for name, predictions in given.items():
        predictions.save(tmp_path / name)
    words = [word for name in given for word in ("--add", str(tmp_path / name))]
    arguments = ["--methods", "ce", "--model", "own:waiting", "--out", tmp_path / "out", "--no-figures", "--paper"]
    code, out, err = run(capsys, "compare", *TINY, *arguments, *words)
    assert code == 0, err
    lines = out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("CE ", "mine ", "part (500"))] == ["CE", "mine", "part"]
    assert "mine" in (tmp_path / "out" / "report.html").read_text()


def test_compare_without_methods_makes_table_figures_and_report_of_files_alone(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    test = load_entries(whole / "runs" / "mixture-waiting-ce-seed0")[0].test
    for name, by in (("mine", 1.0), ("sharper", 3.0)):
        test.replace(logits=by * test.logits).save(tmp_path / f"{name}.npz")
    words = [word for name in ("mine", "sharper") for word in ("--add", str(tmp_path / f"{name}.npz"))]
    monkeypatch.setattr("calibrant.report.save.render_figure", no_files)
    code, out, err = run(capsys, "compare", "--data", "my data", *words, "--out", tmp_path / "out")
    assert code == 0, err
    assert f"written to {tmp_path}/out: table.md" in out
    assert not (tmp_path / "out" / "runs").exists()
    lines = json.loads((tmp_path / "out" / "table.json").read_text())["sections"][0]["lines"]
    assert [line["method"] for line in lines] == ["mine", "sharper"]
    assert lines[0]["cells"]["ece"]["best"]
    assert lines[1]["cells"]["ece"]["p_value"] < 0.05
    assert any(file.name.startswith("reliability-") for file in (tmp_path / "out" / "figures").iterdir())
