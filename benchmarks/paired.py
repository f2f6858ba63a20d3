"""How often does `paired_test` call two models different in calibration that are both calibrated? Prints a table.

The first model says p, Dirichlet distributed, the second q ~ Dirichlet(s p), and the label is drawn from q: both are
calibrated, and the second is sharper and more accurate. Some rows have weights or ties. The last rows show how often a
difference is found where there is one: a calibrated model against itself with its logits scaled, or two models with logits
scaled unequally. In brackets is what resampling alone would have found, without asking what calibrated models show.

    python benchmarks/paired.py [--draws 200] [--seed 0] [--only "| 10,000 |"]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import torch

from calibrant import Predictions
from calibrant.metrics import METRICS, paired, paired_test

KEYS = [key for key, metric in METRICS.items() if metric.is_calibration]
Pair = tuple[Predictions, Predictions]


def labels_of(chances: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (chances.cumsum(1)[:, :-1] < rng.random((len(chances), 1))).sum(1)


def calibrated_pair(
    rng: np.random.Generator,
    n: int,
    num_classes: int,
    *,
    spread: float,
    refined: float,
    weights: bool = False,
    ties: bool = False,
) -> Pair:
    """Two calibrated models of ``n`` examples; p ~ Dirichlet(``spread``), q ~ Dirichlet(``refined`` p)."""
    coarse = rng.dirichlet(np.full(num_classes, spread), 8 if ties else n)
    if ties:
        # Eight predictions, each refined into two that lie at the same distance on either side of it.
        fine = rng.dirichlet(np.full(num_classes, spread), 8)
        towards = fine - coarse
        step = np.min(np.where(towards > 0, coarse / np.maximum(towards, 1e-300), 1.0), axis=1, keepdims=True).clip(max=1.0)
        which, side = rng.integers(0, 8, n), rng.choice([-1, 1], (n, 1))
        coarse, fine = coarse[which], (coarse[which] + side * (step * towards)[which]).clip(0)
    else:
        fine = rng.standard_gamma(refined * coarse) + 1e-300
    fine /= fine.sum(1, keepdims=True)
    given = {"labels": torch.from_numpy(labels_of(fine, rng)), "weights": rng.lognormal(0, 1, n) if weights else None}
    return Predictions(probs=coarse, **given), Predictions(probs=fine, **given)


def scaled_pair(
    rng: np.random.Generator, n: int, num_classes: int, *, spread: float, scale: float, from_scale: float = 1.0
) -> Pair:
    """The logits of a calibrated model multiplied by ``from_scale``, which leaves it calibrated if 1, and by ``scale``."""
    probs = rng.dirichlet(np.full(num_classes, spread), n) + 1e-12
    probs /= probs.sum(1, keepdims=True)
    labels, logits = torch.from_numpy(labels_of(probs, rng)), torch.from_numpy(probs).log()
    return Predictions(logits=from_scale * logits, labels=labels), Predictions(logits=scale * logits, labels=labels)


def worlds() -> Iterator[tuple[str, Callable[[np.random.Generator], Pair]]]:
    shapes = [(2, 0.3, 1.0), (2, 1.0, 3.0), (10, 0.1, 3.0), (10, 0.3, 30.0), (100, 0.02, 3.0)]
    for n in (300, 1000, 3000, 10_000):
        for num_classes, spread, refined in shapes:
            name = f"calibrated | {n:,} | {num_classes} | {refined:g}"
            yield name, lambda rng, a=(n, num_classes), b=spread, c=refined: calibrated_pair(rng, *a, spread=b, refined=c)
    for n, num_classes in ((300, 2), (1000, 10), (3000, 2), (10_000, 10)):
        for kind in ("weights", "ties"):
            name = f"calibrated, {kind} | {n:,} | {num_classes} | 3"
            yield (
                name,
                lambda rng, a=(n, num_classes), kind=kind: calibrated_pair(rng, *a, spread=0.3, refined=3, **{kind: True}),
            )
    for n, scale in ((300, 1.5), (1000, 1.3), (3000, 1.2), (10_000, 1.1)):
        for num_classes, spread in ((2, 0.5), (10, 0.1), (100, 0.05)):
            name = f"scaled by {scale} | {n:,} | {num_classes} | "
            yield name, lambda rng, a=(n, num_classes), b=spread, c=scale: scaled_pair(rng, *a, spread=b, scale=c)
    for n, scale in ((300, 2.5), (1000, 2.0), (3000, 1.7), (10_000, 1.5)):
        for num_classes, spread in ((2, 0.5), (10, 0.1)):
            name = f"scaled by 1.3 and {scale} | {n:,} | {num_classes} | "
            yield (
                name,
                lambda rng, a=(n, num_classes), b=spread, c=scale: scaled_pair(rng, *a, spread=b, scale=c, from_scale=1.3),
            )


def rates(
    make: Callable[[np.random.Generator], Pair], *, draws: int, seed: int, n_resamples: int = 200
) -> dict[str, tuple[float, float]]:
    """Share of ``draws`` pairs that differ with p <= 0.05, by score: by `paired_test`, and by its resamples alone."""
    rng, found = np.random.default_rng(seed), []
    for number in range(draws):
        with mock.patch.object(paired, "_beyond_chance", wraps=paired._beyond_chance) as beyond:
            tests = paired_test(*make(rng), n_resamples=n_resamples, seed=number)
        keys = [key for key in tests if METRICS[key].is_calibration]
        resampled = [call.args[0].p_value for call in beyond.call_args_list]
        found.append({key: (tests[key].p_value <= 0.05, p <= 0.05) for key, p in zip(keys, resampled, strict=True)})
    return {key: tuple(np.mean([test[key] for test in found], axis=0).tolist()) for key in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only pairs of which the row holds this text")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| pair | examples | classes | s | " + " | ".join(f"`{key}`" for key in KEYS) + " |")
    print("|" + "---|" * (4 + len(KEYS)))
    for number, (name, make) in enumerate(worlds()):
        if given.only in name:
            found = rates(make, draws=given.draws, seed=given.seed + number)
            cells = [f"{100 * found[key][0]:.1f} ({100 * found[key][1]:.1f})" if key in found else "" for key in KEYS]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
