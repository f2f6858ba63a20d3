"""Rows of others beside those of a grid: told apart, taken once, and of the same test examples or refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from calibrant import Predictions, measure
from calibrant.core.entry import Entry
from calibrant.engine.train import scale_run, train
from calibrant.grid.collect import load_run_entry
from calibrant.grid.others import Added, check_same_labels, labels_of, load_added
from calibrant.grid.plan import Cell, plan_cells
from calibrant.grid.records import save_results

SHORT = {"train.epochs": 1, "train.batch_size": 800, "train.device": "cpu"}
NAMES = ("mixture-mlp-ce-seed0", "mixture-mlp-ce+ts-seed0", "mixture-mlp-brier-seed0")


def cells(data: str = "mixture", methods: str = "ce") -> tuple[Cell, ...]:
    return plan_cells(data.split(","), methods.split(","), [0], settings=SHORT)


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


def add(*given: object, grid: tuple[Cell, ...] | None = None, runs: Path) -> Added:
    chosen = cells() if grid is None else grid
    return load_added([str(path) for path in given], chosen, runs=runs, sets=list(dict.fromkeys(cell.data for cell in chosen)))


def called(added: Added) -> list[tuple[str, int | None]]:
    return [(entry.method, entry.seed) for entry in added.entries]


def test_load_added_takes_the_data_that_is_named_and_leaves_the_grids_own_runs_out(
    runs: Path, predicted: Predictions, tmp_path: Path
) -> None:
    theirs, grid = saved(tmp_path / "theirs.npz", predicted), cells("mixture,digits")
    found = add(f"mixture={theirs}", runs / NAMES[0], runs / NAMES[2], grid=grid, runs=runs)
    assert [(entry.data, entry.method) for entry in found.entries] == [("mixture", "theirs"), ("mixture", "brier")]
    for given, message in (
        (theirs, "must say of which data set .*theirs.npz is"),
        (f"digits={runs}", "must name the data that the run says itself, mixture, got digits"),
        ("mixtures=theirs.npz", "must name a data set of the grid before `=`, mixture or digits, got 'mixtures'"),
        ("mixture= ", "must name a folder or a file"),
    ):
        with pytest.raises(ValueError, match=f"compare: `add` {message}"):
            add(given, grid=grid, runs=tmp_path)


def test_load_added_of_a_file_with_an_equals_sign_is_that_file(
    runs: Path, predicted: Predictions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "lr=0.1.npz", predicted)
    monkeypatch.chdir(tmp_path)
    assert called(add("lr=0.1.npz", runs=runs)) == [("lr=0.1", None)]
    with pytest.raises(FileNotFoundError, match="got nothing there"):
        add(tmp_path / "a=b.npz", runs=tmp_path)


def test_load_added_orders_runs_as_the_catalogue_does_and_shows_a_base_that_the_grid_does_not(
    runs: Path, tmp_path: Path
) -> None:
    found = add(runs, grid=cells(methods="focal"), runs=tmp_path / "runs")
    assert called(found) == [("ce", 0), ("ce+ts", 0), ("brier", 0)]
    assert called(add(runs / NAMES[0], grid=cells(methods="ce+ts"), runs=runs)) == [("ce", 0)]


def test_load_added_of_seeds_from_different_folders_says_that_they_are_one_row(
    runs: Path, predicted: Predictions, tmp_path: Path
) -> None:
    files = [saved(tmp_path / f"o{k}" / f"x-seed{k}.npz", predicted, sharper=k) for k in (1, 2)]
    found = add(*files, runs=runs)
    assert called(found) == [("x", 1), ("x", 2)]
    assert [note[: note.index(" are")] for note in found.notes] == [f"{files[0]} and {files[1]}"]
    # The folder of each seed is no other folder.
    inner = [saved(tmp_path / "mine" / f"seed{k}" / "test.npz", predicted, sharper=k) for k in (1, 2)]
    found = add(*inner, runs=runs)
    assert (called(found), found.notes) == ([("mine", 1), ("mine", 2)], ())


def test_load_added_takes_what_is_the_same_once_and_refuses_one_file_as_two_seeds(
    runs: Path, predicted: Predictions, tmp_path: Path
) -> None:
    one, two, three = (saved(tmp_path / place, predicted) for place in ("o1/m-seed0.npz", "o2/m-seed0.npz", "o1/m-seed1.npz"))
    assert called(add(one, one, runs=runs)) == [("m", 0)]
    found = add(one, two, runs=runs)
    assert (called(found), [note.split()[0] for note in found.notes]) == ([("m", 0)], [str(two)])
    with pytest.raises(ValueError, match=r"must be different networks, got the same predictions in .*seed0.npz and .*seed1"):
        add(one, three, runs=runs)


@pytest.mark.parametrize("name", [NAMES[0], NAMES[2]])
def test_load_added_of_a_run_that_is_there_takes_it_once_if_it_has_the_same_numbers(
    name: str, runs: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(runs / name, tmp_path / "copy")
    shown = [] if name == NAMES[0] else [("brier", 0)]
    (record,) = save_results([load_run_entry(copy)], tmp_path / "records")
    for given in (copy, record):
        found = add(runs / name, given, runs=runs)
        assert (called(found), len(found.notes)) == (shown, 1)
    test = load_run_entry(copy).test
    assert test is not None
    saved(copy / "test.npz", test, sharper=1.001)
    with pytest.raises(ValueError, match="must have different seeds, got seed 0 of .* on mixture twice"):
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
        for file, message in (
            (other, "the 4 classes of the test set of mixture as in the grid, got 2 in .*other.npz"),
            (rolled, r"the examples in the order of .* as in the grid, got other labels for 2,\d+ of 4,000 in .*rolled"),
            (heavy, "the `weights` of .* as in the grid, got others in .*heavy"),
        ):
            with pytest.raises(ValueError, match=message):
                add(file, runs=place)
    part = saved(tmp_path / "part.npz", predicted.subset(range(500)))
    assert [entry.scores.n for entry in add(part, runs=runs).entries] == [500]


def test_load_added_of_a_seed_of_the_grids_row_must_be_of_the_whole_test_set(
    runs: Path, predicted: Predictions, tmp_path: Path
) -> None:
    (cell,) = plan_cells(["mixture"], ["ce"], [1], settings=SHORT)
    train(cell.recipe, out=tmp_path / cell.name)
    assert called(add(tmp_path / cell.name, runs=runs)) == [("ce", 1)]
    predicted.subset(range(500)).save(tmp_path / cell.name / "test.npz")
    with pytest.raises(ValueError, match=r"seed1 of ce on mixture: 4,000 test images in the first and 500 in the second"):
        add(tmp_path / cell.name, runs=runs)


def entry(
    method: str,
    labels: list[int],
    *,
    classes: int = 2,
    names: tuple[str, ...] | None = None,
    weights: list[float] | None = None,
    **other: object,
) -> Entry:
    probs = [[0.9, *([0.1 / (classes - 1)] * (classes - 1))]] * len(labels)
    test = Predictions(probs=probs, labels=labels, class_names=names, weights=weights)
    return replace(Entry("coins", method, measure(test, n_resamples=2), test=test, folder=f"{method}.npz"), **other)  # type: ignore[arg-type]


CLASSES = ("heads", "tails", "edge")
MINE, NAMED = entry("mine", [0, 1, 1]), entry("mine", [0, 1, 2], classes=3, names=CLASSES)


@pytest.mark.parametrize(
    "rows",
    [
        # Parts may come first; other data are another matter.
        [entry("part", [1, 1]), MINE, entry("b", [0, 1, 1]), entry("c", [1, 1, 1, 0], classes=6, data="dice"), entry("d", [0])],
        # Other words for the classes, or none, say nothing about their order.
        [NAMED, entry("b", [0, 1, 2], classes=3, names=("0", "1", "2")), entry("c", [0, 1, 2], classes=3)],
        [entry("old", [0, 0, 0], test=None, folder=None), MINE],
        [entry("even", [0, 1, 1], weights=[2.0, 2.0, 2.0]), MINE],
    ],
)
def test_rows_of_one_test_set_or_a_part_of_it_are_taken(rows: list[Entry]) -> None:
    check_same_labels(rows, where="page")
    found = labels_of([row for row in rows if row.data == "coins"])
    assert found is not None
    assert (len(found.labels), found.weights) == (3, None)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [entry("part", [1, 1]), MINE, entry("b", [1, 1, 0])],
            "in the order of .* as in mine.npz, got other labels for 2 of 3",
        ),
        # A run knows its test set, so it decides, not what is longest.
        ([entry("b", [1, 1, 0]), entry("ce", [0, 0], epochs=1)], "the 2 examples of .* as in ce.npz, got 3 in b.npz"),
        ([MINE, entry("b", [0, 1, 2], classes=3)], "the 2 classes of the test set of coins as in mine.npz, got 3 in b.npz"),
        ([MINE, entry("b", [0, 1, 2], classes=3, test=None, folder=None)], "the 2 classes .* got 3 in the record of b"),
        ([replace(MINE, data="?"), entry("b", [1, 1, 0], data="?")], "of the test set as in mine.npz, got other labels"),
        (
            [NAMED, entry("b", [0, 1, 2], classes=3, names=("heads", "edge", "tails"))],
            "order of classes, tails at 1, .*got edge",
        ),
        ([MINE, entry("b", [0, 1, 1], weights=[1.0, 2.0, 1.0])], "the `weights` of .* got others in b.npz"),
        ([entry("mine", [0, 1], weights=[1.0, 2.0]), entry("b", [0, 1])], "the `weights` of .* as in mine.npz, got none in b"),
    ],
)
def test_rows_of_other_test_sets_are_refused(rows: list[Entry], message: str) -> None:
    with pytest.raises(ValueError, match=f"^page must have .*{message}"):
        check_same_labels(rows, where="page")
