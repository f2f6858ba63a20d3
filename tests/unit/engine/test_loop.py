"""The numbers of an epoch's record: the loss of an example, mean and spread of gamma, the time; and its randomness."""

import time
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from calibrant.engine.batches import ImageBatch
from calibrant.engine.methods import MixupPlan, resolved
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.setup import choose_hardware
from calibrant.engine.train import Assembly, run_epoch, train
from calibrant.losses import CrossEntropyLoss

TINY = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "train.batch_size": "200",
    "train.epochs": "1",
    "train.device": "cpu",
    "train.average": "no",
    "train.select": "last",
}


def epoch_of(settings):
    recipe = resolved(override(Recipe(), TINY | settings))
    parts = Assembly(recipe)
    return parts, run_epoch(parts, 0, started=time.monotonic())


def test_train_loss_is_that_of_an_example_however_losses_are_reduced():
    # A network that hardly moves: its loss on the training part is nearly that on the validation part.
    still = {"method.name": "ce", "optim.lr": "1e-9"}
    (_, summed), (_, mean) = (epoch_of(still | {"train.reduction": name}) for name in ("sum", "mean"))
    assert summed.train_loss == pytest.approx(mean.train_loss, rel=1e-5)
    assert summed.train_loss == pytest.approx(summed.val_nll, rel=0.1)


def test_gamma_of_an_epoch_is_its_mean_and_spread_over_the_test_examples():
    parts, record = epoch_of(
        {"method.name": "flgamma-sece", "method.options.every": "1", "method.options.meta_batch_size": "100"}
    )
    gammas = parts.test.run(parts.model, parts.eval_forward, gamma=parts.objective.gamma)[1].double()
    assert len(gammas) == 4000
    assert record.gamma_mean == pytest.approx(float(gammas.mean()), rel=1e-5)
    # Of all test examples, not of a sample: divided by N.
    assert record.gamma_std == pytest.approx(float(gammas.var(correction=0)) ** 0.5, rel=2e-5)
    assert record.gamma_std > 0


LONGER = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "train.batch_size": "225",
    "train.epochs": "7",
    "train.select": "last",
    "train.device": "cpu",
}
PATRA = {"method.name": "patra", "method.options.every": "2"}
BN = {"backbone.name": f"{__name__}:small_net", "data.val": "100", "data.meta": "0", "train.epochs": "4"}


def small_net(num_classes):
    """A network with BatchNorm, so that averaged weights need statistics of their own."""
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, num_classes)
    )


def run_of(settings, *, every, **options):
    """The run, and every tensor that its steps and epochs change."""
    kept = []
    recipe = override(Recipe(), LONGER | settings | {"train.eval_every_epochs": every})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calibrant.engine.train.Assembly", lambda *a, **k: kept.append(Assembly(*a, **k)) or kept[-1])
        run = train(recipe, **options)
    return run, kept[0].state()


def assert_same(first, second):
    assert set(first) == set(second)
    for name, value in first.items():
        assert torch.equal(value.nan_to_num(-1), second[name].nan_to_num(-1)), name


@pytest.mark.parametrize(
    "settings",
    [
        {"method.name": "adafocal"},
        {"method.name": "avuc"},
        PATRA,
        {"method.name": "adafocal", "train.average": "ema"},
        {"method.name": "adafocal", "train.average": "phase", "optim.milestones_epochs": "2"} | BN,
        PATRA | {"train.average": "phase"} | BN,
        {"method.name": "flgamma-sece", "train.average": "phase"} | BN | {"data.meta": "200"},
    ],
    ids=lambda settings: "-".join(settings.get(key, "no") for key in ("method.name", "train.average")),
)
def test_train_is_the_same_however_often_it_is_evaluated(settings):
    (often, state), (seldom, other) = (run_of(settings, every=every) for every in (1, 3))
    assert [record.val_error is None for record in seldom.history].count(True) >= 2
    assert_same(state, other)
    assert often.test.logits.equal(seldom.test.logits)


batches = SimpleNamespace(steps_per_epoch=3, batch_size=6, seed=0)


def test_mixup_weighs_images_and_labels_alike():
    objective, hardware = MixupPlan(CrossEntropyLoss(), alpha=0.4), choose_hardware(device="cpu")
    recipe = override(Recipe(), {"train.reduction": "mean"})
    objective.start(SimpleNamespace(batches=batches, hardware=hardware, recipe=recipe))
    objective.begin_epoch(0)
    labels, g = torch.tensor([0, 1, 2, 0, 1, 2]), torch.Generator().manual_seed(0)
    for step in range(3):
        # Every image is the one-hot code of its label: the mixed one is then the target of the mixed example.
        images = F.one_hot(labels, 3).double().view(6, 3, 1, 1)
        batch = ImageBatch(images, labels, torch.arange(6), torch.tensor(step))
        target = objective.inputs(batch).flatten(1)
        assert not target.equal(images.flatten(1))
        logits = torch.randn(6, 3, dtype=torch.float64, generator=g)
        torch.testing.assert_close(objective.loss(batch, logits, logits), F.cross_entropy(logits, target), rtol=1e-6, atol=0)


def test_step_clips_the_gradient_of_all_parameters_to_the_norm_of_the_recipe():
    settings = {"data.name": "mixture", "backbone.name": "mlp", "method.name": "ce", "train.device": "cpu"}
    norms = {}
    for clip in (0.0, 0.02):
        parts = Assembly(override(Recipe(), settings | {"train.clip_norm": clip}))
        parts.batches.begin_epoch(0)
        parts.take(with_meta=False)
        norms[clip] = float(torch.stack([value.grad.norm() for value in parts.model.parameters()]).norm())
    # Zero is off.
    assert norms[0.0] > 0.1
    assert norms[0.02] == pytest.approx(0.02, rel=1e-3)
