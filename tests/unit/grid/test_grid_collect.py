from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrant.core.entry import Entry
from calibrant.core.records import Predictions
from calibrant.core.scores import Scores
from calibrant.engine.train import scale_run, train
from calibrant.grid.collect import data_label, find_runs, load_entries, load_run_entry, name_apart, place_of
from calibrant.metrics.measure import measure
from helpers import golden
from made_up_runs import run_of, scores_of

TINY = {
    "seed": 4,
    "data": {"name": "mixture"},
    "backbone": {"name": "mlp"},
    "method": {"name": "ce", "preset": "paper"},
    "train": {"epochs": 2, "batch_size": 400, "device": "cpu"},
}
RECORD = Path(__file__).parents[3] / "results" / "cifar10-resnet18-ce-paper-seed0.json"


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
    assert entry.facts["effective"] == {"train.average": "no", "train.select": "error"}
    assert {"train.batch_size": 400, "train.select": "error", "method.preset": "paper"}.items() <= entry.recipe.items()
    assert str(entry.facts["machine"]).startswith("cpu")
    # Published and embedded sets are what they are.
    assert "data" not in entry.facts
    assert entry.folder == str(run)


def test_load_entries_of_a_scaled_run_knows_its_temperature(run: Path, tmp_path: Path) -> None:
    made = scale_run(run, out=tmp_path / "ts")
    (entry,) = load_entries(tmp_path)
    assert (entry.method, entry.temperature) == ("ce+ts", made.temperature)


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


def test_load_entries_needs_no_weights(run: Path, tmp_path: Path) -> None:
    folder = copy(run, tmp_path / "run")
    for name in ("weights.safetensors", "val.npz", "metrics.json"):
        (folder / name).unlink()
    assert load_run_entry(folder).scores == load_run_entry(run).scores


def test_load_entries_of_a_folder_leaves_unfinished_runs_out(run: Path, tmp_path: Path) -> None:
    kept = copy(run, tmp_path / "a" / "b" / "kept")
    left = copy(run, tmp_path / "left")
    facts = json.loads((left / "run.json").read_text())
    (left / "run.json").write_text(json.dumps(facts | {"finished": None}))
    copy(run, tmp_path / "a" / "b" / "c" / "too-deep")
    assert find_runs(tmp_path) == ((kept,), (left,))
    assert [entry.folder for entry in load_entries(tmp_path)] == [str(kept)]
    with pytest.raises(ValueError, match="must hold finished runs, .* got 1 that are not finished"):
        load_entries(left)
    with pytest.raises(ValueError, match="must be the folder of a finished run"):
        load_run_entry(left)


def test_load_entries_of_predictions_are_called_by_their_file(tmp_path: Path) -> None:
    file = tmp_path / "theirs.npz"
    golden_predictions("test").save(file)
    (entry,) = load_entries(file, data="golden")
    assert (entry.data, entry.method, entry.seed, entry.model) == ("golden", "theirs", None, None)
    assert entry.scores == measure(golden_predictions(), file="theirs.npz")
    assert load_entries(file)[0].data == "?"


def test_load_entries_of_a_folder_of_predictions_are_its_seeds(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name in ("seed0.npz", "seed_1.npz", "other-seed7.npz", "test.npz"):
        golden_predictions().save(folder / name)
    golden_predictions("val").save(folder / "val.npz")
    (folder / "table.json").write_text("[1]")
    found = [(entry.method, entry.seed) for entry in load_entries(folder)]
    assert found == [("other", 7), ("theirs", 0), ("theirs", 1), ("theirs/test.npz", None)]


def test_load_entries_of_validation_predictions_is_refused(tmp_path: Path) -> None:
    golden_predictions("val").save(tmp_path / "mine.npz")
    with pytest.raises(ValueError, match="must hold predictions on test data to be compared, got those of the val split"):
        load_entries(tmp_path / "mine.npz")


def test_load_entries_of_a_record_reads_its_numbers() -> None:
    (entry,) = load_entries(RECORD)
    told = (entry.data, entry.method, entry.preset, entry.model, entry.epochs, entry.seed)
    assert told == ("cifar10", "ce", "paper", "resnet18", 350, 0)
    assert entry.scores["error"].value == 0.0494
    assert entry.facts["machine"] == "1x NVIDIA H200"
    assert load_entries(RECORD.parent)


def test_load_entries_of_nothing_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"must be a run folder, .* predictions or a record \(.json\), got nothing"):
        load_entries(tmp_path / "none")
    with pytest.raises(ValueError, match="must hold finished runs, predictions .* got none"):
        load_entries(tmp_path)


def test_load_entries_of_a_file_of_no_known_kind_names_records_too(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"must be predictions \(.npz, .*\) or the record of a result \(.json\)"):
        load_entries(tmp_path / "x.npy")


def test_data_label_of_a_path_is_its_last_part(tmp_path: Path) -> None:
    assert data_label(str(tmp_path / "birds")) == "birds"
    assert data_label("birds.v2.npz") == "birds.v2"


TEST = Predictions(probs=[[0.9, 0.1]], labels=[0])


def theirs(path: Path, data: str = "coins") -> Entry:
    return Entry(data, "?", scores_of({"ece": 0.1}), seed=place_of(path)[1], test=TEST, folder=str(path))


def names(folder: Path, *files: str) -> list[str]:
    return [entry.method for entry in name_apart([theirs(folder / file) for file in files])]


@pytest.mark.parametrize(
    ("file", "place", "seed"),
    [
        ("a/mine.npz", "a/mine", None),
        ("a/mine-seed3.npz", "a/mine", 3),
        ("a/test.npz", "a", None),
        ("a-seed3/test.npz", "a", 3),
        ("a-seed3/seed4.npz", "a-seed3", 4),
        ("a/seed3/test.npz", "a", 3),
    ],
)
def test_place_of_a_file_ends_in_its_name(tmp_path: Path, file: str, place: str, seed: int | None) -> None:
    assert place_of(tmp_path / file) == (tmp_path.resolve() / place, seed)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["o1/m.npz"], ["m"]),
        (["o1/m.npz", "o1/k.npz"], ["m", "k"]),
        (["o1/m.npz", "o2/m.npz"], ["o1/m", "o2/m"]),
        (["a/o/m.npz", "b/o/m.npz"], ["a/o/m", "b/o/m"]),
        (["o1/m-seed0.npz", "o1/m-seed1.npz"], ["m", "m"]),
        (["o1/m-seed0.npz", "o2/m-seed0.npz", "o1/m-seed1.npz"], ["o1/m", "o2/m", "o1/m"]),
        (["o1/m.npz", "o2/m-seed0.npz"], ["o1/m", "o2/m"]),
        (["o1/m.npz", "o1/m.csv"], ["m.npz", "m.csv"]),
        (["o1/m-seed0.npz", "o1/m.npz"], ["m", "m.npz"]),
        (["m/seed0.npz", "m/test.npz"], ["m", "m/test.npz"]),
    ],
)
def test_name_apart_adds_folders_and_endings_only_where_they_are_needed(
    tmp_path: Path, files: list[str], expected: list[str]
) -> None:
    assert names(tmp_path, *files) == expected


def test_name_apart_leaves_runs_other_data_and_named_entries_alone(tmp_path: Path) -> None:
    entries = [run_of("ce"), run_of("ce"), theirs(tmp_path / "m.npz"), theirs(tmp_path / "o" / "m.npz", data="dice")]
    once = name_apart(entries)
    assert [entry.method for entry in once] == ["ce", "ce", "m", "m"]
    assert name_apart(once) == once


def test_name_apart_files_called_like_a_method_keep_their_ending(tmp_path: Path) -> None:
    files = ("ce.npz", "CE.npz", "focal-seed0.npz", "focal-seed1.npz", "mine.npz")
    assert names(tmp_path, *files) == ["ce.npz", "CE.npz", "focal.npz", "focal.npz", "mine"]
    assert names(tmp_path, "a/ce+ts.csv", "b/ce+ts.csv") == ["a/ce+ts", "b/ce+ts"]


def test_name_apart_of_a_file_whose_name_is_no_utf8_can_be_written() -> None:
    assert names(Path(), "m\udc80.npz", "m\udc81.npz", "模型.npz") == ["m\\udc80", "m\\udc81", "模型"]
