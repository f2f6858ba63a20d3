import copy

import pytest
import torch
from torch import nn

from calibrant.engine.average import WeightAverage
from calibrant.engine.loop import run_epoch
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.setup import assemble
from calibrant.engine.train import train
from calibrant.meta.lookahead import head_hypergradient

TINY = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "method.name": "ce",
    "train.batch_size": "200",
    "train.epochs": "3",
    "train.device": "cpu",
    "train.select": "last",
}


def network(value=0.0):
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    return set_to(model, value)


def set_to(model, value):
    with torch.no_grad():
        for entry in model.state_dict().values():
            entry.fill_(value)
    return model


def averaged(model, values, **options):
    average = WeightAverage(model, **options)
    for epoch, value in enumerate(values):
        average.begin_epoch(epoch)
        set_to(model, value)
        average.update()
    return average


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # 2, from there half-way to 4, and from there half-way to 9.
        ({"decay": 0.5}, 6.0),
        ({"decay": 0.6}, 0.6 * 3 + 0.4 * 9),
        ({"decay": 0.9}, 5.0),
        ({"decay": None}, 5.0),
        ({"decay": None, "first_epoch": 1}, 6.5),
        ({"decay": 0.3, "first_epoch": 1}, 0.3 * 4 + 0.7 * 9),
        ({"decay": None, "first_epoch": 9}, 9.0),
        ({"decay": 0.9, "first_epoch": 9}, 9.0),
    ],
)
def test_weight_average_by_hand(options, expected):
    average = averaged(network(), [2.0, 4.0, 9.0], **options)
    assert [float(value) for value in average.means.values()] == pytest.approx([expected] * 5)
    # The count of batches is no weight.
    assert set(average.means) == {"0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var"}
    assert len(average.buffer_means) == 2


def test_weight_average_takes_the_networks_place_for_a_while():
    model = network()
    average = averaged(model, [2.0, 4.0], decay=None)
    place = model[0].weight.data_ptr()
    with average.applied():
        assert float(model[0].weight.detach()) == float(model[1].running_mean) == 3.0
        assert model[0].weight.data_ptr() == place
    assert float(model[0].weight.detach()) == float(model[1].running_mean) == 4.0


def test_weight_average_network_follows_every_update_and_is_apart_from_the_trained_one():
    model = network()
    average = averaged(model, [2.0], decay=None)
    seen = average.network(model)
    set_to(model, 4.0)
    assert float(seen[0].weight) == float(seen[1].running_mean) == 2.0
    average.update()
    assert float(seen[0].weight) == float(seen[1].running_mean) == 3.0
    assert not any(value.requires_grad for value in seen.parameters())
    assert all(value.requires_grad for value in model.parameters())


def test_meta_batches_go_through_the_averaged_network(monkeypatch):
    settings = {"method.name": "flgamma-sece", "method.options.every": "1", "train.average": "ema", "backbone.name": "convnet"}
    parts = assemble(override(Recipe(), TINY | settings))
    average, network, calls = parts.step.averages["average"], parts.objective.network, []

    def look(*args, head, meta_features, **rest):
        given = {name: value.clone() for name, value in head.items()}
        calls.append((given, meta_features, {n: v.clone() for n, v in network.state_dict().items()}))
        return head_hypergradient(*args, head=head, meta_features=meta_features, **rest)

    monkeypatch.setattr("calibrant.meta.step.head_hypergradient", look)
    meta = parts.objective.batches
    drawn = []
    monkeypatch.setattr(meta, "next", lambda original=meta.next: drawn.append(original()) or drawn[-1])
    parts.objective.begin_epoch(0)
    average.begin_epoch(0)
    for _ in range(4):
        parts.meta()
    head, features, weights = calls[-1]
    assert all(value.equal(weights[f"head.{name}"]) for name, value in head.items())
    assert not any(value.equal(parts.model.head.state_dict()[name]) for name, value in head.items())
    assert network.training
    seen = copy.deepcopy(network)
    seen.load_state_dict(weights)
    with torch.no_grad():
        expected = seen.eval().features(drawn[-1].images)
    torch.testing.assert_close(features, expected)


@pytest.mark.parametrize(("kind", "backbone"), [("ema", "mlp"), ("uniform", "convnet")])
def test_train_average_is_that_of_the_weights_after_each_step(kind, backbone):
    settings = TINY | {
        "train.average": kind,
        "backbone.name": backbone,
        "train.average_decay": "0.9",
        "train.average_from_epoch": "1",
    }
    settings |= {"data.val": "100", "data.meta": "1500"}
    recipe = override(Recipe(), settings)
    parts = assemble(recipe)
    seen, original = [], parts.step.averages["average"].update

    def watch():
        original()
        seen.append({name: value.detach().clone() for name, value in parts.model.state_dict().items()})

    parts.step.averages["average"].update = watch
    records = [run_epoch(parts, epoch, started=0.0) for epoch in range(3)]
    steps = len(seen) // 3
    for name, mean in parts.step.averages["average"].means.items():
        values = torch.stack([state[name] for state in seen[steps:]]).double()
        if kind == "uniform":
            expected = values.mean(0)
        else:
            expected = values[0]
            for t, value in enumerate(values[1:], 2):
                kept = min(0.9, 1 - 1 / t)
                expected = kept * expected + (1 - kept) * value
        torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-6)
    run = train(recipe)
    assert [r.train_loss for r in run.history] == [r.train_loss for r in records]
    assert run.history[-1].test_nll == pytest.approx(records[-1].test_nll)
    for name, mean in parts.step.averages["average"].means.items():
        assert run.model.state_dict()[name].equal(mean)


@pytest.mark.parametrize(
    "settings",
    [
        {"train.average": "uniform", "train.average_from_epoch": "0", "train.select": "error+nll"},
        {"train.average": "phase", "method.name": "flgamma-sece", "backbone.name": "convnet", "optim.milestones_epochs": "2"},
    ],
)
def test_train_average_interrupted_and_resumed_ends_with_the_same_weights(settings, tmp_path):
    recipe = override(Recipe(), TINY | settings | {"train.checkpoint_every_seconds": "0"})

    def stop(record):
        if record.epoch == 1:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        train(recipe, out=tmp_path / "run", report=stop)
    resumed = train(recipe, out=tmp_path / "run", resume=True)
    whole = train(recipe)
    assert resumed.test.logits.equal(whole.test.logits)
    # What predicts is what was evaluated.
    loss = float(nn.functional.cross_entropy(whole.test.logits, whole.test.labels))
    assert whole.history[whole.best_epoch].test_nll == pytest.approx(loss)


def test_weight_average_begun_anew_forgets_what_was_before():
    model = network()
    average = averaged(model, [2.0, 4.0], decay=None, share=0.25)
    average.begin_epoch(2, anew=True)
    set_to(model, 9.0)
    average.update()
    assert float(average.means["0.weight"]) == 9.0


@pytest.mark.parametrize(("settings", "first"), [({}, 5), ({"train.average_from_epoch": "2"}, 2)])
def test_train_uniform_average_begins_with_the_papers_last_drop_unless_told(settings, first):
    recipe = override(Recipe(), TINY | {"train.average": "uniform", "train.epochs": "7", "train.batch_size": "900"} | settings)
    parts = assemble(recipe)
    apart = []
    for epoch in range(7):
        run_epoch(parts, epoch, started=0.0)
        weights = parts.model.state_dict()
        apart.append(any(not torch.equal(mean, weights[name]) for name, mean in parts.step.averages["average"].means.items()))
    # Before that it is the network itself; the first epoch that counts has two steps.
    assert apart == [epoch >= first for epoch in range(7)]
