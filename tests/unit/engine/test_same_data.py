from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.engine.recipe import Recipe, override
from calibrant.engine.setup import check_same_data, known_data
from calibrant.engine.shift import evaluate_shift
from calibrant.engine.train import scale_run, train

TINY = {
    "backbone.name": "mlp",
    "method.name": "ce",
    "train.batch_size": 16,
    "train.epochs": 2,
    "train.device": "cpu",
    "train.checkpoint_every_seconds": 0,
}


def write(file: Path, *, seed: int = 0, n: int = 60) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (n, 4, 4), dtype=np.uint8)
    np.savez(file, images=pixels, labels=np.arange(n) % 3)
    return file


def recipe(file: Path | str, **settings: object) -> Recipe:
    return override(Recipe(), TINY | {"data.name": str(file)} | {key.replace("__", "."): v for key, v in settings.items()})


def stopped(wanted: Recipe, out: Path) -> None:
    """Interrupt a run after its first epoch."""

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(wanted, out=out, report=stop)
    assert (out / "state.pt").exists()


def test_run_folder_facts_know_the_data_again_whatever_the_seed_and_the_split(tmp_path):
    file = write(tmp_path / "a.npz", n=750)
    train(recipe(file), out=tmp_path / "one")
    train(recipe(file, seed=1, data__val=3, method__name="flgamma-sece"), out=tmp_path / "two")
    one, two = (json.loads((tmp_path / name / "run.json").read_text())["data"] for name in ("one", "two"))
    assert one == two
    assert (one["num_classes"], one["train_examples"], one["test_examples"]) == (3, 600, 150)
    scale_run(tmp_path / "one", out=tmp_path / "scaled")
    assert json.loads((tmp_path / "scaled" / "run.json").read_text())["data"] == one


@pytest.mark.parametrize(
    ("change", "said"), [({"seed": 1}, "other test images or labels"), ({"n": 75}, "12 test images then and 15 now")]
)
def test_train_resumed_on_other_data_is_one_sentence(tmp_path, change, said):
    file, out = write(tmp_path / "a.npz"), tmp_path / "run"
    stopped(recipe(file), out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    write(file, **change)
    message = rf"^train: `data` must be what \S*run was trained on, got other data in \S*a\.npz: {said}\. Put the old data back"
    with pytest.raises(ValueError, match=message):
        train(recipe(file), out=out, resume=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    write(file)
    assert len(train(recipe(file), out=out, resume=True).history) == 2


def test_train_stopped_before_its_first_checkpoint_begins_anew_on_other_data(tmp_path):
    file, out = write(tmp_path / "a.npz"), tmp_path / "run"
    stopped(recipe(file), out)
    (out / "state.pt").unlink()
    write(file, n=75)
    assert len(train(recipe(file), out=out, resume=True).test) == 15
    assert json.loads((out / "run.json").read_text())["data"]["test_examples"] == 15


def test_train_checkpoint_of_a_version_that_kept_no_fingerprint_goes_on(tmp_path):
    file, out = write(tmp_path / "a.npz"), tmp_path / "run"
    stopped(recipe(file), out)
    state = torch.load(out / "state.pt", weights_only=True)
    del state["data"]
    torch.save(state, out / "state.pt")
    assert len(train(recipe(file), out=out, resume=True).history) == 2


def test_train_finished_run_is_read_only_as_long_as_its_data_are_the_same_or_gone(tmp_path):
    file, out = write(tmp_path / "a.npz"), tmp_path / "run"
    run = train(recipe(file), out=out)
    assert train(recipe(file), out=out, resume=True).test.logits.equal(run.test.logits)
    write(file, seed=1)
    with pytest.raises(ValueError, match="got other data in .*: other test images or labels"):
        train(recipe(file), out=out, resume=True)
    file.write_text("no longer an archive")
    assert train(recipe(file), out=out, resume=True).test.logits.equal(run.test.logits)
    file.unlink()
    assert train(recipe(file), out=out, resume=True).test.logits.equal(run.test.logits)


def test_check_same_data_takes_published_sets_to_be_what_they_are(tmp_path):
    then, now = {"test_examples": 500, "test": "17"}, {"test_examples": 500, "test": "9a"}
    check_same_data(then, now, recipe("digits").data, where="run")
    with pytest.raises(ValueError, match="other test images or labels"):
        check_same_data(then, now, recipe(tmp_path / "a.npz").data, where="run")


def test_evaluate_shift_on_other_labels_is_one_sentence(tmp_path):
    file = write(tmp_path / "a.npz")
    run = train(recipe(file))
    write(file, n=75)
    with pytest.raises(ValueError, match=r"^evaluate_shift: `data` must be what the run was tested on, got other test labels"):
        evaluate_shift(run)


def test_known_data_of_older_runs_are_classes_and_test_examples():
    facts = {"inputs": {"num_classes": 3}, "examples": {"train": 43, "val": 5, "test": 12}}
    assert known_data(facts) == {"num_classes": 3, "test_examples": 12}
    assert known_data(facts | {"data": {"test": "9a"}}) == {"test": "9a"}
    assert known_data({}) == {}
