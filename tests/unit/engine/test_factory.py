"""Networks of the user's own: each way they can be wrong gets one sentence, and trying them changes nothing."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from calibrant.data.image_set import ImageSet
from calibrant.engine.assemble import assemble
from calibrant.engine.factory import check_network
from calibrant.engine.hardware import choose_hardware
from calibrant.engine.recipe import BackbonePart, Recipe, override
from calibrant.engine.setup import build_backbone

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

def takes_none():
    return good(10)

def raises(num_classes):
    raise RuntimeError("my own trouble.\\nand more of it")

def silent(num_classes):
    raise KeyError

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
    (tmp_path / "users_need.py").write_text("import a_module_nobody_has\n")
    package = tmp_path / "users_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "layers.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("users_nets", "users_slip", "users_need", "users_package"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "users_nets:needs_two",
            "train: `model` must be a factory that needs the number of classes alone, got 'users_nets:needs_two' (missing a "
            "required argument: 'width'). Let it take that first, and give every other argument a default.",
        ),
        (
            "users_nets:lazy",
            "train: `model` must have parameters of known size, got lazy ones (0.weight) from 'users_nets:lazy'. Run a batch "
            "through the network before the factory returns it, or say the sizes.",
        ),
        (
            "users_nets:takes_none",
            "train: `model` must be a factory that needs the number of classes alone, got 'users_nets:takes_none' (too many "
            "positional arguments). Let it take that first, and give every other argument a default.",
        ),
        (
            "users_nets:raises",
            "train: `model` must build a network for 10 classes, got RuntimeError: my own trouble from 'users_nets:raises'. "
            "CALIBRANT_TRACEBACK=1 before the same command shows where.",
        ),
        (
            "users_nets:silent",
            "train: `model` must build a network for 10 classes, got KeyError from 'users_nets:silent'. CALIBRANT_TRACEBACK=1 "
            "before the same command shows where.",
        ),
        (
            "users_nets:number",
            "train: `model` must name a factory as package.module:function, got 'users_nets:number', which is of type int. "
            "Name what can be called to build a network.",
        ),
        (
            "users_nets:none",
            "train: `model` must build an `nn.Module`, got int from 'users_nets:none'. Let the factory return the network.",
        ),
        (
            "users_nets:wrong_input",
            "train: `model` must take images of 1 x 8 x 8 (channels, height, width), got RuntimeError: mat1 and mat2 shapes "
            "cannot be multiplied (2x64 and 63x10) from 'users_nets:wrong_input'. Build it for that size, or choose another.",
        ),
        (
            "users_nets:wrong_classes",
            "train: `model` must return one logit for each of 10 classes, got shape [2, 7] for 2 images from "
            "'users_nets:wrong_classes'. Give its last layer as many outputs as the factory is told.",
        ),
        (
            "users_nets:Two",
            "train: `model` must return one logit for each of 10 classes, got tuple from 'users_nets:Two'. Let it return the "
            "tensor of logits alone.",
        ),
        (
            "users_nets:soft",
            "train: `model` must return scores before softmax, got probabilities from 'users_nets:soft'. Leave its softmax "
            "out: losses and metrics take it themselves.",
        ),
        (
            "users_nets:headless",
            "train: `model` must end in an `nn.Linear`, whose inputs are its features, got 'users_nets:headless' without one. "
            "Make its last layer one.",
        ),
        (
            "users_nets:Idle",
            "feature_function: the model's last linear layer must be used in its forward pass, got 'unused', which is not. "
            "Name the classifier `head`, or register it last.",
        ),
        (
            "users_nets:goood",
            "train: `model` must name a factory as package.module:function, got 'users_nets:goood', but users_nets has no "
            "'goood'. Did you mean 'good'?",
        ),
        (
            "users_nets:qqqqqq",
            "train: `model` must name a factory as package.module:function, got 'users_nets:qqqqqq', but users_nets has no "
            "'qqqqqq'. Name a function or class of it.",
        ),
        (
            "users_netz:good",
            "train: `model` must name a factory as package.module:function, got 'users_netz:good', which needs a module "
            "'users_netz' that is not there. Did you mean 'users_nets'?",
        ),
        (
            "users_package.layer:good",
            "train: `model` must name a factory as package.module:function, got 'users_package.layer:good', which needs a "
            "module 'users_package.layer' that is not there. Did you mean 'users_package.layers'?",
        ),
        (
            "absent:net",
            "train: `model` must name a factory as package.module:function, got 'absent:net', which needs a module "
            "'absent' that is not there. Install it, or start where it lies.",
        ),
        (
            "users_need:good",
            "train: `model` must name a factory as package.module:function, got 'users_need:good', which needs a module "
            "'a_module_nobody_has' that is not there. Install it, or start where it lies.",
        ),
        (
            "users_slip:good",
            "train: `model` must name a factory as package.module:function, got 'users_slip:good', whose module cannot be "
            "loaded (NameError: name 'y_that_is_not_there' is not defined). CALIBRANT_TRACEBACK=1 before the same command "
            "shows where.",
        ),
    ],
)
def test_assemble_users_network_that_cannot_be_is_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        assemble(override(Recipe(), SETTINGS | {"backbone.name": name}))


@pytest.mark.usefixtures("nets")
def test_assemble_takes_a_network_whose_lazy_layers_have_seen_a_batch() -> None:
    model = assemble(override(Recipe(), SETTINGS | {"backbone.name": "users_nets:seen"})).parts.model
    assert sum(value.numel() for value in model.parameters()) == 4 * 9 + 4 + 144 * 10 + 10


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize("name", ["users_nets:Scaled", "users_nets:Cut"])
def test_assemble_logits_that_are_not_the_last_layers_are_refused_where_that_layer_looks_ahead(name: str) -> None:
    chosen = SETTINGS | {"backbone.name": name}
    sentence = (
        "train: `model` must return what its last `nn.Linear` gives, for methods that learn on held-out data look ahead with "
        f"that layer, got something else from {name!r}. Return the layer's own output, or choose another method."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        assemble(override(Recipe(), chosen | {"method.name": "flgamma-sece"}))
    assemble(override(Recipe(), chosen | {"method.name": "ce"}))


@pytest.mark.usefixtures("nets")
def test_assemble_factory_out_of_memory_stays_what_it_is() -> None:
    # A comparison tries such runs again; a sentence about the network would end it.
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        assemble(override(Recipe(), SETTINGS | {"backbone.name": "users_nets:small_memory"}))


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


class Drawing(nn.Module):
    """A network that draws in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        flat = images.flatten(1)
        return self.head(flat + torch.randn_like(flat))


def test_check_network_that_draws_leaves_the_generator_where_it_was() -> None:
    model, state = Drawing(), torch.get_rng_state()
    check_network(model, one_image(), choose_hardware(device="cpu"), name="mine")
    assert torch.get_rng_state().equal(state)


def test_check_network_that_fails_puts_its_mode_back() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 5))
    with pytest.raises(ValueError, match="must take images of 3 x 8 x 8"):
        check_network(model, one_image(), choose_hardware(device="cpu"), name="mine")
    assert all(module.training for module in model.modules())


def test_check_network_takes_the_precision_of_the_run() -> None:
    model = build_backbone(BackbonePart(name="mlp"), one_image(), seed=0).double()
    check_network(model, one_image(), choose_hardware(device="cpu", precision="float64"), name="mlp")
    assert next(model.parameters()).dtype == torch.float64


def test_check_network_too_small_images_for_a_backbone_are_named() -> None:
    data = one_image(size=1)
    model = build_backbone(BackbonePart(name="convnet"), data, seed=0)
    with pytest.raises(ValueError, match=r"must take images of 3 x 1 x 1 .* from 'convnet'\. Build it for that size"):
        check_network(model, data, choose_hardware(device="cpu"), name="convnet")
