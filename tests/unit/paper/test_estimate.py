from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.data import DATASETS
from calibrant.engine.loop import load_data
from calibrant.engine.recipe import DataPart, Recipe, override
from calibrant.engine.result import EpochRecord
from calibrant.engine.train import train
from calibrant.grid.local import Place
from calibrant.grid.schedule import plan_cells
from calibrant.paper.reproduce import forecast, shape_of, time_run

SMALL = {"train.device": "cpu", "train.batch_size": 100, "train.epochs": 4}


def test_shape_of_a_path_is_read(tmp_path: Path) -> None:
    images = np.zeros((50, 8, 6, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(50) % 5, test_images=images[:7], test_labels=np.arange(7) % 5)
    assert shape_of(DataPart(str(tmp_path / "x.npz"))) == (50, 7, (8, 6), 3, 5)


@pytest.mark.parametrize("method", ["ce", "flgamma-sece"])
@pytest.mark.parametrize("name", DATASETS)
def test_time_run_of_every_named_set_times_its_steps(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"train.device": "cpu", "backbone.name": "mlp", "method.name": method}
    rate, seconds = time_run(override(Recipe(), {"data.name": name} | settings))
    assert rate > 0
    assert seconds > 1.5


def test_time_run_leaves_out_the_epoch_that_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(recipe: Recipe, *, report: Callable[[EpochRecord], None]) -> None:
        for epoch, (seconds, speed) in enumerate(((50.0, 2.0), (54.0, 100.0))):
            report(EpochRecord(epoch, lr=0.1, train_loss=1.0, images_per_second=speed, seconds=seconds))

    monkeypatch.setattr("calibrant.paper.reproduce.train", run)
    rate, seconds = time_run(override(Recipe(), {"method.name": "ce", "backbone.name": "mlp"} | SMALL))
    assert rate == pytest.approx(100)
    # A test image takes a third of the time of a training image.
    assert seconds == pytest.approx(4 * (45_000 + 15_000 / 3) / 100 + 1.5)


@pytest.mark.parametrize(("classes", "each"), [(2, 200), (1000, 30)])
def test_time_run_of_ones_own_images_takes_any_number_of_classes(
    classes: int, each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = np.repeat(np.arange(classes), each)
    images = np.zeros((len(labels), 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=labels, test_images=images[::20], test_labels=labels[::20])
    batches: list[int] = []

    def noting(short: Recipe, *, report: Callable[[EpochRecord], None]) -> object:
        data = load_data(short.data)
        assert data.train.num_classes == classes
        batches.append(short.train.batch_size)
        return train(short, report=report)

    monkeypatch.setattr("calibrant.paper.reproduce.train", noting)
    settings = {"data.name": str(tmp_path / "x.npz"), "backbone.name": "mlp", "method.name": "ce", "train.batch_size": 64}
    assert time_run(override(Recipe(), settings | {"train.device": "cpu"}))[0] > 0
    # Few images are timed in whole batches, many in parts of batches.
    assert batches == [64 if classes == 2 else 8]


def test_forecast_adds_up_kinds_and_leaves_out_repaired_runs() -> None:
    threads = torch.get_num_threads()
    cells = plan_cells(["mixture"], ["ce", "ce+ts", "focal", "flgamma"], [0, 1], settings=SMALL)
    said: list[str] = []
    found = forecast(cells, jobs=1, report=said.append)
    assert [speed.runs for speed in found.speeds] == [4, 2]
    assert said == [speed.name for speed in found.speeds]
    total = sum(speed.runs * speed.seconds for speed in found.speeds)
    assert found.low == pytest.approx(0.75 * total + 15)
    assert found.high == pytest.approx(1.35 * total + 30)
    assert found.at_once == 1
    assert found.device.startswith("cpu")
    assert torch.get_num_threads() == threads


@pytest.fixture
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is timed: a run takes 100 seconds."""
    monkeypatch.setattr("calibrant.paper.reproduce.time_run", lambda recipe: (1.0, 100.0))


@pytest.mark.usefixtures("known_speed")
def test_forecast_of_jobs_side_by_side_is_shorter_but_no_shorter_than_one_run() -> None:
    found = forecast(plan_cells(["mixture"], ["ce"], [0, 1, 2, 3], settings=SMALL), jobs=16)
    assert found.at_once == 4
    assert (found.low, found.high) == pytest.approx((0.75 * 100 + 15, 1.35 * 100 + 30))


@pytest.mark.usefixtures("known_speed")
def test_forecast_on_gpus_lets_runs_that_share_one_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.paper.reproduce.make_places", lambda **_: [Place("0", 1, 4), Place("1", 1, 4)])
    found = forecast(plan_cells(["mixture"], ["ce"], list(range(8)), settings=SMALL))
    assert found.at_once == 8
    assert found.low == pytest.approx(0.75 * 4 * 100 + 15)
