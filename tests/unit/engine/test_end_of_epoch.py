import pytest
import torch

from calibrant.engine.recipe import Recipe, override
from calibrant.engine.train import run_recipe

TINY = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "train.batch_size": "225",
    "train.epochs": "7",
    "train.select": "last",
    "train.device": "cpu",
}
PATRA = {"method.name": "patra", "method.options.every": "2"}
BN = {"backbone.name": f"{__name__}:small_net", "data.val": "100", "data.meta": "0", "train.epochs": "4"}


def small_net(num_classes):
    """A network with BatchNorm, so that averaged weights need statistics of their own."""
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, num_classes)
    )


def run_of(settings, *, every, **options):
    """The run, and every tensor that its steps and epochs change."""
    kept = {}
    recipe = override(Recipe(), TINY | settings | {"train.eval_every_epochs": every})
    run = run_recipe(recipe, begin=lambda assembly, history: kept.update(parts=assembly.parts), **options)
    return run, kept["parts"].step.state()


def assert_same(first, second):
    assert set(first) == set(second)
    for name, value in first.items():
        assert torch.equal(value.nan_to_num(-1), second[name].nan_to_num(-1)), name


@pytest.mark.parametrize(
    "settings",
    [
        {"method.name": "adafocal"},
        {"method.name": "avuc"},
        PATRA,
        {"method.name": "adafocal", "train.average": "ema"},
        {"method.name": "avuc", "train.average": "uniform", "train.average_from_epoch": "1"},
        {"method.name": "adafocal", "train.average": "phase", "optim.milestones_epochs": "2"} | BN,
        PATRA | {"train.average": "phase"} | BN,
        {"method.name": "flgamma-sece", "train.average": "phase"} | BN | {"data.meta": "200"},
    ],
    ids=lambda settings: "-".join(settings.get(key, "no") for key in ("method.name", "train.average")),
)
def test_train_is_the_same_however_often_it_is_evaluated(settings):
    (often, state), (seldom, other) = (run_of(settings, every=every) for every in (1, 3))
    assert [record.val_error is None for record in seldom.history].count(True) >= 2
    assert_same(state, other)
    assert often.test.logits.equal(seldom.test.logits)


@pytest.mark.parametrize("settings", [{"method.name": "adafocal"}, {"method.name": "avuc"}, PATRA])
def test_train_resumed_between_evaluations_ends_the_same(settings, tmp_path):
    def stop(record):
        if record.epoch == 3:
            raise RuntimeError("stop")

    settings, saved = settings | {"train.checkpoint_every_seconds": "0"}, tmp_path / "state.pt"
    with pytest.raises(RuntimeError, match="stop"):
        run_of(settings, every=3, checkpoint=saved, report=stop)
    assert_same(run_of(settings, every=1)[1], run_of(settings, every=3, checkpoint=saved, resume=True)[1])


def test_end_of_epoch_predicts_the_validation_part_only_where_something_learns_from_it(monkeypatch):
    from calibrant.engine.evaluate import EvalSet

    sizes, run = [], EvalSet.run
    monkeypatch.setattr(EvalSet, "run", lambda self, *a, **k: (sizes.append(len(self.labels)), run(self, *a, **k))[1])
    found = {}
    for method in ("adafocal", "avuc", "patra", "ce"):
        sizes.clear()
        run_of({"method.name": method, "train.average": "no"}, every=4)
        # At the end both parts are predicted once more.
        found[method] = (sizes.count(200) - 1, sizes.count(4000) - 1)
    # Epochs 4 and 7 are evaluated; AvUC sets its threshold in the first five.
    assert found == {"adafocal": (7, 2), "avuc": (6, 2), "patra": (2, 2), "ce": (2, 2)}
