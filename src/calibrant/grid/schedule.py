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

from calibrant.engine.recipe import to_dict
from calibrant.grid.plan import Cell


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
        began: When it was first heard of since, and the epochs that it had then.
        seconds: How long an epoch of it takes, where known.
        found: Whether it was finished before.
    """

    cell: Cell
    stage: Stage = Stage.WAITING
    epochs: float = 0.0
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    text: str = ""
    log: Path | None = None
    tries: int = 0
    began: tuple[float, float] | None = None
    seconds: float | None = None
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
        # Cells that are worked at together: a cluster that was handed all of them works at as many as it has room for.
        self._most = 1

    def count(self, *stages: Stage) -> int:
        """How many cells are in some stages."""
        return sum(state.stage in stages for state in self.states.values())

    def next_ready(self) -> CellState | None:
        """The first waiting cell whose base, if it has one, is done."""
        for state in self.states.values():
            base = None if state.cell.base is None else self.states[state.cell.base]
            if state.stage is Stage.WAITING and (base is None or base.stage is Stage.DONE):
                return state
        return None

    def start(self, state: CellState) -> None:
        """Note that a cell is being run."""
        state.stage, state.tries, state.began, state.text = Stage.RUNNING, state.tries + 1, None, ""

    def note(self, event: Event, *, retries: int) -> None:
        """Take in what happened; a cell that failed waits while it has another try, else takes those made of it along."""
        state = self.states[event.name]
        if event.kind == "step":
            self._time(state, event.epochs)
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
        """How long the rest will take, by the epochs seen so far; None before the first."""
        known = [(state.cell, state.seconds) for state in self.states.values() if state.seconds is not None]
        if not known:
            return None
        total = 0.0
        for state in self.states.values():
            if state.stage in (Stage.WAITING, Stage.RUNNING):
                like = [s for cell, s in known if (cell.data, cell.method) == (state.cell.data, state.cell.method)]
                pace = like or [seconds for _, seconds in known]
                total += max(0.0, state.total - state.epochs) * sum(pace) / len(pace)
        return total / max(1, min(self._most, self.count(Stage.WAITING, Stage.RUNNING)))

    def _time(self, state: CellState, epochs: float) -> None:
        if state.began is None:
            # A run's first sign of life says nothing of when it began: it may have read data, or gone on with an older one.
            state.began = (self.clock(), epochs)
            self._most = max(self._most, sum(s.stage is Stage.RUNNING and s.began is not None for s in self.states.values()))
        elif epochs > state.began[1]:
            state.seconds = (self.clock() - state.began[0]) / (epochs - state.began[1])


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
    patience: float = 0.25,
) -> None:
    """Run what is waiting on a board until nothing is left that can be.

    Args:
        board: The cells; those that are done are left alone.
        executor: Where to run them. It is closed at the end, also after an exception.
        runs: Folder of the run folders.
        logs: Folder of the logs.
        retries: How often a cell that failed is tried again.
        watch: Called after every change, and every ``patience`` seconds.
        patience: Seconds between looks at the executor.
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
            events = executor.poll(patience)
            for event in events:
                board.note(event, retries=retries)
                tell(board, event)
            if not events:
                tell(board, None)
    finally:
        executor.close()
