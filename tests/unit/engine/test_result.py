import math
import warnings

import pytest

from calibrant.engine.recipe import Recipe, override
from calibrant.engine.result import EpochRecord, TrainWarning, has_diverged, is_guess, warn_of
from calibrant.engine.train import run_recipe

TINY = {"data.name": "mixture", "backbone.name": "mlp", "method.name": "ce", "train.batch_size": "100", "train.device": "cpu"}


def record(epoch=0, loss=1.0, error=0.5, nll=1.0):
    return EpochRecord(epoch, 0.1, loss, val_error=error, val_nll=nll)


def test_has_diverged_asks_for_loss_and_nll_far_above_those_of_a_guess():
    far = 10 * math.log(4)
    assert has_diverged(record(loss=far + 0.1, nll=far + 0.1), num_classes=4)
    assert not has_diverged(record(loss=far - 0.1, nll=1e9), num_classes=4)
    assert not has_diverged(record(loss=1e9, nll=far - 0.1), num_classes=4)
    assert not has_diverged(EpochRecord(0, 0.1, 1e9), num_classes=4)


def test_is_guess_allows_for_two_standard_errors_and_asks_for_three_epochs():
    # Of 100 examples of ten classes a guess errs on 90 ± 3.
    assert is_guess([record(error=error) for error in (0.95, 0.85, 0.9)], num_classes=10, n_val=100)
    assert not is_guess([record(error=error) for error in (0.95, 0.83, 0.9)], num_classes=10, n_val=100)
    assert not is_guess([record(error=0.95)] * 2, num_classes=10, n_val=100)
    assert not is_guess([EpochRecord(0, 0.1, 1.0)] * 3, num_classes=10, n_val=100)


@pytest.mark.parametrize(
    ("history", "ended", "words"),
    [
        ([record(epoch=1, loss=5e7, nll=5e8)], False, r"5e\+07 an example after epoch 2, that of a guess 2.30"),
        ([record(loss=98.0, nll=40.0)], True, "training diverged"),
        ([record(loss=2.3, error=0.89)] * 3, True, "no better than a guess.* 89.0 %, that of a guess 90.0 %"),
    ],
)
def test_warn_of_says_what_is_wrong_and_what_to_do(history, ended, words):
    with pytest.warns(TrainWarning, match=f"{words}.*Lower `optim.lr`"):
        assert warn_of(history, num_classes=10, n_val=100, ended=ended)
    assert not warn_of([record(loss=2.3, error=0.89)] * 3, num_classes=10, n_val=100, ended=False)


def test_run_with_a_wild_learning_rate_ends_with_a_warning_and_an_honest_one_without():
    wild = override(Recipe(), TINY | {"train.epochs": "3", "optim.lr": "1e4"})
    with pytest.warns(TrainWarning, match="Lower `optim.lr`") as caught:
        run_recipe(wild)
    # Once while it goes on, and once at its end.
    assert len(caught) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_recipe(override(Recipe(), TINY | {"train.epochs": "3"}))
