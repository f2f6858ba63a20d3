"""The numbers of an epoch's record: the loss of an example, and mean and spread of gamma."""

import time

import pytest

from calibrant.engine.assemble import assemble
from calibrant.engine.loop import run_epoch
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.resolve import resolved

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
    parts = assemble(recipe).parts
    return parts, run_epoch(parts, recipe, 0, started=time.monotonic())


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
    gammas = parts.test.run(parts.model, parts.eval_forward, precision="float32", gamma=parts.gamma).gammas.double()
    assert len(gammas) == 4000
    assert record.gamma_mean == pytest.approx(float(gammas.mean()), rel=1e-5)
    # Of all test examples, not of a sample: divided by N.
    assert record.gamma_std == pytest.approx(float(gammas.var(correction=0)) ** 0.5, rel=2e-5)
    assert record.gamma_std > 0
