"""Help as a person reads it: its names are those of the tables, and the options of every command shown there are."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from calibrant.backbones import BACKBONES
from calibrant.calibrators import ALL_CALIBRATORS
from calibrant.cli import main
from calibrant.cli.main import app
from calibrant.engine.methods import METHODS

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
GROUPS = {(), ("data",), ("results",)}
WHOLE: Any = typer.main.get_command(app)


def wrong(line: str, *, whole: bool) -> list[str]:
    """What is wrong with a command line: an unknown command, unknown options and, if it is whole, required ones left out."""
    words, command = shlex.split(line, comments=True)[1:], WHOLE
    while getattr(command, "commands", None) and words:
        if words[0] not in command.commands:
            return [words[0]]
        command = command.commands[words.pop(0)]
    given = {word.split("=")[0] for word in words if word.startswith("--")}
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    required = {option.opts[0] for option in command.params if option.required and option.opts[0].startswith("--")}
    return sorted(given - known - {"--help"}) + (sorted(required - given) if whole else [])


def shown_commands(page: str) -> dict[str, bool]:
    """Commands of shell blocks (whole ones, True) and within sentences (False), but those with words left out."""
    blocks = re.findall(r"^```(?:sh)?\s*\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    found = dict.fromkeys(re.findall(r"`(calibrant [^`]+)`", text), False)
    found |= dict.fromkeys((line.removeprefix("$ ") for block in blocks for line in block.splitlines()), True)
    return {line: whole for line, whole in found.items() if line.startswith("calibrant ") and not re.search("…|[|]", line)}


def commands(command: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    inner = getattr(command, "commands", {})
    return [path] + [found for name in inner for found in commands(inner[name], (*path, name))]


def test_names_in_help_are_those_of_the_tables() -> None:
    runner = CliRunner()
    for command, tables in {"train": (METHODS, BACKBONES), "repair": (ALL_CALIBRATORS,), "compare": (METHODS,)}.items():
        shown = " ".join(runner.invoke(app, [command, "--help"]).output.split())
        assert all(", ".join(table) in shown for table in tables)


def test_wrong_options_are_found() -> None:
    found = [wrong(f"calibrant {line}", whole=True) for line in ("report x.npz --bins 3 # no", "data list", "try")]
    assert found == [["--bins", "--out"], [], ["try"]]


@pytest.mark.parametrize("command", main.EXAMPLES)
def test_examples_in_help_have_options_that_there_are(command: str) -> None:
    for example in main.EXAMPLES[command]:
        assert wrong(example, whole=True) == []
        assert example.startswith(f"calibrant {command}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_on_a_page_have_options_that_there_are(page: Path) -> None:
    for line, whole in shown_commands(page.read_text(encoding="utf-8")).items():
        assert wrong(line, whole=whole) == [], line


@pytest.mark.parametrize("path", commands(WHOLE), ids=" ".join)
def test_help_of_a_command_breaks_off_no_sentence(path: tuple[str, ...]) -> None:
    long, short = (CliRunner().invoke(app, [*path, option], prog_name="calibrant") for option in ("--help", "-h"))
    assert (long.exit_code, short.output) == (0, long.output)
    if path not in GROUPS - {()}:
        assert not re.search(r"\w\.\.\.", long.output)
    assert "Examples:" in long.output or path[:1] in {("data",), ("results",)}


@pytest.mark.parametrize("path", [path for path in commands(WHOLE) if path not in GROUPS and path[0] != "data"], ids=" ".join)
def test_command_hands_over_what_its_function_takes(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    command = WHOLE
    for name in path:
        command = command.commands[name]
    taken: list[bool] = []

    def load(name: str) -> Any:
        functions = vars(importlib.import_module(name))
        kept = {key: inspect.signature(value) for key, value in functions.items() if inspect.isfunction(value)}
        binders = {key: lambda sign=sign, **given: taken.append(bool(sign.bind(**given))) for key, sign in kept.items()}
        return SimpleNamespace(**binders)

    monkeypatch.setattr(main, "import_module", load)
    command.callback(**{option.name: None for option in command.params if option.name != "help"})
    assert taken == [True]
