import copy

import pytest
import torch
from torch import nn

from calibrant.engine.hardware import Group
from calibrant.engine.loop import run_epoch
from calibrant.engine.optim import drops
from calibrant.engine.recipe import OptimPart, Recipe, override
from calibrant.engine.setup import assemble
from calibrant.engine.train import train
from calibrant.meta.network import following, gathering, gathering_norms

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
    "data.same_data": "true",
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


@pytest.mark.parametrize(("every", "images"), [(1, 50), (3, 150), (8, 200)])
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

    objective.follow = watch
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
    momenta = {module.momentum for module in network.modules() if hasattr(module, "momentum")}
    # Three epochs of so few steps: the average remembers one step.
    assert momenta == {1.0}
    assert network.training


def test_drops_are_the_milestones_whatever_the_warm_up_and_never_a_cosines_end():
    def found(**settings):
        return [epoch for epoch in range(20) if drops(OptimPart(**settings), epoch, epochs=20)]

    assert found(milestones_epochs=(5, 12.5), warmup_epochs=8, decay=0.9) == [5, 13]
    assert found(schedule="cosine") == found(schedule="constant") == []


def test_statistics_are_gathered_without_dropout_by_layers_that_train_and_counts_stay_where_they_were():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5), nn.BatchNorm1d(2), nn.BatchNorm1d(2, momentum=None)).train()
    model[2].training = False
    counts = [norm.num_batches_tracked for norm in (model[0], model[2], model[3])]
    before = [count.clone() for count in counts]
    batches = [torch.randn(50, 2) + shift for shift in (0.0, 4.0)]
    with gathering(model):
        outputs = [model(batch) for batch in batches]
    assert model[0].running_mean.tolist() == pytest.approx(torch.stack([b.mean(0) for b in batches]).mean(0).tolist())
    assert model[2].running_mean.tolist() == [0, 0]
    # Nothing was dropped: what enters the last layer is standardised by the first.
    assert model[3].running_var.tolist() == pytest.approx([50 / 49] * 2, rel=1e-3)
    assert all(output.isfinite().all() for output in outputs)
    assert [norm.num_batches_tracked for norm in (model[0], model[2], model[3])] == before
    assert all(norm.num_batches_tracked is count for norm, count in zip((model[0], model[2], model[3]), counts, strict=True))
    assert [module.training for module in model] == [True, True, False, True]
    assert [model[0].momentum, model[3].momentum] == [0.1, None]
    with following(model):
        assert [module.training for module in model] == [True, False, False, True]
        model(batches[1])
    assert model[0].running_mean.tolist() == pytest.approx((0.9 * 2 + 0.1 * batches[1].mean(0)).tolist(), abs=0.2)
    assert model[2].running_mean.tolist() == [0, 0]


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
    ("settings", "images", "momentum"),
    [
        # A batch every fourth step, at BatchNorm's own momentum where the average remembers long enough.
        ({"train.average_decay": "0.999"}, 200, 0.1),
        ({"train.average_decay": "0.999", "method.options.every": "1"}, 50, 0.025),
        ({"train.average_decay": "0.999", "method.options.every": "1", "train.batch_size": "16"}, 8, 0.05),
        # Statistics remember no longer than the weights: 16 steps here.
        ({"train.average_decay": "0.9375"}, 200, 0.25),
        ({"train.average_decay": "0.9375", "method.options.every": "1"}, 50, 0.0625),
        ({"method.options.meta_bn": "batch"}, 0, 0.1),
    ],
)
def test_the_network_that_steers_by_phase_remembers_statistics_as_long_as_weights(settings, images, momentum):
    objective = assemble(override(Recipe(), PHASE | {"method.name": "flgamma-sece"} | settings)).objective
    assert objective.learns_from == images
    momenta = [norm.momentum for norm in gathering_norms(objective.network)]
    assert momenta == pytest.approx([momentum] * len(momenta))
    assert momenta


def test_train_average_by_phase_from_an_epoch_is_the_network_until_then_in_both():
    recipe = override(
        Recipe(), PHASE | {"method.name": "flgamma-sece", "train.average_from_epoch": "1", "train.average_decay": "0.9"}
    )
    parts = assemble(recipe)
    weights = [name for name in parts.model.state_dict() if "running" not in name and "num_batches" not in name]
    for epoch in range(2):
        run_epoch(parts, epoch, started=0.0)
        state = parts.model.state_dict()
        for average in parts.step.averages.values():
            assert all(average.means[name].equal(state[name]) for name in weights) is (epoch == 0)


def test_statistics_of_every_average_are_levelled_between_processes(monkeypatch):
    recipe = override(Recipe(), PHASE | {"method.name": "flgamma-sece"})
    parts = assemble(recipe)
    calls = []
    monkeypatch.setattr(Group, "average", lambda group, values: calls.append([id(value) for value in values]))
    run_epoch(parts, 0, started=0.0)
    levelled = calls[0]
    kept = [*parts.model.buffers(), *(mean for average in parts.step.averages.values() for mean in average.buffer_means)]
    assert sorted(levelled) == sorted(id(value) for value in kept if value.is_floating_point())
    assert len(levelled) == 3 * 2 * len(gathering_norms(parts.model)) > 0


@pytest.mark.parametrize("place", ["host", "device"])
def test_statistics_are_those_of_the_epochs_batches_wherever_images_lie(place):
    recipe = override(Recipe(), PHASE | {"data.place": place, "method.name": "mixup"})
    assert train(recipe).test.logits.equal(train(override(recipe, {"data.place": "auto"})).test.logits)
