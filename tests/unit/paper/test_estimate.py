from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.data import DATASETS
from calibrant.engine.recipe import DataPart, Recipe, override
from calibrant.engine.result import EpochRecord
from calibrant.engine.setup import load_data
from calibrant.engine.train import train
from calibrant.grid.local import Place
from calibrant.grid.plan import plan_cells
from calibrant.paper.estimate import Speed, _Timed, forecast, kind_of, measure_speed, shape_of

CPU = {"train.device": "cpu"}
SMALL = {"train.device": "cpu", "train.batch_size": 100, "train.epochs": 4}


def test_kind_of_joins_losses_and_parts_presets() -> None:
    names = ("ce", "focal", "mixup", "flgamma-sece", "ce-dece")
    kinds = [kind_of(override(Recipe(), {"method.name": name})) for name in names]
    assert kinds[0] == kinds[1] == kinds[2]
    assert kinds[3] == kinds[4] != kinds[0]
    assert kind_of(override(Recipe(), {"method.preset": "paper"})) != kinds[3]


def test_shape_of_a_named_set_needs_no_files() -> None:
    assert shape_of(DataPart("cifar100")).num_classes == 100
    assert shape_of(DataPart("tiny-imagenet")) == (100_000, 10_000, (64, 64), 3, 200)
    assert all(shape_of(DataPart(name)).train > 1000 for name in DATASETS)


def test_shape_of_a_path_is_read(tmp_path: Path) -> None:
    images = np.zeros((50, 8, 6, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(50) % 5, test_images=images[:7], test_labels=np.arange(7) % 5)
    assert shape_of(DataPart(str(tmp_path / "x.npz"))) == (50, 7, (8, 6), 3, 5)


@pytest.mark.parametrize("method", ["ce", "flgamma-sece"])
@pytest.mark.parametrize("name", DATASETS)
def test_measure_speed_of_every_named_set_times_its_steps(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.paper.estimate._TOO_SHORT", 0.0)
    settings = {"train.device": "cpu", "backbone.name": "mlp", "method.name": method}
    speed = measure_speed(override(Recipe(), {"data.name": name} | settings))
    assert speed.train > 0
    assert speed.test > 0


def test_measure_speed_leaves_out_the_epoch_that_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(recipe: Recipe, *, report: Callable[[EpochRecord], None]) -> None:
        for epoch, (seconds, speed) in enumerate(((50.0, 2.0), (54.0, 100.0))):
            report(EpochRecord(epoch, lr=0.1, train_loss=1.0, images_per_second=speed, seconds=seconds))

    monkeypatch.setattr("calibrant.paper.estimate.train", run)
    speed = measure_speed(override(Recipe(), {"method.name": "ce", "backbone.name": "mlp"} | SMALL))
    # Four steps of an eighth of a batch at 100 images a second, and the rest of four seconds for two batches twice.
    assert speed.train == pytest.approx(100)
    assert speed.test == pytest.approx(48 / (4 - 0.48))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("classes", [2, 1000])
def test_measure_speed_of_ones_own_images_takes_any_number_of_classes(
    classes: int, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = np.repeat(np.arange(classes), 2 if classes >= 100 else 200)
    images = np.zeros((len(labels), 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=labels, test_images=images, test_labels=labels)
    # Without a lower limit, parts of batches are timed; with a high one, whole batches and as many test images as there are.
    monkeypatch.setattr("calibrant.paper.estimate._TOO_SHORT", 1e9 if whole else 0.0)
    steps: list[tuple[int, int]] = []

    def noting(short: Recipe, *, report: Callable[[EpochRecord], None]) -> object:
        data = load_data(short.data)
        assert data.train.num_classes == classes
        steps.append((short.train.batch_size, len(data.test)))
        return train(short, report=report)

    monkeypatch.setattr("calibrant.paper.estimate.train", noting)
    settings = {"data.name": str(tmp_path / "x.npz"), "backbone.name": "mlp", "method.name": "ce", "train.batch_size": 64}
    speed = measure_speed(override(Recipe(), settings | {"train.device": "cpu"}))
    assert speed.train > 0
    held = len(labels) // 10 + len(labels)
    assert steps == [(8, 16), *([(64, min(held, 10_000) - 2)] if whole else [])]


def test_measure_speed_scales_with_epochs() -> None:
    threads = torch.get_num_threads()
    cell = plan_cells(["mixture"], ["ce"], [0], settings=SMALL)[0]
    speed = measure_speed(cell.recipe)
    # 1,800 of the mixture's 2,000 images train, 200 and 4,000 are evaluated, in each of four epochs; 1.5 seconds around them.
    expected = 4 * (1800 / speed.train + 4200 / speed.test) + 1.5
    assert speed.seconds == pytest.approx(expected)
    assert torch.get_num_threads() == threads


def test_forecast_adds_up_kinds_and_leaves_out_repaired_runs() -> None:
    cells = plan_cells(["mixture"], ["ce", "ce+ts", "focal", "flgamma"], [0, 1], settings=SMALL)
    said: list[str] = []
    found = forecast(cells, jobs=1, report=said.append)
    assert [speed.runs for speed in found.speeds] == [4, 2]
    assert said == [speed.name for speed in found.speeds]
    total = sum(speed.runs * speed.seconds for speed in found.speeds)
    assert 0.75 * total < found.low < found.high
    assert found.high > total
    assert found.at_once == 1
    assert found.device.startswith("cpu")


@pytest.fixture
def known_speed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No step is timed: 100 images a second train and 1,000 are evaluated. The data sets that were asked for."""
    timed: list[str] = []

    def time(recipe: Recipe, *rest: object, threads: int) -> _Timed:
        timed.append(recipe.data.name)
        return _Timed(trained=100, train_seconds=1.0, tested=1000, test_seconds=1.0)

    monkeypatch.setattr("calibrant.paper.estimate._time", time)
    return timed


@pytest.mark.usefixtures("known_speed")
def test_forecast_of_jobs_side_by_side_is_shorter_but_no_shorter_than_one_run() -> None:
    cells = plan_cells(["mixture"], ["ce"], [0, 1, 2, 3], settings=SMALL)
    found = forecast(cells, jobs=16)
    assert found.at_once == 4
    # Four epochs of 18 s training and 4.2 s evaluation; loading 5 s, a table and figures 5 s, its one row 0.7 s.
    assert found.speeds[0].seconds == pytest.approx(4 * 22.2 + 1.5)
    assert found.low == pytest.approx(0.75 * found.speeds[0].seconds + 10.7)
    assert found.high == pytest.approx(1.35 * found.speeds[0].seconds + 21.4)


@pytest.mark.usefixtures("known_speed")
def test_forecast_on_gpus_lets_runs_that_share_one_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.paper.estimate.make_places", lambda **_: [Place("0", 1, 4), Place("1", 1, 4)])
    found = forecast(plan_cells(["mixture"], ["ce"], list(range(8)), settings=SMALL))
    assert found.at_once == 8
    assert found.low == pytest.approx(0.75 * 4 * found.speeds[0].seconds + 10.7)


def test_measure_speed_counts_what_is_held_out_besides_the_validation_part() -> None:
    recipe = override(Recipe(), {"data.name": "cifar10", "method.name": "ce", "data.meta": 5000, "train.epochs": 1} | CPU)
    known = Speed("", train=1000.0, test=2000.0, runs=1, seconds=0.0)
    assert measure_speed(recipe, known=known).seconds == pytest.approx(40 + 7.5 + 1.5)


@pytest.mark.usefixtures("known_speed")
def test_forecast_counts_repaired_runs_rows_and_data_sets() -> None:
    settings = SMALL | {"train.epochs": 1}
    one = forecast(plan_cells(["mixture"], ["ce"], [0], settings=settings), jobs=1)
    two = forecast(plan_cells(["mixture"], ["ce", "ce+ts"], [0], settings=settings), jobs=1)
    assert two.low - one.low == pytest.approx(0.75 * 0.6 + 0.7)
    sets = forecast(plan_cells(["mixture", "digits"], ["ce"], [0], settings=settings), jobs=1)
    assert sets.low - one.low == pytest.approx(0.75 * sets.speeds[1].seconds + 5 + 0.7)


def test_forecast_times_equal_pictures_once(known_speed: list[str]) -> None:
    cells = plan_cells(["cifar10", "cifar100", "tiny-imagenet"], ["ce", "flgamma"], [0], settings={"train.device": "cpu"})
    found = forecast(cells, jobs=1)
    assert known_speed == ["cifar10", "cifar10", "tiny-imagenet", "tiny-imagenet"]
    # 45,000 images are trained on; 5,000 and 10,000 are evaluated.
    assert [speed.seconds for speed in found.speeds[:2]] == [350 * (450 + 15) + 1.5] * 2
    assert found.speeds[2].seconds == found.speeds[0].seconds
    assert found.speeds[4].seconds == 350 * (900 + 20) + 1.5


def test_forecast_of_nothing_left_is_nothing() -> None:
    found = forecast([])
    assert (found.speeds, found.low, found.high) == ((), 0, 0)
