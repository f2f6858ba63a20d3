"""The executor of Ray against a stand-in for Ray; the real one is in the end-to-end tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from calibrant.grid import ray as module
from calibrant.grid.ray import RayExecutor, pack, unpack
from calibrant.grid.schedule import Event, Task, plan_cells

(CELL,) = plan_cells(["mixture"], ["ce"], [0])


class Reference(list[Any]):
    """A result that can be a key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


class Remote:
    def __init__(self, made: Any) -> None:
        self.made = made

    def remote(self, *arguments: Any) -> Any:
        if isinstance(self.made, type):
            actor = self.made(*arguments)
            return type("Handle", (), {"put": Remote(actor.put), "take": Remote(actor.take)})()
        try:
            return Reference([self.made(*arguments)])
        except Exception as error:
            return Reference([error])


class FakeRay(ModuleType):
    """Runs a task when it is given and keeps its result, a list of one; a task that raises is a node that died."""

    def __init__(self, **resources: float) -> None:
        super().__init__("ray")
        self.resources, self.asked, self.cancelled, self.down = resources, [], [], False

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, **wanted: Any) -> Callable[[Any], Remote]:
        self.asked.append(wanted)
        return Remote

    def wait(self, references: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return references, []

    def get(self, reference: list[Any]) -> Any:
        if isinstance(reference[0] if reference else None, Exception):
            raise reference[0]
        return reference[0]

    def cancel(self, reference: Any, *, force: bool) -> None:
        self.cancelled.append(reference)

    def kill(self, actor: Any) -> None:
        pass

    def shutdown(self) -> None:
        self.down = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeRay]:
    def make(**resources: float) -> FakeRay:
        made = FakeRay(**resources)
        monkeypatch.setitem(sys.modules, "ray", made)
        return made

    return make


def task(folder: Path) -> Task:
    places = {"folder": str(folder / "runs" / CELL.name), "base": None, "log": str(folder / "logs" / "x.log")}
    return {"name": CELL.name, "recipe": {}, **places}


@pytest.mark.parametrize(
    ("resources", "options", "room", "gpus"),
    [
        ({"CPU": 6.0}, {}, 6, 0.0),
        ({"CPU": 6.0}, {"threads": 4}, 1, 0.0),
        ({"CPU": 6.0}, {"jobs": 9}, 9, 0.0),
        ({"CPU": 64.0, "GPU": 4.0}, {}, 4, 1.0),
        ({"CPU": 64.0, "GPU": 4.0}, {"jobs": 16}, 16, 0.25),
        ({"CPU": 64.0, "GPU": 4.0}, {"jobs": 2}, 2, 1.0),
        # Two on a GPU: of shares of two thirds only one would fit there.
        ({"CPU": 64.0, "GPU": 4.0}, {"jobs": 6}, 6, 0.5),
        # Ray would round a seventh up, and seven of those are more than one.
        ({"CPU": 64.0, "GPU": 1.0}, {"jobs": 7}, 7, 0.1428),
        ({"CPU": 64.0, "GPU": 4.0}, {"device": "cpu"}, 64, 0.0),
    ],
)
def test_ray_executor_asks_for_what_a_cell_needs(fake, resources, options, room, gpus) -> None:
    made = fake(**resources)
    executor = RayExecutor(**options)
    assert executor.free() == room
    assert made.asked[0] == {"num_cpus": options.get("threads", 1), "num_gpus": gpus, "max_retries": 0}


@pytest.mark.parametrize("address", ["far:1", None])
def test_ray_executor_that_finds_no_cluster_names_our_option(fake, monkeypatch, address: str | None) -> None:
    def fail(**_: object) -> None:
        raise ConnectionError("none there\nor so")

    made = fake(CPU=1.0)
    monkeypatch.setattr(made, "is_initialized", lambda: False)
    monkeypatch.setattr(made, "init", fail, raising=False)
    with pytest.raises(ValueError, match=f"`ray_address` must be .*, got {address or 'this machine'}: none there .*`ray start"):
        RayExecutor(address=address)


def test_ray_executor_tells_of_a_node_that_died_and_of_a_run_that_failed(fake, monkeypatch, tmp_path: Path) -> None:
    fake(CPU=2.0)

    def dies(order: Any, base: Any, mail: Any) -> Any:
        raise RuntimeError("\nThe node died.\nA long trace.")

    monkeypatch.setattr(module, "run_remotely", dies)
    executor = RayExecutor()
    executor.submit(task(tmp_path))
    assert executor.free() == 1
    assert executor.poll(0) == [Event(CELL.name, "failed", text="Ray: The node died.")]
    assert executor.free() == 2

    def fails(order: Any, base: Any, mail: Any) -> Any:
        mail.put.remote({"name": CELL.name, "kind": "step", "epochs": 3.0, "numbers": {}})
        mail.put.remote({"name": "another", "kind": "step", "epochs": 1.0, "numbers": {}})
        return {"message": {"kind": "failed", "text": "why", "again": False}, "log": "said\n", "node": "n1", "files": {}}

    monkeypatch.setattr(module, "run_remotely", fails)
    executor = RayExecutor()
    executor.submit(task(tmp_path))
    assert executor.poll(0) == [
        Event(CELL.name, "step", epochs=3.0),
        Event(CELL.name, "failed", text="why", again=False),
    ]
    assert (tmp_path / "logs" / "x.log").read_text() == f"{CELL.name}, on n1\nsaid\n"


def test_ray_executor_loses_no_run_with_the_node_that_keeps_the_messages(fake, monkeypatch, tmp_path: Path) -> None:
    made = fake(CPU=2.0)

    def works(order: Any, base: Any, mail: Any) -> Any:
        return {"message": {"kind": "done", "numbers": {}}, "log": "", "node": "n1", "files": {}}

    def lost() -> Any:
        raise RuntimeError("The actor died.")

    monkeypatch.setattr(module, "run_remotely", works)
    executor = RayExecutor()
    assert made.asked[1] == {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
    executor._mail.take = Remote(lost)
    executor.submit(task(tmp_path))
    assert executor.poll(0) == [Event(CELL.name, "done")]


def test_ray_executor_writes_what_a_node_sends_back_and_leaves_no_mark(fake, monkeypatch, tmp_path: Path) -> None:
    made = fake(CPU=2.0)
    seen: list[Any] = []

    def works(order: Any, base: Any, mail: Any) -> Any:
        seen.append(Path(order["mark"]).parent)
        files = {"run.json": b"{}", "test.npz": b"x"}
        return {"message": {"kind": "done", "numbers": {"error": 0.5}}, "log": "", "node": "n1", "files": files}

    monkeypatch.setattr(module, "run_remotely", works)
    executor = RayExecutor()
    executor.submit(task(tmp_path))
    folder = tmp_path / "runs" / CELL.name
    assert seen == [folder.parent.resolve()]
    assert executor.poll(0) == [Event(CELL.name, "done", numbers={"error": 0.5})]
    assert sorted(file.name for file in folder.iterdir()) == ["run.json", "test.npz"]
    executor.submit(task(tmp_path))
    executor.close()
    assert len(made.cancelled) == 1
    assert not made.down  # it was not started here
    assert [file.name for file in (tmp_path / "runs").iterdir()] == [CELL.name]


def test_a_run_travels_without_its_checkpoint_and_is_finished_only_when_all_of_it_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    (here / "folder").mkdir(parents=True)
    for name in ("recipe.toml", "run.json", "state.pt", "test.npz", ".test.npz.tmp"):
        (here / name).write_text(name)
    files = pack(here)
    assert sorted(files) == ["recipe.toml", "run.json", "test.npz"]
    written: list[str] = []
    replace = os.replace

    def noting(source: Path, target: Path) -> None:
        written.append(target.name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", noting)
    unpack(files, tmp_path / "there")
    assert sorted(written[:2]) == ["recipe.toml", "test.npz"]
    assert written[2:] == ["run.json"]
    assert {file.name: file.read_bytes() for file in (tmp_path / "there").iterdir()} == files
