"""A classifier seen as penultimate features and a linear head: finding the head, reading the features, tangents of logits."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

from calibrant.core.collect import find_logits
from calibrant.meta.bn import norms_of, untracked
from calibrant.meta.regularizers.base import Params

Inputs: TypeAlias = "Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]"

_USUAL_NAMES = ("head", "fc", "classifier", "linear", "output", "score", "heads.head", "head.fc", "classifier.out_proj")


@dataclass(frozen=True)
class Network:
    """A model and its last linear layer.

    Attributes:
        model: What is called: the user's module, perhaps wrapped for distributed training.
        inner: The module inside the wrappers.
        head: The linear layer that makes the logits.
        head_name: Its name in ``inner``.
    """

    model: nn.Module
    inner: nn.Module
    head: nn.Linear
    head_name: str

    @property
    def head_names(self) -> dict[str, str]:
        """Entry of the head → its parameter's name in ``inner``."""
        entries = ["weight"] if self.head.bias is None else ["weight", "bias"]
        return {entry: f"{self.head_name}.{entry}" if self.head_name else entry for entry in entries}

    @property
    def head_values(self) -> Params:
        """Entry of the head → the parameter itself."""
        return {entry: cast(Tensor, getattr(self.head, entry)) for entry in self.head_names}

    def parameters(self) -> Params:
        """Every parameter that is trained, by its name in ``inner``."""
        return {name: value for name, value in self.inner.named_parameters() if value.requires_grad}


def lazy_parameters(model: nn.Module) -> list[str]:
    """Names of the parameters and buffers that get their size, and their values, only from the first batch."""
    return [name for name, value in [*model.named_parameters(), *model.named_buffers()] if is_lazy(value)]


def find_network(model: nn.Module, head: str | nn.Module | None = None) -> Network:
    """Find the linear layer that ends ``model``.

    Args:
        model: Any module; wrappers of distributed training and of ``torch.compile`` are looked through.
        head: Name of the layer, the layer itself, or None: then the usual names are tried ("head", "fc", "classifier", ...),
            and last the final ``nn.Linear`` in the order of definition. The first batch tells whether the guess was right.

    Returns:
        The network; raises ``ValueError`` if there is no such layer.
    """
    inner = unwrap(model)
    if lazy := lazy_parameters(inner):
        raise ValueError(
            f"MetaLearner: `model` must have parameters of known size, got lazy ones ({lazy[0]}). Run a batch through it first."
        )
    layers = {name: module for name, module in inner.named_modules() if isinstance(module, nn.Linear)}
    named = f"Linear layers: {', '.join(layers) or 'none'}."
    if isinstance(head, nn.Module):
        found = next((name for name, module in layers.items() if module is head), None)
    elif head is not None:
        found = head if head in layers else None
    else:
        found = next((name for name in _USUAL_NAMES if name in layers), next(reversed(layers), None))
    if found is None:
        rule = "must name an `nn.Linear` of the model" if head is not None else "must be given"
        got = f"got {head!r}" if isinstance(head, str) else "found no such layer"
        raise ValueError(f"MetaLearner: `head` {rule}, {got}. {named}")
    return Network(model, inner, layers[found], found)


def check_optimizer(network: Network, optimizer: torch.optim.Optimizer) -> None:
    """Raise if ``optimizer`` holds no parameter of the network that can be trained, or cannot step by gradients alone."""
    inside = getattr(optimizer, "optimizer", optimizer)
    closure = inspect.signature(inside.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ValueError(
            f"MetaLearner: `optimizer` must step without a closure, got {type(inside).__name__}. Use SGD or Adam, for example."
        )
    trained = {id(value) for value in network.parameters().values()}
    held = {id(value) for group in optimizer.param_groups for value in group["params"]}
    if trained and not trained & held:
        raise ValueError(
            "MetaLearner: `optimizer` must hold parameters of `model`, got one that holds none of them. "
            "Make it from `model.parameters()`."
        )


@contextmanager
def explained(**outputs: Tensor | None) -> Iterator[None]:
    """Where something inside is refused, say so of the network's outputs if they are what is no number.

    They are looked at only then: a look waits for the device.
    """
    try:
        yield
    except ValueError as error:
        for name, values in outputs.items():
            if values is not None and not bool(torch.isfinite(values.detach()).all()):
                bad = int((~torch.isfinite(values.detach())).flatten(1).any(1).sum())
                raise ValueError(
                    f"MetaLearner: the network's {name.replace('_', ' ')} must be finite, got NaN or inf for {bad} of "
                    f"{len(values)} examples. Look for such values in the input, or lower the learning rate."
                ) from error
        raise


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside distributed and compiled wrappers."""
    while True:
        inside = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inside = model.module
        if not isinstance(inside, nn.Module):
            return model
        model = inside


def call(function: Callable[..., Any], x: Inputs) -> Any:
    """Call ``function`` with a tensor, a tuple of positional arguments or a mapping of keyword arguments."""
    if isinstance(x, Mapping):
        return function(**x)
    return function(*x) if isinstance(x, tuple | list) else function(x)


def logits_of(output: object) -> Tensor:
    """Logits ``[B, C]`` in what a model returned (see `find_logits`); those of tokens, ``[B, T, C]``, become ``[B T, C]``."""
    return _flat(find_logits(output, where="MetaLearner"))


def labelled(labels: Tensor, logits: Tensor, ignore_index: int | None) -> tuple[Tensor, Tensor | None]:
    """Labels of those rows of ``logits`` that are not ignored, and their positions, for which it waits; None for all."""
    if labels.ndim > 1 and labels.numel() == len(logits):
        labels = labels.reshape(-1)
    if ignore_index is None:
        return labels, None
    if labels.shape != logits.shape[:1]:
        rows = f"[{len(logits)}], one for each row of logits"
        raise ValueError(f"MetaLearner: `labels` must be {rows}, got {list(labels.shape)}. Shift logits and labels alike.")
    kept = (labels.long() != ignore_index).nonzero().squeeze(1)
    return labels[kept], kept


def rows_of(values: Tensor, kept: Tensor | None) -> Tensor:
    """Rows ``kept`` of ``values``, or all."""
    return values if kept is None else values.index_select(0, kept)


def read_features(network: Network, x: Inputs, *, inner: bool = False, verify: bool = False) -> tuple[Tensor, Tensor]:
    """Run the model and return the input of its head, ``[B, d]``, and its logits, ``[B, C]``; of tokens one row each.

    Args:
        network: The model and its head.
        x: Input of the model.
        inner: Call the module inside the wrappers: they are for training passes only.
        verify: Compare the head's output with the model's (waits for the device), and raise if they differ.
    """
    seen: list[Tensor] = []
    made: list[Tensor] = []
    hooks = [network.head.register_forward_pre_hook(lambda module, given: seen.append(given[0]))]
    if verify:
        hooks.append(network.head.register_forward_hook(lambda module, given, out: made.append(out.detach())))
    try:
        logits = logits_of(call(network.inner if inner else network.model, x))
    finally:
        for hook in hooks:
            hook.remove()
    where = f"MetaLearner: `head` must be the layer whose output the model returns, but `{network.head_name}`"
    if len(seen) != 1:
        # Compiled code that was made without a hook does not notice one that came later.
        compiled = not seen and network.model is not network.inner and not inner
        hint = "If the model was compiled and called before, call `torch.compiler.reset()`." if compiled else ""
        raise ValueError(f"{where} ran {len(seen)} times. Name the last linear layer. {hint}".rstrip())
    features = _flat(seen[0])
    if len(features) != len(logits):
        raise ValueError(f"{where} takes {list(seen[0].shape)}, not [B, d]. Pool or flatten before it.")
    # Trainers of mixed precision widen what the model returns, which does not change a number.
    if verify and not _same(_flat(made[0].to(logits.dtype)), logits.detach()):
        raise ValueError(f"{where} makes something else. Name the last linear layer, and return its output unchanged.")
    return features, logits


def _flat(values: Tensor) -> Tensor:
    return values if values.ndim == 2 else values.reshape(-1, values.shape[-1])


def _same(first: Tensor, second: Tensor) -> bool:
    # What is no number in both is the same: that input is bad is said elsewhere.
    return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)


def logits_tangent(network: Network, x: Inputs, params: Mapping[str, Tensor], along: Mapping[str, Tensor]) -> Tensor:
    """Directional derivative ``[B, C]`` of the logits, by one forward-mode pass; running statistics stay as they are.

    Args:
        network: The model and its head.
        x: Input of the model.
        params: Parameters at which to differentiate.
        along: Direction, for every one of them.

    Returns:
        The tangent. Raises ``RuntimeError`` if a layer has no forward-mode derivative.
    """
    _load_forward_mode()
    # Fused attention kernels have no forward-mode derivative; the plain one has, and gives the same numbers.
    with torch.no_grad(), untracked(norms_of(network.inner)), sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(value.detach(), along[name].to(value.dtype)) for name, value in params.items()}
        try:
            logits = logits_of(call(lambda *args, **kwargs: functional_call(network.inner, duals, args, kwargs), x))
        except NotImplementedError as error:
            raise RuntimeError(
                f"MetaLearner: the full look-ahead needs a forward-mode derivative that a layer lacks ({error}). "
                'Use lookahead="head".'
            ) from error
        tangent = forward_ad.unpack_dual(logits).tangent
        return torch.zeros_like(logits) if tangent is None else tangent


@cache
def _load_forward_mode() -> None:
    # Its first use makes PyTorch 2.13 load rules by way of `torch.jit.script`, and warn its users that this is deprecated.
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        forward_ad.make_dual(torch.zeros(1), torch.zeros(1))


@contextmanager
def replayed_randomness(state: Tensor | None, device: torch.device) -> Iterator[None]:
    """Draw the same dropout masks as when `random_state` gave ``state``; the present state is put back."""
    if state is None:
        yield
        return
    now = random_state(device)
    _set_random_state(state, device)
    try:
        yield
    finally:
        assert now is not None
        _set_random_state(now, device)


def own_randomness(device: torch.device) -> AbstractContextManager[None]:
    """Leave the global generators of the CPU and of ``device`` as they were, whatever is drawn inside."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def random_state(device: torch.device) -> Tensor | None:
    """State of the random numbers of ``device``; None while a CUDA graph is captured, where it cannot be read."""
    if device.type != "cuda":
        return torch.get_rng_state()
    return None if capturing(device) else torch.cuda.get_rng_state(device)


def capturing(device: torch.device) -> bool:
    """Whether what runs on ``device`` is being captured as a CUDA graph, so that nothing can be read from it."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _set_random_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
