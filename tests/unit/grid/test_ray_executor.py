"""The executor of Ray against a stand-in for Ray; the real one is in the end-to-end tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from calibrant.engine.recipe import Recipe
from calibrant.grid import executors as module
from calibrant.grid.executors import RayExecutor, run_remotely
from calibrant.grid.schedule import Cell, Event


class FakeQueue(list[Event]):
    """Keeps events; it is lost with its node where it is told so."""

    lost = False

    def __init__(self, *, actor_options: dict[str, Any]) -> None:
        super().__init__()

    put_nowait = list.append

    def qsize(self) -> int:
        if self.lost:
            raise RuntimeError("The actor died.")
        return len(self)

    def get_nowait_batch(self, number: int) -> list[Event]:
        return [self.pop(0) for _ in range(number)]

    def shutdown(self, *, force: bool) -> None:
        pass


def result_of(made: Any, *arguments: Any) -> Future[Any]:
    found: Future[Any] = Future()
    try:
        found.set_result(made(*arguments))
    except Exception as error:
        found.set_exception(error)
    return found


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a task when it is given; one that raises is a node that died. It notes what was asked, cancelled and shut down."""

    def make(**resources: float) -> Any:
        made = SimpleNamespace(asked=[], cancelled=[], down=[], is_initialized=lambda: True, get=Future.result)
        made.cluster_resources = lambda: resources
        made.remote = lambda **wanted: made.asked.append(wanted) or (lambda f: SimpleNamespace(remote=partial(result_of, f)))
        made.wait = lambda references, **_: (references, [])
        made.cancel = lambda reference, force: made.cancelled.append(reference)
        made.shutdown = lambda: made.down.append(True)
        queue = SimpleNamespace(Queue=FakeQueue)
        for name, found in {"ray": made, "ray.util": SimpleNamespace(), "ray.util.queue": queue}.items():
            monkeypatch.setitem(sys.modules, name, found)
        return made

    return make


def cell(folder: Path) -> Cell:
    return Cell("run", Recipe(), folder)


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


def works(cell: Cell, where: Path, threads: int, steps: Any) -> Event:
    steps.put_nowait(Event("run", "step", epochs=3.0))
    steps.put_nowait(Event("another", "step", epochs=1.0))
    return Event("run", "failed", text="why", again=False)


def test_ray_executor_tells_of_a_node_that_died_and_of_a_run_that_failed(fake, monkeypatch, tmp_path: Path) -> None:
    made = fake(CPU=2.0)

    def dies(*_: Any) -> Any:
        raise RuntimeError("\nThe node died.\nA long trace.")

    monkeypatch.setattr(module, "run_remotely", dies)
    executor = RayExecutor()
    executor.submit(cell(tmp_path))
    assert executor.free() == 1
    assert executor.poll(0) == [Event("run", "failed", text="Ray: The node died.")]
    assert executor.free() == 2

    monkeypatch.setattr(module, "run_remotely", works)
    executor = RayExecutor()
    executor.submit(cell(tmp_path))
    ended = Event("run", "failed", text="why", again=False)
    assert executor.poll(0) == [Event("run", "step", epochs=3.0), ended]
    # Progress that is lost with a node loses no run.
    monkeypatch.setattr(FakeQueue, "lost", True)
    executor.submit(cell(tmp_path))
    assert executor.poll(0) == [ended]
    executor.submit(cell(tmp_path))
    executor.close()
    assert len(made.cancelled) == 1
    assert not made.down  # it was not started here


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    found = run_remotely(cell(tmp_path), tmp_path, 1, None)
    assert (found.kind, found.again) == ("failed", False)
    assert "`out` must be a folder that every node sees" in found.text
