"""The network of a run: each way a user's own can be wrong gets one sentence, trying it changes nothing; weights as files."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from calibrant.data.image_set import ImageSet
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.setup import check_network, choose_hardware, freeze, load_initial_weights, load_weights, save_weights
from calibrant.engine.train import Assembly

SETTINGS = {"data.name": "digits", "method.name": "ce", "train.device": "cpu", "train.batch_size": "50", "train.epochs": "1"}

NETS = """
import torch
from torch import nn

def good(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

def lazy(num_classes):
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(num_classes))

def seen(num_classes):
    model = lazy(num_classes)
    model(torch.zeros(1, 1, 8, 8))
    return model

def needs_two(num_classes, width):
    return good(num_classes)

def raises(num_classes):
    raise RuntimeError("my own trouble.\\nand more of it")

def small_memory(num_classes):
    raise torch.OutOfMemoryError("CUDA out of memory")

def none(num_classes):
    return 3

def wrong_classes(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))

def soft(num_classes):
    return nn.Sequential(good(num_classes), nn.Softmax(1))

def wrong_input(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(63, num_classes))

def headless(num_classes):
    return nn.Sequential(nn.Conv2d(1, num_classes, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

class Two(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.one = nn.Linear(64, num_classes)

    def forward(self, images):
        logits = self.one(images.flatten(1))
        return logits, logits

class Idle(Two):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.unused = nn.Linear(3, num_classes)

    def forward(self, images):
        return self.one(images.flatten(1))

class Scaled(Two):
    def forward(self, images):
        return 8 * self.one(images.flatten(1) + 1)

class Cut(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.one = nn.Linear(64, 2 * num_classes)

    def forward(self, images):
        return self.one(images.flatten(1))[:, : self.one.out_features // 2]

number = 5
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_nets.py").write_text(NETS)
    (tmp_path / "users_slip.py").write_text("x = y_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("users_nets", "users_slip"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("users_nets:needs_two", "builds a network for 10 classes, got TypeError: .*'width'"),
        ("users_nets:raises", "for 10 classes, got RuntimeError: my own trouble from.*CALIBRANT_TRACEBACK"),
        ("users_nets:none", "int and no `nn.Module`"),
        ("users_nets:wrong_input", r"map images \[1, 8, 8\] .*2x64 and 63x10"),
        ("users_nets:wrong_classes", r"one logit for each of 10 classes, got ValueError: logits \[2, 7\]"),
        ("users_nets:Two", "one logit for each of 10 classes, got AttributeError: 'tuple'"),
        ("users_nets:soft", "scores before softmax, got probabilities"),
        ("users_nets:headless", "`head` must name an `nn.Linear` of the model.*Linear layers: none"),
        ("users_nets:Idle", "last linear layer, 'unused', is not used"),
        ("users_nets:number", "'int' object is not callable"),
        ("users_nets:goood", "has no attribute 'goood'"),
        ("absent:net", "be package.module:function .*No module named 'absent'"),
        ("users_slip:good", "NameError: name 'y_that_is_not_there'"),
    ],
)
def test_assemble_users_network_that_cannot_be_is_one_sentence(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Assembly(override(Recipe(), SETTINGS | {"backbone.name": name}))


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize("name", ["users_nets:Scaled", "users_nets:Cut"])
def test_assemble_logits_that_are_not_the_last_layers_are_refused_where_that_layer_looks_ahead(name: str) -> None:
    chosen = SETTINGS | {"backbone.name": name}
    with pytest.raises(ValueError, match=f"`model` must return the output of its last `nn.Linear`.*{name}"):
        Assembly(override(Recipe(), chosen | {"method.name": "flgamma-sece"}))
    Assembly(override(Recipe(), chosen | {"method.name": "ce"}))


@pytest.mark.usefixtures("nets")
def test_assemble_factory_out_of_memory_stays_what_it_is() -> None:
    # A comparison tries such runs again; a sentence about the network would end it.
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        Assembly(override(Recipe(), SETTINGS | {"backbone.name": "users_nets:small_memory"}))


def one_image(*, channels: int = 3, size: int = 8) -> ImageSet:
    images = torch.zeros(1, size, size, channels, dtype=torch.uint8)
    return ImageSet(images, torch.zeros(1, dtype=torch.int64), 5, (0.5,) * channels, (0.25,) * channels)


def test_check_network_changes_no_number_no_mode_and_no_random_state() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 36, 5))
    model[1].eval()
    draws = nn.Sequential(model, nn.RReLU())
    kept = {name: value.clone() for name, value in draws.state_dict().items()}
    modes = [module.training for module in draws.modules()]
    state = torch.get_rng_state()
    check_network(draws, one_image(), choose_hardware(device="cpu"), name="mine")
    assert torch.get_rng_state().equal(state)
    assert [module.training for module in draws.modules()] == modes
    assert modes.count(False) == 1
    assert all(value.equal(kept[name]) for name, value in draws.state_dict().items())
    assert all(value.grad is None for value in draws.parameters())


def net(num_classes=3):
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, num_classes))


def test_save_weights_round_trip_keeps_every_bit_and_layout_does_not_matter(tmp_path):
    model = net().to(memory_format=torch.channels_last)
    save_weights(tmp_path / "w.safetensors", model.state_dict(), {"gamma": torch.tensor([1.5])}, notes={"method": "ce"})
    weights, hyper = load_weights(tmp_path / "w.safetensors")
    assert set(weights) == set(model.state_dict())
    assert all(value.equal(weights[name]) for name, value in model.state_dict().items())
    assert hyper["gamma"].tolist() == [1.5]


def test_load_initial_weights_other_head_keeps_the_new_one(tmp_path):
    old, new = net(5), net(3)
    save_weights(tmp_path / "w.safetensors", old.state_dict(), {}, notes={})
    before = new[3].weight.clone()
    with pytest.warns(UserWarning, match="is for a different number of classes"):
        load_initial_weights(new, tmp_path / "w.safetensors")
    assert new[0].weight.equal(old[0].weight)
    assert new[3].weight.equal(before)


def test_freeze_stops_gradients_and_statistics_of_whole_parts_only():
    model = nn.ModuleDict({"layer1": net(), "layer10": net()}).train()
    freeze(model, ["layer1"])
    assert not any(p.requires_grad for p in model["layer1"].parameters())
    assert all(p.requires_grad for p in model["layer10"].parameters())
    assert not model["layer1"][1].training
    assert model["layer10"][1].training
    freeze(model, ["layer10.0.bias"])
    assert [p.requires_grad for p in model["layer10"][0].parameters()] == [True, False]
    with pytest.raises(ValueError, match="unknown part of the network 'layer2'. Did you mean 'layer1'"):
        freeze(model, ["layer2"])


def test_load_weights_takes_a_run_folder_for_the_file_in_it(tmp_path):
    with pytest.raises(ValueError, match=r"weights\.safetensors` must be a safetensors file of weights"):
        load_weights(tmp_path)
    save_weights(tmp_path / "weights.safetensors", net().state_dict(), {}, notes={})
    assert set(load_weights(tmp_path)[0]) == set(net().state_dict())
