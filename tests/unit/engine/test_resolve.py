import pytest

from calibrant.engine.assemble import assemble
from calibrant.engine.meta_objective import MetaObjective
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.resolve import facts_of, resolved
from calibrant.engine.train import train
from calibrant.grid.collect import command_of

TINY = {"data.name": "mixture", "backbone.name": "mlp", "train.batch_size": "100", "train.epochs": "1", "train.device": "cpu"}


def recipe_of(**settings):
    return override(Recipe(), TINY | {key.replace("__", "."): value for key, value in settings.items()})


@pytest.mark.parametrize(
    ("settings", "average", "select"),
    [
        ({"method__name": "ce"}, "no", "error"),
        ({"method__name": "flgamma-sece"}, "phase", "error+nll"),
        ({"method__name": "ce-dece+ts"}, "phase", "error+nll"),
        ({"method__name": "flgamma-sece", "method__preset": "paper"}, "no", "error"),
        ({"method__name": "ce", "train__average": "ema"}, "ema", "error"),
        ({"method__name": "flgamma-sece", "train__select": "nll"}, "phase", "nll"),
    ],
)
def test_resolved_fills_in_what_the_method_asks_for_and_leaves_what_is_said(settings, average, select):
    found = resolved(recipe_of(**settings))
    assert (found.train.average, found.train.select) == (average, select)
    assert resolved(found) == found


def test_resolved_leaves_averaging_and_selection_that_are_said():
    found = resolved(recipe_of(train__average="no", train__select="last"))
    assert (found.train.average, found.train.select) == ("no", "last")


@pytest.mark.parametrize(("epochs", "decay"), [("1", 0.0), ("50", 1 - 1 / 16), ("4000", 0.999)])
def test_exponential_average_remembers_a_fiftieth_of_all_steps_but_not_more_than_a_thousand(epochs, decay):
    # 1,600 examples of 2,000 train, 16 steps an epoch.
    average = assemble(recipe_of(train__epochs=epochs, train__average="ema")).parts.step.average
    assert average._decay == pytest.approx(decay)
    # What methods that learn look through, whatever predicts.
    assert assemble(recipe_of(train__epochs=epochs)).parts.step.averages["watch"]._decay == pytest.approx(decay)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("method", ["ce", "flgamma-sece"])
def test_assemble_takes_the_step_that_the_recipe_asks_for(method, reduction):
    recipe = recipe_of(method__name=method, train__reduction=reduction, train__clip_norm="3")
    step = assemble(recipe).parts.step
    assert step.clip_norm == 3.0
    objective = step.objective
    assert (objective.reduction if isinstance(objective, MetaObjective) else objective.module.reduction) == reduction
    assert facts_of(recipe, num_train=7)[:2] == (7, reduction)


@pytest.mark.parametrize(("preset", "mode"), [("default", "frozen"), ("paper", "update")])
def test_meta_batches_pass_the_network_as_the_preset_says(preset, mode):
    assert assemble(recipe_of(method__preset=preset)).parts.objective.meta_bn == mode
    given = assemble(recipe_of(method__preset=preset, method__options__meta_bn="batch")).parts.objective
    assert given.meta_bn == "batch"


def test_train_writes_the_resolved_recipe_and_resumes_under_either_form(tmp_path):
    run = train(recipe_of(), out=tmp_path / "run")
    assert (run.recipe.train.average, run.recipe.train.select) == ("phase", "error+nll")
    again = train(recipe_of(train__average="phase"), out=tmp_path / "run", resume=True)
    assert again.recipe == run.recipe
    with pytest.raises(ValueError, match=r"`train.average` is 'phase' there and 'no' here"):
        train(recipe_of(train__average="no"), out=tmp_path / "run", resume=True)


def test_command_says_averaging_only_where_the_method_would_not():
    assert "train.average" not in command_of(resolved(recipe_of()))
    assert "train.average" not in command_of(resolved(recipe_of(method__name="ce")))
    assert "--set train.average=no" in command_of(resolved(recipe_of(train__average="no")))
