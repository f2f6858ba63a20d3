"""Calibrated training and calibration logs inside other people's trainers.

`calibrant.integrations.lightning` needs ``lightning``, `calibrant.integrations.transformers` needs ``transformers`` and
``accelerate``: the extras of the same names. Neither is imported before it is asked for.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrant.integrations import lightning, transformers

__all__ = ["lightning", "transformers"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return importlib.import_module(f"calibrant.integrations.{name}")
    raise AttributeError(f"module 'calibrant.integrations' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
