from __future__ import annotations

import io
import os
import signal

import pytest
import typer
from rich.console import Console

from calibrant.cli.terminal import fit_table, says_how_to_go_on


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
    headers, rows = ("Name", "Number", "Other", ""), [["a rather long name", "123456789", "987654321", "some [b]words"], None]
    stream = io.StringIO()
    Console(file=stream, width=width).print(fit_table(headers, rows, width=width, drop=(3, 2)))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_fit_table_drops_columns_and_folds_names_but_cuts_no_number() -> None:
    assert drawn(80)[2] == "a rather long name  123456789  987654321  some [b]words"
    assert drawn(42)[2] == "a rather long name  123456789  987654321"
    assert [line.split() for line in drawn(24)[2:4]] == [["a", "rather", "long", "123456789"], ["name"]]
