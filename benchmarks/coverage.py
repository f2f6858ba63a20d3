"""How often do the 95 % intervals of `calibrant.measure` hold the true value? Prints a table per key.

Data sets are drawn from worlds whose true scores are known: probabilities from a population of 40,000 predictions, labels from
those probabilities with a planted gap between confidence and accuracy. Run as ``python benchmarks/coverage.py``
(an hour; ten minutes with ``--only ece``); the last rows of each table are bootstrap intervals of the ECE, for comparison.
Every world has random numbers of its own, so that one unlucky draw is not seen in all of them.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant import Predictions
from calibrant.core.binning import Summary, TopLabel, cells_of, class_bins_of, summarize
from calibrant.metrics import METRICS
from calibrant.metrics.intervals import Evidence, bias_corrected
from calibrant.metrics.levels import ece_of_levels
from calibrant.metrics.measure import values_of

POPULATION = 40_000
N_BINS = 15


@dataclass(frozen=True)
class World:
    """Predictions of a population and the true chances of its labels, ``[P, C]`` each."""

    probs: Tensor
    chances: Tensor

    def truth(self) -> dict[str, float]:
        """Every score with expected labels instead of drawn ones."""
        confidence, top = self.probs.max(1)
        accuracy = self.chances.gather(1, top.unsqueeze(1)).squeeze(1)
        size = len(self.probs)
        expected = class_bins_of(self.probs, top, n_bins=N_BINS)
        index = (self.probs * N_BINS).ceil().long().sub(1).clamp(0, N_BINS - 1)
        hits = torch.zeros(self.probs.shape[1] * N_BINS, dtype=torch.float64)
        hits.index_add_(0, (torch.arange(self.probs.shape[1]) * N_BINS + index).flatten(), self.chances.flatten())
        nll = -(self.chances * self.probs.clamp_min(1e-300).log()).sum(1)
        brier = (self.probs**2).sum(1) - 2 * (self.chances * self.probs).sum(1) + 1
        expected[2] = hits.view(-1, N_BINS)
        cells = cells_of(TopLabel(confidence, accuracy))
        # So many examples that nothing is subtracted for chance.
        cells[3] *= size / 1e12
        summary = Summary(
            n=10**12,
            size=10**12,
            num_classes=self.probs.shape[1],
            n_bins=N_BINS,
            weights=torch.tensor([size, size**2 / 1e12], dtype=torch.float64),
            nll=nll.sum().double().repeat(3),
            brier=brier.sum().double().repeat(3),
            cells=cells,
            class_bins=expected,
            class_counts=torch.zeros(2, self.probs.shape[1], dtype=torch.float64),
        )
        return values_of(summary)

    def draw(self, n: int, rng: np.random.Generator, *, uneven: float = 0.0) -> Predictions:
        """Draw ``n`` examples with labels, and weights whose logarithms have the standard deviation ``uneven``."""
        row = torch.from_numpy(rng.integers(0, len(self.probs), n))
        point = torch.from_numpy(rng.random((n, 1)))
        labels = (self.chances[row].cumsum(1) < point).sum(1).clamp_max(self.probs.shape[1] - 1)
        weights = rng.lognormal(0, uneven, n) if uneven else None
        return Predictions(probs=self.probs[row], labels=labels, weights=weights)


def histogram(kind: str) -> Tensor:
    """Probabilities ``[P, 10]``: "peaked" as of a CIFAR-10 network, "broad" as of a hard problem."""
    generator = torch.Generator().manual_seed(42)
    logits = torch.randn(POPULATION, 10, generator=generator, dtype=torch.float64)
    lead = torch.randn(POPULATION, generator=generator, dtype=torch.float64)
    lead = (9 + 5 * lead).abs() if kind == "peaked" else 2.0 + 1.6 * lead
    logits[torch.arange(POPULATION), torch.randint(10, (POPULATION,), generator=generator)] += lead
    return logits.softmax(1)


def _shape(kind: str, confidence: Tensor) -> Tensor:
    index = (confidence * N_BINS).ceil().long().sub(1).clamp(0, N_BINS - 1)
    if kind == "one sign":
        return torch.ones_like(confidence)
    if kind == "mixed signs":
        return torch.where((N_BINS - 1 - index) % 2 == 0, 1.0, -1.0).double()
    return confidence * (1 - confidence)


def plant(probs: Tensor, *, shape: str, error: float) -> World:
    """Make the top class less (or more) likely than stated, so that the true ECE is ``error``."""
    confidence, top = probs.max(1)
    direction = _shape(shape, confidence)

    def world(size: float) -> World:
        accuracy = (confidence - size * direction).clamp(0, 1).unsqueeze(1)
        rest = probs.scatter(1, top.unsqueeze(1), 0.0)
        others = rest / rest.sum(1, keepdim=True) * (1 - accuracy)
        return World(probs, others.scatter(1, top.unsqueeze(1), accuracy))

    def ece(size: float) -> float:
        accuracy = (confidence - size * direction).clamp(0, 1)
        index = (confidence * N_BINS).ceil().long().sub(1).clamp(0, N_BINS - 1)
        return float(torch.zeros(N_BINS, dtype=torch.float64).index_add_(0, index, confidence - accuracy).abs().sum()) / len(
            probs
        )

    low, high = 0.0, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if ece(middle) < error else (low, middle)
    return world(low if error > 0 else 0.0)


def hardly_wrong(accuracy: float) -> World:
    """Confidences evenly between 50 and 90 %, right much more often: an under-confident model."""
    confidence = torch.linspace(0.5, 0.9, POPULATION, dtype=torch.float64).unsqueeze(1)
    probs, chances = (torch.cat([c, ((1 - c) / 9).expand(-1, 9)], dim=1) for c in (confidence, confidence * 0 + accuracy))
    return World(probs, chances)


def bootstrap_intervals(evidence: Evidence) -> dict[str, tuple[float, float]]:
    """Intervals of the ECE that resample the data, for comparison."""
    levels = evidence.levels
    right = levels.share * levels.accuracy
    chances = torch.cat([right, (levels.share - right).clamp_min(0)])
    counts = evidence.stream("bootstrap").multinomial(levels.size, (chances / chances.sum()).numpy(), size=evidence.n_resamples)
    hits, misses = (torch.from_numpy(counts).double() / levels.size).split(len(levels), 1)
    drawn = ece_of_levels(levels, hits + misses, hits)
    observed = float(ece_of_levels(levels, *levels.row(levels.accuracy)))
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    corrected = bias_corrected(drawn, observed)
    return {
        "ece, percentile": (low, high),
        "ece, reflected": (max(2 * observed - high, 0.0), max(2 * observed - low, 0.0)),
        "ece, bias-corrected": (corrected.low, corrected.high),
    }


def measured_intervals(evidence: Evidence, *, only: list[str]) -> dict[str, tuple[float, float]]:
    """Intervals of all scores, or only of some, as `calibrant.measure` reports them."""
    found = {}
    for key, value in values_of(evidence.summary).items():
        if not only or key in only:
            low, high = METRICS[key].interval(evidence, value)
            found[key] = (min(low, value), max(high, value))
    return found


def run(
    world: World, *, n: int, data_sets: int, n_resamples: int, seed: tuple[int, ...], only: list[str], uneven: float
) -> dict[str, dict[str, float]]:
    """Coverage and mean length of every interval over ``data_sets`` data sets of ``n`` examples."""
    # Data sets and resamples have random numbers of their own: another method is tried on the same data.
    data, rng = (np.random.default_rng((*seed, k)) for k in range(2))
    truth = world.truth()
    hit: dict[str, list[bool]] = {}
    length: dict[str, list[float]] = {}
    for _ in range(data_sets):
        evidence = Evidence(
            summarize(world.draw(n, data, uneven=uneven), n_bins=N_BINS), n_resamples=n_resamples, seed=int(rng.integers(2**31))
        )
        ends = measured_intervals(evidence, only=only)
        ends |= bootstrap_intervals(evidence) if "ece" in ends else {}
        for key, (low, high) in ends.items():
            true = truth[key.split(",")[0]]
            hit.setdefault(key, []).append(low <= true + 1e-9 and true <= high + 1e-9)
            length.setdefault(key, []).append(high - low)
    return {
        key: {
            "true": truth[key.split(",")[0]],
            "coverage": float(np.mean(hit[key])),
            "length": float(np.mean(length[key])),
        }
        for key in hit
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-sets", type=int, default=300)
    parser.add_argument("--resamples", type=int, default=300)
    parser.add_argument("--n", type=int, nargs="+", default=[10_000, 1_000])
    parser.add_argument("--only", nargs="+", default=[], help="scores; all others, which take most of the time, are left out")
    parser.add_argument("--world", default="", help="only worlds of which the heading holds this text: 'peaked confidences'")
    parser.add_argument("--uneven", type=float, default=0.0, help="weights: standard deviation of their logarithms")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="also write one JSON line per world to this file")
    parser.add_argument("--hardly-wrong", action="store_true", help="under-confident models right in 99 to 100 %% instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    worlds: list[tuple[str, str, float]] = [
        (kind, shape, error)
        for kind in ("peaked", "broad")
        for error in (0.0, 0.005, 0.02, 0.05)
        for shape in (("one sign",) if error == 0 else ("one sign", "mixed signs", "temperature"))
    ]
    if options.hardly_wrong:
        worlds = [("even", "one sign", error) for error in (0.3, 0.299, 0.29)]
    for n in options.n:
        for k, (kind, shape, error) in enumerate(worlds):
            heading = f"N = {n}, {kind} confidences, {shape} gaps, true ECE {error:.1%}"
            if options.world not in heading:
                continue
            start = time.perf_counter()
            world = hardly_wrong(0.7 + error) if kind == "even" else plant(histogram(kind), shape=shape, error=error)
            found = run(
                world,
                n=n,
                data_sets=options.data_sets,
                n_resamples=options.resamples,
                seed=(options.seed, n, k),
                only=options.only,
                uneven=options.uneven,
            )
            line = {"n": n, "histogram": kind, "gaps": shape, "true_ece": error, "seconds": time.perf_counter() - start}
            print(f"\n{heading} ({line['seconds']:.0f} s)")
            for key, row in found.items():
                numbers = f"coverage {row['coverage']:6.1%}  mean length {row['length']:.4f}"
                print(f"  {key:<19} true {row['true']:8.4f}  {numbers}", flush=True)
            if options.json:
                with open(options.json, "a") as file:
                    file.write(json.dumps({**line, "keys": found}) + "\n")


if __name__ == "__main__":
    main()
