"""What stands below the options in the help of a command, examples and names, and how the command is called from here."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

EXAMPLES = {
    "": (
        "calibrant measure predictions.npz",
        "calibrant repair val.npz test.npz --out repaired.npz",
        "calibrant report test.npz --fit val.npz --out report.html",
    ),
    "measure": (
        "calibrant measure test.npz",
        "calibrant measure test.csv --slice camera --by-class",
        "calibrant measure before.npz after.npz --json",
    ),
    "train": (
        "calibrant train --data digits --model convnet --epochs 30 --out runs/first",
        "calibrant train --data cifar10 --method focal+ts --set optim.lr=0.05",
        "calibrant train --resume --out runs/first",
    ),
    "repair": (
        "calibrant repair val.npz test.npz --out repaired.npz",
        "calibrant repair val.npz test.npz --method temperature --out repaired.npz",
    ),
    "report": (
        "calibrant report test.npz --fit val.npz --out report.html",
        "calibrant report --run runs --out runs.html",
    ),
    "compare": (
        "calibrant compare --data digits --methods ce,ce+ts,focal --seeds 3 --out comparison",
        "calibrant compare --data birds --add ours.npz --add theirs.npz --out comparison",
    ),
    "reproduce": (
        "calibrant reproduce table1 --quick",
        "calibrant reproduce table1 --data cifar10 --seeds 3 --dry-run",
    ),
    "demo": (
        "calibrant demo",
        "calibrant demo --measure --out .",
    ),
}
_WIDTH = 76
# What is said beside the examples; a word in braces stands for the names in a table, loaded when the help is shown.
_WORDS = {
    "": (
        "Begin with `calibrant demo`. `calibrant COMMAND --help` says more.",
        "Exit codes: 0 done, 1 something failed, 2 what was given cannot be used, 130 or 143 interrupted.",
    ),
    "train": ("Methods: {methods}; any with +ts for temperature scaling.", "Networks: {networks}."),
    "repair": ("Calibrators: {calibrators}.",),
    "report": ("Calibrators: {calibrators}.",),
    "compare": ("Methods: {methods}; any with +ts for temperature scaling.",),
}
_TABLES = {
    "methods": ("calibrant.engine.methods", "METHODS"),
    "networks": ("calibrant.backbones", "BACKBONES"),
    "calibrators": ("calibrant.calibrators", "ALL_CALIBRATORS"),
}


class Command(TyperCommand):
    """A command whose help ends in examples and, where it takes them, the names there are."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write what stands below the options."""
        write_usage(self.name or "", formatter)


class Commands(TyperGroup):
    """The same for a command that has commands."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write what stands below the commands."""
        write_usage("", formatter)


def write_usage(command: str, formatter: Any) -> None:
    """Write the examples of a command, and the names that it knows."""
    tables = {
        kind: getattr(import_module(module), name)
        for kind, (module, name) in _TABLES.items()
        if kind in str(_WORDS.get(command))
    }
    words = [text.format_map({kind: ", ".join(table) for kind, table in tables.items()}) for text in _WORDS.get(command, ())]
    lines = [textwrap.fill(text, _WIDTH, break_on_hyphens=False) for text in words]
    for part in ["\n  ".join(["Examples:", *EXAMPLES[command]]), *lines]:
        formatter.write(f"\n{part}\n")


def program() -> str:
    """How this very ``calibrant`` is called in the shell: with its path where that does not find it, as after ``make demo``."""
    here, found = Path(sys.argv[0]), shutil.which("calibrant")
    if here.name == "__main__.py":
        return "calibrant" if found else "python -m calibrant"
    if here.name != "calibrant" or (found and here.exists() and Path(found).samefile(here)):
        return "calibrant"
    path = os.path.relpath(here)
    if path.startswith(os.pardir):
        path = os.path.abspath(here)
    return shlex.quote(path if os.sep in path else os.path.join(os.curdir, path))
