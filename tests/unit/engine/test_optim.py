import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from calibrant.engine.recipe import OptimPart, Recipe, override
from calibrant.engine.setup import WeightAverage, build_optimizer
from calibrant.engine.train import Assembly, run_epoch, train
from calibrant.meta.step import gathering_norms, head_hypergradient, set_learning_rate

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
    for value in values:
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
    ],
)
def test_weight_average_by_hand(options, expected):
    average = averaged(network(), [2.0, 4.0, 9.0], **options)
    assert [float(value) for value in average.means.values()] == pytest.approx([expected] * 5)
    # The count of batches is no weight.
    assert set(average.means) == {"0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var"}
    assert len(average.buffer_means) == 2


def test_meta_batches_go_through_the_averaged_network(monkeypatch):
    settings = {"method.name": "flgamma-sece", "method.options.every": "1", "train.average": "ema", "backbone.name": "convnet"}
    parts = Assembly(override(Recipe(), TINY | settings))
    network, calls = parts.objective.network, []

    def look(*args, head, meta_features, **rest):
        given = {name: value.clone() for name, value in head.items()}
        calls.append((given, meta_features, {n: v.clone() for n, v in network.state_dict().items()}))
        return head_hypergradient(*args, head=head, meta_features=meta_features, **rest)

    monkeypatch.setattr("calibrant.meta.learner.head_hypergradient", look)
    meta = parts.objective.batches
    drawn = []
    monkeypatch.setattr(meta, "next", lambda original=meta.next: drawn.append(original()) or drawn[-1])
    parts.objective.begin_epoch(0)
    for _ in range(4):
        parts.take(with_meta=True)
    head, features, weights = calls[-1]
    assert all(value.equal(weights[f"head.{name}"]) for name, value in head.items())
    assert not any(value.equal(parts.model.head.state_dict()[name]) for name, value in head.items())
    assert network.training
    seen = copy.deepcopy(network)
    seen.load_state_dict(weights)
    with torch.no_grad():
        expected = seen.eval().features(drawn[-1].images)
    torch.testing.assert_close(features, expected)


def test_train_average_is_that_of_the_weights_after_each_step():
    settings = {"train.average": "ema", "backbone.name": "convnet", "train.average_decay": "0.9"}
    recipe = override(Recipe(), TINY | settings | {"data.val": "100", "data.meta": "1500"})
    parts = Assembly(recipe)
    seen, original = [], parts.averages["average"].update

    def watch():
        original()
        seen.append({name: value.detach().clone() for name, value in parts.model.state_dict().items()})

    parts.averages["average"].update = watch
    records = [run_epoch(parts, epoch, started=0.0) for epoch in range(3)]
    for name, mean in parts.averages["average"].means.items():
        values = torch.stack([state[name] for state in seen]).double()
        expected = values[0]
        for t, value in enumerate(values[1:], 2):
            kept = min(0.9, 1 - 1 / t)
            expected = kept * expected + (1 - kept) * value
        torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-6)
    run = train(recipe)
    assert [r.train_loss for r in run.history] == [r.train_loss for r in records]
    assert run.history[-1].test_nll == pytest.approx(records[-1].test_nll)
    for name, mean in parts.averages["average"].means.items():
        assert run.model.state_dict()[name].equal(mean)


PHASE = TINY | {
    "train.average": "phase",
    "train.average_share": "0.5",
    "backbone.name": "convnet",
    "optim.milestones_epochs": "2",
    "data.val": "100",
    "data.meta": "1500",
}


def test_train_average_by_phase_begins_with_the_drop_and_has_statistics_of_its_own(monkeypatch):
    recipe = override(Recipe(), PHASE | {"train.epochs": "4"})
    parts = Assembly(recipe)
    average, seen, passed = parts.averages["average"], [], []
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
    parts = Assembly(override(Recipe(), PHASE | settings))
    objective, norms = parts.objective, [name for name in parts.averages["watch"].means if "running" in name]
    network, original, passed = objective.network, objective.follow, []

    def watch(batch):
        expected = copy.deepcopy(network)
        with torch.no_grad():
            expected.train()(batch)
        original(batch)
        passed.append(batch)
        for name in norms:
            torch.testing.assert_close(network.state_dict()[name], expected.state_dict()[name])

    drawn, draw = [], parts.batches.next

    def record():
        batch = draw()
        drawn.append(batch.images.clone())
        return batch

    objective.follow, parts.batches.next = watch, record
    objective.begin_epoch(0)
    for _ in range(3):
        before = {name: parts.averages["watch"].means[name].clone() for name in norms}
        parts.take(with_meta=True)
        assert not any(parts.averages["watch"].means[name].equal(before[name]) for name in norms)
        kept = {name: parts.averages["watch"].means[name].clone() for name in norms}
        parts.take(with_meta=False)
        assert all(parts.averages["watch"].means[name].equal(kept[name]) for name in norms)
    assert norms
    assert [len(batch) for batch in passed] == [images] * 3
    # Spread over the batch, so that processes that share it see together what one does; every second step has a meta update.
    assert all(seen.equal(batch[:: len(batch) // images]) for seen, batch in zip(passed, drawn[::2], strict=True))
    momenta = {module.momentum for module in network.modules() if hasattr(module, "momentum")}
    # Three epochs of so few steps: the average remembers one step.
    assert momenta == {1.0}
    assert network.training


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
    objective = Assembly(override(Recipe(), PHASE | {"method.name": "flgamma-sece"} | settings)).objective
    assert objective.learns_every == apart
    momenta = [norm.momentum for norm in gathering_norms(objective.network)]
    assert momenta == pytest.approx([momentum] * len(momenta))
    assert momenta


# PyTorch advises to capture what can be captured.
CAPTURABLE = pytest.mark.filterwarnings("ignore:This instance was constructed with capturable:UserWarning")
CUDA = pytest.param("cuda", marks=pytest.mark.cuda)


def path(make, device):
    """Where three steps along uneven gradients lead, the learning rate lowered before the last."""
    values = [torch.nn.Parameter(torch.linspace(-1, 1, 5, device=device)), torch.nn.Parameter(torch.ones(2, 3, device=device))]
    optimizer, found = make(values), []
    for step in range(3):
        if step == 2:
            set_learning_rate(optimizer, 0.03)
        for number, value in enumerate(values):
            value.grad = torch.cos(value.detach() * (step + 2) + number)
        optimizer.step()
        found += [value.detach().clone() for value in values]
    return found


def assert_same(make, reference, device):
    for found, expected in zip(path(make, device), path(reference, device), strict=True):
        # Fused and capturable updates round otherwise; on the CPU they are the same lines.
        torch.testing.assert_close(found, expected, rtol=1e-5 if device == "cuda" else 0, atol=1e-6 if device == "cuda" else 0)


@CAPTURABLE
@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_build_optimizer_adamw_steps_as_torch_does(weight_decay, device):
    def make(values):
        return build_optimizer(values, OptimPart(name="adamw", lr=0.1, weight_decay=weight_decay))

    assert_same(make, lambda values: AdamW(values, lr=0.1, weight_decay=weight_decay), device)


@CAPTURABLE
@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_build_optimizer_sgd_steps_as_torch_does(momentum, nesterov, device):
    options = {"lr": 0.1, "momentum": momentum, "nesterov": nesterov, "weight_decay": 0.1}
    assert_same(lambda values: build_optimizer(values, OptimPart(**options)), lambda values: SGD(values, **options), device)
