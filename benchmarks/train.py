"""Speed of the training engine: images per second over whole epochs, one JSON line a program.

    python benchmarks/train.py [--root DATA] [--device cuda] [--epochs 3] [--methods ce,flgamma-sece/128/1,flgamma-sece/1024/4]

A method is ``name[/meta batch/every]``. Data are CIFAR-10 if ``--root`` holds it, else random bytes of the same size (the work
is the same).
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch.optim import Adam

from calibrant.backbones import BACKBONES
from calibrant.data.cifar import load_cifar10
from calibrant.data.image_set import ImageSet
from calibrant.engine.batches import MetaBatches, TrainBatches
from calibrant.engine.features import feature_function, find_head
from calibrant.engine.hardware import choose_hardware
from calibrant.engine.meta_objective import MetaObjective
from calibrant.engine.objectives import LossObjective
from calibrant.engine.optim import build_optimizer
from calibrant.engine.step import TrainStep, steppers
from calibrant.losses import CrossEntropyLoss
from calibrant.losses.sece import sece_penalty
from calibrant.meta.regularizers import GammaFocal
from calibrant.meta.virtual import VirtualStep


def random_set(n: int) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 32, 32, 3), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (n,), generator=generator)
    return ImageSet(images, labels, 10, (0.5,) * 3, (0.25,) * 3, pad=4, flip=True)


def build(name: str, train: ImageSet, meta: ImageSet, args: argparse.Namespace):
    hardware = choose_hardware(device=args.device, compiled=args.compile, precision=args.precision)
    torch.manual_seed(0)
    model = BACKBONES[args.model](10).to(hardware.device, memory_format=torch.channels_last).train()
    forward = feature_function(model)
    if hardware.compiled:
        forward = torch.compile(forward)
    batches = TrainBatches(train, batch_size=args.batch, device=hardware.device, seed=0)
    method, _, rest = name.partition("/")
    every = 1
    if method == "ce":
        objective = LossObjective(CrossEntropyLoss(reduction="sum"))
    else:
        size, every = (int(v) for v in rest.split("/"))
        _, head = find_head(model)
        regularizer = GammaFocal()
        hyper = {k: v.to(hardware.device) for k, v in regularizer.init(head.in_features, 10).items()}
        steps = -(-batches.steps_per_epoch // every)
        objective = MetaObjective(
            regularizer,
            lambda z, y: sece_penalty(z, y, bandwidth=0.05, accuracy="hard"),
            hyper=hyper,
            head=head,
            model=model,
            forward=forward,
            batches=MetaBatches(meta, batch_size=size, steps_per_epoch=steps, device=hardware.device, seed=0),
            step=VirtualStep(lr=0.1, reduction="mean"),
            optimizer=lambda p: Adam(p, lr=6e-5, betas=(0.5, 0.9), eps=1e-12, capturable=hardware.device.type == "cuda"),
            reduction="sum",
            precision=hardware.precision,
        )
    optimizer = build_optimizer(model.parameters())
    step = TrainStep(
        model=model,
        forward=forward,
        batches=batches,
        objective=objective,
        optimizer=optimizer,
        precision=hardware.precision,
        clip_norm=2.0,
    )
    return step, steppers(step, capture=hardware.captured and not args.eager), every


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--compile", default="yes")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--examples", type=int, default=40_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--methods", default="ce,flgamma-sece/128/1,flgamma-sece/1024/4")
    args = parser.parse_args()
    if args.root:
        data = load_cifar10(args.root).train
        train, meta = data.pick(range(args.examples)), data.pick(range(45_000, 50_000))
    else:
        train, meta = random_set(args.examples), random_set(5000)
    for name in args.methods.split(","):
        begun = time.perf_counter()
        step, (plain, with_meta), every = build(name, train, meta, args)
        plain()
        float(step.loss_sum)
        first = time.perf_counter() - begun
        speeds = []
        for epoch in range(args.epochs):
            begun = time.perf_counter()
            step.batches.begin_epoch(epoch)
            if step.objective.has_meta:
                step.objective.begin_epoch(epoch)
            step.loss_sum.zero_()
            for place in range(step.batches.steps_per_epoch):
                (with_meta if place % every == 0 else plain)()
            loss = float(step.loss_sum)
            speeds.append(step.batches.steps_per_epoch * args.batch / (time.perf_counter() - begun))
        line = {
            "method": name,
            "model": args.model,
            "images_per_second": round(sorted(speeds)[len(speeds) // 2]),
            "first_step_seconds": round(first, 1),
            "loss": loss / (step.batches.steps_per_epoch * args.batch),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "torch": torch.__version__,
        }
        print(json.dumps(line), flush=True)
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
