"""Whether `AutoCalibrator` leaves calibrated models alone and repairs others, where the truth is planted.

    python benchmarks/choice.py [--draws 200] [--planted-draws 40] [--seed 0]

One JSON line for each world, number of classes and number N of examples to fit on. Models are judged by their exact expected
NLL on 4,000 fresh examples, whose true probabilities are known. Calibrated worlds ("even", and "sure", which is right in some
97 % of cases): `harmed` is the share of draws in which the NLL gets worse by more than 0.002. Planted worlds, from N = 1,000
on: `kept` is the mean gain of what was chosen, divided by that of the single method that is best on average. Exits with 1 if
more than 5 % are harmed or less than 90 % is kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter

import torch
from torch import Tensor

from calibrant import Predictions
from calibrant.calibrators import CALIBRATORS, AutoCalibrator
from calibrant.core.checks import FitError

CALIBRATED = ("even", "sure")
PLANTED = ("too sure", "not sure enough", "class bias", "spline", "mixed")
SIZES = (100, 300, 1000, 5000)
CLASSES = (2, 10, 50)
HARM = 0.002


def world(name: str, n: int, num_classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Logits that a model claims, and the true probabilities, both ``[N, C]``."""
    true = torch.randn(n, num_classes, generator=generator, dtype=torch.float64)
    strength = (2 if num_classes == 2 else 6) * torch.rand(n, 1, generator=generator, dtype=torch.float64)
    favoured = torch.randint(num_classes, (n, 1), generator=generator)
    true.scatter_add_(1, favoured, strength + 2 * (num_classes > 10))
    if name == "sure":
        true.scatter_add_(1, true.argmax(1, keepdim=True), torch.full_like(strength, 3.0 if num_classes == 2 else 6.0))
    truth = true.softmax(1)
    # The same classes are favoured in every draw.
    bias = torch.linspace(-1, 1, num_classes).double()[torch.randperm(num_classes, generator=torch.Generator().manual_seed(5))]
    if name == "spline":
        # The confidence c is claimed as c + 0.6 (1 - c) sin 3c: much too high in the middle, too low at the end.
        top = truth.argmax(1, keepdim=True)
        confidence = truth.gather(1, top)
        claimed = (confidence + 0.6 * (1 - confidence) * torch.sin(3 * confidence)).clamp(max=0.999)
        return (truth * ((1 - claimed) / (1 - confidence))).scatter(1, top, claimed).log(), truth
    scale = {"too sure": 1.7, "not sure enough": 0.6, "mixed": 1.5}.get(name, 1.0)
    return scale * true + bias * {"class bias": 1.0, "mixed": 0.7}.get(name, 0.0), truth


def draw(name: str, n: int, num_classes: int, seed: int, *, methods: list[str] | None = None) -> tuple[str, dict[str, float]]:
    """Fit once; return what was chosen, and by how much it and every method that was tried lower the true NLL."""
    generator = torch.Generator().manual_seed(seed)
    logits, truth = world(name, n, num_classes, generator)
    labels = torch.multinomial(truth, 1, generator=generator).squeeze(1)
    fit = Predictions(logits=logits, labels=labels, split="val")
    fresh, fresh_truth = world(name, 4000, num_classes, generator)

    def nll(log_probs: Tensor) -> float:
        return -float((fresh_truth * log_probs).sum(1).mean())

    auto = AutoCalibrator(methods=methods).fit(fit)
    idle = nll(fresh.log_softmax(1))
    gains = {"auto": idle - nll(auto.log_probs(fresh))}
    for method, calibrator in auto.candidates_.items() if name in PLANTED else ():
        try:
            gains[method] = idle - nll(calibrator.fit(fit).log_probs(fresh))
        except FitError:
            gains[method] = 0.0
    return auto.best_name_, gains


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--planted-draws", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--classes", type=int, nargs="+", default=CLASSES)
    parser.add_argument("--methods", nargs="+", help="what to choose from; all by default")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    failed = False
    for n in options.sizes:
        for num_classes in options.classes:
            for name in CALIBRATED + PLANTED:
                if name in PLANTED and n < 1000:
                    continue
                used, start = options.draws if name in CALIBRATED else options.planted_draws, time.process_time()
                found = [draw(name, n, num_classes, options.seed + seed, methods=options.methods) for seed in range(used)]
                chosen = dict(Counter(method for method, _ in found).most_common())
                line: dict[str, object] = {"world": name, "classes": num_classes, "n": n, "draws": used}
                if name in CALIBRATED:
                    harmed = sum(gains["auto"] < -HARM for _, gains in found) / used
                    line |= {"harmed": round(harmed, 4), "chosen": chosen}
                    failed = failed or harmed > 0.05
                else:
                    mean = {m: sum(gains.get(m, 0.0) for _, gains in found) / used for m in ("auto", *CALIBRATORS)}
                    best = max((m for m in mean if m != "auto"), key=mean.__getitem__)
                    kept = mean["auto"] / mean[best]
                    line |= {"kept": round(kept, 4), "best": best, "gain": round(mean[best], 4), "chosen": chosen}
                    failed = failed or kept < 0.9
                print(json.dumps({**line, "processor_seconds": round(time.process_time() - start, 1)}), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
