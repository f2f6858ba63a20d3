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
    ("settings", "reduction", "clip_norm"),
    [
        ({"method__name": "ce"}, "sum", 2.0),
        ({"method__name": "ce", "method__preset": "paper"}, "sum", 2.0),
        ({"method__name": "flgamma-sece"}, "mean", 0.0),
        ({"method__name": "ce-dece+ts"}, "mean", 0.0),
        ({"method__name": "flgamma-sece", "method__preset": "paper"}, "sum", 2.0),
        ({"method__name": "flgamma-sece", "train__reduction": "sum"}, "sum", 2.0),
        ({"method__name": "ce", "train__reduction": "mean"}, "mean", 0.0),
        ({"method__name": "ce", "train__reduction": "mean", "train__clip_norm": "3"}, "mean", 3.0),
        ({"method__name": "flgamma-sece", "train__clip_norm": "1"}, "mean", 1.0),
        ({"method__name": "ce", "train__clip_norm": "0"}, "sum", 0.0),
    ],
)
def test_resolved_fills_in_what_the_method_asks_for_and_leaves_what_is_said(settings, reduction, clip_norm):
    found = resolved(recipe_of(**settings))
    assert (found.train.reduction, found.train.clip_norm) == (reduction, clip_norm)
    assert resolved(found) == found
    free = settings["method__name"] != "ce" and settings.get("method__preset") != "paper"
    assert (found.train.average, found.train.select) == (("ema", "error+nll") if free else ("no", "error"))
    assert facts_of(recipe_of(**settings), num_train=7)[:2] == (7, reduction)


def test_resolved_leaves_averaging_and_selection_that_are_said():
    found = resolved(recipe_of(train__average="no", train__select="last"))
    assert (found.train.average, found.train.select) == ("no", "last")


@pytest.mark.parametrize(("epochs", "decay"), [("1", 0.0), ("50", 1 - 1 / 16), ("4000", 0.999)])
def test_average_remembers_a_fiftieth_of_all_steps_but_not_more_than_a_thousand(epochs, decay):
    # 1,600 examples of 2,000 train, 16 steps an epoch.
    average = assemble(recipe_of(train__epochs=epochs)).parts.step.average
    assert average._decay == pytest.approx(decay)


@pytest.mark.parametrize(("method", "reduction", "clip_norm"), [("ce", "sum", 2.0), ("flgamma-sece", "mean", None)])
def test_assemble_takes_the_step_that_the_method_asks_for(method, reduction, clip_norm):
    step = assemble(recipe_of(method__name=method)).parts.step
    assert step.clip_norm == clip_norm
    objective = step.objective
    assert (objective.reduction if isinstance(objective, MetaObjective) else objective.module.reduction) == reduction


@pytest.mark.parametrize(("preset", "mode"), [("default", "frozen"), ("paper", "update")])
def test_meta_batches_pass_the_network_as_the_preset_says(preset, mode):
    assert assemble(recipe_of(method__preset=preset)).parts.objective.meta_bn == mode
    given = assemble(recipe_of(method__preset=preset, method__options__meta_bn="batch")).parts.objective
    assert given.meta_bn == "batch"


def test_train_writes_the_resolved_recipe_and_resumes_under_either_form(tmp_path):
    run = train(recipe_of(), out=tmp_path / "run")
    assert (run.recipe.train.reduction, run.recipe.train.clip_norm) == ("mean", 0.0)
    again = train(recipe_of(train__reduction="mean"), out=tmp_path / "run", resume=True)
    assert again.recipe == run.recipe
    with pytest.raises(ValueError, match=r"`train.clip_norm` is 0.0 there and 2.0 here"):
        train(recipe_of(train__reduction="sum"), out=tmp_path / "run", resume=True)


def test_command_says_a_reduction_only_where_the_method_would_not():
    assert "train.reduction" not in command_of(resolved(recipe_of()))
    assert "train.reduction" not in command_of(resolved(recipe_of(method__name="ce")))
    said = command_of(resolved(recipe_of(train__reduction="sum")))
    assert "--set train.reduction=sum --set train.clip_norm=2.0" in said
