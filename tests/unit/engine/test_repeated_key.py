from __future__ import annotations

import re
from pathlib import Path

import pytest

from calibrant.engine.recipe import load_recipe


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seed = 3\nseed = 2\n", "`seed` again in line 2"),
        ("seed = 3\nseed = 2", "`seed` again in line 2"),
        ("[train]\nepochs = 2\n[optim]\nlr = 0.1\n\nlr = 0.2 # faster\n", "`optim.lr` again in line 6"),
        ("[train]\nepochs = 2\n[optim]\n[train] # again\nepochs = 3\n", "`[train]` again in line 4"),
        ("train.epochs = 3\ntrain . epochs = 3\n", "`train.epochs` again in line 2"),
        ("train.epochs = 3\n[train]\nepochs = 2\n", "`[train]` again in line 2"),
        (
            "[optim]\nmilestones_epochs = [1]\nmilestones_epochs = [\n  2,\n  3,\n]\n",
            "`optim.milestones_epochs` again in line 3",
        ),
        ("train = {epochs = 3, epochs = 4}\n", "`train.epochs` again in line 1"),
        ('"seed" = 3\nseed = 2\n', "`seed` again in line 2"),
    ],
)
def test_recipe_that_says_a_key_twice_names_it(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    message = f"recipe: `{file}` must say every key once, got {told}. Take one out."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        load_recipe(file)


@pytest.mark.parametrize(
    "text", ["seed 3", "seed = ", "[train\n", "seed = 3 seed = 4\n", "seed = 3\nseed.x = 4\n", "seed = 3\n[seed.x]\n"]
)
def test_recipe_that_is_no_toml_is_told_by_the_parser(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"must be valid TOML, got: .*\.$"):
        load_recipe(file)
