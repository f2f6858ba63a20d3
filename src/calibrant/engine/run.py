"""What a run produces: predictions on whole sets, a record of every epoch, the best epoch, the finished run, and its folder.

docs/train.md says what each file of the folder holds.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.core.checks import ArrayLike
from calibrant.core.records import Predictions, Scores, Split
from calibrant.data.image_set import ImageSet, normalize
from calibrant.data.sets import read_images
from calibrant.engine.batches import at_once, check_same_data, load_data
from calibrant.engine.methods import flat_recipe
from calibrant.engine.recipe import NEUTRAL, BackbonePart, Recipe, read_toml, recipe_of, to_toml
from calibrant.engine.setup import (
    FeatureFunction,
    Hardware,
    InputShape,
    build_backbone,
    choose_hardware,
    feature_function,
    load_weights,
    save_weights,
)
from calibrant.io.files import atomic_writer, write_file
from calibrant.io.predictions import load_predictions, save_predictions
from calibrant.meta.step import meta_mode
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.scores import error_rate, negative_log_likelihood

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from calibrant.engine.train import Assembly

# Features → the gamma of every example, for methods that have one.
Gamma: TypeAlias = "Callable[[Tensor], Tensor] | None"


class EvalSet:
    """A set to pass through the network in evaluation mode.

    Several processes share the work, and each gets the whole result. ``resident`` images stay on the device.
    """

    def __init__(self, data: ImageSet, hardware: Hardware, *, resident: bool = True) -> None:
        self._hardware, self.labels, self._class_names = hardware, data.labels, data.class_names
        group, device = hardware.group, hardware.device
        share = -(-len(data) // group.world_size)
        # Gathering needs equal shares: the last one is filled up with its last example, which is cut off again.
        rows = (torch.arange(share) + group.rank * share).clamp(max=len(data) - 1)
        own = data.images if group.world_size == 1 else data.images[rows]
        self._images = own.to(device) if resident else own
        self._mean = torch.tensor(data.mean, dtype=hardware.dtype, device=device)
        self._std = torch.tensor(data.std, dtype=hardware.dtype, device=device)

    def run(self, model: nn.Module, forward: FeatureFunction, *, gamma: Gamma = None) -> tuple[Tensor, Tensor | None]:
        """Return logits ``[N, C]`` and, if wanted, gammas ``[N]``, on the device; the network keeps its mode."""
        device, narrow = self._hardware.device, self._hardware.precision == "bf16"
        logits, gammas = [], []
        with torch.no_grad(), meta_mode(model, "frozen"), self._hardware.autocast():
            for images in self._images.split(at_once(self._images[0], device)):
                features, scores = forward(normalize(images.to(device), self._mean, self._std))
                logits.append(scores.float() if narrow else scores)
                if gamma is not None:
                    gammas.append(gamma(features.float() if narrow else features))
        return self._whole(logits), self._whole(gammas) if gammas else None

    def predict(self, model: nn.Module, forward: FeatureFunction, split: Split, *, gamma: Gamma = None) -> Predictions:
        """Return the result of `run` as a record on the CPU."""
        logits, gammas = self.run(model, forward, gamma=gamma)
        columns = {} if gammas is None else {"gamma": gammas.cpu()}
        return Predictions(logits=logits.cpu(), labels=self.labels, split=split, class_names=self._class_names, columns=columns)

    def _whole(self, parts: list[Tensor]) -> Tensor:
        return self._hardware.group.gather(torch.cat(parts))[: len(self.labels)]


def epoch_scores(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """The three numbers of the paper's learning curves: error, NLL and 15-bin ECE of ``logits`` (any device)."""
    predictions = Predictions(logits=logits, labels=labels)
    probs = predictions.probs
    return {
        "error": float(error_rate(probs, labels)),
        "nll": float(negative_log_likelihood(predictions)),
        "ece": float(expected_calibration_error(probs, labels)),
    }


@dataclass(frozen=True)
class EpochRecord:
    """One line of the history: what the paper's learning curves show; None for scores of an epoch that was not evaluated."""

    epoch: int  # from 0
    lr: float
    train_loss: float  # of an example
    val_error: float | None = None
    val_nll: float | None = None
    val_ece: float | None = None
    test_error: float | None = None
    test_nll: float | None = None
    test_ece: float | None = None
    gamma_mean: float | None = None  # over test examples, for methods that have one
    gamma_std: float | None = None
    images_per_second: float | None = None  # of training alone
    seconds: float | None = None  # since the run began


class Alternative(NamedTuple):
    """Predictions of a run with other weights, or at the epoch that another rule chooses."""

    epoch: int
    val: Predictions
    test: Predictions


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        recipe: What was run.
        history: One record per epoch.
        best_epoch: Epoch whose weights the model and the predictions have.
        val: Predictions on the validation part; with ``+ts`` after temperature scaling, as ``test``.
        test: Predictions on the test set. Methods with a gamma have it for every example in the column ``gamma``.
        hyper: The learned hyper-parameters, name → value; empty for methods without any.
        network: Builds or returns the network; see `model`.
        inputs: Shape and normalisation of the images that it takes.
        temperature: What ``+ts`` divided the logits by, or None.
        folder: Where the run was written, or None.
        shift: ``"gaussian_noise-1"`` … → scores on the corrupted test set, with `data.shift`.
        alternatives: ``"raw-error"`` … ``"averaged-error+nll"`` → predictions, with `train.alternatives`; before temperature
            scaling.
    """

    recipe: Recipe = field(repr=False)
    history: tuple[EpochRecord, ...] = field(repr=False)
    best_epoch: int
    val: Predictions
    test: Predictions
    hyper: dict[str, Tensor] = field(repr=False)
    network: Callable[[], nn.Module] = field(repr=False)
    inputs: InputShape
    temperature: float | None = None
    folder: Path | None = None
    shift: Mapping[str, Scores] = field(default_factory=dict, repr=False)
    alternatives: Mapping[str, Alternative] = field(default_factory=dict, repr=False)

    @cached_property
    def model(self) -> nn.Module:
        """The network at the best epoch, in evaluation mode; its logits are those before temperature scaling."""
        return self.network().eval()

    def predict(self, images: ArrayLike | str | Path, *, device: str = "auto") -> Tensor:
        """Predict images without labels; they are normalised as in training.

        Args:
            images: ``[N, H, W]``, ``[N, H, W, channels]`` or ``[N, channels, H, W]`` of the run's size, whole numbers from 0 to
                255 or others from 0 to 1; or the path of an ``.npz`` with ``images``, of a picture, or of a folder of pictures,
                which are resized if needed.
            device: Where to compute: auto, cpu, cuda or cuda:1.

        Returns:
            Logits ``[N, C]`` on the CPU, after temperature scaling if the run has it; ``.softmax(1)`` gives probabilities.

        Example:
            >>> from calibrant import train
            >>> parts = {"data": {"name": "mixture"}, "backbone": {"name": "mlp"}, "method": {"name": "ce"}}
            >>> run = train(parts | {"train": {"epochs": 1}})
            >>> run.predict(torch.zeros(3, 8, 8)).softmax(1).shape
            torch.Size([3, 4])
        """
        return self.predict_named(images, device=device)[0]

    def predict_named(self, images: ArrayLike | str | Path, *, device: str = "auto") -> tuple[Tensor, list[str]]:
        """Return the logits of `predict`, and the name of each image: its path in the folder, or its number."""
        shape: InputShape | ImageSet = self.inputs
        if not shape.mean:
            shape = load_data(self.recipe.data).train
        read, names = read_images(images, form=(*shape.size, shape.channels), where="predict")
        labels = torch.zeros(len(read), dtype=torch.int64)
        hardware = choose_hardware(device=device, precision=self.recipe.train.precision)
        return self.logits_of(ImageSet(read, labels, shape.num_classes, shape.mean, shape.std), hardware), names

    def logits_of(self, data: ImageSet, hardware: Hardware) -> Tensor:
        """Return logits ``[N, C]`` of other images, on the CPU; after temperature scaling if the run has it."""
        model = self.network().to(hardware.device, hardware.dtype).eval()
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with hardware.active():
            # The set is used once, so it need not be on the device.
            logits, _ = EvalSet(data, hardware, resident=False).run(model, feature_function(model))
        return logits.cpu() / (self.temperature or 1.0)


# The score that each way of selecting compares; lower is better. "last" takes the last epoch.
_VALUES = {"error": "val_error", "nll": "val_nll", "error+nll": "val_nll", "error+ece": "val_ece"}


class Candidate(NamedTuple):
    """An epoch that is, or may turn out to be, the best; its weights are in host memory, as there may be dozens of these.

    The lowest ``value`` is best; ``error`` counts only if it must be close to the lowest error.
    """

    epoch: int
    error: float
    value: float
    weights: dict[str, Tensor]


class BestEpoch:
    r"""Keeps the weights of the best epoch so far, and of those that may yet turn out to be.

    "error" and "nll" take the first epoch with the lowest validation error or NLL, "last" the last. "error+nll" and "error+ece"
    take the lowest NLL or ECE among the epochs whose error is at most :math:`e + w \sqrt{e (1 - e) / n}`, with e the lowest
    error, n validation examples (``n_val``) and w standard errors (``within``). The bound can only fall, so an epoch beyond it,
    or beaten in both numbers, will never be the best: only the weights of the others are kept.
    """

    def __init__(self, select: str, *, n_val: int, within: float = 2.0) -> None:
        self._key, self._close, self._n, self._within = _VALUES.get(select), "+" in select, n_val, within
        self.candidates: list[Candidate] = []

    @property
    def best(self) -> Candidate:
        """The best epoch; the earliest of several."""
        return min(self.candidates, key=lambda candidate: (candidate.value, candidate.epoch))

    def offer(self, record: EpochRecord, copy_weights: Callable[[], dict[str, Tensor]]) -> None:
        """Keep the weights if the epoch is the best or may become it."""
        value = -float(record.epoch) if self._key is None else getattr(record, self._key)
        error = record.val_error if self._close else 0.0
        if value is None or error is None:
            return
        # NaN is worse than any number, and better than no epoch at all.
        value = math.inf if math.isnan(value) else value
        if any(held.error <= error and held.value <= value for held in self.candidates):
            return
        lowest = min([error, *(held.error for held in self.candidates)])
        bound = lowest + self._within * math.sqrt(lowest * (1 - lowest) / self._n)
        self.candidates = [
            held for held in self.candidates if (held.error < error or held.value < value) and held.error <= bound
        ]
        if error <= bound:
            self.candidates.append(Candidate(record.epoch, error, value, copy_weights()))


def copy_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}


def is_finished(folder: str | Path) -> bool:
    """Whether a folder holds a finished run."""
    return read_facts(Path(folder)).get("finished") is not None


class RunFolder:
    """Writes the files of a run; as a context manager it locks the folder for this process.

    A folder with a run is refused unless ``resume`` is set. A folder that was made for a run which ended before its first epoch
    is removed.
    """

    def __init__(self, path: Path, recipe: Recipe, *, resume: bool) -> None:
        self.path, self.recipe, self._epochs = path, recipe, 0
        self._board: SummaryWriter | None = None
        self._begun, self._made = (path / "recipe.toml").exists(), not path.exists()
        if self._begun and not resume:
            raise ValueError(
                f"train: `out` must be a new folder, got {path}, which holds a run. Add `--resume` to continue it, or name "
                "another."
            )
        if self._begun:
            check_same_run(read_recipe(path), recipe, where=str(path))
        path.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(path)
        for left in path.glob(".*.tmp"):
            left.unlink(missing_ok=True)  # what a killed process was writing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._board is not None:
            self._board.close()
        if kind is not None and self._made and not self._epochs:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def load_checkpoint(self, assembly: Assembly) -> dict[str, Any] | None:
        """Read the checkpoint of the run in the folder, or return None; its data must be those of ``assembly``."""
        file = self.path / "state.pt"
        if not (self._begun and file.exists()):
            return None
        check_same_data(read_facts(self.path), self.recipe.data, where=str(self.path), now=assembly.fingerprint)
        try:
            return dict(torch.load(file, map_location="cpu", weights_only=True))
        except Exception as error:
            # PyTorch's own message advises loading the file in a way that may run code.
            raise ValueError(
                f"train: `{file}` must be a checkpoint of `calibrant train`, got a damaged file. "
                "Delete it to start over, or use another folder."
            ) from error

    def begin(self, assembly: Assembly, history: Sequence[EpochRecord]) -> None:
        """Write the recipe, where the run comes from, and the epochs that a resumed run has done."""
        from torch.utils.tensorboard import SummaryWriter

        from calibrant import __version__

        data, learning, hardware = assembly.data, assembly.objective.learning, assembly.hardware
        known = read_facts(self.path)
        # Hides older events of this and later epochs.
        self._board = SummaryWriter(str(self.path), purge_step=len(history) or None)
        facts = {
            "calibrant": __version__,
            "commit": package_commit(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "device": device_name(hardware.device),
            "precision": hardware.precision,
            "compiled": hardware.compiled,
            "captured": hardware.captured,
            "command": sys.argv,
            "seed": self.recipe.seed,
            "processes": hardware.group.world_size,
            "parameters": sum(p.numel() for p in assembly.model.parameters()),
            "inputs": {name: getattr(data.train, name) for name in InputShape._fields},
            # Without `meta`, methods learn on the validation part.
            "examples": {name: len(part) for name, part in vars(data).items() if part is not None},
            "data": assembly.fingerprint,
            **({"learning": learning} if learning else {}),
            "started": known.get("started") or _now(),
            "resumed_at_epochs": [*known.get("resumed_at_epochs", ()), *([len(history)] if history else [])],
            "finished": None,
        }
        self.write_beginning(facts, history)

    def write_beginning(self, facts: dict[str, Any], history: Sequence[EpochRecord]) -> None:
        """Write the recipe, the facts about the run, and the epochs that it has done."""
        if not self._begun:
            write_file(self.path / "recipe.toml", to_toml(self.recipe))
        _write_json(self.path / "run.json", facts)
        write_file(self.path / "history.jsonl", "".join(_line(record) for record in history))

    def epoch(self, record: EpochRecord) -> None:
        """Append an epoch to the history."""
        self._epochs += 1
        with (self.path / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(_line(record))
        if self._board is not None:
            _write_events(self._board, record)

    def finish(self, run: Run) -> Run:
        """Write all files of a finished run, and last that it is finished; return the run with its folder."""
        from calibrant.metrics.measure import measure

        weights = run.model.state_dict()
        notes = {"backbone": run.recipe.backbone.name, "method": run.recipe.method.name, "epoch": str(run.best_epoch)}
        save_weights(self.path / "weights.safetensors", weights, run.hyper, notes=notes)
        _save_parts(self.path, run)
        write_file(self.path / "metrics.json", measure(run.test, file="test.npz").to_json(indent=2) + "\n")
        if run.shift:
            save_shift(self.path, run.shift)
        for name, found in run.alternatives.items():
            _save_parts(self.path / "alternatives" / name, found)
        facts = read_facts(self.path) | {
            **({"alternatives": {name: found.epoch for name, found in run.alternatives.items()}} if run.alternatives else {}),
            "finished": _now(),
            "best_epoch": run.best_epoch,
            "seconds": run.history[-1].seconds,
            "temperature": run.temperature,
        }
        _write_json(self.path / "run.json", facts)
        (self.path / "state.pt").unlink(missing_ok=True)
        return replace(run, folder=self.path)


def _save_parts(folder: Path, run: Run | Alternative) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_predictions(run.val, folder / "val.npz")
    save_predictions(run.test, folder / "test.npz")


def save_shift(folder: Path, shift: Mapping[str, Scores]) -> None:
    """Write scores under shift: for every set the output of ``calibrant measure --json``."""
    sets = {name: scores.to_dict() for name, scores in shift.items()}
    _write_json(folder / "shift.json", {"seed": 0, "sets": sets})


def check_same_run(found: Recipe, wanted: Recipe, *, where: str) -> None:
    """Raise unless two recipes describe the same run; they may differ in where and how fast it is computed."""
    # What the method decides counts too.
    first, second = (
        {key: value for key, value in flat_recipe(recipe).items() if key not in NEUTRAL and value is not None}
        for recipe in (found, wanted)
    )
    for key in sorted({*first, *second}):
        if first.get(key) != second.get(key):
            there, here = (repr(values[key]) if key in values else "not given" for values in (first, second))
            raise ValueError(
                f"train: the recipe must be the one that {where} was made with, but `{key}` is {there} there and {here} here. "
                "Use another folder for it."
            )


def load_run(folder: str | Path) -> Run:
    """Read a finished run.

    Args:
        folder: What `calibrant.train` wrote.

    Returns:
        The run; its network is built and its weights are read when `Run.model` is first used. Raises ``ValueError`` if there is
        no run, or if it is not finished.
    """
    path = Path(folder)
    if not (path / "recipe.toml").exists():
        raise ValueError(f"load_run: `{path}` must be the folder of a run, got one without recipe.toml.")
    facts = read_facts(path)
    if facts.get("finished") is None:
        raise ValueError(f"load_run: the run in `{path}` must be finished, got one that is not. Continue it with `--resume`.")
    recipe, shift = read_recipe(path), path / "shift.json"
    lines = (path / "history.jsonl").read_text(encoding="utf-8").splitlines()
    scores = json.loads(shift.read_text(encoding="utf-8"))["sets"] if shift.exists() else {}
    _, hyper = load_weights(path / "weights.safetensors")
    # JSON knows no tuples.
    given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in facts["inputs"].items()}
    inputs = InputShape(**given)
    val, test = _load_parts(path)
    return Run(
        recipe=recipe,
        history=tuple(EpochRecord(**json.loads(line)) for line in lines),
        best_epoch=facts["best_epoch"],
        val=val,
        test=test,
        hyper=hyper,
        network=partial(_network, recipe.backbone, inputs, path),
        inputs=inputs,
        temperature=facts.get("temperature"),
        folder=path,
        shift={name: Scores.from_dict(found) for name, found in scores.items()},
        alternatives={
            name: Alternative(epoch, *_load_parts(path / "alternatives" / name))
            for name, epoch in facts.get("alternatives", {}).items()
        },
    )


def _load_parts(folder: Path) -> tuple[Predictions, Predictions]:
    return load_predictions(folder / "val.npz"), load_predictions(folder / "test.npz")


def read_recipe(folder: Path) -> Recipe:
    """Read the recipe of a run.

    Recipes of earlier releases have `data.same_data`; ``run.json`` then tells how many examples were held out besides the
    validation part, which is now `data.meta`.
    """
    values = read_toml(folder / "recipe.toml")
    if is_finished(folder):
        values.get("train", {}).pop("average_from_epoch", None)
    part, preset = values.get("data", {}), values.get("method", {}).get("preset")
    if part.pop("same_data", None) is not None:
        facts = read_facts(folder)
        examples = facts.get("examples", {})
        unused = facts.get("data", {}).get("train_examples", 0) - examples.get("train", 0) - examples.get("val", 0)
        meta = examples.get("meta") or max(unused, 0)
        usual = preset == "paper" and "meta" in examples and "meta" not in part
        part["meta"] = None if usual else meta or None
    return recipe_of(values)


def _network(part: BackbonePart, inputs: InputShape, path: Path) -> nn.Module:
    model = build_backbone(part, inputs, seed=0)
    weights, _ = load_weights(path / "weights.safetensors")
    first = next(value for value in weights.values() if value.is_floating_point())
    model.to(first.dtype).load_state_dict(weights)
    return model


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the content of ``run.json``, or an empty dict if there is no such file."""
    file = folder / "run.json"
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except ValueError as error:
        raise ValueError(f"train: `{file}` must hold what `calibrant train` wrote, got: {error}.") from None


def _line(record: EpochRecord) -> str:
    return json.dumps(vars(record)) + "\n"


def _write_json(path: Path, value: object) -> None:
    write_file(path, json.dumps(value, indent=2) + "\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write_events(board: SummaryWriter, record: EpochRecord) -> None:
    for name, value in vars(record).items():
        if name != "epoch" and value is not None:
            part, _, rest = name.partition("_")
            tag = f"{part}/{rest}" if part in ("train", "val", "test", "gamma") else f"run/{name}"
            board.add_scalar(tag, value, record.epoch)
    board.flush()


def save_checkpoint(value: object, path: Path) -> None:
    """Write ``value`` with `torch.save`; the file is always either the old one or the complete new one."""
    with atomic_writer(path) as handle:
        try:
            torch.save(value, handle)
        except RuntimeError as error:
            # After a failed write `torch.save` complains about closing its archive.
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def restore_state(state: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy saved values into the tensors of a run; a captured step reads these, so they stay where they are."""
    if odd := sorted(set(state) ^ set(saved)):
        raise ValueError(f"train: the checkpoint must fit the recipe, but they differ in {odd[0]!r} and {len(odd) - 1} more.")
    with torch.no_grad():
        for name, value in state.items():
            value.copy_(saved[name])


def lock_folder(path: Path, *, where: str = "train") -> ExitStack:
    """Lock a folder for this process, until the result is closed or the process ends.

    Raises ``ValueError`` if another process holds the lock. On systems that cannot lock folders nothing happens.
    """
    held = ExitStack()
    try:
        import fcntl
    except ImportError:
        return held
    handle = os.open(path, os.O_RDONLY)
    held.callback(os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.close()
        raise ValueError(f"{where}: {path} is being written by another process. Wait for it, or name another folder.") from None
    except OSError:
        pass  # some network file systems have no locks
    return held


def device_name(device: torch.device) -> str:
    """Name of the GPU or CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"cpu ({platform.processor() or platform.machine()}, {threads} thread{'' if threads == 1 else 's'})"


def package_commit(folder: Path | None = None) -> str | None:
    """Commit of the git checkout that contains the package, with ``-dirty`` if files differ; None outside of one."""
    git = ["git", "-C", str(folder or Path(__file__).parents[1])]
    # An environment may lie in another project's checkout; in one of this package, its files are tracked.
    asked = ["ls-files", "--error-unmatch", "__init__.py"], ["describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        found = [subprocess.run([*git, *words], capture_output=True, text=True, timeout=10, check=True) for words in asked]
    except (OSError, subprocess.SubprocessError):
        return None
    return found[1].stdout.strip()
