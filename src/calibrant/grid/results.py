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
from calibrant.io.atomic import atomic_writer
from calibrant.metrics.sweep import bin_sweep

_FACTS = ("command", "effective", "machine", "versions", "commit", "seconds", "examples", "note")
_WHAT = ("data", "method", "preset", "model", "epochs", "seed")
_KEYS = (*_WHAT, "metrics", *_FACTS, "best_epoch", "temperature", "bins", "sweep", "history")
# What the figures show of every epoch; speed and time say nothing about the result.
_CURVES = ("train_loss", "val_error", "val_ece", "test_error", "test_ece", "gamma_mean", "gamma_std")
# A schedule in steps has a few rates, a smooth one has as many as epochs and is not worth keeping.
_MOST_RATES = 20
_BIN_PARTS = ("edges", "count", "confidence", "accuracy")
# Of a sweep. Older records do not say what a calibrated model would show.
_ERRORS, _CHANCE = ("ece", "mce"), ("ece_if_calibrated", "mce_if_calibrated")
# Characters that settings may take in the name of a file.
_LONGEST = 100
# A setting that names a place on one machine.
_LOCAL = "data.root"


def result_from_entry(entry: Entry) -> dict[str, Any]:
    """Return the record of a run as plain data.

    Args:
        entry: A run. Bins and sweep are computed from its test predictions where they are missing.

    Returns:
        Keys ``data``, ``method``, ``preset``, ``model``, ``epochs``, ``seed``, ``metrics`` and, where known, ``command``,
        ``effective`` (averaging and choice of the epoch, which the command may leave to the preset), ``machine``,
        ``versions``, ``commit``, ``seconds``, ``examples``, ``note``, ``best_epoch``, ``temperature``, ``bins`` (of the
        reliability diagram), ``sweep`` (ECE and MCE against the number of bins, and what a calibrated model would show) and
        ``history`` (columns over the epochs that were evaluated; ``lr`` as pairs of the epoch from which on it holds and the
        rate).

    Example:
        >>> from calibrant import Predictions, measure
        >>> test = Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20)
        >>> record = result_from_entry(Entry("coins", "ce", measure(test), seed=0, test=test))
        >>> record["metrics"]["metrics"]["error"]["value"], record["sweep"]["n_bins"][:3]
        (0.5, [10, 15, 20])
    """
    record: dict[str, Any] = {name: getattr(entry, name) for name in _WHAT}
    record["metrics"] = json.loads(entry.scores.to_json()) | {"file": None}
    facts = {name: entry.facts[name] for name in _FACTS if entry.facts.get(name) is not None}
    if isinstance(facts.get("command"), str):
        facts["command"] = portable_command(str(facts["command"]))
    record |= facts
    note = _sparse_note(entry)
    if note and "note" not in record:
        record["note"] = note
    optional = {
        "best_epoch": entry.best_epoch,
        "temperature": entry.temperature,
        "bins": _plain_bins(entry.scores.bins),
        "sweep": _plain_sweep(entry),
        # The history of a run that was repaired afterwards is that of its base.
        "history": None if entry.temperature is not None else _columns(entry.history),
    }
    return record | {key: value for key, value in optional.items() if value}


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
    if not isinstance(record, Mapping):
        raise ValueError(f"{where}: must be the record of a result, a JSON object, got {type(record).__name__}.")
    for key in ("data", "method", "metrics"):
        if key not in record:
            raise ValueError(
                f"{where}: must be the record of a result, with `data`, `method` and `metrics`, got one without `{key}`."
            )
    try:
        for key in record:
            lookup(dict.fromkeys(_KEYS), key, kind="key of a result")
        bins, sweep = record.get("bins"), record.get("sweep")
        return Entry(
            **{name: record.get(name) for name in _WHAT},  # type: ignore[arg-type]
            scores=Scores.from_dict(record["metrics"], bins=None if bins is None else _bins(bins)),
            history=_epochs(record.get("history") or {}, total=record.get("epochs")),
            best_epoch=record.get("best_epoch"),
            temperature=record.get("temperature"),
            sweep=None if sweep is None else _sweep(sweep),
            facts={name: record[name] for name in _FACTS if name in record},
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        said = f"no `{error.args[0]}`" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise ValueError(f"{where}: must be the record of a result, but {said}.") from None


def save_result(entry: Entry, folder: str | Path, *, note: str | None = None) -> Path:
    """Write the record of a run as ``DATA-MODEL-METHOD-PRESET-seedN.json``, settings before the seed.

    Args:
        entry: A run; see `result_from_entry`.
        folder: Where to; made if need be. A record of the same run there is replaced, one of another length is not.
        note: What a reader must know besides.

    Returns:
        The file. Raises ``ValueError`` if its place is taken, ``OSError`` if it cannot be written.
    """
    return save_results([entry], folder, note=note)[0]


def save_results(entries: Sequence[Entry], folder: str | Path, *, note: str | None = None) -> list[Path]:
    """Write the records of several runs; where one is refused, none is written.

    Args:
        entries: Runs; see `save_result`. One that is there twice with the same numbers is taken once.
        folder: Where to.
        note: What a reader must know besides, of all of them.

    Returns:
        The files. Raises ``ValueError`` if the place of one is taken or wanted by two, ``OSError`` if it cannot be written.
    """
    place = Path(folder)
    kept: dict[Path, tuple[Entry, dict[str, Any]]] = {}
    for entry in entries:
        file, record = place / result_name(entry), result_from_entry(entry)
        if file in kept:
            _check_once(*kept[file], entry, record, file)
            continue
        if file.exists():
            _check_same(load_result(file), entry, file)
        kept[file] = entry, record | ({} if note is None else {"note": note})
    make_folder(place)
    for file, (_, record) in kept.items():
        with atomic_writer(file) as handle:
            handle.write(f"{_dump(record)}\n".encode())
    return list(kept)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; raises ``OSError`` with one sentence where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        taken = next(place for place in (folder, *folder.parents) if place.exists())
        raise NotADirectoryError(f"{folder}: must be a folder, got the file {taken} in its place. Name another.") from None
    except OSError as error:
        raise type(error)(f"{folder}: must be a folder that can be made, got: {error.strerror}. Name another.") from None


def load_result(path: str | Path) -> Entry:
    """Read one record; raises ``ValueError`` or ``OSError`` with one sentence that names the file."""
    file = Path(path)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{file}: must be the record of a result, got nothing there.") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{file}: must be the record of a result, got: {error}.") from None
    return replace(entry_from_result(found, where=str(file)), folder=str(file))


def load_results(folder: str | Path) -> list[Entry]:
    """Read all records of a folder, by name; raises ``ValueError`` if there are none."""
    place = Path(folder)
    files = sorted(place.glob("*.json"))
    if not files:
        got = "none" if place.is_dir() else "a file" if place.exists() else "nothing there"
        raise ValueError(f"{folder}: must be a folder with records of results, got {got}. `calibrant results add` makes them.")
    return [load_result(file) for file in files]


def result_name(entry: Entry) -> str:
    """Name of a record's file.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
        >>> result_name(Entry("cifar10", "ce+ts", scores, model="resnet18", preset="paper", seed=0))
        'cifar10-resnet18-ce+ts-paper-seed0.json'
    """
    told = settings_of(entry)
    # Settings by their last word, as in `average-phase` for train.average=phase; many of them by a short sum.
    settings = "-".join(f"{key.rpartition('.')[2]}-{value}" for key, _, value in (text.partition("=") for text in told))
    if len(settings) > _LONGEST:
        settings = hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]
    seed = None if entry.seed is None else f"seed{entry.seed}"
    words = [entry.data, entry.model, entry.method, entry.preset, settings, seed]
    return re.sub(r"[^\w.+-]", "-", "-".join(word for word in words if word)) + ".json"


def portable_command(command: str) -> str:
    """Take out of a command what names a place on one machine.

    Example:
        >>> portable_command("calibrant train --method ce --set data.root=/mnt/sets --set optim.lr=0.2")
        'calibrant train --method ce --set optim.lr=0.2'
    """
    words, kept = shlex.split(command), []
    while words:
        word = words.pop(0)
        local = words and (word == "--data-root" or (word == "--set" and words[0].partition("=")[0] == _LOCAL))
        kept += [] if local else [word]
        words = words[1:] if local else words
    return shlex.join(kept)


def _check_same(found: Entry, entry: Entry, file: Path) -> None:
    if (found.epochs, settings_of(found)) != (entry.epochs, settings_of(entry)):
        there, here = (f"{e.epochs} epochs {' '.join(settings_of(e))}".strip() for e in (found, entry))
        raise ValueError(
            f"{file}: is the record of a run of {there}, and is not replaced by one of {here}. Use another folder."
        )


def _check_once(first: Entry, kept: Mapping[str, Any], second: Entry, record: Mapping[str, Any], file: Path) -> None:
    one, two = (kept["metrics"], first.epochs, settings_of(first)), (record["metrics"], second.epochs, settings_of(second))
    if one != two:
        places = " and ".join(str(entry.folder or entry.method) for entry in (first, second))
        raise ValueError(f"{file}: must be the record of one run, got two, {places}. Leave one out.")


def _sparse_note(entry: Entry) -> str | None:
    found = re.search(r"train\.eval_every_epochs=(\d+)", str(entry.facts.get("command", "")))
    return f"validation looked at every {found[1]} epochs" if found and found[1] != "1" else None


def _plain_bins(bins: Bins) -> dict[str, list[float]] | None:
    if not len(bins.count):
        return None
    return {name: [_short(value, digits=10) for value in getattr(bins, name).double().tolist()] for name in _BIN_PARTS}


def _bins(found: Mapping[str, Sequence[float]]) -> Bins:
    return Bins(*(torch.tensor(found[name], dtype=torch.float64) for name in _BIN_PARTS))


def _plain_sweep(entry: Entry) -> dict[str, list[Any]] | None:
    sweep = entry.sweep or (None if entry.test is None else bin_sweep(entry.test))
    if sweep is None:
        return None
    errors = {key: [_short(value) for value in getattr(sweep, key)] for key in (*_ERRORS, *_CHANCE)}
    return {"n_bins": list(sweep.n_bins)} | {key: values for key, values in errors.items() if values}


def _sweep(found: Mapping[str, Sequence[Any]]) -> BinSweep:
    parts = {key: tuple(found[key]) for key in ("n_bins", *_ERRORS)}
    parts |= {key: tuple(found.get(key, ())) for key in _CHANCE}
    for key, values in parts.items():
        if len(values) != len(parts["n_bins"]) and (values or key not in _CHANCE):
            raise ValueError(
                f"`{key}` of `sweep` must have a value for each of {len(parts['n_bins'])} numbers of bins, got {len(values)}"
            )
    return BinSweep(**parts)


def _columns(history: Sequence[Mapping[str, float | int | None]]) -> dict[str, list[Any]]:
    rows = [(epoch, line) for epoch, line in enumerate(history) if line.get("val_error") is not None]
    if not rows:
        return {}
    found: dict[str, list[Any]] = {"epoch": [epoch for epoch, _ in rows]}
    for name in _CURVES:
        # JSON has no word for what is not finite, as a gamma that ran away.
        values = [None if (v := line.get(name)) is None or not math.isfinite(v) else _short(v) for _, line in rows]
        if any(value is not None for value in values):
            found[name] = values
    rates = [line.get("lr") for line in history]
    steps = [[e, _short(rate)] for e, rate in enumerate(rates) if rate is not None and (e == 0 or rate != rates[e - 1])]
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


def _short(value: float, *, digits: int = 6) -> float:
    """Six digits are more than any figure shows; whole numbers stay whole."""
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) >= 2 else short


def _dump(value: object, indent: int = 0) -> str:
    """JSON with a line for every key, but lists in one line."""
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    inner = ",\n".join(f"{' ' * (indent + 1)}{json.dumps(key)}: {_dump(item, indent + 1)}" for key, item in value.items())
    return f"{{\n{inner}\n{' ' * indent}}}"
