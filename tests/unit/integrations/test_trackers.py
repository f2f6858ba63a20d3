"""What arrives at trackers: a store of MLflow on this disk, a run of Weights & Biases without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib.image import imread

from calibrant import Predictions, measure, train
from calibrant.integrations.trackers import MLflowTracker, WandbTracker, draw_scores
from helpers import mixed_gaps

# MLflow's own, as it loads SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
RECIPE = {key: {"name": name} for key, name in {"data": "mixture", "backbone": "mlp", "method": "ce"}.items()}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """MLflow with a store of its own, which takes seconds to make."""
    import mlflow

    folder = tmp_path_factory.mktemp("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'store.db'}")
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("tests", artifact_location=(folder / "artifacts").as_uri()))
    yield mlflow
    mlflow.set_tracking_uri(None)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A run of Weights & Biases that stays in ``tmp_path``."""
    for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    import wandb

    with wandb.init(project="tests", mode="offline", settings=wandb.Settings(silent=True, console="off")) as made:
        yield made
    wandb.teardown()


def test_mlflow_gets_every_epoch_of_a_training(store: ModuleType) -> None:
    with store.start_run() as active:
        trained = train(RECIPE | {"train": {"epochs": 2}}, report=MLflowTracker().log_epoch)
    kept = store.MlflowClient().get_metric_history(active.info.run_id, "test_ece")
    assert [(metric.step, metric.value) for metric in kept] == [(row.epoch, row.test_ece) for row in trained.history]


def test_mlflow_gets_scores_with_their_intervals_and_a_diagram(store: ModuleType) -> None:
    probs, labels = mixed_gaps(200)
    scores = measure(Predictions(probs=probs, labels=labels), n_resamples=100)
    with store.start_run() as active:
        MLflowTracker().log_scores(scores, step=7, prefix="test_")
    values = store.get_run(active.info.run_id).data.metrics
    assert (values["test_ece"], values["test_ece_low"], values["test_ece_high"]) == scores["ece"]
    assert [metric.step for metric in store.MlflowClient().get_metric_history(active.info.run_id, "test_ece")] == [7]
    diagram = store.artifacts.load_image(f"{active.info.artifact_uri}/reliability/000007.png")
    assert min(diagram.size) > 300


def test_numbers_that_are_not_finite_are_not_sent(store: ModuleType) -> None:
    sure = Predictions(probs=[[1.0, 0.0], [0.0, 1.0], [0.6, 0.4]] * 5, labels=[0, 0, 1] * 5)
    with store.start_run() as active:
        MLflowTracker().log_scores(measure(sure, n_resamples=100))
    values = store.get_run(active.info.run_id).data.metrics
    assert "nll" not in values
    assert "ece" in values


def test_wandb_gets_numbers_and_figures_of_a_step_before_the_last(run: Any) -> None:
    probs, labels = mixed_gaps(200)
    tracker = WandbTracker(run)
    tracker.log({"ece": 0.1}, 3)
    tracker.log_figure(draw_scores(measure(probs, labels, n_resamples=100), "test"), 2)
    assert (run.summary["ece"], run.summary["step"]) == (0.1, 2)
    assert min(imread(Path(run.dir) / run.summary["reliability"]["path"]).shape[:2]) > 300
