import copy

import pytest
import torch
from torch import nn

from calibrant.engine.loop import run_epoch
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.setup import assemble
from calibrant.engine.train import train
from calibrant.meta.network import gathering_norms

PHASE = {
    "data.name": "mixture",
    "method.name": "ce",
    "train.batch_size": "200",
    "train.epochs": "3",
    "train.device": "cpu",
    "train.select": "last",
    "train.average": "phase",
    "train.average_share": "0.5",
    "backbone.name": "convnet",
    "optim.milestones_epochs": "2",
    "data.val": "100",
    "data.meta": "1500",
}


def test_train_average_by_phase_begins_with_the_drop_and_has_statistics_of_its_own(monkeypatch):
    recipe = override(Recipe(), PHASE | {"train.epochs": "4"})
    parts = assemble(recipe)
    average, seen, passed = parts.step.averages["average"], [], []
    original = average.update
    monkeypatch.setattr(average, "update", lambda: (original(), seen.append(copy.deepcopy(parts.model.state_dict()))))
    forward = parts.eval_forward

    def watch(images):
        if any(module.training for module in parts.model.modules()):
            passed.append(images)
        return forward(images)

    object.__setattr__(parts, "eval_forward", watch)
    for epoch in range(4):
        passed.clear()
        run_epoch(parts, epoch, started=0.0)
    steps = len(seen) // 4
    weights, norms = {}, [name for name in average.means if "running" in name]
    for t, state in enumerate(seen[2 * steps :], 1):
        for name in average.means:
            # Weighing by hand: 1, then 2/(t + 1) of the newest.
            weights[name] = state[name] if t == 1 else weights[name] + 2 / (t + 1) * (state[name] - weights[name])
    for name in set(average.means) - set(norms):
        torch.testing.assert_close(average.means[name], weights[name], rtol=1e-4, atol=1e-6)
    assert norms
    # Statistics: those of a network with these weights over the batches that passed, weighed alike.
    anew = copy.deepcopy(parts.model)
    anew.load_state_dict(average.means, strict=False)
    for module in anew.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = None
            module.reset_running_stats()
    assert sum(map(len, passed)) == min(2560, steps * 200)
    with torch.no_grad():
        for images in passed:
            anew.train()(images)
    for name in norms:
        torch.testing.assert_close(average.means[name], anew.state_dict()[name], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(average.means[name], weights[name], rtol=1e-3)
    # The network trains on with its own.
    assert all(parts.model.state_dict()[name].equal(seen[-1][name]) for name in average.means)
    assert all(module.training and module.momentum == 0.1 for module in parts.model.modules() if hasattr(module, "momentum"))


def test_train_average_by_phase_leaves_it_to_the_exponential_one_to_steer():
    # Without statistics of their own the networks that are trained are the same.
    settings = PHASE | {"method.name": "flgamma-sece", "backbone.name": "mlp"}
    phase, plain = (train(override(Recipe(), settings | {"train.average": kind})) for kind in ("phase", "ema"))
    assert [r.train_loss for r in plain.history] == [r.train_loss for r in phase.history]
    assert not plain.test.logits.equal(phase.test.logits)


@pytest.mark.parametrize(("every", "images"), [(1, 50), (3, 200), (8, 200)])
def test_the_network_that_steers_by_phase_learns_its_statistics_from_training_images(every, images):
    settings = {"method.name": "flgamma-sece", "method.options.every": str(every)}
    parts = assemble(override(Recipe(), PHASE | settings))
    objective, norms = parts.objective, [name for name in parts.step.averages["watch"].means if "running" in name]
    network, original, passed = objective.network, objective.follow, []

    def watch(batch):
        expected = copy.deepcopy(network)
        with torch.no_grad():
            expected.train()(batch)
        original(batch)
        passed.append(batch)
        for name in norms:
            torch.testing.assert_close(network.state_dict()[name], expected.state_dict()[name])

    drawn, draw = [], parts.step.batches.next

    def record():
        batch = draw()
        drawn.append(batch.images.clone())
        return batch

    objective.follow, parts.step.batches.next = watch, record
    objective.begin_epoch(0)
    for average in parts.step.averages.values():
        average.begin_epoch(0)
    for _ in range(3):
        before = {name: parts.step.averages["watch"].means[name].clone() for name in norms}
        parts.meta()
        assert not any(parts.step.averages["watch"].means[name].equal(before[name]) for name in norms)
        kept = {name: parts.step.averages["watch"].means[name].clone() for name in norms}
        parts.plain()
        assert all(parts.step.averages["watch"].means[name].equal(kept[name]) for name in norms)
    assert norms
    assert [len(batch) for batch in passed] == [images] * 3
    # Spread over the batch, so that processes that share it see together what one does; every second step has a meta update.
    assert all(seen.equal(batch[:: len(batch) // images]) for seen, batch in zip(passed, drawn[::2], strict=True))
    momenta = {module.momentum for module in network.modules() if hasattr(module, "momentum")}
    # Three epochs of so few steps: the average remembers one step.
    assert momenta == {1.0}
    assert network.training


def first_layer(model):
    return next(module for module in model.modules() if isinstance(module, nn.Conv2d))


@pytest.mark.parametrize("method", ["ce", "mixup", "patra"])
def test_statistics_are_those_of_the_first_batches_that_the_epoch_trained_on(method, monkeypatch):
    monkeypatch.setattr("calibrant.engine.loop._STATISTICS_EXAMPLES", 90)
    pruned = {"method.options.every": "1"} if method == "patra" else {}
    recipe = override(Recipe(), PHASE | {"method.name": method, "train.batch_size": "40"} | pruned)
    parts = assemble(recipe)
    trained, passed = [], []

    def note(layer, inputs):
        if parts.model.training:
            trained.append(inputs[0].clone())
        elif any(module.training for module in parts.model.modules()):
            passed.append(inputs[0].clone())

    first_layer(parts.model).register_forward_pre_hook(note)
    for epoch in range(2):
        trained.clear()
        passed.clear()
        run_epoch(parts, epoch, started=0.0)
    # Three batches of 40 are the least that hold 90 images.
    assert len(passed) == 3 < len(trained)
    assert all(again.equal(first) for again, first in zip(passed, trained, strict=False))


@pytest.mark.parametrize(
    ("settings", "apart", "momentum"),
    [
        # A batch every eighth step, at BatchNorm's own momentum where the average remembers long enough.
        ({"train.average_decay": "0.999"}, 1, 0.1),
        ({"train.average_decay": "0.999", "method.options.every": "1"}, 4, 0.025),
        # Statistics remember no longer than the weights: 16 steps here.
        ({"train.average_decay": "0.9375"}, 1, 0.5),
        ({"train.average_decay": "0.9375", "method.options.every": "1"}, 4, 0.0625),
        ({"method.options.meta_bn": "batch"}, 0, 0.1),
    ],
)
def test_the_network_that_steers_by_phase_remembers_statistics_as_long_as_weights(settings, apart, momentum):
    objective = assemble(override(Recipe(), PHASE | {"method.name": "flgamma-sece"} | settings)).objective
    assert objective.learns_every == apart
    momenta = [norm.momentum for norm in gathering_norms(objective.network)]
    assert momenta == pytest.approx([momentum] * len(momenta))
    assert momenta
