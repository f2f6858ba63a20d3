"""Speed of the metrics against installed peers: one process, one thread, warmed up, medians, ratios.

    python benchmarks/metrics.py [--quick]

Each line says what was promised and whether it holds; the last one counts. The peers come with the development install.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch

from calibrant import Predictions, measure
from calibrant.core.kernels import laplace_pair_sum
from calibrant.metrics import (
    classwise_calibration_error,
    expected_calibration_error,
    maximum_mean_calibration_error,
    smooth_calibration_error,
    smooth_expected_calibration_error,
)

warnings.simplefilter("ignore")
KEPT: list[bool] = []


def clock(function: Callable[[], object], *, repeats: int) -> float:
    function()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        function()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def data(n: int, num_classes: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, num_classes, generator=generator)
    labels = torch.multinomial((logits / 1.5).softmax(1), 1, generator=generator).squeeze(1)
    return logits.softmax(1), labels


def against(name: str, ours: float, peer: str, theirs: float, *, at_least: float) -> None:
    ratio = theirs / ours
    KEPT.append(ratio >= at_least)
    verdict = "ok" if KEPT[-1] else "MISSED"
    times = f"ours {1e3 * ours:9.3f} ms   {peer:<27} {1e3 * theirs:10.2f} ms"
    print(f"{name:<34} {times}   {ratio:9.1f}x (>= {at_least:g}x) {verdict}")


def within(name: str, seconds: float, limit: float) -> None:
    KEPT.append(seconds < limit)
    print(f"{name:<34} ours {seconds:9.3f} s    limit {limit:g} s {'ok' if KEPT[-1] else 'MISSED'}")


def expected(repeats: int) -> None:
    from netcal.metrics import ECE
    from relplot.metrics import binnedECE
    from torchmetrics.functional.classification import multiclass_calibration_error

    probs, labels = data(50_000, 10)
    p, y = probs.numpy(), labels.numpy()
    confidence, correct = p.max(1), p.argmax(1) == y
    rows = [
        ("torchmetrics", lambda: multiclass_calibration_error(probs, labels, num_classes=10, n_bins=15), 2),
        ("netcal", lambda: ECE(15).measure(p, y), 5),
        ("relplot (given confidences)", lambda: binnedECE(confidence, correct, nbins=15), 1),
    ]
    for peer, call, least in rows:
        # Ours is timed beside each peer, so that a change of the machine's pace falls on both.
        ours = clock(lambda: expected_calibration_error(probs, labels), repeats=repeats)
        against("ECE, 50,000 x 10", ours, peer, clock(call, repeats=repeats), at_least=least)


def classwise(repeats: int) -> None:
    import calibration

    probs, labels = data(50_000, 100)
    p, y = probs.numpy().astype(np.float64), labels.numpy()
    ours = clock(lambda: classwise_calibration_error(probs, labels), repeats=repeats)
    theirs = clock(lambda: calibration.get_ece(p, y, num_bins=15, mode="marginal"), repeats=1)
    against("classwise ECE, 50,000 x 100", ours, "uncertainty-calibration", theirs, at_least=20)
    ours = clock(lambda: classwise_calibration_error(probs, labels), repeats=repeats)
    loop = clock(lambda: class_by_class(p, y), repeats=1)
    # Not a peer but the best that a loop over classes can do; the libraries that have one are slower.
    against("classwise ECE, 50,000 x 100", ours, "numpy, class by class", loop, at_least=1)


def class_by_class(probs: np.ndarray, labels: np.ndarray) -> float:
    """Classwise ECE as most libraries write it: a loop over classes with a weighted histogram each."""
    n, num_classes = probs.shape
    total = 0.0
    for k in range(num_classes):
        hit = labels == k
        index = np.clip(np.ceil(probs[:, k] * 15).astype(int) - 1, 0, 14)
        total += np.abs(np.bincount(index, probs[:, k] - hit, minlength=15)).sum() / n
    return total / num_classes


def kernels(repeats: int, *, quick: bool) -> None:
    from netcal.metrics import MMCE

    n = 3_000 if quick else 10_000
    probs, labels = data(n, 10)
    confidence = probs.amax(1).double().requires_grad_()
    correct = (probs.argmax(1) == labels).double()

    def value_and_gradient() -> None:
        residual = correct - confidence
        root = laplace_pair_sum(confidence, residual, scale=0.4).sqrt() / n
        torch.autograd.grad(root, confidence)

    ours = clock(value_and_gradient, repeats=repeats)
    theirs = clock(lambda: MMCE().measure(probs.double().numpy(), labels.numpy()), repeats=1)
    against(f"MMCE value + gradient, N = {n:,}", ours, "netcal (value)", theirs, at_least=100 if quick else 1000)
    exact = float(maximum_mean_calibration_error(probs, labels))
    assert abs(exact - MMCE().measure(probs[:2000].numpy(), labels[:2000].numpy())) < 1


def smooth(repeats: int) -> None:
    import relplot

    probs, labels = data(10_000, 10)
    c, a = probs.amax(1).double().numpy(), (probs.argmax(1) == labels).double().numpy()
    ours = clock(lambda: smooth_calibration_error(probs, labels), repeats=repeats)
    against("smECE, N = 10,000", ours, "relplot", clock(lambda: relplot.smECE(c, a), repeats=repeats), at_least=1)


def whole(*, quick: bool) -> None:
    torch.set_num_threads(2)
    n = 100_000 if quick else 1_000_000
    probs, labels = data(n, 10)
    within(f"SECE, N = {n:,} (two threads)", clock(lambda: smooth_expected_calibration_error(probs, labels), repeats=1), 5)
    probs, labels = data(10_000, 10)
    predictions = Predictions(probs=probs, labels=labels)
    within("all scores, 1,000 resamples, 10,000 x 10", clock(lambda: measure(predictions), repeats=3), 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller inputs, for a first look")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 5 if arguments.quick else 51
    expected(repeats)
    classwise(5)
    smooth(5)
    kernels(repeats, quick=arguments.quick)
    whole(quick=arguments.quick)
    print(f"{sum(KEPT)} of {len(KEPT)} promises kept")
    return 0 if all(KEPT) else 1


if __name__ == "__main__":
    sys.exit(main())
