"""``calibrant measure`` on a parquet file larger than memory should allow: seconds and peak resident memory, one JSON line.

Run as ``python benchmarks/big_parquet.py [--rows 10000000] [--classes 10] [--slice] [--by-class]``. The file is made in pieces,
in a temporary folder (600 MB by default), and removed afterwards; the command runs in a process of its own, whose peak is
read from the operating system.
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
import pyarrow as pa
import pyarrow.parquet as pq

from calibrant.data.synthetic import synthetic_predictions

PIECE = 250_000
# Runs the command and reports the peak of its own resident memory in KiB (`getrusage` would report at least the parent's).
MEASURE = """
import re, sys
from calibrant.cli.main import run
try:
    run(sys.argv[1:])
finally:
    print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
"""


def write_big_parquet(path: Path, *, rows: int, num_classes: int, one_group: bool = False, as_logits: bool = False) -> None:
    """Write synthetic predictions with a column ``site`` of eight groups, never holding more than one piece."""
    writer = None
    kinds = {"logits": "logit", "probs": "p"}
    kind = "logits" if as_logits else "probs"
    pieces = []
    for number, start in enumerate(range(0, rows, PIECE)):
        predictions, _ = synthetic_predictions(min(PIECE, rows - start), num_classes, seed=number)
        scores = getattr(predictions, kind).float().numpy()
        columns = {f"{kinds[kind]}{k}": np.ascontiguousarray(scores[:, k]) for k in range(num_classes)}
        columns["label"] = predictions.labels.numpy()
        columns["site"] = np.array([f"site {k}" for k in range(8)])[np.arange(len(scores)) % 8]
        table = pa.table(columns)
        if one_group:
            pieces.append(table)
            continue
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is None:
        pq.write_table(pa.concat_tables(pieces), path, row_group_size=rows)
    else:
        writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--slice", action="store_true", help="measure the eight groups too")
    parser.add_argument("--by-class", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.parquet"
        write_big_parquet(path, rows=options.rows, num_classes=options.classes)
        extra = ["--slice", "site"] if options.slice else []
        extra += ["--by-class"] if options.by_class else []
        start = time.perf_counter()
        command = [sys.executable, "-c", MEASURE, "measure", str(path), "--json", *extra]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - start
        size = path.stat().st_size
    found = json.loads(done.stdout)
    report = {
        "rows": found["n"],
        "classes": found["num_classes"],
        "file_mb": round(size / 1e6),
        "seconds": round(seconds, 1),
        "peak_rss_mib": round(int(done.stderr.split()[-1]) / 1024),
        "ece": found["metrics"]["ece"],
        "slices": len(found.get("slices", {})),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
