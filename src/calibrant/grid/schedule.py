"""Deciding what runs next: the state of every cell, what depends on what, tries again, and how long it will take.

Where cells are run is the business of an `Executor`: `calibrant.grid.local` and `calibrant.grid.ray` have one each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from calibrant.engine.folder import is_finished
from calibrant.engine.recipe import to_dict
from calibrant.grid.collect import numbers_of_run
from calibrant.grid.plan import Cell

# Seconds between looks at the executor.
_PAUSE = 0.25


class Stage(StrEnum):
    """How far a cell is."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Task:
    """What an executor is given to run: a cell, its run folder, that of the run it is made of, and a file for its log."""

    cell: Cell
    folder: Path
    base: Path | None
    log: Path

    def order(self) -> dict[str, Any]:
        """The task as plain data, for `calibrant.grid.local.run_task` in another process."""
        folder, log, base = (None if place is None else str(place.resolve()) for place in (self.folder, self.log, self.base))
        return {"name": self.cell.name, "recipe": to_dict(self.cell.recipe), "folder": folder, "base": base, "log": log}


@dataclass(frozen=True)
class Event:
    """What became of a cell.

    Attributes:
        name: Name of the cell.
        kind: "step": it went on; "done": it is finished; "failed": it is not and never will be without being run again.
        epochs: Epochs done, with the part of the present one.
        numbers: What is known of it: validation error and ECE on its way, ``error`` and ``ece`` of the test set at the end.
        text: Why it failed, in one sentence.
        again: Whether running it again may help.
        crowded: Whether it failed for want of room beside others. That is no try: fewer run at a time from then on.
    """

    name: str
    kind: Literal["step", "done", "failed"]
    epochs: float = 0.0
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    text: str = ""
    again: bool = True
    crowded: bool = False


class Executor(Protocol):
    """Runs cells somewhere. Every cell that it was given ends in one event "done" or "failed", whatever happens to it."""

    def free(self) -> int:
        """How many more cells it would take now."""
        ...

    def submit(self, task: Task) -> None:
        """Start a cell."""
        ...

    def poll(self, seconds: float) -> list[Event]:
        """What happened since the last call; waits up to ``seconds`` for something."""
        ...

    def close(self) -> None:
        """Stop everything that runs, at once."""
        ...


@dataclass
class CellState:
    """How far a cell is, and what is known of it.

    Attributes:
        cell: The cell; stage, epochs, numbers and text are as in `Event`.
        log: Where its run says more.
        tries: How often it was started, not counting where it found no room beside others.
        first: Epochs that it had when it was first heard of; a resumed run has some behind it.
        found: Whether it was finished before.
    """

    cell: Cell
    stage: Stage = Stage.WAITING
    epochs: float = 0.0
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    text: str = ""
    log: Path | None = None
    tries: int = 0
    first: float | None = None
    found: bool = False

    @property
    def total(self) -> int:
        """Epochs to train: none for a cell that is made of another."""
        return 0 if self.cell.base is not None else self.cell.recipe.train.epochs


class Board:
    """The state of a whole grid: of its cells, each base before what is made of it."""

    def __init__(self, cells: Sequence[Cell], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.states = {cell.name: CellState(cell) for cell in cells}
        self.clock = clock
        self.started = clock()
        # When the first run was heard of: what comes before is loading.
        self._moving: float | None = None

    def count(self, *stages: Stage) -> int:
        """How many cells are in some stages."""
        return sum(state.stage in stages for state in self.states.values())

    def note_finished(self, runs: Path) -> None:
        """Take in which runs are finished in a folder; a base that nobody asked for and nothing waits for is not needed."""
        for name, state in self.states.items():
            if is_finished(runs / name):
                state.stage, state.epochs, state.found = Stage.DONE, float(state.total), True
                state.numbers = numbers_of_run(runs / name)
        needed = {state.cell.base for state in self.states.values() if state.stage is Stage.WAITING}
        for name, state in self.states.items():
            if state.stage is Stage.WAITING and not state.cell.shown and name not in needed:
                state.stage, state.found = Stage.DONE, True

    def next_ready(self) -> CellState | None:
        """The first waiting cell whose base, if it has one, is done."""
        for state in self.states.values():
            base = None if state.cell.base is None else self.states[state.cell.base]
            if state.stage is Stage.WAITING and (base is None or base.stage is Stage.DONE):
                return state
        return None

    def start(self, state: CellState) -> None:
        """Note that a cell is being run."""
        state.stage, state.tries, state.text = Stage.RUNNING, state.tries + 1, ""

    def note(self, event: Event, *, retries: int) -> None:
        """Take in what happened; a cell that failed waits while it has another try, else takes those made of it along."""
        state = self.states[event.name]
        if event.kind == "step":
            self._moving = self.clock() if self._moving is None else self._moving
            state.first = event.epochs if state.first is None else state.first
            state.epochs, state.numbers = event.epochs, {**state.numbers, **event.numbers}
        elif event.kind == "done":
            state.stage, state.epochs, state.numbers = Stage.DONE, float(state.total), event.numbers
        else:
            state.text, state.tries = event.text, state.tries - event.crowded
            state.stage = Stage.WAITING if event.again and state.tries <= retries else Stage.FAILED
            for other in self.states.values() if state.stage is Stage.FAILED else ():
                if other.cell.base == event.name:
                    other.stage, other.text = Stage.FAILED, f"{event.name}, which it is made of, failed"

    def seconds_left(self) -> float | None:
        """How long the rest will take at the pace of all runs so far; None before the first epochs."""
        states = self.states.values()
        trained = sum(max(0.0, state.epochs - state.first) for state in states if state.first is not None)
        left = sum(max(0.0, s.total - s.epochs) for s in states if s.stage in (Stage.WAITING, Stage.RUNNING))
        return left * (self.clock() - self._moving) / trained if trained and self._moving is not None else None


# Called with the board and what has just changed on it; with None when only time has passed.
Watch = Callable[[Board, Event | None], None]


def run_cells(
    board: Board,
    executor: Executor,
    *,
    runs: Path,
    logs: Path,
    retries: int = 1,
    watch: Watch | None = None,
) -> None:
    """Run what is waiting on a board until nothing is left that can be.

    Args:
        board: The cells; those that are done are left alone.
        executor: Where to run them. It is closed at the end, also after an exception.
        runs: Folder of the run folders.
        logs: Folder of the logs.
        retries: How often a cell that failed is tried again.
        watch: Called after every change, and now and then.
    """
    tell = watch or (lambda board, event: None)
    try:
        while True:
            room = executor.free()
            while room > 0 and (state := board.next_ready()) is not None:
                board.start(state)
                state.log = logs / f"{state.cell.name}.log"
                base = None if state.cell.base is None else runs / state.cell.base
                executor.submit(Task(state.cell, runs / state.cell.name, base, state.log))
                room -= 1
            if board.count(Stage.RUNNING) == 0:
                return
            events = executor.poll(_PAUSE)
            for event in events:
                board.note(event, retries=retries)
                tell(board, event)
            if not events:
                tell(board, None)
    finally:
        executor.close()
