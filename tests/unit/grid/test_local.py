"""The pool of processes, with processes that answer at once instead of training."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import calibrant.engine.train as engine
from calibrant.engine.recipe import Recipe, recipe_of, to_dict
from calibrant.engine.result import EpochRecord
from calibrant.grid import local
from calibrant.grid.local import LocalExecutor, Place, make_places, run_task, visible_gpus
from calibrant.grid.schedule import Cell, Event, Task, plan_cells

CELLS = {cell.method: cell for cell in plan_cells(["mixture"], ["ce", "focal", "brier", "mixup", "crl", "ecp", "flsd"], [0])}
# What a process does with a task goes by its method; `number` tells how many it was given before.
STUB = """
import json, os, signal, sys
number = 0
def say(**message):
    print(json.dumps(message), flush=True)
for line in sys.stdin:
    task = json.loads(line)
    method = task["recipe"]["method"]["name"]
    if method == "focal":
        os._exit(3)
    elif method == "brier":
        os.kill(os.getpid(), signal.SIGKILL)
    elif method == "mixup":
        say(kind="failed", text="too big", again=True, crowded=True)
    elif method == "flsd":
        say(kind="failed", text="too odd", again=True)
    elif method == "crl":
        say(kind="step", epochs=1.0, numbers={"val_error": 0.5}, gpu=[100, 1000])
    else:
        gpu = os.environ["CUDA_VISIBLE_DEVICES"]
        numbers = {"number": number, "pid": os.getpid(), "threads": int(os.environ["OMP_NUM_THREADS"]), "gpu": gpu}
        say(kind="done", numbers=numbers)
    number += 1
"""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalExecutor]:
    monkeypatch.setattr(local, "_START", STUB.replace("{", "{{").replace("}", "}}"))
    made = LocalExecutor(device="cpu", jobs=2, threads=3)
    yield made
    made.close()


def task(cell: Cell, folder: Path) -> Task:
    places = {"folder": str(folder / cell.name), "base": None, "log": str(folder / "logs" / f"{cell.name}.log")}
    return {"name": cell.name, "recipe": to_dict(cell.recipe), **places}


def answers(pool: LocalExecutor, number: int = 1) -> list[Event]:
    found: list[Event] = []
    while len(found) < number:
        found += pool.poll(60)
    return found


def test_local_executor_gives_several_cells_to_one_process(pool: LocalExecutor, tmp_path: Path) -> None:
    pids = set()
    for number in range(3):
        assert pool.free() == 2
        pool.submit(task(CELLS["ce"], tmp_path))
        assert pool.free() == 1
        (event,) = answers(pool)
        assert (event.name, event.kind) == (CELLS["ce"].name, "done")
        assert (event.numbers["number"], event.numbers["threads"], event.numbers["gpu"]) == (number, 3, "")
        pids.add(event.numbers["pid"])
    assert len(pids) == 1


@pytest.mark.parametrize(
    ("method", "text"),
    [("focal", "its process ended with code 3"), ("brier", "its process was killed (SIGKILL)")],
)
def test_local_executor_replaces_a_process_that_died(pool: LocalExecutor, tmp_path: Path, method: str, text: str) -> None:
    pool.submit(task(CELLS[method], tmp_path))
    assert answers(pool) == [Event(CELLS[method].name, "failed", text=text)]
    assert pool.free() == 2
    pool.submit(task(CELLS["ce"], tmp_path))
    (event,) = answers(pool)
    assert (event.kind, event.numbers["number"]) == ("done", 0)


def test_local_executor_after_too_little_memory_runs_fewer_at_a_time(pool: LocalExecutor, tmp_path: Path) -> None:
    pool.submit(task(CELLS["mixup"], tmp_path))
    assert answers(pool) == [Event(CELLS["mixup"].name, "failed", text="too big", again=True)]
    assert pool.places == [Place(None, 1, 1)]
    assert pool.free() == 1
    pool.submit(task(CELLS["ce"], tmp_path))
    assert answers(pool)[0].numbers["number"] == 0


def test_local_executor_tells_whether_memory_lacked_beside_others(pool: LocalExecutor, tmp_path: Path) -> None:
    pool.submit(task(CELLS["crl"], tmp_path))
    answers(pool)
    pool.submit(task(CELLS["mixup"], tmp_path))
    assert answers(pool) == [Event(CELLS["mixup"].name, "failed", text="too big", again=True, crowded=True)]
    assert (pool.places[0].limit, pool.places[0].most) == (1, 1)


def test_local_executor_fills_gpus_evenly_and_adds_runs_that_fit(
    pool: LocalExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.places = [Place("2", 1, 2), Place("5", 1, 2)]
    pool.submit(task(CELLS["ce"], tmp_path))
    pool.submit(task(CELLS["ecp"], tmp_path))
    assert {event.numbers["gpu"] for event in answers(pool, 2)} == {"2", "5"}
    pool.submit(task(CELLS["crl"], tmp_path))
    assert pool.free() == 1
    (event,) = answers(pool)
    assert (event.kind, event.epochs, event.numbers) == ("step", 1.0, {"val_error": 0.5})
    # 1000 bytes are free where a run was seen to need 100: one more has room beside it.
    assert sorted(place.limit for place in pool.places) == [1, 2]
    assert pool.free() == 2


def test_local_executor_closed_leaves_no_process_behind(pool: LocalExecutor, tmp_path: Path) -> None:
    pool.submit(task(CELLS["ecp"], tmp_path))
    (event,) = answers(pool)
    pool.submit(task(CELLS["crl"], tmp_path))
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(event.numbers["pid"], 0)


def test_make_places_on_the_cpu_are_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.grid.local.usable_cores", lambda: 6)
    assert make_places(device="cpu", jobs=None, threads=1) == [Place(None, 6, 6)]
    assert make_places(device="cpu", jobs=None, threads=4) == [Place(None, 1, 1)]
    assert make_places(device="cpu", jobs=9, threads=1) == [Place(None, 9, 9)]


def test_make_places_on_gpus_begin_with_one_run_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.grid.local.usable_cores", lambda: 16)
    monkeypatch.setattr("calibrant.grid.local.visible_gpus", lambda device: ["0", "3"])
    assert make_places(device="auto", jobs=None, threads=1) == [Place("0", 1, 4), Place("3", 1, 4)]
    assert make_places(device="auto", jobs=5, threads=1) == [Place("0", 3, 3), Place("3", 2, 2)]
    assert make_places(device="auto", jobs=1, threads=1) == [Place("0", 1, 1)]


def test_visible_gpus_respect_what_the_caller_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert visible_gpus("auto") == visible_gpus("cuda") == ["4", "6"]
    assert visible_gpus("cuda:1") == ["6"]
    assert visible_gpus("cpu") == []
    # As it may be set for another machine.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert visible_gpus("auto") == ["0", "1"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus("auto") == ["0", "1"]
    with pytest.raises(ValueError, match="`train.device` must be one of 2 CUDA devices"):
        visible_gpus("cuda:2")


def test_place_takes_one_more_run_once_all_there_are_known_and_it_fits() -> None:
    place = Place("0", 1, 3)
    place.measured("a", 10, 12, running=["a"])
    assert place.limit == 1  # 12 is less than 10 and its margin
    place.measured("a", 10, 13, running=["a"])
    assert place.limit == 2
    place.measured("a", 10, 90, running=["a"])
    assert place.limit == 2  # the second has not come yet
    place.measured("a", 10, 90, running=["a", "b"])
    assert place.limit == 2  # what b needs is not known yet
    place.measured("b", 20, 24, running=["a", "b"])
    place.measured("a", 10, 24, running=["a", "b"])
    assert place.limit == 2  # the next may need as much as b
    place.measured("b", 20, 26, running=["a", "b"])
    assert place.limit == 3
    place.measured("c", 10, 900, running=["a", "b", "c"])
    assert place.limit == 3


def failing(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **recipe: object) -> list[dict[str, Any]]:
    """What is sent of a run that raises, after it has noted its command and device."""

    def train(recipe: Recipe, *, report: Callable, tick: Callable, **_: object) -> None:
        seen.append({"kind": "seen", "argv": list(sys.argv), "device": recipe.train.device})
        for now, step in ((100.0, 1), (100.9, 2), (101.0, 3)):
            monkeypatch.setattr(local.time, "monotonic", lambda now=now: now)
            tick(0, step, 4)
        report(EpochRecord(0, 0.1, 2.0, val_error=0.3, val_ece=0.02))
        raise error

    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(sys, "argv", ["worker"])
    monkeypatch.setattr(engine, "train", train)
    run_task({"recipe": to_dict(recipe_of(recipe)), "folder": str(tmp_path / "run"), "base": None}, send=seen.append)
    return seen


def test_run_task_gives_the_run_its_command_and_tells_of_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = {"data": {"name": "/data/my pictures"}, "train": {"device": "cuda:1"}}
    first, *steps, last = failing(ValueError("enough"), tmp_path, monkeypatch, **recipe)
    assert first["argv"][:4] == ["calibrant", "train", "--data", "/data/my pictures"]
    # The process sees the one GPU that it was given.
    assert first["device"] == "cuda"
    # Parts of an epoch are told once a second at most.
    assert [(said["epochs"], said.get("numbers", {})) for said in steps] == [
        (0.25, {}),
        (0.75, {}),
        (1.0, {"val_error": 0.3, "val_ece": 0.02}),
    ]
    assert last == {"kind": "failed", "text": "enough", "again": False, "crowded": False}


@pytest.mark.parametrize(
    ("error", "again", "crowded", "text"),
    [
        (FloatingPointError("the loss became nan"), False, False, "the loss became nan"),
        (ImportError("no such module"), False, False, "no such module"),
        (OSError(errno.ENOSPC, "No space left", "a/b.npz"), True, False, "[Errno 28] No space left: 'a/b.npz'"),
        (MemoryError("too big"), True, True, "MemoryError: too big"),
        # As a GPU that is full says it, where torch's own allocator was not asked.
        (RuntimeError("CUDA error: out of memory"), True, True, "RuntimeError: CUDA error: out of memory"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED\nx"), True, True, "RuntimeError: CUBLAS_STATUS_ALLOC_FAILED"),
        (RuntimeError("a bug"), True, False, "RuntimeError: a bug"),
    ],
)
def test_run_task_tells_what_another_try_may_help(
    error: BaseException, again: bool, crowded: bool, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = failing(error, tmp_path, monkeypatch)[-1]
    assert (last["again"], last["crowded"], last["text"]) == (again, crowded, text)
