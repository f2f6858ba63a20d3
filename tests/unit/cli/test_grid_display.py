from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import typer

from calibrant.cli.compare import ended_words, show_grid, show_table, summarize
from calibrant.cli.terminal import Terminal
from calibrant.grid.compare import Comparison
from calibrant.grid.schedule import Board, Event, plan_cells
from calibrant.report.rows import Column, Mean, Row, Section, Table

ERROR, ECE = Column("error", "Error"), Column("ece", "ECE")


@pytest.fixture
def board() -> Board:
    made = Board(plan_cells(["digits"], ["ce", "focal+ts"], [0, 1, 2]))

    def note(name: str, kind: str, **what) -> None:
        state = made.cells[f"digits-convnet-{name}"]
        if state.stage == "waiting":
            made.start(state)
        made.note(Event(state.name, kind, **what), retries=1)

    note("ce-seed0", "done", numbers={"error": 0.0452, "ece": 0.012})
    note("ce-seed1", "step", epochs=12.5)
    note("focal-seed0", "failed", text="it broke", again=False)
    note("focal-seed1", "failed", text="it was killed")
    note("focal-seed2", "done", numbers={"error": 0.1, "ece": 0.1})
    made.start(made.cells["digits-convnet-focal+ts-seed2"])
    return made


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ce-seed0", "[4/9] digits ce seed 0: error 4.52%, ECE 1.20%, about 7 min left"),
        ("focal-seed0", "[4/9] digits focal seed 0: failed, it broke"),
        ("focal-seed1", "[4/9] digits focal seed 1: to be tried again, it was killed"),
    ],
)
def test_ended_words_say_what_became_of_a_run(board: Board, name: str, words: str) -> None:
    assert ended_words(board, board.cells[f"digits-convnet-{name}"], 419.0) == words


def test_grid_display_without_a_terminal_writes_a_line_for_every_end(board: Board) -> None:
    stream = io.StringIO()
    with show_grid(Terminal(file=stream, width=200)) as watch:
        watch(board, None)
        watch(board, Event("digits-convnet-ce-seed1", "step", epochs=3.0))
        watch(board, Event("digits-convnet-focal-seed0", "failed"))
    assert stream.getvalue().splitlines() == [
        "2 of 9 runs are finished; a line for each that ends",
        "[4/9] digits focal seed 0: failed, it broke",
    ]


def test_summarize_says_what_failed_and_ends_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    base, scaled = plan_cells(["digits"], ["ce+ts"], [0])
    base.text, base.tries, scaled.text = "it broke", 1, f"{base.name}, which it is made of, failed"
    with pytest.raises(typer.Exit) as left:
        summarize(Comparison(Path("out"), (), (base, scaled), None, ()))
    assert left.value.exit_code == 1
    assert capsys.readouterr().err.splitlines()[:2] == [
        f"calibrant: {base.name} failed: it broke (log: {base.log})",
        f"calibrant: {scaled.name} failed: {base.name}, which it is made of, failed",
    ]


def test_grid_display_on_a_terminal_shows_what_runs_and_clears_it(board: Board) -> None:
    stream = io.StringIO()
    with show_grid(Terminal(file=stream, width=100, force_terminal=True)) as watch:
        watch(board, None)
        watch(board, Event("digits-convnet-ce-seed0", "done"))
    assert "error 4.52%, ECE 1.20%" in stream.getvalue()
    # Three runs of 30 epochs are over, 12.5 of the fourth, and one is made of another.
    assert re.search(r"all runs .* 57%", stream.getvalue())
    assert re.search(r"digits ce seed 1 .* 42%", stream.getvalue())
    assert stream.getvalue().endswith("\x1b[2K")


def test_show_table_marks_the_best_and_says_what_signs_mean() -> None:
    best = Mean(0.01, 0.001, best=True, p_value=0.01)
    lines = (
        Row("ce", "ce", {"error": Mean(0.05, 0.01), "ece": Mean(0.04, 0.0012)}, n_runs=3),
        Row("focal", "focal", {"error": Mean(0.04, 0.01, best=True), "ece": best}, n_runs=3),
        Row("paper", "focal", {"ece": Mean(0.02)}, kind="paper"),
    )
    table = Table("table", "title", (ERROR, ECE), (Section("digits, convnet", lines),))
    stream = io.StringIO()
    show_table(table, console=Terminal(file=stream, width=60))
    said = [line.split() for line in stream.getvalue().splitlines()]
    assert ["ce", "3", "5.00", "±", "1.00", "4.00", "±", "0.12"] in said
    # Nothing is bold in a file.
    assert ["focal", "3", "4.00", "±", "1.00*", "1.00", "±", "0.10*†"] in said
    assert ["paper", "–", "–", "2.00"] in said
    assert "; *: the best comparable; †: differs from the first row, p < 0.05" in " ".join(stream.getvalue().split())
    terminal = io.StringIO()
    show_table(table, console=Terminal(file=terminal, width=60, force_terminal=True, color_system="standard"))
    assert "bold: the best" in terminal.getvalue()
    assert "*" not in terminal.getvalue()
    narrow = io.StringIO()
    show_table(table, console=Terminal(file=narrow, width=36))
    assert not any(line.split()[:2] == ["Method", "Seeds"] for line in narrow.getvalue().splitlines())
    assert "ECE" in narrow.getvalue()
    words = "not shown for want of room: Seeds"
    assert words in " ".join(narrow.getvalue().split())
    assert words not in stream.getvalue()


def test_show_table_of_differences_says_what_from_and_gives_zero_no_sign() -> None:
    cells = [Mean(-0.03, 0.01, p_value=0.01), Mean(-0.00004, 0.001)]
    lines = tuple(Row(f"row {k}", "focal", {"ece": cell}, kind="difference", n_runs=3) for k, cell in enumerate(cells))
    stream = io.StringIO()
    show_table(Table("table5", "title", (ECE,), (Section("", lines),), base="CE"), console=Terminal(file=stream, width=120))
    said = "method minus CE, negative is better; mean ± standard deviation over seeds; †: differs from CE, p < 0.05"
    assert said in stream.getvalue()
    assert "-3.00 ± 1.00†" in stream.getvalue()
    assert " 0.00 ± 0.10" in stream.getvalue()


def test_watch_says_once_that_tables_are_made() -> None:
    made = Board(plan_cells(["digits"], ["ce"], [0]))
    stream = io.StringIO()
    state = made.cells["digits-convnet-ce-seed0"]
    event = Event(state.name, "done", numbers={"error": 0.05, "ece": 0.01})
    with show_grid(Terminal(file=stream, width=80)) as watch:
        watch(made, None)
        # Until the first run ends there may be nothing to see for hours.
        assert stream.getvalue() == "0 of 1 runs are finished; a line for each that ends\n"
        made.start(state)
        made.note(event, retries=1)
        watch(made, event)
        watch(made, None)
    assert stream.getvalue().splitlines()[2:] == ["making tables and the report"]
