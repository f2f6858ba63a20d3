"""Running cells on this machine: worker processes over its cores, or over its GPUs, several on one where they fit."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrant.engine.hardware import choose_hardware
from calibrant.engine.recipe import to_dict
from calibrant.grid.schedule import Event, Task

# More than a few processes on a GPU take turns without finishing earlier.
_MOST_ON_A_GPU = 4
# Of the memory that one more run needs, what must be free.
_MARGIN = 1.25
# Seconds that a process is given to end.
_PATIENCE = 5.0
_START = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path.append({place!r}); "
    "from calibrant.grid.worker import serve; serve()"
)


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus(device: str) -> list[str]:
    """Return the GPUs that ``device`` of a recipe allows, as ``CUDA_VISIBLE_DEVICES`` names them; none for the CPU."""
    import torch

    there = torch.cuda.is_available()
    if not there or not (device == "auto" or device.startswith("cuda")):
        # Raises for what is no device, or not there; where CUDA is, asking so would take memory of a GPU.
        choose_hardware(device=device)
        return []
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    # Names from the first on that is no GPU of this machine count for nothing; a run sent there would be on the CPU.
    every = (named or [str(k) for k in range(torch.cuda.device_count())])[: torch.cuda.device_count()]
    index = device.partition(":")[2]
    if not index:
        return every
    if not index.isdigit() or int(index) >= len(every):
        raise ValueError(f"compare: `train.device` must be one of {len(every)} CUDA devices, counted from 0, got {device}.")
    return [every[int(index)]]


@dataclass
class Place:
    """Where several cells can run beside each other: the cores, or one GPU.

    Attributes:
        gpu: As ``CUDA_VISIBLE_DEVICES`` names it; None for the cores.
        limit: Cells at a time.
        most: What ``limit`` may grow to.
        needs: Cell → bytes that it was seen to need on the GPU.
    """

    gpu: str | None
    limit: int
    most: int
    needs: dict[str, int] = field(default_factory=dict)

    def measured(self, name: str, needed: int, free: int, *, running: list[str]) -> None:
        """Take in what a cell needs on the GPU; once all that run there are known, one more may come if it fits."""
        self.needs[name] = needed
        if all(other in self.needs for other in running) and free >= _MARGIN * max(self.needs.values()):
            self.limit = max(self.limit, min(self.most, len(running) + 1))

    def overflowed(self, *, running: int) -> None:
        """Take in that a cell found too little memory beside ``running`` others: so many are never run again."""
        self.limit = self.most = max(1, running)


def make_places(*, device: str, jobs: int | None, threads: int) -> list[Place]:
    """Divide the machine.

    Args:
        device: As in a recipe.
        jobs: Cells at a time, on all GPUs together; None for as many as there are cores, or as fit on the GPUs.
        threads: Threads of a cell on the CPU.
    """
    cores, gpus = usable_cores(), visible_gpus(device)
    if not gpus:
        limit = jobs or max(1, cores // threads)
        return [Place(None, limit, limit)]
    if jobs is not None:
        shares = [jobs // len(gpus) + (k < jobs % len(gpus)) for k in range(len(gpus))]
        return [Place(gpu, share, share) for gpu, share in zip(gpus, shares, strict=True) if share]
    most = max(1, min(_MOST_ON_A_GPU, cores // len(gpus)))
    return [Place(gpu, 1, most) for gpu in gpus]


class _Answers(queue.SimpleQueue[tuple["_Worker", dict[str, Any] | None]]):
    """What processes say; None when one has ended."""


class _Worker:
    """A process, its place, and the task that it is at."""

    def __init__(self, place: Place, log: Path, answers: _Answers, threads: int) -> None:
        self.place, self.leaves = place, False
        self.task: Task | None = None
        package = str(Path(__file__).parents[2])
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        environment = os.environ | limits | {"OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": place.gpu or ""}
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START.format(place=package)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        self._answers = answers
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def give(self, task: Task) -> None:
        """Hand a task over; a process that is dying says so by ending."""
        self.task = task
        base = None if task.base is None else str(task.base)
        message = {"name": task.cell.name, "recipe": to_dict(task.cell.recipe), "folder": str(task.folder), "base": base}
        try:
            assert self.process.stdin is not None
            self.process.stdin.write((json.dumps(message | {"log": str(task.log)}) + "\n").encode())
            self.process.stdin.flush()
        except OSError:
            pass

    def dismiss(self) -> None:
        """Let the process end, which it does at once, whatever it is at."""
        try:
            assert self.process.stdin is not None
            self.process.stdin.close()
        except OSError:
            pass

    def release(self) -> int:
        """Wait for the end of a dismissed process, for some seconds, and give back what it held; return its code."""
        try:
            code = self.process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            try:
                code = self.process.wait(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                # An interrupt can leave the lock taken under which `Popen` looks after its process: it would wait for ever.
                code = -signal.SIGKILL
        self.thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self._answers.put((self, json.loads(line)))
            except ValueError:
                break  # cut off in its midst
        self._answers.put((self, None))


class LocalExecutor:
    """Runs cells in processes of their own, each of which serves many cells and is replaced when it dies.

    On the CPU every cell computes with the same number of threads, however many run at a time: sums over several threads round
    differently, and a result must not depend on how a grid was run.

    Args:
        device: As in a recipe.
        jobs: Cells at a time; see `make_places`.
        threads: Threads of a cell on the CPU.
    """

    def __init__(self, *, device: str = "auto", jobs: int | None = None, threads: int = 1) -> None:
        self.places = make_places(device=device, jobs=jobs, threads=threads)
        self._threads = threads
        self._workers: list[_Worker] = []
        self._answers = _Answers()

    def free(self) -> int:
        """How many more cells it would take now."""
        return sum(max(0, place.limit - len(self._running(place))) for place in self.places)

    def submit(self, task: Task) -> None:
        """Start a cell where most room is, in a process that waits there or a new one."""
        task.log.parent.mkdir(parents=True, exist_ok=True)
        place = max(self.places, key=lambda place: place.limit - len(self._running(place)))
        idle = [w for w in self._workers if w.place is place and w.task is None and not w.leaves and w.thread.is_alive()]
        worker = idle[0] if idle else _Worker(place, task.log, self._answers, self._threads)
        if not idle:
            self._workers.append(worker)
        worker.give(task)

    def poll(self, seconds: float) -> list[Event]:
        """What happened since the last call."""
        events = []
        try:
            found = self._answers.get(timeout=seconds)
            while True:
                event = self._take(*found)
                events += [] if event is None else [event]
                found = self._answers.get_nowait()
        except queue.Empty:
            return events

    def close(self) -> None:
        """Stop everything that runs, at once."""
        for worker in self._workers:
            worker.dismiss()
        for worker in self._workers:
            worker.release()
        self._workers = []

    def _running(self, place: Place) -> list[str]:
        return [worker.task.cell.name for worker in self._workers if worker.place is place and worker.task is not None]

    def _take(self, worker: _Worker, message: dict[str, Any] | None) -> Event | None:
        if message is None:
            return self._bury(worker)
        if worker.task is None:
            return None
        name, kind, place = worker.task.cell.name, message["kind"], worker.place
        if kind == "step":
            if message["gpu"] is not None:
                place.measured(name, *message["gpu"], running=self._running(place))
            return Event(name, "step", epochs=message["epochs"], numbers=message["numbers"])
        worker.task, worker.leaves = None, message["leaves"]
        if kind == "done":
            return Event(name, "done", numbers=message["numbers"])
        beside = len(self._running(place)) if message["memory"] else 0
        if message["memory"]:
            place.overflowed(running=beside)
        return Event(name, "failed", text=message["text"], again=message["again"], crowded=beside > 0)

    def _bury(self, worker: _Worker) -> Event | None:
        """A process has ended: what it was at has failed."""
        worker.dismiss()
        code = worker.release()
        self._workers.remove(worker)
        if worker.task is None:
            return None
        said = last_line(worker.task.log)
        how = f"its process ended with code {code}" if code >= 0 else f"its process was killed ({_signal_name(-code)})"
        return Event(worker.task.cell.name, "failed", text=f"{how}{f': {said}' if said else ''}")


def last_line(log: Path) -> str:
    """Return the last line of a log that says something.

    The one that names the run does not; a crash of the interpreter is told by the line above its list of frames.
    """
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    begun = max((k + 1 for k, line in enumerate(lines) if line.startswith(f"{log.stem}, ")), default=0)
    crashes = [line for line in lines[begun:] if line.startswith("Fatal Python error")]
    said = crashes or lines[begun:]
    return said[-1] if said else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
