"""The numbers of an epoch's record: the loss of an example, mean and spread of gamma, the time; and its randomness."""

import time

import pytest
import torch

from calibrant.engine.distributed import Group
from calibrant.engine.folder import load_checkpoint, save_checkpoint
from calibrant.engine.loop import run_epoch
from calibrant.engine.methods import resolved
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.setup import assemble
from calibrant.engine.train import _seed_epoch, run_recipe

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
    gammas = parts.test.run(parts.model, parts.eval_forward, gamma=parts.objective.gamma).gammas.double()
    assert len(gammas) == 4000
    assert record.gamma_mean == pytest.approx(float(gammas.mean()), rel=1e-5)
    # Of all test examples, not of a sample: divided by N.
    assert record.gamma_std == pytest.approx(float(gammas.var(correction=0)) ** 0.5, rel=2e-5)
    assert record.gamma_std > 0


def test_seconds_of_a_resumed_run_go_on_from_those_before(tmp_path):
    def stop(record):
        raise RuntimeError("stop")

    saved = tmp_path / "state.pt"
    settings = {"method.name": "ce", "train.epochs": "2", "train.batch_size": "900", "train.checkpoint_every_seconds": "0"}
    recipe = override(Recipe(), TINY | settings)
    with pytest.raises(RuntimeError, match="stop"):
        run_recipe(recipe, checkpoint=saved, report=stop)
    state = load_checkpoint(saved)
    state["history"][0]["seconds"] = 5000.0
    save_checkpoint(state, saved)
    times = [record.seconds for record in run_recipe(recipe, checkpoint=saved, resume=True).history]
    assert times[0] == 5000.0
    assert 5000.0 < times[1] < 5000.0 + 600


def test_every_epoch_of_every_seed_and_process_draws_by_a_seed_of_its_own():
    with torch.random.fork_rng(devices=[]):
        found = set()
        for seed, epoch, rank in ((0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1)):
            _seed_epoch(seed, epoch, Group(rank=rank, world_size=2))
            found.add(torch.initial_seed())
    assert len(found) == 4
