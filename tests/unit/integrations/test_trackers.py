"""What is sent to trackers. Stand-ins take the calls: both services bring dozens of packages, and act on being installed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure

from calibrant import Predictions, measure, train
from calibrant.integrations.trackers import MLflowTracker, WandbTracker
from helpers import mixed_gaps

RECIPE = {key: {"name": name} for key, name in {"data": "mixture", "backbone": "mlp", "method": "ce"}.items()}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Everything that MLflow is given."""
    calls: list[tuple[Any, ...]] = []

    def log_metrics(metrics: dict[str, float], step: int | None = None) -> None:
        calls.append((step, metrics))

    def log_figure(figure: Figure, artifact_file: str) -> None:
        calls.append((artifact_file, figure))

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(log_metrics=log_metrics, log_figure=log_figure))
    return calls


def test_mlflow_gets_every_epoch_of_a_training(sent: list[tuple[Any, ...]]) -> None:
    run = train(RECIPE | {"train": {"epochs": 2}}, report=MLflowTracker().log_epoch)
    assert [step for step, _ in sent] == [0, 1]
    assert [values["test_ece"] for _, values in sent] == [record.test_ece for record in run.history]
    # MLflow refuses what is no number.
    assert all(isinstance(value, float) for _, values in sent for value in values.values())


def test_mlflow_gets_scores_with_their_intervals_and_a_diagram(sent: list[tuple[Any, ...]]) -> None:
    probs, labels = mixed_gaps(200)
    scores = measure(Predictions(probs=probs, labels=labels), n_resamples=100)
    MLflowTracker().log_scores(scores, step=7, prefix="test_")
    (step, values), (file, figure) = sent
    assert step == 7
    assert (values["test_ece"], values["test_ece_low"], values["test_ece_high"]) == scores["ece"]
    assert file == "reliability/000007.png"
    assert len(figure.axes) == 2


def test_numbers_that_are_not_finite_are_not_sent(sent: list[tuple[Any, ...]]) -> None:
    sure = Predictions(probs=[[1.0, 0.0], [0.0, 1.0], [0.6, 0.4]] * 5, labels=[0, 0, 1] * 5)
    MLflowTracker().log_scores(measure(sure, n_resamples=100))
    assert "nll" not in sent[0][1]
    assert "ece" in sent[0][1]


def test_wandb_gets_the_step_as_a_number_and_figures_as_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Image=lambda figure: ("image", figure)))
    sent: list[dict[str, Any]] = []
    tracker, figure = WandbTracker(SimpleNamespace(log=sent.append)), Figure()
    tracker.log({"ece": 0.1}, 3)
    tracker.log_figure(figure, 2)
    assert sent == [{"ece": 0.1, "step": 3}, {"reliability": ("image", figure), "step": 2}]
