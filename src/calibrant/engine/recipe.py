"""A recipe: everything that decides a training run, as frozen data.

Every key is a field with everything about it: type, default, help, bounds, its option on the command line. Reading, checking,
``--help``, TOML and the table in docs/train.md come from these fields.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import tomllib
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Literal, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

# What a value must be, in words and as a test.
Rule: TypeAlias = tuple[str, Callable[[Any], bool]]


@dataclass(frozen=True)
class Key:
    """Everything about a key of a recipe besides its type and default."""

    help: str  # what it decides, in a few words
    unset: str = ""  # what happens if it is None
    rule: Rule | None = None
    flag: str = ""  # its own option on the command line
    metavar: str = "NAME"  # what that option calls its value
    neutral: bool = False  # it only says where and how fast a run is computed, or what else is evaluated


def _key(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"key": Key(help, **more)})


_COUNT: Rule = ("a whole number >= 1", lambda value: value >= 1)
_SEED: Rule = ("a whole number from 0 to 2**63 - 1", lambda value: 0 <= value < 2**63)
_NOT_NEGATIVE: Rule = ("a finite number >= 0", lambda value: 0 <= value < math.inf)
_POSITIVE: Rule = ("a finite number > 0", lambda value: 0 < value < math.inf)
_BELOW_ONE: Rule = ("in [0, 1)", lambda value: 0 <= value < 1)
_SHARE: Rule = ("in (0, 1]", lambda value: 0 < value <= 1)
_NOT_GONE: Rule = ("'no', 'ema' or 'phase', as uniform averages were removed", lambda value: value != "uniform")


@dataclass(frozen=True)
class DataPart:
    """Which data, and how it is divided."""

    name: str = _key("cifar10", "data set of `calibrant data list`, or a path", flag="--data")
    root: str | None = _key(
        None, "where the data set lies", unset="~/.cache/calibrant/data", flag="--data-root", metavar="FOLDER", neutral=True
    )
    size: int | None = _key(
        None, "side in pixels to resize the pictures of a folder to", unset="their own, or the median", rule=_COUNT
    )
    val: int | None = _key(
        None, "validation examples: to learn hyper-parameters on, choose the epoch and repair", unset="a tenth", rule=_COUNT
    )
    meta: int | None = _key(
        None,
        "more examples to hold out, under every method; hyper-parameters are then learned on these",
        unset="none; `paper`: a tenth, if the method learns any",
        rule=_NOT_NEGATIVE,
    )
    augment: bool = _key(True, "whether to crop and mirror")
    pad: int | None = _key(None, "pixels of padding for random crops", unset="what suits the set", rule=_NOT_NEGATIVE)
    flip: bool | None = _key(None, "whether to mirror half of the images", unset="what suits the set")
    place: Literal["auto", "device", "host"] = _key(
        "auto",
        "where images are kept; auto sends them in batches from the host if they do not fit",
        neutral=True,
    )
    shift: bool = _key(False, "also evaluate on corrupted copies of the test set", flag="--shift", neutral=True)


@dataclass(frozen=True)
class BackbonePart:
    """Which network."""

    name: str = _key("resnet18", "name of a network, or your own as package.module:factory", flag="--model")
    init: str | None = _key(
        None,
        "weights to start from: a safetensors file or a run folder",
        unset="fresh weights",
        flag="--init",
        metavar="WEIGHTS",
    )
    freeze: tuple[str, ...] = _key((), "parts of the network to freeze, by the start of their names")


@dataclass(frozen=True)
class MethodPart:
    """Which method of the catalogue, with options that differ from its preset."""

    name: str = _key("flgamma-sece", "name of a method; +ts after it adds temperature scaling", flag="--method")
    preset: Literal["default", "paper"] = _key("default", "settings of the method: default or paper", flag="--preset")
    options: Mapping[str, float | int | str | bool | tuple[float, ...]] = field(
        default_factory=dict, metadata={"key": Key("options of the method, name and value", unset="the preset's")}
    )


@dataclass(frozen=True)
class TrainPart:
    """How long, in what arithmetic, and which weights predict."""

    epochs: int = _key(350, "passes over the training set", rule=_COUNT, flag="--epochs", metavar="N")
    batch_size: int = _key(128, "examples per step, over all processes", rule=_COUNT)
    reduction: Literal["sum", "mean"] = _key(
        "sum", "how the losses of a batch are combined; `mean` needs another `optim.lr` and `train.clip_norm` than `sum`"
    )
    clip_norm: float = _key(2.0, "largest norm of the gradient; 0 for no clipping", rule=_NOT_NEGATIVE)
    precision: Literal["auto", "bf16", "float32", "float64"] = _key(
        "auto", "precision; auto is bf16 (autocast) on a GPU that has it, else float32"
    )
    select: Literal["auto", "error", "nll", "error+nll", "error+ece", "last"] = _key(
        "auto", "validation score that picks the best epoch; auto leaves it to the method"
    )
    select_within: float = _key(
        2.0, "how close an error must be to the lowest, in standard errors, for `error+nll` and `error+ece`", rule=_NOT_NEGATIVE
    )
    average: Literal["auto", "no", "ema", "phase"] = _key(
        "auto", "whether and how to predict with averaged weights; auto leaves it to the method", rule=_NOT_GONE
    )
    average_decay: float | None = _key(
        None, "share of the average that a step keeps under `ema`", unset="by the length of the run", rule=_BELOW_ONE
    )
    average_share: float = _key(
        0.5, "share of the steps since the learning rate last dropped that `phase` remembers", rule=_SHARE
    )
    alternatives: bool = _key(
        False,
        "also keep predictions with plain and averaged weights, of the best epoch by `error` and by `error+nll`",
        neutral=True,
    )
    device: str = _key("auto", "where to compute: auto, cpu, cuda or cuda:1", flag="--device", neutral=True)
    compile: Literal["auto", "yes", "no"] = _key(
        "auto", "compile the network; auto does on a single GPU, for runs long enough to repay it", neutral=True
    )
    graph: Literal["auto", "yes", "no"] = _key(
        "auto", "replay the step as a CUDA graph; auto does on a single GPU", neutral=True
    )
    eval_every_epochs: int = _key(1, "epochs between evaluations; the last is always evaluated", rule=_COUNT)
    checkpoint_every_seconds: float = _key(
        30.0, "seconds between checkpoints; the end is always saved", rule=_NOT_NEGATIVE, neutral=True
    )


@dataclass(frozen=True)
class OptimPart:
    """Optimizer and learning-rate schedule."""

    name: Literal["sgd", "adamw"] = _key("sgd", "optimizer; AdamW needs another learning rate, such as 0.001")
    lr: float = _key(0.1, "learning rate at this batch size", rule=_POSITIVE)
    momentum: float = _key(0.9, "momentum of SGD", rule=_NOT_NEGATIVE)
    weight_decay: float = _key(5e-4, "L2 coefficient; decoupled in AdamW", rule=_NOT_NEGATIVE)
    nesterov: bool = _key(False, "Nesterov's form of momentum")
    schedule: Literal["multistep", "cosine", "constant"] = _key("multistep", "how the learning rate falls; cosine goes to zero")
    milestones_epochs: tuple[float, ...] | None = _key(
        None, "where multistep drops, such as `150,250`; an empty list means never", unset="3/7 and 5/7 of all"
    )
    decay: float = _key(0.1, "factor of each drop", rule=_POSITIVE)
    warmup_epochs: float = _key(0.0, "epochs over which the learning rate rises linearly", rule=_NOT_NEGATIVE)


@dataclass(frozen=True)
class Recipe:
    """A whole run. Defaults are the paper's protocol: ResNet-18, CIFAR-10, 350 epochs of SGD."""

    seed: int = _key(0, "seed of the split, weights, order and augmentation", rule=_SEED, flag="--seed", metavar="N")
    data: DataPart = field(default_factory=DataPart)
    backbone: BackbonePart = field(default_factory=BackbonePart)
    method: MethodPart = field(default_factory=MethodPart)
    train: TrainPart = field(default_factory=TrainPart)
    optim: OptimPart = field(default_factory=OptimPart)


# Dotted name → key.
KEYS: dict[str, Key] = {"seed": Recipe.__dataclass_fields__["seed"].metadata["key"]} | {
    f"{part.name}.{key.name}": key.metadata["key"]
    for part in dataclasses.fields(Recipe)[1:]
    for key in dataclasses.fields(part.default_factory)  # type: ignore[arg-type]
}
NEUTRAL = frozenset(name for name, key in KEYS.items() if key.neutral)
# Keys of earlier releases, and what to do without them.
REMOVED_KEYS = {
    "data.same_data": "All methods train on the same examples; `data.meta` says how many to hold out beyond `data.val`.",
    "train.average_from_epoch": "Averages begin with the first step.",
}
# Words that are not Python literals.
_WORDS = {"true": True, "false": False, "nan": math.nan, "inf": math.inf}
_SWITCHES = _WORDS | {"yes": True, "no": False, "1": True, "0": False}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", tuple: "a list", Mapping: "a table"}


def value_of(recipe: Recipe, key: str) -> Any:
    """Return the value of a dotted key."""
    return reduce(getattr, key.split("."), recipe)


def check_recipe(recipe: Recipe) -> None:
    """Raise ``ValueError`` if a value of the recipe is out of range; reading the recipe has checked the types."""
    for name, key in KEYS.items():
        value = value_of(recipe, name)
        if key.rule is not None and value is not None and not key.rule[1](value):
            raise ValueError(f"recipe: `{name}` must be {key.rule[0]}, got {value}.")


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe from a TOML file; an unknown key or a value of the wrong type raises ``ValueError``, which names it."""
    return recipe_of(read_toml(Path(path)))


def read_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file as nested plain data."""
    if not file.is_file():
        raise ValueError(f"recipe: `{file}` must be a TOML file, got none there.")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"recipe: `{file}` must be valid TOML, got: {error}.") from None


def recipe_of(values: Mapping[str, object]) -> Recipe:
    """Build a recipe from nested plain data."""
    return cast(Recipe, _read_part(Recipe, values))


def override(recipe: Recipe, settings: Mapping[str, object]) -> Recipe:
    """Return the recipe with dotted keys replaced, e.g. ``{"optim.lr": "0.2"}``; text is read as the type of the key."""
    # Imports torch, which `calibrant --help` need not wait for.
    from calibrant.core.checks import lookup

    nested = to_dict(recipe)
    for key, value in settings.items():
        place, (*parts, name) = nested, key.split(".")
        for part in parts:
            place = lookup({name: inner for name, inner in place.items() if isinstance(inner, dict)}, part, kind="recipe key")
        place[name] = value
    return recipe_of(nested)


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as nested plain data, without None (TOML has no null)."""
    return dataclasses.asdict(recipe, dict_factory=lambda items: {name: value for name, value in items if value is not None})


def to_toml(recipe: Recipe) -> str:
    """Return the recipe as TOML text that `load_recipe` reads back to the same recipe."""
    values = to_dict(recipe)
    lines = [f"seed = {values.pop('seed')}"]
    for name, part in values.items():
        lines += ["", f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in part.items() if value != {})]
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    """Return a plain value as TOML text."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {toml_value(item)}" for name, item in value.items() if item is not None) + " }"
    # TOML's values are those of JSON, except that it refuses a bare DEL and calls infinity by another name.
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return text if isinstance(value, str) else text.replace("Infinity", "inf").replace("NaN", "nan")


def _read_part(kind: Any, values: object, name: str = "") -> object:
    """Build the recipe, or one of its parts, from plain data."""
    from calibrant.core.checks import lookup

    if not isinstance(values, Mapping):
        raise ValueError(f"recipe: `{name}` must be a table of keys, got {values!r}.")
    hints, found = get_type_hints(kind), {}
    for key, value in values.items():
        whole = f"{name}.{key}" if name else key
        if whole in REMOVED_KEYS:
            raise ValueError(f"recipe: `{whole}` must be left out, got {value!r}: it was removed. {REMOVED_KEYS[whole]}")
        hint = lookup(hints, key, kind=f"key of {name or 'recipe'}")
        found[key] = _read_part(hint, value, whole) if dataclasses.is_dataclass(hint) else read_value(hint, value, whole)
    return kind(**found)


def read_value(hint: Any, value: object, key: str) -> object:
    """Check ``value`` against a type hint; text, as from a command line, is converted."""
    if (key, value) == ("train.average", "uniform"):
        return value  # of earlier releases: can be read, but not trained
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for kind in sorted(kinds, key=lambda kind: kind is not types.NoneType):
        with suppress(TypeError):
            return _as_kind(kind, value)
    words = [
        _KINDS.get(get_origin(kind) or kind) or f"one of {', '.join(map(repr, get_args(kind)))}"
        for kind in kinds
        if kind is not types.NoneType
    ]
    raise ValueError(f"recipe: `{key}` must be {' or '.join(words)}, got {value!r}.")


def _as_kind(kind: Any, value: object) -> object:
    """Return ``value`` as the type ``kind``; raise ``TypeError`` if that is impossible."""
    origin, inner, found = get_origin(kind), get_args(kind), _from_text(value)
    if origin is Literal and value in inner:
        return value
    if origin is tuple and isinstance(value, (str, list, tuple)):
        items = value.split(",") if isinstance(value, str) else value
        return tuple(_as_kind(inner[0], item) for item in items if item != "")
    if origin is Mapping and isinstance(value, Mapping):
        return {str(name): _from_text(item) for name, item in value.items()}
    if kind is str or (kind is types.NoneType and value in ("none", "None")):
        found = value if kind is str else None
    elif kind is bool:
        found = _SWITCHES.get(str(found).lower(), found)
    elif kind in (int, float) and type(found) in (int, float) and (kind is float or found % 1 == 0):  # type: ignore[operator]
        found = kind(found)
    if type(found) is not kind:
        raise TypeError
    return found


def _from_text(value: object) -> object:
    """Read text as the bool, number or numbers that it looks like; a method checks its own options later."""
    if isinstance(value, (list, tuple)):
        return tuple(_from_text(item) for item in value)
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in _WORDS:
        return _WORDS[word]
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(word)
    return value
