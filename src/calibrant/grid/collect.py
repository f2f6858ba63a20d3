"""From what lies on disk to the rows of a comparison: run folders, files of predictions, and records of results."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from calibrant.core.entry import Entry
from calibrant.core.records import Predictions, Split
from calibrant.core.scores import Scores
from calibrant.core.summary import summarize
from calibrant.data import is_path
from calibrant.engine.folder import is_finished, read_recipe
from calibrant.engine.methods import METHODS, split_name
from calibrant.engine.recipe import Recipe
from calibrant.engine.setup import is_own
from calibrant.grid.records import load_result
from calibrant.grid.rows import CHOICES, command_of, flat_recipe
from calibrant.io.predictions import FORMATS, load_predictions
from calibrant.metrics.measure import measure, values_of
from calibrant.report.rows import method_name

# The data set of predictions of which nothing is said.
UNKNOWN = "?"
# How far below a folder its runs are looked for.
_DEPTH = 3
_N_BINS = 15
_SEED = re.compile(r"(?:(?P<name>.+?)[-_.])?seed[-_]?(?P<seed>\d+)")


class FoundRuns(NamedTuple):
    """The run folders below a folder, in the order of their paths: those that can be read, and those not finished."""

    finished: tuple[Path, ...]
    unfinished: tuple[Path, ...]


def find_runs(path: str | Path) -> FoundRuns:
    """Find the run folders at ``path`` and up to three levels below it; what lies inside a run folder is not looked at."""
    found = sorted(place for place in _folders(Path(path)) if is_run(place))
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
    outside = (place for place in _folders(given) if not is_run(place))
    # Only predictions as .npz: a folder may hold tables of its own, written as .csv.
    for file in sorted(file for place in outside for file in place.iterdir() if file.suffix.lower() in (".npz", ".json")):
        if file.suffix.lower() == ".json":
            entries += [load_result(file)] if is_record(file) else []
        elif _is_test(predictions := load_predictions(file)):
            entries.append(_predictions_entry(predictions, file, data=data))
    if not entries:
        got = f"{len(runs.unfinished)} that are not finished" if runs.unfinished else "none"
        raise ValueError(f"{path}: must hold finished runs, predictions (.npz) or records of results (.json), got {got}.")
    return name_apart(entries)


def load_run_entry(folder: str | Path) -> Entry:
    """Read a finished run as a row: its ``metrics.json`` where that is what ``test.npz`` measures, else measured anew."""
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


def is_run(place: Path) -> bool:
    """Whether a folder is that of a run, finished or not; one's own recipe may lie anywhere."""
    return (place / "recipe.toml").is_file() and (place / "run.json").is_file()


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


def name_apart(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with names by which predictions from different files are told apart.

    Files that share a name and say different seeds are the seeds of one row. Where two say the same seed, or one says none,
    their folders become part of the name, and where they lie in one folder the ending of the one without a seed.

    Example:
        >>> from calibrant import measure
        >>> test = Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20)
        >>> files = {"o1/m.npz": None, "o2/m.npz": None, "o1/x-seed0.npz": 0, "o1/x-seed1.npz": 1}
        >>> entries = [Entry("coins", "?", measure(test), seed=seed, test=test, folder=file) for file, seed in files.items()]
        >>> [entry.method for entry in name_apart(entries)]
        ['o1/m', 'o2/m', 'x', 'x']
    """
    named: dict[tuple[str, str], dict[int, Path]] = {}
    for number, entry in enumerate(entries):
        if is_predictions(entry):
            place = place_of(str(entry.folder))[0]
            named.setdefault((entry.data, place.name), {})[number] = place
    found = list(entries)
    for places in named.values():
        seeds = [entries[number].seed for number in places]
        apart = None in seeds or len(set(seeds)) < len(seeds)
        short = _shortest(set(places.values())) if apart else {place: place.name for place in places.values()}
        for number, place in places.items():
            file = Path(str(entries[number].folder))
            name = short[place]
            if apart and entries[number].seed is None and [*places.values()].count(place) > 1:
                # Beside others of its place, a file without a seed is called as it is.
                name += file.suffix if file.stem == place.name else f"/{file.name}"
            found[number] = replace(found[number], method=_unlike_methods(name, file))
    return found


def seed_notes(entries: Sequence[Entry]) -> list[str]:
    """Say which files of different folders are taken for the seeds of one row; whoever gave them may mean different models."""
    rows: dict[tuple[str, str], dict[Path, str]] = {}
    for entry in entries:
        if is_predictions(entry):
            file = str(entry.folder)
            rows.setdefault((entry.data, entry.method), {}).setdefault(place_of(file)[0], file)
    return [
        f"{' and '.join(files.values())} are taken for seeds of one row, {method}. Rename one if they are different models."
        for (_, method), files in rows.items()
        if len(files) > 1
    ]


def place_of(path: str | Path) -> tuple[Path, int | None]:
    """Return the path of a file of predictions without its ending and seed, so that it ends in their name; and the seed.

    A file called just ``test`` or ``seed3`` is called by its folder.

    Example:
        >>> [(place.name, seed) for place, seed in map(place_of, ("mine.npz", "a/mine-seed3.npz", "mine/seed_3.npz"))]
        [('mine', None), ('mine', 3), ('mine', 3)]
        >>> place_of("mine-seed3/test.npz")[1], place_of("mine/seed3/test.npz")[0].name
        (3, 'mine')
    """
    file = Path(path)
    folder, (name, seed) = file.parent.resolve(), _split(file.stem)
    while name in ("", "test") and folder.name:
        name, seed = _split(folder.name) if seed is None else (folder.name, seed)
        folder = folder.parent
    return folder / (name or file.stem), seed


def is_predictions(entry: Entry) -> bool:
    """Whether an entry is a file of predictions: neither a run nor a record."""
    return entry.is_foreign and entry.test is not None and entry.folder is not None


def _split(text: str) -> tuple[str, int | None]:
    found = _SEED.fullmatch(text)
    return (found["name"] or "", int(found["seed"])) if found else (text, None)


def _shortest(places: set[Path]) -> dict[Path, str]:
    """The fewest last parts of paths by which they differ."""
    length = 1
    while len({place.parts[-length:] for place in places}) < len(places):
        length += 1
    return {place: "/".join(place.parts[-length:]) for place in places}


def _unlike_methods(name: str, file: Path) -> str:
    """A file's name, with its ending where it would be taken for a method's, typed or as figures call it."""
    # Bytes that are no UTF-8 are spelt out, as nothing could be written or printed with them.
    name = name.encode(errors="backslashreplace").decode()
    base = split_name(name)[0]
    return f"{name}{file.suffix}" if base in METHODS or base in map(method_name, METHODS) else name


def _load_file(file: Path, *, data: str | None) -> Entry:
    if file.suffix.lower() == ".json":
        return load_result(file)
    if file.suffix.lower() not in FORMATS:
        wanted = ", ".join(FORMATS)
        raise ValueError(f"{file}: must be predictions ({wanted}) or the record of a result (.json), got neither.")
    predictions = load_predictions(file)
    if not _is_test(predictions):
        assert predictions.split is not None
        got = predictions.split.value
        raise ValueError(f"{file}: must hold predictions on test data to be compared, got those of the {got} split.")
    return _predictions_entry(predictions, file, data=data)


def _predictions_entry(predictions: Predictions, path: Path, *, data: str | None) -> Entry:
    place, seed = place_of(path)
    scores = measure(predictions, n_bins=_N_BINS, file=path.name)
    name = _unlike_methods(place.name, path)
    return Entry(data=data or UNKNOWN, method=name, scores=scores, seed=seed, test=predictions, folder=str(path))


def _scores(test: Predictions, file: Path) -> Scores:
    """What ``file`` says of ``test``, if it does: it may have been written by another version, or for other predictions."""
    summary = summarize(test, n_bins=_N_BINS, keep=None)
    values = values_of(summary, test)
    try:
        found = Scores.from_dict(json.loads(file.read_text(encoding="utf-8")), bins=summary.bins)
        same = found.n == len(test) and found.num_classes == test.num_classes and set(found.metrics) == set(values)
        if same and all(_agree(found.metrics[key].value, value) for key, value in values.items()):
            return found
    except (OSError, ValueError):
        pass
    return measure(test, n_bins=_N_BINS, file="test.npz")


def _agree(first: float, second: float) -> bool:
    # A file keeps all digits of a float64; another order of adding up changes the last few. What is not finite is null.
    if not (math.isfinite(first) and math.isfinite(second)):
        return math.isfinite(first) == math.isfinite(second)
    return math.isclose(first, second, rel_tol=1e-6, abs_tol=1e-9)


def _run_facts(recipe: Recipe, facts: Mapping[str, Any]) -> dict[str, object]:
    device, processes = str(facts.get("device", "?")), facts.get("processes", 1)
    chosen = {key: value for key, value in sorted(flat_recipe(recipe).items()) if key.startswith(tuple(CHOICES))}
    known: dict[str, object] = {
        "command": command_of(recipe),
        "effective": {key: value for key, value in chosen.items() if value is not None},
        "machine": device if device.startswith("cpu") else f"{processes}x {device}",
        "versions": {name: facts[name] for name in ("calibrant", "torch", "python") if name in facts},
    }
    # Published sets are what they are, while others may come to lie under a path.
    kept = ("seconds", "examples", "commit", *(["data"] if is_own(recipe.data) else []))
    return known | {name: facts[name] for name in kept if facts.get(name) is not None}


def _is_test(predictions: Predictions) -> bool:
    return predictions.split in (None, Split.TEST)


def _folders(top: Path) -> Iterator[Path]:
    """``top`` and the folders below it, as deep as is looked; those inside a run are not entered, nor hidden ones."""
    level = [top] if top.is_dir() else []
    for _ in range(_DEPTH + 1):
        yield from level
        inside = [below for place in level if not is_run(place) for below in sorted(place.iterdir())]
        level = [below for below in inside if below.is_dir() and not below.name.startswith(".")]
