"""What the learner warns of: hyper-parameters that run away or stand still, and updates that were left out."""

import warnings

import pytest
import torch
from torch import nn

from calibrant.meta import MetaLearner, MetaWarning

X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
NAN = torch.full((8, 4), float("nan"))


def learner(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    # An objective that says nothing of a NaN, as none does on a GPU.
    options = {"objective": lambda logits, labels: logits.square().mean(), "every": 1} | options
    return MetaLearner(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


def run(own, held_out):
    """Warnings of a step for each of these held-out batches."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x in held_out:
            own.step(X, Y, x, Y)
    return [str(warning.message) for warning in caught if issubclass(warning.category, MetaWarning)]


@pytest.mark.parametrize("every", [0, 5])
def test_healthy_or_unwatched_run_is_silent(every):
    assert run(learner(monitor_every=every, objective="sece"), [X] * 10) == []


def test_runaway_gamma_warns_once_until_it_is_over():
    own = learner(monitor_every=5, meta_lr=1.0)
    assert run(own, [X] * 4) == []
    (said,) = run(own, [X])
    assert "gamma runs away" in said
    assert run(own, [X] * 5) == []
    for value in own.hyper.values():
        value.mul_(0.1)
    own.meta_lr = 1e-6
    assert not any("runs away" in said for said in run(own, [X] * 5))
    assert own._warned == frozenset()


def test_frozen_hyper_parameters_warn():
    (said,) = run(learner(monitor_every=2, eps=1e6), [X] * 2)
    assert "frozen" in said
    assert "last 2 meta updates" in said


@pytest.mark.parametrize("lookahead", ["head", "full"])
def test_first_held_out_batch_that_is_not_finite_raises(lookahead):
    with pytest.raises(ValueError, match="objective on the first held-out batch must be finite"):
        learner(lookahead=lookahead).step(X, Y, NAN, Y)
    info = learner(lookahead=lookahead, monitor_every=0).step(X, Y, NAN, Y)
    assert bool(info.meta_value.isnan())


def test_later_ones_are_counted_where_the_monitor_looks_also_after_a_resume():
    own = learner(monitor_every=4)
    (said,) = run(own, [X, NAN, X, X])
    assert "1 of the last 4 meta updates changed nothing" in said
    resumed = learner(monitor_every=4)
    resumed.load_state_dict(own.state_dict())
    assert run(resumed, [X] * 4) == []
    (said,) = run(resumed, [NAN] * 4)
    assert "4 of the last 4" in said


def test_a_scaler_is_forgiven_the_overflows_it_finds_its_scale_by():
    own = learner(monitor_every=2, scaler=torch.amp.GradScaler("cpu"))
    assert run(own, [X, NAN]) == []
    (said,) = run(own, [NAN, NAN])
    assert "2 of the last 2 meta updates changed nothing" in said
