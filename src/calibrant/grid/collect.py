"""From files to the rows of a comparison: run folders, predictions, and records of results."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from calibrant.core.entry import Entry, usual_size
from calibrant.core.records import Predictions, Split
from calibrant.core.scores import Scores
from calibrant.core.summary import summarize
from calibrant.data import is_path
from calibrant.data.image_set import ImageSet
from calibrant.engine.folder import is_finished, read_recipe
from calibrant.engine.loop import is_own
from calibrant.engine.recipe import Recipe
from calibrant.grid.records import load_result
from calibrant.grid.rows import CHOICES, command_of, flat_recipe, identity
from calibrant.io.predictions import FORMATS, load_predictions
from calibrant.metrics.measure import measure, values_of

# The data set of predictions whose file cannot say it.
UNKNOWN = "?"
# Folders below a given one that are searched.
_DEPTH = 3
_N_BINS = 15
_SEED = re.compile(r"(.+)[-_.]seed[-_]?(\d+)")


class FoundRuns(NamedTuple):
    """The run folders below a folder, sorted by path."""

    finished: tuple[Path, ...]
    unfinished: tuple[Path, ...]


def find_runs(path: str | Path) -> FoundRuns:
    """Find the run folders at ``path`` and up to three levels below it."""
    found = [file.parent for file in _below(Path(path), "recipe.toml") if is_run(file.parent)]
    done = tuple(place for place in found if is_finished(place))
    return FoundRuns(done, tuple(place for place in found if place not in done))


def load_entries(path: str | Path, *, data: str | None = None) -> list[Entry]:
    """Read the rows of a comparison that ``path`` holds.

    Args:
        path: A run folder; a folder of run folders, of ``.npz`` predictions or of records, up to three levels deep; a file of
            predictions (``.npz``, ``.csv``, ``.parquet``, ``.pt``); or the record of a result (``.json``). Unfinished runs are
            left out; `find_runs` names them. Predictions are named after their file; ``mine-seed3.npz`` is seed 3 of ``mine``.
        data: Name of the data set of predictions whose file cannot say it; "?" if not given.

    Returns:
        The entries, sorted by path. Raises ``ValueError`` or ``OSError`` with one sentence if there are none.

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
    # Only predictions as .npz: a folder may hold tables of its own, written as .csv.
    for file in sorted([*_below(given, "*.npz"), *_below(given, "*.json")]):
        if not {*runs.finished, *runs.unfinished}.isdisjoint(file.parents):
            continue
        if file.suffix == ".json":
            entries += [load_result(file)] if _is_record(file) else []
        elif (predictions := load_predictions(file)).split in (None, Split.TEST):
            entries.append(_predictions_entry(predictions, file, data=data))
    if not entries:
        got = f"{len(runs.unfinished)} that are not finished" if runs.unfinished else "none"
        raise ValueError(f"{path}: must hold finished runs, predictions (.npz) or records of results (.json), got {got}.")
    return entries


def load_run_entry(folder: str | Path) -> Entry:
    """Read a finished run as a row."""
    path = Path(folder)
    if not is_finished(path):
        raise ValueError(f"{path}: must be the folder of a finished run, got none. Go on with it with `--resume`.")
    recipe = read_recipe(path)
    facts = json.loads((path / "run.json").read_text(encoding="utf-8"))
    test = load_predictions(path / "test.npz")
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
        recipe=flat_recipe(recipe),
        facts=_run_facts(recipe, facts),
        folder=str(path),
    )


def numbers_of_run(folder: str | Path) -> dict[str, float | None]:
    """Return test error and ECE of a finished run from its ``metrics.json``; empty if they are not there."""
    try:
        found = json.loads((Path(folder) / "metrics.json").read_text(encoding="utf-8"))["metrics"]
        return {key: found[key]["value"] for key in ("error", "ece")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def is_run(place: Path) -> bool:
    """Whether a folder is that of a run, finished or not; a recipe of one's own may lie anywhere."""
    return (place / "recipe.toml").is_file() and (place / "run.json").is_file()


def data_label(name: str) -> str:
    """Return the name of a data set in tables: its own, or that of its folder or file.

    Example:
        >>> data_label("cifar10"), data_label("photos/birds.npz")
        ('cifar10', 'birds')
    """
    if not is_path(name):
        return name
    given = Path(name).expanduser()
    return given.stem if given.suffix.lower() == ".npz" else given.resolve().name


def once(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries without those that repeat a run with the same numbers."""
    kept: dict[object, Entry] = {}
    for entry in entries:
        numbers = [round(entry.scores[key].value, 9) for key in ("error", "nll", "ece") if key in entry.scores]
        kept.setdefault((identity(entry), *numbers), entry)
    return list(kept.values())


def check_same_labels(
    entries: Sequence[Entry], *, where: str, tests: Mapping[str, Predictions | ImageSet] | None = None
) -> None:
    """Refuse rows of another test set, or with its examples in another order.

    Fewer examples may be a part of the test set: such a row is shown, but not compared.

    Args:
        entries: The rows; of records only the number of classes is known.
        where: Command and option that the rows were given with.
        tests: Data set → its test set; by default that of its first row with predictions and the usual number of them.

    Returns:
        Nothing. Raises ``ValueError`` naming the file.
    """
    for data in dict.fromkeys(entry.data for entry in entries):
        here = [entry for entry in entries if entry.data == data]
        whole = [entry for entry in here if entry.test is not None and entry.scores.n == usual_size(here)]
        test = (tests or {}).get(data, whole[0].test if whole else None)
        owner = "the grid" if data in (tests or {}) else whole[0].folder if whole else ""
        for entry in here if test is not None else ():
            assert test is not None
            if differ := _difference(entry, test):
                raise ValueError(
                    f"{where} must have the {differ[0]} of the test set of {data} as in {owner}, got {differ[1]} in "
                    f"{entry.folder or entry.method}. Write the file anew with these, or measure it alone."
                )


def _difference(entry: Entry, test: Predictions | ImageSet) -> tuple[str, str] | None:
    """What must agree, and what was found instead; None if all does."""
    if entry.scores.num_classes != test.num_classes:
        return f"{test.num_classes} classes", str(entry.scores.num_classes)
    if entry.test is None or len(entry.test) < len(test.labels):
        return None
    labels = entry.test.labels
    if len(labels) > len(test.labels):
        return f"{len(test.labels):,} examples", f"{len(labels):,}"
    if not torch.equal(labels, test.labels):
        return "examples in the order", f"other labels for {int((labels != test.labels).sum()):,} of {len(labels):,}"
    return None if torch.allclose(_weights(entry.test), _weights(test)) else ("`weights`", "others")


def _weights(test: Predictions | ImageSet) -> torch.Tensor:
    """Weights with mean one; ones if there are none."""
    weights = getattr(test, "weights", None)
    return torch.ones(len(test.labels), dtype=torch.float64) if weights is None else weights.double() / weights.double().mean()


def _load_file(file: Path, *, data: str | None) -> Entry:
    if file.suffix.lower() == ".json":
        return load_result(file)
    if file.suffix.lower() not in FORMATS:
        wanted = ", ".join(FORMATS)
        raise ValueError(f"{file}: must be predictions ({wanted}) or the record of a result (.json), got neither.")
    predictions = load_predictions(file)
    if predictions.split not in (None, Split.TEST):
        raise ValueError(f"{file}: must hold predictions on test data, got those of the {predictions.split.value} split.")
    return _predictions_entry(predictions, file, data=data)


def _predictions_entry(predictions: Predictions, file: Path, *, data: str | None) -> Entry:
    found = _SEED.fullmatch(file.stem)
    name, seed = (found[1], int(found[2])) if found else (file.stem, None)
    scores = measure(predictions, n_bins=_N_BINS, file=file.name)
    return Entry(data or UNKNOWN, name, scores, seed=seed, test=predictions, folder=str(file))


def _is_record(file: Path) -> bool:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"data", "method", "metrics"} <= set(found)


def _scores(test: Predictions, file: Path) -> Scores:
    """What ``file`` says, if it is what ``test`` measures: another version, or other predictions, may have left it."""
    summary = summarize(test, n_bins=_N_BINS, keep=None)
    values = values_of(summary, test)
    try:
        found = Scores.from_dict(json.loads(file.read_text(encoding="utf-8")), bins=summary.bins)
    except (OSError, ValueError):
        found = None
    if found is not None and (found.n, found.num_classes, set(found.metrics)) == (len(test), test.num_classes, set(values)):
        pairs = [(found.metrics[key].value, value) for key, value in values.items()]
        # A file keeps what is infinite as null.
        if all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) or not (math.isfinite(a) or math.isfinite(b)) for a, b in pairs):
            return found
    return measure(test, n_bins=_N_BINS, file="test.npz")


def _run_facts(recipe: Recipe, facts: Mapping[str, Any]) -> dict[str, object]:
    device, processes = str(facts.get("device", "?")), facts.get("processes", 1)
    chosen = {key: value for key, value in sorted(flat_recipe(recipe).items()) if key.startswith(tuple(CHOICES))}
    known: dict[str, object] = {
        "command": command_of(recipe),
        "effective": {key: value for key, value in chosen.items() if value is not None},
        "machine": device if device.startswith("cpu") else f"{processes}x {device}",
        "versions": {name: facts[name] for name in ("calibrant", "torch", "python") if name in facts},
    }
    # Published sets never change, but other images may come to lie under a path.
    kept = ("seconds", "examples", "commit", *(["data"] if is_own(recipe.data) else []))
    return known | {name: facts[name] for name in kept if facts.get(name) is not None}


def _below(top: Path, name: str) -> list[Path]:
    """Files by their name or pattern, in ``top`` and the folders below it."""
    return sorted(file for depth in range(_DEPTH + 1) for file in top.glob("*/" * depth + name))
