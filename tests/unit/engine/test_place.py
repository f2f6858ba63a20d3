from dataclasses import replace

import pytest
import torch
from PIL import Image

from calibrant.data import load_digits, load_mixture
from calibrant.engine.evaluate import EvalSet
from calibrant.engine.recipe import DataPart, Recipe, override
from calibrant.engine.setup import augmented, divide, fits_on_device, load_data
from calibrant.engine.shift import shifted_predictions
from calibrant.engine.train import run_recipe

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
    first, second = run_recipe(recipe), run_recipe(override(recipe, {"data.place": "host"}))
    assert first.test.logits.equal(second.test.logits)
    assert [r.train_loss for r in first.history] == [r.train_loss for r in second.history]


def test_shift_sends_images_batch_by_batch(monkeypatch):
    run = run_recipe(override(Recipe(), SETTINGS | {"method.name": "ce", "train.epochs": "1", "data.place": "host"}))
    built, kept = [], EvalSet.__init__
    monkeypatch.setattr(EvalSet, "__init__", lambda self, *a, **k: (built.append(k["resident"]), kept(self, *a, **k))[1])
    assert len(next(shifted_predictions(run))[1]) == 4000
    assert built == [False]


def test_fits_on_device_follows_the_recipe_and_the_free_memory(monkeypatch):
    data = divide(load_mixture(n_train=1000, n_test=500), DataPart(), seed=0, with_meta=True)
    cuda, cpu = torch.device("cuda", 0), torch.device("cpu")
    assert fits_on_device(data, DataPart(), device=cpu)
    assert not fits_on_device(data, DataPart(place="host"), device=cpu)
    # 1,500 images of 64 bytes, and no padding: 96,000 bytes may take half of what is free.
    for free, fits in ((192_000, True), (191_999, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10**9))
        assert fits_on_device(data, DataPart(), device=cuda) is fits
        assert fits_on_device(data, DataPart(place="device"), device=cuda)


def test_load_data_brings_pictures_of_a_folder_to_the_recipes_size(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (12, 10), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    assert load_data(DataPart(name=str(tmp_path))).train.size == (10, 12)
    assert load_data(DataPart(name=str(tmp_path), size=8)).train.size == (8, 8)
    with pytest.raises(ValueError, match="`data.size` must be left out for mixture; only pictures of a folder are resized"):
        load_data(DataPart(name="mixture", size=8))


def test_augmented_takes_the_recipes_crops_and_mirroring_over_the_sets_own():
    train = replace(load_mixture(n_train=4, n_test=4).train, pad=2, flip=True)
    for part, expected in (
        (DataPart(), (2, True)),
        (DataPart(augment=False), (0, False)),
        (DataPart(pad=0), (0, True)),
        (DataPart(pad=4, flip=False), (4, False)),
    ):
        found = augmented(train, part)
        assert (found.pad, found.flip) == expected


def test_augmented_refuses_crops_that_could_miss_the_image():
    train = load_digits().train
    assert augmented(train, DataPart(pad=7)).pad == 7
    with pytest.raises(ValueError, match="`data.pad` must be less than the side"):
        augmented(train, DataPart(pad=8))
