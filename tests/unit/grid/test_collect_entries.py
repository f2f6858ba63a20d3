from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrant.core.records import Predictions
from calibrant.core.scores import Scores
from calibrant.engine.recipe import Recipe, override, recipe_of
from calibrant.engine.train import scale_run, train
from calibrant.grid.collect import command_of, data_label, effective_settings, find_runs, load_entries, load_run_entry
from calibrant.metrics.measure import measure
from helpers import golden

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


def test_load_entries_reuses_metrics_of_which_one_is_infinite(run: Path, tmp_path: Path) -> None:
    folder, sure = copy(run, tmp_path / "run"), [[1.0, 0.0], [0.0, 1.0]] * 20
    test = Predictions(probs=sure, labels=[0, 0] * 20, split="test")
    test.save(folder / "test.npz")
    # What is not finite is written as null.
    said = json.loads(measure(test).to_json())
    assert said["metrics"]["nll"]["value"] is None
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


def test_load_entries_of_a_folder_does_not_look_into_hidden_ones(tmp_path: Path) -> None:
    (tmp_path / ".kept").mkdir()
    for file in (tmp_path / "mine.npz", tmp_path / ".kept" / "older.npz"):
        golden_predictions().save(file)
    assert [entry.method for entry in load_entries(tmp_path)] == ["mine"]


def test_load_entries_of_test_predictions_are_called_by_their_folder_and_its_seed(tmp_path: Path) -> None:
    folder = tmp_path / "theirs-seed3"
    folder.mkdir()
    golden_predictions().save(folder / "test.npz")
    (entry,) = load_entries(folder / "test.npz")
    assert (entry.method, entry.seed) == ("theirs", 3)


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


@pytest.mark.parametrize(("text", "message"), [("{", "got: "), ("{}", "`data`, `method` and `metrics`")])
def test_load_entries_of_another_json_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_entries(tmp_path / "x.json")


def test_load_entries_of_nothing_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"must be a run folder, .* predictions or a record \(.json\), got nothing"):
        load_entries(tmp_path / "none")
    with pytest.raises(ValueError, match="must hold finished runs, predictions .* got none"):
        load_entries(tmp_path)


def test_load_entries_of_a_file_of_no_known_kind_names_records_too(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"must end in .npz, .* Did you mean .npz\? Records of results end in .json."):
        load_entries(tmp_path / "x.npy")


def test_data_label_of_a_path_is_its_last_part(tmp_path: Path) -> None:
    assert data_label(str(tmp_path / "birds")) == "birds"
    assert data_label("birds.v2.npz") == "birds.v2"


@pytest.mark.parametrize(
    ("average", "said"), [("no", []), ("uniform", ["from_epoch=1"]), ("ema", ["decay=0.5", "from_epoch=1"])]
)
def test_command_of_says_how_to_average_only_where_that_is_done(average: str, said: list[str]) -> None:
    chosen = {"train.average": average, "train.average_decay": "0.5", "train.average_from_epoch": "1", "method.name": "ce"}
    words = command_of(override(Recipe(), chosen)).split()
    assert [word.removeprefix("train.average_") for word in words if word.startswith("train.average_")] == said


def test_command_of_a_recipe_with_options_gives_the_same_recipe_again() -> None:
    from calibrant.cli.train import parse_settings

    given = {"method": {"name": "flgamma-sece", "options": {"every": 4}}, "optim": {"milestones_epochs": [1.5, 2]}}
    recipe = recipe_of(given)
    words = command_of(recipe).split()
    assert words[:2] == ["calibrant", "train"]
    settings = [value for flag, value in zip(words, words[1:], strict=False) if flag == "--set"]
    assert override(Recipe(), parse_settings(settings)) == recipe


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "--data cifar10 --model resnet18 --method flgamma-sece --preset default --epochs 350 --seed 0"),
        (
            {"data.name": "digits", "method.name": "ce+ts", "method.preset": "paper", "seed": "3", "train.select": "last"},
            "--data digits --model resnet18 --method ce+ts --preset paper --epochs 350 --seed 3 --set train.select=last",
        ),
    ],
)
def test_command_of_always_names_what_is_run(settings: dict[str, object], said: str) -> None:
    assert command_of(override(Recipe(), settings)) == f"calibrant train {said}"


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (
            {},
            {
                "train.average": "phase",
                "train.average_share": 0.5,
                "train.select": "error+nll",
                "train.select_within": 2.0,
            },
        ),
        ({"method.preset": "paper"}, {"train.average": "no", "train.select": "error"}),
        ({"method.name": "ce", "train.average_share": 0.3}, {"train.average": "no", "train.select": "error"}),
        (
            {"method.name": "ce", "train.average": "ema", "train.average_decay": 0.9},
            {"train.average": "ema", "train.average_decay": 0.9, "train.select": "error"},
        ),
    ],
)
def test_effective_settings_are_what_the_preset_decides_and_what_is_said(settings, found) -> None:
    assert effective_settings(override(Recipe(), settings)) == found


def test_load_entries_of_a_run_folder_says_what_its_preset_decided(run: Path) -> None:
    facts = load_entries(run)[0].facts
    assert {"train.average", "train.select"} <= set(facts["effective"])
    words = str(facts["command"]).split()
    assert {"--data", "--method", "--preset", "--model", "--epochs", "--seed"} <= set(words)
