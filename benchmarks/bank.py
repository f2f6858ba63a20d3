"""How well a bank of held-out features stands for fresh ones, as its features age: one JSON line an epoch that is looked at.

    python benchmarks/bank.py --data cifar100 --epochs 30 --set method.options.refresh=256 [--set KEY=VALUE ...]

Trains `flgamma-sece`. At the end of each epoch it takes the objective's value and hypergradient on the next training batch
three ways: with the bank as it is, with all features computed anew, and with 1,024 fresh held-out images, as without a bank.
The line holds the relative difference of the value and the cosine of the hypergradient from those of all fresh features.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from torch import Tensor

from calibrant.engine.recipe import Recipe, override
from calibrant.engine.train import Assembly, run_epoch
from calibrant.meta.step import Batch as Seen
from calibrant.meta.step import HeldOut, head_hypergradient


def look(assembly: Assembly, held_out: HeldOut) -> tuple[float, Tensor]:
    """The objective after the virtual step, and its hypergradient ``[P]``, with these held-out features."""
    objective = assembly.objective
    batch = assembly.batches.next()
    with assembly.hardware.autocast():
        features, logits = assembly.forward(batch.images)
    assembly.batches._cursor -= 1  # All three ways see the same batch.
    found = head_hypergradient(
        objective.regularizer,
        objective.objective,
        objective.hyper,
        head=dict(objective.learner.shown.head.named_parameters()),
        batch=Seen(features.float(), logits.float(), batch.labels),
        meta_features=held_out.features,
        meta_labels=held_out.labels,
        step=objective.settings.virtual_step(assembly.optimizer.param_groups[0]["lr"]),
    )
    return float(found.value), torch.cat([grad.flatten() for grad in found.grads.values()]).double()


def compare(assembly: Assembly) -> dict[str, Any]:
    """One line: the bank after a slice was brought, and a batch of 1,024, beside all fresh features."""
    objective = assembly.objective
    bank = objective._bring(objective.batches.next())
    fresh = HeldOut(*(torch.cat(parts) for parts in zip(*_fresh(assembly), strict=True)))
    some = torch.randperm(len(fresh.labels), device=fresh.labels.device)[:1024]
    ways = {"bank": bank, "fresh_1024": HeldOut(fresh.features[some], fresh.labels[some])}
    value, grad = look(assembly, fresh)
    line: dict[str, Any] = {"value": value, "hypergradient_norm": float(grad.norm())}
    for name, held_out in ways.items():
        other, its_grad = look(assembly, held_out)
        cosine = float(grad @ its_grad / (grad.norm() * its_grad.norm()))
        line |= {f"{name}_value_off": (other - value) / abs(value), f"{name}_cosine": cosine}
    moved = (bank.features - fresh.features).norm(dim=1) / fresh.features.norm(dim=1)
    return line | {"features_moved": float(moved.mean()), "features_moved_most": float(moved.max())}


def _fresh(assembly: Assembly) -> list[HeldOut]:
    objective = assembly.objective
    with torch.no_grad():
        return [HeldOut(objective.features(batch.images), batch.labels) for batch in objective.batches.once()]


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--every-epochs", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    settings = dict(item.split("=", 1) for item in args.set)
    assembly = Assembly(override(Recipe(), {"data.name": args.data, "train.epochs": args.epochs} | settings))
    with assembly.hardware.active():
        for epoch in range(args.epochs):
            run_epoch(assembly, epoch, started=0.0)
            if (epoch + 1) % args.every_epochs == 0:
                print(json.dumps({"epoch": epoch} | compare(assembly)), flush=True)


if __name__ == "__main__":
    main()
