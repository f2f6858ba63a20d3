import pytest
import torch
from torch import nn

from calibrant.meta.learner import read_features
from calibrant.meta.step import find_network, meta_mode


class Named(nn.Module):
    """A head that is not defined last."""

    def __init__(self, head="classifier"):
        super().__init__()
        setattr(self, head, nn.Linear(5, 3))
        self.body = nn.Linear(4, 5)
        self.name = head

    def forward(self, x):
        return getattr(self, self.name)(self.body(x).relu())


def test_find_network_finds_usual_names_before_the_last_layer_and_takes_a_name_or_the_layer():
    for name in ("head", "fc", "classifier"):
        assert find_network(Named(name)).head_name == name
    assert find_network(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))).head_name == "2"
    model = Named("odd")
    assert find_network(model, "odd").head is model.odd
    assert find_network(model, model.odd).head_name == "odd"
    assert find_network(torch.compile(model, backend="eager"), "odd").inner is model


def test_find_network_without_a_linear_layer_raises():
    with pytest.raises(ValueError, match="`head` must name an `nn.Linear` of the model.* Linear layers: none"):
        find_network(nn.Conv2d(1, 1, 1))
    with pytest.raises(ValueError, match="`head` must name an `nn.Linear` of the model, got 'hed'. Linear layers: odd, body"):
        find_network(Named("odd"), "hed")


def test_find_network_of_a_bare_linear_layer():
    network = find_network(nn.Linear(3, 2))
    assert network.head_names() == {"weight": "weight", "bias": "bias"}
    features, logits = read_features(network, torch.ones(4, 3), verify=True)
    assert (features.shape, logits.shape) == ((4, 3), (4, 2))


def test_read_features_gives_the_head_input_and_leaves_no_hook():
    model = Named("odd")
    network, x = find_network(model, "odd"), torch.randn(7, 4)
    features, logits = read_features(network, x, verify=True)
    torch.testing.assert_close(model.odd(features), logits)
    assert not model.odd._forward_hooks


def test_read_features_wrong_head_raises():
    model = Named("odd")
    with pytest.raises(ValueError, match="`head` must be .* `body` makes something else"):
        read_features(find_network(model, "body"), torch.randn(7, 4), verify=True)
    with pytest.raises(ValueError, match=r"`head` must be .* `1` takes \[7, 2, 5\], not \[B, d\]"):
        read_features(find_network(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3), nn.Flatten())), torch.randn(7, 2, 4))
    twice = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="`head` must be .* `0` ran 2 times"):
        read_features(find_network(nn.Sequential(twice, twice)), torch.randn(7, 4))


def test_read_features_of_a_compiled_model():
    model = Named("head")
    compiled = torch.compile(model, backend="eager")
    network, x = find_network(compiled), torch.randn(7, 4)
    for verify in (True, False):
        features, logits = read_features(network, x, verify=verify)
        torch.testing.assert_close(model.head(features), logits)
    torch.compiler.reset()
    compiled(x)
    with pytest.raises(ValueError, match=r"`head` ran 0 times.* call `torch.compiler.reset\(\)`"):
        read_features(network, x)
    torch.compiler.reset()


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)).train()


def flags(model):
    return [module.training for module in model.modules()], model[1].track_running_stats


@pytest.mark.parametrize("mode", ["batch", "frozen", "update"])
def test_meta_mode_puts_everything_back(mode):
    model = normed()
    before = flags(model)
    with pytest.raises(KeyError), meta_mode(model, mode):
        raise KeyError
    assert flags(model) == before


def test_meta_mode_batch_uses_batch_statistics_and_leaves_running_ones():
    model, x = normed(), torch.randn(32, 4)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with meta_mode(model, "batch"):
        first, again = model(x), model(x)
        hidden = model[1](model[0](x))
    assert torch.equal(first, again)
    torch.testing.assert_close(hidden.mean(0), torch.zeros(6), rtol=0, atol=1e-5)
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_meta_mode_frozen_equals_eval():
    model, x = normed(), torch.randn(32, 4)
    model(x)
    with meta_mode(model, "frozen"):
        found = model(x)
    assert torch.equal(found, model.eval()(x))


def test_following_and_gathering_learn_statistics_without_dropout():
    batches = [torch.randn(16, 4, generator=torch.Generator().manual_seed(n)) for n in (1, 2)]
    for mode, momentum in (("follow", 0.1), ("gather", None)):
        model = normed()
        before, hidden = flags(model), [model[0](x) for x in batches]
        with meta_mode(model, mode):
            assert not model[2].training
            for x in batches:
                model(x)
        means = [h.detach().mean(0) for h in hidden]
        expected = (means[0] + means[1]) / 2 if momentum is None else 0.09 * means[0] + 0.1 * means[1]
        torch.testing.assert_close(model[1].running_mean, expected, rtol=1e-4, atol=1e-6)
        assert flags(model) == before
        assert model[1].momentum == 0.1
        assert int(model[1].num_batches_tracked) == (0 if momentum is None else 2)
