import math
from functools import partial

import pytest
import torch

from calibrant.engine.recipe import Recipe, override
from calibrant.engine.run import BestEpoch, EpochRecord, copy_state, load_run
from calibrant.engine.train import train
from calibrant.io import load_predictions

TINY = {"data.name": "mixture", "backbone.name": "mlp", "method.name": "ce", "train.batch_size": "100", "train.device": "cpu"}


def weights(epoch):
    return {"w": torch.tensor(float(epoch))}


def chosen(select, epochs, *, n_val=100, **options):
    """Offer (error, nll, ece) of each epoch; return the epoch chosen and those whose weights are kept."""
    best = BestEpoch(select, n_val=n_val, **options)
    for epoch, (error, nll, ece) in enumerate(epochs):
        best.offer(EpochRecord(epoch, 0.1, 1.0, val_error=error, val_nll=nll, val_ece=ece), partial(weights, epoch))
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
    best.offer(EpochRecord(0, 0.1, 1.0, val_error=0.5, val_nll=math.nan, val_ece=0.1), dict)
    best.offer(EpochRecord(1, 0.1, 1.0), dict)
    assert best.best.epoch == 0
    best.offer(EpochRecord(2, 0.1, 1.0, val_error=0.9, val_nll=9.0, val_ece=0.1), dict)
    assert (best.best.epoch, len(best.candidates)) == (2, 1)


@pytest.mark.cuda
def test_best_epoch_of_weights_on_cuda_holds_no_memory_there():
    best, weight = BestEpoch("last", n_val=10), torch.ones(1000, device="cuda")
    before = torch.cuda.memory_allocated()
    best.offer(EpochRecord(0, 0.1, 1.0), lambda: copy_state({"w": weight}))
    assert torch.cuda.memory_allocated() == before
    assert best.best.weights["w"].equal(weight.cpu())


SETTINGS = TINY | {"train.epochs": "6", "train.average": "phase", "data.val": "50", "optim.lr": "0.3"}


def test_alternatives_are_what_runs_with_these_weights_and_rules_predict(tmp_path):
    run = train(override(Recipe(), SETTINGS | {"train.alternatives": "true"}), out=tmp_path / "run")
    assert list(run.alternatives) == ["raw-error", "raw-error+nll", "averaged-error", "averaged-error+nll"]
    assert len({found.epoch for found in run.alternatives.values()}) > 1
    for name, found in load_run(tmp_path / "run").alternatives.items():
        kind, _, rule = name.partition("-")
        own = train(override(Recipe(), SETTINGS | {"train.select": rule} | ({"train.average": "no"} if kind == "raw" else {})))
        assert found.epoch == own.best_epoch
        assert found.val.logits.equal(own.val.logits)
        assert load_predictions(tmp_path / "run" / "alternatives" / name / "test.npz").logits.equal(own.test.logits)


def test_alternatives_leave_the_run_alone_and_know_averaged_weights_only_where_there_are_any():
    plain = {"train.epochs": "3", "train.average": "no"}
    first, second = (train(override(Recipe(), TINY | plain | {"train.alternatives": kept})) for kept in ("false", "true"))
    assert first.test.logits.equal(second.test.logits)
    assert (list(first.alternatives), list(second.alternatives)) == ([], ["raw-error", "raw-error+nll"])
