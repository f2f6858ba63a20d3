"""How far is SECE from the true calibration error, by bandwidth and number of examples? Prints a table, in per cent.

Confidences are 0.5 + 0.5 Beta(4, 1); the true accuracy is the confidence less a gap, so that the true error is the gap. Beside
SECE stand its centred form, which smooths the confidence as it does the accuracy, and the debiased L2 error.

    python benchmarks/sece.py [--data-sets 100] [--seed 0]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from calibrant.core.binning import TopLabel
from calibrant.core.kernels import gaussian_sums
from calibrant.metrics import METRICS

SIZES, BANDWIDTHS, GAPS = (128, 1000, 10_000), (0.01, 0.05, 0.1), (0.0, 0.02, 0.05)


def data_set(n: int, gap: float, rng: np.random.Generator) -> TopLabel:
    confidence = 0.5 + 0.5 * rng.beta(4, 1, n)
    correct = (rng.random(n) < confidence - gap).astype(float)
    return TopLabel(torch.from_numpy(confidence), torch.from_numpy(correct))


def centred(top: TopLabel, bandwidth: float) -> float:
    residual = top.correct - top.confidence
    near, gaps = gaussian_sums(top.confidence, torch.stack([torch.ones_like(residual), residual]), bandwidth=bandwidth)
    return float((gaps / near).abs().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-sets", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| examples | form | " + " | ".join(f"true error {gap:.0%}" for gap in GAPS) + " |")
    print("|" + "---|" * (2 + len(GAPS)))
    for n in SIZES:
        rng = np.random.default_rng([options.seed, n])
        given = [[data_set(n, gap, rng) for _ in range(options.data_sets)] for gap in GAPS]
        rows = {
            f"SECE, h = {h}": [[float(METRICS["sece"](t, bandwidth=h)) for t in tops] for tops in given] for h in BANDWIDTHS
        }
        rows |= {f"centred, h = {h}": [[centred(t, h) for t in tops] for tops in given] for h in BANDWIDTHS}
        rows["debiased L2"] = [[float(METRICS["ece_debiased"](t, n_bins=15)) for t in tops] for tops in given]
        for form, found in rows.items():
            print(f"| {n:,} | {form} | " + " | ".join(f"{100 * np.mean(values):.1f}" for values in found) + " |", flush=True)


if __name__ == "__main__":
    main()
