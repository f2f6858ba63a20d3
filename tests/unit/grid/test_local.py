"""The pool of processes, with processes that answer at once instead of training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibrant.grid import local
from calibrant.grid.local import LocalExecutor, Place, last_line
from calibrant.grid.plan import Cell, plan_cells
from calibrant.grid.schedule import Event, Task

CELLS = {cell.method: cell for cell in plan_cells(["mixture"], ["ce", "focal", "brier", "mixup", "crl", "ecp", "flsd"], [0])}
# What a process does with a task goes by its method; `number` tells how many it was given before.
STUB = """
import json, os, signal, sys
number = 0
def say(**message):
    print(json.dumps({"leaves": False, **message}), flush=True)
for line in sys.stdin:
    task = json.loads(line)
    method = task["recipe"]["method"]["name"]
    if method == "focal":
        with open(task["log"], "a") as log:
            log.write("the end is near\\n")
        os._exit(3)
    elif method == "brier":
        os.kill(os.getpid(), signal.SIGKILL)
    elif method == "mixup":
        say(kind="failed", text="too big", again=True, memory=True, leaves=True)
        os._exit(0)
    elif method == "flsd":
        say(kind="failed", text="too odd", again=True, memory=False)
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
    return Task(cell, folder / cell.name, None, folder / "logs" / f"{cell.name}.log")


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


def test_local_executor_runs_cells_beside_each_other(pool: LocalExecutor, tmp_path: Path) -> None:
    pool.submit(task(CELLS["ce"], tmp_path))
    pool.submit(task(CELLS["ecp"], tmp_path))
    assert pool.free() == 0
    found = answers(pool, 2)
    assert {event.name for event in found} == {CELLS["ce"].name, CELLS["ecp"].name}
    assert len({event.numbers["pid"] for event in found}) == 2


@pytest.mark.parametrize(
    ("method", "text"),
    [("focal", "its process ended with code 3: the end is near"), ("brier", "its process was killed (SIGKILL)")],
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


def test_local_executor_calls_no_other_failure_beside_others_a_lack_of_room(pool: LocalExecutor, tmp_path: Path) -> None:
    pool.submit(task(CELLS["crl"], tmp_path))
    answers(pool)
    pool.submit(task(CELLS["flsd"], tmp_path))
    assert answers(pool) == [Event(CELLS["flsd"].name, "failed", text="too odd", again=True, crowded=False)]
    assert pool.places[0].limit == 2


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


def test_close_does_not_wait_for_a_lock_that_an_interrupt_left_taken(
    pool: LocalExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_PATIENCE", 0.1)
    pool.submit(task(CELLS["crl"], tmp_path))
    answers(pool)
    process = pool._workers[0].process
    # As after Ctrl-C in the midst of `Popen.poll`.
    assert process._waitpid_lock.acquire(timeout=5)
    pool.close()
    assert pool._workers == []
    process._waitpid_lock.release()
    assert process.wait(timeout=5) is not None


def test_last_line_of_a_log_is_what_a_run_said_and_not_its_name(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert last_line(log) == ""
    log.write_text("x, 2026-01-01T00:00:00\n\n")
    assert last_line(log) == ""
    log.write_text("x, 2026-01-01T00:00:00\nfirst\n the end \n\n")
    assert last_line(log) == "the end"


def test_last_line_of_a_crash_names_it_and_not_what_was_loaded(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    crash = 'Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File "a.py", line 1\n'
    log.write_text(f"x, 2026-01-01T00:00:00\nfirst\n{crash}\nExtension modules: numpy, torch._C (total: 2)\n")
    assert last_line(log) == "Fatal Python error: Segmentation fault"
    # A crash of an earlier attempt is not this one's.
    log.write_text(f"x, 2026-01-01T00:00:00\n{crash}x, 2026-01-01T00:01:00\nno space left\n")
    assert last_line(log) == "no space left"
