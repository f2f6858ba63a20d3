"""How fast `calibrant measure` reads many rows, and how much memory it takes: in one process, and on the workers of Ray.

    python benchmarks/scale.py --rows 1e7

Writes that many rows of made-up predictions as Parquet files of a million each, in a folder for each day, and measures them
with a slice by day. Prints one JSON line for each way: rows per second, the largest resident memory of any process that reads,
and how far the numbers of Ray are from those of one process. Exits with 1 if they differ by more than 1e-12.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

FILE_ROWS = 1_000_000
WAYS = {"one process": (), "Ray": ("--ray",)}


def write_rows(folder: Path, *, rows: int, classes: int) -> None:
    """Write over-confident predictions; every file has its own random numbers."""
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        random, n = np.random.default_rng(number), min(FILE_ROWS, rows - start)
        logits = random.normal(scale=2, size=(n, classes)).astype(np.float32)
        labels = (0.7 * logits + random.gumbel(size=logits.shape)).argmax(1)
        probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        day = folder / f"day={number % 7}"
        day.mkdir(exist_ok=True)
        columns = {f"p{k}": np.ascontiguousarray(probs[:, k]) for k in range(classes)}
        pq.write_table(pa.table({**columns, "label": labels}), day / f"{number}.parquet", row_group_size=1 << 17)


def measure(folder: Path, *options: str) -> tuple[dict, float, float]:
    """What the command finds, the seconds it takes, and the largest memory of a process that reads, in MB."""
    command = [sys.executable, "-m", "calibrant", "measure", str(folder), "--slice", "day", "--json", *options]
    started, largest = time.perf_counter(), 0
    with tempfile.TemporaryFile("w+") as out:
        process = psutil.Popen(command, stdout=out)
        while process.poll() is None:
            for one in [process, *process.children(recursive=True)]:
                try:
                    reads = one == process or one.name().startswith("ray::")
                    largest = max(largest, one.memory_info().rss if reads else 0)
                except psutil.NoSuchProcess:
                    pass
            time.sleep(0.05)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        out.seek(0)
        return json.load(out), time.perf_counter() - started, largest / 1e6


def values(found: dict) -> list[float]:
    """All values, of everything and of every slice."""
    return [score["value"] for part in (found, *found["slices"].values()) for score in part["metrics"].values()]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--no-ray", action="store_true", help="one process only")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_rows(folder, rows=int(options.rows), classes=options.classes)
        runs = {way: measure(folder, *flags) for way, flags in WAYS.items() if not (flags and options.no_ray)}
    alone = values(runs["one process"][0])
    worst = 0.0
    for way, (found, seconds, memory) in runs.items():
        difference = max(abs(one - other) for one, other in zip(values(found), alone, strict=True))
        worst = max(worst, difference)
        line = {"way": way, "rows": found["n"], "seconds": round(seconds, 1), "rows_per_second": round(found["n"] / seconds)}
        print(json.dumps({**line, "largest_process_mb": round(memory), "difference": difference}))
    return int(worst > 1e-12)


if __name__ == "__main__":
    sys.exit(main())
