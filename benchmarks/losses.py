"""Time of every objective, forward and backward, as a ratio to cross-entropy; and three published forms for comparison.

    python benchmarks/losses.py [--seconds 2] [--device cpu]

Batch 512, one thread, medians of interleaved runs: each round times every objective once. On the CPU it is processor time,
so that what else the machine does weighs on none. Exits with 1 if an objective exceeds its limit; the limits are meant for
the CPU.

The comparison with published forms transcribes the code released with the papers: torrvision/focal_calibration,
Losses/focal_loss_adaptive_gamma.py and Losses/mmce.py, and IntelLabs/AVUC, src/avuc_loss.py. It is printed at batch 512 and,
where that is not it, at the batch from which on a factor of 10 is promised, with 10 and with 100 classes. With 100 classes and
batch 512 the published FLSD takes 12 times as long as F.cross_entropy alone, which leaves no room for a factor of 10. With
1,000 classes the exponentials, which both forms have to take, outweigh the loop: no factor is promised there.
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
# Batch from which on an objective must be that much faster than its published form, by number of classes.
SPEEDUP_BATCH = {"avuc": {10: 512, 100: 512}, "weighted_mmce": {10: 512, 100: 512}, "flsd": {10: 512, 100: 1024}}

Timed = Callable[[Tensor, Tensor], Tensor]


def draw(num_classes: int, *, batch: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(batch, num_classes, generator=generator)
    labels = torch.randint(num_classes, (batch,), generator=generator)
    right = torch.rand(batch, generator=generator) < 0.7
    labels = torch.where(right, logits.argmax(1), labels)
    return logits.to(device).requires_grad_(), labels.to(device)


def run(objective: Timed, logits: Tensor, labels: Tensor, *, calls: int = 1) -> float:
    """Seconds of one forward and backward pass, on average over ``calls``."""
    if logits.is_cuda:
        torch.cuda.synchronize()
    clock = time.perf_counter if logits.is_cuda else time.process_time
    start = clock()
    for _ in range(calls):
        torch.autograd.grad(objective(logits, labels), logits)
    if logits.is_cuda:
        torch.cuda.synchronize()
    return (clock() - start) / calls


def medians(objectives: Mapping[str, Timed], logits: Tensor, labels: Tensor, *, seconds: float) -> dict[str, float]:
    """Median seconds of one forward and backward pass of each objective, in interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in objectives}
    slow: set[str] = set()
    for name, objective in objectives.items():
        first = run(objective, logits, labels)
        if first > 0.2:
            # Too slow to take part in every round; two runs tell enough.
            slow.add(name)
            times[name] = [first, run(objective, logits, labels)]
    end = time.perf_counter() + seconds * len(objectives) / 8
    while time.perf_counter() < end or any(len(t) < 15 for n, t in times.items() if n not in slow):
        for name, objective in objectives.items():
            if name not in slow:
                times[name].append(run(objective, logits, labels))
    return {name: statistics.median(t) for name, t in times.items()}


def block_medians(objectives: Mapping[str, Timed], logits: Tensor, labels: Tensor, *, seconds: float) -> dict[str, float]:
    """As `medians`, but each round calls an objective again and again for a fortieth of a second.

    Two objectives of very different length would otherwise be compared unequally: the shorter one always finds the caches
    full of the longer one's data, or of what reading the clock of the process brought there, and the longer one hardly
    notices.
    """
    calls = {name: max(1, round(0.025 / run(f, logits, labels, calls=3))) for name, f in objectives.items()}
    times: dict[str, list[float]] = {name: [] for name in objectives}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or any(len(t) < 15 for t in times.values()):
        for name, objective in objectives.items():
            times[name].append(run(objective, logits, labels, calls=calls[name]))
    return {name: statistics.median(t) for name, t in times.items()}


def facade(entry: Entry, *, batch: int, device: str, **hyper: object) -> Timed:
    """The module of an entry as a function of logits and labels."""
    made: dict[str, object] = {**hyper, "num_samples": batch} if "num_samples" in entry.required else dict(hyper)
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
    """FLSD-53 as published: gamma looked up sample by sample in Python, with p still in the graph and the keys sorted anew."""
    log_p = F.log_softmax(logits, dim=1).gather(1, labels.view(-1, 1)).view(-1)
    p = log_p.exp()
    steps = {0.2: 5.0, 0.5: 3.0}
    gammas = []
    for i in range(len(p)):
        number = p[i].item()
        if number >= 0.5:
            gammas.append(3.0)
            continue
        for edge in sorted(steps.keys()):
            if number < edge:
                gammas.append(steps[edge])
                break
    return (-1 * (1 - p) ** torch.tensor(gammas).to(p.device) * log_p).mean()


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
    device = logits.device
    right = torch.where(predicted == labels, torch.ones(len(labels)).to(device), torch.zeros(len(labels)).to(device))
    some, none = torch.tensor(1).to(device), torch.tensor(0).to(device)
    m, n = right.sum().long(), (1 - right).sum().long()
    both = torch.where(m == 0, none, some) * torch.where(n == 0, none, some)
    # If a group is empty the result is masked; two samples then stand for it.
    m = torch.max(m, some) * both + (1 - both) * 2
    n = torch.max(n, some) * both + (1 - both) * (len(labels) - 2)
    sure, _ = torch.topk(confidence * right, int(m))
    unsure, _ = torch.topk(confidence * (1 - right), int(n))

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        rows = a.unsqueeze(1).repeat(1, len(b)).unsqueeze(2)
        columns = b.unsqueeze(1).repeat(1, len(a)).unsqueeze(2).permute(1, 0, 2)
        pairs = torch.cat([rows, columns], 2)
        return torch.exp(-1.0 * (pairs[:, :, 0] - pairs[:, :, 1]).abs() / 0.4)

    def mean(a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
        return (weights * torch.mm(a.unsqueeze(1), b.unsqueeze(0))).mean()

    total = 1 / (m * m + 1e-5) * mean(1 - sure, 1 - sure, kernel(sure, sure))
    total = total + 1 / (n * n + 1e-5) * mean(unsure, unsure, kernel(unsure, unsure))
    total = total - 2 / (m * n + 1e-5) * mean(1 - sure, unsure, kernel(sure, unsure))
    return torch.max(both.float() * torch.sqrt(total + 1e-10), torch.tensor(0.0).to(device))


LITERAL: dict[str, Timed] = {"flsd": literal_flsd, "avuc": literal_avuc, "weighted_mmce": literal_weighted_mmce}
# Hyper-parameters with which ours gives the value of the published form, which is checked before the two are timed.
SAME_AS_PUBLISHED: dict[str, dict[str, object]] = {"weighted_mmce": {"normalization": "official"}}


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


def compare_literal(*, device: str, seconds: float) -> list[str]:
    """Print how much faster three objectives are than their published form; return those below the promised factor."""
    slow = []
    widths = {"literal": 9, "ce": 13, "ours": 9}
    head = f"{'published':>12}{'cross-entropy':>16}{'calibrant':>12}{'faster':>10}"
    print(f"\n{'published forms':<24}{'C':>6}{'batch':>7}{head}   least")
    for name in LITERAL:
        for num_classes in CLASSES:
            least_batch = SPEEDUP_BATCH[name].get(num_classes)
            for batch in sorted({BATCH, least_batch or BATCH}):
                promised = batch == least_batch
                timed = time_literal(name, num_classes, batch=batch, device=device, seconds=seconds)
                factor = timed["literal"] / timed["ours"]
                late = promised and factor < LEAST_SPEEDUP
                slow += [f"{name} against its published form at C = {num_classes}"] if late else []
                cells = "".join(f"{1e3 * timed[key]:>{width}.3f} ms" for key, width in widths.items())
                least = f"{LEAST_SPEEDUP:g} x" if promised else "none"
                print(f"{name:<24}{num_classes:>6}{batch:>7}{cells}{factor:>8.1f} x{'!' if late else ' '}  {least}")
    return slow


def time_literal(name: str, num_classes: int, *, batch: int, device: str, seconds: float) -> dict[str, float]:
    """Seconds of the published form, of ours, which is checked to give the same value, and of cross-entropy."""
    logits, labels = draw(num_classes, batch=batch, device=device)
    entry = {**LOSSES, **PENALTIES}[name]
    ours = facade(entry, batch=batch, device=device, **SAME_AS_PUBLISHED.get(name, {}))
    literal = LITERAL[name]
    torch.testing.assert_close(ours(logits, labels), literal(logits, labels), rtol=1e-4, atol=1e-6)
    return block_medians({"literal": literal, "ours": ours, "ce": F.cross_entropy}, logits, labels, seconds=seconds)


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
    failed += compare_literal(device=device, seconds=seconds)
    microseconds = {c: 1e6 * t for c, t in base.items()}
    print("\n" + json.dumps({"device": where, "batch": BATCH, "cross_entropy_us": microseconds, "ratio": ratios}))
    print("over the limit: " + ", ".join(failed) if failed else "all within their limits")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
