import warnings

import pytest
import torch
from torch import nn

from calibrant.meta import GammaFocal, MetaLearner, MetaWarning
from calibrant.meta.monitor import Watch

GOOD = {"gamma_mean": torch.tensor(1.0), "gamma_at_bound": torch.tensor(0.0)}
FAR = {"gamma_mean": torch.tensor(12.0), "gamma_at_bound": torch.tensor(0.7)}


def watched(moves, values):
    watch = Watch()
    for move in moves:
        watch = watch.add(torch.tensor(move), values)
    return watch


def test_watch_healthy_run_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh = watched([0.5, 0.3], GOOD).look(GammaFocal())
    assert fresh == Watch()


def test_watch_runaway_gamma_warns_once_until_it_is_over():
    with pytest.warns(MetaWarning, match="gamma runs away: its mean is 12"):
        fresh = watched([0.5], FAR).look(GammaFocal())
    assert fresh.warned == {"runaway"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        still = fresh.add(torch.tensor(0.5), FAR).look(GammaFocal())
        over = still.add(torch.tensor(0.5), GOOD).look(GammaFocal())
    assert over.warned == frozenset()


def test_watch_frozen_hyper_parameters_warn():
    with pytest.warns(MetaWarning, match=r"are frozen: Adam moved them by 0.002 .* in each of the last 2 meta updates"):
        watched([0.001, 0.003], GOOD).look(GammaFocal())


def test_watch_not_a_number_warns_as_frozen():
    with pytest.warns(MetaWarning, match="are frozen"):
        watched([float("nan")], GOOD).look(GammaFocal())


def test_watch_nothing_seen_stays():
    assert Watch().look(GammaFocal()) == Watch()


def test_watch_missed_updates_point_at_the_held_out_data_and_not_at_adam():
    said = r"^MetaLearner: 2 of the last 2 meta updates changed nothing, .* Look for NaN or inf in the held-out data\.$"
    with pytest.warns(MetaWarning, match=said) as caught:
        watched([0.0, 0.0], GOOD).look(GammaFocal(), missed=2)
    assert len(caught) == 1


def test_watch_pace_is_that_of_the_updates_that_were_not_missed():
    with pytest.warns(MetaWarning, match="3 of the last 4 meta updates changed nothing") as caught:
        watched([0.03, 0.0, 0.0, 0.0], GOOD).look(GammaFocal(), missed=3)
    assert len(caught) == 1


X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
BAD = torch.cat([torch.full((1, 4), float("nan")), X])
Y_BAD = torch.cat([Y[:1], Y])


def learner(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return MetaLearner(model, torch.optim.SGD(model.parameters(), lr=0.1), every=1, **options)


def test_learner_first_held_out_batch_with_a_nan_raises():
    with pytest.raises(ValueError, match="features of held out data must be finite, got NaN or inf for 1 of 9 examples"):
        learner().step(X, Y, BAD, Y_BAD)
    with pytest.raises(
        ValueError, match="objective on the first held-out batch must be finite, got nan. Look for NaN or inf in"
    ):
        learner(lookahead="full").step(X, Y, BAD, Y_BAD)


def test_learner_later_held_out_batches_with_a_nan_are_counted_where_the_monitor_looks():
    own = learner(monitor_every=4)
    own.step(X, Y, X, Y)
    own.step(X, Y, BAD, Y_BAD)
    own.step(X, Y, X, Y)
    with pytest.warns(MetaWarning, match="1 of the last 4 meta updates changed nothing"):
        own.step(X, Y, X, Y)
    resumed = learner(monitor_every=4)
    resumed.load_state_dict(own.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            resumed.step(X, Y, X, Y)


def test_learner_with_a_scaler_forgives_the_overflows_it_finds_its_scale_by():
    own = learner(monitor_every=2, scaler=torch.amp.GradScaler("cpu"))
    own.step(X, Y, X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.step(X, Y, BAD, Y_BAD)
    own.step(X, Y, BAD, Y_BAD)
    with pytest.warns(MetaWarning, match="2 of the last 2 meta updates changed nothing"):
        own.step(X, Y, BAD, Y_BAD)


def test_learner_that_never_looks_does_not_read_the_first_value_either():
    info = learner(monitor_every=0).step(X, Y, BAD, Y_BAD)
    assert info.meta_value is not None
    assert bool(info.meta_value.isnan())
