"""Cost of a meta step beside a plain focal step, and of the full look-ahead beside double backward.

    python benchmarks/meta.py                     # small ResNet on the CPU, one thread
    python benchmarks/meta.py --device cuda       # ResNet-18, batch 128, bf16; each step captured once as a CUDA graph
    python benchmarks/meta.py --device cuda --eager

Every figure is a ratio within one run: the variants take turns, and the median over the turns counts. On the CPU it is
processor time, so that what else the machine does weighs on none. Exits with 1 where a limit is missed: at most 1.6 (CPU) and
1.55 (GPU) plain steps for the head look-ahead with an equal meta batch every step; on the GPU also at least 1.5 times the speed
of double backward, and less memory, for the full look-ahead.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from calibrant.backbones import basic, resnet, resnet18
from calibrant.engine.train import capture_step
from calibrant.losses import focal_loss
from calibrant.meta import MetaLearner, hypergradient
from calibrant.meta.step import meta_mode, untracked

LIMIT = {"cpu": 1.6, "cuda": 1.55}
LEAST_SPEEDUP = 1.5


def build(device: str) -> nn.Module:
    torch.manual_seed(0)
    if device == "cuda":
        return resnet18(10).to(device, memory_format=torch.channels_last)
    return resnet(basic, (1, 1, 1), (16, 32, 64), 10)


class Case:
    """One model, its optimizer and fixed batches."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.device, self.model = args.device, build(args.device).train()
        self.amp = torch.bfloat16 if args.amp == "bf16" else None
        # A learning rate of zero keeps the work the same in every turn.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0, momentum=0.9, weight_decay=5e-4)
        g = torch.Generator().manual_seed(0)

        def batch() -> tuple[Tensor, Tensor]:
            images = torch.randn(args.batch, 3, 32, 32, generator=g).to(args.device)
            images = images.to(memory_format=torch.channels_last) if args.device == "cuda" else images
            return images, torch.randint(0, 10, (args.batch,), generator=g).to(args.device)

        (self.x, self.y), (self.x_meta, self.y_meta) = batch(), batch()

    def autocast(self) -> torch.autocast:
        """Context of a forward pass."""
        return torch.autocast(self.device, dtype=self.amp or torch.bfloat16, enabled=self.amp is not None)


def plain(case: Case) -> Callable[[], None]:
    def step() -> None:
        case.optimizer.zero_grad(set_to_none=True)
        with case.autocast():
            logits = case.model(case.x)
        focal_loss(logits, case.y, gamma=1.0).mean().backward()
        case.optimizer.step()

    return step


def meta(case: Case, lookahead: str) -> Callable[[], None]:
    learner = MetaLearner(case.model, case.optimizer, every=1, lookahead=lookahead, amp=case.amp, monitor_every=0)

    def step() -> None:
        learner.step(case.x, case.y, case.x_meta, case.y_meta)

    return step


def double_backward(case: Case) -> Callable[[], None]:
    """The full look-ahead as it is usually written: the virtual step with its graph, differentiated through."""
    learner = MetaLearner(case.model, case.optimizer, every=1, lookahead="full", amp=case.amp, monitor_every=0)
    network, regularizer = learner.network, learner.regularizer

    def inner(params: dict[str, Tensor], hyper: dict[str, Tensor]) -> Tensor:
        seen: list[Tensor] = []
        hook = network.head.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
        with untracked(case.model), case.autocast():
            logits = functional_call(case.model, params, (case.x,))
        hook.remove()
        return regularizer.loss(hyper, seen[0].detach(), logits, case.y, {}).mean()

    def outer(params: dict[str, Tensor]) -> Tensor:
        with meta_mode(case.model, "batch"), case.autocast():
            logits = functional_call(case.model, params, (case.x_meta,))
        return learner.objective(logits.float(), case.y_meta)

    def step() -> None:
        case.optimizer.zero_grad(set_to_none=True)
        found = hypergradient(inner, outer, network.parameters(), learner.hyper, lr=0.1)
        features, logits = learner.forward(case.x)
        learner.move(found.grads)
        learner.loss(features, logits, case.y).backward()
        case.optimizer.step()

    return step


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """Record the step as a CUDA graph, so that the device's time is measured and not Python's."""
    # A learning rate of zero leaves no state that would have to be put back after the warm-up.
    return capture_step(step, state=[])


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def measure(steps: dict[str, Callable[[], None]], args: argparse.Namespace) -> dict[str, list[float]]:
    for step in steps.values():
        for _ in range(args.warmup):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(args.turns):
        for name, step in steps.items():
            start = now(args.device)
            for _ in range(args.repeat):
                step()
            times[name].append((now(args.device) - start) / args.repeat)
    return times


def peak_memory(step: Callable[[], None]) -> float:
    for _ in range(2):
        step()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - base) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--amp", default=None, choices=["bf16", "none"])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--repeat", type=int, default=None, help="steps in one turn")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--eager", action="store_true", help="do not capture CUDA graphs")
    args = parser.parse_args()
    # A fault inside the driver says nothing of where it came from.
    faulthandler.enable()
    args.amp = args.amp or ("bf16" if args.device == "cuda" else "none")
    args.repeat = args.repeat or (10 if args.device == "cuda" else 1)
    if args.device == "cpu":
        torch.set_num_threads(1)
    kinds: dict[str, Callable[[Case], Callable[[], None]]] = {
        "plain focal": plain,
        "head look-ahead": lambda case: meta(case, "head"),
        "full look-ahead": lambda case: meta(case, "full"),
        "double backward": double_backward,
    }
    eager = {name: make(Case(args)) for name, make in kinds.items()}
    peak = {name: peak_memory(step) for name, step in eager.items()} if args.device == "cuda" else {}
    steps = eager if args.eager or args.device == "cpu" else {name: captured(step) for name, step in eager.items()}
    times = measure(steps, args)
    middle = {name: statistics.median(values) for name, values in times.items()}

    def ratio(above: str, below: str) -> float:
        return statistics.median(a / b for a, b in zip(times[above], times[below], strict=True))

    for name, seconds in middle.items():
        print(f"{name:<16} {1e3 * seconds:9.2f} ms  {ratio(name, 'plain focal'):6.2f} x plain focal")
    head, full = ratio("head look-ahead", "plain focal"), ratio("double backward", "full look-ahead")
    missed = [f"head look-ahead {head:.2f} > {LIMIT[args.device]}"] if head > LIMIT[args.device] else []
    print(f"full look-ahead is {full:.2f} times as fast as double backward")
    record: dict[str, object] = {
        "device": args.device,
        "torch": torch.__version__,
        "batch": args.batch,
        "amp": args.amp,
        "captured": steps is not eager,
        "seconds": middle,
        "head_over_plain": head,
        "double_over_full": full,
    }
    if args.device == "cuda":
        record["peak_mib"] = peak
        for name, mib in peak.items():
            print(f"{name:<16} {mib:9.0f} MiB at the peak of a step")
        missed += [f"full look-ahead only {full:.2f} times as fast"] if full < LEAST_SPEEDUP else []
        missed += ["full look-ahead takes more memory"] if peak["full look-ahead"] >= peak["double backward"] else []
    print(json.dumps(record))
    sys.exit(f"missed: {'; '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
