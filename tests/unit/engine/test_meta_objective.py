import pytest
import torch

import calibrant.engine.meta_objective as module
from calibrant.engine.assemble import assemble
from calibrant.engine.loop import run_epoch
from calibrant.engine.methods import Facts, make_plan
from calibrant.engine.optim import set_learning_rate
from calibrant.engine.recipe import Recipe, override

TINY = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "method.name": "flgamma-sece",
    "train.batch_size": "100",
    "train.epochs": "7",
    "train.device": "cpu",
}


def parts_of(**settings):
    recipe = override(Recipe(), TINY | {f"method.options.{key}": value for key, value in settings.items()})
    return assemble(recipe).parts, recipe


@pytest.mark.parametrize(("chosen", "expected"), [("current", [0.1, 0.01, 0.001]), ("0.3", [0.3, 0.3, 0.3])])
def test_meta_objective_look_ahead_follows_the_schedule_where_asked_to(chosen, expected, monkeypatch):
    parts, recipe = parts_of(lookahead_lr=chosen, every="16")
    sizes, original = [], module.head_hypergradient

    def record(*arguments, step, **rest):
        sizes.append(float(step.lr))
        return original(*arguments, step=step, **rest)

    monkeypatch.setattr(module, "head_hypergradient", record)
    # The learning rate drops at 3/7 and 5/7 of the epochs; one meta update an epoch.
    for epoch in (0, 3, 5):
        run_epoch(parts, recipe, epoch, started=0.0)
    assert sizes == pytest.approx(expected)


def test_meta_objective_clip_bounds_the_hypergradient():
    free, _ = parts_of()
    bound, _ = parts_of(meta_clip="1e-9")
    norms = []
    for parts in (free, bound):
        set_learning_rate(parts.step.optimizer, 0.1)
        parts.meta()
        grads = [value.grad for value in parts.objective.hyper.values()]
        norms.append(float(torch.stack([grad.norm() for grad in grads]).norm()))
    # The denominator of the factor has 1e-6 added to the norm, as in torch's own clipping.
    assert norms[0] > 1e-7
    assert norms[1] == pytest.approx(1e-9 * norms[0] / (norms[0] + 1e-6), rel=1e-3)


@pytest.mark.parametrize("option", ["reduction", "clip", "lookahead"])
def test_method_options_that_a_run_would_not_heed_are_refused(option):
    with pytest.raises(ValueError, match=f"unknown option of flgamma-sece '{option}'"):
        make_plan("flgamma-sece", {option: "full"}, Facts(num_train=10, reduction="sum"))
