import warnings

import pytest
import torch

from calibrant.meta import GammaFocal, MetaWarning
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
