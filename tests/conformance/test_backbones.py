import pytest
import torch
from torch.func import functional_call

from calibrant.backbones import BACKBONES

PARAMETERS = {
    "resnet18": 11_173_962,
    "resnet34": 21_282_122,
    "resnet50": 23_520_842,
    "resnet110": 1_727_962,
    "wrn28-10": 36_479_194,
    "densenet100": 769_162,
    "convnet": 53_674,
    "mlp": 26_122,
}
FEATURES = {"resnet18": 512, "resnet34": 512, "resnet50": 2048, "resnet110": 64, "wrn28-10": 640, "densenet100": 342}


def build(name, num_classes=10):
    torch.manual_seed(0)
    options = {"num_inputs": 64} if name == "mlp" else {"in_channels": 3}
    return BACKBONES[name](num_classes, **options)


def images(name, batch=2):
    generator = torch.Generator().manual_seed(1)
    shape = (batch, 1, 8, 8) if name == "mlp" else (batch, 3, 16, 16)
    return torch.randn(shape, generator=generator)


@pytest.mark.parametrize("name", BACKBONES)
def test_backbone_ten_classes_has_the_published_parameter_count(name):
    assert sum(p.numel() for p in build(name).parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", BACKBONES)
def test_backbone_eval_maps_images_through_features_and_head(name):
    model = build(name, num_classes=7).eval()
    x = images(name)
    with torch.no_grad():
        features, logits = model.features(x), model(x)
    assert logits.shape == (2, 7)
    assert features.shape == (2, model.num_features)
    assert model.num_features == FEATURES.get(name, 128)
    torch.testing.assert_close(model.head(features), logits)


@pytest.mark.parametrize("name", [n for n in BACKBONES if n not in ("wrn28-10", "resnet50", "resnet34")])
def test_backbone_functional_call_gives_the_same_output_and_gradient_reaches_all(name):
    model = build(name)
    x = images(name, batch=4)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    logits = model(x)
    torch.testing.assert_close(functional_call(model, state, (x,)), logits)
    logits.square().sum().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())


@pytest.mark.parametrize("name", ["resnet18", "densenet100", "convnet"])
def test_backbone_bf16_autocast_stays_close_to_float32(name):
    model = build(name).eval()
    x = images(name)
    with torch.no_grad():
        exact = model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough = model(x)
    assert rough.dtype == torch.bfloat16
    # bf16 keeps 8 bits; errors of a few per cent of the spread of the logits are its rounding, not a defect.
    assert float((rough.float() - exact).abs().max()) < 0.1 * float(exact.abs().max()) + 0.02


def test_backbone_one_class_is_refused():
    with pytest.raises(ValueError, match="`num_classes` must be >= 2, got 1"):
        build("convnet", num_classes=1)
