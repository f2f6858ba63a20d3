from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from calibrant.engine.train import train
from calibrant.grid.compare import compare
from calibrant.grid.plan import Cell, plan_cells
from calibrant.grid.unchanged import check_alike, check_unchanged

SHORT = {"backbone.name": "mlp", "train.epochs": 1, "train.batch_size": 16, "train.device": "cpu"}


def write(file: Path, *, seed: int = 0, n: int = 60) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (n, 4, 4), dtype=np.uint8)
    np.savez(file, images=pixels, labels=np.arange(n) % 3)
    return file


def cells_of(file: Path, methods: str = "ce", seeds: tuple[int, ...] = (0,)) -> tuple[Cell, ...]:
    return plan_cells([str(file)], methods.split(","), seeds, settings=SHORT)


@pytest.fixture
def grid(tmp_path: Path) -> tuple[Path, Path]:
    """A file of images, and the folder of a grid with one finished run on it."""
    file, runs = write(tmp_path / "shapes.npz"), tmp_path / "out" / "runs"
    cell = cells_of(file)[0]
    train(cell.recipe, out=runs / cell.name)
    return file, runs


def strip(run: Path, *keys: str) -> None:
    """Have a run of an older version, which kept less."""
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({key: value for key, value in facts.items() if key not in keys}))


@pytest.mark.parametrize(
    ("change", "said"), [({"seed": 1}, "other test images or labels"), ({"n": 75}, "12 test images then and 15 now")]
)
@pytest.mark.parametrize(("methods", "seeds"), [("ce", (0,)), ("ce", (0, 1)), ("focal", (0,))])
def test_check_unchanged_other_data_are_refused_whatever_is_to_be_run(grid, change, said, methods, seeds):
    file, runs = grid
    cells = cells_of(file, methods, seeds)
    assert check_unchanged(cells, runs) is None
    write(file, **change)
    found = (
        f"compare: `data` must be what the runs in {runs} were trained on, got other data in {file} than shapes-mlp-ce-seed0 "
    )
    with pytest.raises(ValueError, match=f"^{re.escape(found)}had: {said}. Put the old data back, or choose another folder"):
        check_unchanged(cells, runs)


def test_check_unchanged_other_data_of_another_name_or_size_are_not_compared(grid, tmp_path):
    file, runs = grid
    # Pictures of another size are another set, of the same file.
    assert check_unchanged(plan_cells([str(file)], ["ce"], [0], settings={**SHORT, "data.size": 8}), runs) is None
    other = write(tmp_path / "others.npz", n=75)
    assert check_unchanged(cells_of(other), runs) is None
    assert check_unchanged(cells_of(other), tmp_path / "new" / "runs") is None
    assert check_unchanged(plan_cells(["mixture"], ["ce"], [0]), runs) is None


def test_check_unchanged_looks_at_every_set_and_every_run(grid, tmp_path):
    file, runs = grid
    other = write(tmp_path / "others.npz")
    first, second = cells_of(other)[0], cells_of(file, seeds=(1,))[0]
    train(second.recipe, out=runs / second.name)
    strip(runs / "shapes-mlp-ce-seed0", "data", "examples", "inputs")
    write(file, n=75)
    with pytest.raises(ValueError, match="than shapes-mlp-ce-seed1 had: 12 test images then and 15 now"):
        check_unchanged([first, second], runs)
    train(first.recipe, out=runs / first.name)
    other.unlink()
    with pytest.raises(ValueError, match="than shapes-mlp-ce-seed1 had: 12 test images then and 15 now"):
        check_unchanged([first, second], runs)


def test_check_unchanged_same_name_in_another_place_is_other_data(grid, tmp_path):
    _, runs = grid
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ValueError, match=r"than shapes-mlp-ce-seed0 had: 12 test images then and 15 now"):
        check_unchanged(cells_of(write(tmp_path / "elsewhere" / "shapes.npz", n=75), "focal"), runs)


def test_check_unchanged_older_runs_are_known_by_their_test_examples_alone(grid):
    file, runs = grid
    strip(runs / "shapes-mlp-ce-seed0", "data")
    write(file, seed=1)
    assert check_unchanged(cells_of(file), runs) is None
    write(file, n=75)
    with pytest.raises(ValueError, match="12 test images then and 15 now"):
        check_unchanged(cells_of(file), runs)
    strip(runs / "shapes-mlp-ce-seed0", "examples", "inputs")
    assert check_unchanged(cells_of(file), runs) is None


def test_check_unchanged_unfinished_run_counts_once_it_has_a_checkpoint(grid):
    file, runs = grid
    run = runs / "shapes-mlp-ce-seed0"
    strip(run, "finished")
    write(file, n=75)
    assert check_unchanged(cells_of(file), runs) is None
    (run / "state.pt").touch()
    with pytest.raises(ValueError, match="12 test images then and 15 now"):
        check_unchanged(cells_of(file), runs)


def test_check_unchanged_published_data_are_not_read(tmp_path):
    (cell,) = plan_cells(["mixture"], ["ce"], [0], settings=SHORT)
    train(cell.recipe, out=tmp_path / cell.name)

    def read(part):
        pytest.fail("was read")

    assert check_unchanged([cell], tmp_path, read=read) is None


def finish(runs: Path, cell: Cell, **data: object) -> None:
    """Have a finished run say what its data were."""
    (runs / cell.name).mkdir(parents=True)
    (runs / cell.name / "run.json").write_text(json.dumps({"finished": "now", "data": data}))


def test_check_alike_compares_runs_of_the_same_data_of_ones_own_alone(tmp_path):
    first, second = cells_of(tmp_path / "a.npz", seeds=(0, 1))
    (other,) = cells_of(tmp_path / "b.npz")
    (sized,) = plan_cells([str(tmp_path / "a.npz")], ["focal"], [0], settings={**SHORT, "data.size": 8})
    published = plan_cells(["mixture"], ["ce"], [0, 1], settings=SHORT)
    for number, cell in enumerate([first, other, sized, *published]):
        finish(tmp_path, cell, test_examples=10 + number)
    finish(tmp_path, second, test_examples=10)
    assert check_alike([first, second, other, sized, *published], tmp_path) is None


def test_check_unchanged_damaged_run_of_no_cell_is_passed_over(grid):
    file, runs = grid
    (runs / "loose").mkdir()
    (runs / "loose" / "state.pt").touch()
    (runs / "notes.txt").touch()
    (runs / "torn").mkdir()
    (runs / "torn" / "recipe.toml").write_text("")
    (runs / "torn" / "run.json").write_text("{")
    assert check_unchanged(cells_of(file), runs) is None


def test_compare_finished_grid_outlives_its_data_but_not_other_ones(grid):
    file, runs = grid
    options = {"methods": "ce", "out": runs.parent, "settings": SHORT, "figures": False}
    write(file, seed=1)
    with pytest.raises(ValueError, match="^compare: `data` must be what the runs in"):
        compare(str(file), **options)
    assert not (runs.parent / "table.md").exists()
    file.write_bytes(b"damaged")
    assert len(compare(str(file), **options).entries) == 1
    file.unlink()
    assert len(compare(str(file), **options).entries) == 1
    with pytest.raises(FileNotFoundError, match=r"shapes\.npz"):
        compare(str(file), **options, seeds=2)


def test_compare_data_that_changed_while_the_grid_went_on_make_no_table(grid):
    file, runs = grid
    cells = cells_of(file, "ce,focal")
    write(file, seed=1)
    train(cells[1].recipe, out=runs / cells[1].name)
    said = r"^compare: runs of one table must have the same data, got other test images or labels \(\S*ce-seed0 and \S*focal-"
    with pytest.raises(ValueError, match=said):
        check_alike(cells, runs)
    file.unlink()
    with pytest.raises(ValueError, match=said):
        compare(str(file), methods="ce,focal", out=runs.parent, settings=SHORT, figures=False)
    strip(runs / cells[0].name, "data")
    assert check_alike(cells, runs) is None
    # The first knows too little to tell the other two apart.
    third = cells_of(write(file, seed=2), "ce", (1,))[0]
    train(third.recipe, out=runs / third.name)
    with pytest.raises(ValueError, match=r"got other test images or labels \(\S*focal-seed0 and \S*ce-seed1\)"):
        check_alike([*cells, third], runs)
