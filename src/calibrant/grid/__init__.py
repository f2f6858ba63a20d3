"""Many runs: planning and running them, reading them back, and tables, figures and a page of what they predict."""

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrant.core.scores import Entry
    from calibrant.grid.collect import load_entries
    from calibrant.grid.compare import Comparison
    from calibrant.grid.export import to_csv, to_json, to_latex, to_markdown, write_table
    from calibrant.grid.paper import load_paper
    from calibrant.grid.tables import compare_table

__all__ = [
    "Comparison",
    "Entry",
    "compare_table",
    "load_entries",
    "load_paper",
    "to_csv",
    "to_json",
    "to_latex",
    "to_markdown",
    "write_table",
]

_HOME = {
    "calibrant.core.scores": ("Entry",),
    "calibrant.grid.collect": ("load_entries",),
    "calibrant.grid.compare": ("Comparison",),
    "calibrant.grid.export": ("to_csv", "to_json", "to_latex", "to_markdown", "write_table"),
    "calibrant.grid.paper": ("load_paper",),
    "calibrant.grid.tables": ("compare_table",),
}


def __getattr__(name: str) -> object:
    # Loaded when first used: a worker process needs no tables.
    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'calibrant.grid' has no attribute {name!r}")


# Until the next release, `to_markdown` is found where it was.
sys.modules[f"{__name__}.markdown"] = sys.modules[__name__]
