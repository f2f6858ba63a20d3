from __future__ import annotations

import io
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.console import Console

from calibrant import Predictions
from calibrant.cli import terminal
from calibrant.cli.terminal import fit_table, says_how_to_go_on
from helpers import run_command

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b[b]\u202e"


def test_says_how_to_go_on_when_told_to_terminate(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    then: list[object] = []

    def so_far() -> str:
        then.append(signal.getsignal(signal.SIGTERM))
        return ", 1 of 2 runs are finished"

    with pytest.raises(typer.Exit) as ended, says_how_to_go_on(so_far):
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.exit_code == 143
    # Who asks a second time is not held up.
    assert then == [signal.SIG_DFL]
    assert capsys.readouterr().err == "calibrant: interrupted, 1 of 2 runs are finished. The same command goes on.\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_says_how_to_go_on_when_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, says_how_to_go_on():
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "calibrant: interrupted. The same command goes on.\n"


def drawn(width: int) -> list[str]:
    headers, rows = ("Name", "Number", "Other", ""), [["a rather long name", "123456789", "987654321", "some [b]words"]]
    stream = io.StringIO()
    Console(file=stream, width=width).print(fit_table(headers, rows, width=width, drop=(3, 2)))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_fit_table_drops_columns_and_folds_names_but_cuts_no_number() -> None:
    assert drawn(80)[2] == "a rather long name  123456789  987654321  some [b]words"
    assert drawn(42)[2] == "a rather long name  123456789  987654321"
    assert [line.split() for line in drawn(24)[2:4]] == [["a", "rather", "long", "123456789"], ["name"]]
    # A column without a name is not missed, one with a name is said to be missing.
    assert not any("not shown" in line for line in drawn(42))
    assert " ".join(drawn(24)[4:]) == "not shown for want of room: Other"


def test_names_from_files_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, other = tmp_path / f"{EVIL}.npz", tmp_path / "other.npz"
    probs = np.tile([[0.7, 0.3], [0.2, 0.8]], (100, 1))
    names, columns = [f"a{EVIL}", "b"], {f"{EVIL}site": np.array(["x", f"y{EVIL}"] * 100)}
    whole = Predictions(probs=probs, labels=[0, 1, 0, 0] * 50, class_names=names, columns=columns)
    whole.save(path)
    whole.subset(range(39)).save(other)
    out = tmp_path / f"{EVIL}out.npz"
    for words in (
        ("measure", path, other, "--by-class", "--slice", f"{EVIL}site", "--resamples", 100),
        ("report", path, "--out", f"{out}.html", "--resamples", 100),
        ("measure", f"{path}{EVIL}"),
        ("measure", other, "--slice", EVIL),
    ):
        said = "".join(map(str, run_command(capsys, *words)))
        assert "[b]" in said
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said), words


def test_commands_print_through_the_terminal_alone() -> None:
    for file in Path(terminal.__file__).parent.glob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert file.name == "terminal.py" or not re.search(r"(?<![.\w])(print|Console)\(", text), file.name
