"""The folder of a run: what is written while it goes on, what at its end, and reading it back.

``recipe.toml`` the resolved recipe · ``run.json`` versions, device, command, by what the data are known again, and whether it
is finished · ``history.jsonl`` one line an epoch · TensorBoard events · ``state.pt`` the checkpoint, until the end ·
``weights.safetensors``, ``val.npz``, ``test.npz`` the best epoch · ``metrics.json`` what ``calibrant measure --json`` says of
``test.npz`` · ``shift.json`` the same of corrupted copies of the test set, where asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from torch import nn

from calibrant.engine.assemble import Assembly
from calibrant.engine.board import Board, NoBoard, open_board
from calibrant.engine.lock import lock_folder
from calibrant.engine.loop import EpochRecord
from calibrant.engine.provenance import provenance
from calibrant.engine.recipe import BackbonePart, Recipe, load_recipe, to_toml
from calibrant.engine.result import Run
from calibrant.engine.run import check_same_run, learning_of
from calibrant.engine.setup import build_backbone
from calibrant.engine.shift import load_shift, save_shift
from calibrant.engine.weights import load_weights, save_weights
from calibrant.io.atomic import atomic_writer
from calibrant.io.predictions import load_predictions, save_predictions

# What `RunFolder.begin` writes, beside events.
_BEGUN = ("recipe.toml", "run.json", "history.jsonl")
_EVENTS = "events.out.tfevents.*"


class _Shape(NamedTuple):
    num_classes: int
    channels: int
    size: tuple[int, int]


def is_finished(folder: str | Path) -> bool:
    """Whether a folder holds a finished run."""
    return read_facts(Path(folder)).get("finished") is not None


class RunFolder:
    """Writes a run's files.

    Args:
        path: The folder; made if it is not there.
        recipe: What is run in it.
        resume: Whether a run that is there may be continued; else a folder that holds one is refused.
    """

    def __init__(self, path: str | Path, recipe: Recipe, *, resume: bool) -> None:
        self.path, self.recipe = Path(path), recipe
        self.checkpoint = self.path / "state.pt"
        self._history: IO[str] | None = None
        self._board: Board = NoBoard()
        self._abandoned = False
        there = (self.path / "recipe.toml").exists()
        if there and not resume:
            raise ValueError(
                f"train: `out` must be a new folder, got {path}, which holds a run. Add `--resume` to go on with it, or name "
                "another."
            )
        if there:
            check_same_run(load_recipe(self.path / "recipe.toml"), recipe, where=str(self.path))
        self._new, self._epochs = not there, 0
        self._others_events = set(self.path.glob(_EVENTS))
        self._made = [place for place in (self.path, *self.path.parents) if not place.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(
                f"train: the folder {path} cannot be made ({error.strerror}). Choose another with `--out`."
            ) from None
        self._lock = lock_folder(self.path)
        for left in self.path.glob(".*.tmp"):
            # What a killed process was writing.
            left.unlink(missing_ok=True)

    def begin(self, assembly: Assembly, history: Sequence[EpochRecord]) -> None:
        """Write the recipe, where the run comes from, and the epochs that a resumed run has behind it."""
        shape = assembly.data.train
        if not (self.path / "recipe.toml").exists():
            _write_text(self.path / "recipe.toml", to_toml(self.recipe))
        known = read_facts(self.path)
        self._board = open_board(self.path, first_epoch=len(history))
        facts = provenance(assembly.hardware) | {
            "seed": self.recipe.seed,
            "processes": assembly.group.world_size,
            "parameters": sum(p.numel() for p in assembly.parts.model.parameters()),
            "inputs": {"num_classes": shape.num_classes, "channels": shape.channels, "size": list(shape.size)},
            "examples": {name: len(part) for name, part in vars(assembly.data).items() if part is not None},
            "data": assembly.fingerprint,
            **({"learning": learning} if (learning := learning_of(assembly.parts)) else {}),
            "tensorboard": not isinstance(self._board, NoBoard),
            "started": known.get("started") or _now(),
            "resumed_at_epochs": [*known.get("resumed_at_epochs", ()), *([len(history)] if history else [])],
            "finished": None,
        }
        self._write_facts(facts)
        _write_text(self.path / "history.jsonl", "".join(_line(record) for record in history))
        self._history = (self.path / "history.jsonl").open("a", encoding="utf-8")

    def begin_from(self, base: Run) -> None:
        """Write what `begin` does for a run that is made from a finished one and not trained."""
        assert base.folder is not None
        _write_text(self.path / "recipe.toml", to_toml(self.recipe))
        self._write_facts(read_facts(base.folder) | {"base": str(base.folder), "finished": None})
        _write_text(self.path / "history.jsonl", "".join(_line(record) for record in base.history))

    def epoch(self, record: EpochRecord) -> None:
        """Append an epoch to the history."""
        assert self._history is not None
        try:
            self._history.write(_line(record))
            self._history.flush()
            self._board.add(record)
        except OSError as error:
            what = error.strerror or error
            kept = "The last good checkpoint is kept" if self.checkpoint.exists() else "Make room, and add `--resume`"
            raise OSError(f"train: {self.path} cannot be written to ({what}). {kept}.") from None
        self._epochs += 1

    def finish(self, run: Run) -> Run:
        """Write everything that a finished run leaves behind, the word that it is finished last; return it with its folder."""
        from calibrant.metrics.measure import measure

        weights = run.model.state_dict()
        notes = {"backbone": run.recipe.backbone.name, "method": run.recipe.method.name, "epoch": str(run.best_epoch)}
        save_weights(self.path / "weights.safetensors", weights, run.hyper, notes=notes)
        save_predictions(run.val, self.path / "val.npz")
        save_predictions(run.test, self.path / "test.npz")
        _write_text(self.path / "metrics.json", measure(run.test, file="test.npz").to_json(indent=2) + "\n")
        if run.shift:
            save_shift(self.path / "shift.json", run.shift)
        facts = read_facts(self.path) | {
            "finished": _now(),
            "best_epoch": run.best_epoch,
            "seconds": run.history[-1].seconds,
            "temperature": run.temperature,
        }
        self._write_facts(facts)
        self.checkpoint.unlink(missing_ok=True)
        return replace(run, folder=self.path)

    def abandon(self) -> None:
        """Have `close` take back what `begin` wrote if not one epoch came out: a corrected command finds the folder free."""
        self._abandoned = self._new and self._epochs == 0

    def close(self) -> None:
        """Close what is open; a folder made for a run that could not begin goes away again."""
        try:
            if self._history is not None:
                self._history.close()
            self._board.close()
            self._clear()
        finally:
            # Last: another process may begin a run in a folder that is free, and what it writes is not ours to delete.
            self._lock.close()

    def _clear(self) -> None:
        if self._abandoned:
            events = set(self.path.glob(_EVENTS)) - self._others_events
            for place in (*(self.path / name for name in _BEGUN), *events):
                place.unlink(missing_ok=True)
        for place in self._made:
            try:
                place.rmdir()
            except OSError:
                break  # something lies in it

    def _write_facts(self, facts: dict[str, Any]) -> None:
        _write_text(self.path / "run.json", json.dumps(facts, indent=2) + "\n")


def load_run(folder: str | Path) -> Run:
    """Read a finished run.

    Args:
        folder: What `calibrant.train` wrote.

    Returns:
        The run; its network is built and its weights read when `Run.model` is first asked for. Raises ``ValueError`` with one
        sentence if there is no run, or one that is not finished.
    """
    path = Path(folder)
    if not (path / "recipe.toml").exists():
        raise ValueError(f"load_run: `{path}` must be the folder of a run, got one without recipe.toml.")
    facts = read_facts(path)
    if facts.get("finished") is None:
        raise ValueError(f"load_run: the run in `{path}` must be finished, got one that is not. Go on with it with `--resume`.")
    recipe = load_recipe(path / "recipe.toml")
    lines = (path / "history.jsonl").read_text(encoding="utf-8").splitlines()
    _, hyper = load_weights(path / "weights.safetensors")
    return Run(
        recipe=recipe,
        history=tuple(EpochRecord(**json.loads(line)) for line in lines),
        best_epoch=facts["best_epoch"],
        val=load_predictions(path / "val.npz"),
        test=load_predictions(path / "test.npz"),
        hyper=hyper,
        network=partial(_network, recipe.backbone, facts["inputs"], path),
        temperature=facts.get("temperature"),
        folder=path,
        shift=load_shift(path / "shift.json"),
    )


def load_network(folder: str | Path) -> nn.Module:
    """Read the network alone of a finished run, in evaluation mode."""
    return load_run(folder).model


def _network(part: BackbonePart, inputs: dict[str, Any], path: Path) -> nn.Module:
    height, width = inputs["size"]
    model = build_backbone(part, _Shape(inputs["num_classes"], inputs["channels"], (height, width)), seed=0)
    weights, _ = load_weights(path / "weights.safetensors")
    first = next(value for value in weights.values() if value.is_floating_point())
    model.to(first.dtype).load_state_dict(weights)
    return model


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what ``run.json`` of a run says; empty where there is none."""
    file = folder / "run.json"
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"train: `{file}` must hold what `calibrant train` wrote, got: {error}.") from None
    return found if isinstance(found, dict) else {}


def _line(record: EpochRecord) -> str:
    return json.dumps(record.to_dict()) + "\n"


def _write_text(path: Path, text: str) -> None:
    with atomic_writer(path) as handle:
        handle.write(text.encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
