"""What is said of the package in several places says the same."""

import tomllib
from pathlib import Path

import yaml

import calibrant

ROOT = Path(__file__).parents[2]
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def test_conda_recipe_asks_for_what_the_package_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    wanted = {CONDA_NAMES.get(name, name): least for name, least in (text.split(">=") for text in project["dependencies"])}
    asked = dict(text.split(" >=") for text in recipe["requirements"]["run"])
    assert asked == {"python": project["requires-python"].removeprefix(">="), **wanted}
    assert recipe["package"]["version"] == calibrant.__version__
    assert recipe["about"]["summary"] == project["description"]
