"""Running a model over a loader to collect its logits. What is measured of them is in `calibrant.metrics`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from calibrant.core.checks import check_shapes, to_tensor

_WHERE = "Predictions.from_model"
_LABEL_KEYS = ("labels", "label")
# "out" is what torchvision's segmentation networks call their logits.
_LOGIT_KEYS = ("logits", "out")


def collect_logits(
    model: nn.Module, loader: Iterable[object], *, device: torch.device | str | None = None, progress: bool = True
) -> tuple[Tensor, Tensor]:
    """Run ``model`` over all batches of ``loader``, in eval mode and without gradients, and return logits and labels.

    A batch is a pair ``(inputs, labels)`` (further entries are left out) or a mapping that holds ``labels`` or ``label``, whose
    other entries become keyword arguments of the model, as with Hugging Face (those that it does not take are left out).
    The model may return a tensor, a tuple that begins with one, a mapping or an object that holds ``logits``. Dense outputs
    ``[B, C, ...]`` with labels ``[B, ...]`` work. Afterwards every module is in the mode (train or eval) in which it was,
    also if something failed.

    Args:
        model: Any PyTorch model. It is not moved.
        loader: Batches, from a ``DataLoader`` or any other iterable.
        device: Where the inputs are sent; by default to the device of the model's first parameter.
        progress: Show a progress bar on standard error, if that is a terminal or a notebook.

    Returns:
        Logits ``[N, C]`` or ``[N, C, ...]`` on the CPU, in the precision of the model (bfloat16 becomes float32), and labels
        ``[N]`` or ``[N, ...]``; dense outputs of several sizes are flattened to ``[N, C]``. Raises ``ValueError`` if
        the loader is empty, a batch has no labels or the output is not ``[B, C, ...]``.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> logits, labels = collect_logits(model, [(torch.zeros(4, 3), torch.tensor([0, 1, 1, 0]))])
        >>> logits.shape, labels.tolist(), logits.requires_grad, model.training
        (torch.Size([4, 2]), [0, 1, 1, 0], False, True)
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"{_WHERE}: `model` must be a torch.nn.Module, got {type(model).__name__}. Pass the model, then the loader."
        )
    target = _device_of(model, device)
    logits: list[Tensor] = []
    labels: list[Tensor] = []
    # Not `inference_mode`: what a model caches on the way (rotary tables, lazy parameters) could never be trained with again.
    with _eval_mode(model), torch.no_grad():
        for batch in _with_progress(loader, progress):
            inputs, target_labels = _split_batch(batch)
            output = find_logits(_call(model, _move(inputs, target)), where=_WHERE)
            label = to_tensor(target_labels, where=_WHERE, name="labels").cpu()
            _check_batch(output, label)
            kept = output.float() if output.dtype == torch.bfloat16 else output
            logits.append(kept.cpu())
            labels.append(label)
    if not logits:
        raise ValueError(f"{_WHERE}: `loader` must hold at least one batch, got none. An iterator can be used only once.")
    if len({part.shape[2:] for part in logits}) > 1:
        logits = [part.movedim(1, -1).reshape(-1, part.shape[1]) for part in logits]
        labels = [part.reshape(-1) for part in labels]
    if len({part.shape[1] for part in logits}) > 1:
        counts = sorted({part.shape[1] for part in logits})
        raise ValueError(f"{_WHERE}: `model` must give the same number of classes for every batch, got {counts}.")
    return torch.cat(logits), torch.cat(labels)


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        # `train(mode)` would set whole subtrees and undo what a user froze inside them.
        for module, mode in modes:
            module.training = mode


def _device_of(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Where inputs are sent: as asked for, or to the model's first parameter."""
    first = next(model.parameters(), next(model.buffers(), None))
    if device is None:
        return torch.device("cpu") if first is None else first.device
    # A model that is spread over several kinds of device is left alone.
    kinds = {parameter.device.type for parameter in model.parameters()}
    if len(kinds) == 1 and not kinds & {torch.device(device).type, "meta"}:
        raise ValueError(
            f"{_WHERE}: `device` must be that of the model, got {device} for a model on {kinds.pop()}. Call `model.to` first."
        )
    return torch.device(device)


def _split_batch(batch: object) -> tuple[object, Sequence[object]]:
    if isinstance(batch, Mapping):
        key = next((key for key in _LABEL_KEYS if key in batch), None)
        if key is None:
            raise ValueError(f"{_WHERE}: a batch must hold `labels` or `label`, got the keys {', '.join(map(str, batch))}.")
        return {name: value for name, value in batch.items() if name != key}, batch[key]
    if isinstance(batch, (tuple, list)) and len(batch) >= 2:
        return batch[0], batch[1]
    what = f"a {type(batch).__name__} of {len(batch)}" if isinstance(batch, (tuple, list)) else type(batch).__name__
    raise ValueError(f"{_WHERE}: a batch must be (inputs, labels) or a mapping with `labels`, got {what}. It has no labels.")


def _move(value: object, device: torch.device) -> object:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: _move(entry, device) for key, entry in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return type(value)._make(_move(entry, device) for entry in value)
    if isinstance(value, tuple):
        return tuple(_move(entry, device) for entry in value)
    if isinstance(value, list):
        return [_move(entry, device) for entry in value]
    return value


def _call(model: nn.Module, inputs: object) -> object:
    """Hand ``inputs`` over in the way that the model's signature allows: by keyword, as one argument, or one by one."""
    try:
        signature = inspect.signature(model.forward)
    except ValueError:  # a forward without a readable signature (scripted, built-in)
        return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)

    def takes(*positional: object, **named: object) -> bool:
        try:
            signature.bind(*positional, **named)
        except TypeError:
            return False
        return True

    if isinstance(inputs, Mapping):
        named = {str(key): value for key, value in inputs.items()}
        for chosen in (named, {name: value for name, value in named.items() if name in signature.parameters}):
            if chosen and takes(**chosen):
                return model(**chosen)
        if len(named) == 1 and takes(None):
            return model(*named.values())
        if not takes(None):
            wanted = ", ".join(signature.parameters)
            raise ValueError(f"{_WHERE}: a batch must hold what the model takes ({wanted}), got {', '.join(named)} and labels.")
    if isinstance(inputs, (tuple, list)) and not takes(None):
        return model(*inputs)
    return model(inputs)


def find_logits(output: object, *, where: str) -> Tensor:
    """Return the logits ``[B, C]`` or ``[B, C, ...]`` in what a model gave.

    They may be all of it, the first of a tuple or list, the attribute ``logits``, or an entry of a mapping: ``logits``, or
    ``out`` as in torchvision's segmentation networks. Anything else raises ``ValueError``.
    """
    found = output
    if isinstance(output, Mapping):
        found = next((output[key] for key in _LOGIT_KEYS if key in output), None)
    elif not isinstance(output, Tensor) and hasattr(output, "logits"):
        found = output.logits
    elif isinstance(output, (tuple, list)) and output:
        found = output[0]
    if isinstance(found, Tensor) and found.ndim >= 2:
        return found
    if isinstance(found, Tensor):
        got = str(list(found.shape))
    else:
        got = f"the keys {', '.join(map(str, output))}" if isinstance(output, Mapping) else type(found).__name__
    binary = isinstance(found, Tensor) and found.ndim == 1
    hint = " For one log-odds z per example return `torch.stack([0 * z, z], 1)`." if binary else ""
    raise ValueError(f"{where}: `model` must return logits [B, C], alone, first in a tuple or as `logits`, got {got}.{hint}")


def _check_batch(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim > 2 and labels.shape == logits.shape[:-1] and labels.shape[1:] != logits.shape[2:]:
        raise ValueError(
            f"{_WHERE}: `model` must return [B, C, ...], got {list(logits.shape)} with labels {list(labels.shape)}. "
            "The classes come last: wrap the model so that it returns `logits.movedim(-1, 1)`."
        )
    check_shapes(logits, labels, where=_WHERE, kind="logits")


def _with_progress(loader: Iterable[object], progress: bool) -> Iterable[object]:
    if not progress:
        return loader
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    shown = console.is_terminal or console.is_jupyter
    return track(loader, "predicting", console=console, transient=True) if shown else loader
