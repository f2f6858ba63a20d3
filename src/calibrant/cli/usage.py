"""What stands below the options in the help of a command, examples and names, and how the command is called from here."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import sys
import textwrap
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

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
# What is said beside the examples; a word in braces stands for the keys of tables, each in a file of the package.
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
    "methods": ("engine/methods.py", "BUILTIN"),
    "networks": ("backbones/__init__.py", "BACKBONES"),
    "calibrators": ("calibrators/__init__.py", "CALIBRATORS"),
}


@cache
def names(kind: str) -> list[str]:
    """Keys of a table of names, read from its source: importing it would load torch, for which help should not wait."""
    file, *tables = _TABLES[kind]
    try:
        source = (files("calibrant") / file).read_text(encoding="utf-8")
    except OSError:
        # A package without its sources.
        module = f"calibrant.{file.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
        return list(getattr(import_module(module), tables[-1]))
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in tables and node.value:
            # A dictionary, or a registry that is made of one.
            parts = [node.value, *getattr(node.value, "args", [])]
            found += [ast.literal_eval(key) for part in parts if isinstance(part, ast.Dict) for key in part.keys if key]
    return found + [point.name for point in entry_points(group=f"calibrant.{kind}") if point.name not in found]


def usage(command: str) -> str:
    """What stands below the options of a command, or of ``calibrant`` itself if that is empty."""
    words = [
        text.format_map({kind: ", ".join(names(kind)) for kind in _TABLES if kind in text}) for text in _WORDS.get(command, ())
    ]
    lines = [textwrap.fill(text, _WIDTH, break_on_hyphens=False) for text in words]
    # The sign \b keeps the lines below it as they are; they would be broken within names.
    return "\n\n".join(f"\b\n{part}" for part in ["\n  ".join(["Examples:", *EXAMPLES[command]]), *lines])


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
