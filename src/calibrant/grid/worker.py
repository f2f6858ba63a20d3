"""A process that runs cells one after the other: loading torch takes longer than training on little data.

Tasks come as JSON lines on standard input, what happens goes back as JSON lines on what was standard output. Everything that
a run itself prints goes to the cell's log. The process ends when its input does: nothing is left behind by a parent that died.
"""

from __future__ import annotations

import errno
import faulthandler
import gc
import json
import os
import queue
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

# Bytes that a CUDA context takes besides what torch has reserved.
_CONTEXT = 600 * 2**20
# A run that these stop would be stopped again.
_FINAL = (ValueError, FloatingPointError, ImportError)
_EXPECTED = (*_FINAL, OSError)
_NO_MEMORY = ("out of memory", "STATUS_ALLOC_FAILED", "can't allocate memory")

Send = Callable[[dict[str, Any]], None]


def run_task(task: Mapping[str, Any], *, send: Send) -> None:
    """Run one cell, or make it of its base, in its folder; an older run there goes on, a finished one is left alone.

    Args:
        task: ``recipe`` as plain data, ``folder``, and ``base``, the folder of the run that it is made of, or None.
        send: Called with what happens; at the end with ``kind`` "done" or "failed".
    """
    from calibrant.engine.recipe import override, recipe_of
    from calibrant.engine.train import scale_run, train
    from calibrant.grid.collect import command_of, numbers_of_run

    began = time.monotonic()
    try:
        recipe = recipe_of(task["recipe"])
        if recipe.train.device.startswith("cuda:"):
            # The process sees the one GPU that it was given.
            recipe = override(recipe, {"train.device": "cuda"})
        sys.argv = shlex.split(command_of(recipe))
        if ":" in recipe.backbone.name and "" not in sys.path:
            sys.path.insert(0, "")
        if task["base"] is not None:
            scale_run(task["base"], out=task["folder"], resume=True)
        else:
            told = _Progress(send)
            train(recipe, out=task["folder"], resume=True, report=told.report, tick=told.tick)
        numbers = numbers_of_run(task["folder"])
        said = "".join(f", {key} {100 * value:.2f}%" for key, value in numbers.items() if value is not None)
        sys.stderr.write(f"finished after {time.monotonic() - began:.1f} s{said.replace('ece', 'ECE')}\n")
        send({"kind": "done", "numbers": numbers})
    except Exception as error:
        if not isinstance(error, _EXPECTED):
            traceback.print_exc()
        lines = _words(error, folder=task["folder"]).strip().splitlines() or [type(error).__name__]
        sys.stderr.write("\n".join(lines) + "\n")
        send({"kind": "failed", "text": lines[0], "again": not isinstance(error, _FINAL), "memory": is_out_of_memory(error)})
    finally:
        gc.collect()


def _words(error: Exception, *, folder: str) -> str:
    """What is said of a run that failed, to somebody who gave a command for a whole grid."""
    if not isinstance(error, _EXPECTED):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.filename or folder}: cannot be written ({error.strerror}). Make room."
    # A grid goes on by itself.
    return str(error).replace("add `--resume`", "give the same command again")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was too little memory, on the GPU or elsewhere."""
    import torch

    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    # The driver, its libraries and the CPU's allocator say it in words only.
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


class _Progress:
    """Says how far a run is, within an epoch once a second at most."""

    def __init__(self, send: Send) -> None:
        self.send, self.said = send, 0.0

    def report(self, record: Any) -> None:
        numbers = {"val_error": record.val_error, "val_ece": record.val_ece}
        known = {key: value for key, value in numbers.items() if value is not None}
        self.send({"kind": "step", "epochs": record.epoch + 1.0, "numbers": known, "gpu": _gpu_memory()})

    def tick(self, epoch: int, step: int, steps: int) -> None:
        now = time.monotonic()
        if now - self.said >= 1:
            self.said = now
            self.send({"kind": "step", "epochs": epoch + step / steps, "numbers": {}, "gpu": None})


def _gpu_memory() -> list[int] | None:
    """Bytes that this process needs on its GPU, and that are free there; None on the CPU."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    return [torch.cuda.max_memory_reserved() + _CONTEXT, torch.cuda.mem_get_info()[0]]


def serve() -> None:
    """Run tasks until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    faulthandler.enable()
    tasks: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    while True:
        _serve_one(tasks.get(), answers)


def _listen(tasks: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        tasks.put(json.loads(line))
    # The parent is gone or wants no more. A run in its midst goes on from its last checkpoint another time.
    os._exit(0)


def _serve_one(task: dict[str, Any], answers: TextIO) -> None:
    import torch

    with Path(task["log"]).open("a", encoding="utf-8") as log:
        log.write(f"{task['name']}, {datetime.now().astimezone().isoformat(timespec='seconds')}\n")
        log.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

    def send(message: dict[str, Any]) -> None:
        # What failed on a GPU may have left its memory in pieces: such a process takes no other cell.
        leaves = message["kind"] == "failed" and torch.cuda.is_initialized()
        answers.write(json.dumps({**message, "leaves": leaves}) + "\n")
        answers.flush()
        if leaves:
            os._exit(0)

    run_task(task, send=send)
    # What is left now, modules above all, stays: looking through it after each run took longer than repairing one.
    gc.freeze()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
