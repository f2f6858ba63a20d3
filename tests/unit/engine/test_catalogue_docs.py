"""The tables of methods, networks and keys in docs/train.md come from the catalogue and the recipe: see `write_tables`."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from calibrant.backbones import BACKBONES
from calibrant.engine.methods import METHODS, Method
from calibrant.engine.recipe import KEYS, Recipe, toml_value, value_of

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "train.md"


def method_row(name: str, method: Method) -> str:
    known = inspect.signature(method.build).parameters.values()
    options = {p.name: p.default for p in known if p.kind is p.KEYWORD_ONLY}
    said = [f"`{key}={value:g}`" if isinstance(value, float) else f"`{key}={value}`" for key, value in options.items()]
    told = "[many](#options-of-a-method)" if method.learns else ", ".join(said) or "none"
    default = " (default)" if name == Recipe().method.name else ""
    return f"| `{name}`{default} | {method.help} | {told} | [`{method.loss}`](losses.md#{method.loss}) |"


def key_row(name: str) -> str:
    key, default = KEYS[name], value_of(Recipe(), name)
    part, _, field = name.rpartition(".")
    hint = get_type_hints(type(getattr(Recipe(), part)) if part else Recipe)[field]
    choices = f" ({', '.join(f'`{choice}`' for choice in get_args(hint))})" if get_origin(hint) is Literal else ""
    shown = key.unset if default is None or default == {} else f"`{toml_value(default)}`"
    return f"| `{name}` | {shown} | {key.help}{choices}{f'; `{key.flag}`' if key.flag else ''} |"


TABLES = {
    "Methods": ("| `--method` |", [method_row(name, method) for name, method in METHODS.items()]),
    "Every key of a recipe": ("| key |", [key_row(name) for name in KEYS]),
}


def table_of(section: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("| ")]


def write_tables() -> None:
    """Write the tables into the page: ``python tests/unit/engine/test_catalogue_docs.py``."""
    text = PAGE.read_text(encoding="utf-8")
    for section, (_, rows) in TABLES.items():
        head, *old = table_of(section)
        text = text.replace("\n".join(old), "\n".join(rows))
        assert head in text
    PAGE.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("section", TABLES)
def test_table_on_the_page_is_that_of_the_code(section: str) -> None:
    head, rows = TABLES[section]
    found = table_of(section)
    assert found[0].startswith(head)
    assert found[1:] == rows


@pytest.mark.parametrize("name", METHODS)
def test_loss_of_a_method_is_documented(name: str) -> None:
    assert f"\n### `{METHODS[name].loss}`\n" in (DOCS / "losses.md").read_text(encoding="utf-8")


def test_table_of_networks_holds_the_catalogue_with_features_and_sizes() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table_of("Networks")[1:]]
    names = [re.findall("`([^`]+)`", cells[0])[0] for cells in rows]
    assert sorted(names) == sorted(BACKBONES)
    assert [name for name, cells in zip(names, rows, strict=True) if "(default)" in cells[0]] == [Recipe().backbone.name]
    for name, (_, _, features, size) in zip(names, rows, strict=True):
        model = BACKBONES[name](10, **({"num_inputs": 64} if name == "mlp" else {}))
        assert f"{model.head.in_features:,}" == features
        assert name == "mlp" or f"{sum(value.numel() for value in model.parameters()):,}" == size


if __name__ == "__main__":
    write_tables()
