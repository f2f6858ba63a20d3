"""Try settings of a recipe against each other on validation data alone; one JSON line a run, the best last.

    python benchmarks/sweep.py --data-root DATA --epochs 60 --jobs 3 method.options.pace=0.013,0.026 train.average=no,ema

Every combination of the values is trained, for every seed, by `calibrant train`; several at a time share a GPU. Values with
commas in them stand in quotes: ``method.options.betas='0.5,0.9','0.9,0.99'``. Finished runs are not run again. The test set
is not looked at: what is printed is measured on the validation part of the chosen epoch.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from calibrant.engine.folder import is_finished, load_run
from calibrant.metrics.measure import measure


def combinations(settings: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of the values of ``KEY=A,B`` texts."""
    keys, choices = [], []
    for text in settings:
        key, equals, values = text.partition("=")
        if not equals:
            raise SystemExit(f"sweep: a setting must be KEY=VALUE,VALUE, got {text!r}.")
        keys.append(key)
        choices.append(next(csv.reader([values], quotechar="'")))
    return [dict(zip(keys, chosen, strict=True)) for chosen in itertools.product(*choices)]


def folder_of(out: Path, chosen: dict[str, str], seed: int) -> Path:
    words = [f"{key.rpartition('.')[2]}={value}" for key, value in chosen.items()]
    return out / "_".join([*words, f"seed{seed}"]).replace("/", "-")


def train(chosen: dict[str, str], seed: int, args: argparse.Namespace) -> tuple[dict[str, str], int, str]:
    """Train one combination; return it with what went wrong, if anything did."""
    folder = folder_of(args.out, chosen, seed)
    if not is_finished(folder):
        named = {"--data": args.data, "--model": args.model, "--method": args.method, "--epochs": args.epochs, "--seed": seed}
        named |= {"--out": folder, "--data-root": args.data_root, "--device": args.device}
        words = [str(word) for key, value in named.items() if value is not None for word in (key, value)]
        words += [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
        done = subprocess.run(
            [sys.executable, "-m", "calibrant", "train", "--resume", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(args.threads)},
        )
        if done.returncode:
            return chosen, seed, done.stderr.strip()[-500:]
    return chosen, seed, ""


def describe(folder: Path) -> dict[str, float | int | None]:
    """What the validation part says of a finished run."""
    run = load_run(folder)
    scores, record = measure(run.val), run.history[run.best_epoch]
    found: dict[str, float | int | None] = {key: round(scores[key].value, 5) for key in ("error", "nll", "ece", "signed_gap")}
    p_value = None if scores.ece_if_calibrated is None else round(scores.ece_if_calibrated.p_value, 4)
    return found | {"p_value": p_value, "epoch": run.best_epoch, "gamma": record.gamma_mean, "n": len(run.val)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep; return how many runs failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="KEY=A,B")
    parser.add_argument("--out", type=Path, default=Path("sweep"))
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-root")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--method", default="flgamma-sece")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=1, help="of each run")
    args = parser.parse_intermixed_args(arguments)
    tasks = [(chosen, seed) for chosen in combinations(args.settings) for seed in range(args.seeds)]
    failed, found = 0, {}
    with ThreadPoolExecutor(args.jobs) as pool:
        for chosen, seed, trouble in pool.map(lambda task: train(*task, args), tasks):
            if trouble:
                failed += 1
                print(json.dumps({"settings": chosen, "seed": seed, "failed": trouble}), flush=True)
                continue
            line = describe(folder_of(args.out, chosen, seed))
            found.setdefault(json.dumps(chosen), []).append(line)
            print(json.dumps({"settings": chosen, "seed": seed, **line}), flush=True)
    # NLL is a proper score: it weighs errors and confidence together, and does not reward guessing with the right doubt.
    order = sorted(found, key=lambda chosen: np.mean([line["nll"] for line in found[chosen]]))
    for chosen in order[:1]:
        means = {key: round(float(np.mean([line[key] for line in found[chosen]])), 5) for key in ("error", "nll", "ece")}
        print(json.dumps({"best": json.loads(chosen), "seeds": len(found[chosen]), **means}), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
