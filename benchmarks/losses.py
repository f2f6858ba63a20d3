"""Time of every objective, forward and backward, as a ratio to cross-entropy; and three published forms for comparison.

    python benchmarks/losses.py [--seconds 2] [--device cpu]

Batch 512, one thread, medians of interleaved runs: each round times every objective once. On the CPU it is processor time,
so that what else the machine does weighs on none. Exits with 1 if an objective exceeds its limit; the limits are meant for
the CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses import LOSSES, PENALTIES, Entry, Objective

BATCH = 512
CLASSES = (10, 100, 1000)
# Largest allowed ratio to cross-entropy, by number of classes.
LOSS_LIMIT = {10: 6.0, 1000: 4.0}
DUAL_LIMIT = {10: 10.0, 1000: 4.0}
PENALTY_LIMIT = {100: 15.0}
KERNEL_LIMIT = {100: 25.0}
# A sum over pairs of classes: quadratic in C by definition.
UNLIMITED = {"cpc"}
LEAST_SPEEDUP = 10.0

Timed = Callable[[Tensor, Tensor], Tensor]


def draw(num_classes: int, *, batch: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(batch, num_classes, generator=generator)
    labels = torch.randint(num_classes, (batch,), generator=generator)
    right = torch.rand(batch, generator=generator) < 0.7
    labels = torch.where(right, logits.argmax(1), labels)
    return logits.to(device).requires_grad_(), labels.to(device)


def run_once(objective: Timed, logits: Tensor, labels: Tensor) -> float:
    if logits.is_cuda:
        torch.cuda.synchronize()
        start = time.perf_counter()
        torch.autograd.grad(objective(logits, labels), logits)
        torch.cuda.synchronize()
        return time.perf_counter() - start
    start = time.process_time()
    torch.autograd.grad(objective(logits, labels), logits)
    return time.process_time() - start


def medians(objectives: Mapping[str, Timed], logits: Tensor, labels: Tensor, *, seconds: float) -> dict[str, float]:
    """Median seconds of one forward and backward pass of each objective, in interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in objectives}
    slow: set[str] = set()
    for name, objective in objectives.items():
        first = run_once(objective, logits, labels)
        if first > 0.2:
            # Too slow to take part in every round; two runs tell enough.
            slow.add(name)
            times[name] = [first, run_once(objective, logits, labels)]
    end = time.perf_counter() + seconds * len(objectives) / 8
    while time.perf_counter() < end or any(len(t) < 15 for n, t in times.items() if n not in slow):
        for name, objective in objectives.items():
            if name not in slow:
                times[name].append(run_once(objective, logits, labels))
    return {name: statistics.median(t) for name, t in times.items()}


def facade(entry: Entry, *, batch: int, device: str) -> Timed:
    """The module of an entry as a function of logits and labels."""
    made: dict[str, object] = {"num_samples": batch} if "num_samples" in entry.required else {}
    made |= {k: v for k, v in entry.required.items() if isinstance(v, float)}
    module: Objective = entry.module(**made).to(device)
    steps = torch.arange(batch, device=device)
    more = {"indices": steps, "labels_b": steps % 10, "lam": torch.tensor(0.3, device=device)}
    given = {name: more[name] for name in module.inputs}

    def call(logits: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = module(logits, labels, **given)
        return value

    return call


def literal_flsd(logits: Tensor, labels: Tensor) -> Tensor:
    """FLSD-53 as published: gamma looked up sample by sample in Python."""
    log_p = F.log_softmax(logits, 1).gather(1, labels.unsqueeze(1)).squeeze(1)
    p = log_p.exp()
    steps = {0.2: 5.0, 0.5: 3.0}
    gammas = []
    for i in range(len(p)):
        number = p[i].item()
        gammas.append(next((steps[edge] for edge in sorted(steps) if number < edge), 3.0))
    return -((1 - p) ** torch.tensor(gammas, device=p.device) * log_p).mean()


def literal_avuc(logits: Tensor, labels: Tensor) -> Tensor:
    """AvUC as published: four counts, added up sample by sample in Python (threshold 1, beta 3)."""
    probs = logits.softmax(1)
    confidence, predicted = probs.max(1)
    entropy = -(probs * (probs + 1e-10).log()).sum(1)
    counts = {key: logits.new_zeros(()) for key in ("ac", "au", "ic", "iu")}
    for i in range(len(labels)):
        right = labels[i].item() == predicted[i].item()
        certain = entropy[i].item() <= 1.0
        doubt = torch.tanh(entropy[i])
        if right and certain:
            counts["ac"] = counts["ac"] + confidence[i] * (1 - doubt)
        elif right:
            counts["au"] = counts["au"] + confidence[i] * doubt
        elif certain:
            counts["ic"] = counts["ic"] + (1 - confidence[i]) * (1 - doubt)
        else:
            counts["iu"] = counts["iu"] + (1 - confidence[i]) * doubt
    useful = counts["ac"] + counts["iu"]
    return -3 * torch.log(useful / (useful + counts["au"] + counts["ic"] + 1e-10) + 1e-10)


def literal_weighted_mmce(logits: Tensor, labels: Tensor) -> Tensor:
    """Weighted MMCE as published: three kernel matrices over all pairs, built from stacked copies of the confidences."""
    confidence, predicted = logits.softmax(1).max(1)
    right = predicted == labels
    sure, unsure = confidence[right], confidence[~right]

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        rows = a.reshape(-1, 1, 1).repeat(1, len(b), 1)
        columns = b.reshape(1, -1, 1).repeat(len(a), 1, 1)
        pairs = torch.cat([rows, columns], 2)
        return torch.exp(-(pairs[..., 0] - pairs[..., 1]).abs() / 0.4)

    def mean(a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
        outer = a.unsqueeze(1).repeat(1, len(b)) * b.unsqueeze(0).repeat(len(a), 1)
        return (outer * weights).mean()

    total = mean(unsure, unsure, kernel(unsure, unsure)) + mean(1 - sure, 1 - sure, kernel(sure, sure))
    return torch.sqrt(total - 2 * mean(1 - sure, unsure, kernel(sure, unsure)) + 1e-10)


LITERAL: dict[str, Timed] = {"flsd": literal_flsd, "avuc": literal_avuc, "weighted_mmce": literal_weighted_mmce}


def limits_of(name: str, entry: Entry) -> dict[int, float]:
    if name in UNLIMITED:
        return {}
    if name in LOSSES:
        return DUAL_LIMIT if name == "dual_focal" else LOSS_LIMIT
    return KERNEL_LIMIT if entry.kernel else PENALTY_LIMIT


def print_ratios(title: str, table: Mapping[str, Entry], ratios: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Print one table of ratios and return the names of those over their limit."""
    over = []
    print(f"\n{title:<24}" + "".join(f"{f'C = {c}':>12}" for c in CLASSES) + "   limit")
    for name, entry in table.items():
        limits = limits_of(name, entry)
        cells = []
        for c in CLASSES:
            late = ratios[c][name] > limits.get(c, float("inf"))
            over += [f"{name} at C = {c}"] if late else []
            cells.append(f"{ratios[c][name]:>11.2f}{'!' if late else ' '}")
        print(f"{name:<24}" + "".join(cells) + "   " + ", ".join(f"< {v:g} at {c}" for c, v in limits.items()))
    return over


def compare_literal(*, batch: int, device: str, seconds: float, enforce: bool) -> list[str]:
    """Print how much faster three objectives are than their published form; return those below the promised factor."""
    table = {**LOSSES, **PENALTIES}
    logits, labels = draw(10, batch=batch, device=device)
    slow = []
    print(f"\n{f'batch {batch}, C = 10':<24}{'published':>12}{'calibrant':>12}{'faster':>10}")
    for name, literal in LITERAL.items():
        pair: dict[str, Timed] = {"literal": literal, "ours": facade(table[name], batch=batch, device=device)}
        timed = medians(pair, logits, labels, seconds=seconds)
        factor = timed["literal"] / timed["ours"]
        late = enforce and factor < LEAST_SPEEDUP
        slow += [f"{name} against its published form"] if late else []
        print(f"{name:<24}{1e3 * timed['literal']:>9.3f} ms{1e3 * timed['ours']:>9.3f} ms{factor:>8.1f} x{'!' if late else ''}")
    return slow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="time per eight objectives and number of classes")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    given = parser.parse_args()
    seconds, device = float(given.seconds), str(given.device)
    torch.set_num_threads(1)
    table = {**LOSSES, **PENALTIES}
    ratios: dict[int, dict[str, float]] = {}
    base: dict[int, float] = {}
    for c in CLASSES:
        logits, labels = draw(c, batch=BATCH, device=device)
        objectives: dict[str, Timed] = {"": F.cross_entropy}
        objectives |= {name: facade(entry, batch=BATCH, device=device) for name, entry in table.items()}
        timed = medians(objectives, logits, labels, seconds=seconds)
        base[c] = timed[""]
        ratios[c] = {name: timed[name] / timed[""] for name in table}
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU, one thread"
    print(f"Forward and backward, batch {BATCH}, {where}, torch {torch.__version__}: ratio to F.cross_entropy")
    print(f"{'cross-entropy itself':<24}" + "".join(f"{1e6 * base[c]:>9.0f} us" for c in CLASSES))
    failed = print_ratios("per-sample losses", LOSSES, ratios) + print_ratios("batch penalties", PENALTIES, ratios)
    cheaper = ", ".join(f"{ratios[c]['sece'] / ratios[c]['dece']:.2f} at C = {c}" for c in CLASSES)
    print(f"\nSECE takes this multiple of DECE's time: {cheaper}")
    # Fixed costs of some twenty small kernels rule at 512 on a CPU; the promise is for the larger batch.
    compare_literal(batch=BATCH, device=device, seconds=seconds, enforce=False)
    failed += compare_literal(batch=4 * BATCH, device=device, seconds=seconds, enforce=True)
    print("\n" + json.dumps({"device": where, "batch": BATCH, "cross_entropy_us": base, "ratio": ratios}))
    print("over the limit: " + ", ".join(failed) if failed else "all within their limits")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
