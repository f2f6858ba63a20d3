"""Recipes: reading, checking and writing them, and what they leave to their method."""

import re
import tomllib

import pytest

from calibrant.engine.methods import resolved
from calibrant.engine.recipe import OptimPart, Recipe, check_recipe, load_recipe, override, recipe_of, to_toml
from calibrant.engine.setup import drops, learning_rate
from calibrant.engine.train import Assembly, train

TINY = {"data.name": "mixture", "backbone.name": "mlp", "train.batch_size": "100", "train.epochs": "1", "train.device": "cpu"}


def tiny(**settings):
    return override(Recipe(), TINY | {key.replace("__", "."): value for key, value in settings.items()})


def test_recipe_defaults_are_the_papers_protocol():
    recipe = Recipe()
    assert (recipe.train.epochs, recipe.train.batch_size) == (350, 128)
    assert (recipe.optim.lr, recipe.optim.momentum, recipe.optim.weight_decay) == (0.1, 0.9, 5e-4)
    rates = [learning_rate(recipe.optim, epoch, epochs=350) for epoch in (0, 149, 150, 249, 250, 349)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert [epoch for epoch in range(350) if drops(recipe.optim, epoch, epochs=350)] == [150, 250]
    rising = OptimPart(schedule="constant", warmup_epochs=4)
    assert [learning_rate(rising, epoch, epochs=10) for epoch in (0, 1, 3, 8)] == [0.025, 0.05, 0.1, 0.1]


def test_recipe_toml_round_trip_keeps_everything(tmp_path):
    settings = {"seed": "7", "data.root": 'a "b" \\c', "optim.milestones_epochs": "3,6", "data.augment": "false"}
    recipe = override(Recipe(), settings | {"method.options.every": "8", "method.options.betas": "0.5, 0.9"})
    assert recipe.data.augment is False
    assert recipe.method.options == {"every": 8, "betas": (0.5, 0.9)}
    file = tmp_path / "recipe.toml"
    file.write_text(to_toml(recipe))
    assert load_recipe(file) == recipe


def test_recipe_toml_round_trip_keeps_text_of_any_characters():
    text = "".join(map(chr, range(0xA0))) + '\\n "Bäume" \U0001f333'
    recipe = recipe_of({"data": {"name": text}, "backbone": {"freeze": [text, "\n"]}, "method": {"options": {"variant": text}}})
    assert recipe_of(tomllib.loads(to_toml(recipe))) == recipe


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train": {"epoch": 1}}, "unknown key of train 'epoch'. Did you mean 'epochs'"),
        ({"sed": 1}, "unknown key of recipe 'sed'. Did you mean 'seed'"),
        ({"train": {"epochs": "many"}}, "`train.epochs` must be a whole number, got 'many'"),
        ({"optim": {"name": "sdg"}}, "`optim.name` must be one of 'sgd', 'adamw', got 'sdg'"),
        ({"data": {"augment": "maybe"}}, "`data.augment` must be true or false, got 'maybe'"),
        ({"data": {"same_data": True}}, "`data.same_data` must be left out, got True: it was removed"),
        ({"train": {"average_from_epoch": 3}}, "`train.average_from_epoch` must be left out, got 3: it was removed"),
        ({"train": 3}, "`train` must be a table of keys, got 3"),
    ],
)
def test_recipe_bad_value_is_one_sentence(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        recipe_of(values)


@pytest.mark.parametrize(
    ("key", "wrong", "right"),
    [
        # No float holds the largest seed.
        ("seed", 2**63, 2**63 - 1),
        ("train.epochs", 0, 1),
        ("data.meta", -1, 0),
        ("optim.lr", "nan", 1e-9),
        ("train.average_decay", 1, 0),
    ],
)
def test_check_recipe_names_the_number_that_cannot_be(key, wrong, right):
    check_recipe(override(Recipe(), {key: right}))
    with pytest.raises(ValueError, match=f"`{key}` must be"):
        check_recipe(override(Recipe(), {key: wrong}))


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "got none there"), ("seed = = 1", "must be valid TOML"), ("seed = 1\nseed = 2", "Cannot overwrite")],
)
def test_load_recipe_missing_or_broken_file_is_one_sentence(tmp_path, text, message):
    if text is not None:
        (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_recipe(tmp_path / "a.toml")


@pytest.mark.parametrize(("epochs", "drops"), [(1, []), (2, [1]), (3, [1, 2]), (4, [2, 3]), (7, [3, 5])])
def test_learning_rate_of_the_first_epoch_is_the_one_asked_for_and_drops_come_one_by_one(epochs, drops):
    rates = [learning_rate(OptimPart(), epoch, epochs=epochs) for epoch in range(epochs)]
    assert rates == pytest.approx([0.1 ** (1 + sum(epoch >= drop for drop in drops)) for epoch in range(epochs)])


@pytest.mark.parametrize("given", [[], ""], ids=["list", "text"])
def test_learning_rate_with_an_empty_list_of_milestones_never_drops(given):
    recipe = override(Recipe(), {"optim.milestones_epochs": given})
    assert recipe.optim.milestones_epochs == ()
    assert {learning_rate(recipe.optim, epoch, epochs=7) for epoch in range(7)} == {0.1}
    assert not any(drops(recipe.optim, epoch, epochs=7) for epoch in range(7))
    assert recipe_of(tomllib.loads(to_toml(recipe))) == recipe


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
    found = resolved(tiny(**settings))
    assert (found.train.average, found.train.select) == (average, select)
    assert resolved(found) == found


@pytest.mark.parametrize(("epochs", "decay"), [("1", 0.0), ("50", 1 - 1 / 18), ("4000", 0.999)])
def test_exponential_average_remembers_a_fiftieth_of_all_steps_but_not_more_than_a_thousand(epochs, decay):
    # 1,800 examples of 2,000 train, 18 steps an epoch.
    averages = Assembly(tiny(train__epochs=epochs, train__average="ema")).averages
    assert averages["average"]._decay == pytest.approx(decay)
    # What methods that learn look through, whatever predicts.
    assert Assembly(tiny(train__epochs=epochs)).averages["watch"]._decay == pytest.approx(decay)


def test_train_writes_the_resolved_recipe_and_resumes_under_either_form(tmp_path):
    run = train(tiny(), out=tmp_path / "run")
    assert (run.recipe.train.average, run.recipe.train.select) == ("phase", "error+nll")
    again = train(tiny(train__average="phase"), out=tmp_path / "run", resume=True)
    assert again.recipe == run.recipe
    with pytest.raises(ValueError, match=r"`train.average` is 'phase' there and 'no' here"):
        train(tiny(train__average="no"), out=tmp_path / "run", resume=True)
