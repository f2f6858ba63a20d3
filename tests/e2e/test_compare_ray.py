"""A grid on Ray: the same numbers as on this machine, also from a node that does not see the driver's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calibrant.engine.recipe import to_dict
from calibrant.grid.collect import load_run_entry
from calibrant.grid.local import run_task
from calibrant.grid.ray import Mail, pack, require_ray, run_remotely, unpack
from calibrant.grid.schedule import Cell, plan_cells

TINY = {"train.epochs": "2", "train.batch_size": "400"}
CELLS = plan_cells(["mixture"], ["ce", "ce+ts"], [0], settings=TINY)
COMMAND = ["calibrant", "compare", "--data", "mixture", "--methods", "ce,ce+ts", "--no-figures", "--jobs", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both cells, run here."""
    folder = tmp_path_factory.mktemp("local")
    kept = sys.argv
    for cell in CELLS:
        base = None if cell.base is None else str(folder / cell.base)
        run_task({"recipe": to_dict(cell.recipe), "folder": str(folder / cell.name), "base": base}, send=lambda said: None)
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
        assert same(runs / cell.name, tmp_path / "out" / "runs" / cell.name)
    assert sorted(file.name for file in (tmp_path / "out" / "runs").iterdir()) == sorted(cell.name for cell in CELLS)
    assert (tmp_path / "out" / "table.md").exists()


class Post:
    """Stands in for the handle of the actor: a call on another machine is a call here."""

    def __init__(self) -> None:
        self.mail = Mail()
        self.put = self

    def remote(self, message: dict[str, Any]) -> None:
        self.mail.put(message)


def order(cell: Cell, folder: Path, *, mark: Path) -> dict[str, Any]:
    return {
        "name": cell.name,
        "recipe": to_dict(cell.recipe),
        "folder": str(folder / cell.name),
        "base": None if cell.base is None else str(folder / cell.base),
        "mark": str(mark),
        "origin": "host:/somewhere",
        "where": "/no/such/folder",
        "threads": 1,
        "gpu": False,
    }


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine whose home is its own; what a task changes of the process is put back."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return tmp_path / "home" / ".cache" / "calibrant" / "ray"


def test_run_remotely_without_the_drivers_folder_sends_the_run_back(runs: Path, node: Path, tmp_path: Path) -> None:
    post = Post()
    for cell in CELLS:
        given = order(cell, tmp_path / "driver", mark=tmp_path / "none")
        base = {} if cell.base is None else pack(tmp_path / "driver" / cell.base)
        found = run_remotely(given, base, post)
        assert found["message"]["kind"] == "done"
        assert not (tmp_path / "driver" / cell.name).exists()
        unpack(found["files"], tmp_path / "driver" / cell.name)
        assert same(runs / cell.name, tmp_path / "driver" / cell.name)
    assert load_run_entry(tmp_path / "driver" / CELLS[1].name).temperature is not None
    assert [place.name for folder in node.iterdir() for place in folder.iterdir()] == []
    steps = post.mail.take()
    assert {step["name"] for step in steps} == {CELLS[0].name}
    assert max(step["epochs"] for step in steps) == 2.0
    assert post.mail.take() == []


def test_run_remotely_with_the_drivers_folder_writes_there(runs: Path, node: Path, tmp_path: Path) -> None:
    (tmp_path / "mark").write_text("text")
    found = run_remotely(order(CELLS[0], tmp_path, mark=tmp_path / "mark"), {}, Post())
    assert found["files"] == {}
    assert same(runs / CELLS[0].name, tmp_path / CELLS[0].name)
    assert not node.exists()


def test_run_remotely_of_a_failure_returns_its_reason_and_log(node: Path, tmp_path: Path) -> None:
    (cell,) = plan_cells(["mixture"], ["ce"], [0], settings=TINY | {"optim.lr": "1e30", "train.clip_norm": "0"})
    found = run_remotely(order(cell, tmp_path, mark=tmp_path / "none"), {}, Post())
    assert (found["message"]["kind"], found["message"]["again"], found["files"]) == ("failed", False, {})
    assert "the loss became nan" in found["log"]


def test_require_ray_without_ray_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match="Install it with `pip install ray`"):
        require_ray()
