"""Saving a run's whole state so that it can go on, and putting it back in place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def save_atomically(value: object, path: Path) -> None:
    """Write ``value`` with `torch.save`, so that the file is either the old one or the whole new one."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        kept = "The last good one is kept" if path.exists() else "Make room, and add `--resume`"
        raise OSError(f"train: the checkpoint could not be written to {path} ({_cause(error)}). {kept}.") from error


def _cause(error: BaseException) -> str:
    """What the system said: `torch.save` closes its archive after a failed write, and complains of that instead."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.strerror:
            return found.strerror
        found = found.__cause__ or found.__context__
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint; nothing in the file can run code."""
    must = f"train: `{path}` must be a checkpoint of `calibrant train`, got a file"
    remedy = "Delete it to begin again at the first epoch, or start in another folder."
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise OSError(f"train: the checkpoint {path} cannot be opened ({error.strerror or error}).") from None
    except Exception as error:
        # Its own words would advise to load the file in a way that may run code.
        raise ValueError(f"{must} that is damaged and cannot be read. {remedy}") from error
    if not isinstance(found, dict) or not {"state", "best", "history", "recipe"} <= found.keys():
        raise ValueError(f"{must} that holds something else. {remedy}")
    return found


def copy_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}


def restore_state(state: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy saved values into the tensors of a run, which stay where they are: a captured step reads them there."""
    if set(state) != set(saved):
        odd = sorted(set(state) ^ set(saved))
        raise ValueError(f"train: the checkpoint must fit the recipe, but they differ in {odd[0]!r} and {len(odd) - 1} more.")
    with torch.no_grad():
        for name, value in state.items():
            if value.shape != saved[name].shape:
                got = f"{list(saved[name].shape)} for {name!r}, which is {list(value.shape)}"
                raise ValueError(f"train: the checkpoint must fit the recipe, got {got}.")
            value.copy_(saved[name])
