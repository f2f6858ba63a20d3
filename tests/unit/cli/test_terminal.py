from __future__ import annotations

import os
import signal
import threading

import pytest
import typer

from calibrant.cli.terminal import says_how_to_go_on


def test_says_how_to_go_on_when_told_to_terminate(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(typer.Exit) as ended, says_how_to_go_on(lambda: ", 1 of 2 runs are finished"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.exit_code == 143
    assert capsys.readouterr().err == "calibrant: interrupted, 1 of 2 runs are finished. The same command goes on.\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_says_how_to_go_on_does_not_hold_up_who_asks_a_second_time() -> None:
    then: list[object] = []

    def so_far() -> str:
        then.append(signal.getsignal(signal.SIGTERM))
        return ""

    with pytest.raises(typer.Exit), says_how_to_go_on(so_far):
        os.kill(os.getpid(), signal.SIGTERM)
    assert then == [signal.SIG_DFL]


def test_says_how_to_go_on_when_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, says_how_to_go_on():
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "calibrant: interrupted. The same command goes on.\n"


def test_says_how_to_go_on_leaves_signals_alone_in_another_thread() -> None:
    seen: list[bool] = []

    def block() -> None:
        with says_how_to_go_on():
            seen.append(signal.getsignal(signal.SIGTERM) == before)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert seen == [True]
