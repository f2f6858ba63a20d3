"""A parquet file that would not fit in the memory allowed is measured without ever being in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant.data.synthetic import synthetic_predictions

# Runs the command and reports the peak of its own resident memory in KiB (`getrusage` would report at least the parent's).
MEASURE = """
import re, sys
from calibrant.cli.main import run
try:
    run(sys.argv[1:])
finally:
    print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
"""
PIECE = 100_000
PIECES = 25


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak memory as Linux reports it")
def test_measure_millions_of_rows_stays_small(tmp_path: Path) -> None:
    predictions, truth = synthetic_predictions(PIECE, 10, temperature=1.5)
    probs = predictions.probs.numpy()
    columns = {f"p{k}": probs[:, k].copy() for k in range(10)} | {"label": predictions.labels.numpy()}
    table = pa.table(columns)
    path = tmp_path / "big.parquet"
    with pq.ParquetWriter(path, table.schema, use_dictionary=False) as writer:
        for _ in range(PIECES):
            writer.write_table(table)
    command = [sys.executable, "-c", MEASURE, "measure", str(path), "--json", "--resamples", "100"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    found = json.loads(done.stdout)
    assert found["n"] == PIECE * PIECES
    assert found["metrics"]["ece"]["value"] == pytest.approx(truth, abs=0.01)
    # The probabilities alone are 200 MB, of which any way through memory makes several copies; torch takes 250 MB before.
    assert int(done.stderr.split()[-1]) < 600 * 1024
