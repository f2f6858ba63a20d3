import pytest
import torch
from torch import nn

from calibrant.meta.bn import meta_mode, norms_of, untracked


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)).train()


def flags(model):
    return [module.training for module in model.modules()], model[1].track_running_stats


@pytest.mark.parametrize("mode", ["batch", "frozen", "update"])
def test_meta_mode_puts_everything_back(mode):
    model = network()
    before = flags(model)
    with pytest.raises(KeyError), meta_mode(model, mode):
        raise KeyError
    assert flags(model) == before


def test_meta_mode_batch_uses_batch_statistics_and_leaves_running_ones():
    model, x = network(), torch.randn(32, 4)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with meta_mode(model, "batch"):
        first, again = model(x), model(x)
        hidden = model[1](model[0](x))
    assert torch.equal(first, again)
    torch.testing.assert_close(hidden.mean(0), torch.zeros(6), rtol=0, atol=1e-5)
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_meta_mode_frozen_equals_eval():
    model, x = network(), torch.randn(32, 4)
    model(x)
    with meta_mode(model, "frozen"):
        found = model(x)
    assert torch.equal(found, model.eval()(x))


def test_meta_mode_update_moves_running_statistics():
    model, x = network(), torch.randn(32, 4)
    with meta_mode(model, "update"):
        model(x)
    assert int(model[1].num_batches_tracked) == 1
    assert model[1].running_mean.abs().sum() > 0


def test_meta_mode_batch_leaves_a_layer_in_eval_alone():
    model, x = network(), torch.randn(32, 4)
    model(x)
    model[1].eval()
    with meta_mode(model, "batch"):
        assert not model[1].training
        hidden = model[1](model[0](x))
    torch.testing.assert_close(hidden, model[1](model[0](x)))
    assert not model[1].training
    assert model[1].track_running_stats


def test_untracked_layers_in_training_keep_their_statistics():
    model, x = network(), torch.randn(8, 4)
    with untracked(norms_of(model)):
        model(x)
    assert int(model[1].num_batches_tracked) == 0
    model(x)
    assert int(model[1].num_batches_tracked) == 1
