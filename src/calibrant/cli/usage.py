"""What commands have in common: how one is made of a signature, and what its help says below the options."""

from __future__ import annotations

import inspect
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from calibrant.engine.recipe import KEYS, Recipe, value_of

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


def runs(place: str, *flags: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that has nothing but a signature and a docstring.

    The arguments go by keyword to the function at ``place``, ``module:name`` in this room, which is loaded when called. Options
    of a recipe, given by their ``flags``, are added; they arrive as ``options``, dotted key → value, None where not said.
    """
    names = {key.flag.removeprefix("--").replace("-", "_"): name for name, key in KEYS.items() if key.flag in flags}

    def decorate(described: Callable[..., None]) -> Callable[..., None]:
        def command(**given: object) -> None:
            module, _, function = place.partition(":")
            if names:
                said = {name: given.pop(argument) for argument, name in names.items()}
                given["options"] = {name: None if value is False else value for name, value in said.items()}
            getattr(import_module(f"calibrant.cli.{module}"), function)(**given)

        own = [*inspect.signature(described, eval_str=True).parameters.values(), *map(_option, names, names.values())]
        keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        command.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
        command.__name__, command.__doc__ = described.__name__, described.__doc__
        return command

    return decorate


def _option(argument: str, name: str) -> inspect.Parameter:
    """The option of a recipe's key."""
    key, default = KEYS[name], value_of(Recipe(), name)
    text = f"{key.help[0].upper()}{key.help[1:]}"
    kind: Any = bool
    shown = typer.Option(key.flag, help=f"{text}.")
    if not isinstance(default, bool):
        kind = (int if isinstance(default, int) else str) | None
        shown = typer.Option(key.flag, metavar=key.metavar, help=f"{text} ({key.unset if default is None else default}).")
    unsaid = default if isinstance(default, bool) else None
    return inspect.Parameter(argument, inspect.Parameter.KEYWORD_ONLY, default=unsaid, annotation=Annotated[kind, shown])


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
    said = _WORDS.get(command, ())
    names = {
        kind: ", ".join(getattr(import_module(module), name))
        for kind, (module, name) in _TABLES.items()
        if f"{{{kind}}}" in str(said)
    }
    words = [textwrap.fill(text.format_map(names), _WIDTH, break_on_hyphens=False) for text in said]
    for part in ["\n  ".join(["Examples:", *EXAMPLES[command]]), *words]:
        formatter.write(f"\n{part}\n")


def program() -> str:
    """How this very ``calibrant`` was called, for lines to copy: with its path where the shell would find another or none."""
    here, found = Path(sys.argv[0]), shutil.which("calibrant")
    if here.stem != "calibrant":
        return "python -m calibrant"
    return "calibrant" if found and here.exists() and here.samefile(found) else shlex.quote(str(here))
