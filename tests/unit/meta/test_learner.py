"""The learner in one's own loop: its steps, padded tokens, what trainers need of it, and what it warns of."""

import copy
import warnings
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


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_network_first_takes_the_networks_step_with_the_hyper_parameters_as_they_were(preset):
    models, hyper = [], []
    for options in ({"network_first": True}, {"network_first": False}, {"network_first": True, "every": 2}):
        models.append(mlp())
        learner = learner_of(models[-1], preset=preset, leak_meta_grad=False, **options)
        # The last one takes a step without a meta update.
        learner.steps = int(options.get("every", 1) == 2)
        learner.step(*data())
        hyper.append(torch.cat([value.flatten() for value in learner.hyper.values()]))
    assert same_state(models[0], models[2])
    assert not same_state(models[0], models[1])
    assert torch.equal(hyper[0], hyper[1])
    assert not torch.equal(hyper[0], hyper[2])


def test_leaked_gradient_is_there_in_either_order():
    grads = []
    for first in (True, False):
        model = mlp()
        learner = learner_of(model, lr=0.0, leak_meta_grad=True, network_first=first, meta_lr=1e-12)
        learner.step(*data())
        grads.append([value.grad for value in model.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def test_held_out_data_pass_through_the_averaged_network_and_its_head_looks_ahead():
    x, y, xm, ym = data()
    model = mlp()
    average = torch.optim.swa_utils.AveragedModel(model)
    with torch.no_grad():
        for value in average.parameters():
            value.mul_(1.5)
    learner = learner_of(model, average=average, regularizer="unitwise-l2")
    features, logits = learner.forward(x)
    found = learner.meta_update(features, logits, y, xm, ym)
    twin = learner_of(average.module, regularizer="unitwise-l2")
    expected = twin.meta_update(features, logits, y, held_out=average.module[:-1](xm), y_meta=ym)
    assert torch.equal(found.value, expected.value)
    for name, grad in expected.grads.items():
        assert torch.equal(found.grads[name], grad)
    with pytest.raises(ValueError, match="`average_share` must go with"):
        learner_of(model, average=average, lookahead="full")
    with pytest.raises(ValueError, match="`leak_meta_grad`"):
        learner_of(model, average=average, leak_meta_grad=True)


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
    with pytest.raises(ValueError, match="`x_meta` and `y_meta` must be given"):
        learner_of(mlp(), every=4).step(x, y)
    given = torch.zeros(2, 8), torch.zeros(2, 3), y[:2]
    with pytest.raises(ValueError, match="`y_meta` and `x_meta` .* must be given"):
        learner_of(mlp()).meta_update(*given)
    with pytest.raises(ValueError, match="`x`, `x_meta` and `y_meta` must be given"):
        learner_of(mlp(), lookahead="full").meta_update(*given, x[:2], y[:2])


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


def test_clip_bounds_the_networks_step():
    x, y, xm, ym = data()
    model = mlp()
    before = torch.cat([value.detach().reshape(-1).clone() for value in model.parameters()])
    learner_of(model, lr=1.0, momentum=0.0, reduction="sum", clip=0.5).step(x, y, xm, ym)
    after = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
    assert float((after - before).norm()) == pytest.approx(0.5, rel=1e-4)


def banked(size, batch_size, seed=0):
    """A learner that looks through an average of its network and keeps the features of ``size`` samples."""
    _, _, xm, ym = data(m=48)
    model = mlp()
    average = torch.optim.swa_utils.AveragedModel(model)
    batches = MetaBatches(xm, ym, batch_size=batch_size, generator=torch.Generator().manual_seed(seed))
    return learner_of(model, average=average, bank=size, meta_batches=batches)


def follow(learner, steps):
    for _ in range(steps):
        info = learner.step(*data()[:2])
        for kept, value in zip(learner.shown.inner.parameters(), learner.network.inner.parameters(), strict=True):
            kept.data.lerp_(value.data, 0.1)
    return info


def test_bank_of_everything_renewed_at_once_changes_nothing():
    with_bank, without = banked(48, 48), banked(0, 48)
    assert torch.equal(follow(with_bank, 3).meta_value, follow(without, 3).meta_value)


def test_bank_keeps_the_newest_and_the_objective_reads_all_of_it():
    learner, sizes = banked(40, 16), []
    learner.objective = lambda logits, labels: (sizes.append(len(labels)), sece_penalty(logits, labels))[1]
    follow(learner, 4)
    assert sizes == [16, 32, 40, 40]
    resumed = banked(40, 16, seed=5)
    for part, other in ((learner, resumed), (learner.network.inner, resumed.network.inner)):
        other.load_state_dict(part.state_dict())
    resumed.shown.inner.load_state_dict(learner.shown.inner.state_dict())
    resumed.optimizer.load_state_dict(copy.deepcopy(learner.optimizer.state_dict()))
    assert torch.equal(follow(resumed, 3).meta_value, follow(learner, 3).meta_value)
    newest = learner.bank.labels[:16]
    follow(learner, 1)
    assert learner.bank.labels[16:32].equal(newest)
    learner.bank = None
    follow(learner, 1)
    assert len(learner.bank.labels) == 16
    with pytest.raises(ValueError, match="`bank` must go with an `average`"):
        learner_of(mlp(), bank=10)


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


@pytest.mark.parametrize("lr", [0.3, 0.03])
def test_lookahead_lr_current_follows_the_group_of_the_head(lr):
    x, y, xm, ym = data()
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": 9.0}, {"params": model[-1].parameters(), "lr": 0.3}]
    optimizer = torch.optim.SGD(groups)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: lr / 0.3)
    generator = torch.Generator().manual_seed(0)
    learner = MetaLearner(model, optimizer, objective="nll", lookahead_lr="current", generator=generator)
    features, logits = learner.forward(x)
    value = float(learner.meta_update(features, logits, y, xm, ym).value)
    for size, same in ((lr, True), (0.1, False)):
        twin = learner_of(mlp(), objective="nll", lookahead_lr=size).meta_update(features, logits, y, xm, ym)
        assert (value == pytest.approx(float(twin.value), rel=1e-6)) == same


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
        assert learner.network.head is model.score
        assert list(learner.hyper) == ["weight"]
        assert float(info.hypergradient_norm) > 0


def test_gamma_net_of_a_learner():
    learner = learner_of(mlp())
    assert float(learner.gamma_net()(torch.rand(2, 8)).detach().mean()) == pytest.approx(1.0, rel=1e-5)
    with pytest.raises(ValueError, match="the regularizer must be GammaFocal"):
        learner_of(mlp(), regularizer="label-smoothing").gamma_net()


def test_wrong_options_raise():
    for name, value in {"preset": "papers", "regularizer": "gama-focal", "lookahed": "head", "accumulate": 0}.items():
        with pytest.raises(ValueError, match=f"'{value}'|'{name}'|`{name}`"):
            learner_of(mlp(), **{name: value})


def test_full_lookahead_of_a_frozen_head_is_refused_and_that_of_the_head_is_not():
    for lookahead in ("head", "full"):
        learner = learner_of(mlp(), lookahead=lookahead)
        learner.network.head.weight.requires_grad_(False)
        if lookahead == "full":
            with pytest.raises(ValueError, match="`head` must be trained where the look-ahead is full"):
                learner.step(*data())
        else:
            assert learner.step(*data()).meta_value is not None


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_leaked_gradient_comes_once_for_all_parts_of_a_batch(reduction):
    """With a loss of zero weight what is left in the gradients is the leak, whatever the number of parts and the scale."""
    x, y, xm, ym = data(dtype=torch.float64)
    found = []
    for parts in (1, 4):
        for scaler in (None, torch.amp.GradScaler("cpu", init_scale=8.0)):
            model = mlp(dtype=torch.float64)
            scaled = {"accumulate": parts, "reduction": reduction, "scaler": scaler, "clip": 1e9}
            learner = learner_of(model, lr=0.0, leak_meta_grad=True, **scaled)
            plain = learner.regularizer.loss
            learner.regularizer.loss = lambda *given, plain=plain, model=model: (
                plain(*given) if given[4]["weight"] is not model[-1].weight else 0 * plain(*given)
            )
            for _ in range(parts):
                learner.step(x, y, xm, ym)
            found.append([value.grad for value in model.parameters()])
    assert float(found[0][0].abs().max()) > 0
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            torch.testing.assert_close(one, other)


TOKENS, TAGS, META_TOKENS, META_TAGS = (
    torch.randn(6, 5, 6, generator=torch.Generator().manual_seed(0)),
    torch.randint(3, (6, 5), generator=torch.Generator().manual_seed(1)),
    torch.randn(8, 5, 6, generator=torch.Generator().manual_seed(2)),
    torch.randint(3, (8, 5), generator=torch.Generator().manual_seed(3)),
)
TAGS[:, 3:], META_TAGS[::2, 2:] = -100, -100


@pytest.mark.parametrize(
    "options", [{}, {"lookahead": "full"}, {"preset": "paper", "clip": 1.0}, {"regularizer": "unitwise-l2"}]
)
def test_steps_on_padded_tokens_are_those_on_the_labelled_ones(options):
    model, twin = mlp(), mlp()
    padded, plain = learner_of(model, ignore_index=-100, **options), learner_of(twin, **options)
    start = {name: value.clone() for name, value in plain.hyper.items()}
    kept, meta_kept = TAGS >= 0, META_TAGS >= 0
    # What rows without a label hold does not matter.
    held_out = torch.where(meta_kept.unsqueeze(2), META_TOKENS, 1e3)
    for _ in range(3):
        found = padded.step(TOKENS, TAGS, held_out, META_TAGS)
        expected = plain.step(TOKENS[kept], TAGS[kept], META_TOKENS[meta_kept], META_TAGS[meta_kept])
        torch.testing.assert_close(found.loss, expected.loss)
        torch.testing.assert_close(found.meta_value, expected.meta_value)
    assert any(not torch.equal(value, start[name]) for name, value in plain.hyper.items())
    for name, value in (dict(twin.named_parameters()) | plain.hyper).items():
        torch.testing.assert_close((dict(model.named_parameters()) | padded.hyper)[name], value)


def test_tokens_in_ones_own_loop_are_rows_and_wrong_labels_are_named():
    learner = learner_of(mlp(), ignore_index=-100)
    features, logits = learner.forward(TOKENS)
    assert (features.shape, logits.shape) == ((30, 8), (30, 3))
    with pytest.raises(ValueError, match=r"`labels` must be one for each of 30 rows of logits, got \[6, 4\]"):
        learner.loss(features, logits, TAGS[:, 1:])
    with pytest.raises(ValueError, match="ignore_index=-100"):
        learner_of(mlp()).step(TOKENS, TAGS, META_TOKENS, META_TAGS)


def test_full_lookahead_under_a_trainers_autocast_equals_the_learners_own():
    def objective(logits, labels):
        # A matrix product, which autocast would take in bfloat16.
        return (logits @ logits.T).square().mean()

    found = []
    for own in (True, False):
        learner = learner_of(mlp(), lookahead="full", objective=objective, amp=torch.bfloat16 if own else None)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not own):
            found.append(learner.step(*data()))
    assert found[1].meta_value.dtype == torch.float32
    assert torch.equal(found[0].meta_value, found[1].meta_value)
    assert torch.equal(found[0].hypergradient_norm, found[1].hypergradient_norm)


def test_meta_batches_get_the_type_of_the_network_and_may_be_mappings():
    x, y, xm, ym = data(dtype=torch.float64)
    batches = MetaBatches({"input": xm.float()}, ym, batch_size=48)
    info = learner_of(mlp(dtype=torch.float64), meta_batches=batches).step({"input": x}, y)
    expected = learner_of(mlp(dtype=torch.float64)).step(x, y, xm.float().double(), ym)
    torch.testing.assert_close(info.meta_value, expected.meta_value)


def watched(**options):
    # An objective that says nothing of a NaN, as none does on a GPU.
    return learner_of(mlp(), **({"objective": lambda logits, labels: logits.square().mean()} | options))


def warnings_of(learner, held_out):
    """Warnings of a step for each of these held-out batches: good ones, or bad ones that hold no numbers."""
    x, y, xm, ym = data()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for good in held_out:
            learner.step(x, y, xm if good else xm * float("nan"), ym)
    return [str(warning.message) for warning in caught if issubclass(warning.category, MetaWarning)]


@pytest.mark.parametrize("every", [0, 5])
def test_healthy_or_unwatched_run_is_silent(every):
    assert warnings_of(watched(monitor_every=every, objective="sece"), [True] * 10) == []


def test_runaway_gamma_warns_once_until_it_is_over():
    learner = watched(monitor_every=5, meta_lr=1.0)
    assert warnings_of(learner, [True] * 4) == []
    (said,) = warnings_of(learner, [True])
    assert "gamma runs away" in said
    assert warnings_of(learner, [True] * 5) == []
    for value in learner.hyper.values():
        value.mul_(0.1)
    learner.meta_lr = 1e-6
    warnings_of(learner, [True] * 5)
    assert not learner._warned


def test_hyper_parameters_that_stand_still_warn():
    for options, held_out in (({"eps": 1e6}, [True] * 2), ({"scaler": torch.amp.GradScaler("cpu")}, [False] * 2)):
        (said,) = warnings_of(watched(monitor_every=2, **options), held_out)
        assert "frozen" in said


@pytest.mark.parametrize("lookahead", ["head", "full"])
def test_first_held_out_batch_that_is_not_finite_raises(lookahead):
    with pytest.raises(ValueError, match="objective on the first held-out batch must be finite"):
        warnings_of(watched(lookahead=lookahead), [False])
    assert warnings_of(watched(lookahead=lookahead, monitor_every=0), [False]) == []
