import pytest
import torch
from torch import nn

from calibrant.engine.weights import freeze, load_initial_weights, load_weights, save_weights


def net(num_classes=3):
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, num_classes))


def test_save_weights_round_trip_keeps_every_bit_and_layout_does_not_matter(tmp_path):
    model = net().to(memory_format=torch.channels_last)
    save_weights(tmp_path / "w.safetensors", model.state_dict(), {"gamma": torch.tensor([1.5])}, notes={"method": "ce"})
    weights, hyper = load_weights(tmp_path / "w.safetensors")
    assert set(weights) == set(model.state_dict())
    assert all(value.equal(weights[name]) for name, value in model.state_dict().items())
    assert hyper["gamma"].tolist() == [1.5]


def test_save_weights_of_the_same_run_are_the_same_file(tmp_path):
    model, notes = net(), {f"key{number}": "x" for number in range(20)}
    for name in ("a", "b"):
        save_weights(tmp_path / name, model.state_dict(), {}, notes=notes)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_save_weights_writes_a_tensor_of_two_names_under_both(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    save_weights(tmp_path / "w.safetensors", model.state_dict(), {}, notes={})
    weights, _ = load_weights(tmp_path / "w.safetensors")
    assert weights["1.weight"].equal(weights["0.weight"])
    model.load_state_dict(weights)
    assert model[1].weight is model[0].weight


def test_load_initial_weights_other_shape_inside_the_network_is_refused(tmp_path):
    other = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    save_weights(tmp_path / "w.safetensors", other.state_dict(), {}, notes={})
    with pytest.raises(ValueError, match=r"got \[2, 3, 3, 3\] for `0.weight`, which is \[2, 1, 3, 3\]. Check `--model`"):
        load_initial_weights(net(), tmp_path / "w.safetensors")


def test_load_initial_weights_other_head_keeps_the_new_one(tmp_path):
    old, new = net(5), net(3)
    save_weights(tmp_path / "w.safetensors", old.state_dict(), {}, notes={})
    before = new[3].weight.clone()
    with pytest.warns(UserWarning, match="is for 5 classes and not used; the head for 3 starts from scratch"):
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


def test_freeze_of_everything_is_one_sentence():
    model = net().train()
    with pytest.raises(ValueError, match=r"`backbone.freeze` must leave a part of the network to train, got all of it"):
        freeze(model, ["0", "1", "3"])


def test_load_weights_of_a_run_folder_names_the_file_in_it(tmp_path):
    save_weights(tmp_path / "weights.safetensors", net().state_dict(), {}, notes={})
    with pytest.raises(FileNotFoundError, match=r"got none there\. Did you mean .*/weights\.safetensors\?"):
        load_weights(tmp_path)
