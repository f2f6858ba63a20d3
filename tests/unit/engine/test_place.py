import pytest
import torch

from calibrant.data import load_mixture
from calibrant.engine.recipe import DataPart, Recipe, override
from calibrant.engine.run import run_recipe
from calibrant.engine.setup import divide, fits_on_device

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
