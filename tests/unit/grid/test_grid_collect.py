from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from calibrant.core.records import Entry, Predictions, Scores
from calibrant.engine.train import train
from calibrant.grid.collect import check_same_labels, finished_runs, load_entries, load_run_entry
from calibrant.metrics.measure import measure
from helpers import golden

TINY = {
    "seed": 4,
    "data": {"name": "mixture"},
    "backbone": {"name": "mlp"},
    "method": {"name": "ce", "preset": "paper"},
    "train": {"epochs": 2, "batch_size": 400, "device": "cpu"},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grid") / "runs" / "one"
    train(TINY, out=folder)
    return folder


def copy(run: Path, to: Path) -> Path:
    to.mkdir(parents=True)
    for file in run.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def golden_predictions(split: str | None = None) -> Predictions:
    logits, labels = golden()
    return Predictions(logits=logits, labels=labels, split=split)


def test_load_entries_of_a_run_folder_gives_what_was_run_and_measured(run: Path) -> None:
    (entry,) = load_entries(run)
    told = (entry.data, entry.method, entry.preset, entry.model, entry.epochs, entry.seed)
    assert told == ("mixture", "ce", "paper", "mlp", 2, 4)
    assert entry.test is not None
    assert len(entry.test) == entry.scores.n == 4000
    assert entry.scores["error"].value == pytest.approx(float((~entry.test.correct).double().mean()))
    assert entry.scores.bins.count.sum() == 4000
    assert entry.curve("test_error")[0] == [1, 2]
    assert entry.best_epoch in (0, 1)
    assert entry.facts["command"] == (
        "calibrant train --data mixture --model mlp --method ce --preset paper --epochs 2 --seed 4 "
        "--set train.batch_size=400 --set train.device=cpu"
    )
    assert (entry.recipe["train.average"], entry.recipe["train.select"]) == ("no", "error")
    assert {"train.batch_size": 400, "train.select": "error", "method.preset": "paper"}.items() <= entry.recipe.items()
    assert str(entry.facts["machine"]).startswith("cpu")
    # Published and embedded sets are what they are.
    assert "data" not in entry.facts
    assert entry.folder == str(run)


def test_load_entries_reuses_metrics_that_agree_with_the_predictions(run: Path, tmp_path: Path) -> None:
    folder = copy(run, tmp_path / "run")
    said = json.loads((folder / "metrics.json").read_text())
    said["metrics"]["ece"]["high"] = 0.987
    (folder / "metrics.json").write_text(json.dumps(said))
    assert load_run_entry(folder).scores["ece"].high == 0.987


@pytest.mark.parametrize(
    "spoil",
    [
        lambda said: said["metrics"]["ece"].update(value=0.5),
        lambda said: said["metrics"]["ece"].update(value=1.0001 * said["metrics"]["ece"]["value"]),
        lambda said: said["metrics"].pop("aurc"),
        lambda said: said.update(n=3),
        lambda said: said.clear(),
    ],
)
def test_load_entries_measures_anew_where_metrics_are_of_something_else(run: Path, tmp_path: Path, spoil) -> None:
    folder = copy(run, tmp_path / "run")
    said = json.loads((folder / "metrics.json").read_text())
    right = Scores.from_dict(said)
    said["metrics"]["ece"]["high"] = 0.987
    spoil(said)
    (folder / "metrics.json").write_text(json.dumps(said))
    assert load_run_entry(folder).scores == right


def test_load_entries_of_a_folder_leaves_unfinished_runs_out(run: Path, tmp_path: Path) -> None:
    kept = copy(run, tmp_path / "a" / "b" / "kept")
    left = copy(run, tmp_path / "left")
    facts = json.loads((left / "run.json").read_text())
    (left / "run.json").write_text(json.dumps(facts | {"finished": None}))
    copy(run, tmp_path / "a" / "b" / "c" / "too-deep")
    assert finished_runs(tmp_path) == [kept]
    assert [entry.folder for entry in load_entries(tmp_path)] == [str(kept)]
    with pytest.raises(ValueError, match="must hold finished runs, .* got none"):
        load_entries(left)
    with pytest.raises(ValueError, match="must be the folder of a finished run"):
        load_run_entry(left)


def test_load_entries_of_a_folder_of_predictions_are_its_seeds(tmp_path: Path) -> None:
    for name in ("theirs-seed0.npz", "theirs_seed_1.npz", "below/other-seed7.npz", "test.npz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        golden_predictions().save(tmp_path / name)
    golden_predictions("val").save(tmp_path / "val.npz")
    (tmp_path / "table.json").write_text("[1]")
    found = [(entry.method, entry.seed) for entry in load_entries(tmp_path)]
    assert found == [("other", 7), ("test", None), ("theirs", 0), ("theirs", 1)]


def test_load_entries_of_validation_predictions_is_refused(tmp_path: Path) -> None:
    golden_predictions("val").save(tmp_path / "mine.npz")
    with pytest.raises(ValueError, match="must hold predictions on test data, got those of the val split"):
        load_entries(tmp_path / "mine.npz")


def test_load_entries_of_nothing_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"must be a run folder, .* predictions or a record \(.json\), got nothing"):
        load_entries(tmp_path / "none")
    with pytest.raises(ValueError, match="must hold finished runs, predictions .* got none"):
        load_entries(tmp_path)


def entry(method: str, labels: list[int], *, classes: int = 2, weights: list[float] | None = None, **other: object) -> Entry:
    probs = [[0.9, *([0.1 / (classes - 1)] * (classes - 1))]] * len(labels)
    test = Predictions(probs=probs, labels=labels, weights=weights)
    return replace(Entry("coins", method, measure(test, n_resamples=100), test=test, folder=f"{method}.npz"), **other)  # type: ignore[arg-type]


MINE = entry("mine", [0, 1, 1])


@pytest.mark.parametrize(
    "rows",
    [
        # Parts may come first; other data are another matter.
        [entry("part", [1, 1]), MINE, entry("b", [0, 1, 1]), entry("c", [1, 1, 1, 0], classes=6, data="dice"), entry("d", [0])],
        [entry("old", [0, 0, 0], test=None, folder=None), MINE],
        [entry("even", [0, 1, 1], weights=[2.0, 2.0, 2.0]), MINE],
    ],
)
def test_rows_of_one_test_set_or_a_part_of_it_are_taken(rows: list[Entry]) -> None:
    assert check_same_labels(rows, where="page") is None


@pytest.mark.parametrize(
    "other",
    [
        entry("b", [1, 1, 0]),
        entry("b", [0, 1, 2], classes=3),
        entry("b", [0, 1, 2], classes=3, test=None),
        entry("b", [0, 1, 1], weights=[1.0, 2.0, 1.0]),
    ],
)
def test_rows_of_other_test_sets_are_refused(other: Entry) -> None:
    with pytest.raises(ValueError, match="^page must be about the same test examples .* in b.npz"):
        check_same_labels([entry("part", [1, 1]), MINE, other], where="page")
