"""A package that adds one thing of each kind through entry points: installed, it shows up wherever the built-in ones do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from calibrant import Predictions

PACKAGE = Path(__file__).with_name("example_package")
# Runs one command after another, and the lines of Python, since most of a command's time goes into loading torch.
RUNNER = """
import contextlib, io, json, sys
from calibrant.cli.main import run
found = {}
for name, command in json.load(sys.stdin).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            sys.exit(exec(command, {})) if name == "python" else run(command.split())
        except SystemExit as ended:
            found[name] = (ended.code or 0, out.getvalue(), err.getvalue())
json.dump(found, sys.stdout)
"""
LOSS = """
import torch
from calibrant.losses import LOSSES
from calibrant.meta.step import make_objective
logits, labels = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
module = LOSSES["squared_entropy"].module(reduction="mean")
objective = make_objective("squared_entropy")
print("squared_entropy" in list(LOSSES), float(module(logits, labels)), float(objective(logits, labels)))
"""
COMMANDS = {
    "train help": "train --help",
    "repair help": "repair --help",
    "data": "data list",
    "train": "train --data stripes --model mlp --method squared --epochs 2 --set train.batch_size=50 --set data.val=150"
    " --set method.options.power=1.5 --device cpu --out run",
    "measure": "measure run/test.npz --resamples 100",
    "streamed": "measure run/tes*.npz --resamples 100",
    "no limit": "measure run/tes*.npz --resamples 100 --fail-if sure_errors>0.5",
    "measure json": "measure run/test.npz --resamples 100 --json",
    "repair": "repair run/val.npz run/test.npz --method prior_shift --calibrator prior.json --out repaired.npz --resamples 100",
    "compare": "compare --data stripes --methods ce,squared --no-figures --device cpu --jobs 1 --out grid",
    "report": "report run/test.npz --fit run/val.npz --method prior_shift --run grid --resamples 100 --out report.html",
    "unknown": "train --data strips --out none",
    "python": LOSS,
}


class Done(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str


def run_all(commands: Mapping[str, str], folder: Path, *, path: Path | None = None) -> dict[str, Done]:
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(path or ""), *known])), "COLUMNS": "160"}
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(dict(commands)),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return {name: Done(*each) for name, each in json.loads(done.stdout).items()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package is installed in. It is built from a copy, as building writes beside the sources."""
    place = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PACKAGE, place / "source")
    offline = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *offline, "--target", place / "site", place / "source"],
        check=True,
        timeout=900,
    )
    return place / "site"


@pytest.fixture(scope="module")
def folder(installed: Path) -> Path:
    work = installed.parent / "work"
    work.mkdir()
    return work


@pytest.fixture(scope="module")
def found(installed: Path, folder: Path) -> dict[str, Done]:
    return run_all(COMMANDS, folder, path=installed)


def test_plugin_commands_all_succeed(found: dict[str, Done]) -> None:
    failed = {name: done for name, done in found.items() if done.code != 0}
    assert set(failed) == {"unknown", "no limit"}, failed
    assert "Did you mean 'stripes'?" in failed["unknown"].err


def test_plugin_names_stand_in_the_lists(found: dict[str, Done]) -> None:
    assert "squared" in found["train help"].out.partition("Methods:")[2]
    assert "prior_shift" in found["repair help"].out.partition("Calibrators:")[2]
    assert "noisy rows or columns, 2 classes" in found["data"].out


def test_plugin_method_trains_on_the_data_set_with_its_option(found: dict[str, Done], folder: Path) -> None:
    recipe = (folder / "run" / "recipe.toml").read_text()
    assert all(line in recipe for line in ("power = 1.5", 'average = "ema"', 'select = "nll"'))
    test = Predictions.load(folder / "run" / "test.npz")
    assert (len(test), test.class_names) == (400, ("rows", "columns"))
    # Rows and columns are easily told apart; half of them by chance.
    assert float((test.predicted == test.labels).double().mean()) > 0.7


def test_plugin_metric_is_measured_with_its_label_unit_and_interval(found: dict[str, Done], folder: Path) -> None:
    test = Predictions.load(folder / "run" / "test.npz")
    confidence, predicted = test.probs.max(1)
    share = float(((predicted != test.labels) & (confidence > 0.8)).double().mean())
    shown = json.loads(found["measure json"].out)["metrics"]["sure_errors"]
    assert shown["value"] == pytest.approx(share)
    assert shown["low"] <= share <= shown["high"]
    line = next(line for line in found["measure"].out.splitlines() if "confident errors" in line)
    assert f"{100 * share:.2f}%" in line
    assert "confident errors" in found["repair"].out


def test_plugin_metric_that_needs_all_examples_is_missed_where_data_are_streamed(found: dict[str, Done]) -> None:
    assert "streamed: confident errors" in found["streamed"].out
    assert "`sure_errors`" in found["no limit"].err


def test_plugin_calibrator_repairs_and_is_saved_by_its_name(found: dict[str, Done], folder: Path) -> None:
    assert json.loads((folder / "prior.json").read_text())["calibrator"] == "prior_shift"
    repaired, test = (Predictions.load(folder / name) for name in ("repaired.npz", "run/test.npz"))
    shift = (repaired.logits - test.logits).diff(dim=1)
    assert float(shift.std()) < 1e-4 < abs(float(shift.mean()))


def test_plugin_method_data_and_metric_stand_in_comparison_and_report(found: dict[str, Done], folder: Path) -> None:
    assert "[2/2] stripes squared seed 0" in found["compare"].out
    table = json.loads((folder / "grid" / "table.json").read_text())
    assert table["sections"][0]["data"] == "stripes"
    assert "sure_errors" in [column["key"] for column in table["columns"]]
    page = (folder / "report.html").read_text()
    for name in ("confident errors", "Prior shift", "Squared entropy", "Stripes"):
        assert name in page, name


def test_plugin_loss_is_a_module_and_a_meta_objective(found: dict[str, Done]) -> None:
    # Of two equal logits: (ln 2)^2 / 2.
    listed, module, objective = found["python"].out.split()
    assert (listed, float(module)) == ("True", pytest.approx(0.2402265, rel=1e-5))
    assert module == objective


def test_plugin_that_cannot_be_loaded_harms_nothing_else(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(installed, tmp_path / "site")
    (tmp_path / "site" / "calibrant_example.py").write_text("import no_such_module\n")
    shutil.rmtree(tmp_path / "site" / "__pycache__")
    tiny = "--model mlp --epochs 1 --set train.batch_size=400 --device cpu"
    commands = {
        "help": "train --help",
        "builtin": f"train --data mixture --method ce {tiny} --out run",
        "broken": f"train --data mixture --method squared {tiny} --out none",
        "measure": "measure run/test.npz --resamples 100 --json",
    }
    found = run_all(commands, tmp_path, path=tmp_path / "site")
    assert {name: done.code for name, done in found.items()} == {"help": 0, "builtin": 0, "broken": 2, "measure": 0}
    assert "calibrant-example" in found["broken"].err
    assert "no_such_module" in found["broken"].err
