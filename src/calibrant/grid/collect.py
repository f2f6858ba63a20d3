"""From what lies on disk to the rows of a comparison: run folders, files of predictions, and records of results."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from calibrant.core.entry import Entry
from calibrant.core.records import Predictions, Split
from calibrant.core.scores import Scores
from calibrant.core.summary import summarize_with_top
from calibrant.data import is_path
from calibrant.engine.folder import is_finished
from calibrant.engine.methods import idle_keys, resolved
from calibrant.engine.recipe import MethodPart, Recipe, load_recipe, to_dict
from calibrant.engine.setup import is_own
from calibrant.grid.names import name_apart, name_of, place_of
from calibrant.grid.results import load_result
from calibrant.io.predictions import FORMATS, load_predictions
from calibrant.metrics.measure import measure
from calibrant.metrics.values import bins_of_summary, values_of_top

# The data set of predictions of which nothing is said.
UNKNOWN = "?"
# How far below a folder its runs are looked for.
_DEPTH = 3
_N_BINS = 15
_TEST = "test.npz"
# What a command says in any case, since a default may become another one; then what it says where it was set.
_NAMED = {"data.name": "--data", "backbone.name": "--model", "method.name": "--method", "method.preset": "--preset"}
_NAMED |= {"train.epochs": "--epochs", "seed": "--seed"}
_OPTIONS = {"backbone.init": "--init"}
# What presets decide, and what that takes; keys that are left open are not in a recipe's plain data.
_LEFT_TO_METHOD = tuple(
    f"train.{key}" for key in ("average", "average_decay", "average_share", "average_from_epoch", "select", "select_within")
)


class FoundRuns(NamedTuple):
    """The run folders below a folder, in the order of their paths.

    Attributes:
        finished: Those that can be read.
        unfinished: Those that are still going on, or were interrupted.
    """

    finished: tuple[Path, ...]
    unfinished: tuple[Path, ...]


def find_runs(path: str | Path) -> FoundRuns:
    """Find the run folders at ``path`` and up to three levels below it; what lies inside a run folder is not looked at."""
    found = sorted(place for place in _places(Path(path)) if is_run(place))
    done = tuple(place for place in found if is_finished(place))
    return FoundRuns(done, tuple(place for place in found if place not in done))


def load_entries(path: str | Path, *, data: str | None = None) -> list[Entry]:
    """Read the rows of a comparison that ``path`` holds.

    Args:
        path: A run folder; a folder of run folders, of ``.npz`` predictions or of records, up to three levels deep; a file of
            predictions (``.npz``, ``.csv``, ``.parquet``, ``.pt``); or the record of a result (``.json``). Runs that are not
            finished are left out; `find_runs` names them. Predictions are called by their file's name without its ending; where
            it ends in ``seed3`` they are that seed's, and a file called just ``seed3`` or ``test`` is called by its folder.
            Those of a folder that share a name and say no seed are told apart by their paths.
        data: Name of the data set of predictions whose file cannot say it; "?" if not given.

    Returns:
        The entries in the order of their paths. Raises ``ValueError`` or ``OSError`` with one sentence if there are none.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "mine-seed3.npz"
        >>> Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20).save(file)
        >>> entry = load_entries(file, data="coins")[0]
        >>> entry.data, entry.method, entry.seed, entry.scores["error"].value
        ('coins', 'mine', 3, 0.5)
    """
    given = Path(path)
    if given.is_file():
        return [_load_file(given, data=data)]
    if not given.exists():
        raise FileNotFoundError(
            f"{path}: must be a run folder, a folder of them, a file of predictions or a record (.json), got nothing there."
        )
    runs = find_runs(given)
    entries = [load_run_entry(folder) for folder in runs.finished]
    for file in _loose_files(given):
        if file.suffix.lower() == ".json":
            entries += [load_result(file)] if is_record(file) else []
        elif _is_test(predictions := load_predictions(file)):
            entries.append(_entry_of_predictions(predictions, file, data=data))
    if not entries:
        got = f"{len(runs.unfinished)} that are not finished" if runs.unfinished else "none"
        raise ValueError(f"{path}: must hold finished runs, predictions (.npz) or records of results (.json), got {got}.")
    return name_apart(entries)


def load_run_entry(folder: str | Path) -> Entry:
    """Read a finished run as a row: its ``metrics.json`` where that is what ``test.npz`` measures, else measured anew."""
    path = Path(folder)
    if not is_finished(path):
        raise ValueError(f"{path}: must be the folder of a finished run, got none. Go on with it with `--resume`.")
    recipe = load_recipe(path / "recipe.toml")
    facts = json.loads((path / "run.json").read_text(encoding="utf-8"))
    test = load_predictions(path / _TEST)
    lines = (path / "history.jsonl").read_text(encoding="utf-8").splitlines()
    return Entry(
        data=data_label(recipe.data.name),
        method=recipe.method.name,
        scores=_scores(test, path / "metrics.json"),
        preset=recipe.method.preset,
        model=recipe.backbone.name,
        epochs=recipe.train.epochs,
        seed=recipe.seed,
        test=test,
        history=tuple(json.loads(line) for line in lines),
        best_epoch=facts.get("best_epoch"),
        temperature=facts.get("temperature"),
        facts=_run_facts(recipe, facts),
        folder=str(path),
    )


def load_predictions_entry(path: str | Path, *, data: str | None = None) -> Entry:
    """Read a file of somebody's test predictions as a row, named after the file; see `load_entries`."""
    predictions = load_predictions(path)
    if not _is_test(predictions):
        assert predictions.split is not None
        got = predictions.split.value
        raise ValueError(f"{path}: must hold predictions on test data to be compared, got those of the {got} split.")
    return _entry_of_predictions(predictions, Path(path), data=data)


def test_numbers(folder: str | Path) -> dict[str, float | None]:
    """Return test error and ECE of a finished run, as its ``metrics.json`` says; empty where it does not."""
    try:
        found = json.loads((Path(folder) / "metrics.json").read_text(encoding="utf-8"))["metrics"]
        return {key: found[key]["value"] for key in ("error", "ece")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def is_record(path: str | Path) -> bool:
    """Whether a JSON file is the record of a result, as those in ``results/``."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"data", "method", "metrics"} <= set(found)


def data_label(name: str) -> str:
    """What a data set is called in a table: its name, or that of its folder or file.

    Example:
        >>> data_label("cifar10"), data_label("photos/birds.npz")
        ('cifar10', 'birds')
    """
    if not is_path(name):
        return name
    given = Path(name).expanduser()
    return given.stem if given.suffix.lower() == ".npz" else given.resolve().name


def command_of(recipe: Recipe) -> str:
    """Return the command that trains by ``recipe``: what is run by name, and what else differs from the defaults.

    The place of the data is left out.

    Example:
        >>> from calibrant.engine.recipe import override
        >>> command_of(override(Recipe(), {"method.name": "ce", "optim.lr": "0.2", "data.root": "/data"}))
        'calibrant train --data cifar10 --model resnet18 --method ce --preset default --epochs 350 --seed 0 --set optim.lr=0.2'
    """
    bare, full, idle = resolved(replace(Recipe(), method=recipe.method)), resolved(recipe), idle_keys(recipe)
    # The method itself is said, and with it what it decides.
    usual, said_of = dict(_flat(to_dict(replace(bare, method=MethodPart())))), dict(_flat(to_dict(full)))
    words = ["calibrant", "train", *(word for key, flag in _NAMED.items() for word in (flag, str(said_of.pop(key))))]
    for key, value in said_of.items():
        # Where the data lie is a matter of the machine; how to average says nothing where that is not done.
        if key == "data.root" or key in idle or (key in usual and usual[key] == value):
            continue
        said = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words += [_OPTIONS[key], said] if key in _OPTIONS else ["--set", f"{key}={said}"]
    return shlex.join(words)


def effective_settings(recipe: Recipe) -> dict[str, object]:
    """Return how a run averages weights and chooses its epoch, which a preset decides where nothing else is said.

    Example:
        >>> effective_settings(Recipe())
        {'train.average': 'phase', 'train.average_share': 0.5, 'train.select': 'error+nll', 'train.select_within': 2.0}
    """
    values, idle = dict(_flat(to_dict(resolved(recipe)))), idle_keys(recipe)
    return {key: values[key] for key in _LEFT_TO_METHOD if key in values and key not in idle}


def _entry_of_predictions(predictions: Predictions, path: Path, *, data: str | None) -> Entry:
    place, seed = place_of(path)
    scores = measure(predictions, n_bins=_N_BINS, file=path.name)
    name = name_of(place.name, path)
    return Entry(data=data or UNKNOWN, method=name, scores=scores, seed=seed, test=predictions, folder=str(path))


def _scores(test: Predictions, file: Path) -> Scores:
    """What ``file`` says of ``test``, if it does: it may have been written by another version, or for other predictions."""
    summary, top = summarize_with_top(test, n_bins=_N_BINS)
    values = values_of_top(summary, top)
    try:
        found = Scores.from_dict(json.loads(file.read_text(encoding="utf-8")), bins=bins_of_summary(summary))
    except (OSError, ValueError):
        return measure(test, n_bins=_N_BINS, file=_TEST)
    same = found.n == len(test) and found.num_classes == test.num_classes and set(found.metrics) == set(values)
    if same and all(_agree(found.metrics[key].value, value) for key, value in values.items()):
        return found
    return measure(test, n_bins=_N_BINS, file=_TEST)


def _agree(first: float, second: float) -> bool:
    # A file keeps all digits of a float64; another machine's or thread's order of adding up changes the last few. What is
    # not finite is written as null.
    if not (math.isfinite(first) and math.isfinite(second)):
        return math.isfinite(first) == math.isfinite(second)
    return math.isclose(first, second, rel_tol=1e-6, abs_tol=1e-9)


def _run_facts(recipe: Recipe, facts: Mapping[str, Any]) -> dict[str, object]:
    device, processes = str(facts.get("device", "?")), facts.get("processes", 1)
    known: dict[str, object] = {
        "command": command_of(recipe),
        "effective": effective_settings(recipe),
        "machine": device if device.startswith("cpu") else f"{processes}x {device}",
        "versions": {name: facts[name] for name in ("calibrant", "torch", "python") if name in facts},
    }
    # Published sets are what they are, while others may come to lie under a path.
    kept = ("seconds", "examples", "commit", *(["data"] if is_own(recipe.data) else []))
    return known | {name: facts[name] for name in kept if facts.get(name) is not None}


def _load_file(file: Path, *, data: str | None) -> Entry:
    if file.suffix.lower() == ".json":
        return load_result(file)
    try:
        return load_predictions_entry(file, data=data)
    except ValueError as error:
        if file.suffix.lower() in FORMATS:
            raise
        raise ValueError(f"{error} Records of results end in .json.") from None


def is_run(place: Path) -> bool:
    """Whether a folder is that of a run, finished or not; one's own recipe may lie anywhere."""
    return (place / "recipe.toml").is_file() and (place / "run.json").is_file()


def _is_test(predictions: Predictions) -> bool:
    return predictions.split in (None, Split.TEST)


def _places(top: Path) -> Iterator[Path]:
    """``top`` and the folders below it, as deep as is looked; those inside a run are not entered, nor hidden ones."""
    level = [top] if top.is_dir() else []
    for _ in range(_DEPTH + 1):
        yield from level
        level = [
            below
            for place in level
            if not is_run(place)
            for below in sorted(place.iterdir())
            if below.is_dir() and not below.name.startswith(".")
        ]


def _loose_files(top: Path) -> list[Path]:
    # Only predictions as .npz: a folder may hold tables of its own, written as .csv.
    outside = (place for place in _places(top) if not is_run(place))
    return sorted(file for place in outside for file in place.iterdir() if file.suffix.lower() in (".npz", ".json"))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
