"""What is found before the first run: folders, data, batches, networks and older runs."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrant.cli.main import app
from calibrant.data.image_set import DataSet
from calibrant.engine.recipe import DataPart, to_toml
from calibrant.engine.setup import load_data
from calibrant.engine.train import train
from calibrant.grid.compare import compare
from calibrant.grid.export import write_table
from calibrant.grid.layout import Table
from calibrant.grid.plan import Cell, cell_name, plan_cells
from calibrant.grid.preflight import check_alike, check_data, check_out, check_ready, check_unchanged, load_finished
from made_up_runs import run_of

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


def test_check_ready_of_batches_that_one_method_cannot_fill_names_it(tmp_path: Path) -> None:
    # Of 180 images 36 are for testing and 14 for validation; the paper's protocol holds out 14 more.
    data = save(tmp_path / "x.npz")
    check_ready(cells_of(data, "ce"))
    message = (
        "compare, flgamma-sece on x: .*`train.batch_size` must be at most the 116 training examples, got 128. Lower it with"
    )
    with pytest.raises(ValueError, match=message):
        check_ready(cells_of(data, "ce,flgamma-sece", method__preset="paper"))


@pytest.mark.usefixtures("network")
def test_check_ready_of_a_network_that_one_method_cannot_use_names_it(tmp_path: Path) -> None:
    data, settings = save(tmp_path / "x.npz"), {"train__batch_size": 32, "backbone__name": "own_net_of_a_grid:headless"}
    check_ready(cells_of(data, "ce", **settings))
    with pytest.raises(ValueError, match="^compare, flgamma-sece on x: .*`model` must return what its last"):
        check_ready(cells_of(data, "ce,flgamma-sece", **settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data__val": 144}, "compare, ce on x: .*`val` must leave examples to train on, got 144 of 144"),
        ({"data__pad": 8}, "compare, ce on x: .*`data.pad` must be less than the side of the images, 8 pixels, got 8"),
        (
            {"backbone__name": "own_net_of_a_grid:bild"},
            "ce on x: .*unknown function or class of .*'bild'.* Did you mean 'build'",
        ),
        ({"backbone__name": "own_net_of_a_gird:build"}, "ce on x: .*`model` must name .* No module named 'own_net_of_a_gird'"),
        (
            {"backbone__name": "own_net_of_a_grid:narrow"},
            "ce on x: .*`model` must take images of 3 x 8 x 8 .*, got RuntimeError",
        ),
    ],
)
@pytest.mark.usefixtures("network")
def test_check_ready_of_what_cannot_be_built_says_so(tmp_path: Path, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_ready(cells_of(save(tmp_path / "x.npz"), train__batch_size=32, **settings))


def test_check_ready_sees_a_module_that_was_corrected_meanwhile(tmp_path: Path, network: Path) -> None:
    cells = cells_of(save(tmp_path / "x.npz"), train__batch_size=32, backbone__name="own_net_of_a_grid:second")
    with pytest.raises(ValueError, match="unknown function or class of .*'second'"):
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
    monkeypatch.setattr("calibrant.grid.preflight.visible_gpus", lambda device: ["0"])
    check_ready(narrow)
    with pytest.raises(ValueError, match="unknown function or class of .*'none'"):
        check_ready(absent)


SHORT = {"backbone.name": "mlp", "train.epochs": 1, "train.batch_size": 16, "train.device": "cpu"}


def write(file: Path, *, seed: int = 0, n: int = 60) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (n, 4, 4), dtype=np.uint8)
    np.savez(file, images=pixels, labels=np.arange(n) % 3)
    return file


def own_cells(file: Path, methods: str = "ce", seeds: tuple[int, ...] = (0,)) -> tuple[Cell, ...]:
    return plan_cells([str(file)], methods.split(","), seeds, settings=SHORT)


@pytest.fixture
def grid(tmp_path: Path) -> tuple[Path, Path]:
    """A file of images, and the folder of a grid with one finished run on it."""
    file, runs = write(tmp_path / "shapes.npz"), tmp_path / "out" / "runs"
    cell = own_cells(file)[0]
    train(cell.recipe, out=runs / cell.name)
    return file, runs


def strip(run: Path, *keys: str) -> None:
    """Have a run of an older version, which kept less."""
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({key: value for key, value in facts.items() if key not in keys}))


@pytest.mark.parametrize(
    ("change", "said"), [({"seed": 1}, "other test images or labels"), ({"n": 75}, "12 test images then and 15 now")]
)
@pytest.mark.parametrize(("methods", "seeds"), [("ce", (0,)), ("ce", (0, 1)), ("focal", (0,))])
def test_check_unchanged_other_data_are_refused_whatever_is_to_be_run(grid, change, said, methods, seeds):
    file, runs = grid
    cells = own_cells(file, methods, seeds)
    assert check_unchanged(cells, runs) is None
    write(file, **change)
    with pytest.raises(ValueError, match=f"^compare: `data` must be .* got other data than shapes-mlp-ce-seed0 had: {said}"):
        check_unchanged(cells, runs)


def test_check_unchanged_other_data_of_another_name_or_size_are_not_compared(grid, tmp_path):
    file, runs = grid
    # Pictures of another size are another set, of the same file.
    assert check_unchanged(plan_cells([str(file)], ["ce"], [0], settings={**SHORT, "data.size": 8}), runs) is None
    other = write(tmp_path / "others.npz", n=75)
    assert check_unchanged(own_cells(other), runs) is None
    assert check_unchanged(own_cells(other), tmp_path / "new" / "runs") is None
    assert check_unchanged(plan_cells(["mixture"], ["ce"], [0]), runs) is None


def test_check_unchanged_unfinished_run_counts_once_it_has_a_checkpoint(grid):
    file, runs = grid
    run = runs / "shapes-mlp-ce-seed0"
    strip(run, "finished")
    write(file, n=75)
    assert check_unchanged(own_cells(file), runs) is None
    (run / "state.pt").touch()
    with pytest.raises(ValueError, match="12 test images then and 15 now"):
        check_unchanged(own_cells(file), runs)


def test_check_unchanged_published_data_are_not_read(tmp_path):
    (cell,) = plan_cells(["mixture"], ["ce"], [0], settings=SHORT)
    train(cell.recipe, out=tmp_path / cell.name)

    def read(part):
        pytest.fail("was read")

    assert check_unchanged([cell], tmp_path, read=read) is None


def test_check_alike_compares_runs_on_data_of_one_name_alone() -> None:
    first, second = (replace(run_of("ce", seed=seed), facts={"data": {"test": "17"}}) for seed in (0, 1))
    other = replace(first, data="b", facts={"data": {"test": "9a"}})
    check_alike([first, run_of("focal"), second, other])
    with pytest.raises(ValueError, match="must have the same data, got other test images or labels"):
        check_alike([first, other, replace(other, data=first.data)])


def test_check_unchanged_damaged_run_of_no_cell_is_passed_over(grid):
    file, runs = grid
    (runs / "loose").mkdir()
    (runs / "loose" / "state.pt").touch()
    (runs / "notes.txt").touch()
    (runs / "torn").mkdir()
    (runs / "torn" / "recipe.toml").write_text("")
    (runs / "torn" / "run.json").write_text("{")
    assert check_unchanged(own_cells(file), runs) is None


def test_compare_finished_grid_outlives_its_data_but_not_other_ones(grid):
    file, runs = grid
    options = {"methods": "ce", "out": runs.parent, "settings": SHORT, "figures": False}
    write(file, seed=1)
    with pytest.raises(ValueError, match="^compare: `data` must be what the runs in"):
        compare(str(file), **options)
    assert not (runs.parent / "table.md").exists()
    file.write_bytes(b"damaged")
    assert len(compare(str(file), **options).entries) == 1
    file.unlink()
    assert len(compare(str(file), **options).entries) == 1
    with pytest.raises(FileNotFoundError, match=r"shapes\.npz"):
        compare(str(file), **options, seeds=2)


def test_compare_data_that_changed_while_the_grid_went_on_make_no_table(grid):
    file, runs = grid
    cells = own_cells(file, "ce,focal")
    write(file, seed=1)
    train(cells[1].recipe, out=runs / cells[1].name)
    said = r"^compare: runs of one table must have the same data, got other test images or labels \(\S*ce-seed0 and \S*focal-"
    file.unlink()
    with pytest.raises(ValueError, match=said):
        compare(str(file), methods="ce,focal", out=runs.parent, settings=SHORT, figures=False)


REMEDY = "Put it back, or remove the folder of the run, which is then run again."


def test_damaged_run_of_a_base_that_nobody_asked_for_gets_a_remedy(tmp_path: Path) -> None:
    base, scaled = plan_cells(["mixture"], ["ce+ts"], [0])
    assert not base.shown
    (tmp_path / base.name).mkdir()
    (tmp_path / base.name / "run.json").write_text('{"finished": "x"}')
    load_finished([base, scaled], tmp_path)  # what it predicts is in no table, and may be gone
    (tmp_path / base.name / "run.json").write_text('{"finished"')
    with pytest.raises(ValueError, match=rf"compare: .* must hold what a run wrote, got: .*run.json.* {REMEDY}"):
        load_finished([base, scaled], tmp_path)


def test_reproduce_names_a_damaged_run_before_it_times_anything(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "mixture-mlp-flgamma-seed0"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{")
    done = CliRunner().invoke(app, ["reproduce", "table2", "--quick", "--seeds", "1", "--dry-run", "--out", str(tmp_path)])
    assert done.exit_code != 0
    assert REMEDY in f"{done.output}{done.exception}"
    assert "timing" not in done.output


def test_check_data_names_the_first_set_that_is_missing(tmp_path: Path) -> None:
    check_data(plan_cells(["digits", "mixture"], ["ce"], [0]))
    with pytest.raises(FileNotFoundError, match="calibrant data fetch cifar10"):
        check_data(plan_cells(["digits", "cifar10"], ["ce"], [0], settings={"data.root": str(tmp_path)}))
    with pytest.raises(FileNotFoundError, match="must be a folder of class folders"):
        check_data(plan_cells([str(tmp_path / "none")], ["ce"], [0]))
    with pytest.raises(ValueError, match="unknown data set 'digit'. Did you mean 'digits'"):
        check_data(plan_cells(["digit"], ["ce"], [0]))


def test_load_finished_of_another_recipe_names_what_differs(tmp_path: Path) -> None:
    (cell,) = plan_cells(["digits"], ["ce"], [0])
    folder = tmp_path / cell.name
    folder.mkdir()
    (folder / "recipe.toml").write_text(to_toml(cell.recipe))
    load_finished([cell], tmp_path)
    (other,) = plan_cells(["digits"], ["ce"], [0], settings={"train.epochs": 20})
    assert cell_name(other.recipe) == cell.name
    with pytest.raises(ValueError, match="`train.epochs` is 30 there and 20 here. Use another folder"):
        load_finished([other], tmp_path)


def test_check_out_takes_a_folder_beside_or_below_a_recipe_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "recipe.toml").write_text("")
    for place in (tmp_path, tmp_path / "out", tmp_path / "other"):
        check_out(place)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="must not lie in a run"):
        check_out(tmp_path / "out")


@pytest.mark.parametrize("text", ["[1, 2]", '{"name": "somebody else"}'])
@pytest.mark.parametrize("name", ["table.md", "table.json", "report.html"])
def test_check_out_of_a_folder_with_files_that_would_be_lost_raises(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    message = re.escape(f"got {tmp_path} with a {name} of another origin, which would be lost. Choose another with `--out`.")
    with pytest.raises(ValueError, match=message):
        check_out(tmp_path)
    assert (tmp_path / name).read_text() == text
    # A comparison without runs of its own is known by its table.
    write_table(Table("table", "Nothing", (), ()), tmp_path)
    check_out(tmp_path)


def test_check_out_of_a_comparison_that_was_cut_off_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "report.html").write_text("")
    check_out(tmp_path)

    def full(table: Table) -> str:
        raise OSError("No space left on device")

    monkeypatch.setattr("calibrant.grid.export.to_markdown", full)
    with pytest.raises(OSError, match="No space left"):
        write_table(Table("table", "Nothing", (), ()), tmp_path / "without_runs")
    (tmp_path / "without_runs" / "report.html").write_text("")
    check_out(tmp_path / "without_runs")
