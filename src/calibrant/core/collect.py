"""Running a model over a loader to collect its logits."""

import inspect
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.core.checks import check_shapes, to_tensor

_WHERE = "Predictions.from_model"
_LABEL_KEYS = ("labels", "label")
# torchvision's segmentation networks call their logits "out".
_LOGIT_KEYS = ("logits", "out")


def collect_logits(
    model: nn.Module, loader: Iterable[object], *, device: torch.device | str | None = None, progress: bool = True
) -> tuple[Tensor, Tensor]:
    """Run ``model`` over all batches of ``loader``, in eval mode and without gradients, and return logits and labels.

    A batch is a pair ``(inputs, labels)``, whose further entries are left out; or, as with Hugging Face, a mapping that holds
    ``labels`` or ``label``, whose other entries become keyword arguments if the model takes them. The model may return a
    tensor, a tuple that begins with one, or a mapping or object that holds ``logits``; dense outputs ``[B, C, ...]`` with
    labels ``[B, ...]`` too. Afterwards every module is back in its mode (train or eval), even if something failed.

    Args:
        model: Any PyTorch model. It is not moved.
        loader: Batches, from a ``DataLoader`` or any other iterable.
        device: Where to send the inputs; by default to the device of the model's first parameter.
        progress: Show a progress bar on standard error, if that is a terminal or a notebook.

    Returns:
        Logits ``[N, C]`` or ``[N, C, ...]`` on the CPU, in the precision of the model (bfloat16 becomes float32), and labels
        ``[N]`` or ``[N, ...]``; dense outputs of several sizes are flattened to ``[N, C]``. Raises ``ValueError`` if
        the loader is empty, a batch has no labels or the output is not ``[B, C, ...]``.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"{_WHERE}: `model` must be a torch.nn.Module, got {type(model).__name__}. Pass the model, then the loader."
        )
    first = next(model.parameters(), next(model.buffers(), torch.empty(0)))
    place = first.device if device is None else torch.device(device)
    parts: list[tuple[Tensor, Tensor]] = []
    # `train(mode)` sets whole subtrees, and would undo what a user froze inside them.
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        # Not `inference_mode`: what a model caches on the way (rotary tables, lazy parameters) could not be trained afterwards.
        with torch.no_grad():
            for batch in _with_progress(loader) if progress else loader:
                inputs, given = split_batch(batch, where=_WHERE)
                logits = find_logits(_call(model, move(inputs, place)), where=_WHERE)
                labels = to_tensor(given, where=_WHERE, name="labels").cpu()
                check_shapes(logits, labels, where=_WHERE, kind="logits")
                parts.append(((logits.float() if logits.dtype == torch.bfloat16 else logits).cpu(), labels))
    finally:
        for module, mode in modes:
            module.training = mode
    if not parts:
        raise ValueError(f"{_WHERE}: `loader` must hold at least one batch, got none. An iterator can be used only once.")
    counts = sorted({logits.shape[1] for logits, _ in parts})
    if len(counts) > 1:
        raise ValueError(f"{_WHERE}: `model` must give the same number of classes for every batch, got {counts}.")
    if len({logits.shape[2:] for logits, _ in parts}) > 1:
        parts = [(logits.movedim(1, -1).reshape(-1, counts[0]), labels.reshape(-1)) for logits, labels in parts]
    all_logits, all_labels = (torch.cat(given) for given in zip(*parts, strict=True))
    return all_logits, all_labels


def split_batch(batch: Any, *, where: str) -> tuple[Any, Any]:
    """Split a batch, a pair or a mapping with ``labels`` or ``label``, into the model's input and the labels."""
    if isinstance(batch, Mapping):
        key = next((key for key in _LABEL_KEYS if key in batch), None)
        if key is not None:
            return {name: value for name, value in batch.items() if name != key}, batch[key]
    elif isinstance(batch, (tuple, list)) and len(batch) >= 2:
        return batch[0], batch[1]
    got = f"the keys {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else type(batch).__name__
    raise ValueError(f"{where}: a batch must be (inputs, labels) or a mapping with `labels` or `label`, got {got}.")


def move(value: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """Move every tensor in nested mappings, tuples and lists to ``device``, and those of real numbers to ``dtype``."""
    if isinstance(value, Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: move(entry, device, dtype) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        moved = [move(entry, device, dtype) for entry in value]
        make: Any = type(value)
        return make(*moved) if hasattr(value, "_fields") else make(moved)
    return value


def _call(model: nn.Module, inputs: object) -> object:
    """Call the model as its signature allows: with ``inputs`` by keyword, as one argument, or one by one."""
    try:
        known = inspect.signature(model.forward).parameters
    except ValueError:  # a traced model has no signature
        known = MappingProxyType({})
    if isinstance(inputs, Mapping):
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        named = {name: value for name, value in inputs.items() if takes_any or name in known}
        if named:
            return model(**named)
        return model(*inputs.values()) if len(inputs) == 1 else model(inputs)
    required = [p for p in known.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return model(*inputs) if isinstance(inputs, (tuple, list)) and len(required) > 1 else model(inputs)


def find_logits(output: object, *, where: str) -> Tensor:
    """Return the logits ``[B, C]`` or ``[B, C, ...]`` in the output of a model; raise ``ValueError`` if there are none.

    They may be the output itself, the first of a tuple or list, the attribute ``logits``, or the entry ``logits`` or ``out`` of
    a mapping.
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
    got = str(list(found.shape)) if isinstance(found, Tensor) else type(output if found is None else found).__name__
    hint = " For one log-odds z per example return `torch.stack([0 * z, z], 1)`." if isinstance(found, Tensor) else ""
    raise ValueError(f"{where}: `model` must return logits [B, C], alone, first in a tuple or as `logits`, got {got}.{hint}")


def _with_progress(loader: Iterable[object]) -> Iterable[object]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    shown = console.is_terminal or console.is_jupyter
    return track(loader, "predicting", console=console, transient=True, disable=not shown)
