"""The network of a run: built by name or by a user's factory, given its first weights, tried with two images, frozen in part.

Also its features, and its weights as files.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from calibrant.backbones import BACKBONES, Classifier
from calibrant.core.registry import lookup
from calibrant.data.image_set import ImageSet
from calibrant.engine.hardware import Hardware
from calibrant.engine.recipe import BackbonePart, Recipe
from calibrant.io.files import atomic_writer
from calibrant.meta.network import find_head, meta_mode, own_randomness

FeatureFunction = Callable[[Tensor], tuple[Tensor, Tensor]]
# Under this prefix a file of weights holds the hyper-parameters that a method has learned.
HYPER = "hyper."


class Shape(NamedTuple):
    """What a network must know of its input and output; an `ImageSet` has the same attributes.

    Runs of earlier releases do not know the ``mean`` and ``std`` by which their images were normalised.
    """

    num_classes: int
    channels: int
    size: tuple[int, int]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


def feature_function(model: nn.Module) -> FeatureFunction:
    """Return a function that maps images to ``(features, logits)`` of ``model``.

    A `Classifier` says what its features are; of any other network they are the input of its last linear layer, seen by a hook.
    """
    if isinstance(model, Classifier):

        def direct(images: Tensor) -> tuple[Tensor, Tensor]:
            features = model.features(images)
            return features, model.head(features)

        return direct
    name, head = find_head(model)

    def hooked(images: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            logits = model(images)
        finally:
            handle.remove()
        if not seen:
            raise ValueError(f"the last linear layer, {name!r}, is not used; name the classifier `head`, or register it last")
        return seen[-1], logits

    return hooked


def build_network(recipe: Recipe, data: ImageSet | Shape, hardware: Hardware, *, uses_head: bool) -> nn.Module:
    """Return the network of a recipe, ready to train on the hardware; what cannot be built or used raises one sentence.

    ``uses_head``: the method looks ahead with the last layer.
    """
    part = recipe.backbone
    model = build_backbone(part, data, seed=recipe.seed)
    if part.init is not None:
        load_initial_weights(model, part.init)
    if hardware.group.world_size > 1 and hardware.device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(hardware.device, hardware.dtype).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    check_network(model, data, hardware, name=part.name, uses_head=uses_head)
    freeze(model, part.freeze)
    if uses_head and not find_head(model)[1].weight.requires_grad:
        raise ValueError(
            f"train: `backbone.freeze` must leave the head free for {recipe.method.name}, which looks ahead with it."
        )
    return model


def build_backbone(part: BackbonePart, data: ImageSet | Shape, *, seed: int) -> nn.Module:
    """Build the network for a set's classes, channels and size, initialised from ``seed`` alone."""
    # Layers draw their weights from the global generator; it is forked so that the caller's own stream does not move.
    with torch.random.fork_rng(devices=[]):
        if ":" in part.name:
            return _users_network(part.name, data.num_classes, seed=seed)
        torch.manual_seed(seed)
        height, width = data.size
        options = {"num_inputs": height * width * data.channels} if part.name == "mlp" else {"in_channels": data.channels}
        return lookup(BACKBONES, part.name, kind="backbone")(data.num_classes, **options)


def _users_network(name: str, num_classes: int, *, seed: int) -> nn.Module:
    place, _, factory = name.partition(":")
    with _explained(f"be package.module:function that builds a network for {num_classes} classes", name):
        module = importlib.import_module(place)
        torch.manual_seed(seed)
        model = getattr(module, factory)(num_classes)
        if not isinstance(model, nn.Module):
            raise TypeError(f"{type(model).__name__} and no `nn.Module`")
    return model


@contextmanager
def _explained(must: str, name: str) -> Iterator[None]:
    """Turn an error of the user's own code into one sentence; too little memory says nothing about the network."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}".rstrip(": .")
        raise ValueError(
            f"train: `model` must {must}, got {said} from {name!r}. CALIBRANT_TRACEBACK=1 before the same command shows where."
        ) from error


def check_network(model: nn.Module, data: ImageSet | Shape, hardware: Hardware, *, name: str, uses_head: bool = False) -> None:
    """Raise ``ValueError`` unless a network maps images of a set to one logit a class, its last layer's where that is used.

    Two black images are passed through it in evaluation mode; parameters, statistics, random generators and each module's mode
    stay as they were.
    """
    images = torch.zeros(2, data.channels, *data.size, device=hardware.device, dtype=hardware.dtype)
    images = images.contiguous(memory_format=torch.channels_last)
    forward = feature_function(model)
    with hardware.active(), own_randomness(hardware.device), torch.no_grad(), meta_mode(model, "frozen"), hardware.autocast():
        must = (
            f"map images {list(images.shape[1:])} (channels, height, width) to one logit for each of {data.num_classes} classes"
        )
        with _explained(must, name):
            features, logits = forward(images)
            if logits.shape != (2, data.num_classes):
                raise ValueError(f"logits {list(logits.shape)} for two images")
        if bool((logits >= 0).all()) and bool(((logits.double().sum(1) - 1).abs() < 1e-5).all()):
            raise ValueError(
                f"train: `model` must return scores before softmax, got probabilities from {name!r}. Leave its softmax out."
            )
        given = find_head(model)[1](features)
        same = given.shape == logits.shape and bool((given - logits).abs().max() <= 0.01 * (1 + logits.abs().max()))
    if uses_head and not same:
        raise ValueError(
            "train: `model` must return what its last `nn.Linear` gives, for methods that learn on held-out data look ahead "
            f"with that layer, got something else from {name!r}. Return that layer's output, or choose another method."
        )


def freeze(model: nn.Module, prefixes: Sequence[str]) -> None:
    """Let no gradient into the parts of ``model`` named by ``prefixes``, and keep their BatchNorm in evaluation mode.

    They are names of modules or parameters: "layer1" is all of ``layer1.*``.
    """
    parts: dict[str, Any] = {name: part for name, part in (*model.named_modules(), *model.named_parameters()) if name}
    for prefix in prefixes:
        part = lookup(parts, prefix, kind="part of the network", known=[name for name in parts if "." not in name])
        part.requires_grad_(False)
        if isinstance(part, nn.Module):
            part.eval()
    if not any(value.requires_grad for value in model.parameters()):
        raise ValueError("train: `backbone.freeze` must leave a part of the network to train, got all of it.")


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
    """Read a safetensors file, or that of a run folder; return the network's state and the hyper-parameters."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = Path(path) / "weights.safetensors" if Path(path).is_dir() else Path(path)
    try:
        found = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"train: `{file}` must be a safetensors file of weights, got {error}. Write one with "
            "`safetensors.torch.save_model(model, 'weights.safetensors')`."
        ) from None
    hyper = {name.removeprefix(HYPER): value for name, value in found.items() if name.startswith(HYPER)}
    return {name: value for name, value in found.items() if not name.startswith(HYPER)}, hyper


def load_initial_weights(model: nn.Module, path: str | Path) -> None:
    """Put weights of a safetensors file into ``model``; a head for another number of classes keeps its own, with a warning."""
    found, head = load_weights(path)[0], find_head(model)[0]
    own = {name: value for name, value in model.state_dict().items() if name.startswith(f"{head}.")}
    if any(name in found and found[name].shape != value.shape for name, value in own.items()):
        warnings.warn(f"the head of {path} is for other classes and not used; it starts from scratch.", stacklevel=2)
        found |= own
    try:
        model.load_state_dict(found)
    except RuntimeError as error:
        said = " ".join(str(error).split())[:300]
        raise ValueError(
            f"train: `backbone.init` must hold the weights of this network, got: {said}. Check `--model` and `--data`."
        ) from None
