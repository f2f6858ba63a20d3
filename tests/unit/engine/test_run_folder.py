import dataclasses
import json
import subprocess

import pytest
import torch

from calibrant.engine.methods import resolved
from calibrant.engine.recipe import Recipe, load_recipe, override
from calibrant.engine.run import (
    EpochRecord,
    RunFolder,
    _write_events,
    is_finished,
    load_run,
    package_commit,
)
from calibrant.engine.train import scale_run, train
from calibrant.io import load_predictions

TINY = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "method.name": "flgamma-sece",
    "train.batch_size": "100",
    "train.epochs": "2",
    "train.device": "cpu",
    "train.checkpoint_every_seconds": "0",
}


def tiny(**settings):
    return override(Recipe(), TINY | {key.replace("__", "."): value for key, value in settings.items()})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "deep" / "run"
    return train(tiny(), out=folder), folder


def test_run_folder_holds_every_promised_file(finished):
    run, folder = finished
    names = {path.name for path in folder.iterdir()}
    promised = {"recipe.toml", "run.json", "history.jsonl", "weights.safetensors", "val.npz", "test.npz", "metrics.json"}
    assert promised <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    # Neither the checkpoint nor a temporary file is left.
    assert not {name for name in names if name.startswith(".") or name == "state.pt"}
    assert load_recipe(folder / "recipe.toml") == resolved(tiny())
    assert run.folder == folder
    assert is_finished(folder)


def test_run_folder_facts_say_where_the_run_comes_from(finished):
    _, folder = finished
    facts = json.loads((folder / "run.json").read_text())
    assert facts["torch"] == torch.__version__
    assert facts["device"].startswith("cpu")
    assert (facts["seed"], facts["processes"], facts["precision"]) == (0, 1, "float32")
    assert facts["inputs"].items() >= {"num_classes": 4, "channels": 1, "size": [8, 8]}.items()
    assert facts["examples"] == {"train": 1800, "val": 200, "test": 4000}
    assert facts["finished"] >= facts["started"]
    assert isinstance(facts["command"], list)


def test_run_folder_history_and_metrics_are_those_of_the_run(finished):
    run, folder = finished
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [EpochRecord(**line) for line in lines] == list(run.history)
    best, metrics = run.history[run.best_epoch], json.loads((folder / "metrics.json").read_text())
    assert (metrics["file"], metrics["n"], metrics["num_classes"]) == ("test.npz", 4000, 4)
    assert [metrics["metrics"][key]["value"] for key in ("error", "ece")] == pytest.approx([best.test_error, best.test_ece])
    # Methods with a gamma keep that of each example.
    gammas = load_predictions(folder / "test.npz").columns["gamma"]
    assert gammas.shape == (4000,)
    assert gammas.mean() == pytest.approx(best.gamma_mean, rel=1e-5)
    assert "gamma" in run.val.columns


def test_load_run_gives_back_the_run(finished):
    run, folder = finished
    loaded = load_run(folder)
    assert (loaded.recipe, loaded.history, loaded.best_epoch) == (run.recipe, run.history, run.best_epoch)
    assert loaded.test.logits.equal(run.test.logits)
    assert loaded.val.split.value == "val"
    assert set(loaded.hyper) == set(run.hyper)
    assert all(loaded.hyper[name].equal(value) for name, value in run.hyper.items())
    for name, value in run.model.state_dict().items():
        assert loaded.model.state_dict()[name].equal(value)
    assert not loaded.model.training


def test_train_finished_folder_is_recognised_and_not_run_again(finished):
    run, folder = finished
    before = (folder / "weights.safetensors").stat().st_mtime_ns
    seen = []
    again = train(tiny(), out=folder, resume=True, report=seen.append)
    assert again.test.logits.equal(run.test.logits)
    assert seen == []
    assert (folder / "weights.safetensors").stat().st_mtime_ns == before


def test_train_folder_with_a_run_is_refused_without_resume_and_with_another_recipe(finished):
    _, folder = finished
    with pytest.raises(ValueError, match="`out` must be a new folder.*Add `--resume`"):
        train(tiny(), out=folder)
    with pytest.raises(ValueError, match="must be the one that .* was made with, but `optim.lr` is 0.1 there and 0.2 here"):
        train(tiny(optim__lr="0.2"), out=folder, resume=True)
    with pytest.raises(ValueError, match="but `method.options.centred` is not given there and False here"):
        train(tiny(method__options__centred="false"), out=folder, resume=True)


def test_load_run_without_a_finished_run_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="must be the folder of a run, got one without recipe.toml"):
        load_run(tmp_path)
    with pytest.raises(RuntimeError, match="stop"):
        train(tiny(), out=tmp_path / "x", report=stop_at(0))
    assert not is_finished(tmp_path / "x")
    with pytest.raises(ValueError, match="must be finished, got one that is not"):
        load_run(tmp_path / "x")


def stop_at(epoch):
    def stop(record):
        if record.epoch == epoch:
            raise RuntimeError("stop")

    return stop


def test_train_resumed_history_is_consistent_with_the_checkpoint(tmp_path):
    out = tmp_path / "run"
    recipe = tiny(method__name="ce", train__epochs="4")
    with pytest.raises(RuntimeError, match="stop"):
        train(recipe, out=out, report=stop_at(1))
    with (out / "history.jsonl").open("a") as file:
        file.write('{"epoch": 2, "lr": 0.')  # a line that a killed process had begun
    (out / ".metrics.json.1234.tmp").write_text("half")
    run = train(dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, root="elsewhere")), out=out, resume=True)
    lines = [json.loads(line)["epoch"] for line in (out / "history.jsonl").read_text().splitlines()]
    assert lines == [0, 1, 2, 3]
    assert json.loads((out / "run.json").read_text())["resumed_at_epochs"] == [2]
    assert not list(out.glob(".*.tmp"))
    assert run.test.logits.equal(train(recipe).test.logits)


def as_before(folder, *, same_data="false"):
    """Rewrite a recipe as releases did that had `data.same_data`, and left the size of the meta part to its default."""
    lines = (folder / "recipe.toml").read_text().splitlines()
    lines = [f"same_data = {same_data}" if line.startswith("meta = ") else line for line in lines]
    (folder / "recipe.toml").write_text("\n".join(lines))


@pytest.mark.parametrize(("method", "same_data"), [("flgamma-sece", "false"), ("ce", "true")])
def test_run_folder_of_an_earlier_release_is_read_and_keeps_its_split(tmp_path, method, same_data):
    recipe = tiny(method__name=method, data__meta="200")
    with pytest.raises(RuntimeError, match="stop"):
        train(recipe, out=tmp_path / "run", report=stop_at(0))
    as_before(tmp_path / "run", same_data=same_data)
    with pytest.raises(ValueError, match="but `data.meta` is 200 there and not given here"):
        train(tiny(method__name=method), out=tmp_path / "run", resume=True)
    assert train(recipe, out=tmp_path / "run", resume=True).test.logits.equal(train(recipe).test.logits)
    assert load_run(tmp_path / "run").recipe == resolved(recipe)


def test_train_alternatives_cannot_begin_in_the_middle_of_a_run(tmp_path):
    with pytest.raises(RuntimeError, match="stop"):
        train(tiny(), out=tmp_path / "run", report=stop_at(0))
    with pytest.raises(ValueError, match=r"`train.alternatives` must be set from the start"):
        train(tiny(train__alternatives="true"), out=tmp_path / "run", resume=True)


def test_run_folder_facts_say_how_hyper_parameters_are_learned(finished, tmp_path):
    learning = json.loads((finished[1] / "run.json").read_text())["learning"]
    assert (learning["every"], learning["meta_batch_size"], learning["meta_schedule"]) == (8, 200, "slowing")
    assert (learning["betas"], learning["meta_bn"]) == ([0.5, 0.9], "frozen")
    assert 0 < learning["meta_lr"] < 0.104
    train(tiny(method__name="ce"), out=tmp_path / "ce")
    assert "learning" not in json.loads((tmp_path / "ce" / "run.json").read_text())


def test_tensorboard_events_hold_the_history_and_hide_what_was_run_twice(tmp_path):
    from tensorboard.backend.event_processing import event_accumulator as reading
    from torch.utils.tensorboard import SummaryWriter

    for first, last in ((0, 3), (2, 4)):
        board = SummaryWriter(str(tmp_path), purge_step=first or None)
        for epoch in range(first, last):
            _write_events(board, EpochRecord(epoch, 0.1, 1.0 + epoch + 10 * first, val_error=0.5))
        board.close()
        if first == 0:
            # Files are read in the order of their names, which begin with the second; a resumed run begins in a later one.
            (file,) = tmp_path.iterdir()
            file.rename(tmp_path / "events.out.tfevents.0000000001.first")
    found = reading.EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [(0, 1.0), (1, 2.0), (2, 23.0), (3, 24.0)]
    assert set(found.Tags()["scalars"]) == {"train/loss", "val/error", "run/lr"}


def test_package_commit_needs_a_checkout_that_tracks_the_package(tmp_path):
    package = tmp_path / "calibrant"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert package_commit(package) is None

    def git(*arguments):
        names = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", str(tmp_path), *names, *arguments], check=True, capture_output=True)

    git("init", "-q")
    assert package_commit(package) is None
    git("add", ".")
    git("commit", "-qm", "first")
    commit = package_commit(package)
    assert len(commit) == 40
    (package / "__init__.py").write_text("changed = 1")
    assert package_commit(package) == f"{commit}-dirty"


def test_run_folder_in_use_is_refused_until_it_is_left(tmp_path):
    with RunFolder(tmp_path / "run", tiny(), resume=False):
        with pytest.raises(ValueError, match="run is being written by another process"):
            RunFolder(tmp_path / "run", tiny(), resume=True)
    with RunFolder(tmp_path / "run", tiny(), resume=False):
        pass


def test_scale_run_makes_the_scaled_run_without_training(finished, tmp_path):
    base, folder = finished
    made = scale_run(folder, out=tmp_path / "ts")
    loaded = load_run(tmp_path / "ts")
    assert loaded.recipe == resolved(tiny(method__name="flgamma-sece+ts"))
    assert loaded.temperature == made.temperature
    torch.testing.assert_close(loaded.test.logits, base.test.logits / made.temperature)
    assert (loaded.history, loaded.best_epoch) == (base.history, base.best_epoch)
    assert loaded.model.state_dict()["head.weight"].equal(base.model.state_dict()["head.weight"])
    assert json.loads((tmp_path / "ts" / "run.json").read_text())["base"] == str(folder)
    assert train(loaded.recipe, out=tmp_path / "ts", resume=True).test.logits.equal(loaded.test.logits)
    assert scale_run(folder, out=tmp_path / "ts", resume=True).temperature == made.temperature
