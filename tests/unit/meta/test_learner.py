from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibrant.losses import focal_loss, sece_penalty
from calibrant.meta import GammaFocal, MetaBatches, MetaLearner, MetaWarning, hypergradient


def data(n=32, m=48, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    x, xm = torch.randn(n, 6, generator=g, dtype=dtype), torch.randn(m, 6, generator=g, dtype=dtype)
    return x, torch.randint(0, 3, (n,), generator=g), xm, torch.randint(0, 3, (m,), generator=g)


def mlp(seed=0, bn=False, dtype=torch.float32):
    torch.manual_seed(seed)
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8) if bn else nn.Identity(), nn.Tanh(), nn.Linear(8, 3)]
    return nn.Sequential(*layers).to(dtype)


def learner_of(model, lr=0.1, momentum=0.9, seed=0, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    options = {"every": 1, "objective": sece_penalty} | options
    return MetaLearner(model, optimizer, generator=torch.Generator().manual_seed(seed), **options)


def same_state(first, second):
    return all(torch.equal(value, second.state_dict()[name]) for name, value in first.state_dict().items())


def test_step_equals_the_algorithm_written_out():
    x, y, xm, ym = data(dtype=torch.float64)
    model, twin = mlp(dtype=torch.float64), mlp(dtype=torch.float64)
    learner = learner_of(model, meta_lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    regularizer = GammaFocal()
    hyper = {name: value.clone().requires_grad_() for name, value in learner.hyper.items()}
    meta_optimizer = torch.optim.Adam(hyper.values(), lr=1e-3)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        info = learner.step(x, y, xm, ym)
        features = twin[:-1](x)
        constant = features.detach()
        with torch.no_grad():
            meta_features = twin[:-1](xm)
        found = hypergradient(
            lambda p, h, z=constant: regularizer.loss(h, z, F.linear(z, p["weight"], p["bias"]), y, p).mean(),
            lambda p, z=meta_features: sece_penalty(F.linear(z, p["weight"], p["bias"]), ym),
            dict(twin[-1].named_parameters()),
            hyper,
            lr=0.1,
        )
        for name, value in hyper.items():
            value.grad = found.grads[name]
        meta_optimizer.step()
        optimizer.zero_grad()
        gamma = regularizer.gamma(hyper, features).detach()
        loss = focal_loss(twin[-1](features), y, gamma=gamma).mean()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(info.loss, loss.detach())
        torch.testing.assert_close(info.meta_value, found.value)
        torch.testing.assert_close(info.hypergradient_norm, found.norm())
        torch.testing.assert_close(info.values["gamma_mean"], gamma.mean())
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)
    for name, value in hyper.items():
        torch.testing.assert_close(learner.hyper[name], value.detach())


def test_lower_level_form_equals_step():
    x, y, xm, ym = data()
    model, twin = mlp(), mlp()
    one, two = learner_of(model), learner_of(twin)
    for _ in range(3):
        one.step(x, y, xm, ym)
        features, logits = two.forward(x)
        two.meta_update(features, logits, y, held_out=twin[:-1](xm), y_meta=ym)
        two.optimizer.zero_grad()
        two.loss(features, logits, y).backward()
        two.optimizer.step()
    assert same_state(model, twin)
    assert all(torch.equal(one.hyper[name], two.hyper[name]) for name in one.hyper)


@pytest.mark.parametrize("lookahead", ["head", "full"])
def test_meta_update_leaves_the_networks_gradients_alone(lookahead):
    x, y, xm, ym = data()
    model = mlp(bn=True)
    learner = learner_of(model, lookahead=lookahead)
    features, logits = learner.forward(x)
    learner.meta_update(features, logits, y, xm, ym, x=x)
    assert all(value.grad is None for value in model.parameters())
    assert not any(value.requires_grad for value in learner.hyper.values())


def test_leak_meta_grad_adds_what_the_published_code_adds():
    x, y, xm, ym = data(dtype=torch.float64)
    model, twin = mlp(dtype=torch.float64), mlp(dtype=torch.float64)
    learner = learner_of(
        model, lr=0.0, momentum=0.0, leak_meta_grad=True, reduction="sum", lookahead_reduction="sum", meta_lr=1e-4
    )
    gamma_net = {name: value.clone() for name, value in learner.hyper.items()}
    learner.step(x, y, xm, ym)

    features = twin[:-1](x)
    gamma = GammaFocal().gamma(gamma_net, features)
    head = twin[-1]
    weight, bias = torch.autograd.grad(
        focal_loss(head(features), y, gamma=gamma).sum(), [head.weight, head.bias], create_graph=True
    )
    virtual = F.linear(twin[:-1](xm), head.weight - 0.1 * weight, head.bias - 0.1 * bias)
    sece_penalty(virtual, ym).backward(retain_graph=True)
    leaked = [value.grad.clone() for value in twin.parameters()]
    new = GammaFocal().gamma(learner.hyper, features)
    focal_loss(head(features), y, gamma=new).sum().backward()
    assert all(float(value.abs().max()) > 0 for value in leaked)
    for value, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(value.grad, expected.grad)


def test_step_every_third_draws_only_when_due():
    x, y, xm, ym = data()
    drawn = []

    def batches():
        while True:
            drawn.append(1)
            yield xm, ym

    learner = learner_of(mlp(), every=3, meta_batches=batches())
    due, found = [], []
    for _ in range(7):
        due.append(learner.due)
        found.append(learner.step(x, y).meta_value is not None)
    assert due == found == [True, False, False, True, False, False, True]
    assert len(drawn) == learner.meta_updates == 3


def test_step_without_meta_batch_when_due_raises():
    x, y, *_ = data()
    with pytest.raises(ValueError, match=r"`x_meta` and `y_meta` must be given when a meta update is due \(every 4. step\)"):
        learner_of(mlp(), every=4).step(x, y)
    with pytest.raises(ValueError, match="`y_meta` and `x_meta` .* must be given, got nothing"):
        learner_of(mlp()).meta_update(torch.zeros(2, 8), torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="`x` and `x_meta` must be given for a full look-ahead"):
        learner_of(mlp(), lookahead="full").meta_update(torch.zeros(2, 8), torch.zeros(2, 3), y[:2], x[:2], y[:2])


def test_accumulated_parts_equal_one_large_batch():
    x, y, xm, ym = data()
    model, twin = mlp(), mlp()
    parts, whole = learner_of(model, accumulate=4, every=100), learner_of(twin, every=100)
    parts.steps = whole.steps = 1
    for _ in range(2):
        infos = [parts.step(x[i : i + 8], y[i : i + 8]) for i in range(0, 32, 8)]
        whole.step(x, y)
    assert [info.stepped for info in infos] == [False, False, False, True]
    assert parts.steps == whole.steps == 3
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name])


def test_accumulated_batch_makes_one_meta_update():
    x, y, xm, ym = data()
    learner = learner_of(mlp(), accumulate=4)
    found = [learner.step(x, y, xm, ym).meta_value is not None for _ in range(8)]
    assert found == [True, False, False, False] * 2


def test_clip_bounds_the_networks_step():
    x, y, xm, ym = data()
    model = mlp()
    before = torch.cat([value.detach().reshape(-1).clone() for value in model.parameters()])
    learner_of(model, lr=1.0, momentum=0.0, reduction="sum", clip=0.5).step(x, y, xm, ym)
    after = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
    assert float((after - before).norm()) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("lookahead", ["head", "full"])
@pytest.mark.parametrize("amp", [torch.bfloat16, torch.float16])
def test_step_mixed_precision_stays_close_to_float32(amp, lookahead):
    x, y, xm, ym = data()
    model, twin = mlp(), mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if amp == torch.float16 else None
    half = learner_of(model, amp=amp, scaler=scaler, clip=1.0, lookahead=lookahead, objective="nll")
    full = learner_of(twin, clip=1.0, lookahead=lookahead, objective="nll")
    for _ in range(3):
        info, expected = half.step(x, y, xm, ym), full.step(x, y, xm, ym)
    assert info.loss.dtype == torch.float32
    assert float(info.meta_value) == pytest.approx(float(expected.meta_value), rel=0.02)
    assert float(info.hypergradient_norm) == pytest.approx(float(expected.hypergradient_norm), rel=0.1)
    for name, value in model.state_dict().items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, twin.state_dict()[name], rtol=0.05, atol=0.01)


def test_step_float16_overflow_changes_neither_network_nor_hyper_parameters():
    x, y, xm, ym = data()
    model = mlp()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    learner = learner_of(model, amp=torch.float16, scaler=scaler, lookahead="full")
    hyper = {name: value.clone() for name, value in learner.hyper.items()}
    learner.step(x, y, xm, ym)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, hyper[name]) for name, value in learner.hyper.items())
    assert scaler.get_scale() == 2.0**59


def test_lookahead_lr_current_follows_the_group_of_the_head():
    x, y, xm, ym = data()
    values = {}
    for lr in (0.3, 0.03):
        model = mlp()
        groups = [{"params": model[0].parameters(), "lr": 9.0}, {"params": model[-1].parameters(), "lr": 0.3}]
        optimizer = torch.optim.SGD(groups)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch, lr=lr: lr / 0.3)
        learner = MetaLearner(
            model, optimizer, objective="nll", lookahead_lr="current", generator=torch.Generator().manual_seed(0)
        )
        twin = learner_of(mlp(), objective="nll", lookahead_lr=lr)
        features, logits = learner.forward(x)
        values[lr] = learner.meta_update(features, logits, y, xm, ym).value
        assert float(values[lr]) == pytest.approx(float(twin.meta_update(features, logits, y, xm, ym).value), rel=1e-6)
        assert scheduler.get_last_lr()[1] == pytest.approx(lr)
    assert values[0.3] != values[0.03]


def test_resume_continues_bit_for_bit():
    x, y, xm, ym = data()

    def build(seed):
        model = mlp(bn=True)
        g = torch.Generator().manual_seed(seed)
        return model, learner_of(model, every=2, seed=seed, meta_batches=MetaBatches(xm, ym, batch_size=20, generator=g))

    model, learner = build(0)
    for _ in range(5):
        learner.step(x, y)
    saved = {"model": {k: v.clone() for k, v in model.state_dict().items()}, "learner": learner.state_dict()}
    momentum = learner.optimizer.state_dict()
    saved["optimizer"] = {"state": {k: dict(v) for k, v in momentum["state"].items()}, "param_groups": momentum["param_groups"]}
    saved["optimizer"]["state"] = {
        k: {n: t.clone() if isinstance(t, torch.Tensor) else t for n, t in v.items()}
        for k, v in saved["optimizer"]["state"].items()
    }
    for _ in range(5):
        learner.step(x, y)
    again, resumed = build(7)
    again.load_state_dict(saved["model"])
    resumed.optimizer.load_state_dict(saved["optimizer"])
    resumed.load_state_dict(saved["learner"])
    for _ in range(5):
        resumed.step(x, y)
    assert same_state(model, again)
    assert all(torch.equal(learner.hyper[name], resumed.hyper[name]) for name in learner.hyper)
    assert (learner.steps, learner.meta_updates) == (resumed.steps, resumed.meta_updates) == (10, 5)


def test_load_state_dict_of_another_regularizer_raises():
    first, second = learner_of(mlp()), learner_of(mlp(), regularizer=GammaFocal(num_heads=7))
    with pytest.raises(ValueError, match=r"hyper-parameters must be \{'attention': \[8, 7\].*got \{'attention': \[8, 3\]"):
        second.load_state_dict(first.state_dict())


def test_meta_bn_batch_leaves_running_statistics_to_training_batches():
    x, y, xm, ym = data()
    statistics = {}
    for mode in ("batch", "frozen", "update"):
        model = mlp(bn=True)
        learner_of(model, meta_bn=mode).step(x, y, xm + 5, ym)
        statistics[mode] = model[1].running_mean.clone(), int(model[1].num_batches_tracked)
    plain = mlp(bn=True)
    plain(x)
    for mode in ("batch", "frozen"):
        assert torch.equal(statistics[mode][0], plain[1].running_mean)
        assert statistics[mode][1] == 1
    assert not torch.equal(statistics["update"][0], plain[1].running_mean)
    assert statistics["update"][1] == 2


def test_step_takes_keyword_inputs_and_output_records():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.score = nn.Linear(6, 8), nn.Linear(8, 3, bias=False)

        def forward(self, *, values, scale):
            return SimpleNamespace(logits=self.score(torch.tanh(self.body(values) * scale)), loss=None)

    x, y, xm, ym = data()
    for lookahead in ("head", "full"):
        model = Wrapped()
        learner = learner_of(model, lookahead=lookahead, regularizer="unitwise-l2")
        info = learner.step({"values": x, "scale": 0.5}, y, {"values": xm, "scale": 0.5}, ym)
        assert learner.plan.network.head is model.score
        assert list(learner.hyper) == ["weight"]
        assert float(info.hypergradient_norm) > 0


@pytest.mark.parametrize("regularizer", ["gamma-focal", "unitwise-l2", "label-smoothing-non-uniform"])
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_every_preset_steps_with_every_kind_of_regularizer(preset, regularizer):
    x, y, xm, ym = data()
    model = mlp(bn=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    learner = MetaLearner(model, optimizer, regularizer=regularizer, preset=preset)
    before = {name: value.clone() for name, value in learner.hyper.items()}
    for _ in range(2):
        info = learner.step(x, y, xm, ym)
    assert all(torch.isfinite(value).all() for value in model.parameters())
    assert bool(torch.isfinite(info.loss))
    assert any(not torch.equal(value, before[name]) for name, value in learner.hyper.items())
    assert {"loss"} < set(info.to_floats())


def test_monitor_warns_of_a_gamma_that_runs_away():
    x, y, xm, ym = data()
    learner = learner_of(mlp(), meta_lr=1.0, monitor_every=5, objective=lambda logits, labels: logits.square().mean())
    for _ in range(4):
        learner.step(x, y, xm, ym)
    with pytest.warns(MetaWarning, match="gamma runs away"):
        learner.step(x, y, xm, ym)


def test_monitor_off_or_healthy_is_silent(recwarn):
    x, y, xm, ym = data()
    for every in (0, 5):
        learner = learner_of(mlp(), monitor_every=every)
        for _ in range(5):
            learner.step(x, y, xm, ym)
    assert not recwarn.list


def test_gamma_net_of_a_learner():
    learner = learner_of(mlp())
    assert float(learner.gamma_net()(torch.rand(2, 8)).detach().mean()) == pytest.approx(1.0, rel=1e-5)
    with pytest.raises(ValueError, match="the regularizer must be GammaFocal"):
        learner_of(mlp(), regularizer="label-smoothing").gamma_net()


def test_optimizer_of_another_network_raises_and_of_a_part_is_taken():
    model, other = mlp(), mlp()
    with pytest.raises(ValueError, match="`optimizer` must hold parameters of `model`, got one that holds none of them"):
        MetaLearner(model, torch.optim.SGD(other.parameters(), lr=0.1))
    # The head alone is trained: the rest is frozen, or only left out.
    model[0].requires_grad_(False)
    MetaLearner(model, torch.optim.SGD(model[-1].parameters(), lr=0.1), every=1).step(*data())
    MetaLearner(other, torch.optim.SGD(other[-1].parameters(), lr=0.1), every=1).step(*data())
    with pytest.raises(ValueError, match="holds none of them"):
        MetaLearner(model, torch.optim.SGD(model[0].parameters(), lr=0.1))


@pytest.mark.parametrize("lookahead", ["head", "full"])
def test_step_on_input_that_is_no_number_says_so_of_the_logits(lookahead):
    x, y, xm, ym = data()
    x[:3] = float("nan")
    with pytest.raises(ValueError, match="the network's logits must be finite, got NaN or inf for 3 of 32 examples"):
        learner_of(mlp(), lookahead=lookahead).step(x, y, xm, ym)
    learner = learner_of(mlp(), every=2)
    learner.step(*data())
    with pytest.raises(ValueError, match="the network's logits must be finite, got NaN or inf for 3 of 32 examples"):
        learner.step(x, y)
    x, y, *_ = data()
    with pytest.raises(ValueError, match=r"MetaLearner\.step: `x_meta` and `y_meta` must be given"):
        learner_of(mlp()).step(x, y)


def test_wrong_options_raise():
    model = mlp()
    for option, place in (("gamma_max", "regularizer=GammaFocal"), ("nonnegative", "regularizer=UnitwiseL2")):
        with pytest.raises(ValueError, match=rf"`{option}` must be given to what it belongs to.*Use `{place}\({option}=...\)`"):
            learner_of(mlp(), **{option: 1.0})
    with pytest.raises(ValueError, match=r"Use `objective=functools.partial\(calibrant.losses.sece_penalty, bandwidth=...\)`"):
        learner_of(mlp(), bandwidth=0.1)
    with pytest.raises(ValueError, match=r"unknown option of MetaLearner 'lookahed'. Did you mean 'lookahead'\?"):
        learner_of(model, lookahed="head")
    with pytest.raises(ValueError, match="`lookahead` must be one of 'head', 'full', got 'both'"):
        learner_of(model, lookahead="both")
    with pytest.raises(ValueError, match="`every` must be a whole number >= 1, got 0"):
        learner_of(model, every=0)
    with pytest.raises(ValueError, match=r"`betas` must be two numbers in \[0, 1\), got \(0.5, 1.0\)"):
        learner_of(model, betas=(0.5, 1.0))
    with pytest.raises(ValueError, match="`meta_lr` must be a finite number > 0, got -1"):
        learner_of(model, meta_lr=-1)
    with pytest.raises(ValueError, match=r"unknown preset 'papers'. Did you mean 'paper'\?"):
        learner_of(model, preset="papers")
    with pytest.raises(ValueError, match=r"unknown regularizer 'gama-focal'. Did you mean 'gamma-focal'\?"):
        learner_of(model, regularizer="gama-focal")
    with pytest.raises(ValueError, match='`leak_meta_grad` must go with a single process and lookahead="head"'):
        learner_of(model, leak_meta_grad=True, lookahead="full")
