"""The tables of methods, networks and keys in docs/train.md name what there is, with options and defaults."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from calibrant.backbones import BACKBONES
from calibrant.engine.meta_methods import MetaMethod
from calibrant.engine.methods import METHODS, Facts
from calibrant.engine.recipe import Recipe
from calibrant.engine.values import plain_value, toml_value

DOCS = Path(__file__).parents[3] / "docs"


def rows_of(section: str) -> dict[str, list[str]]:
    """Name in the first cell of a row → all of its cells, of the table of a section."""
    text = (DOCS / "train.md").read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| `")]
    names = [re.findall("`([^`]+)`", cells[0])[0] for cells in rows if not cells[0].startswith("`--")]
    return dict(zip(names, [cells for cells in rows if not cells[0].startswith("`--")], strict=True))


METHOD_ROWS, NETWORK_ROWS = rows_of("Methods"), rows_of("Networks")


def test_table_of_methods_holds_the_catalogue_and_marks_the_default() -> None:
    assert sorted(METHOD_ROWS) == sorted(METHODS)
    assert [name for name, cells in METHOD_ROWS.items() if "(default)" in cells[0]] == [Recipe().method.name]


@pytest.mark.parametrize("name", METHODS)
def test_row_of_a_method_says_its_options_with_their_defaults_and_where_its_loss_is(name: str) -> None:
    _, _, options, place = METHOD_ROWS[name]
    method = METHODS[name]
    said = dict(option.split("=") for option in re.findall("`([^`]+)`", options))
    if isinstance(method, MetaMethod):
        assert "(#what-a-method-can-be-told)" in options
        assert set(said) <= set(method.option_types(Facts(1, "sum", "default")))
    else:
        arguments = inspect.signature(method).parameters.values()
        wanted = {p.name: p.default for p in arguments if p.kind is p.KEYWORD_ONLY}
        assert said == {key: f"{value:g}" if isinstance(value, (int, float)) else value for key, value in wanted.items()}
        assert bool(said) != (options == "none")
    anchor = re.findall(r"losses\.md#(\w+)", place)[0]
    assert f"\n### `{anchor}`\n" in (DOCS / "losses.md").read_text(encoding="utf-8")


def test_table_of_networks_holds_the_catalogue_with_features_and_sizes() -> None:
    assert sorted(NETWORK_ROWS) == sorted(BACKBONES)
    assert [name for name, cells in NETWORK_ROWS.items() if "(default)" in cells[0]] == [Recipe().backbone.name]
    for name, (_, _, features, size) in NETWORK_ROWS.items():
        model = BACKBONES[name](10, **({"num_inputs": 64} if name == "mlp" else {}))
        assert f"{model.head.in_features:,}" == features
        assert name == "mlp" or f"{sum(value.numel() for value in model.parameters()):,}" == size


def test_table_of_keys_holds_every_key_of_a_recipe_with_its_default() -> None:
    text = (DOCS / "train.md").read_text(encoding="utf-8").split("\n## Every key of a recipe\n")[1].split("\n## ")[0]
    said: dict[str, str | None] = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            keys, defaults = (re.findall("`([^`]+)`", cell) for cell in line.strip("|").split(" | ")[:2])
            said |= dict(zip(keys, defaults or [None] * len(keys), strict=True))
    wanted: dict[str, str | None] = {}
    for part in dataclasses.fields(Recipe):
        value = getattr(Recipe(), part.name)
        inner = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        wanted |= {f"{part.name}.{key.name}": _written(getattr(value, key.name)) for key in inner}
        wanted |= {} if inner else {part.name: _written(value)}
    assert said == wanted


def _written(value: object) -> str | None:
    return None if value is None or value == {} else toml_value(plain_value(value))
