"""Time of every calibrator, and of temperature, isotonic and histogram as ratios to scikit-learn and netcal.

    python benchmarks/calibrators.py [--threads 1] [--full]

One JSON line a task: seconds of wall clock and of processor time; ratios are of processor time, medians of interleaved runs.
On one thread the processor time is the wall clock of an idle machine; limits go by the smaller of the two. Exits with 1 if the
temperature of 50,000 x 1,000 logits takes 2 s or more, or, with --full, the choice between all takes more than its limit of
times as long as one temperature, or needs 4 GiB of memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch

from calibrant import Predictions
from calibrant.calibrators import CALIBRATORS, AutoCalibrator, HistogramBinning, IsotonicCalibration, TemperatureScaling
from calibrant.data.synthetic import synthetic_predictions

ROUNDS = 5
TEMPERATURE_LIMIT_S = 2.0
# Examples, classes, and how many temperatures the choice between all may cost.
CHOICES = ((5000, 100, 500), (500_000, 10, 300), (25_000, 1000, 300))
MEMORY_LIMIT_GIB = 4.0


def timed(task: Callable[[], object]) -> tuple[float, float]:
    wall, used = time.perf_counter(), time.process_time()
    task()
    return time.perf_counter() - wall, time.process_time() - used


def say(task: str, wall: float, used: float, **more: object) -> None:
    print(json.dumps({"task": task, "seconds": round(wall, 4), "processor_seconds": round(used, 4), **more}), flush=True)


def compare(task: str, ours: Callable[[], object], peer: Callable[[], object], *, name: str) -> None:
    ratios, times = [], []
    for _ in range(ROUNDS):
        (wall, used), (_, other) = timed(ours), timed(peer)
        ratios.append(other / used)
        times.append((wall, used))
    say(task, *min(times), peer=name, times_faster=round(statistics.median(ratios), 2))


def compare_with_peers(predictions: Predictions) -> None:
    logits, labels = predictions.logits.double().numpy(), predictions.labels.numpy()
    probs = predictions.probs.numpy()
    try:
        from sklearn.calibration import _TemperatureScaling

        compare(
            "temperature 10,000 x 10",
            lambda: TemperatureScaling().fit(logits, labels),
            lambda: _TemperatureScaling().fit(logits, labels),
            name="scikit-learn",
        )
    except ImportError:
        pass
    try:
        from netcal.binning import HistogramBinning as NetcalHistogram
        from netcal.binning import IsotonicRegression as NetcalIsotonic
        from netcal.scaling import TemperatureScaling as NetcalTemperature
    except ImportError:
        return
    pairs = {
        "temperature": (TemperatureScaling, NetcalTemperature),
        "isotonic": (IsotonicCalibration, NetcalIsotonic),
        "histogram": (HistogramBinning, NetcalHistogram),
    }
    for task, (kind, peer) in pairs.items():
        compare(
            f"{task} 10,000 x 10",
            lambda kind=kind: kind().fit(logits, labels),
            lambda peer=peer: peer().fit(probs, labels),
            name="netcal",
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="also choose between all calibrators")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    compare_with_peers(synthetic_predictions(10_000, 10, split="val")[0])
    given, _ = synthetic_predictions(5000, 10, split="val")
    for name, kind in CALIBRATORS.items():
        if name == "auto":
            continue
        say(f"{name} 5,000 x 10", *timed(lambda kind=kind: kind().fit(given)))
    big, _ = synthetic_predictions(50_000, 1000, split="val")
    runs = [timed(lambda: TemperatureScaling().fit(big)) for _ in range(3)]
    say("temperature 50,000 x 1,000", *min(runs), limit_seconds=TEMPERATURE_LIMIT_S)
    slow = min(min(run) for run in runs) >= TEMPERATURE_LIMIT_S
    for n, num_classes, limit in CHOICES if options.full else ():
        wide, _ = synthetic_predictions(n, num_classes, split="val")
        one = min(min(timed(lambda wide=wide: TemperatureScaling().fit(wide))) for _ in range(3))
        wall, used = timed(lambda wide=wide: AutoCalibrator().fit(wide))
        ratio, memory = min(wall, used) / one, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        found = {"temperatures": round(ratio), "limit_temperatures": limit, "most_gib": round(memory, 2)}
        say(f"auto {n:,} x {num_classes:,}", wall, used, **found)
        slow = slow or ratio > limit or memory > MEMORY_LIMIT_GIB
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
