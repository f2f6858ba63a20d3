"""Time of every objective, forward and backward, as a ratio to cross-entropy.

    python benchmarks/losses.py [--seconds 2] [--device cpu]

Batch 512, one thread, medians of interleaved runs: each round times every objective once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses import LOSSES, PENALTIES, Entry

BATCH = 512
CLASSES = (10, 100, 1000)

Timed = Callable[[Tensor, Tensor], Tensor]


def draw(num_classes: int, *, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(BATCH, num_classes, generator=generator)
    labels = torch.randint(num_classes, (BATCH,), generator=generator)
    right = torch.rand(BATCH, generator=generator) < 0.7
    return logits.to(device).requires_grad_(), torch.where(right, logits.argmax(1), labels).to(device)


def seconds_of(objective: Timed, logits: Tensor, labels: Tensor) -> float:
    """Seconds of one forward and backward pass."""
    if logits.is_cuda:
        torch.cuda.synchronize()
    # On the CPU processor time, so that what else the machine does weighs on none.
    clock = time.perf_counter if logits.is_cuda else time.process_time
    start = clock()
    torch.autograd.grad(objective(logits, labels), logits)
    if logits.is_cuda:
        torch.cuda.synchronize()
    return clock() - start


def medians(objectives: Mapping[str, Timed], logits: Tensor, labels: Tensor, *, seconds: float) -> dict[str, float]:
    """Median seconds of each objective; one that takes long is run three times only."""
    slow = {name: seconds_of(objective, logits, labels) > 0.2 for name, objective in objectives.items()}
    times: dict[str, list[float]] = {name: [] for name in objectives}
    end = time.perf_counter() + seconds * len(objectives) / 8
    rounds = 0
    while rounds < 15 or time.perf_counter() < end:
        for name, objective in objectives.items():
            if not slow[name] or rounds < 3:
                times[name].append(seconds_of(objective, logits, labels))
        rounds += 1
    return {name: statistics.median(t) for name, t in times.items()}


def module_of(entry: Entry, *, device: str) -> Timed:
    """The module of an entry as a function of logits and labels."""
    made = {name: value for name, value in entry.required.items() if not isinstance(value, Tensor)}
    module = entry.module(**made | ({"num_samples": BATCH} if "num_samples" in made else {})).to(device)
    steps = torch.arange(BATCH, device=device)
    more = {"indices": steps, "labels_b": steps % 10, "lam": torch.tensor(0.3, device=device)}
    given = {name: more[name] for name in module.inputs}
    return lambda logits, labels: module(logits, labels, **given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="time per eight objectives and number of classes")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    given = parser.parse_args()
    torch.set_num_threads(1)
    entries = {**LOSSES, **PENALTIES}
    objectives: dict[str, Timed] = {name: module_of(entry, device=given.device) for name, entry in entries.items()}
    ratios: dict[int, dict[str, float]] = {}
    base: dict[int, float] = {}
    for c in CLASSES:
        timed = medians({"": F.cross_entropy} | objectives, *draw(c, device=given.device), seconds=given.seconds)
        base[c] = timed[""]
        ratios[c] = {name: timed[name] / timed[""] for name in entries}
    where = torch.cuda.get_device_name() if given.device == "cuda" else "CPU, one thread"
    print(f"Forward and backward, batch {BATCH}, {where}, torch {torch.__version__}: ratio to F.cross_entropy")
    print(f"{'classes':<24}" + "".join(f"{c:>12}" for c in CLASSES))
    print(f"{'cross-entropy itself':<24}" + "".join(f"{1e6 * base[c]:>9.0f} us" for c in CLASSES))
    for name in entries:
        print(f"{name:<24}" + "".join(f"{ratios[c][name]:>12.2f}" for c in CLASSES))
    microseconds = {c: 1e6 * t for c, t in base.items()}
    print(json.dumps({"device": where, "batch": BATCH, "cross_entropy_us": microseconds, "ratio": ratios}))


if __name__ == "__main__":
    main()
