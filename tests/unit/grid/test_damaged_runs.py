"""What is said of a run folder that lies where a grid has a run, and cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrant.cli.main import app
from calibrant.engine.recipe import to_toml
from calibrant.grid.plan import check_finished, check_folders, plan_cells

REMEDY = "Put it back, or remove the folder of the run, which is then run again."


def test_damaged_run_of_a_base_that_nobody_asked_for_gets_a_remedy(tmp_path: Path) -> None:
    base, scaled = plan_cells(["mixture"], ["ce+ts"], [0])
    assert not base.shown
    (tmp_path / base.name).mkdir()
    (tmp_path / base.name / "run.json").write_text('{"finished": "x"}')
    check_finished([base, scaled], tmp_path)  # what it predicts is in no table, and may be gone
    (tmp_path / base.name / "run.json").write_text('{"finished"')
    with pytest.raises(ValueError, match=rf"compare: `.*run.json` must be what a finished run wrote, .* damaged. {REMEDY}"):
        check_finished([base, scaled], tmp_path)


def test_damaged_recipe_of_a_run_gets_a_remedy(tmp_path: Path) -> None:
    (cell,) = plan_cells(["mixture"], ["ce"], [0])
    (tmp_path / cell.name).mkdir()
    (tmp_path / cell.name / "recipe.toml").write_text(to_toml(cell.recipe)[:-9] + "\nbatch")
    with pytest.raises(ValueError, match=rf"^compare: `.*recipe.toml` must be valid TOML, got: .* {REMEDY}"):
        check_folders([cell], tmp_path)


def test_reproduce_names_a_damaged_run_before_it_times_anything(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "mixture-mlp-flgamma-seed0"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{")
    done = CliRunner().invoke(app, ["reproduce", "table2", "--quick", "--seeds", "1", "--dry-run", "--out", str(tmp_path)])
    assert done.exit_code != 0
    assert REMEDY in f"{done.output}{done.exception}"
    assert "timing" not in done.output
