"""``calibrant train``: a recipe and options in, a run folder out, with a line for every epoch on the way.

And ``calibrant predict``: a run and new images in, predictions out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import typer
from rich.console import Console

from calibrant.cli.terminal import Terminal, check_destination, fit_table, make_bar, say
from calibrant.data.synthetic import CORRUPTIONS, SEVERITIES
from calibrant.engine.recipe import NEUTRAL, Recipe, load_recipe, override
from calibrant.engine.run import EpochRecord, Run, epoch_scores, load_run
from calibrant.engine.setup import is_first_process
from calibrant.engine.train import train
from calibrant.io.predictions import FORMATS, save_logits

# Images whose predictions are printed.
_SHOWN = 20
_REASON = {
    "error": "lowest validation error",
    "nll": "lowest validation NLL",
    "error+nll": "lowest validation NLL near the lowest error",
    "error+ece": "lowest validation ECE near the lowest error",
    "last": "the last",
}


def train_model(
    recipe: Path | None, *, options: Mapping[str, object], settings: Sequence[str] | None, out: Path | None, resume: bool
) -> None:
    """Train by a recipe file, or the defaults, with options on top; show progress and say what came of it."""
    if recipe is None and resume and out is not None and (out / "recipe.toml").exists():
        recipe = out / "recipe.toml"
    changes = merge_settings(options, settings or [])
    whole = override(Recipe() if recipe is None else load_recipe(recipe), changes)
    folder = default_folder(whole) if out is None else out
    if resume and recipe is None and changes.keys() <= NEUTRAL and not (folder / "recipe.toml").exists():
        # A misspelt folder must not train the defaults.
        raise ValueError(f"train: `--resume` must find a run to continue, got {str(folder)!r}, which holds none.")
    find_own_networks([whole])
    first, console, epochs = is_first_process(), Terminal(soft_wrap=True), whole.train.epochs
    bar = make_bar(console, shown=first)
    task = bar.add_task("training", total=epochs)

    def tick(epoch: int, step: int, steps: int) -> None:
        # Fifty moves an epoch: more would slow down short steps.
        if step % max(1, steps // 50) == 0:
            bar.update(task, completed=epoch + step / steps)

    try:
        with bar:
            report = partial(show_epoch, console, epochs)
            run = train(whole, out=folder, resume=resume, report=report, tick=tick)
    except KeyboardInterrupt:
        if first:
            written = (folder / "recipe.toml").exists()
            again = f"Go on with `calibrant train --resume --out {folder}`." if written else "Nothing was written yet."
            say(f"calibrant: interrupted. {again}", error=True)
        raise typer.Exit(130) from None
    if first:
        write_summary(run)


def find_own_networks(recipes: Sequence[Recipe]) -> None:
    """Look for factories of one's own where the command is called, as ``python -m`` would."""
    if "" not in sys.path and any(":" in recipe.backbone.name for recipe in recipes):
        sys.path.insert(0, "")


def merge_settings(options: Mapping[str, object], settings: Sequence[str]) -> dict[str, object]:
    """Put ``KEY=VALUE`` texts beside the options that were said, dotted key → value.

    Example:
        >>> merge_settings({"train.epochs": 5, "data.root": None}, ["optim.lr=0.2"])
        {'train.epochs': 5, 'optim.lr': '0.2'}
    """
    found = {key: value for key, value in options.items() if value is not None}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"train: `--set` must be KEY=VALUE, as in `--set optim.lr=0.2`, got {text!r}.")
        found[key] = value
    return found


def default_folder(recipe: Recipe) -> Path:
    """Return the folder of a run that was given none: ``runs/DATA-MODEL-METHOD-seedN``."""
    words = (Path(recipe.data.name).name, recipe.backbone.name.rpartition(":")[2], recipe.method.name, f"seed{recipe.seed}")
    return Path("runs", "-".join(words).replace("/", "-"))


def show_epoch(console: Console, epochs: int, record: EpochRecord) -> None:
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
    find_own_networks([trained.recipe])
    logits, names = trained.predict_named(images, device=device)
    probs, classes = logits.double().softmax(1).max(1)
    known = trained.test.class_names or [str(number) for number in range(logits.shape[1])]
    console = Terminal()
    rows = [(name, known[k], f"{100 * p:.1f}%") for name, k, p in zip(names, classes.tolist(), probs.tolist(), strict=True)]
    console.print(fit_table(("image", "class", "probability"), rows[:_SHOWN], width=console.width))
    if len(rows) > _SHOWN:
        say(f"and {len(rows) - _SHOWN:,} more" + ("" if out is not None else "; --out writes all of them"))
    if out is not None:
        save_logits(logits, out, class_names=trained.test.class_names, columns={"image": names})
        say(f"written to {out}")
