"""calibrant: a classifier's confidence you can trust."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrant.core.records import Predictions, Split

__version__ = "0.1.0"
__all__ = ["Predictions", "Split", "__version__"]

# Where the promised names live. They are loaded when first used, so that `calibrant --help` does not wait for torch.
_HOMES = {"Predictions": "calibrant.core.records", "Split": "calibrant.core.records"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'calibrant' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
