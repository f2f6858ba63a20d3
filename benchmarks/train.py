"""Speed of the training engine: one JSON line a program.

    python benchmarks/train.py --data-root DATA         # a GPU: whole epochs of CIFAR-10 with augmentation and evaluation
    python benchmarks/train.py --device cpu             # single steps, and what they cost beside one of cross-entropy

A program is ``method[/meta batch/every]``, or ``plain``: `flgamma-sece` with a meta batch of 128 every step as it is usually
written (`PlainLoop`), measured in the same run for the ratio. Without ``--data-root`` the images are random bytes of the
same size (the work is the same). With ``--check`` the command fails where a limit is missed: on a GPU images per second, the
time to the first step and that of 350 epochs with an evaluation after each (the limits are for one H200); on the CPU the cost
of a step.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from calibrant.data.image_set import ImageSet
from calibrant.engine.recipe import BackbonePart, DataPart, Recipe, override
from calibrant.engine.run import device_name
from calibrant.engine.setup import build_backbone, choose_hardware, feature_function, find_head
from calibrant.engine.train import Assembly, divide, load_data, run_epoch
from calibrant.losses import sece_penalty
from calibrant.meta import GammaFocal

# Least images per second on one H200, and most seconds.
LEAST_SPEED = {"ce": 45_000, "flgamma-sece": 40_000, "flgamma-sece/128/1": 26_000}
MOST_FIRST, MOST_350_EPOCHS = 40.0, 600.0
# Most steps of cross-entropy that a step may cost on two CPU cores.
MOST_COST = {"flgamma-sece": 1.15}


class Examples(Dataset[tuple[Tensor, int]]):
    """Single examples, normalised, and cropped and mirrored at random if wanted."""

    def __init__(self, data: ImageSet, *, augment: bool) -> None:
        self.images = data.images.permute(0, 3, 1, 2).contiguous()
        self.labels, self.size, self.pad = data.labels.tolist(), data.size, data.pad if augment else 0
        self.flip = data.flip and augment
        self.mean, self.std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        image = self.images[place].float() / 255
        if self.pad:
            top, left = torch.randint(0, 2 * self.pad + 1, (2,)).tolist()
            image = F.pad(image, (self.pad,) * 4)[:, top : top + self.size[0], left : left + self.size[1]]
        if self.flip and torch.rand(()) < 0.5:
            image = image.flip(2)
        return (image - self.mean) / self.std, self.labels[place]


def endless(data: ImageSet, *, batch_size: int, augment: bool, workers: int) -> Iterator[list[Tensor]]:
    """Batches for ever, every pass in a new order."""
    loader = DataLoader(
        Examples(data, augment=augment),
        batch_size=min(batch_size, len(data)),
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=workers > 0,
    )
    while True:
        yield from loader


class PlainLoop:
    """FL_gamma with SECE as a training loop is usually written, a meta update before each step.

    Eager float32; batches are augmented by the workers of a `DataLoader` and copied to the device in every step; the look-ahead
    step of the head is differentiated through by autograd (double backward); the network's own step runs the forward pass again
    with the new hyper-parameters; the loss is read in every step.
    """

    def __init__(
        self, model: nn.Module, train: ImageSet, meta: ImageSet, *, batch_size: int, meta_batch_size: int, workers: int
    ) -> None:
        self.model, self.device = model, next(model.parameters()).device
        self.forward, self.head = feature_function(model), find_head(model)[1]
        self.loss = GammaFocal()
        start = self.loss.init(self.head.in_features, self.head.out_features)
        self.hyper = {name: nn.Parameter(value.to(self.device)) for name, value in start.items()}
        self.adam = torch.optim.Adam(self.hyper.values(), lr=6e-5, betas=(0.5, 0.9), eps=1e-12)
        self.sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        self.batches = endless(train, batch_size=batch_size, augment=True, workers=workers)
        self.meta_batches = endless(meta, batch_size=meta_batch_size, augment=False, workers=workers)
        self.seen = 0.0

    def step(self) -> None:
        """One meta update and one step of the network."""
        x, y, x_meta, y_meta = (value.to(self.device) for value in (*next(self.batches), *next(self.meta_batches)))
        features, logits = self.forward(x)
        head = dict(self.head.named_parameters())
        inner = self.loss.loss(self.hyper, features, logits, y, head).mean()
        grads = torch.autograd.grad(inner, list(head.values()), create_graph=True)
        weight, bias = (value - 0.1 * grad for value, grad in zip(head.values(), grads, strict=True))
        outer = sece_penalty(F.linear(self.forward(x_meta)[0], weight, bias), y_meta)
        self.adam.zero_grad()
        outer.backward()
        self.adam.step()
        self.sgd.zero_grad()
        features, logits = self.forward(x)
        loss = self.loss.loss(self.hyper, features, logits, y, head).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
        self.sgd.step()
        self.seen += loss.item()


class Program(NamedTuple):
    """Something to be timed.

    Attributes:
        name: As asked for.
        first_step: Seconds from nothing to the end of the first step.
        steps: Takes that many steps and waits for them.
        assembly: The engine's run, or None for the plain loop.
    """

    name: str
    first_step: float
    steps: Callable[[int], None]
    assembly: Assembly | None


def random_images(folder: Path, args: argparse.Namespace) -> str:
    """Write bytes in the form of CIFAR-10; a fifth more than the examples, for validation and meta parts, and a test part."""
    draw = np.random.default_rng(0)
    counts = {"": args.examples * 5 // 4, "test_": args.examples // 4}
    arrays = {f"{part}images": draw.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for part, n in counts.items()}
    labels = {f"{part}labels": np.arange(n) % 10 for part, n in counts.items()}
    np.savez(folder / "random.npz", **arrays, **labels)
    return str(folder / "random.npz")


def recipe_of(name: str, args: argparse.Namespace) -> Recipe:
    method, *meta = name.split("/")
    data = {"data.name": args.data, "data.flip": True, "data.val": args.examples // 8, "data.meta": args.examples // 8}
    options = dict(zip(("method.options.meta_batch_size", "method.options.every"), meta, strict=False))
    # A few epochs would average over few steps, and renew all held-out features as often; 350 epochs average over 1,000.
    options |= {"train.average_decay": 0.999}
    train = {f"train.{key}": getattr(args, key) for key in ("device", "precision", "compile", "graph", "batch_size")}
    settings = data | options | train | {"backbone.name": args.model, "train.epochs": max(2, args.epochs)}
    # All programs train on the same examples.
    return override(Recipe(), settings | {"method.name": method, "data.root": args.data_root})


def build(name: str, args: argparse.Namespace) -> Program:
    """Make a program ready and take its first step."""
    begun = time.perf_counter()
    if name == "plain":
        loop = plain_loop(args)
        loop.step()
        return Program(name, time.perf_counter() - begun, lambda n: [loop.step() for _ in range(n)] and None, None)
    assembly = Assembly(recipe_of(name, args))

    def steps(n: int) -> None:
        for place in range(n):
            assembly.take(with_meta=place % assembly.objective.every == 0)
        float(assembly.loss_sum)

    with assembly.hardware.active():
        steps(1)
    return Program(name, time.perf_counter() - begun, steps, assembly)


def plain_loop(args: argparse.Namespace) -> PlainLoop:
    part = DataPart(name=args.data, root=args.data_root, val=args.examples // 8, meta=args.examples // 8)
    data = divide(load_data(part), Recipe(data=part))
    torch.manual_seed(0)
    model = (
        build_backbone(BackbonePart(name=args.model), data.train, seed=0).to(choose_hardware(device=args.device).device).train()
    )
    return PlainLoop(model, data.train, data.meta, batch_size=args.batch_size, meta_batch_size=128, workers=args.workers)


def time_epochs(name: str, args: argparse.Namespace) -> dict[str, object]:
    """Whole epochs with an evaluation of validation and test sets after each; of the plain loop, so many steps."""
    program = build(name, args)
    line: dict[str, object] = {"program": name, "first_step_seconds": round(program.first_step, 1)}
    if program.assembly is None:
        program.steps(min(10, args.plain_steps))
        begun = time.perf_counter()
        program.steps(args.plain_steps)
        return line | {"images_per_second": args.plain_steps * args.batch_size / (time.perf_counter() - begun)}
    assembly = program.assembly
    speeds, seconds = [], []
    with assembly.hardware.active():
        for epoch in range(args.epochs):
            begun = time.perf_counter()
            record = run_epoch(assembly, epoch, started=0.0)
            seconds.append(time.perf_counter() - begun)
            speeds.append(record.images_per_second)
    whole = program.first_step + 350 * statistics.median(seconds)
    line |= {"images_per_second": statistics.median(speeds), "epoch_seconds": round(statistics.median(seconds), 3)}
    return line | {"seconds_for_350_epochs": round(whole), "val_error": record.val_error, "loss": record.train_loss}


def time_steps(names: Sequence[str], args: argparse.Namespace) -> list[dict[str, object]]:
    """Single steps in turns, by processor time, so that what else the machine does weighs on none."""
    programs = [build(name, args) for name in names]
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(args.turns):
        for program in programs:
            begun = time.process_time()
            # Eight, so that one with a meta update every eighth step has its share.
            program.steps(8)
            times[program.name].append((time.process_time() - begun) / 8)
    lines = []
    for program in programs:
        line: dict[str, object] = {"program": program.name, "first_step_seconds": round(program.first_step, 1)}
        line["processor_seconds_per_step"] = round(statistics.median(times[program.name]), 4)
        if "ce" in times:
            costs = [own / ce for own, ce in zip(times[program.name], times["ce"], strict=True)]
            line["steps_of_ce"] = round(statistics.median(costs), 3)
        lines.append(line)
    return lines


def missed(line: dict[str, object]) -> list[str]:
    """Limits that a line does not keep."""
    name, found = str(line["program"]), []
    if name in LEAST_SPEED and float(line.get("images_per_second", 1e9)) < LEAST_SPEED[name]:
        found.append(f"{name}: {line['images_per_second']} < {LEAST_SPEED[name]} images/s")
    if name != "plain" and "seconds_for_350_epochs" in line:
        for key, most in (("first_step_seconds", MOST_FIRST), ("seconds_for_350_epochs", MOST_350_EPOCHS)):
            found += [f"{name}: {key} {line[key]} > {most}"] if float(line[key]) > most else []
    if name in MOST_COST and float(line.get("steps_of_ce", 0.0)) > MOST_COST[name]:
        found.append(f"{name}: {line['steps_of_ce']} > {MOST_COST[name]} steps of ce")
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", help="where CIFAR-10 lies; random bytes if not given")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--compile", default=None, help="yes, no or auto; yes on a GPU")
    parser.add_argument("--graph", default="auto")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--examples", type=int, default=40_000, help="training examples, where they are random")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--turns", type=int, default=5, help="of eight steps each, on the CPU")
    parser.add_argument("--plain-steps", type=int, default=150, help="steps of the plain loop on a GPU")
    parser.add_argument("--workers", type=int, default=None, help="of the plain loop's loaders; 4 on a GPU")
    parser.add_argument("--programs", help="with commas between them")
    parser.add_argument("--whole-epochs", action="store_true", help="time whole epochs on the CPU too")
    parser.add_argument("--check", action="store_true", help="fail where a limit is missed")
    args = parser.parse_args(arguments)
    args.cuda = choose_hardware(device=args.device).device.type == "cuda"
    args.compile = args.compile or ("yes" if args.cuda else "no")
    args.workers = (4 if args.cuda else 0) if args.workers is None else args.workers
    usual = "plain,ce,flgamma-sece/128/1,flgamma-sece" if args.cuda else "ce,flgamma-sece"
    args.programs = (args.programs or usual).split(",")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    args = parse(arguments)
    device = device_name(choose_hardware(device=args.device).device)
    facts = {"model": args.model, "batch_size": args.batch_size, "device": device, "torch": torch.__version__}
    wrong: list[str] = []
    speeds: dict[str, float] = {}

    def report(line: dict[str, object]) -> None:
        speed = line.get("images_per_second")
        if isinstance(speed, float):
            speeds[str(line["program"])] = speed
            line["images_per_second"] = round(speed)
            if "plain" in speeds:
                line["times_plain"] = round(speed / speeds["plain"], 2)
        wrong.extend(missed(line))
        print(json.dumps(line | facts | {"data": "cifar10" if args.data_root else "random"}), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        args.data = "cifar10" if args.data_root else random_images(Path(folder), args)
        if args.cuda or args.whole_epochs:
            for name in args.programs:
                report(time_epochs(name, args))
                gc.collect()
                torch.compiler.reset()
        else:
            for line in time_steps(args.programs, args):
                report(line)
    for sentence in wrong:
        print(f"missed: {sentence}", file=sys.stderr)
    return 1 if wrong and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
