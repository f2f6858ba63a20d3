import re
import tomllib

import pytest

from calibrant.engine.limits import check_recipe
from calibrant.engine.loop import drops, learning_rate
from calibrant.engine.recipe import OptimPart, Recipe, load_recipe, override, recipe_of, to_toml


def test_recipe_defaults_are_the_papers_protocol():
    recipe = Recipe()
    assert (recipe.train.epochs, recipe.train.batch_size) == (350, 128)
    assert (recipe.optim.lr, recipe.optim.momentum, recipe.optim.weight_decay) == (0.1, 0.9, 5e-4)
    rates = [learning_rate(recipe.optim, epoch, epochs=350) for epoch in (0, 149, 150, 249, 250, 349)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_recipe_toml_round_trip_keeps_everything(tmp_path):
    recipe = override(
        Recipe(),
        {
            "seed": "7",
            "data.root": 'a "b" \\c',
            "optim.milestones_epochs": "3,6",
            "method.options.every": "8",
            "method.options.betas": "0.5, 0.9",
            "data.same_data": "true",
        },
    )
    assert recipe.data.same_data is True
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
        ({"train": {"epochs": 1.5}}, "`train.epochs` must be a whole number, got 1.5"),
        ({"train": {"epochs": float("inf")}}, "`train.epochs` must be a whole number, got inf"),
        ({"train": {"epochs": True}}, "`train.epochs` must be a whole number, got True"),
        ({"optim": {"name": "sdg"}}, "`optim.name` must be one of 'sgd', 'adamw', got 'sdg'. Did you mean 'sgd'?"),
        ({"train": {"select": "error+nl"}}, "got 'error+nl'. Did you mean 'error+nll'?"),
        ({"data": {"same_data": "maybe"}}, "`data.same_data` must be true or false, got 'maybe'"),
        ({"train": 3}, "`train` must be a table of keys, got 3"),
        ({"backbone": {"name": 5}}, "`backbone.name` must be text, got 5"),
        ({"optim": {"milestones_epochs": 0}}, "`optim.milestones_epochs` must be a list, got 0"),
    ],
)
def test_recipe_bad_value_is_one_sentence(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        recipe_of(values)


def test_recipe_takes_a_seed_that_no_float_holds():
    assert recipe_of({"seed": 2**63 - 1}).seed == 2**63 - 1
    check_recipe(recipe_of({"seed": 2**63 - 1}))
    with pytest.raises(
        ValueError, match=re.escape("`seed` must be a whole number from 0 to 2**63 - 1, got 9223372036854775808")
    ):
        check_recipe(recipe_of({"seed": 2**63}))


@pytest.mark.parametrize("word", ["none", "None", "0"])
def test_recipe_clipping_is_switched_off_by_zero_or_none(word):
    assert override(Recipe(), {"train.clip_norm": word}).train.clip_norm == 0.0
    assert recipe_of({"train": {"clip_norm": word}}).train.clip_norm == 0.0
    with pytest.raises(ValueError, match="`train.clip_norm` must be a number, got 'never'"):
        override(Recipe(), {"train.clip_norm": "never"})


def test_override_unknown_part_suggests_the_nearest():
    with pytest.raises(ValueError, match="unknown recipe key 'optm'. Did you mean 'optim'"):
        override(Recipe(), {"optm.lr": "1"})


def test_load_recipe_missing_or_broken_file_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="must be a TOML file, got none there"):
        load_recipe(tmp_path / "no.toml")
    (tmp_path / "bad.toml").write_text("seed = = 1")
    with pytest.raises(ValueError, match="must be valid TOML, got"):
        load_recipe(tmp_path / "bad.toml")


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


def test_learning_rate_other_schedules_and_lengths():
    assert learning_rate(OptimPart(schedule="cosine"), 35, epochs=70) == pytest.approx(0.05)
    assert learning_rate(OptimPart(schedule="constant", warmup_epochs=4), 1, epochs=70) == pytest.approx(0.05)
    assert [learning_rate(OptimPart(), e, epochs=70) for e in (29, 30, 50)] == pytest.approx([0.1, 0.01, 0.001])
