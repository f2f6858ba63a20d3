"""A grid on Ray: the same numbers as on this machine, written to the same folder."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from calibrant.grid.collect import load_run_entry
from calibrant.grid.executors import RayExecutor, run_cell, run_remotely
from calibrant.grid.schedule import Cell, Event, plan_cells

TINY = {"train.epochs": "2", "train.batch_size": "400"}
CELLS = plan_cells(["mixture"], ["ce", "ce+ts"], [0], settings=TINY)
COMMAND = ["calibrant", "compare", "--data", "mixture", "--methods", "ce,ce+ts", "--no-figures", "--jobs", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both cells, run here."""
    folder = tmp_path_factory.mktemp("local")
    kept = sys.argv
    for cell in CELLS:
        run_cell(replace(cell, out=folder), send=lambda event: None)
    sys.argv = kept
    return folder


def same(first: Path, second: Path) -> bool:
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in ("test.npz", "metrics.json"))


def test_compare_on_ray_gives_the_numbers_of_this_machine(runs: Path, tmp_path: Path) -> None:
    settings = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", *COMMAND, *settings, "--on", "ray", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "oken authentication" not in done.stderr
    assert "[2/2] mixture ce+ts seed 0: error" in done.stdout
    for cell in CELLS:
        assert same(runs / "runs" / cell.name, tmp_path / "out" / "runs" / cell.name)
    assert sorted(file.name for file in (tmp_path / "out" / "runs").iterdir()) == sorted(cell.name for cell in CELLS)
    assert (tmp_path / "out" / "table.md").exists()


class Steps(list[Event]):
    """Stands in for the queue: a call on another machine is a call here."""

    put_nowait = list.append


def order(cell: Cell, folder: Path) -> Cell:
    found = replace(cell, out=folder)
    found.log.parent.mkdir(exist_ok=True)
    found.log.touch()
    return found


@pytest.fixture
def _node(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cell changes of the process is put back."""
    monkeypatch.setattr(sys, "argv", sys.argv)


@pytest.mark.usefixtures("_node")
def test_run_remotely_writes_to_the_drivers_folder_and_tells_of_its_progress(runs: Path, tmp_path: Path) -> None:
    steps = Steps()
    for cell in CELLS:
        assert run_remotely(order(cell, tmp_path), Path("/no/such/folder"), 1, steps).kind == "done"
        assert same(runs / "runs" / cell.name, tmp_path / "runs" / cell.name)
    assert load_run_entry(tmp_path / "runs" / CELLS[1].name).temperature is not None
    assert {step.name for step in steps} == {CELLS[0].name}
    assert max(step.epochs for step in steps) == 2.0


@pytest.mark.usefixtures("_node")
def test_run_remotely_of_a_failure_returns_its_reason_and_log(tmp_path: Path) -> None:
    (cell,) = plan_cells(["mixture"], ["ce"], [0], settings=TINY | {"optim.lr": "1e30", "train.clip_norm": "0"})
    cell = order(cell, tmp_path)
    found = run_remotely(cell, tmp_path, 1, Steps())
    assert (found.kind, found.again) == ("failed", False)
    assert "the loss became nan" in cell.log.read_text()


def test_ray_that_is_not_there_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match="Install it with `pip install ray`"):
        RayExecutor()
