from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from calibrant.core.entry import Entry
from calibrant.core.records import Predictions
from calibrant.engine.train import scale_run, train
from calibrant.grid.added import Added, load_added
from calibrant.grid.collect import load_run_entry
from calibrant.grid.plan import Cell, plan_cells
from calibrant.grid.results import save_result

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
    return load_run_entry(runs / NAMES[0]).test


def saved(file: Path, predictions: Predictions) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    predictions.save(file)
    return file


def sharper(predictions: Predictions, by: float) -> Predictions:
    return predictions.replace(logits=by * predictions.logits)


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
    with pytest.raises(ValueError, match=r"`add` must say of which data set .*theirs.npz is.*`mixture=.*theirs.npz`"):
        add(theirs, grid=grid, runs=runs)


def test_load_added_of_data_that_the_grid_has_not_says_which_it_has(tmp_path: Path) -> None:
    message = "compare: `add` must name a data set of the grid before `=`, mixture or digits, got 'mixtures'."
    with pytest.raises(ValueError, match=message):
        add("mixtures=theirs.npz", grid=cells("mixture,digits"), runs=tmp_path)
    with pytest.raises(FileNotFoundError, match="got nothing there"):
        add(tmp_path / "a=b.npz", runs=tmp_path)


def test_load_added_of_a_file_called_as_figures_call_a_method_of_a_run_is_told_apart_from_it(
    runs: Path, predicted: Predictions, tmp_path: Path
) -> None:
    files = [
        saved(tmp_path / f"{name}.npz", sharper(predicted, by)) for by, name in enumerate(("CE-seed0", "CE-seed1", "Brier"), 2)
    ]
    assert called(add(*files, runs=runs)) == [("CE.npz", 0), ("CE.npz", 1), ("Brier", None)]
    assert called(add(*files, runs / NAMES[2], runs=runs))[2:] == [("Brier.npz", None), ("brier", 0)]


def test_load_added_of_models_that_share_a_file_name_are_rows_of_their_own(
    runs: Path, predicted: Predictions, tmp_path: Path
) -> None:
    one, two = (saved(tmp_path / f"o{k}" / "m.npz", sharper(predicted, k)) for k in (1, 2))
    found = add(one, two, runs=runs)
    assert (called(found), found.notes) == ([("o1/m", None), ("o2/m", None)], ())
    seeds = [saved(tmp_path / f"s-seed{k}.npz", sharper(predicted, k)) for k in (1, 2)]
    found = add(*seeds, runs=runs)
    assert (called(found), found.notes) == ([("s", 1), ("s", 2)], ())


def test_load_added_of_seeds_from_different_folders_says_that_they_are_one_row(
    runs: Path, predicted: Predictions, tmp_path: Path
) -> None:
    files = [saved(tmp_path / f"o{k}" / f"x-seed{k}.npz", sharper(predicted, k)) for k in (1, 2, 3)]
    found = add(*files[:2], runs=runs)
    assert called(found) == [("x", 1), ("x", 2)]
    told = "are taken for seeds of one row, x. Rename"
    assert found.notes == (f"{files[0]} and {files[1]} {told} one if they are different models.",)
    beside = saved(tmp_path / "o1" / "x-seed7.npz", sharper(predicted, 7))
    found = add(*files, beside, runs=runs)
    assert found.notes == (f"{files[0]}, {files[1]} and {files[2]} {told} some if they are different models.",)
    # The folder of each seed is no other folder.
    inner = [saved(tmp_path / "mine" / f"seed{k}" / "test.npz", sharper(predicted, k)) for k in (1, 2)]
    found = add(*inner, runs=runs)
    assert (called(found), found.notes) == ([("mine", 1), ("mine", 2)], ())


def test_load_added_of_the_same_predictions_takes_them_once(runs: Path, predicted: Predictions, tmp_path: Path) -> None:
    one, two = (saved(tmp_path / folder / "m.npz", predicted) for folder in ("o1", "o2"))
    assert called(add(one, one, runs=runs)) == [("m", None)]
    found = add(one, two, runs=runs)
    assert called(found) == [("m", None)]
    assert found.notes == (f"{two} is the same as {one} and was taken once.",)


def test_load_added_of_the_same_predictions_as_two_seeds_is_refused(runs: Path, predicted: Predictions, tmp_path: Path) -> None:
    one, two = (saved(tmp_path / f"m-seed{seed}.npz", predicted) for seed in (0, 1))
    with pytest.raises(
        ValueError, match=r"must be different networks, got the same predictions in .*seed0.npz and .*seed1.npz"
    ):
        add(one, two, runs=runs)


def test_load_added_of_another_number_of_classes_is_refused(runs: Path, tmp_path: Path) -> None:
    other = saved(tmp_path / "other.npz", Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 20, labels=[0, 0] * 20))
    message = "must be of the test set of mixture, which has 4 classes in the grid, got 2 in .*other.npz. Leave it out, or say"
    for place in (runs, tmp_path / "nothing-run-yet"):
        with pytest.raises(ValueError, match=message):
            add(other, runs=place)
    record = save_result(Entry("mixture", "theirs", load_run_entry(runs / NAMES[2]).scores, seed=7), tmp_path)
    assert called(add(record, runs=runs)) == [("theirs", 7)]


def test_load_added_of_other_labels_is_refused(runs: Path, predicted: Predictions, tmp_path: Path) -> None:
    rolled = saved(tmp_path / "rolled.npz", Predictions(logits=predicted.logits, labels=predicted.labels.roll(1)))
    message = (
        r"must hold the test examples of mixture in the order of the grid, got other labels for 2,\d+ of 4,000 in .*rolled"
    )
    for place in (runs, tmp_path / "nothing-run-yet"):
        with pytest.raises(ValueError, match=message):
            add(rolled, runs=place)


def test_load_added_of_a_part_of_the_test_set_is_taken(runs: Path, predicted: Predictions, tmp_path: Path) -> None:
    part = saved(tmp_path / "part.npz", predicted.subset(range(500)))
    assert [entry.scores.n for entry in add(part, runs=runs).entries] == [500]


def test_load_added_of_a_seed_of_the_grids_row_must_be_of_the_whole_test_set(
    runs: Path, predicted: Predictions, tmp_path: Path
) -> None:
    few = predicted.subset(range(500))
    theirs = saved(tmp_path / "theirs.npz", few)
    (cell,) = plan_cells(["mixture"], ["ce"], [1], settings=SHORT)
    train(cell.recipe, out=tmp_path / cell.name)
    assert called(add(theirs, tmp_path / cell.name, runs=runs)) == [("theirs", None), ("ce", 1)]
    few.save(tmp_path / cell.name / "test.npz")
    with pytest.raises(ValueError, match=r"seed1 of ce on mixture: 4,000 test images in the first and 500 in the second"):
        add(tmp_path / cell.name, runs=runs)


def test_load_added_of_data_that_the_grid_has_not_holds_rows_against_the_first(
    runs: Path, predicted: Predictions, tmp_path: Path
) -> None:
    other = shutil.copytree(runs / NAMES[2], tmp_path / "other")
    Predictions(logits=predicted.logits, labels=predicted.labels.roll(1), split="test").save(other / "test.npz")
    with pytest.raises(ValueError, match="in the order of .*mixture-mlp-ce-seed0, got other labels"):
        add(runs / NAMES[0], other, grid=cells("digits"), runs=tmp_path / "runs")


def test_load_added_of_a_folder_orders_its_runs_as_the_catalogue_does(runs: Path, tmp_path: Path) -> None:
    found = add(runs, grid=cells(methods="focal"), runs=tmp_path / "runs")
    assert called(found) == [("ce", 0), ("ce+ts", 0), ("brier", 0)]


def test_load_added_of_a_run_twice_takes_it_once_if_it_predicts_the_same(runs: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(runs / NAMES[2], tmp_path / "copy")
    for given in ((runs / NAMES[2], copy), (copy, save_result(load_run_entry(copy), tmp_path / "records"))):
        found = add(*given, runs=runs)
        assert called(found) == [("brier", 0)]
        assert [note.split()[0] for note in found.notes] == ([str(copy)] if given[1] == copy else [str(given[1])])
    test = load_run_entry(copy).test
    sharper(test, 1.5).save(copy / "test.npz")
    with pytest.raises(ValueError, match="must have different seeds, got seed 0 of brier on mixture twice"):
        add(runs / NAMES[2], copy, runs=runs)


def test_load_added_of_the_grids_own_run_elsewhere_is_left_out_if_it_predicts_the_same(runs: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(runs / NAMES[0], tmp_path / "copy")
    found = add(copy, runs=runs)
    assert (called(found), len(found.notes)) == ([], 1)
    test = load_run_entry(copy).test
    sharper(test, 1.5).save(copy / "test.npz")
    with pytest.raises(ValueError, match="must have different seeds, got seed 0 of ce on mixture twice"):
        add(copy, runs=runs)


def test_load_added_of_a_base_that_the_grid_does_not_show_is_a_row(runs: Path) -> None:
    assert called(add(runs / NAMES[0], grid=cells(methods="ce+ts"), runs=runs)) == [("ce", 0)]


def test_load_added_of_a_file_with_an_equals_sign_is_that_file(
    runs: Path, predicted: Predictions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "lr=0.1.npz", predicted)
    monkeypatch.chdir(tmp_path)
    assert called(add("lr=0.1.npz", runs=runs)) == [("lr=0.1", None)]


def test_load_added_of_a_record_with_other_numbers_is_not_taken_for_the_same(runs: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(runs / NAMES[2], tmp_path / "copy")
    sharper(load_run_entry(copy).test, 1.001).save(copy / "test.npz")
    record = save_result(load_run_entry(copy), tmp_path / "records")
    with pytest.raises(ValueError, match="got seed 0 of brier on mixture twice"):
        add(runs / NAMES[2], record, runs=runs)


def test_load_added_of_nothing_or_of_runs_on_other_data_than_named_is_refused(runs: Path, tmp_path: Path) -> None:
    for empty in ("", " ", "mixture="):
        with pytest.raises(ValueError, match="`add` must name a folder or a file, got"):
            add(empty, runs=tmp_path)
    with pytest.raises(ValueError, match="that runs and records say themselves, mixture, got digits"):
        add(f"digits={runs}", grid=cells("mixture,digits"), runs=tmp_path)


def test_load_added_refuses_weights_where_the_grid_has_none(runs: Path, predicted: Predictions, tmp_path: Path) -> None:
    weights = torch.linspace(1.0, 2.0, len(predicted.labels))
    file = saved(tmp_path / "mine.npz", Predictions(logits=2 * predicted.logits, labels=predicted.labels, weights=weights))
    with pytest.raises(
        ValueError, match=r"compare: `add` must weigh .* as the grid does, all alike, got `weights` in .*mine.npz"
    ):
        add(file, runs=runs)
