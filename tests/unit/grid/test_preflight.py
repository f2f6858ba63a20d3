"""What is found before the first run: folders, data, batches, older runs, and the rows added to a grid."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.core.records import Entry
from calibrant.engine.methods import run_name
from calibrant.engine.recipe import to_toml
from calibrant.engine.train import scale_run, train
from calibrant.grid.collect import load_run_entry, save_results
from calibrant.grid.compare import check_data, compare, load_added, load_finished
from calibrant.grid.schedule import Board, Cell, plan_cells

SHORT = {"backbone.name": "mlp", "train.epochs": 1, "train.batch_size": 16, "train.device": "cpu"}


def write(file: Path, *, seed: int = 0, n: int = 60) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (n, 4, 4), dtype=np.uint8)
    np.savez(file, images=pixels, labels=np.arange(n) % 3)
    return file


def own_cells(file: Path, methods: str = "ce", seeds: tuple[int, ...] = (0,), **settings: object) -> tuple[Cell, ...]:
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return plan_cells([str(file)], methods.split(","), seeds, out=file.parent / "out", settings=SHORT | changes)


@pytest.fixture
def grid(tmp_path: Path) -> tuple[Path, Path]:
    """A file of images, and the folder of a grid with one finished run on it."""
    file, runs = write(tmp_path / "shapes.npz"), tmp_path / "out" / "runs"
    cell = own_cells(file)[0]
    train(cell.recipe, out=cell.folder)
    return file, runs


def test_check_data_of_batches_that_one_method_cannot_fill_says_so(tmp_path: Path) -> None:
    # Of 180 images 36 are for testing and 14 for validation; the paper's protocol holds out 14 more.
    cells = own_cells(write(tmp_path / "x.npz", n=180), "ce,flgamma-sece", train__batch_size=128, method__preset="paper")
    check_data(cells[:1])
    with pytest.raises(ValueError, match="`train.batch_size` must be at most the 116 training examples, got 128"):
        check_data(cells)


def test_compare_finished_grid_outlives_its_data_but_not_other_ones(grid):
    file, runs = grid
    options = {"methods": "ce", "out": runs.parent, "settings": SHORT, "figures": False}
    write(file, seed=1)
    with pytest.raises(ValueError, match="`data` must be what .* was trained on"):
        compare(str(file), **options)
    assert not (runs.parent / "table.md").exists()
    file.write_bytes(b"damaged")
    assert len(compare(str(file), **options).entries) == 1
    file.unlink()
    assert len(compare(str(file), **options).entries) == 1
    with pytest.raises(FileNotFoundError, match=r"shapes\.npz"):
        compare(str(file), **options, seeds=2)


def test_load_finished_of_another_recipe_names_what_differs(tmp_path: Path) -> None:
    (cell,) = plan_cells(["digits"], ["ce"], [0], out=tmp_path)
    cell.folder.mkdir(parents=True)
    (cell.folder / "recipe.toml").write_text(to_toml(cell.recipe))
    load_finished([cell])
    (other,) = plan_cells(["digits"], ["ce"], [0], out=tmp_path, settings={"train.epochs": 20})
    assert run_name(other.recipe) == cell.name
    with pytest.raises(ValueError, match="`train.epochs` is 30 there and 20 here. Use another folder"):
        load_finished([other])


TINY = {"train.epochs": 1, "train.batch_size": 800, "train.device": "cpu"}
NAMES = ("mixture-mlp-ce-seed0", "mixture-mlp-ce+ts-seed0", "mixture-mlp-brier-seed0")


def cells(data: str = "mixture", methods: str = "ce") -> tuple[Cell, ...]:
    return plan_cells(data.split(","), methods.split(","), [0], settings=TINY)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of ce, ce+ts and brier, one epoch each."""
    folder = tmp_path_factory.mktemp("added") / "runs"
    for cell in cells(methods="ce,brier"):
        train(cell.recipe, out=folder / cell.name)
    scale_run(folder / NAMES[0], out=folder / NAMES[1])
    return folder


@pytest.fixture(scope="module")
def predicted(runs: Path) -> Predictions:
    found = load_run_entry(runs / NAMES[0]).test
    assert found is not None
    return found


def saved(file: Path, predictions: Predictions, *, sharper: float = 1.0) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    predictions.replace(logits=sharper * predictions.logits).save(file)
    return file


def add(*given: object, grid: tuple[Cell, ...] | None = None, runs: Path) -> list[Entry]:
    chosen = [replace(cell, out=runs.parent) for cell in (cells() if grid is None else grid)]
    sets = list(dict.fromkeys(cell.data for cell in chosen))
    board = Board(chosen)
    board.note_finished()
    finished = [*load_finished(chosen).values()]
    return load_added([str(path) for path in given], finished=finished, sets=sets, tests=check_data(chosen))


def called(added: list[Entry]) -> list[tuple[str, int | None]]:
    return [(entry.method, entry.seed) for entry in added]


def test_load_added_takes_the_data_that_is_named_and_leaves_the_grids_own_runs_out(
    runs: Path, predicted: Predictions, tmp_path: Path
) -> None:
    theirs, grid = saved(tmp_path / "theirs.npz", predicted), cells("mixture,digits")
    found = add(f"mixture={theirs}", runs / NAMES[0], runs / NAMES[2], grid=grid, runs=runs)
    assert [(entry.data, entry.method) for entry in found] == [("mixture", "theirs"), ("mixture", "brier")]
    with pytest.raises(ValueError, match="`add` must say of which data set .*theirs.npz is"):
        add(theirs, grid=grid, runs=tmp_path)
    with pytest.raises(ValueError, match="`add` must say of which data set .*theirs.npz is"):
        load_added([theirs], finished=[], sets=[], tests={})
    with pytest.raises(ValueError, match="unknown data set of the grid 'mixtures'. Did you mean 'mixture'"):
        add("mixtures=theirs.npz", grid=grid, runs=tmp_path)


def test_load_added_orders_runs_as_the_catalogue_does_and_shows_a_base_that_the_grid_does_not(
    runs: Path, tmp_path: Path
) -> None:
    found = add(runs, grid=cells(methods="focal"), runs=tmp_path / "runs")
    assert called(found) == [("ce", 0), ("ce+ts", 0), ("brier", 0)]
    assert called(add(runs / NAMES[0], grid=cells(methods="ce+ts"), runs=runs)) == [("ce", 0)]


@pytest.mark.parametrize("name", [NAMES[0], NAMES[2]])
def test_load_added_of_a_run_that_is_there_takes_it_once_if_it_has_the_same_numbers(
    name: str, runs: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(runs / name, tmp_path / "copy")
    shown = [] if name == NAMES[0] else [("brier", 0)]
    (record,) = save_results([load_run_entry(copy)], tmp_path / "records")
    for given in (copy, record):
        assert called(add(runs / name, given, runs=runs)) == shown
    test = load_run_entry(copy).test
    assert test is not None
    saved(copy / "test.npz", test, sharper=1.001)
    with pytest.raises(ValueError, match="must have different seeds, got seeds 0, 0 of .* on mixture"):
        add(runs / name, copy, runs=runs)


def test_load_added_holds_rows_against_the_grids_test_set_before_it_is_run(
    runs: Path, predicted: Predictions, tmp_path: Path
) -> None:
    other = tmp_path / "other.npz"
    Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20).save(other)
    rolled = saved(tmp_path / "rolled.npz", Predictions(logits=predicted.logits, labels=predicted.labels.roll(1)))
    weights = torch.linspace(1.0, 2.0, len(predicted.labels))
    heavy = saved(tmp_path / "heavy.npz", Predictions(logits=predicted.logits, labels=predicted.labels, weights=weights))
    for place in (runs, tmp_path / "nothing-run-yet"):
        for file in (other, rolled, heavy):
            with pytest.raises(ValueError, match=f"`add` must be about the same test examples .*{file.stem}"):
                add(file, runs=place)
    part = saved(tmp_path / "part.npz", predicted.subset(range(500)))
    assert [entry.scores.n for entry in add(part, runs=runs)] == [500]
