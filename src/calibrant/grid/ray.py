"""Running cells on a Ray cluster whose nodes share a file system, or on Ray started on this machine.

Ray is loaded only if this module is used.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from pathlib import Path
from typing import Any

import torch

from calibrant.grid.local import run_task, usable_cores
from calibrant.grid.schedule import Event, Task


class RayExecutor:
    """Runs every cell as a task of Ray, which writes to the run folder itself.

    Args:
        device: As in a recipe.
        jobs: Cells at a time; by default what Ray has room for. If there are more jobs than GPUs, they share these.
        threads: Threads of a cell, and the cores that Ray reserves for it.
        address: Of a running cluster; None starts Ray on this machine, or uses the one that this program is connected to.
    """

    def __init__(self, *, device: str = "auto", jobs: int | None = None, threads: int = 1, address: str | None = None) -> None:
        try:
            import ray
            from ray.util.queue import Queue
        except ImportError:
            raise ImportError(
                "compare: `on='ray'` must find Ray installed, got none. Install it with `pip install ray`."
            ) from None
        self._ray: Any = ray
        self._threads = threads
        self._own = not ray.is_initialized()
        if self._own:
            self._connect(address, jobs)
        found = ray.cluster_resources()
        gpus = 0.0 if device.startswith("cpu") else float(found.get("GPU", 0.0))
        # Ray counts in ten-thousandths, of which a GPU has no more than all.
        share = 0.0 if not gpus else 1.0 if jobs is None else math.floor(1e4 / math.ceil(jobs / gpus)) / 1e4
        fitting = gpus if gpus else found.get("CPU", 1.0) // threads
        # A cluster that grows on demand must see the demand.
        self._room = jobs or (10_000 if address is not None else max(1, int(fitting)))
        self._run = self._ray.remote(num_cpus=threads, num_gpus=share, max_retries=0)(run_remotely)
        self._steps = Queue(actor_options={"num_cpus": 0, "max_restarts": -1})
        self._tasks: dict[Any, Task] = {}

    def free(self) -> int:
        """How many more cells it would take now."""
        return self._room - len(self._tasks)

    def submit(self, task: Task) -> None:
        """Start a cell."""
        self._tasks[self._run.remote(task, Path.cwd(), self._threads, self._steps)] = task

    def poll(self, seconds: float) -> list[Event]:
        """What happened since the last call."""
        ready, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=seconds)
        events: list[Event] = []
        with contextlib.suppress(Exception):  # progress may be lost with a node, which stops no run
            events = self._steps.get_nowait_batch(self._steps.qsize())
        running = {task.name for task in self._tasks.values()}
        return [*(event for event in events if event.name in running), *map(self._collect, ready)]

    def close(self) -> None:
        """Stop everything that runs, at once, and leave the cluster."""
        for reference in self._tasks:
            self._ray.cancel(reference, force=True)
        self._tasks = {}
        self._steps.shutdown(force=True)
        if self._own:
            self._ray.shutdown()

    def _connect(self, address: str | None, jobs: int | None) -> None:
        options: dict[str, Any] = {}
        if address is None:
            cores = max(usable_cores(), self._threads) if jobs is None else jobs * self._threads
            options = {"num_cpus": cores, "include_dashboard": False}
        # Ray tells its users about its own settings, which would tear the display of a grid.
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            self._ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise ValueError(
                f"compare: `ray_address` must be where a Ray cluster answers, got {address or 'this machine'}: "
                f"{_first_line(error)} Start one with `ray start --head`, or leave `--ray-address` out to start Ray here."
            ) from None

    def _collect(self, reference: Any) -> Event:
        task = self._tasks.pop(reference)
        try:
            found: Event = self._ray.get(reference)
        except Exception as error:  # Ray wraps whatever happened to the process, and its own troubles
            return Event(task.name, "failed", text=f"Ray: {_first_line(error)}")
        return found


def run_remotely(task: Task, where: Path, threads: int, steps: Any) -> Event:
    """Run a cell on a node, from the driver's working folder if it is there; ``steps`` is a queue for its progress."""
    node = socket.gethostname()
    # The driver has begun the log.
    if not task.log.exists():
        return Event(
            task.name,
            "failed",
            text=f"compare: `out` must be a folder that every node sees, got {task.folder}, not seen from {node}.",
            again=False,
        )
    last: list[Event] = []

    def send(event: Event) -> None:
        if event.kind != "step":
            last.append(event)
        else:
            with contextlib.suppress(Exception):
                steps.put_nowait(event)

    torch.set_num_threads(threads)
    with task.log.open("a", encoding="utf-8") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        log.write(f"on {node}\n")
        # Data may be named by a path relative to where the driver works.
        with contextlib.chdir(where) if where.is_dir() else contextlib.nullcontext():
            run_task(task, send=send)
    return last[0]


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
