"""The record of one result: what is kept of a run once its folder is gone, as a small JSON file.

A record says what was run, where and how, what was measured of its test predictions, as ``calibrant measure --json`` writes it,
and enough to draw its reliability diagram, its learning curves and its robustness to binning. Predictions are not in it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from calibrant.core.entry import BinSweep, Entry
from calibrant.core.records import Bins
from calibrant.core.registry import lookup
from calibrant.core.scores import Scores
from calibrant.grid.rows import settings_of
from calibrant.io.files import atomic_writer
from calibrant.metrics.chance import bin_sweep

_WHAT = ("data", "method", "preset", "model", "epochs", "seed")
_FACTS = ("command", "effective", "machine", "versions", "commit", "seconds", "examples", "note")
_KEYS = (*_WHAT, "metrics", "recipe", *_FACTS, "best_epoch", "temperature", "bins", "sweep", "history")
# What the figures show of every epoch; speed and time say nothing about the result.
_CURVES = ("train_loss", "val_error", "val_ece", "test_error", "test_ece", "gamma_mean", "gamma_std")
# A schedule in steps has a few rates, a smooth one has as many as epochs and is not worth keeping.
_MOST_RATES = 20
_BIN_PARTS = ("edges", "count", "confidence", "accuracy")
# Characters that settings may take in the name of a file.
_LONGEST = 100


def result_from_entry(entry: Entry) -> dict[str, Any]:
    """Return the record of a run as plain data.

    Args:
        entry: A run. Bins and sweep are computed from its test predictions where they are missing.

    Returns:
        Keys ``data``, ``method``, ``preset``, ``model``, ``epochs``, ``seed``, ``metrics`` and, where known, ``recipe`` (what
        decided the run, dotted key → value), ``command``, ``effective``, ``machine``, ``versions``, ``commit``, ``seconds``,
        ``examples``, ``note``, ``best_epoch``, ``temperature``, ``bins`` (of the reliability diagram), ``sweep`` (ECE and MCE
        against the number of bins) and ``history`` (columns over the epochs that were evaluated; ``lr`` as pairs of the epoch
        from which on it holds and the rate).

    Example:
        >>> from calibrant import Predictions, measure
        >>> test = Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20)
        >>> record = result_from_entry(Entry("coins", "ce", measure(test), seed=0, test=test))
        >>> record["metrics"]["metrics"]["error"]["value"], record["sweep"]["n_bins"][:3]
        (0.5, [10, 15, 20])
    """
    every = entry.recipe.get("train.eval_every_epochs", 1)
    sweep = entry.sweep or (None if entry.test is None else bin_sweep(entry.test))
    record: dict[str, Any] = {name: getattr(entry, name) for name in _WHAT}
    optional = {
        "metrics": json.loads(entry.scores.to_json()) | {"file": None},
        "recipe": dict(entry.recipe),
        **({} if every in (1, "1") else {"note": f"validation looked at every {every} epochs"}),
        **{name: entry.facts[name] for name in _FACTS if name in entry.facts},
        "best_epoch": entry.best_epoch,
        "temperature": entry.temperature,
        "bins": {name: _short(getattr(entry.scores.bins, name).tolist(), digits=10) for name in _BIN_PARTS},
        "sweep": {key: _short(values) for key, values in vars(sweep).items() if values} if sweep is not None else None,
        # The history of a run that was repaired afterwards is that of its base.
        "history": None if entry.temperature is not None else _columns(entry.history),
    }
    if not len(entry.scores.bins.count):
        del optional["bins"]
    return record | {key: value for key, value in optional.items() if value or key == "best_epoch" and value is not None}


def entry_from_result(record: Mapping[str, Any], *, where: str = "result") -> Entry:
    """Read a record back; what it does not keep, the test predictions above all, is missing.

    Args:
        record: What `result_from_entry` returns.
        where: Where it comes from, for messages.

    Returns:
        The run. Raises ``ValueError`` naming the key that is missing, unknown or malformed.

    Example:
        >>> from calibrant import Predictions, measure
        >>> test = Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20)
        >>> entry = entry_from_result(result_from_entry(Entry("coins", "ce", measure(test), seed=3, test=test)))
        >>> entry.seed, entry.scores["ece"].value == measure(test)["ece"].value, entry.test
        (3, True, None)
    """
    try:
        for key in record:
            lookup(dict.fromkeys(_KEYS), key, kind="key of a result")
        kept, sweep = record.get("bins"), record.get("sweep")
        bins = None if kept is None else Bins(*(torch.tensor(kept[name], dtype=torch.float64) for name in _BIN_PARTS))
        return Entry(
            **{name: record[name] if name in ("data", "method") else record.get(name) for name in _WHAT},  # type: ignore[arg-type]
            scores=Scores.from_dict(record["metrics"], bins=bins),
            history=_epochs(record.get("history") or {}, total=record.get("epochs")),
            best_epoch=record.get("best_epoch"),
            temperature=record.get("temperature"),
            sweep=None if sweep is None else BinSweep(**{key: tuple(values) for key, values in sweep.items()}),
            recipe=dict(record["recipe"]) if "recipe" in record else _told_by_command(record),
            facts={name: record[name] for name in _FACTS if name in record},
        )
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        said = f"no `{error.args[0]}`" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise ValueError(
            f"{where}: must be the record of a result, with `data`, `method` and `metrics`, got: {said}."
        ) from None


def save_results(entries: Sequence[Entry], folder: str | Path, *, note: str | None = None) -> list[Path]:
    """Write the records of runs as ``DATA-MODEL-METHOD-PRESET-seedN.json``; where one is refused, none is written.

    Args:
        entries: Runs; see `result_from_entry`. One that is there twice with the same numbers is taken once.
        folder: Where to; made if need be. A record of the same run there is replaced, one of another length is not.
        note: What a reader must know besides, of all of them.

    Returns:
        The files. Raises ``ValueError`` if the place of one is taken or wanted by two, ``OSError`` if it cannot be written.
    """
    place = Path(folder)
    kept: dict[Path, Entry] = {}
    for entry in entries:
        file = place / result_name(entry)
        other = kept.get(file) or (load_result(file) if file.exists() else entry)
        if other.epochs != entry.epochs or (file in kept and other.scores.metrics != entry.scores.metrics):
            runs = " and ".join(f"{e.folder or e.method} of {e.epochs} epochs" for e in (other, entry))
            raise ValueError(f"{file}: must be the record of one run, got two: {runs}. Leave one out, or use another folder.")
        kept[file] = entry
    make_folder(place)
    for file, entry in kept.items():
        record = result_from_entry(entry) | ({} if note is None else {"note": note})
        with atomic_writer(file) as handle:
            handle.write(f"{_dump(record)}\n".encode())
    return list(kept)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; raises ``OSError`` with one sentence where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(f"{folder}: must be a folder that can be made, got: {error.strerror}. Name another.") from None


def load_result(path: str | Path) -> Entry:
    """Read one record; raises ``ValueError`` or ``OSError`` with one sentence that names the file."""
    file = Path(path)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{file}: must be the record of a result, got nothing there.") from None
    except ValueError as error:
        raise ValueError(f"{file}: must be the record of a result, got: {error}.") from None
    return replace(entry_from_result(found, where=str(file)), folder=str(file))


def load_results(folder: str | Path) -> list[Entry]:
    """Read all records of a folder, by name; raises ``ValueError`` if there are none."""
    files = sorted(Path(folder).glob("*.json"))
    if not files:
        raise ValueError(f"{folder}: must be a folder with records of results, got none. `calibrant results add` makes them.")
    return [load_result(file) for file in files]


def result_name(entry: Entry) -> str:
    """Name of a record's file.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> result_name(Entry("cifar10", "ce+ts", scores, model="resnet18", preset="paper", seed=0))
        'cifar10-resnet18-ce+ts-paper-seed0.json'
    """
    # Settings by their last word, as in `average-phase` for train.average=phase; many of them by a short sum.
    told = settings_of(entry)
    settings = "-".join(f"{key.rpartition('.')[2]}-{value}" for key, value in told.items())
    if len(settings) > _LONGEST:
        settings = hashlib.sha256("\n".join(f"{key}={value}" for key, value in told.items()).encode()).hexdigest()[:12]
    seed = None if entry.seed is None else f"seed{entry.seed}"
    words = [entry.data, entry.model, entry.method, entry.preset, settings, seed]
    return re.sub(r"[^\w.+-]", "-", "-".join(word for word in words if word)) + ".json"


def _told_by_command(record: Mapping[str, Any]) -> dict[str, object]:
    """The recipe of a record that was written before records kept it: what its command set, and what its preset decided."""
    words = shlex.split(record.get("command") or "")
    told = {"--set": "{}", "--init": "backbone.init={}"}
    pairs = [told[flag].format(value).partition("=") for flag, value in zip(words, words[1:], strict=False) if flag in told]
    return {**{key: value for key, _, value in pairs if key != "data.root"}, **(record.get("effective") or {})}


def _columns(history: Sequence[Mapping[str, float | int | None]]) -> dict[str, list[Any]]:
    rows = [(epoch, line) for epoch, line in enumerate(history) if line.get("val_error") is not None]
    if not rows:
        return {}
    found: dict[str, list[Any]] = {"epoch": [epoch for epoch, _ in rows]}
    for name in _CURVES:
        values = _short([line.get(name) for _, line in rows])
        if any(value is not None for value in values):
            found[name] = values
    rates = _short([line.get("lr") for line in history])
    steps = [[e, rate] for e, rate in enumerate(rates) if rate is not None and (e == 0 or rate != rates[e - 1])]
    return found | ({"lr": steps} if 0 < len(steps) <= _MOST_RATES else {})


def _epochs(columns: Mapping[str, Sequence[Any]], *, total: int | None) -> tuple[dict[str, float | int | None], ...]:
    if not columns:
        return ()
    known = list(columns["epoch"])
    lines: list[dict[str, float | int | None]] = [{"epoch": e} for e in range(max(total or 0, known[-1] + 1))]
    for name, values in columns.items():
        if name == "lr":
            for first, rate in values:
                for line in lines[first:]:
                    line["lr"] = rate
        elif name != "epoch":
            for epoch, value in zip(known, values, strict=True):
                lines[epoch][name] = value
    return tuple(lines)


def _short(values: Sequence[float | None], *, digits: int = 6) -> list[float | None]:
    """Six digits are more than any figure shows; whole numbers stay whole. JSON has no word for what is not finite."""
    finite = [float(f"{value:.{digits}g}") if value is not None and math.isfinite(value) else None for value in values]
    return [int(value) if value is not None and value.is_integer() and abs(value) >= 2 else value for value in finite]


def _dump(value: object, indent: int = 0) -> str:
    """JSON with a line for every key, but lists in one line."""
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    inner = ",\n".join(f"{' ' * (indent + 1)}{json.dumps(key)}: {_dump(item, indent + 1)}" for key, item in value.items())
    return f"{{\n{inner}\n{' ' * indent}}}"
