"""What a meta update refuses, an autocast type that is none, an objective without a value, a frozen head; and its clipping."""

import pytest
import torch
from torch import nn

from calibrant.meta import MetaLearner
from calibrant.meta.update import next_hyper
from calibrant.meta.virtual import total_norm


def learner(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return MetaLearner(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


def step(learner):
    learner.step(torch.randn(6, 4), torch.arange(6) % 3, torch.randn(9, 4), torch.arange(9) % 3)


def test_amp_that_is_no_dtype_is_refused_when_it_is_given():
    with pytest.raises(ValueError, match=r"`amp` must be a dtype or None, got 'bf16'\. Pass `torch.bfloat16`"):
        learner(amp="bf16")


@pytest.mark.parametrize("lookahead", ["head", "full"])
@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (lambda logits, labels: logits.sum(1), r"`objective` must return a scalar tensor \[\], got \[9\]\. Take the mean"),
        (lambda logits, labels: float(logits.detach().sum()), r"`objective` must return a scalar tensor \[\], got float\."),
        (lambda logits, labels: logits.detach().sum(), "`objective` must return a value with a gradient, got one without"),
    ],
    ids=["rows", "number", "detached"],
)
def test_step_with_an_objective_of_the_wrong_kind_says_what_it_must_return(lookahead, objective, message):
    with pytest.raises(ValueError, match=message):
        step(learner(lookahead=lookahead, objective=objective))


def test_full_lookahead_of_a_frozen_head_is_refused_and_that_of_the_head_is_not():
    def frozen(lookahead):
        made = learner(lookahead=lookahead)
        made.plan.network.head.weight.requires_grad_(False)
        return made

    with pytest.raises(
        ValueError, match=r"the look-ahead is full, but `2\.weight` takes no gradient\. Unfreeze it, or use look"
    ):
        step(frozen("full"))
    step(frozen("head"))


@pytest.mark.parametrize(("clip", "expected"), [(None, 5.0), (0.5, 0.5), (50.0, 5.0)])
def test_next_hyper_clips_the_hypergradient_over_all_hyper_parameters(clip, expected):
    # Without memory Adam's first mean is the gradient that it was given.
    made = learner(meta_clip=clip, betas=(0.0, 0.0))
    grads = {name: torch.full_like(value, 1 / value.numel() ** 0.5) for name, value in made.hyper.items()}
    grads = {name: length * grad for length, (name, grad) in zip((3.0, 4.0), grads.items(), strict=True)}
    _, state, _ = next_hyper(made.plan, made.hyper, grads, made.adam, lr=1e-3)
    assert float(total_norm(state.first)) == pytest.approx(expected, rel=1e-4)
