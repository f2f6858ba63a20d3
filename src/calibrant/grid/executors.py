"""Where cells run: processes over the cores or GPUs of this machine, or the nodes of a Ray cluster.

A process of this machine runs cells one after the other, as loading torch takes longer than training on little data. Tasks
and answers pass through a pipe, and the process ends when the other end is closed, so a parent that dies leaves nothing
behind. A pool of `concurrent.futures` or joblib is no substitute: when one process is killed it gives up all others. Nor is
`multiprocessing`: its processes run the caller's script again.

Ray is loaded only if it is used.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import math
import os
import queue
import shlex
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import torch

from calibrant.engine.recipe import override
from calibrant.engine.run import EpochRecord
from calibrant.engine.setup import choose_hardware
from calibrant.engine.train import scale_run, train
from calibrant.grid.collect import command_of
from calibrant.grid.schedule import Board, Cell, Event, Watch

# More than a few processes on a GPU take turns without finishing earlier.
_MOST_ON_A_GPU = 4
# Of the memory that one more run needs, what must be free.
_MARGIN = 1.25
# Bytes that a CUDA context takes besides what torch has reserved.
_CONTEXT = 600 * 2**20
_START = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path.append({place!r}); "
    "from calibrant.grid.executors import serve; serve({pipe})"
)
# Errors that another try would meet again.
_FINAL = (ValueError, FloatingPointError, ImportError)
# What the GPU's driver and libraries and the CPU's allocator say when memory is short.
_NO_MEMORY = ("out of memory", "STATUS_ALLOC_FAILED", "can't allocate memory")
# More parts than cores even out files of different size; each brings back sums of a few MB.
_PARTS_PER_CORE = 4
Item = TypeVar("Item")
Found = TypeVar("Found")


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus(device: str) -> list[str]:
    """Return the GPUs that ``device`` of a recipe allows, as ``CUDA_VISIBLE_DEVICES`` names them; none for the CPU."""
    if not torch.cuda.is_available() or not device.startswith(("auto", "cuda")):
        # Raises if there is no such device; with CUDA, asking so would take memory of a GPU.
        choose_hardware(device=device)
        return []
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    # The variable may name more GPUs than this machine has.
    every = (named or [str(k) for k in range(torch.cuda.device_count())])[: torch.cuda.device_count()]
    index = device.partition(":")[2]
    if index and (not index.isdigit() or int(index) >= len(every)):
        raise ValueError(f"compare: `train.device` must be one of {len(every)} CUDA devices, counted from 0, got {device}.")
    return [every[int(index)]] if index else every


@dataclass
class Place:
    """Where several cells can run beside each other: the cores, or one GPU."""

    gpu: str | None  # as ``CUDA_VISIBLE_DEVICES`` names it; None for the cores
    limit: int  # cells at a time
    most: int  # what that may grow to
    needs: dict[str, int] = field(default_factory=dict)  # cell → bytes that it was seen to need on the GPU

    def measured(self, name: str, needed: int, free: int, *, running: list[str]) -> None:
        """Note what a cell needs on the GPU. Once that is known of all that run there, one more may start if it fits."""
        self.needs[name] = needed
        if all(other in self.needs for other in running) and free >= _MARGIN * max(self.needs.values()):
            self.limit = max(self.limit, min(self.most, len(running) + 1))


def make_places(*, device: str, jobs: int | None, threads: int) -> list[Place]:
    """Divide the machine: ``jobs`` cells at a time, on all GPUs together; None for as many as there are cores, or as fit."""
    cores, gpus = usable_cores(), visible_gpus(device)
    if not gpus:
        limit = jobs or max(1, cores // threads)
        return [Place(None, limit, limit)]
    if jobs is not None:
        shares = [jobs // len(gpus) + (k < jobs % len(gpus)) for k in range(len(gpus))]
        return [Place(gpu, share, share) for gpu, share in zip(gpus, shares, strict=True) if share]
    most = max(1, min(_MOST_ON_A_GPU, cores // len(gpus)))
    return [Place(gpu, 1, most) for gpu in gpus]


class _Worker:
    """A process, the place it computes in, and its cell."""

    def __init__(self, place: Place, log: Path, threads: int) -> None:
        self.place = place
        self.cell: Cell | None = None
        self.pipe, theirs = Pipe()
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        environment = os.environ | limits | {"OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": place.gpu or ""}
        start = _START.format(place=str(Path(__file__).parents[2]), pipe=theirs.fileno())
        with theirs, log.open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", start],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environment,
                pass_fds=[theirs.fileno()],
            )


class LocalExecutor:
    """Runs cells in processes of their own, each of which serves many cells and is replaced when it dies.

    On the CPU every cell computes with as many ``threads``, however many ``jobs`` run at a time: sums over several threads
    round differently, and a result must not depend on how a grid was run.
    """

    def __init__(self, *, device: str = "auto", jobs: int | None = None, threads: int = 1) -> None:
        self.places = make_places(device=device, jobs=jobs, threads=threads)
        self._threads = threads
        self._workers: list[_Worker] = []

    def free(self) -> int:
        """How many more cells it would take now."""
        return sum(max(0, place.limit - len(self._running(place))) for place in self.places)

    def submit(self, cell: Cell) -> None:
        """Start a cell where most room is, in a process that waits there or a new one."""
        place = max(self.places, key=lambda place: place.limit - len(self._running(place)))
        worker = next((worker for worker in self._workers if worker.place is place and worker.cell is None), None)
        if worker is None:
            worker = _Worker(place, cell.log, self._threads)
            self._workers.append(worker)
        worker.cell = cell
        with suppress(OSError):  # a process that has died says so by the end of its answers
            worker.pipe.send(cell)

    def poll(self, seconds: float) -> list[Event]:
        """What happened since the last call."""
        ready = wait([worker.pipe for worker in self._workers], seconds)
        events = [self._take(worker) for worker in [*self._workers] if worker.pipe in ready]
        return [event for event in events if event is not None]

    def close(self) -> None:
        """Stop everything that runs, at once."""
        for worker in [*self._workers]:
            worker.process.kill()
            self._remove(worker)

    def _running(self, place: Place) -> list[str]:
        return [worker.cell.name for worker in self._workers if worker.place is place and worker.cell is not None]

    def _remove(self, worker: _Worker) -> int:
        """Forget a process that has ended; return its code."""
        self._workers.remove(worker)
        worker.pipe.close()
        return worker.process.wait()

    def _take(self, worker: _Worker) -> Event | None:
        cell, place = worker.cell, worker.place
        try:
            event: Event = worker.pipe.recv()
        except (EOFError, OSError):
            # The process has ended, and with it the run.
            code = self._remove(worker)
            how = f"ended with code {code}" if code >= 0 else f"was killed ({signal.Signals(-code).name})"
            return None if cell is None else Event(cell.name, "failed", text=f"its process {how}")
        if event.kind == "step":
            if event.gpu is not None:
                place.measured(event.name, *event.gpu, running=self._running(place))
            return event
        worker.cell = None
        if event.kind == "failed":
            # A failed run may have left its memory in pieces: its process takes no other.
            worker.process.kill()
            self._remove(worker)
        if event.crowded:
            # So many are never run beside each other again.
            others = len(self._running(place))
            place.limit = place.most = max(1, others)
            return replace(event, crowded=others > 0)
        return event


def run_cell(cell: Cell, *, send: Callable[[Event], None]) -> None:
    """Run one cell, or make it from its base; an unfinished run in its folder goes on, a finished one is left alone.

    ``send`` is called with what happens, and in the end with "done" or "failed".
    """
    began = told = monotonic()

    def report(record: EpochRecord) -> None:
        gpu = None
        if torch.cuda.is_initialized():
            gpu = (torch.cuda.max_memory_reserved() + _CONTEXT, torch.cuda.mem_get_info()[0])
        numbers = {key: value for key in ("val_error", "val_ece") if (value := getattr(record, key)) is not None}
        send(Event(cell.name, "step", epochs=record.epoch + 1.0, numbers=numbers, gpu=gpu))

    def tick(epoch: int, step: int, steps: int) -> None:
        nonlocal told
        if monotonic() - told >= 1:
            told = monotonic()
            send(Event(cell.name, "step", epochs=epoch + step / steps))

    try:
        recipe = cell.recipe
        if recipe.train.device.startswith("cuda:"):
            # The process sees only the GPU that it was given.
            recipe = override(recipe, {"train.device": "cuda"})
        sys.argv = shlex.split(command_of(recipe))

        if cell.base is not None:
            scale_run(cell.folder.with_name(cell.base), out=cell.folder, resume=True)
        else:
            train(recipe, out=cell.folder, resume=True, report=report, tick=tick)
        found = json.loads((cell.folder / "metrics.json").read_text(encoding="utf-8"))["metrics"]
        numbers = {key: found[key]["value"] for key in ("error", "ece")}
        sys.stderr.write(f"finished after {monotonic() - began:.1f} s, {numbers}\n")
        send(Event(cell.name, "done", numbers=numbers))
    except Exception as error:
        text = str(error).strip()
        if not isinstance(error, (*_FINAL, OSError)):
            text = f"{type(error).__name__}: {text}"
            traceback.print_exc()
        sys.stderr.write(f"{text}\n")
        short = isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)
        first = (text or type(error).__name__).splitlines()[0]
        send(Event(cell.name, "failed", text=first, again=not isinstance(error, _FINAL), crowded=short))


def serve(fileno: int) -> None:
    """Run the cells that come through a pipe until it is closed: what a process of `LocalExecutor` does."""
    pipe, cells = Connection(fileno), queue.SimpleQueue[Cell]()
    faulthandler.enable()

    def listen() -> None:
        with suppress(EOFError, OSError):
            while True:
                cells.put(pipe.recv())
        # The parent is gone or wants no more. An unfinished run goes on from its last checkpoint another time.
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    while True:
        cell = cells.get()
        with cell.log.open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        run_cell(cell, send=pipe.send)
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


class RayExecutor:
    """Runs every cell as a task of Ray, which writes to the run folder itself.

    Ray reserves a core for each of its ``threads``. If there are more ``jobs`` than GPUs, they share these; by default there
    are as many as Ray has room for. Without ``address`` Ray is started here, unless this program is connected to one.
    """

    def __init__(self, *, device: str = "auto", jobs: int | None = None, threads: int = 1, address: str | None = None) -> None:
        cores = max(usable_cores(), threads) if jobs is None else jobs * threads
        self._ray, self._own = connect(address, cores=cores)
        from ray.util.queue import Queue

        self._threads = threads
        found = self._ray.cluster_resources()
        gpus = 0.0 if device.startswith("cpu") else float(found.get("GPU", 0.0))
        # Ray counts in ten-thousandths, of which a GPU has no more than all.
        share = 0.0 if not gpus else 1.0 if jobs is None else math.floor(1e4 / math.ceil(jobs / gpus)) / 1e4
        fitting = gpus if gpus else found.get("CPU", 1.0) // threads
        # A cluster that grows on demand must see the demand.
        self._room = jobs or (10_000 if address is not None else max(1, int(fitting)))
        self._run = self._ray.remote(num_cpus=threads, num_gpus=share, max_retries=0)(run_remotely)
        self._steps = Queue(actor_options={"num_cpus": 0, "max_restarts": -1})
        self._cells: dict[Any, Cell] = {}

    def free(self) -> int:
        """How many more cells it would take now."""
        return self._room - len(self._cells)

    def submit(self, cell: Cell) -> None:
        """Start a cell."""
        self._cells[self._run.remote(cell, Path.cwd(), self._threads, self._steps)] = cell

    def poll(self, seconds: float) -> list[Event]:
        """What happened since the last call."""
        ready, _ = self._ray.wait(list(self._cells), num_returns=len(self._cells), timeout=seconds)
        events: list[Event] = []
        with suppress(Exception):  # progress may be lost with a node, which stops no run
            events = self._steps.get_nowait_batch(self._steps.qsize())
        running = {cell.name for cell in self._cells.values()}
        return [*(event for event in events if event.name in running), *map(self._collect, ready)]

    def close(self) -> None:
        """Stop everything that runs, at once, and leave the cluster."""
        for reference in self._cells:
            self._ray.cancel(reference, force=True)
        self._cells = {}
        self._steps.shutdown(force=True)
        if self._own:
            self._ray.shutdown()

    def _collect(self, reference: Any) -> Event:
        cell = self._cells.pop(reference)
        try:
            found: Event = self._ray.get(reference)
        except Exception as error:  # Ray wraps whatever happened to the process, and its own troubles
            return Event(cell.name, "failed", text=f"Ray: {_first_line(error)}")
        return found


def run_cells(board: Board, executor: LocalExecutor | RayExecutor, *, retries: int, watch: Watch) -> None:
    """Run what waits on a board, each cell with so many ``retries``; ``watch`` is called after every change, and now and then.

    Every cell that the executor is given ends in one event "done" or "failed", whatever happens. It is closed at the end.
    """
    try:
        while True:
            while executor.free() > 0 and (cell := board.next_ready()) is not None:
                board.start(cell)
                cell.log.parent.mkdir(parents=True, exist_ok=True)
                with cell.log.open("a", encoding="utf-8") as log:
                    log.write(f"{cell.name}, {datetime.now().astimezone().isoformat(timespec='seconds')}\n")
                executor.submit(cell)
            if board.count("running") == 0:
                return
            events = executor.poll(0.25)
            for event in events:
                board.note(event, retries=retries)
                watch(board, event)
            if not events:
                watch(board, None)
    finally:
        executor.close()


def connect(address: str | None = None, *, cores: int | None = None) -> tuple[Any, bool]:
    """Ray, connected to the cluster at an address or else started on this machine, and whether this call did it."""
    try:
        import ray
    except ImportError:
        raise ImportError("Ray must be installed to compute on it, got none. Install it with `pip install ray`.") from None
    if ray.is_initialized():
        return ray, False
    options: dict[str, Any] = {} if address else {"num_cpus": cores or usable_cores(), "include_dashboard": False}
    # Ray tells its users about its own settings, which would tear the display of a grid.
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise ValueError(
            f"ray: `ray_address` must be where a Ray cluster answers, got {address or 'this machine'}: "
            f"{_first_line(error)} Start one with `ray start --head`, or leave `--ray-address` out to start Ray here."
        ) from None
    return ray, True


def map_remotely(function: Callable[[Sequence[Item]], Found], items: Sequence[Item]) -> Iterator[Found]:
    """Call a function on the workers of Ray with parts of the items, some for each core, and yield what it finds, in order.

    Ray is the one that this program is connected to, that of ``RAY_ADDRESS``, or one that is started here.
    """
    ray, is_own = connect(os.environ.get("RAY_ADDRESS"))
    call = ray.remote(num_cpus=1)(lambda part: function(part))
    size = math.ceil(len(items) / (_PARTS_PER_CORE * ray.cluster_resources().get("CPU", 1.0)))
    try:
        found = [call.remote(items[at : at + size]) for at in range(0, len(items), size)]
        while found:
            yield ray.get(found.pop(0))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    finally:
        if is_own:
            ray.shutdown()


def run_remotely(cell: Cell, where: Path, threads: int, steps: Any) -> Event:
    """Run a cell on a node, from the driver's working folder if it is there; ``steps`` is a queue for its progress."""
    node, cell = socket.gethostname(), replace(cell, out=where / cell.out)
    # The driver has begun the log.
    if not cell.log.exists():
        return Event(
            cell.name,
            "failed",
            text=f"compare: `out` must be a folder that every node sees, got {cell.folder}, not seen from {node}.",
            again=False,
        )
    last: list[Event] = []

    def send(event: Event) -> None:
        if event.kind != "step":
            last.append(event)
        else:
            with suppress(Exception):
                steps.put_nowait(event)

    torch.set_num_threads(threads)
    with cell.log.open("a", encoding="utf-8") as log, redirect_stdout(log), redirect_stderr(log):
        log.write(f"on {node}\n")
        # Data may be named by a path relative to where the driver works.
        with chdir(where) if where.is_dir() else nullcontext():
            run_cell(cell, send=send)
    return last[0]


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
