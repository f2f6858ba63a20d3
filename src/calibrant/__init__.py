"""calibrant: a classifier's confidence you can trust.

The names promised here are loaded when first used: ``import calibrant`` costs nothing, and ``calibrant --help`` does not
wait for torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrant import losses, meta, metrics
    from calibrant.calibrators.auto import repair
    from calibrant.core.records import Predictions, Split
    from calibrant.engine.run import load_run
    from calibrant.engine.train import train
    from calibrant.grid.compare import compare
    from calibrant.meta import MetaLearner
    from calibrant.metrics.measure import measure

__version__ = "0.2.0"
__all__ = [
    "MetaLearner",
    "Predictions",
    "Split",
    "__version__",
    "compare",
    "load_run",
    "losses",
    "measure",
    "meta",
    "metrics",
    "repair",
    "train",
]

_HOME = {
    "MetaLearner": "calibrant.meta",
    "Predictions": "calibrant.core.records",
    "Split": "calibrant.core.records",
    "compare": "calibrant.grid.compare",
    "load_run": "calibrant.engine.run",
    "measure": "calibrant.metrics.measure",
    "repair": "calibrant.calibrators.auto",
    "train": "calibrant.engine.train",
}
_ROOMS = "backbones calibrators data decisions engine grid integrations io losses meta metrics paper plot report".split()


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"calibrant.{name}")
    raise AttributeError(f"module 'calibrant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})
