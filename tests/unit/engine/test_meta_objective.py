import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

import calibrant.engine.methods as module
from calibrant.engine.methods import make_plan, speed_up
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.setup import feature_function
from calibrant.engine.train import Assembly, run_epoch
from calibrant.losses import sece_penalty
from calibrant.meta import hypergradient
from calibrant.meta.step import head_hypergradient
from helpers import convolve_contiguously, layout

TINY = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "method.name": "flgamma-sece",
    "train.batch_size": "100",
    "train.epochs": "7",
    "train.device": "cpu",
}


def parts_of(**settings):
    recipe = override(Recipe(), TINY | {f"method.options.{key}": value for key, value in settings.items()})
    return Assembly(recipe), recipe


def leaking_parts(**settings):
    changed = {"backbone.name": "convnet", "method.preset": "paper", "train.batch_size": "20", "train.precision": "float64"}
    changed |= {key.replace("__", "."): value for key, value in settings.items()}
    parts = Assembly(override(Recipe(), TINY | changed))
    parts.batches.begin_epoch(0)
    parts.objective.begin_epoch(0)
    return parts


@pytest.mark.parametrize(("chosen", "expected"), [("current", [0.1, 0.01, 0.001]), ("0.3", [0.3, 0.3, 0.3])])
def test_meta_objective_look_ahead_follows_the_schedule_where_asked_to(chosen, expected, monkeypatch):
    parts, recipe = parts_of(lookahead_lr=chosen, every="18")
    sizes, original = [], head_hypergradient

    def record(*arguments, step, **rest):
        sizes.append(float(step.lr))
        return original(*arguments, step=step, **rest)

    monkeypatch.setattr("calibrant.meta.learner.head_hypergradient", record)
    # The learning rate drops at 3/7 and 5/7 of the epochs; one meta update an epoch.
    for epoch in (0, 3, 5):
        run_epoch(parts, epoch, started=0.0)
    assert sizes == pytest.approx(expected)


@pytest.mark.parametrize(("meta_bn", "training"), [("frozen", False), ("batch", True), ("update", True)])
def test_meta_objective_normalises_meta_images_as_it_is_told(meta_bn, training):
    settings = {"backbone.name": "convnet", "method.options.meta_bn": meta_bn, "train.average": "no"}
    parts = Assembly(override(Recipe(), TINY | settings))
    objective, before = parts.objective, copy.deepcopy(parts.model)
    objective.begin_epoch(0)
    images = objective.batches.next().images
    seen = objective.features(images)
    torch.testing.assert_close(seen, feature_function(copy.deepcopy(before).train(training))(images)[0])
    moved = [not torch.equal(one, two) for one, two in zip(parts.model.buffers(), before.buffers(), strict=True)]
    assert any(moved) == (meta_bn == "update")
    assert parts.model.training


@pytest.mark.parametrize("average", ["no", "ema", "phase"])
def test_full_look_ahead_is_the_derivative_of_the_step_that_the_predicting_weights_take(average):
    """Against double backward through the network's step and what the average makes of it."""
    settings = {"average": average, "precision": "float64", "compile": "yes"}
    changed = {f"train.{key}": value for key, value in settings.items()} | {"method.options.lookahead": "full"}
    parts = Assembly(override(Recipe(), TINY | changed))
    objective, learner = parts.objective, parts.objective.learner
    watch = parts.averages.get("watch", parts.averages.get("average"))
    objective.begin_epoch(0)
    for _ in range(3):
        parts.take(with_meta=True)
    batch, meta = parts.batches.next(), objective.batches.next()
    params = {name: value.detach().clone() for name, value in parts.model.named_parameters()}
    t = 4
    kept = {} if watch is None else {name: watch.means[name].clone() for name in params}
    share = 1.0 if watch is None else max(1 / t, 1 - watch._decay)

    def inner(values, hyper):
        logits = functional_call(parts.model, values, (batch.images,))
        features = parts.model.features(batch.images).detach()
        head = {name: values[f"head.{name}"] for name in ("weight", "bias")}
        return learner.regularizer.loss(hyper, features, logits, batch.labels, head).mean()

    def outer(values):
        shown = {name: kept[name] + share * (value - kept[name]) for name, value in values.items()} if kept else values
        return learner.objective(functional_call(parts.model, shown, (meta.images,)), meta.labels)

    expected = hypergradient(inner, outer, params, learner.hyper, lr=0.1)
    features, logits = parts.forward(objective.inputs(batch))
    seen = {"x": batch.images, "x_meta": meta.images, "y_meta": meta.labels}
    found = learner.meta_update(features, logits, batch.labels, **seen)
    torch.testing.assert_close(found.value, expected.value)
    for name, grad in expected.grads.items():
        assert float(grad.abs().max()) > 0
        torch.testing.assert_close(found.grads[name], grad, rtol=1e-6, atol=1e-8 * float(grad.abs().max()))
    assert not parts.hardware.compiled


def test_look_ahead_of_the_head_agrees_with_the_derivative_of_the_averages_own_step():
    parts = Assembly(override(Recipe(), TINY))
    objective, learner, watch = parts.objective, parts.objective.learner, parts.averages["watch"]
    cosines = []
    for epoch in range(4):
        run_epoch(parts, epoch, started=0.0)
        batch, held_out = parts.batches.next(), objective._bring(objective.batches.next())
        features, logits = (value.detach() for value in parts.forward(batch.images))
        old = dict(learner.shown.head.named_parameters())
        share = float(1 - watch.kept())

        def inner(head, hyper, x=features, labels=batch.labels):
            return learner.regularizer.loss(hyper, x, F.linear(x, head["weight"], head["bias"]), labels, head).mean()

        def outer(head, old=old, share=share, seen=held_out):
            weight, bias = (torch.lerp(old[name], head[name], share) for name in ("weight", "bias"))
            return learner.objective(F.linear(seen.features, weight, bias), seen.labels)

        exact = hypergradient(inner, outer, dict(parts.model.head.named_parameters()), learner.hyper, lr=0.1)
        seen = {"held_out": held_out.features, "y_meta": held_out.labels}
        found = learner.meta_update(features, logits, batch.labels, **seen)
        one, other = (torch.cat([grad.flatten() for grad in way.grads.values()]) for way in (found, exact))
        cosines.append(float(F.cosine_similarity(one, other, dim=0)))
    # The cosines were all above this when written.
    assert min(cosines) > 0.9, cosines


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_meta_objective_gradients_and_their_optimizers_state_lie_as_the_parameters(preset, monkeypatch):
    convolve_contiguously(monkeypatch)
    parts = leaking_parts(method__preset=preset)
    parts.take(with_meta=True)
    for name, value in parts.model.named_parameters():
        assert layout(value.grad) == layout(value), name
        assert layout(parts.optimizer.state[value]["momentum_buffer"]) == layout(value), name


@pytest.mark.parametrize("method", ["flgamma-sece", "ce-dece"])
def test_meta_objective_leaked_gradient_is_in_the_gradient_of_the_loss_and_not_in_its_value(method):
    parts = leaking_parts(method__name=method)
    step, objective, params = parts, parts.objective, dict(parts.model.named_parameters())
    batch = step.batches.next()
    features, logits = step.forward(batch.images)
    objective.learner.meta_update(features, logits, batch.labels, **objective._held_out(batch))
    value = objective.learner._leaked
    # Asked for at once it is the same gradient as that which waits for the loss: the hyper-parameters' step does not count.
    leaked = torch.autograd.grad(value, list(params.values()), retain_graph=True)
    loss = objective.loss(batch, features, logits)
    total = torch.autograd.grad(loss, list(params.values()), retain_graph=True)
    again = objective.loss(batch, features, logits)
    own = torch.autograd.grad(again, list(params.values()))
    assert loss == again
    assert all(float(part.abs().max()) > 0 for part in leaked)
    for found, one, other in zip(total, leaked, own, strict=True):
        torch.testing.assert_close(found, one + other)


def test_meta_objective_leaks_through_a_compiled_network(monkeypatch):
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiler(function, backend="aot_eager"))
    compiled, plain = (leaking_parts(train__compile=chosen) for chosen in ("yes", "no"))
    try:
        for _ in range(2):
            compiled.take(with_meta=True)
            plain.take(with_meta=True)
    finally:
        torch.compiler.reset()
    assert compiled.forward is not compiled.eval_forward
    for found, expected in zip(compiled.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("chosen", "expected"), [("constant", [1.0] * 3), ("slowing", [1.0, 1.0, 0.3162])])
def test_meta_objective_learning_rate_of_the_hyper_parameters_follows_its_schedule(chosen, expected):
    parts, _ = parts_of(meta_schedule=chosen, meta_lr="2e-4")
    rates = []
    # The network's learning rate drops at 3/7 and 5/7 of seven epochs.
    for epoch in (0, 3, 5):
        parts.objective.begin_epoch(epoch)
        rates.append(parts.objective.learner.meta_lr / 2e-4)
    assert rates == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("decay", ["0.5", "0.99"])
def test_gamma_moves_by_the_memory_that_the_average_was_given(decay):
    def rate(**settings):
        recipe = override(Recipe(), TINY | {"train.epochs": "20000"} | {k.replace("__", "."): v for k, v in settings.items()})
        return Assembly(recipe).objective.learner.meta_lr

    every = Assembly(override(Recipe(), TINY)).objective.every
    expected = speed_up(1 / (1 - float(decay)), every) / speed_up(1000, every)
    assert rate(train__average_decay=decay) == pytest.approx(expected * rate())
    # Where nothing forgets exponentially the decay says nothing.
    assert rate(train__average_decay=decay, train__average="no") == rate(train__average="no") == rate()


def test_bank_refreshed_whole_learns_what_fresh_batches_of_everything_do():
    hyper = []
    for way in ("meta_batch_size", "refresh"):
        parts, _ = parts_of(every="2", **{way: "200"})
        run_epoch(parts, 0, started=0.0)
        hyper.append(torch.cat([value.detach().flatten() for value in parts.objective.hyper.values()]))
    # The order of examples differs, and with it the rounding of sums.
    torch.testing.assert_close(hyper[0], hyper[1], rtol=1e-4, atol=1e-6)
    assert float((hyper[1] - torch.cat([v.flatten() for v in parts_of()[0].objective.hyper.values()])).abs().max()) > 1e-4


def test_bank_replaces_the_oldest_slice_and_is_filled_anew_when_the_learning_rate_drops():
    parts, _ = parts_of(refresh="64", every="8")
    objective = parts.objective
    whole = parts.data.val.pick(torch.arange(192))

    def ages():
        fresh = torch.cat([objective.features(batch.images) for batch in objective.batches.once()])
        return [(fresh - objective.bank.features[:192]).abs().amax(1).view(3, 64).amax(1)[k].item() < 1e-6 for k in range(3)]

    # Sixteen steps an epoch, two of them meta steps: the first epoch refreshes slices 0 and 1, the next 2 and 0.
    run_epoch(parts, 0, started=0.0)
    assert torch.equal(objective.bank.labels[:192], whole.labels)
    assert ages() == [False, False, False]
    for _ in range(2):
        objective._bring(objective.batches.next())
    assert ages().count(True) == 2
    objective.begin_epoch(1)
    assert ages().count(True) == 2
    objective.begin_epoch(3)
    assert ages() == [True, True, True]


def test_bank_is_renewed_while_the_average_remembers():
    for decay, size in ((0.999, 10), (0.9, 200)):
        batches = Assembly(override(Recipe(), TINY | {"train.average_decay": decay})).objective.batches
        # 200 held-out examples, a meta step every 8 steps, within a sixth of the memory.
        assert batches.batch_size == size


def test_pace_takes_the_place_of_the_presets_learning_rate_and_not_of_ones_own():
    plan = plan_of(preset="paper", pace=0.01)
    assert (plan.pace, plan.settings.meta_lr) == (0.01, None)
    with pytest.raises(ValueError, match="only one of `method.options.pace` and `method.options.meta_lr` may be given"):
        plan_of(pace=0.01, meta_lr=1e-4)


def plan_of(preset="default", **options):
    return make_plan(override(Recipe(), {"method.preset": preset, "method.options": options}))


def test_method_options_reach_settings_regularizer_and_objective():
    options = {"meta_lr": "1e-4", "betas": (0.9, 0.99), "meta_batch_size": 64, "gamma_max": "none", "num_heads": 7}
    plan = plan_of(**options, bandwidth=0.02, centred="false", distance="absolute")
    assert (plan.settings.meta_lr, plan.settings.betas) == (1e-4, (0.9, 0.99))
    assert (plan.meta_batch_size, plan.meta_schedule, plan.pace) == (64, "slowing", None)
    assert (plan.regularizer.gamma_max, plan.regularizer.num_heads) == (None, 7)
    logits, labels = torch.randn(9, 3, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 3
    assert plan.objective(logits, labels) == sece_penalty(logits, labels, bandwidth=0.02, detach_accuracy=True)
    paper = plan_of(preset="paper")
    assert (paper.settings.every, paper.meta_batch_size, paper.settings.leak_meta_grad) == (1, 128, True)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("betas", "fast", "`method.options.betas` must be a list, got 'fast'"),
        ("lookahead_lr", "now", "`method.options.lookahead_lr` must be a number or one of 'current'"),
        ("pace", -1, "`method.options.pace` must be a finite number > 0, got -1"),
        ("n_bins", 5, "unknown option of flgamma-sece 'n_bins'"),
    ],
)
def test_method_option_of_the_wrong_kind_is_one_sentence(option, value, message):
    with pytest.raises(ValueError, match=message):
        plan_of(**{option: value})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("method.options.watch_share", "0.5", "must be left out"),
        ("method.options.meta_schedule", "cosine", "must be one of 'constant', 'slowing'"),
        ("train.average", "uniform", "must be 'no', 'ema' or 'phase'"),
    ],
)
def test_a_recipe_with_what_is_gone_is_read_and_not_trained(key, value, message):
    recipe = override(Recipe(), TINY | {key: value})
    with pytest.raises(ValueError, match=f"`{key}` {message}"):
        Assembly(recipe)


def test_meta_images_pass_a_cpu_in_pieces_that_change_nothing(monkeypatch):
    parts, _ = parts_of(meta_batch_size="130")
    parts.objective.begin_epoch(0)
    images = parts.objective.batches.next().images
    sizes = []
    monkeypatch.setattr(module, "at_once", lambda image, device: 32)
    objective, forward = parts.objective, parts.objective.forward
    objective.forward = lambda piece: (sizes.append(len(piece)), forward(piece))[1]
    found = objective.features(images)
    assert sizes == [32, 32, 32, 32, 2]
    with torch.no_grad():
        torch.testing.assert_close(found, forward(images)[0])
    # Statistics of the batch need all of it.
    objective.settings = replace(objective.settings, meta_bn="batch")
    objective.features(images)
    assert sizes[5:] == [130]
