"""``calibrant train``: a recipe and options in, a run folder out."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from calibrant.cli.epochs import EpochDisplay, write_summary
from calibrant.core.registry import lookup
from calibrant.engine.distributed import is_first_process
from calibrant.engine.methods import check_idle
from calibrant.engine.recipe import KEYS, NEUTRAL, Recipe, load_recipe, override
from calibrant.engine.train import train


def train_model(
    file: Path | None, *, options: Mapping[str, object], settings: Sequence[str], out: Path | None, resume: bool
) -> None:
    """Train by a recipe file, or the defaults, with options on top; show progress and say what came of it.

    Args:
        file: The recipe; with ``resume`` the one in ``out`` by default.
        options: Dotted key of the recipe → value; None where nothing was said.
        settings: Further ones as ``KEY=VALUE``.
        out: Run folder; named after the run by default.
        resume: Whether to go on with the run in ``out``.
    """
    if file is None and resume and out is not None and (out / "recipe.toml").exists():
        file = out / "recipe.toml"
    changes = merge_settings(options, settings)
    recipe = override(Recipe() if file is None else load_recipe(file), changes)
    check_idle([recipe], changes)
    folder = default_folder(recipe) if out is None else out
    if resume and file is None and changes.keys() <= NEUTRAL and not (folder / "recipe.toml").exists():
        raise _no_run(folder)
    if ":" in recipe.backbone.name and "" not in sys.path:
        # A factory of one's own is looked for where the command is called, as `python -m` would.
        sys.path.insert(0, "")
    first = is_first_process()
    display = EpochDisplay(recipe.train.epochs, shown=first)
    try:
        with display:
            run = train(recipe, out=folder, resume=resume, report=display.report, tick=display.tick)
    except KeyboardInterrupt:
        if first:
            print(f"calibrant: interrupted. {_how_to_go_on(folder)}", file=sys.stderr)
        raise typer.Exit(130) from None
    except FloatingPointError as error:
        raise ValueError(str(error)) from None
    if first:
        write_summary(run)


def _no_run(folder: Path) -> ValueError:
    """A misspelt folder must not train the defaults."""
    runs = [place.parent.name for place in folder.parent.glob("*/recipe.toml")]
    near = difflib.get_close_matches(folder.name, runs, n=1, cutoff=0.5)
    hint = f" Did you mean {str(folder.parent / near[0])!r}?" if near else ""
    return ValueError(
        f"train: `--resume` must find a run to go on with, got {str(folder)!r}, which holds none.{hint} To start one there, "
        "say what to train: a recipe, or options such as `--data` and `--method`."
    )


def _how_to_go_on(folder: Path) -> str:
    again = f"with `calibrant train --resume --out {folder}`."
    if (folder / "state.pt").exists():
        return f"The last checkpoint is kept; go on {again}"
    if (folder / "recipe.toml").exists():
        return f"No epoch was saved yet; start again {again}"
    return "Nothing was written yet; start again with the same command."


def merge_settings(options: Mapping[str, object], settings: Sequence[str]) -> dict[str, object]:
    """Put ``KEY=VALUE`` texts beside the options that were said, dotted key → value; one that says otherwise is refused.

    Example:
        >>> merge_settings({"train.epochs": 5, "data.root": None}, ["optim.lr=0.2"])
        {'train.epochs': 5, 'optim.lr': '0.2'}
    """
    said = {key: value for key, value in options.items() if value is not None}
    found = parse_settings(settings)
    for key in said.keys() & found.keys():
        if str(said[key]) != found[key]:
            raise ValueError(
                f"set: `{key}` must be said once, got {said[key]} by its option and {found[key]} by `--set`. Leave one out."
            )
    return said | found


def parse_settings(settings: Sequence[str]) -> dict[str, object]:
    """Split ``KEY=VALUE`` texts; a key that only lacks its part is answered with the whole one."""
    found: dict[str, object] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"train: `--set` must be KEY=VALUE, as in `--set optim.lr=0.2`, got {text!r}.")
        if "." not in key:
            for name in KEYS:
                if name.endswith(f".{key}"):
                    raise ValueError(f"train: `--set` must name a key with its part, got {key!r}. Did you mean {name!r}?")
            lookup(KEYS, key, kind="recipe key")
        found[key] = value
    return found


def default_folder(recipe: Recipe) -> Path:
    """Return the folder of a run that was given none: ``runs/DATA-MODEL-METHOD-seedN``."""
    words = (Path(recipe.data.name).name, recipe.backbone.name.rpartition(":")[2], recipe.method.name, f"seed{recipe.seed}")
    return Path("runs", "-".join(words).replace("/", "-"))
