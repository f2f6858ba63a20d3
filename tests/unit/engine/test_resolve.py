import pytest

from calibrant.engine.assemble import assemble
from calibrant.engine.meta_objective import MetaObjective
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.resolve import check_idle, facts_of, idle_keys, resolved
from calibrant.engine.run import check_same_run, run_recipe
from calibrant.engine.selection import BestEpoch
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


@pytest.mark.parametrize(
    ("method", "average", "idle"),
    [
        ("ce", "auto", ("train.average_decay", "train.average_share", "train.average_from_epoch")),
        ("ce", "ema", ("train.average_share",)),
        ("ce", "uniform", ("train.average_decay", "train.average_share")),
        ("ce", "phase", ("train.average_decay",)),
        ("ce+ts", "phase", ("train.average_decay",)),
        # They look through the average of "ema", whose decay it is.
        ("flgamma-sece", "auto", ()),
    ],
)
def test_idle_keys_are_those_that_the_way_of_averaging_does_not_read(method, average, idle):
    recipe = recipe_of(method__name=method, train__average=average, train__select="error+ece")
    assert idle_keys(recipe) == idle
    assert idle_keys(override(recipe, {"train.select": "nll"})) == (*idle, "train.select_within")


def test_selection_within_other_errors_is_another_run_where_it_is_read():
    first, second = (recipe_of(train__select_within=value) for value in ("1", "2"))
    with pytest.raises(ValueError, match=r"`train.select_within` is 1.0 there and 2.0 here"):
        check_same_run(first, second, where="there")
    check_same_run(*(override(recipe, {"train.select": "error"}) for recipe in (first, second)), where="there")
    assert "--set train.select_within=1.0" in command_of(first)
    for wrong in ("-1", "nan"):
        with pytest.raises(ValueError, match="`train.select_within` must be a finite number >= 0"):
            assemble(recipe_of(train__select_within=wrong))


def test_train_selects_within_the_errors_that_the_recipe_says(monkeypatch):
    built = []
    init = BestEpoch.__init__
    monkeypatch.setattr(BestEpoch, "__init__", lambda self, *a, **k: (built.append(k), init(self, *a, **k))[1])
    run_recipe(recipe_of(train__select_within="0.5"))
    assert built == [{"n_val": 200, "within": 0.5}]


@pytest.mark.parametrize(
    ("settings", "key", "message"),
    [
        ({}, "train.average_share", r"`train.average_share` must come with train.average=phase, got train.average=no, under"),
        ({}, "train.average_from_epoch", r"with train.average=uniform or ema or phase, got train.average=no.*=uniform`"),
        ({"train__average": "phase"}, "train.average_decay", r"got train.average=phase, .* says nothing for ce. Add .*=ema`"),
        ({}, "train.select_within", r"with train.select=error\+nll or error\+ece, got train.select=error.*=error\+nll`"),
    ],
)
def test_check_idle_of_a_key_that_says_nothing_names_what_to_add(settings, key, message):
    with pytest.raises(ValueError, match=message):
        check_idle([recipe_of(method__name="ce", **settings)], ["optim.lr", key])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optim.schedule": "cosine", "optim.milestones_epochs": "1,2"},
            "must come with optim.schedule=multistep, got .*=cosine,",
        ),
        (
            {"optim.schedule": "constant", "optim.decay": "0.5"},
            "`optim.decay` must come with .* under which it says nothing. Add",
        ),
        (
            {"optim.name": "adamw", "optim.momentum": "0.5"},
            "`optim.momentum` must come with optim.name=sgd, got optim.name=adamw,",
        ),
        ({"optim.name": "adamw", "optim.nesterov": "true"}, "`optim.nesterov` must come with optim.name=sgd"),
        (
            {"optim.warmup_epochs": "3", "train.epochs": "2"},
            "must be at most train.epochs=2, got 3, with which the learning rate",
        ),
        (
            {"optim.milestones_epochs": "50,60", "train.epochs": "10"},
            "must hold an epoch below train.epochs=10, got 50, at which",
        ),
        ({"optim.milestones_epochs": "10", "train.epochs": "10"}, "must hold an epoch below train.epochs=10, got 10, at which"),
    ],
)
def test_check_idle_refuses_optimizer_settings_that_nothing_reads(settings, message):
    with pytest.raises(ValueError, match=message):
        check_idle([override(recipe_of(), settings)], settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"optim.schedule": "cosine", "optim.milestones_epochs": "none"},
        {"optim.schedule": "cosine", "optim.milestones_epochs": ""},
        {"optim.milestones_epochs": "", "train.epochs": "2"},
        {"optim.name": "adamw", "optim.nesterov": "false", "optim.weight_decay": "0.1"},
        {"optim.milestones_epochs": "1,50", "optim.decay": "0.5", "optim.warmup_epochs": "2", "train.epochs": "2"},
        {"optim.momentum": "0.5", "optim.nesterov": "true"},
    ],
)
def test_check_idle_takes_optimizer_settings_that_are_read_or_off(settings):
    assert check_idle([override(recipe_of(), settings)], settings) is None
    # Defaults that nothing reads are nobody's mistake.
    usual = {"optim.schedule": "cosine", "optim.name": "adamw"}
    assert check_idle([override(recipe_of(), usual)], usual) is None


def test_check_idle_takes_a_key_that_says_something_about_one_of_the_runs():
    change = {"optim.milestones_epochs": "5", "optim.warmup_epochs": "4"}
    check_idle([override(recipe_of(), change | {"train.epochs": epochs}) for epochs in ("2", "10")], change)
    check_idle([recipe_of(method__name="ce"), recipe_of()], ["train.average_share", "train.average_decay"])
    check_idle([recipe_of(method__name="ce")], ["optim.lr", "train.average", "train.select"])
    with pytest.raises(ValueError, match="got train.average=no, under which it says nothing. Add"):
        check_idle([recipe_of(method__name="ce"), recipe_of(method__name="focal")], ["train.average_share"])
