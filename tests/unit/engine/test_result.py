import math
import warnings

import pytest
import torch

from calibrant.engine.recipe import Recipe, override
from calibrant.engine.result import BestEpoch, EpochRecord, TrainWarning, has_diverged, is_guess, warn_of
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


def chosen(select, epochs, *, n_val=100, **options):
    """Offer (error, nll, ece) of each epoch; return the epoch chosen and those whose weights are kept."""
    best = BestEpoch(select, n_val=n_val, **options)
    for epoch, (error, nll, ece) in enumerate(epochs):
        best.offer(EpochRecord(epoch, 0.1, 1.0, val_error=error, val_nll=nll, val_ece=ece), {"w": torch.tensor(float(epoch))})
    assert [float(held.weights["w"]) for held in best.candidates] == [held.epoch for held in best.candidates]
    return best.best.epoch, [held.epoch for held in best.candidates]


# Two standard errors of 10 % over 100 examples are 6 points.
EPOCHS = [(0.20, 0.1, 0.00), (0.10, 0.9, 0.08), (0.16, 0.5, 0.05), (0.17, 0.2, 0.01), (0.15, 0.5, 0.06), (0.10, 0.9, 0.08)]


@pytest.mark.parametrize(
    ("select", "expected", "kept"),
    [
        ("error", 1, [1]),
        ("nll", 0, [0]),
        ("last", 5, [5]),
        # Epochs 0 and 3 are beyond 16 %; epoch 4 has the NLL of epoch 2 at a lower error.
        ("error+nll", 4, [1, 4]),
        ("error+ece", 2, [1, 2, 4]),
    ],
)
def test_best_epoch_by_hand(select, expected, kept):
    assert chosen(select, EPOCHS) == (expected, kept)


@pytest.mark.parametrize(("within", "expected"), [(0.0, 1), (1.6, 1), (1.7, 4), (2.4, 3), (4.0, 0)])
def test_best_epoch_within_so_many_standard_errors(within, expected):
    assert chosen("error+nll", EPOCHS, within=within)[0] == expected


def test_best_epoch_beyond_a_fallen_bound_is_dropped_though_it_led_before():
    assert chosen("error+nll", [(0.30, 0.1, 0.0), (0.26, 0.5, 0.0)]) == (0, [0, 1])
    assert chosen("error+nll", [(0.30, 0.1, 0.0), (0.26, 0.5, 0.0), (0.10, 0.9, 0.0)]) == (2, [2])


def test_best_epoch_skips_epochs_without_evaluation_and_prefers_numbers():
    best = BestEpoch("nll", n_val=10)
    best.offer(EpochRecord(0, 0.1, 1.0, val_error=0.5, val_nll=math.nan, val_ece=0.1), {})
    best.offer(EpochRecord(1, 0.1, 1.0), {})
    assert best.best.epoch == 0
    best.offer(EpochRecord(2, 0.1, 1.0, val_error=0.9, val_nll=9.0, val_ece=0.1), {})
    assert (best.best.epoch, len(best.candidates)) == (2, 1)


def test_best_epoch_copies_weights_and_goes_on_from_its_state():
    best, weights = BestEpoch("error+ece", n_val=100), {"w": torch.zeros(2)}
    for epoch, (error, nll, ece) in enumerate(EPOCHS[:3]):
        weights["w"].fill_(epoch)
        best.offer(EpochRecord(epoch, 0.1, 1.0, val_error=error, val_nll=nll, val_ece=ece), weights)
    again = BestEpoch("error+ece", n_val=100)
    again.restore(best.state())
    assert again.best.epoch == best.best.epoch == 2
    assert again.best.weights["w"].tolist() == [2.0, 2.0]
    again.offer(EpochRecord(3, 0.1, 1.0, val_error=0.01, val_nll=1.0, val_ece=0.5), weights)
    assert (again.best.epoch, best.best.epoch) == (3, 2)


@pytest.mark.cuda
def test_best_epoch_of_weights_on_cuda_holds_no_memory_there():
    best, weight = BestEpoch("last", n_val=10), torch.ones(1000, device="cuda")
    before = torch.cuda.memory_allocated()
    best.offer(EpochRecord(0, 0.1, 1.0), {"w": weight})
    assert torch.cuda.memory_allocated() == before
    assert best.best.weights["w"].equal(weight.cpu())
