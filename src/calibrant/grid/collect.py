"""From files to the rows of a comparison: run folders, predictions, and records of results.

A record is a JSON file, what is kept of a run once its folder is gone: what was run, where and how, what was measured of its
test predictions, enough to draw its figures, and of every test example the top confidence, whether it was right, and the
probability of the true class.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shlex
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.core.binning import summarize
from calibrant.core.records import Bins, BinSweep, Entry, Predictions, Scores, Split
from calibrant.data.image_set import ImageSet
from calibrant.data.sets import set_name
from calibrant.engine.batches import is_own
from calibrant.engine.methods import METHODS, NAMED, flat_recipe, split_name, text_of, usual_recipe
from calibrant.engine.recipe import KEYS, Recipe
from calibrant.engine.run import is_finished, load_run, read_facts, read_recipe
from calibrant.io.files import write_file
from calibrant.io.predictions import load_predictions
from calibrant.metrics.levels import bin_sweep
from calibrant.metrics.measure import measure, values_of
from calibrant.report.rows import row_key, settings_of

_WHAT = ("data", "method", "preset", "model", "epochs", "seed")
_FACTS = ("command", "effective", "machine", "versions", "commit", "seconds", "examples", "note")
# What the figures show of every epoch; speed and time say nothing about the result.
_CURVES = ("train_loss", "val_error", "val_ece", "test_error", "test_ece", "gamma_mean", "gamma_std")
_BIN_PARTS = ("edges", "count", "confidence", "accuracy")
# What a record keeps of every test example → its type; see `pack_predictions`.
_PACKED = {"labels": "<u2", "confidence": "<f4", "correct": "u1", "wrong": "<f2"}
# The data set of predictions whose file cannot say it.
UNKNOWN = "?"
_N_BINS = 15
_SEED = re.compile(r"(.+)[-_.]seed[-_]?(\d+)")


def result_from_entry(entry: Entry) -> dict[str, Any]:
    """Return the record of a run as plain data; bins and sweep are computed from its test predictions where they are missing.

    Keys are ``data``, ``method``, ``preset``, ``model``, ``epochs``, ``seed``, ``metrics`` and, where known, ``recipe`` (what
    decided the run, dotted key → value), ``command``, ``effective``, ``machine``, ``versions``, ``commit``, ``seconds``,
    ``examples``, ``note``, ``best_epoch``, ``temperature``, ``bins`` (of the reliability diagram), ``sweep`` (ECE and MCE
    against the number of bins) and ``history`` (columns over the epochs that were evaluated; ``lr`` as pairs of the epoch
    from which on it holds and the rate), ``measured`` (early records, with other statistics, lack it), and ``predictions`` (see
    `pack_predictions`).
    """
    sweep = entry.sweep or (None if entry.test is None else bin_sweep(entry.test))
    bins = {name: _short(getattr(entry.scores.bins, name).tolist(), digits=10) for name in _BIN_PARTS}
    record: dict[str, Any] = {name: getattr(entry, name) for name in _WHAT}
    optional = {
        "metrics": json.loads(entry.scores.to_json()) | {"file": None},
        "recipe": dict(entry.recipe),
        **{name: entry.facts[name] for name in _FACTS if name in entry.facts},
        "best_epoch": entry.best_epoch,
        "temperature": entry.temperature,
        "bins": bins if bins["count"] else None,
        "sweep": {key: _short(values) for key, values in vars(sweep).items() if values} if sweep is not None else None,
        "history": _columns(entry.history),
        "measured": None if entry.facts.get("stale") else 1,
        "predictions": None if entry.test is None or entry.test.weights is not None else pack_predictions(entry.test),
    }
    return record | {key: value for key, value in optional.items() if value not in (None, {})}


def entry_from_result(record: Mapping[str, Any], *, where: str = "record") -> Entry:
    """Read a record back; what it does not keep is missing. Raises ``ValueError`` naming the key that is wrong."""
    try:
        kept, sweep = record.get("bins"), record.get("sweep")
        bins = None if kept is None else Bins(*(torch.tensor(kept[name], dtype=torch.float64) for name in _BIN_PARTS))
        scores = Scores.from_dict(record["metrics"], bins=bins)
        facts = {name: record[name] for name in _FACTS if name in record}
        test = unpack_predictions(record["predictions"], scores.num_classes) if "predictions" in record else None
        if "measured" not in record:
            facts["stale"] = True
        return Entry(
            **{name: record[name] if name in ("data", "method") else record.get(name) for name in _WHAT},  # type: ignore[arg-type]
            scores=scores,
            test=test,
            history=_epochs(record.get("history") or {}, total=record.get("epochs")),
            best_epoch=record.get("best_epoch"),
            temperature=record.get("temperature"),
            sweep=None if sweep is None else BinSweep(**{key: tuple(values) for key, values in sweep.items()}),
            # Early records kept only what averages weights and chooses the epoch.
            recipe=dict(record.get("recipe") or record.get("effective") or {}),
            facts=facts,
            is_top_label=test is not None,
            folder=where,
        )
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        said = f"no `{error.args[0]}`" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise ValueError(
            f"{where}: must be the record of a result, with `data`, `method` and `metrics`, got: {said}."
        ) from None


def pack_predictions(test: Predictions) -> dict[str, str]:
    """Return what a record keeps of every test example, about 5 bytes each.

    Keys: ``labels`` (uint16, little-endian as all), ``confidence`` (float32), ``correct`` (bits, from the highest), and
    ``wrong`` (float16), the log-probabilities of the true class where the prediction is wrong. Each has its first bytes
    first, then its second ones, and so on; it is compressed by zlib and written in base 85.
    """
    wrong = ~test.correct
    true = test.logits.double().log_softmax(1)[wrong, test.labels[wrong]]
    parts = {
        "labels": test.labels.numpy(),
        "confidence": test.confidence.numpy(),
        "correct": np.packbits(test.correct.numpy()),
        "wrong": true.numpy(),
    }
    parts = {name: values.astype(_PACKED[name]) for name, values in parts.items()}
    planes = {name: values.view(np.uint8).reshape(len(values), -1).T.tobytes() for name, values in parts.items()}
    return {name: base64.b85encode(zlib.compress(plane, 9)).decode() for name, plane in planes.items()}


def unpack_predictions(packed: Mapping[str, str], num_classes: int) -> Predictions:
    """Return predictions that agree with the packed ones in all that was kept; the rest is spread over the other classes.

    All metrics of the top label, the NLL, reliability diagrams and paired tests come out as they were. The Brier score, the
    classwise ECE and which class was predicted in error do not.
    """
    parts = {}
    for name, kind in _PACKED.items():
        plane = np.frombuffer(zlib.decompress(base64.b85decode(packed[name])), np.uint8)
        parts[name] = np.ascontiguousarray(plane.reshape(np.dtype(kind).itemsize, -1).T).view(kind)[:, 0]
    labels = torch.from_numpy(parts["labels"].astype(np.int64))
    rows, confidence = torch.arange(len(labels)), torch.from_numpy(parts["confidence"].astype(np.float64))
    right = torch.from_numpy(np.unpackbits(parts["correct"])[: len(labels)].astype(bool))
    true = confidence.where(right, 1 - confidence)
    if num_classes > 2:
        true[~right] = torch.minimum(true[~right], torch.from_numpy(parts["wrong"].astype(np.float64)).exp())
    rest = (1 - confidence - true.where(~right, 0.0)).clamp_min(0) / (num_classes - 1 - (~right).long()).clamp_min(1)
    # A hair less, so that no other class ties with the top one.
    probs = (rest * (1 - 1e-9))[:, None].repeat(1, num_classes)
    probs[rows, (labels + 1) % num_classes] = confidence.where(~right, rest * (1 - 1e-9))
    probs[rows, labels] = true
    return Predictions(logits=probs.log(), labels=labels, split=Split.TEST, where="record")


def save_results(entries: Sequence[Entry], folder: str | Path, *, note: str | None = None) -> list[Path]:
    """Write the records of runs as ``DATA-MODEL-METHOD-PRESET-seedN.json``, with a ``note`` for readers; return the files.

    A record of the same run is replaced. Raises ``ValueError`` and writes none if two runs want one file, or a record of
    another length has it.
    """
    place = Path(folder)
    kept: dict[Path, Entry] = {}
    for entry in entries:
        file = place / result_name(entry)
        other = kept.get(file) or (load_result(file) if file.exists() else entry)
        if file in kept or other.epochs != entry.epochs:
            runs = " and ".join(f"{e.folder or e.method} of {e.epochs} epochs" for e in (other, entry))
            raise ValueError(f"{file}: must be the record of one run, got two: {runs}. Leave one out, or use another folder.")
        kept[file] = entry
    place.mkdir(parents=True, exist_ok=True)
    for file, entry in kept.items():
        record = result_from_entry(entry) | ({} if note is None else {"note": note})
        write_file(file, f"{_dump(record)}\n")
    return list(kept)


def load_result(path: str | Path) -> Entry:
    """Read one record; raises ``ValueError`` or ``OSError`` with one sentence that names the file."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: must be the record of a result, got: {error}.") from None
    return entry_from_result(found, where=str(path))


def load_results(folder: str | Path) -> list[Entry]:
    """Read all records of a folder, by name; raises ``ValueError`` if there are none."""
    files = sorted(Path(folder).glob("*.json"))
    if not files:
        raise ValueError(f"{folder}: must be a folder with records of results, got none. `calibrant results add` makes them.")
    return [load_result(file) for file in files]


def result_name(entry: Entry) -> str:
    """Name of a record's file, as ``cifar10-resnet18-ce+ts-paper-seed0.json``."""
    # Settings by their last word, as in `average-phase` for train.average=phase; many of them by a short sum.
    settings = "-".join(f"{key.rpartition('.')[2]}-{value}" for key, value in settings_of(entry).items())
    if len(settings) > 100:
        settings = hashlib.sha256(settings.encode()).hexdigest()[:12]
    seed = None if entry.seed is None else f"seed{entry.seed}"
    words = [entry.data, entry.model, entry.method, entry.preset, settings, seed]
    return re.sub(r"[^\w.+-]", "-", "-".join(word for word in words if word)) + ".json"


def _columns(history: Sequence[Mapping[str, float | int | None]]) -> dict[str, list[Any]]:
    """The history as columns over the epochs that were evaluated."""
    seen = [epoch for epoch, line in enumerate(history) if line.get("val_error") is not None]
    columns = {name: _short([history[epoch].get(name) for epoch in seen]) for name in _CURVES}
    found = {"epoch": seen} | {name: values for name, values in columns.items() if any(v is not None for v in values)}
    rates = _short([line.get("lr") for line in history])
    steps = [[e, rate] for e, rate in enumerate(rates) if rate is not None and (e == 0 or rate != rates[e - 1])]
    return found | ({"lr": steps} if steps else {}) if seen else {}


def _epochs(columns: Mapping[str, Sequence[Any]], *, total: int | None) -> tuple[dict[str, float | int | None], ...]:
    """The history as a line for every epoch."""
    if not columns:
        return ()
    known = columns["epoch"]
    lines: list[dict[str, float | int | None]] = [{"epoch": e} for e in range(max(total or 0, known[-1] + 1))]
    for first, rate in columns.get("lr", ()):
        for line in lines[first:]:
            line["lr"] = rate
    for name in columns.keys() - {"epoch", "lr"}:
        for epoch, value in zip(known, columns[name], strict=True):
            lines[epoch][name] = value
    return tuple(lines)


def _short(values: Sequence[float | None], *, digits: int = 6) -> list[float | None]:
    """Six digits are more than any figure shows. JSON has no word for what is not finite."""
    finite = [float(f"{value:.{digits}g}") if value is not None and math.isfinite(value) else None for value in values]
    return [int(value) if value is not None and value.is_integer() and abs(value) >= 2 else value for value in finite]


def _dump(value: object, indent: int = 0) -> str:
    """JSON with a line for every key, but lists in one line."""
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    inner = ",\n".join(f"{' ' * (indent + 1)}{json.dumps(key)}: {_dump(item, indent + 1)}" for key, item in value.items())
    return f"{{\n{inner}\n{' ' * indent}}}"


def finished_runs(path: str | Path) -> list[Path]:
    """Return the finished run folders at ``path`` and up to three levels below it; raises ``ValueError`` if there are none."""
    found = [place for place in _runs(Path(path)) if is_finished(place)]
    if not found:
        raise ValueError(f"{path}: must hold finished runs, got none. Name a folder that was `--out` of train or compare.")
    return found


def load_entries(path: str | Path, *, data: str | None = None) -> list[Entry]:
    """Read the rows of a comparison that ``path`` holds.

    Args:
        path: A run folder; a folder of run folders, of ``.npz`` predictions or of records, up to three levels deep; a file of
            predictions (``.npz``, ``.csv``, ``.parquet``, ``.pt``); or the record of a result (``.json``). Unfinished runs are
            left out. Predictions are named after their file; ``mine-seed3.npz`` is seed 3 of ``mine``.
        data: Name of the data set of predictions, which their file cannot say; "?" if not given.

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
    if not given.exists():
        raise FileNotFoundError(
            f"{path}: must be a run folder, a folder of them, a file of predictions or a record (.json), got nothing there."
        )
    runs = _runs(given)
    entries = [load_run_entry(folder) for folder in runs if is_finished(folder)]
    # Of a folder only records and predictions as .npz: it may hold tables of its own, written as .csv.
    files = [given] if given.is_file() else sorted([*_below(given, "*.npz"), *filter(_is_record, _below(given, "*.json"))])
    for file in [file for file in files if file.parent not in runs or file is given]:
        if file.suffix.lower() == ".json":
            entries.append(load_result(file))
        elif (predictions := load_predictions(file)).split in (None, Split.TEST):
            entries.append(_predictions_entry(predictions, file, data=data))
        elif file is given:
            raise ValueError(f"{path}: must hold predictions on test data, got those of the {predictions.split.value} split.")
    if not entries:
        raise ValueError(f"{path}: must hold finished runs, predictions (.npz) or records of results (.json), got none.")
    return entries


def load_run_entry(folder: str | Path) -> Entry:
    """Read a finished run as a row; raises ``ValueError`` with one sentence if a file of it is missing or damaged."""
    path = Path(folder)
    if not is_finished(path):
        raise ValueError(f"{path}: must be the folder of a finished run, got none. Go on with it with `--resume`.")
    try:
        recipe, facts, test = read_recipe(path), read_facts(path), load_predictions(path / "test.npz")
        lines = (path / "history.jsonl").read_text(encoding="utf-8").splitlines()
        # That of a run which was repaired afterwards (`+ts`) is of its network before.
        history = () if facts.get("temperature") else tuple(json.loads(line) for line in lines)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path}: must hold what a run wrote, got: {error} Put it back, or remove the folder of the run, which is then run "
            "again."
        ) from None
    return Entry(
        data=set_name(recipe.data.name),
        method=recipe.method.name,
        scores=_scores(test, path / "metrics.json"),
        preset=recipe.method.preset,
        model=recipe.backbone.name,
        epochs=recipe.train.epochs,
        seed=recipe.seed,
        test=test,
        history=history,
        best_epoch=facts.get("best_epoch"),
        temperature=facts.get("temperature"),
        recipe=flat_recipe(recipe),
        facts=_run_facts(recipe, facts),
        folder=str(path),
    )


def load_variants(folder: str | Path, *, repairs: Sequence[str] = ()) -> list[Entry]:
    """Read a finished run as rows: its own, one for each of its alternatives, and each of these after each repair.

    Repairs are names of calibrators, to fit on the validation part; a run with ``+ts`` is not repaired again.
    """
    own, run = load_run_entry(folder), load_run(folder)
    rows = {identity(own): (own, run.val)}
    method = split_name(own.method)[0]
    for name, found in run.alternatives.items():
        weights, _, rule = name.partition("-")
        recipe = {**own.recipe, "train.select": rule} | ({"train.average": "no"} if weights == "raw" else {})
        if recipe["train.average"] != own.recipe["train.average"] and method in METHODS and METHODS[method].learns:
            # What was learned on held-out data watched the average: raw weights of a run without one would be others.
            recipe["alternative.of"] = own.recipe["train.average"]
        row = replace(
            own,
            method=method,
            scores=measure(found.test, n_bins=_N_BINS),
            test=found.test,
            recipe=recipe,
            best_epoch=found.epoch,
            temperature=None,
            history=(),
            facts={**own.facts, "note": f"{name} of a run with other choices"},
        )
        rows.setdefault(identity(row), (row, found.val))
    repaired = [_repaired(row, val, name) for row, val in rows.values() if row.temperature is None for name in repairs]
    return [*(row for row, _ in rows.values()), *repaired]


def _repaired(row: Entry, val: Predictions, name: str) -> Entry:
    """A row after a repair fitted on its validation predictions."""
    from calibrant.calibrators import AutoCalibrator, TemperatureScaling
    from calibrant.calibrators.auto import calibrator_of

    calibrator = calibrator_of(name).fit(val)
    assert row.test is not None
    test = calibrator.apply(row.test)
    row = replace(row, scores=measure(test, n_bins=_N_BINS), test=test, history=())
    if isinstance(calibrator, TemperatureScaling):
        return replace(row, method=f"{row.method}+ts", temperature=calibrator.temperature_)
    notes = [row.facts.get("note"), f"{name} chose {calibrator.best_name_}" if isinstance(calibrator, AutoCalibrator) else None]
    note = "; ".join(str(note) for note in notes if note)
    return replace(row, recipe={**row.recipe, "repair": name}, facts=row.facts | ({"note": note} if note else {}))  # type: ignore[operator]


def is_run(place: Path) -> bool:
    """Whether a folder is that of a run, finished or not; a recipe alone may lie anywhere."""
    return (place / "recipe.toml").is_file() and (place / "run.json").is_file()


def without_repeats(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries without those that repeat a run with the same numbers."""
    kept: dict[object, Entry] = {}
    for entry in entries:
        kept.setdefault((identity(entry), round(entry.scores["ece"].value, 9)), entry)
    return list(kept.values())


def check_same_labels(
    entries: Sequence[Entry], *, where: str, tests: Mapping[str, Predictions | ImageSet] | None = None
) -> None:
    """Raise ``ValueError`` for rows of another test set than ``tests`` or else the first row, or in another order.

    Rows of another number of examples may be of a part of the test set: they are shown, but not compared. Of records without
    predictions only the number of classes is known.
    """
    known = {(data, len(test.labels)): test for data, test in (tests or {}).items()}
    classes = {data: test.num_classes for data, test in (tests or {}).items()}
    for entry in entries:
        same = entry.scores.num_classes == classes.setdefault(entry.data, entry.scores.num_classes)
        if entry.test is not None:
            test = known.setdefault((entry.data, len(entry.test)), entry.test)
            same = same and torch.equal(entry.test.labels, test.labels) and torch.allclose(_weights(entry.test), _weights(test))
        if not same:
            raise ValueError(
                f"{where} must be about the same test examples in the same order (classes, labels and weights), got others in "
                f"{entry.folder or entry.method}. Write that file anew, or measure it alone."
            )


def _weights(test: Predictions | ImageSet) -> torch.Tensor:
    """Weights with mean one; ones if there are none."""
    weights = getattr(test, "weights", None)
    return torch.ones(len(test.labels), dtype=torch.float64) if weights is None else weights.double() / weights.double().mean()


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
        if found.n == len(test) and found.metrics.keys() == values.keys():
            kept = [estimate.value for estimate in found.metrics.values()]
            if np.allclose(kept, [values[key] for key in found.metrics], rtol=1e-6, atol=1e-9, equal_nan=True):
                return found
    except (OSError, ValueError):
        pass
    return measure(test, n_bins=_N_BINS, file="test.npz")


def _run_facts(recipe: Recipe, facts: Mapping[str, Any]) -> dict[str, object]:
    device, processes = str(facts.get("device", "?")), facts.get("processes", 1)
    known: dict[str, object] = {
        "command": command_of(recipe),
        "machine": device if device.startswith("cpu") else f"{processes}x {device}",
        "versions": {name: facts[name] for name in ("calibrant", "torch", "python") if name in facts},
    }
    # Published sets never change, but other images may come to lie under a path.
    kept = ("seconds", "examples", "commit", *(["data"] if is_own(recipe.data) else []))
    return known | {name: facts[name] for name in kept if facts.get(name) is not None}


def _runs(top: Path) -> list[Path]:
    return [file.parent for file in _below(top, "recipe.toml") if is_run(file.parent)]


def _below(top: Path, name: str) -> list[Path]:
    """Files by their name or pattern, in ``top`` and up to three levels below it."""
    return sorted(file for depth in range(4) for file in top.glob("*/" * depth + name))


def command_of(recipe: Recipe) -> str:
    """Return the command that trains by ``recipe``: what is run by name, and what else differs; the place of data left out."""
    values, method = flat_recipe(recipe), recipe.method
    words = [word for key in NAMED for word in (KEYS[key].flag, text_of(values[key]))]
    usual = usual_recipe(method.name, method.preset)
    told = [f"{key}={text_of(value)}" for key, value in values.items() if key not in NAMED and usual.get(key) != text_of(value)]
    return shlex.join(["calibrant", "train", *words, *(word for text in told for word in ("--set", text))])


def identity(entry: Entry) -> tuple[object, ...]:
    """Return all that tells a run from others: what decides its row, and its seed."""
    return (*row_key(entry), entry.seed)


def catalogue_order(entry: Entry) -> tuple[object, ...]:
    """Key to sort runs by: data, network, method as in the catalogue, longest and plainest first, ``+ts`` after its base, seed.

    Predictions of others come last, and keep their order.
    """
    if entry.is_foreign:
        return (True,)
    base, scaled = split_name(entry.method)
    known = base not in METHODS, list(METHODS).index(base) if base in METHODS else 0, base
    settings = sorted(settings_of(entry).items())
    variant = -(entry.epochs or 0), entry.preset or "", len(settings), settings
    return False, entry.data, entry.model or "", known, variant, scaled, entry.seed is None, entry.seed or 0
