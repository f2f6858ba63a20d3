"""A recipe: everything that decides a training run, as frozen data.

Every key is a field that carries all there is to say about it: type, default, help, bounds, when it is read, its option on the
command line. Reading, checking, ``--help``, TOML and the table in docs/train.md come from these fields.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import tomllib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from calibrant.core.registry import lookup


class Rule(NamedTuple):
    """What a number must be, in words and as a test."""

    text: str
    holds: Callable[[Any], bool]


class ReadWith(NamedTuple):
    """The key, and its values, under which another key is read; the most usual value first."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Key:
    """All there is to say about a key of a recipe, beside its type and default.

    Attributes:
        help: What it decides, in a few words.
        unset: What happens where it is None.
        rule: What its value must be.
        read_with: When it is read; None for always.
        flag: Its option on the command line, if it has one of its own.
        metavar: What that option calls its value.
        neutral: Whether it says where and how fast a run is computed, or what is looked at besides, but not what is trained.
        off: The number that "none" stands for.
    """

    help: str
    unset: str = ""
    rule: Rule | None = None
    read_with: ReadWith | None = None
    flag: str = ""
    metavar: str = "NAME"
    neutral: bool = False
    off: float | None = None


def _key(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"key": Key(help, **more)})


_COUNT = Rule("a whole number >= 1", lambda value: value >= 1)
_SEED = Rule("a whole number from 0 to 2**63 - 1", lambda value: 0 <= value < 2**63)
_NOT_NEGATIVE = Rule("a finite number >= 0", lambda value: 0 <= value < math.inf)
_POSITIVE = Rule("a finite number > 0", lambda value: 0 < value < math.inf)
_BELOW_ONE = Rule("in [0, 1)", lambda value: 0 <= value < 1)
_SHARE = Rule("in (0, 1]", lambda value: 0 < value <= 1)
_MULTISTEP = ReadWith("optim.schedule", ("multistep",))
_SGD = ReadWith("optim.name", ("sgd",))


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
        "examples to hold out besides, under every method, and to learn hyper-parameters on instead",
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
        None, "weights to start from, a safetensors file", unset="fresh weights", flag="--init", metavar="WEIGHTS"
    )
    freeze: tuple[str, ...] = _key((), "parts of the network to freeze, by the start of their names")


@dataclass(frozen=True)
class MethodPart:
    """Which method of the catalogue, with options that differ from its preset."""

    name: str = _key("flgamma-sece", "name of a method; +ts after it adds temperature scaling", flag="--method")
    preset: Literal["default", "paper"] = _key("default", "settings of the method: default or paper", flag="--preset")
    options: Mapping[str, float | int | str | bool | tuple[float, ...]] = field(
        default_factory=dict, metadata={"key": Key("what a method can be told, name and value", unset="the preset's")}
    )


@dataclass(frozen=True)
class TrainPart:
    """How long, in what arithmetic, and which weights predict."""

    epochs: int = _key(350, "passes over the training set", rule=_COUNT, flag="--epochs", metavar="N")
    batch_size: int = _key(128, "examples per step, over all processes", rule=_COUNT)
    reduction: Literal["sum", "mean"] = _key(
        "sum", "how the losses of a batch are combined; `mean` needs another `optim.lr` and `train.clip_norm` than `sum`"
    )
    clip_norm: float = _key(2.0, "largest norm of the gradient; 0 or none for no clipping", rule=_NOT_NEGATIVE, off=0.0)
    precision: Literal["auto", "bf16", "float32", "float64"] = _key(
        "auto", "precision; auto is bf16 (autocast) on a GPU that has it, else float32"
    )
    select: Literal["auto", "error", "nll", "error+nll", "error+ece", "last"] = _key(
        "auto", "validation score that picks the best epoch; auto leaves it to the method"
    )
    select_within: float = _key(
        2.0,
        "how close an error must be to the lowest, in standard errors",
        rule=_NOT_NEGATIVE,
        read_with=ReadWith("train.select", ("error+nll", "error+ece")),
    )
    average: Literal["auto", "no", "ema", "uniform", "phase"] = _key(
        "auto", "whether and how to predict with averaged weights; auto leaves it to the method"
    )
    average_decay: float | None = _key(
        None,
        "share of the average that a step keeps",
        unset="by the length of the run",
        rule=_BELOW_ONE,
        read_with=ReadWith("train.average", ("ema", "phase")),
    )
    average_share: float = _key(
        0.5,
        "share of the steps since the learning rate last dropped that is remembered",
        rule=_SHARE,
        read_with=ReadWith("train.average", ("phase",)),
    )
    average_from_epoch: int | None = _key(
        None,
        "first epoch whose weights are averaged",
        unset="by the length of the run",
        rule=_NOT_NEGATIVE,
        read_with=ReadWith("train.average", ("uniform", "ema", "phase")),
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
    momentum: float = _key(0.9, "momentum of SGD", rule=_NOT_NEGATIVE, read_with=_SGD)
    weight_decay: float = _key(5e-4, "L2 coefficient; decoupled in AdamW", rule=_NOT_NEGATIVE)
    nesterov: bool = _key(False, "Nesterov's form of momentum", read_with=_SGD)
    schedule: Literal["multistep", "cosine", "constant"] = _key("multistep", "how the learning rate falls; cosine goes to zero")
    milestones_epochs: tuple[float, ...] | None = _key(
        None,
        "where multistep drops, such as `150,250`; an empty list means never",
        unset="3/7 and 5/7 of all",
        read_with=_MULTISTEP,
    )
    decay: float = _key(0.1, "factor of each drop", rule=_POSITIVE, read_with=_MULTISTEP)
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


def _keys() -> dict[str, Key]:
    found: dict[str, Key] = {}
    for part in dataclasses.fields(Recipe):
        value = getattr(Recipe(), part.name)
        inner = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        found |= {f"{part.name}.{f.name}": f.metadata["key"] for f in inner} or {part.name: part.metadata["key"]}
    return found


# Dotted name → all there is to say about a key.
KEYS = _keys()
NEUTRAL = frozenset(name for name, key in KEYS.items() if key.neutral)


# Keys of earlier releases, and what to do without them.
_REMOVED = {
    "data.same_data": "All methods train on the same examples; `data.meta` says how many to hold out besides `data.val`."
}


def value_of(recipe: Recipe, key: str) -> Any:
    """Return the value of a dotted key."""
    part, _, name = key.rpartition(".")
    return getattr(getattr(recipe, part) if part else recipe, name)


def check_recipe(recipe: Recipe) -> None:
    """Raise ``ValueError`` with one sentence if a number of the recipe cannot be; kinds of values are seen in reading it."""
    for name, key in KEYS.items():
        value = value_of(recipe, name)
        if key.rule is not None and value is not None and not key.rule.holds(value):
            raise ValueError(f"recipe: `{name}` must be {key.rule.text}, got {value}.")
    train, optim, data = recipe.train, recipe.optim, recipe.data
    if not data.augment and (data.pad is not None or data.flip is not None):
        raise ValueError("recipe: `data.pad` and `data.flip` must be left out where `data.augment` is false, got one of them.")
    if train.average != "no" and (train.average_from_epoch or 0) >= train.epochs:
        got = f"{train.average_from_epoch} with {train.epochs} epochs"
        raise ValueError(
            f"recipe: `train.average_from_epoch` must be below `train.epochs`, got {got}: nothing would be averaged."
        )
    if optim.nesterov and optim.momentum == 0:
        raise ValueError("recipe: `optim.nesterov` must come with `optim.momentum` > 0, got momentum 0.")


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe from a TOML file; an unknown key or a value of the wrong kind is an error that names it."""
    return recipe_of(read_toml(Path(path)))


def read_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file as nested plain data."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise ValueError(f"recipe: `{file}` must be a TOML file, got none there.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"recipe: `{file}` must be valid TOML, got: {error}.") from None


def recipe_of(values: Mapping[str, object]) -> Recipe:
    """Build a recipe from nested plain data.

    Example:
        >>> recipe_of({"seed": 3, "train": {"epochs": 10}}).train.epochs
        10
        >>> recipe_of({"train": {"epoch": 10}})
        Traceback (most recent call last):
        ...
        calibrant.core.registry.UnknownNameError: unknown key of train 'epoch'. Did you mean 'epochs'? ...
    """
    recipe = _build(Recipe, values, "")
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
        *parts, name = key.split(".")
        place = nested
        for part in parts:
            place = lookup(place, part, kind="recipe key")
            if not isinstance(place, dict):
                raise ValueError(f"recipe: `{key}` must name a value, got a path through `{part}`, which has no parts.")
        place[name] = value
    return recipe_of(nested)


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as nested plain data, tuples as lists, None left out (TOML has no null)."""
    found = _plain(dataclasses.asdict(recipe))
    assert isinstance(found, dict)
    return found


def to_toml(recipe: Recipe) -> str:
    """Return the recipe as TOML text that `load_recipe` reads back to the same recipe."""
    values = to_dict(recipe)
    lines = [f"{key} = {toml_value(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for key, part in values.items():
        if isinstance(part, dict):
            lines += ["", f"[{key}]"]
            lines += [f"{name} = {toml_value(value)}" for name, value in part.items() if not isinstance(value, dict) or value]
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    """Return a plain value as TOML text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # TOML's basic strings are those of JSON, except that it refuses a bare DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {toml_value(v)}" for k, v in value.items()) + " }"
    return repr(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items() if v is not None}
    return [_plain(v) for v in value] if isinstance(value, (tuple, list)) else value


def _build(kind: type, values: object, part: str) -> object:
    where = part or "recipe"
    if not isinstance(values, Mapping):
        raise ValueError(f"recipe: `{where}` must be a table of keys, got {values!r}.")
    hints = get_type_hints(kind)
    known = {f.name: hints[f.name] for f in dataclasses.fields(kind)}
    arguments = {}
    for key, value in values.items():
        name = f"{part}.{key}" if part else key
        if name in _REMOVED:
            raise ValueError(f"recipe: `{name}` must be left out, got {value!r}: it is gone. {_REMOVED[name]}")
        hint = lookup(known, key, kind=f"key of {where}")
        if dataclasses.is_dataclass(hint):
            arguments[key] = _build(hint, value, key)  # type: ignore[arg-type]
        elif KEYS[name].off is not None and value in ("none", "None"):
            arguments[key] = KEYS[name].off
        else:
            arguments[key] = read_value(hint, value, name)
    return kind(**arguments)


def read_value(hint: Any, value: object, key: str) -> object:
    """Check ``value`` against a type hint; text, as it comes from a command line, is converted to it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"recipe: `{key}` must be one of {', '.join(map(repr, inner))}, got {value!r}.")
        return value
    if origin in (Union, types.UnionType):
        return _one_of(inner, value, key)
    if origin is tuple:
        items = (value.split(",") if value.strip() else []) if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise ValueError(f"recipe: `{key}` must be a list, got {value!r}.")
        return tuple(read_value(inner[0], item, key) for item in items)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"recipe: `{key}` must be a table of options, got {value!r}.")
        return {str(k): _from_text(v) for k, v in value.items()}
    found = value if hint is str else _from_text(value)
    if hint is bool:
        found = {"yes": True, "no": False, "1": True, "0": False}.get(str(found).lower(), found)
    elif hint in (int, float) and type(found) in (int, float) and (hint is float or found == found // 1):  # type: ignore[operator]
        found = hint(found)
    if type(found) is not hint:
        raise ValueError(f"recipe: `{key}` must be {_KINDS[hint]}, got {value!r}.")
    return found


# What a message calls each kind of value.
_KINDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _one_of(hints: tuple[Any, ...], value: object, key: str) -> object:
    """Read ``value`` as the first of several kinds that it can be."""
    if type(None) in hints and value in (None, "none", "None"):
        return None
    kinds = [hint for hint in hints if hint is not type(None)]
    for hint in kinds:
        try:
            return read_value(hint, value, key)
        except ValueError:
            if len(kinds) == 1:
                raise
    words = [_KINDS.get(hint) or " or ".join(map(repr, get_args(hint))) for hint in kinds]
    raise ValueError(f"recipe: `{key}` must be {' or '.join(words)}, got {value!r}.")


def _from_text(value: object) -> object:
    """Read text as the bool, number or numbers it looks like; the options of a method are checked by it later."""
    if isinstance(value, (list, tuple)):
        return tuple(_from_text(item) for item in value)
    if not isinstance(value, str):
        return value
    word = value.strip().lower()
    try:
        return (
            word == "true" if word in ("true", "false") else float(word) if word in ("nan", "inf") else ast.literal_eval(word)
        )
    except (ValueError, SyntaxError):
        return value
