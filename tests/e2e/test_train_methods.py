from importlib.metadata import EntryPoint

import pytest
import torch

from calibrant.engine.methods import METHODS, Facts, LossPlan, MetaPlan, Method, make_plan, split_name
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.train import train
from calibrant.losses import FocalLoss

TINY = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "train.batch_size": "50",
    "train.epochs": "1",
    "train.device": "cpu",
    "data.meta": "300",
}


def tiny(**settings):
    return override(Recipe(), TINY | {key.replace("__", "."): value for key, value in settings.items()})


@pytest.mark.parametrize("preset", ["default", "paper"])
@pytest.mark.parametrize("method", METHODS)
def test_method_one_epoch_learns_something_and_reports_it(method, preset):
    run = train(tiny(method__name=method, method__preset=preset, method__options={}))
    record = run.history[0]
    # Four classes: guessing errs on three quarters; one epoch of any method does better.
    assert record.test_error < 0.6
    assert record.val_error is not None
    assert 0 <= record.test_ece <= 1
    assert run.test.split.value == "test"
    assert len(run.test) == 4000
    facts = Facts(num_train=1000, reduction="sum", preset=preset)
    has_gamma = isinstance(make_plan(method, {}, facts), MetaPlan) and "flgamma" in method
    assert (record.gamma_mean is not None) == has_gamma


def test_method_unknown_name_or_option_suggests_the_nearest():
    facts = Facts(num_train=10, reduction="sum")
    with pytest.raises(ValueError, match="unknown method 'flgama-sece'. Did you mean 'flgamma-sece'"):
        make_plan("flgama-sece", {}, facts)
    with pytest.raises(ValueError, match="unknown option of flgamma-sece 'evry'. Did you mean 'every'"):
        make_plan("flgamma-sece", {"evry": 3}, facts)
    with pytest.raises(ValueError, match="method 'ce' has no options, got `gamma`"):
        make_plan("ce", {"gamma": 3}, facts)
    with pytest.raises(ValueError, match="unknown variant of flgamma"):
        make_plan("flgamma", {"variant": "other"}, facts)


def test_split_name_takes_temperature_scaling_off():
    assert split_name("focal+ts") == ("focal", True)
    assert split_name("focal+sb-ece") == ("focal+sb-ece", False)


def test_method_options_reach_the_plan():
    facts = Facts(num_train=10, reduction="mean")
    assert make_plan("focal", {"gamma": 2.5}, facts).loss.gamma == 2.5
    plan = make_plan("flgamma-sece", {"every": 2, "meta_batch_size": 64, "meta_lr": 1e-4}, facts)
    assert (plan.settings.every, plan.meta_batch_size, plan.settings.meta_lr) == (2, 64, 1e-4)
    paper = make_plan("flgamma-sece", {}, facts._replace(preset="paper"))
    assert (paper.settings.every, paper.meta_batch_size, paper.settings.leak_meta_grad) == (1, 128, True)


class StopError(Exception):
    pass


@pytest.mark.parametrize("method", ["flgamma-sece", "crl", "adafocal", "mixup", "patra"])
def test_train_interrupted_and_resumed_ends_with_the_same_weights(tmp_path, method):
    recipe = tiny(method__name=method, train__epochs="4", train__checkpoint_every_seconds="0")
    whole = train(recipe)

    def stop(record):
        if record.epoch == 1:
            raise StopError

    with pytest.raises(StopError):
        train(recipe, out=tmp_path / "run", report=stop)
    resumed = train(recipe, out=tmp_path / "run", resume=True)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name])
    assert whole.test.logits.equal(resumed.test.logits)
    assert [r.test_nll for r in whole.history] == [r.test_nll for r in resumed.history]


def test_train_same_seed_same_numbers_other_seed_others():
    first, second, third = (train(tiny(method__name="flgamma-sece", seed=s)) for s in ("1", "1", "2"))
    assert first.test.logits.equal(second.test.logits)
    assert not first.test.logits.equal(third.test.logits)


def test_train_float64_and_mean_reduction_run():
    run = train(tiny(method__name="ce", train__precision="float64", train__reduction="mean", train__clip_norm="0"))
    assert run.test.logits.dtype == torch.float64
    assert run.history[0].train_loss < 1.5


def plan_of_mine(facts, *, gamma: float = 3.0):
    return LossPlan(FocalLoss(gamma=gamma, reduction=facts.reduction))


MINE = Method("Mine", "focal loss of another package", "focal", plan_of_mine, average="ema", select="nll")


def test_method_of_another_package_trains_as_a_built_in_one(monkeypatch):
    point = EntryPoint(name="mine", value="test_train_methods:MINE", group="calibrant.methods")
    monkeypatch.setattr(METHODS, "_offered", {"mine": point})
    assert list(METHODS)[-1] == "mine"
    run = train(tiny(method__name="mine", method__options__gamma="1"))
    assert (run.recipe.train.average, run.recipe.train.select) == ("ema", "nll")
    same = train(tiny(method__name="focal", train__average="ema", train__select="nll"))
    assert run.test.logits.equal(same.test.logits)
    with pytest.raises(ValueError, match="option of mine.* 'gama'. Did you mean 'gamma'"):
        train(tiny(method__name="mine+ts", method__options__gama="1"))
