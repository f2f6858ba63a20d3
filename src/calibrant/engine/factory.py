"""A network of the user's own, named as ``package.module:factory``: finding, calling and trying it, with sentences about it."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor, nn

from calibrant.engine.features import feature_function, find_head
from calibrant.engine.hardware import Hardware
from calibrant.meta.bn import meta_mode
from calibrant.meta.network import lazy_parameters

_WHERE = "CALIBRANT_TRACEBACK=1 before the same command shows where."
# Too little memory says nothing about the network: where it ran out decides whether a run is tried again.
_NO_MEMORY = (MemoryError, torch.OutOfMemoryError)


class Shape(Protocol):
    """What a network must know of its input and output; an `ImageSet` has it."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        ...

    @property
    def channels(self) -> int:
        """Channels of an image."""
        ...

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        ...


def find_factory(name: str) -> Callable[[int], object]:
    """Return what ``package.module:factory`` names; raises ``ValueError`` with the nearest name if there is none."""
    place, _, wanted = name.partition(":")
    must = f"train: `model` must name a factory as package.module:function, got {name!r}"
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = error.name or place
        # What the user's module itself imports is not a slip of the name.
        hint = _nearest_module(missing) if f"{place}.".startswith(f"{missing}.") else ""
        hint = hint or "Install it, or start where it lies."
        raise ValueError(f"{must}, which needs a module {missing!r} that is not there. {hint}") from error
    except _NO_MEMORY:
        raise
    except Exception as error:
        raise ValueError(f"{must}, whose module cannot be loaded ({_brief(error)}). {_WHERE}") from error
    if not hasattr(module, wanted):
        hint = _nearest(wanted, _callables(module)) or "Name a function or class of it."
        raise ValueError(f"{must}, but {place} has no {wanted!r}. {hint}")
    factory = getattr(module, wanted)
    if not callable(factory):
        raise ValueError(f"{must}, which is of type {type(factory).__name__}. Name what can be called to build a network.")
    return factory  # type: ignore[no-any-return]


def call_factory(factory: Callable[[int], object], num_classes: int, *, name: str) -> nn.Module:
    """Return the network that a user's factory builds; raises ``ValueError`` that says what is wrong with the factory."""
    try:
        inspect.signature(factory).bind(num_classes)
    except TypeError as error:
        raise ValueError(
            f"train: `model` must be a factory that needs the number of classes alone, got {name!r} ({error}). "
            "Let it take that first, and give every other argument a default."
        ) from error
    except ValueError:
        pass  # some callables written in C do not tell their arguments
    try:
        model = factory(num_classes)
    except _NO_MEMORY:
        raise
    except Exception as error:
        raise ValueError(
            f"train: `model` must build a network for {num_classes} classes, got {_brief(error)} from {name!r}. {_WHERE}"
        ) from error
    if not isinstance(model, nn.Module):
        got = f"{type(model).__name__} from {name!r}"
        raise ValueError(f"train: `model` must build an `nn.Module`, got {got}. Let the factory return the network.")
    if lazy := lazy_parameters(model):
        raise ValueError(
            f"train: `model` must have parameters of known size, got lazy ones ({lazy[0]}) from {name!r}. Run a batch through "
            "the network before the factory returns it, or say the sizes."
        )
    return model


def check_network(model: nn.Module, data: Shape, hardware: Hardware, *, name: str, uses_head: bool = False) -> None:
    """Raise ``ValueError`` unless a network maps images of a set to one logit a class, its last layer's where that is used.

    Two black images are passed through it in evaluation mode; parameters, statistics, random generators and each module's mode
    stay as they were.
    """
    (height, width), classes = data.size, data.num_classes
    images = torch.zeros(2, data.channels, height, width, device=hardware.device, dtype=hardware.dtype)
    images = images.contiguous(memory_format=torch.channels_last)
    try:
        logits = _evaluated(model, model, images, hardware)
    except _NO_MEMORY:
        raise
    except Exception as error:
        raise ValueError(
            f"train: `model` must take images of {data.channels} x {height} x {width} (channels, height, width), got "
            f"{_brief(error)} from {name!r}. Build it for that size, or choose another."
        ) from error
    must = f"train: `model` must return one logit for each of {classes} classes"
    if not isinstance(logits, Tensor):
        raise ValueError(f"{must}, got {type(logits).__name__} from {name!r}. Let it return the tensor of logits alone.")
    if logits.shape != (2, classes):
        got = f"shape {list(logits.shape)} for 2 images"
        raise ValueError(f"{must}, got {got} from {name!r}. Give its last layer as many outputs as the factory is told.")
    if bool((logits >= 0).all()) and bool(((logits.double().sum(1) - 1).abs() < 1e-5).all()):
        raise ValueError(
            f"train: `model` must return scores before softmax, got probabilities from {name!r}. Leave its softmax out: losses "
            "and metrics take it themselves."
        )
    if not any(isinstance(module, nn.Linear) for module in model.modules()):
        raise ValueError(
            f"train: `model` must end in an `nn.Linear`, whose inputs are its features, got {name!r} without one. "
            "Make its last layer one."
        )
    # That the layer is not called in the forward pass has a sentence of its own.
    forward, head = feature_function(model), find_head(model)[1]

    def ends_in_head(images: Tensor) -> bool:
        features, logits = forward(images)
        given = head(features)
        return given.shape == logits.shape and bool((given - logits).abs().max() <= 0.01 * (1 + logits.abs().max()))

    if not _evaluated(model, ends_in_head, images, hardware) and uses_head:
        raise ValueError(
            "train: `model` must return what its last `nn.Linear` gives, for methods that learn on held-out data look ahead "
            f"with that layer, got something else from {name!r}. Return the layer's own output, or choose another method."
        )


def _evaluated(model: nn.Module, forward: Callable[[Tensor], object], images: Tensor, hardware: Hardware) -> object:
    device = hardware.device
    with (
        hardware.active(),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.no_grad(),
        meta_mode(model, "frozen"),
        torch.autocast(device.type, dtype=torch.bfloat16, enabled=hardware.precision == "bf16"),
    ):
        return forward(images)


def _brief(error: Exception) -> str:
    """An exception in one line: somebody else's text may be long."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return text.rstrip(".") if len(text) <= 200 else f"{text[:199]}…"


def _callables(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]


def _nearest_module(missing: str) -> str:
    parent, dot, _ = missing.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    found = pkgutil.iter_modules(path) if path is not None or not parent else ()
    # Among all that is installed some name is always half alike.
    return _nearest(missing, [f"{parent}{dot}{module.name}" for module in found], cutoff=0.7)


def _nearest(name: str, names: Iterable[str], *, cutoff: float = 0.5) -> str:
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"Did you mean {near[0]!r}?" if near else ""
