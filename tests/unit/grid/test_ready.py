from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from calibrant.data.image_set import DataSet
from calibrant.engine.recipe import DataPart
from calibrant.engine.setup import load_data
from calibrant.grid.plan import Cell, plan_cells
from calibrant.grid.ready import check_ready

CPU = {"train.device": "cpu", "backbone.name": "mlp"}


def save(file: Path, **changes: np.ndarray) -> str:
    arrays = {"images": np.zeros((180, 8, 8, 3), dtype=np.uint8), "labels": np.arange(180) % 3} | changes
    np.savez(file, **arrays)
    return str(file)


def cells_of(data: str, methods: str = "ce", seeds: int = 1, **settings: object) -> tuple[Cell, ...]:
    keys = {key.replace("__", "."): value for key, value in settings.items()}
    return plan_cells([data], methods.split(","), range(seeds), settings=CPU | keys)


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of one's own in the working folder."""
    file = tmp_path / "own_net_of_a_grid.py"
    file.write_text(
        "import torch\n"
        "def build(num_classes):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, num_classes))\n"
        "def narrow(num_classes):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(50, num_classes))\n"
        "def headless(num_classes):\n"
        "    return torch.nn.Sequential(build(num_classes), torch.nn.LogSoftmax(1))\n"
    )
    monkeypatch.chdir(tmp_path)
    return file


def test_check_ready_takes_a_grid_that_can_begin(tmp_path: Path, network: Path) -> None:
    data = save(tmp_path / "x.npz")
    cells = cells_of(data, "ce,ce+ts,flgamma-sece", 2, train__batch_size=32, backbone__name="own_net_of_a_grid:build")
    before = list(sys.path)
    check_ready(cells)
    assert sys.path == before
    assert network.stem not in sys.modules


def test_check_ready_reads_each_set_once_and_leaves_repaired_runs_alone(tmp_path: Path) -> None:
    data, read = save(tmp_path / "x.npz"), []

    def noted(part: DataPart) -> DataSet:
        read.append(part.name)
        return load_data(part)

    cells = [*cells_of(data, "ce,ce+ts,focal", 3, train__batch_size=32), *cells_of("mixture")]
    check_ready(cells, read=noted)
    assert read == [data, "mixture"]
    read.clear()
    check_ready([cell for cell in cells if cell.base is not None], read=noted)
    assert read == []


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.full((180, 8, 8, 3), np.nan)}, "x.npz: `images` must be whole numbers 0 to 255, got float64"),
        ({"labels": np.arange(180) % 3 + 0.5}, "x.npz: `labels` must be class indices 0, 1, 2, …, got float64"),
    ],
)
def test_check_ready_of_images_that_cannot_be_used_says_so(tmp_path: Path, arrays: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_ready(cells_of(save(tmp_path / "x.npz", **arrays)))


def test_check_ready_of_no_data_set_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "plain").write_bytes(b"x")
    with pytest.raises(ValueError, match="empty"):
        check_ready(cells_of("empty"))
    with pytest.raises(ValueError, match="plain: must be a folder of class folders or an .npz of images, got another file"):
        check_ready(cells_of("plain"))


def test_check_ready_of_batches_that_one_method_cannot_fill_names_it(tmp_path: Path) -> None:
    # Of 180 images 36 are for testing and 14 for validation; a method that learns holds out 14 more.
    data = save(tmp_path / "x.npz")
    check_ready(cells_of(data, "ce"))
    message = "compare: flgamma-sece on x: `train.batch_size` must be at most the 116 training examples, got 128. Lower it with"
    with pytest.raises(ValueError, match=message):
        check_ready(cells_of(data, "ce,flgamma-sece"))


@pytest.mark.usefixtures("network")
def test_check_ready_of_a_network_that_one_method_cannot_use_names_it(tmp_path: Path) -> None:
    data, settings = save(tmp_path / "x.npz"), {"train__batch_size": 32, "backbone__name": "own_net_of_a_grid:headless"}
    check_ready(cells_of(data, "ce", **settings))
    with pytest.raises(ValueError, match="^compare: flgamma-sece on x: `model` must return what its last"):
        check_ready(cells_of(data, "ce,flgamma-sece", **settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data__val": 144}, "compare: ce on x: `val` must leave examples to train on, got 144 of 144"),
        ({"data__pad": 8}, "compare: ce on x: `data.pad` must be less than the side"),
        ({"backbone__name": "own_net_of_a_grid:bild"}, "ce on x: `model` must name .* has no 'bild'. Did you mean 'build'"),
        ({"backbone__name": "own_net_of_a_gird:build"}, "ce on x: `model` must name .* No module named 'own_net_of_a_gird'"),
        ({"backbone__name": "own_net_of_a_grid:narrow"}, "ce on x: `model` must take images of 3 x 8 x 8 .*, got RuntimeError"),
        ({"train__graph": "yes"}, "ce on x: `train.graph` must be 'auto' or 'no' on the CPU"),
    ],
)
@pytest.mark.usefixtures("network")
def test_check_ready_of_what_cannot_be_built_says_so(tmp_path: Path, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_ready(cells_of(save(tmp_path / "x.npz"), train__batch_size=32, **settings))


def test_check_ready_of_weights_that_are_not_there_says_so() -> None:
    with pytest.raises(FileNotFoundError, match="must be a file of weights"):
        check_ready(cells_of("mixture", backbone__init="none.safetensors"))


def test_check_ready_sees_a_module_that_was_corrected_meanwhile(tmp_path: Path, network: Path) -> None:
    cells = cells_of(save(tmp_path / "x.npz"), train__batch_size=32, backbone__name="own_net_of_a_grid:second")
    with pytest.raises(ValueError, match="has no 'second'"):
        check_ready(cells)
    network.write_text(network.read_text() + "second = build\n")
    check_ready(cells)


def test_check_ready_leaves_a_loaded_module_to_the_runs(tmp_path: Path, network: Path) -> None:
    # Runs load the file itself, which may be newer than what is loaded here.
    cells = cells_of(save(tmp_path / "x.npz"), train__batch_size=32, backbone__name="own_net_of_a_grid:second")
    sys.modules[network.stem] = sys
    try:
        check_ready(cells)
        assert sys.modules[network.stem] is sys
    finally:
        del sys.modules[network.stem]


def test_check_ready_does_not_try_what_is_meant_for_elsewhere(
    tmp_path: Path, network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = save(tmp_path / "x.npz")
    narrow = cells_of(data, train__batch_size=32, backbone__name="own_net_of_a_grid:narrow")
    absent = cells_of(data, train__batch_size=32, backbone__name="own_net_of_a_grid:none")
    check_ready(absent, on="ray")
    with pytest.raises(FileNotFoundError, match="must be a file of weights"):
        check_ready(cells_of(data, train__batch_size=32, backbone__name="mlp", backbone__init="weights.pt"), on="ray")
    with pytest.raises(ValueError, match="at most the 130 training examples"):
        check_ready(cells_of(data, train__batch_size=131), on="ray")
    monkeypatch.setattr("calibrant.grid.ready.visible_gpus", lambda device: ["0"])
    check_ready(narrow)
    with pytest.raises(ValueError, match="has no 'none'"):
        check_ready(absent)
