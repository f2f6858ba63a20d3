"""Weights as files: what a run leaves behind, what another starts from, and what stays as it is."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from calibrant.core.registry import lookup
from calibrant.engine.features import find_head
from calibrant.io.atomic import atomic_writer

# Under this prefix a file holds the hyper-parameters that a method has learned.
HYPER = "hyper."


def save_weights(path: Path, weights: Mapping[str, Tensor], hyper: Mapping[str, Tensor], *, notes: Mapping[str, str]) -> None:
    """Write a network's state and learned hyper-parameters as safetensors, with ``notes`` as JSON in the file's header."""
    from safetensors.torch import save

    named = dict(weights) | {f"{HYPER}{name}": value for name, value in hyper.items()}
    # Copies: safetensors refuses tensors that share memory, as those do that go by two names.
    plain = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in named.items()}
    with atomic_writer(path) as handle:
        # One entry: several would be written in a random order, and the files of equal runs would differ.
        handle.write(save(plain, metadata={"calibrant": json.dumps(dict(notes), sort_keys=True)}))


def load_weights(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Read a safetensors file; return the network's state and the hyper-parameters."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = Path(path)
    if not file.is_file():
        inside = file / "weights.safetensors"
        hint = f" Did you mean {inside}?" if inside.is_file() else ""
        raise FileNotFoundError(f"train: `{file}` must be a file of weights (safetensors), got none there.{hint}")
    try:
        found = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"train: `{file}` must be a safetensors file, got another kind or a damaged one ({error}). Write the weights with "
            "`safetensors.torch.save_model(model, 'weights.safetensors')`."
        ) from None
    hyper = {name.removeprefix(HYPER): value for name, value in found.items() if name.startswith(HYPER)}
    return {name: value for name, value in found.items() if not name.startswith(HYPER)}, hyper


def load_initial_weights(model: nn.Module, path: str | Path) -> None:
    """Put weights of a file into ``model``; a head for another number of classes keeps its own, with a warning.

    Args:
        model: The network, as built.
        path: A safetensors file, for instance ``weights.safetensors`` of a run.
    """
    found, _ = load_weights(path)
    head, _ = find_head(model)
    state = model.state_dict()
    entries = [name for name in state if name.startswith(f"{head}.")]
    odd = sorted(set(state) ^ set(found))
    if odd:
        lacking = odd[0] in state
        got = f"a file {'without' if lacking else 'with'} `{odd[0]}` ({len(odd)} names differ)"
        raise ValueError(f"train: `backbone.init` must hold the weights of this network, got {got}. Check `--model`.")
    other = [name for name in state if state[name].shape != found[name].shape]
    if any(name not in entries for name in other):
        name = next(name for name in other if name not in entries)
        got = f"{list(found[name].shape)} for `{name}`, which is {list(state[name].shape)}"
        raise ValueError(
            f"train: `backbone.init` must hold the weights of this network, got {got}. Check `--model` and `--data`."
        )
    if other:
        classes, own = found[other[0]].shape[0], state[other[0]].shape[0]
        warnings.warn(
            f"the head of {path} is for {classes} classes and not used; the head for {own} starts from scratch.", stacklevel=2
        )
    model.load_state_dict({name: state[name] if name in entries and other else found[name] for name in state})


def freeze(model: nn.Module, prefixes: Sequence[str]) -> None:
    """Let no gradient into the parts of ``model`` named by ``prefixes``, and keep their BatchNorm in evaluation mode.

    Args:
        model: The network, in training mode.
        prefixes: Names of modules or parameters: "layer1" is all of ``layer1.*``.
    """
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    known = dict.fromkeys(name.partition(".")[0] for name in parameters)
    for prefix in prefixes:
        within = [name for name in (*modules, *parameters) if name == prefix or name.startswith(f"{prefix}.")]
        if not prefix or not within:
            lookup(known, prefix, kind="part of the network")
        for name in within:
            if name in parameters:
                parameters[name].requires_grad_(False)
            else:
                modules[name].training = False
    if prefixes and not any(value.requires_grad for value in parameters.values()):
        raise ValueError("train: `backbone.freeze` must leave a part of the network to train, got all of it.")
