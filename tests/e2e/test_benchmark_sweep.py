"""`benchmarks/sweep.py` trains every combination, tells what the validation part says, and goes on where it stopped."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from calibrant.engine.folder import load_run

TINY = ["--data", "mixture", "--model", "mlp", "--epochs", "2", "--device", "cpu", "train.batch_size=200"]


@pytest.fixture
def sweep(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    yield importlib.import_module("sweep")
    sys.modules.pop("sweep", None)


def test_sweep_combines_values_and_keeps_quoted_commas_together(sweep):
    found = sweep.combinations(["a=1,2", "b='0.5,0.9','0.9,0.99'"])
    assert found == [{"a": a, "b": b} for a in "12" for b in ("0.5,0.9", "0.9,0.99")]
    assert sweep.combinations([]) == [{}]
    with pytest.raises(SystemExit, match="must be KEY=VALUE,VALUE, got 'a'"):
        sweep.combinations(["a"])


def test_sweep_tells_of_every_run_and_names_the_best(sweep, tmp_path, capsys):
    arguments = [*TINY, "--out", str(tmp_path), "method.options.gamma_max=0.5,20"]
    assert sweep.main(arguments) == 1
    failed, run, best = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert "`gamma_init` must be below the bound 0.5, got 1" in failed["failed"]
    assert run["settings"] == best["best"] == {"train.batch_size": "200", "method.options.gamma_max": "20"}
    made = load_run(tmp_path / "batch_size=200_gamma_max=20_seed0")
    record = made.history[made.best_epoch]
    assert (run["error"], run["n"]) == (pytest.approx(record.val_error, abs=1e-5), 200)
    assert best["nll"] == pytest.approx(record.val_nll, abs=1e-4)
    assert made.recipe.method.options == {"gamma_max": 20}
