"""Showing a grid while it runs: all cells live where a person watches, one line for every run that ends where not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from calibrant.cli.epochs import duration_words
from calibrant.cli.terminal import Row, fit_table
from calibrant.grid.schedule import Board, CellState, Event, Stage

# Redrawing more often than this costs more than it shows.
_PAUSE = 0.2
# To measure tables without anything in their way.
_WIDE = Console(width=10_000)
_MAKING = "making tables and the report"
_LEGEND = "done: test error / ECE in %; running: epoch, validation error, time left"
_SIGNS = {Stage.WAITING: "waiting", Stage.RUNNING: "running", Stage.DONE: "done", Stage.FAILED: "failed"}


class GridDisplay:
    """Shows a board as it changes; its `watch` is what a grid is to be run with.

    Args:
        console: Where to; standard output by default.
    """

    def __init__(self, *, console: Console | None = None) -> None:
        self.console = Console(highlight=False, soft_wrap=True) if console is None else console
        self._live = Live(console=self.console, transient=True, auto_refresh=False) if self.console.is_terminal else None
        self._drawn = 0.0
        self._reasons: set[str] = set()
        self._over = False
        self.board: Board | None = None

    def __enter__(self) -> GridDisplay:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def watch(self, board: Board, event: Event | None) -> None:
        """Show what happened."""
        first, self.board = self.board is None, board
        ended = event is not None and event.kind != "step"
        over = event is None and not self._over and is_over(board)
        self._over |= over
        if self._live is not None:
            now = time.monotonic()
            if ended or over or now - self._drawn >= _PAUSE:
                self._drawn = now
                self._live.update(draw_board(board, width=self.console.width), refresh=True)
            return
        found = sum(state.found for state in board.states.values() if state.cell.shown)
        if first and found:
            self.console.print(f"{found} {'run was' if found == 1 else 'runs were'} finished before")
        if first and event is None and (left := board.count(Stage.WAITING)):
            self.console.print(f"{left} {'run' if left == 1 else 'runs'} to make; a line for each that ends")
        if over:
            self.console.print(_MAKING)
        if event is not None and ended:
            state = board.states[event.name]
            failed = state.stage is Stage.FAILED
            self.console.print(ended_words(board, state, known=failed and state.text in self._reasons))
            self._reasons |= {state.text} if failed else set()


def is_over(board: Board) -> bool:
    """Whether no run of a grid is left."""
    return not board.count(Stage.WAITING) + board.count(Stage.RUNNING)


def draw_board(board: Board, *, width: int) -> RenderableType:
    """Return the grid as tables, one for every data set: methods down, seeds across; above them how far it is."""
    parts: list[RenderableType] = []
    shown = [state for state in board.states.values() if state.cell.shown or state.stage in (Stage.RUNNING, Stage.FAILED)]
    for data in dict.fromkeys(state.cell.data for state in shown):
        states = [state for state in shown if state.cell.data == data]
        table = _seed_table(data, states, width=width)
        parts += [Text(), table]
    # Above the tables, where a terminal that is too low for all of them does not cut it off.
    above = (
        Text(words, style=style, no_wrap=False, overflow="fold")
        for words, style in ((total_words(board), ""), (_LEGEND, "dim"))
    )
    return Group(*above, *parts)


def _seed_table(data: str, states: Sequence[CellState], *, width: int) -> Table:
    seeds = list(dict.fromkeys(state.cell.seed for state in states))
    methods = list(dict.fromkeys(state.cell.method for state in states))
    by_place = {(state.cell.method, state.cell.seed): state for state in states}
    for with_time in (True, False):
        cells = {place: cell_text(state, with_time=with_time) for place, state in by_place.items()}
        rows: list[Row] = [[m, *(cells.get((m, seed), "") for seed in seeds)] for m in methods]
        table = fit_table((data, *(f"seed {seed}" for seed in seeds)), rows, width=width)
        if Measurement.get(_WIDE, _WIDE.options, table).minimum <= width:
            return table
    # No room for every seed: how many are how far.
    rows = [[m, *_counts([state for state in states if state.cell.method == m])] for m in methods]
    return fit_table((data, *_SIGNS.values()), rows, width=width, drop=(1,))


def _counts(states: Sequence[CellState]) -> list[str]:
    numbers = [sum(state.stage is stage for state in states) for stage in _SIGNS]
    return [str(number) if number else "" for number in numbers]


def cell_text(state: CellState, *, with_time: bool = False) -> Text:
    """Return what a cell shows: error and ECE of the test set at its end; epoch, validation error and time left on its way."""
    if state.stage is Stage.DONE:
        return Text(score_words(state) or "done", style="dim" if state.found else "green")
    if state.stage is Stage.FAILED:
        return Text("failed", style="bold red")
    if state.stage is Stage.WAITING:
        return Text("once more", style="yellow") if state.text else Text("·", style="dim")
    if state.total == 0 or not state.epochs:
        return Text("scaling" if state.total == 0 else "starting", style="cyan")
    error = state.numbers.get("val_error")
    said = "" if error is None else f" {100 * error:.1f}%"
    if with_time and state.seconds is not None:
        said += f" {duration_words((state.total - state.epochs) * state.seconds)}"
    return Text(f"{int(state.epochs)}/{state.total}{said}", style="cyan")


def score_words(state: CellState) -> str:
    """Return error and ECE in per cent, as ``4.52 / 1.20``."""
    numbers = [state.numbers.get(key) for key in ("error", "ece")]
    return " / ".join(f"{100 * number:.2f}" for number in numbers if number is not None)


def total_words(board: Board) -> str:
    """Say how far a grid is and how long the rest will take."""
    words = [f"{board.count(Stage.DONE)}/{len(board.states)} runs done"]
    for stage in (Stage.RUNNING, Stage.FAILED):
        words += [f"{board.count(stage)} {stage}"] if board.count(stage) else []
    words.append(f"{duration_words(board.clock() - board.started)} passed")
    left = board.seconds_left()
    words += [f"about {duration_words(left)} left"] if left else []
    words += [_MAKING] if is_over(board) else []
    return ", ".join(words)


def ended_words(board: Board, state: CellState, *, known: bool = False) -> str:
    """Say in one line what became of a run; why it failed is not said again where that is known."""
    done = board.count(Stage.DONE) + board.count(Stage.FAILED)
    place = f"[{done}/{len(board.states)}] {state.cell.data} {state.cell.method} seed {state.cell.seed}"
    if state.stage is Stage.WAITING:
        return f"{place}: tried again, for {state.text}"
    if state.stage is Stage.FAILED:
        return f"{place}: failed for the same reason" if known else f"{place}: failed, {state.text}"
    numbers = {key: state.numbers.get(key) for key in ("error", "ece")}
    said = ", ".join(f"{name} {100 * value:.2f}%" for name, value in numbers.items() if value is not None)
    left = board.seconds_left()
    return f"{place}: {said.replace('ece', 'ECE') or 'done'}{f', about {duration_words(left)} left' if left else ''}"
