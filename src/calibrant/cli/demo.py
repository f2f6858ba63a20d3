"""``calibrant demo``: four ways to train one small network, compared; or predictions of known true error, measured."""

from __future__ import annotations

import shlex
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from calibrant.cli.measure import Request, measure_file, show_scores
from calibrant.cli.terminal import Terminal, fit_table, progress_bar, show_prose
from calibrant.core.records import Predictions
from calibrant.data import load_mixture
from calibrant.data.synthetic import synthetic_predictions
from calibrant.engine.recipe import BackbonePart, DataPart, MethodPart, OptimPart, Recipe, TrainPart
from calibrant.engine.train import train, with_temperature
from calibrant.io import save_predictions
from calibrant.metrics import METRICS, reliability_bins
from calibrant.metrics.verdict import write_interval, write_value

_EXAMPLES = 10_000
_TEMPERATURES = {"day": 1.6, "night": 3.2}
TRAINED = {"ce": "cross-entropy", "focal": "focal loss, gamma 1", "flgamma-sece": "gamma-Net + SECE"}
# In the order of the tables, with names for narrow columns.
_SHORT = {
    "cross-entropy": "cross-entropy",
    "cross-entropy + temperature": "+ temperature",
    "focal loss, gamma 1": "focal loss",
    "gamma-Net + SECE": "gamma-Net",
}
# What is shown of each method: score, scale and form.
_PERCENT = "{:.1f} ± {:.1f}%"
_COLUMNS = {"error": (100, _PERCENT), "nll": (1, "{:.3f} ± {:.3f}"), "ece": (100, _PERCENT), "gap": (100, _PERCENT)}
_NEXT = ("train --data digits --model convnet --epochs 30 --out runs/first", "measure runs/first/test.npz", "--help")


def run_demo(*, only_measure: bool, seeds: int | None, epochs: int | None, out: Path | None, seed: int | None) -> None:
    """Run one of the two demos; arguments as those of the command."""
    if only_measure and (seeds or epochs) or not only_measure and (out or seed is not None):
        raise ValueError("demo: `--out` and `--seed` must be given with `--measure`, `--seeds` and `--epochs` without it.")
    if only_measure:
        run_measure_demo(Path(tempfile.mkdtemp(prefix="calibrant-")) if out is None else out, seed=seed or 0)
    else:
        run_training_demo(seeds=seeds or 3, epochs=epochs or 60)


def run_training_demo(*, seeds: int, epochs: int) -> None:
    """Train every method from ``seeds`` seeds for ``epochs`` epochs, repair one of them, and compare."""
    console = Terminal()
    test = load_mixture().test
    assert test.posterior is not None
    least = 1 - float(test.posterior.amax(1).mean())
    show_prose(
        console,
        f"A small network learns to tell {test.num_classes} classes of noisy images apart. The classes overlap and their true "
        f"probabilities are known: the best possible error is {least:.1%}. Each method trains {seeds} networks from different "
        f"seeds for {epochs} epochs; gamma-Net learns on held-out data how strongly to focus the loss on every example.",
    )
    begun = time.monotonic()
    tested: dict[str, list[Predictions]] = {name: [] for name in _SHORT}
    with progress_bar("training", float(seeds * len(TRAINED) * epochs)) as advance:
        for seed in range(seeds):
            for method, name in TRAINED.items():
                run = train(demo_recipe(method, seed=seed, epochs=epochs), report=lambda record: advance(1))
                tested[name].append(run.test)
                if method == "ce":
                    tested["cross-entropy + temperature"].append(with_temperature(run).test)
    found = {name: [score(run, test.posterior) for run in runs] for name, runs in tested.items()}
    console.print()
    console.print(comparison(found, width=console.width))
    show_prose(
        console,
        f"Mean ± standard deviation over {seeds} seed{'s' * (seeds > 1)}, {len(test):,} test examples, "
        f"{time.monotonic() - begun:.0f} s. ECE is how far confidence and accuracy lie apart among examples of like "
        "confidence; the true gap is how far each confidence lies from its true probability, which real data never tell.",
        style="dim",
    )
    console.print()
    console.print(right_by_confidence(tested, width=console.width))
    console.print()
    plain, repaired, _, learned = (statistics.mean(run["ece"] for run in found[name]) for name in _SHORT)
    show_prose(
        console,
        f"Trained with cross-entropy the network misjudges its own certainty by {plain:.1%}; repaired afterwards by one "
        f"temperature, by {repaired:.1%}; trained with gamma-Net, by {learned:.1%} without any repair.",
        style="bold",
    )
    commands = "\n".join(f"  calibrant {line}" for line in _NEXT)
    console.print(f"\nNext, on real images and on predictions of your own:\n\n{commands}\n", soft_wrap=True)


def demo_recipe(method: str, *, seed: int, epochs: int) -> Recipe:
    """The demo's setting: a perceptron long enough on 1,200 images to become over-confident."""
    return Recipe(
        seed=seed,
        # Temperature and gamma are learned from 400 examples each: with 200 both are off by two per cent or more.
        data=DataPart(name="mixture", val=400, meta=400),
        backbone=BackbonePart(name="mlp"),
        method=MethodPart(name=method),
        # The same for all methods, so that nothing else sets them apart.
        train=TrainPart(
            epochs=epochs, batch_size=50, reduction="mean", clip_norm=0.0, average="no", select="last", device="cpu"
        ),
        optim=OptimPart(lr=0.05, weight_decay=5e-3),
    )


def score(predictions: Predictions, posterior: Tensor) -> dict[str, float]:
    """Test error, NLL and ECE, and the mean distance of the confidence from the true probability of being right."""
    probs, labels = predictions.probs, predictions.labels
    confidence, predicted = probs.double().max(1)
    truth = posterior.gather(1, predicted.unsqueeze(1)).squeeze(1)
    found = {key: float(METRICS[key](probs, labels)) for key in ("error", "nll", "ece")}
    return found | {"gap": float((confidence - truth).abs().mean())}


def comparison(found: Mapping[str, Sequence[Mapping[str, float]]], *, width: int) -> Table:
    """The methods side by side, mean ± standard deviation over seeds, the best of each column in bold."""
    rows: list[list[str | Text]] = [[name] for name in found]
    for key, (scale, form) in _COLUMNS.items():
        values = [[scale * run[key] for run in runs] for runs in found.values()]
        best = min(map(statistics.mean, values))
        for row, runs in zip(rows, values, strict=True):
            mean, spread = statistics.mean(runs), statistics.stdev(runs) if len(runs) > 1 else 0.0
            row.append(Text(form.format(mean, spread), style="bold" if mean == best else ""))
    return fit_table(("Method", "Error", "NLL", "ECE", "True gap"), rows, width=width, drop=(2, 4))


def right_by_confidence(tested: dict[str, list[Predictions]], *, width: int) -> Table:
    """How often predictions of a confidence are right, for every method; those of all seeds together."""
    bins = {
        name: reliability_bins(torch.cat([run.probs for run in runs]), torch.cat([run.labels for run in runs]), n_bins=10)
        for name, runs in tested.items()
    }
    # Below 50 % there are few.
    rows = [
        [f"{10 * k} – {10 * k + 10}% sure"]
        + [f"{100 * float(part.accuracy[k]):.0f}%" if part.count[k] else "–" for part in bins.values()]
        for k in range(5, 10)
    ]
    return fit_table(("How often right when", *(_SHORT[name] for name in bins)), rows, width=width, drop=(3, 2))


def run_measure_demo(folder: Path, *, seed: int) -> None:
    """Make predictions, write them to a file in ``folder``, measure it and compare with the truth."""
    console = Terminal()
    day, night = _TEMPERATURES.values()
    show_prose(
        console,
        f"A synthetic classifier of 10 classes makes {_EXAMPLES:,} predictions, half by day and half by night. Its logits are "
        f"{day} times too large by day and {night} times by night, so its true calibration error is known.",
    )
    half = _EXAMPLES // 2
    parts = [synthetic_predictions(half, temperature=t, seed=2 * seed + k) for k, t in enumerate((day, night))]
    predictions = Predictions(
        logits=torch.cat([part.logits for part, _ in parts]),
        labels=torch.cat([part.labels for part, _ in parts]),
        split="test",
        columns={"light": np.repeat(list(_TEMPERATURES), half)},
    )
    # Over-confident by day and by night: errors do not cancel, and the truth of the whole is the mean of the parts'.
    truth = statistics.mean(truth for _, truth in parts)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "demo.npz"
    save_predictions(predictions, path)
    measured = measure_file(path, Request(by_class=True, slice_by=["light"], seed=seed))
    show_scores(measured, all_classes=False, console=console)
    ece = measured.scores["ece"]
    found = "holds it" if ece.low <= truth <= ece.high else "misses it, as one in twenty does"
    show_prose(
        console,
        f"Measured {write_value(ece.value, '%')}, true {write_value(truth, '%')}: the 95% interval "
        f"{write_interval(ece, '%')}% {found}.",
        style="bold",
    )
    command = f"calibrant measure {shlex.quote(str(path))} --slice light"
    console.print(f"\nThe predictions are in {path}. Look at them again, or at your own, with\n\n  {command}\n", soft_wrap=True)
