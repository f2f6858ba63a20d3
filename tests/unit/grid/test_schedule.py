from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from calibrant.grid.executors import run_cells
from calibrant.grid.schedule import Board, Cell, Event, Watch, plan_cells


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def grid() -> Board:
    return Board(plan_cells(["digits"], ["ce", "ce+ts", "focal"], [0, 1], settings={"train.epochs": 10}))


class Fake:
    """Runs ``room`` cells at a time in no time; ``script`` says what becomes of a cell, by its method and try."""

    def __init__(self, room: int, script: Callable[[str, int], Event | None] = lambda name, tries: None) -> None:
        self.room, self.script = room, script
        self.given: list[Cell] = []
        self.running: list[str] = []
        self.tries: dict[str, int] = {}
        self.closed = 0
        self.most = 0

    def free(self) -> int:
        return self.room - len(self.running)

    def submit(self, cell: Cell) -> None:
        self.given.append(cell)
        self.running.append(cell.name)
        self.tries[cell.name] = self.tries.get(cell.name, 0) + 1
        self.most = max(self.most, len(self.running))

    def poll(self, seconds: float) -> list[Event]:
        name = self.running.pop(0)
        return [self.script(name, self.tries[name]) or Event(name, "done", numbers={"error": 0.1})]

    def close(self) -> None:
        self.closed += 1


def run(board: Board, executor: Fake, *, retries: int = 1, watch: Watch = lambda board, event: None) -> None:
    run_cells(board, executor, retries=retries, watch=watch)


def order(executor: Fake) -> list[str]:
    return [cell.name.removeprefix("digits-convnet-") for cell in executor.given]


def fail(name: str, again: bool = True) -> Event:
    return Event(name, "failed", text="it broke", again=again)


@pytest.mark.parametrize("room", [1, 2, 9])
def test_run_cells_starts_a_scaled_run_only_after_its_base(room: int) -> None:
    board, executor = grid(), Fake(room)
    run(board, executor)
    assert board.count("done") == len(board.cells) == len(executor.given)
    assert executor.most <= room
    for seed in (0, 1):
        assert order(executor).index(f"ce-seed{seed}") < order(executor).index(f"ce+ts-seed{seed}")
    assert executor.closed == 1
    scaled = next(cell for cell in executor.given if cell.base is not None)
    assert scaled.folder == Path("runs", "digits-convnet-ce+ts-seed0")
    assert scaled.log.read_text().startswith(f"{scaled.name}, ")


def test_run_cells_tries_again_and_goes_on() -> None:
    board = grid()
    executor = Fake(1, lambda name, tries: fail(name) if "focal-seed0" in name and tries == 1 else None)
    run(board, executor, retries=1)
    assert board.count("done") == len(board.cells)
    assert order(executor).count("focal-seed0") == 2


@pytest.mark.parametrize("retries", [0, 1])
def test_run_cells_counts_no_try_that_found_no_room_beside_others(retries: int) -> None:
    def script(name: str, tries: int) -> Event | None:
        return Event(name, "failed", text="too big", crowded=True) if "focal-seed0" in name and tries <= 3 else None

    board, executor = grid(), Fake(1, script)
    run(board, executor, retries=retries)
    assert board.count("done") == len(board.cells)
    assert order(executor).count("focal-seed0") == 4


@pytest.mark.parametrize(("retries", "again", "tries"), [(0, True, 1), (2, True, 3), (2, False, 1)])
def test_run_cells_gives_up_after_its_tries_and_takes_along_what_is_made_of_it(retries: int, again: bool, tries: int) -> None:
    board = grid()
    executor = Fake(2, lambda name, tries: fail(name, again) if name == "digits-convnet-ce-seed1" else None)
    run(board, executor, retries=retries)
    assert order(executor).count("ce-seed1") == tries
    assert order(executor).count("ce+ts-seed1") == 0
    failed = {name: state.text for name, state in board.cells.items() if state.stage == "failed"}
    assert failed == {
        "digits-convnet-ce-seed1": "it broke",
        "digits-convnet-ce+ts-seed1": "digits-convnet-ce-seed1, which it is made of, failed",
    }
    assert board.count("done") == 4
    assert board.cells["digits-convnet-ce-seed1"].log == Path("logs", "digits-convnet-ce-seed1.log")


def test_run_cells_closes_the_executor_when_interrupted() -> None:
    executor = Fake(1)

    def watch(board: Board, event: Event | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(grid(), executor, watch=watch)
    assert executor.closed == 1


def test_board_needs_no_base_that_only_finished_runs_were_made_of(tmp_path: Path) -> None:
    base, scaled = plan_cells(["digits"], ["ce+ts"], [0], out=tmp_path)
    board = Board([base, scaled])
    board.note_finished()
    assert board.count("waiting") == 2
    scaled.folder.mkdir(parents=True)
    (scaled.folder / "run.json").write_text('{"finished": "yes"}')
    board.note_finished()
    assert board.count("done") == 2
