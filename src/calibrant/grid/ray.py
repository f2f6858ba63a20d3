"""Running cells on a Ray cluster, or on Ray started on this machine. Ray is loaded only if this module is used."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import secrets
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from calibrant.grid.local import run_task, usable_cores
from calibrant.grid.schedule import Event, Task
from calibrant.io.files import atomic_writer

# What need not travel: the checkpoint of a run that goes on, and files half written.
_LEFT = (".tmp", "state.pt")


def require_ray() -> Any:
    """Return the module `ray`; raises ``ImportError`` with one sentence if it is not installed."""
    try:
        import ray
    except ImportError:
        raise ImportError("compare: `on='ray'` must find Ray installed, got none. Install it with `pip install ray`.") from None
    return ray


class RayExecutor:
    """Runs every cell as a task of Ray.

    Nodes that see the driver's folder write there. Others train in a folder of their own below ``~/.cache/calibrant/ray`` and
    send the finished run folder back.

    Args:
        device: As in a recipe.
        jobs: Cells at a time; by default what Ray has room for. If there are more jobs than GPUs, they share these.
        threads: Threads of a cell, and the cores that Ray reserves for it.
        address: Of a running cluster; None starts Ray on this machine, or uses the one that this program is connected to.
    """

    def __init__(self, *, device: str = "auto", jobs: int | None = None, threads: int = 1, address: str | None = None) -> None:
        self._ray = require_ray()
        self._threads = threads
        self._own = not self._ray.is_initialized()
        if self._own:
            self._connect(address, jobs)
        found = self._ray.cluster_resources()
        gpus = 0.0 if device.startswith("cpu") else float(found.get("GPU", 0.0))
        # Ray counts in ten-thousandths, of which a GPU has no more than all.
        self._share = 0.0 if not gpus else 1.0 if jobs is None else math.floor(1e4 / math.ceil(jobs / gpus)) / 1e4
        fitting = gpus if gpus else found.get("CPU", 1.0) // threads
        # A cluster that grows on demand must see the demand.
        self._room = jobs or (10_000 if address is not None else max(1, int(fitting)))
        self._run = self._ray.remote(num_cpus=threads, num_gpus=self._share, max_retries=0)(run_remotely)
        # If the node that it lives on is lost, another one takes it over.
        self._mail = self._ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Mail).remote()
        self._tasks: dict[Any, Task] = {}
        self._mark: Path | None = None

    def free(self) -> int:
        """How many more cells it would take now."""
        return self._room - len(self._tasks)

    def submit(self, task: Task) -> None:
        """Start a cell."""
        runs = Path(task["folder"]).parent
        if self._mark is None:
            # A file by which a node knows that it sees the same folder as this machine.
            runs.mkdir(parents=True, exist_ok=True)
            self._mark = runs / f".{secrets.token_hex(16)}.ray"
            self._mark.touch()
        order = {
            **task,
            "mark": str(self._mark),
            "origin": f"{socket.gethostname()}:{runs}",
            "where": os.getcwd(),
            "threads": self._threads,
            "gpu": self._share > 0,
        }
        base = {} if task["base"] is None else pack(Path(task["base"]))
        self._tasks[self._run.remote(order, base, self._mail)] = task

    def poll(self, seconds: float) -> list[Event]:
        """What happened since the last call."""
        ready, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=seconds)
        running = {task["name"] for task in self._tasks.values()}
        said: list[dict[str, Any]] = []
        with contextlib.suppress(Exception):  # progress may be lost with a node, which stops no run
            said = self._ray.get(self._mail.take.remote())
        steps = [Event(**message) for message in said if message["name"] in running]
        return steps + [self._collect(reference) for reference in ready]

    def close(self) -> None:
        """Stop everything that runs, at once, and leave the cluster."""
        for reference in self._tasks:
            self._ray.cancel(reference, force=True)
        self._tasks = {}
        self._ray.kill(self._mail)
        if self._own:
            self._ray.shutdown()
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)

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
        """Write what a task sent back, and say what became of it."""
        task = self._tasks.pop(reference)
        try:
            found = self._ray.get(reference)
            Path(task["log"]).parent.mkdir(parents=True, exist_ok=True)
            with open(task["log"], "a", encoding="utf-8") as log:
                log.write(f"{task['name']}, on {found['node']}\n{found['log']}")
            unpack(found["files"], Path(task["folder"]))
        except Exception as error:  # Ray wraps whatever happened to the process, and its own troubles
            return Event(task["name"], "failed", text=f"Ray: {_first_line(error)}")
        return Event(task["name"], **found["message"])


class Mail:
    """Keeps what tasks say until the driver asks for it."""

    def __init__(self) -> None:
        self._kept: list[dict[str, Any]] = []

    def put(self, message: dict[str, Any]) -> None:
        """Keep a message."""
        self._kept.append(message)

    def take(self) -> list[dict[str, Any]]:
        """Hand out what was kept."""
        kept, self._kept = self._kept, []
        return kept


def run_remotely(order: Task, base: Mapping[str, bytes], mail: Any) -> dict[str, Any]:
    """Run a cell on a node.

    Args:
        order: What to run, and how to know whether this node sees the driver's folder.
        base: The files of the run that it is made of, for a node that does not.
        mail: Actor to tell of progress.

    Returns:
        ``message``, the last word of `run_task`; ``log``, what it printed; ``node``; ``files``, the run folder's content from a
        node that does not see the driver's, else empty.
    """
    if not order["gpu"]:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    torch.set_num_threads(order["threads"])
    folder, source, shared = Path(order["folder"]), order["base"], Path(order["mark"]).exists()
    own = Path("~/.cache/calibrant/ray").expanduser() / f"{crc32(order['origin'].encode()):08x}"
    if not shared:
        folder = own / order["name"]
        source = None if source is None else str(own / Path(source).name)
        if source is not None:
            unpack(base, Path(source))
    last: dict[str, Any] = {}

    def send(message: dict[str, Any]) -> None:
        if message["kind"] == "step":
            mail.put.remote({"name": order["name"], **message})
        else:
            last.update(message)

    said = io.StringIO()
    # Data may be named by a path relative to where the driver works.
    where = order["where"] if Path(order["where"]).is_dir() else "."
    with contextlib.chdir(where), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        run_task({"recipe": order["recipe"], "folder": str(folder), "base": source}, send=send)
    files: dict[str, bytes] = {}
    if last["kind"] == "done" and not shared:
        files = pack(folder)
        for place in (folder, *([] if source is None else [Path(source)])):
            shutil.rmtree(place, ignore_errors=True)
    return {"message": last, "log": said.getvalue(), "node": socket.gethostname(), "files": files}


def pack(folder: Path) -> dict[str, bytes]:
    """Return the files of a run folder, name → content."""
    return {
        file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file() and not file.name.endswith(_LEFT)
    }


def unpack(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files into a folder, the one that says that a run is finished last."""
    for name in sorted(files, key=lambda name: name == "run.json"):
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_writer(folder / name) as handle:
            handle.write(files[name])


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
