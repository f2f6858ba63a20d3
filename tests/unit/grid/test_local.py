"""The pool of processes, with processes that answer at once instead of training."""

from __future__ import annotations

import errno
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from calibrant.engine.recipe import Recipe, recipe_of
from calibrant.engine.run import EpochRecord
from calibrant.grid import executors
from calibrant.grid.executors import LocalExecutor, Place, make_places, run_cell, visible_gpus
from calibrant.grid.schedule import Cell, Event

# A process that does what a cell says, and notes who it is in the log.
STUB = """
import json, os, signal
from multiprocessing.connection import Connection
pipe = Connection({pipe})
while True:
    cell = pipe.recv()
    if cell.does == "exit":
        os._exit(3)
    elif cell.does == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(cell.log, "a") as log:
        log.write(json.dumps([os.getpid(), os.environ["OMP_NUM_THREADS"], os.environ["CUDA_VISIBLE_DEVICES"]]) + "\\n")
    pipe.send_bytes(cell.does)
"""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalExecutor]:
    monkeypatch.setattr(executors, "_START", STUB)
    made = LocalExecutor(device="cpu", jobs=2, threads=3)
    yield made
    made.close()


def submit(pool: LocalExecutor, folder: Path, kind: str = "done", name: str = "run", **what: Any) -> Event:
    """Give a cell that answers with an event, or ends its process; return that event."""
    event = Event(name, "failed" if kind in ("exit", "die") else kind, **what)  # type: ignore[arg-type]
    does = kind if kind in ("exit", "die") else pickle.dumps(event)
    pool.submit(SimpleNamespace(name=name, log=folder / "log", does=does))  # type: ignore[arg-type]
    return event


def answers(pool: LocalExecutor, number: int = 1) -> list[Event]:
    found: list[Event] = []
    while len(found) < number:
        found += pool.poll(60)
    return found


def who(folder: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines() if line.startswith("[")]


def test_local_executor_gives_several_cells_to_one_process(pool: LocalExecutor, tmp_path: Path) -> None:
    for _ in range(3):
        assert pool.free() == 2
        event = submit(pool, tmp_path, numbers={"error": 0.1})
        assert pool.free() == 1
        assert answers(pool) == [event]
    found = who(tmp_path)
    assert (len(found), len({pid for pid, *_ in found})) == (3, 1)
    assert found[0][1:] == ["3", ""]


@pytest.mark.parametrize(
    ("what", "text"), [("exit", "its process ended with code 3"), ("die", "its process was killed (SIGKILL)")]
)
def test_local_executor_replaces_a_process_that_died(pool: LocalExecutor, tmp_path: Path, what: str, text: str) -> None:
    submit(pool, tmp_path, what)
    assert answers(pool) == [Event("run", "failed", text=text)]
    assert pool.free() == 2
    event = submit(pool, tmp_path)
    assert answers(pool) == [event]


def test_local_executor_after_too_little_memory_runs_fewer_at_a_time(pool: LocalExecutor, tmp_path: Path) -> None:
    submit(pool, tmp_path, "step", "other", epochs=1.0)
    answers(pool)
    event = submit(pool, tmp_path, "failed", text="too big", crowded=True)
    assert answers(pool) == [event]
    assert (pool.places, pool.free()) == ([Place(None, 1, 1)], 0)
    pool.close()
    # What lacked memory alone is no fault of others.
    event = submit(pool, tmp_path, "failed", text="too big", crowded=True)
    assert answers(pool) == [Event("run", "failed", text="too big")]


def test_local_executor_fills_gpus_evenly_and_adds_runs_that_fit(pool: LocalExecutor, tmp_path: Path) -> None:
    pool.places = [Place("2", 1, 2), Place("5", 1, 2)]
    submit(pool, tmp_path, name="a")
    submit(pool, tmp_path, name="b")
    answers(pool, 2)
    assert {gpu for *_, gpu in who(tmp_path)} == {"2", "5"}
    event = submit(pool, tmp_path, "step", epochs=1.0, gpu=(100, 1000))
    assert pool.free() == 1
    assert answers(pool) == [event]
    # 1000 bytes are free where a run was seen to need 100: one more has room beside it.
    assert sorted(place.limit for place in pool.places) == [1, 2]
    assert pool.free() == 2


def test_local_executor_closed_leaves_no_process_behind(pool: LocalExecutor, tmp_path: Path) -> None:
    submit(pool, tmp_path, "step")
    answers(pool)
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(who(tmp_path)[0][0], 0)


def test_make_places_on_the_cpu_are_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.grid.executors.usable_cores", lambda: 6)
    assert make_places(device="cpu", jobs=None, threads=1) == [Place(None, 6, 6)]
    assert make_places(device="cpu", jobs=None, threads=4) == [Place(None, 1, 1)]
    assert make_places(device="cpu", jobs=9, threads=1) == [Place(None, 9, 9)]


def test_make_places_on_gpus_begin_with_one_run_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.grid.executors.usable_cores", lambda: 16)
    monkeypatch.setattr("calibrant.grid.executors.visible_gpus", lambda device: ["0", "3"])
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


def failing(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **recipe: object) -> list[Any]:
    """What is sent of a run that raises, after it has noted its command and device."""

    def train(recipe: Recipe, *, report: Callable, tick: Callable, **_: object) -> None:
        seen.append((list(sys.argv), recipe.train.device))
        for now, step in ((100.0, 1), (100.9, 2), (101.0, 3)):
            monkeypatch.setattr(executors, "monotonic", lambda now=now: now)
            tick(0, step, 4)
        report(EpochRecord(0, 0.1, 2.0, val_error=0.3, val_ece=0.02))
        raise error

    seen: list[Any] = []
    monkeypatch.setattr(sys, "argv", ["worker"])
    monkeypatch.setattr(executors, "train", train)
    monkeypatch.setattr(executors, "monotonic", lambda: 0.0)
    run_cell(Cell("x", recipe_of(recipe), tmp_path), send=seen.append)
    return seen


def test_run_cell_gives_the_run_its_command_and_tells_of_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = {"data": {"name": "/data/my pictures"}, "train": {"device": "cuda:1"}}
    (argv, device), *steps, last = failing(ValueError("enough"), tmp_path, monkeypatch, **recipe)
    assert argv[:4] == ["calibrant", "train", "--data", "/data/my pictures"]
    # The process sees the one GPU that it was given.
    assert device == "cuda"
    # Parts of an epoch are told once a second at most.
    assert [(event.epochs, event.numbers) for event in steps] == [
        (0.25, {}),
        (0.75, {}),
        (1.0, {"val_error": 0.3, "val_ece": 0.02}),
    ]
    assert last == Event("x", "failed", text="enough", again=False)


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
def test_run_cell_tells_what_another_try_may_help(
    error: BaseException, again: bool, crowded: bool, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = failing(error, tmp_path, monkeypatch)[-1]
    assert last == Event("x", "failed", text=text, again=again, crowded=crowded)
