"""Ending a grid from outside: being told to terminate is answered as Ctrl-C is, so that it is said how to go on."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer


@contextmanager
def says_how_to_go_on(so_far: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Leave with a sentence where the block is interrupted (exit code 130) or the process told to terminate (143).

    Args:
        so_far: Says how far it was, as ``", 1 of 2 runs are finished"``.
    """
    told = False

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = True
        # Who asks a second time does not want to wait for anything.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    # Python lets only the main thread set it; elsewhere nobody is there to read the sentence.
    before = signal.signal(signal.SIGTERM, terminate) if threading.current_thread() is threading.main_thread() else None
    try:
        yield
    except KeyboardInterrupt:
        print(f"calibrant: interrupted{so_far()}. The same command goes on.", file=sys.stderr)
        raise typer.Exit(143 if told else 130) from None
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
