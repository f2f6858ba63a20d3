"""``calibrant train``: a recipe and options in, a run folder out, with a line for every epoch on the way.

Also ``calibrant predict``: a run and new images in, predictions out; and ``calibrant demo``: four ways to train one small
network, compared, or predictions of known true error, measured.
"""

from __future__ import annotations

import shlex
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
import typer
from rich.table import Table
from rich.text import Text
from torch import Tensor

from calibrant.cli.measure import Request, measure_file, show_scores
from calibrant.cli.terminal import Terminal, check_destination, fit_table, make_bar, progress_bar, say, show_prose
from calibrant.core.records import Predictions
from calibrant.data import load_mixture
from calibrant.data.synthetic import CORRUPTIONS, SEVERITIES, synthetic_predictions
from calibrant.engine.methods import run_name
from calibrant.engine.recipe import NEUTRAL, Recipe, load_recipe, override
from calibrant.engine.run import EpochRecord, Run, epoch_scores, load_run
from calibrant.engine.setup import launched_group
from calibrant.engine.train import train, with_temperature
from calibrant.io.predictions import FORMATS, save_logits, save_predictions
from calibrant.metrics import reliability_bins
from calibrant.metrics.verdict import write_interval, write_value

# Images whose predictions are printed.
_SHOWN = 20
_REASON = {
    "error": "lowest validation error",
    "nll": "lowest validation NLL",
    "error+nll": "lowest validation NLL near the lowest error",
    "error+ece": "lowest validation ECE near the lowest error",
    "last": "the last",
}
# Of the demo: predictions that it makes, its methods, and these in the order of its tables, with names for narrow columns.
_EXAMPLES = 10_000
_TEMPERATURES = {"day": 1.6, "night": 3.2}
TRAINED = {"ce": "cross-entropy", "focal": "focal loss, gamma 1", "flgamma-sece": "gamma-Net + SECE"}
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


def train_model(
    recipe: Path | None, *, options: Mapping[str, object], settings: Sequence[str] | None, out: Path | None, resume: bool
) -> None:
    """Train by a recipe file, or the defaults, with options on top; show progress and say what came of it."""
    if recipe is None and resume and out is not None and (out / "recipe.toml").exists():
        recipe = out / "recipe.toml"
    changes = merge_settings(options, settings or [])
    whole = override(Recipe() if recipe is None else load_recipe(recipe), changes)
    folder = Path("runs", run_name(whole)) if out is None else out
    if resume and recipe is None and changes.keys() <= NEUTRAL and not (folder / "recipe.toml").exists():
        # A misspelt folder must not train the defaults.
        raise ValueError(f"train: `--resume` must find a run to continue, got {str(folder)!r}, which holds none.")

    first, console, epochs = launched_group().rank == 0, Terminal(soft_wrap=True), whole.train.epochs
    bar = make_bar(console, shown=first)
    task = bar.add_task("training", total=epochs)

    def tick(epoch: int, step: int, steps: int) -> None:
        # Fifty moves an epoch: more would slow down short steps.
        if step % max(1, steps // 50) == 0:
            bar.update(task, completed=epoch + step / steps)

    try:
        with bar:
            run = train(whole, out=folder, resume=resume, report=partial(show_epoch, console, epochs), tick=tick)
    except KeyboardInterrupt:
        if first:
            written = (folder / "recipe.toml").exists()
            again = f"Go on with `calibrant train --resume --out {folder}`." if written else "Nothing was written yet."
            say(f"calibrant: interrupted. {again}", error=True)
        raise typer.Exit(130) from None
    if first:
        write_summary(run)


def merge_settings(options: Mapping[str, object], settings: Sequence[str]) -> dict[str, object]:
    """Put ``KEY=VALUE`` texts beside the options that were said, dotted key → value."""
    found = {key: value for key, value in options.items() if value is not None}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"train: `--set` must be KEY=VALUE, as in `--set optim.lr=0.2`, got {text!r}.")
        found[key] = value
    return found


def show_epoch(console: Terminal, epochs: int, record: EpochRecord) -> None:
    """Print the line of an epoch: validation error and ECE, loss, gamma and speed."""
    words = [f"loss {record.train_loss:.4f}"]
    if record.val_error is not None and record.val_ece is not None:
        words = [f"val error {100 * record.val_error:.2f}%", f"ECE {100 * record.val_ece:.2f}%", *words]
    if record.gamma_mean is not None and record.gamma_std is not None:
        words.append(f"gamma {record.gamma_mean:.2f}±{record.gamma_std:.2f}")
    if record.images_per_second is not None:
        words.append(f"{record.images_per_second:,.0f} images/s")
    console.print("  ".join([f"epoch {record.epoch + 1}/{epochs}", *words]))


def write_summary(run: Run) -> None:
    """Say what came of a run."""
    scores = epoch_scores(run.test.logits, run.test.labels)
    chosen = f"epoch {run.best_epoch + 1} of {len(run.history)} ({_REASON[run.recipe.train.select]})"
    scaled = "" if run.temperature is None else f", logits divided by {run.temperature:.3f}"
    say(f"test error {100 * scores['error']:.2f}%, ECE {100 * scores['ece']:.2f}%, NLL {scores['nll']:.4f} at {chosen}{scaled}")
    if run.shift:
        say(f"{'under shift, error / ECE in %':30}" + "".join(f"{f'severity {severity}':>14}" for severity in SEVERITIES))
        for kind in CORRUPTIONS:
            found = [run.shift[f"{kind}-{severity}"] for severity in SEVERITIES]
            cells = [f"{100 * scores['error'].value:.2f} / {100 * scores['ece'].value:.2f}" for scores in found]
            say(f"{kind:30}" + "".join(f"{cell:>14}" for cell in cells))
    if run.folder is not None:
        say(f"written to {run.folder}; look closer with `calibrant measure {run.folder / 'test.npz'}`")


def predict_images(run: Path, images: Path, *, out: Path | None, device: str) -> None:
    """Predict images with a trained run; print the first and write all of them."""
    if out is not None:
        check_destination(out, FORMATS)
    trained = load_run(run)
    logits, names = trained.predict_named(images, device=device)
    if out is not None:  # before anything is printed: a pipe to `head` may close
        save_logits(logits, out, class_names=trained.test.class_names, columns={"image": names})
    probs, classes = logits.double().softmax(1).max(1)
    known = trained.test.class_names or [str(number) for number in range(logits.shape[1])]
    console = Terminal()
    rows = [(name, known[k], f"{100 * p:.1f}%") for name, k, p in zip(names, classes.tolist(), probs.tolist(), strict=True)]
    console.print(fit_table(("image", "class", "probability"), rows[:_SHOWN], width=console.width))
    if len(rows) > _SHOWN:
        say(f"and {len(rows) - _SHOWN:,} more" + ("" if out is not None else "; --out writes all of them"))
    if out is not None:
        say(f"written to {out}")


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
    """The demo's setting, the same for all methods, so that nothing else sets them apart."""
    from calibrant.paper.reproduce import QUICK

    own = {"seed": seed, "data.name": "mixture", "backbone.name": "mlp", "method.name": method, "train.epochs": epochs}
    # Temperature and gamma are learned from 400 examples each: with 200 both are off by two per cent or more.
    return override(Recipe(), QUICK | own | {"data.val": 400, "data.meta": 400, "train.device": "cpu"})


def score(predictions: Predictions, posterior: Tensor) -> dict[str, float]:
    """Test error, NLL and ECE, and the mean distance of the confidence from the true probability of being right."""
    confidence, predicted = predictions.probs.double().max(1)
    truth = posterior.gather(1, predicted.unsqueeze(1)).squeeze(1)
    found = epoch_scores(predictions.logits, predictions.labels)
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
