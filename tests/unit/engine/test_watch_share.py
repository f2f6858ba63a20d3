"""Hypergradients seen through the average that predicts as well as through the short one."""

import pytest
import torch

from calibrant.engine.assemble import assemble
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.run import run_recipe

SHARED = {
    "data.name": "mixture",
    "method.name": "flgamma-sece",
    "method.options.every": "2",
    "train.batch_size": "200",
    "train.epochs": "4",
    "train.device": "cpu",
    "train.select": "last",
    "train.average": "phase",
    "backbone.name": "convnet",
    "optim.milestones_epochs": "2",
    "data.val": "100",
    "data.meta": "1500",
}


def recipe_of(share, **settings):
    return override(Recipe(), SHARED | {"method.options.watch_share": str(share)} | settings)


def test_without_a_share_nothing_changes():
    plain, none = run_recipe(override(Recipe(), SHARED)), run_recipe(recipe_of(0))
    assert plain.test.logits.equal(none.test.logits)
    assert assemble(recipe_of(0)).parts.objective.beside is None


def test_the_network_beside_has_the_weights_that_predict():
    parts = assemble(recipe_of(0.5)).parts
    parts.objective.begin_epoch(0)
    for epoch, anew in ((0, False), (2, True)):
        for average in parts.step.averages.values():
            average.begin_epoch(epoch, anew=anew and average.by_phase)
        for _ in range(6):
            parts.meta()
        view, share = parts.objective.beside
        predicting, beside = parts.step.averages["average"].means, view.model.state_dict()
        learned = [name for name in predicting if "running" in name]
        assert share == 0.5
        assert learned
        for name, value in predicting.items():
            # Statistics are learned from what passes through it, as those of the short average.
            assert beside[name].equal(value) == (name not in learned), name
        assert not view.head.weight.equal(parts.objective.head.weight)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_hypergradient_is_the_mean_of_both_by_share(share, monkeypatch):
    parts = assemble(recipe_of(share)).parts
    objective = parts.objective
    objective.begin_epoch(0)
    for average in parts.step.averages.values():
        average.begin_epoch(0)
    for _ in range(4):
        parts.meta()
    looks, original = [], objective._look

    def look(view, *given):
        looks.append((view, original(view, *given)))
        return looks[-1][1]

    monkeypatch.setattr(objective, "_look", look)
    parts.meta()
    (first, short), (second, long) = looks
    assert (first, second) == (objective.watched, objective.beside[0])
    assert any(not short.grads[name].equal(long.grads[name]) for name in short.grads)
    for name, value in objective.hyper.items():
        torch.testing.assert_close(value.grad, (1 - share) * short.grads[name] + share * long.grads[name])
    torch.testing.assert_close(objective.value, (1 - share) * short.value + share * long.value)


def test_a_run_with_a_share_that_is_interrupted_goes_on_alike(tmp_path):
    whole, file = run_recipe(recipe_of(0.5)), tmp_path / "checkpoint.pt"

    def report(record):
        if record.epoch == 1:
            raise KeyboardInterrupt

    settings = {"train.checkpoint_every_seconds": "0"}
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe_of(0.5, **settings), checkpoint=file, report=report)
    resumed = run_recipe(recipe_of(0.5, **settings), checkpoint=file, resume=True)
    assert resumed.test.logits.equal(whole.test.logits)


@pytest.mark.parametrize("average", ["no", "ema", "uniform"])
def test_a_share_of_what_does_not_predict_is_refused(average):
    with pytest.raises(ValueError, match=rf"`method.options.watch_share` must be 0 unless .* got 0.5 and {average}"):
        assemble(recipe_of(0.5, **{"train.average": average}))


@pytest.mark.parametrize(
    "settings",
    [{"method.name": "flgamma", "method.options.variant": "frozen"}, {"method.options.leak_meta_grad": "true"}],
)
def test_a_share_that_nothing_would_read_is_refused(settings):
    with pytest.raises(ValueError, match=r"`method.options.watch_share` must be 0 where nothing is learned"):
        assemble(recipe_of(0.5, **settings))


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(ValueError, match=r"`method.options.watch_share` must be in \[0, 1\]"):
        assemble(recipe_of(share))


def test_a_share_is_told_of_a_run():
    assert assemble(recipe_of(0.5)).parts.objective.learning["watch_share"] == 0.5
    assert "watch_share" not in assemble(recipe_of(0)).parts.objective.learning
