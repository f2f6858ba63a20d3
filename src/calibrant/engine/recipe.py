"""A recipe: everything that decides a training run, as frozen data read from TOML, checked key by key."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

from calibrant.core.registry import lookup
from calibrant.engine.repeated import repeated_key
from calibrant.engine.values import plain_value, read_value, toml_value

# Keys that say where and how fast a run is computed, and what is looked at besides, but not what is trained.
NEUTRAL = frozenset(
    {"data.root", "data.place", "data.shift", "train.device", "train.compile", "train.graph", "train.checkpoint_every_seconds"}
)
# Keys that a number switches off, and that number: `none`, as other keys have it, means the same.
_OFF = {"train.clip_norm": 0.0}


@dataclass(frozen=True)
class DataPart:
    """Which data, and how it is divided.

    Attributes:
        name: Name of the set, or a path to a folder of class folders or an ``.npz``.
        root: Folder where the set lies; None for the usual place.
        size: Side in pixels of the squares that the pictures of a folder are resized to; None for their own size, or the
            median one where they differ.
        val: Validation examples (model selection, post-hoc calibration); None for a tenth of the training set.
        meta: Meta-validation examples; None for a tenth.
        same_data: Whether methods without a meta part leave it unused, so that all train on the same examples.
        augment: Whether to crop and mirror.
        pad: Pixels by which images are padded on each side for random crops; None for the set's own number.
        flip: Whether to mirror half of the images; None for what suits the set.
        place: Whether images lie on the "device" or are sent from the "host" batch by batch; "auto" sends what does not fit.
        shift: Whether to evaluate the finished network on corrupted copies of the test set too.
    """

    name: str = "cifar10"
    root: str | None = None
    size: int | None = None
    val: int | None = None
    meta: int | None = None
    same_data: bool = False
    augment: bool = True
    pad: int | None = None
    flip: bool | None = None
    place: Literal["auto", "device", "host"] = "auto"
    shift: bool = False


@dataclass(frozen=True)
class BackbonePart:
    """Which network.

    Attributes:
        name: Name of a backbone, or ``package.module:factory`` of one's own.
        init: Weights to start from (safetensors), or None.
        freeze: Prefixes of parameter names that stay as they are.
    """

    name: str = "resnet18"
    init: str | None = None
    freeze: tuple[str, ...] = ()


@dataclass(frozen=True)
class MethodPart:
    """Which method of the catalogue.

    Attributes:
        name: Its name; ``+ts`` behind it adds temperature scaling.
        preset: "default" (what works best) or "paper" (the most literal reading).
        options: Hyper-parameters that differ from the preset, name → value.
    """

    name: str = "flgamma-sece"
    preset: Literal["default", "paper"] = "default"
    options: Mapping[str, float | int | str | bool | tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainPart:
    """How long and in what arithmetic.

    Attributes:
        epochs: Passes over the training set.
        batch_size: Examples of one step, over all processes together.
        reduction: Whether the loss of a batch is the "sum" or the "mean" of its examples'.
        clip_norm: Largest norm of the gradient; 0 (or "none") switches clipping off.
        precision: "bf16" autocast, "float32" or "float64"; "auto" is bf16 on a GPU that has it, else float32.
        select: What of the validation part picks the best epoch: lowest "error" or "nll"; "error+nll" or "error+ece", the
            lowest NLL or ECE among the epochs whose error is close to the lowest; or "last". "auto" for "error+nll" with
            methods that learn hyper-parameters, under the default preset, and for "error" with all others.
        select_within: How close, in standard errors of that lowest error over the validation part.
        average: Whether predictions are those of averaged weights: "ema" forgets old ones exponentially, "uniform" weighs all
            since ``average_from_epoch`` alike, "phase" averages over ``average_share`` of the steps since the learning rate
            last dropped and computes BatchNorm's statistics anew, "no" takes the last ones; "auto" for "phase" with methods
            that learn hyper-parameters, under the default preset, and "no" with all others. Methods that learn look through the
            same average, with "phase" through that of "ema", which answers sooner, with statistics of its own.
        average_decay: Share of the average that a step keeps, for "ema"; None to remember about a fiftieth of all steps, but at
            most a thousand.
        average_share: Share of the steps since the last drop that "phase" remembers, in (0, 1].
        average_from_epoch: Epoch from which on weights are averaged; None for the first ("ema", "phase") or for that of the
            last drop of the paper's learning rate, 5/7 of all ("uniform").
        device: "auto", "cpu", "cuda" or "cuda:1".
        compile: Whether to compile the network; "auto" does on a GPU that trains alone, for runs long enough to repay it.
        graph: Whether to replay the step as a CUDA graph; "auto" does on a GPU that trains alone.
        eval_every_epochs: Epochs between evaluations (the last is always evaluated).
        checkpoint_every_seconds: Seconds between checkpoints (the end is always saved).
    """

    epochs: int = 350
    batch_size: int = 128
    reduction: Literal["sum", "mean"] = "sum"
    clip_norm: float = 2.0
    precision: Literal["auto", "bf16", "float32", "float64"] = "auto"
    select: Literal["auto", "error", "nll", "error+nll", "error+ece", "last"] = "auto"
    select_within: float = 2.0
    average: Literal["auto", "no", "ema", "uniform", "phase"] = "auto"
    average_decay: float | None = None
    average_share: float = 0.5
    average_from_epoch: int | None = None
    device: str = "auto"
    compile: Literal["auto", "yes", "no"] = "auto"
    graph: Literal["auto", "yes", "no"] = "auto"
    eval_every_epochs: int = 1
    checkpoint_every_seconds: float = 30.0


@dataclass(frozen=True)
class OptimPart:
    """Optimizer and learning-rate schedule.

    Attributes:
        name: "sgd" or "adamw".
        lr: Learning rate at this recipe's batch size.
        momentum: Momentum of SGD.
        weight_decay: L2 coefficient.
        nesterov: Nesterov momentum.
        schedule: "multistep", "cosine" or "constant".
        milestones_epochs: Where multistep drops; None for 3/7 and 5/7 of all epochs (150 and 250 of 350), the first
            epoch excepted; an empty list for nowhere.
        decay: Factor of each drop.
        warmup_epochs: Epochs over which the rate rises linearly.
    """

    name: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = False
    schedule: Literal["multistep", "cosine", "constant"] = "multistep"
    milestones_epochs: tuple[float, ...] | None = None
    decay: float = 0.1
    warmup_epochs: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """A whole run. Defaults are the paper's protocol: ResNet-18, CIFAR-10, 350 epochs of SGD."""

    seed: int = 0
    data: DataPart = field(default_factory=DataPart)
    backbone: BackbonePart = field(default_factory=BackbonePart)
    method: MethodPart = field(default_factory=MethodPart)
    train: TrainPart = field(default_factory=TrainPart)
    optim: OptimPart = field(default_factory=OptimPart)


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe from a TOML file; an unknown key or a value of the wrong kind is an error that names it."""
    file = Path(path)
    try:
        return load_recipe_text(file.read_text(encoding="utf-8"), where=str(file))
    except (FileNotFoundError, IsADirectoryError):
        raise ValueError(f"recipe: `{file}` must be a TOML file, got none there.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"recipe: `{file}` must be valid TOML, got: {error}.") from None


def load_recipe_text(text: str, *, where: str) -> Recipe:
    """Read a recipe from TOML text that stands in ``where``."""
    try:
        return recipe_of(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        twice = repeated_key(text, str(error))
        if twice is not None:
            raise ValueError(
                f"recipe: `{where}` must say every key once, got `{twice[0]}` again in line {twice[1]}. Take one out."
            ) from None
        raise ValueError(f"recipe: `{where}` must be valid TOML, got: {error}.") from None


def recipe_of(values: Mapping[str, object]) -> Recipe:
    """Build a recipe from nested plain data.

    Example:
        >>> recipe_of({"seed": 3, "train": {"epochs": 10}}).train.epochs
        10
        >>> recipe_of({"train": {"epoch": 10}})
        Traceback (most recent call last):
        ...
        ValueError: unknown key of train 'epoch'. Did you mean 'epochs'? ...
    """
    recipe = _build(Recipe, values, "recipe")
    assert isinstance(recipe, Recipe)
    return recipe


def override(recipe: Recipe, settings: Mapping[str, object]) -> Recipe:
    """Return the recipe with dotted keys replaced, e.g. ``{"optim.lr": "0.2"}``; text is read as the key's own type.

    Example:
        >>> override(Recipe(), {"optim.lr": "0.2", "method.options.every": "8"}).optim.lr
        0.2
    """
    nested = to_dict(recipe)
    for key, value in settings.items():
        parts = key.split(".")
        place = nested
        for part in parts[:-1]:
            found = lookup(place, part, kind="recipe key") if part not in place else place[part]
            if not isinstance(found, dict):
                raise ValueError(f"recipe: `{key}` must name a value, got a path through `{part}`, which has no parts.")
            place = found
        place[parts[-1]] = value
    return recipe_of(nested)


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as nested plain data, tuples as lists, None left out (TOML has no null)."""
    return plain_value(recipe)  # type: ignore[no-any-return]


def to_toml(recipe: Recipe) -> str:
    """Return the recipe as TOML text that `load_recipe` reads back to the same recipe."""
    values = to_dict(recipe)
    lines = [f"{key} = {toml_value(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for key, part in values.items():
        if isinstance(part, dict):
            lines += ["", f"[{key}]"]
            lines += [f"{name} = {toml_value(value)}" for name, value in part.items() if not isinstance(value, dict) or value]
    return "\n".join(lines) + "\n"


def _build(kind: type, values: object, where: str) -> object:
    if not isinstance(values, Mapping):
        raise ValueError(f"recipe: `{where}` must be a table of keys, got {values!r}.")
    hints = get_type_hints(kind)
    known = {f.name: hints[f.name] for f in dataclasses.fields(kind)}
    arguments = {}
    for key, value in values.items():
        hint = lookup(known, key, kind=f"key of {where}")
        name = key if where == "recipe" else f"{where}.{key}"
        if name in _OFF and value in ("none", "None"):
            value = _OFF[name]
        part = dataclasses.is_dataclass(hint)
        arguments[key] = _build(hint, value, key) if part else read_value(hint, value, name)
    return kind(**arguments)
