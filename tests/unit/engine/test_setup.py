"""Dividing small and awkward sets: what a method does not need is not asked for."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.data import load_mixture
from calibrant.data.image_set import DataSet, ImageSet
from calibrant.engine.recipe import DataPart, Recipe, override
from calibrant.engine.train import divide, fits_on_device, scale_run, train


def images(n: int) -> DataSet:
    part = ImageSet(torch.zeros(n, 4, 4, 1, dtype=torch.uint8), torch.arange(n) % 2, 2, (0.5,), (0.25,))
    return DataSet("small", part, part)


@pytest.mark.parametrize(
    ("method", "preset", "meta", "sizes"),
    [
        ("ce", "default", None, (90, 10, None)),
        ("flgamma-sece", "default", None, (90, 10, None)),
        ("flgamma-sece", "default", 25, (65, 10, 25)),
        ("ce", "default", 25, (65, 10, 25)),
        ("ce", "paper", None, (90, 10, None)),
        ("flgamma-sece", "paper", None, (80, 10, 10)),
        ("flgamma-sece", "paper", 0, (90, 10, None)),
    ],
)
def test_divide_holds_out_a_tenth_unless_told_or_by_the_papers_protocol(method, preset, meta, sizes) -> None:
    recipe = override(Recipe(), {"method.name": method, "method.preset": preset, "data.meta": meta})
    data = divide(images(100), recipe)
    assert tuple(None if part is None else len(part) for part in (data.train, data.val, data.meta)) == sizes


SETTINGS = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "train.batch_size": "50",
    "train.epochs": "2",
    "train.device": "cpu",
}


@pytest.mark.parametrize("method", ["flgamma-sece", "mixup"])
def test_train_images_sent_from_the_host_give_the_same_run(method):
    recipe = override(Recipe(), SETTINGS | {"method.name": method})
    first, second = train(recipe), train(override(recipe, {"data.place": "host"}))
    assert first.test.logits.equal(second.test.logits)
    assert [r.train_loss for r in first.history] == [r.train_loss for r in second.history]


def test_fits_on_device_follows_the_recipe_and_the_free_memory(monkeypatch):
    data = divide(load_mixture(n_train=1000, n_test=500), Recipe())
    cuda, cpu = torch.device("cuda", 0), torch.device("cpu")
    assert fits_on_device(data, DataPart(), device=cpu)
    assert not fits_on_device(data, DataPart(place="host"), device=cpu)
    # 1,500 images of 64 bytes may take a third of what is free.
    for free, fits in ((288_000, True), (287_999, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10**9))
        assert fits_on_device(data, DataPart(), device=cuda) is fits
        assert fits_on_device(data, DataPart(place="device"), device=cuda)


def test_divide_takes_the_recipes_crops_and_mirroring_over_the_sets_own():
    data = load_mixture(n_train=40, n_test=4)
    data = replace(data, train=replace(data.train, pad=2, flip=True))
    for part, expected in (
        (DataPart(), (2, True)),
        (DataPart(augment=False), (0, False)),
        (DataPart(pad=0), (0, True)),
        (DataPart(pad=4, flip=False), (4, False)),
    ):
        found = divide(data, Recipe(data=part)).train
        assert (found.pad, found.flip) == expected


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


def test_train_resumed_on_other_data_is_one_sentence(tmp_path):
    file, out = write(tmp_path / "a.npz"), tmp_path / "run"
    stopped(recipe(file), out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    write(file, n=75)
    message = r"^train: `data` must be what \S*run was trained on, got other data in \S*a\.npz: 12 and 15 test images\."
    with pytest.raises(ValueError, match=message):
        train(recipe(file), out=out, resume=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    write(file)
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
