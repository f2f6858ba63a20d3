from __future__ import annotations

import csv
from functools import partial
from pathlib import Path

import pytest

from calibrant.core.records import Entry, Predictions
from calibrant.metrics.measure import measure
from calibrant.paper.reproduce import plan_reproduction, write_experiment
from calibrant.report.figures import Drawing
from helpers import mixed_gaps


@pytest.mark.parametrize(
    ("name", "data", "methods", "model", "seeds"),
    [
        ("table1", 3, 12, "resnet18", 5),
        ("table2", 2, 2, "resnet18", 5),
        ("table3", 2, 9, "resnet18", 5),
        ("table4", 1, 5, "densenet100", 5),
        ("table5", 3, 8, "resnet18", 5),
        ("figures", 2, 10, "resnet18", 1),
    ],
)
def test_plan_is_the_papers_grid_and_protocol(name: str, data: int, methods: int, model: str, seeds: int) -> None:
    plan = plan_reproduction(name)
    assert (len(plan.data), len(plan.methods), len(plan.seeds)) == (data, methods, seeds)
    shown = [cell for cell in plan.cells() if cell.shown]
    assert len(shown) == data * methods * seeds
    for cell in shown:
        recipe = cell.recipe
        assert (recipe.backbone.name, recipe.train.epochs, recipe.train.batch_size) == (model, 350, 128)
        assert (recipe.optim.lr, recipe.optim.momentum, recipe.optim.weight_decay) == (0.1, 0.9, 5e-4)
        assert recipe.method.preset == "default"


def test_plan_takes_data_seeds_preset_and_settings() -> None:
    plan = plan_reproduction("table1", data=["cifar10"], seeds="3,7", settings={"method.preset": "paper"})
    assert plan.seeds == (3, 7)
    cells = plan.cells()
    assert {cell.recipe.data.name for cell in cells} == {"cifar10"}
    assert {cell.recipe.method.preset for cell in cells} == {"paper"}
    assert cells[0].base is None
    assert cells[1].base == cells[0].name


@pytest.mark.parametrize(
    ("name", "data", "settings", "found"),
    [
        ("table2", ["digits"], {}, ("convnet", 20, 128)),
        ("table2", ["cifar10"], {}, ("convnet", 3, 128)),
        ("table4", ["cifar10"], {}, ("convnet", 3, 128)),
        ("table2", ["digits", "cifar10"], {}, ("convnet", 3, 128)),
        ("table2", ["cifar10"], {"backbone.name": "resnet18", "train.epochs": 20}, ("resnet18", 20, 128)),
    ],
)
def test_quick_plan_on_named_data_has_a_small_network_and_few_epochs(name, data, settings, found) -> None:
    plan = plan_reproduction(name, data=data, quick=True, settings=settings)
    assert plan.seeds == (0, 1, 2)
    for cell in plan.cells():
        assert (cell.recipe.backbone.name, cell.recipe.train.epochs, cell.recipe.train.batch_size) == found


def entries(methods: tuple[str, ...], *, data: str) -> list[Entry]:
    probs, labels = mixed_gaps(60, 4)
    test = Predictions(probs=probs, labels=labels, split="test")
    scores = measure(test, n_resamples=100)
    return [Entry(data, m, scores, "default", "resnet18", 350, 0, test) for m in methods]


def draw_names(drawn: list[object], entries: object, folder: Path, *, n_bins: object) -> Drawing:
    """Stands for drawing, which takes seconds, where only what is asked of it matters."""
    drawn.append(n_bins)
    return Drawing([], {})


def test_report_of_a_table_has_its_four_forms_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.grid.export.draw_all", partial(draw_names, []))
    plan = plan_reproduction("table2", data=["cifar10"], seeds=1)
    table, files = write_experiment(plan, entries(plan.methods, data="cifar10"), tmp_path)
    names = [file.relative_to(tmp_path).as_posix() for file in files]
    assert names[:5] == ["table2.md", "table2.tex", "table2.csv", "table2.json", "report.html"]
    assert all(file.stat().st_size > 0 for file in files)
    assert [line.kind for line in table.rows].count("paper") == 2
    page = (tmp_path / "report.html").read_text()
    assert "Table 2: The calibration gain from SECE" in page
    # The paper's numbers stand below ours, in its own words.
    assert "2.138<small>± 0.819</small></td>" in page


def test_report_of_a_quick_version_says_so_everywhere_and_has_no_number_of_the_paper(tmp_path: Path) -> None:
    plan = plan_reproduction("table1", data=["cifar10"], quick=True, seeds=1)
    table, files = write_experiment(plan, entries(("ce", "focal"), data="cifar10"), tmp_path)
    assert table.name == "table1-quick"
    assert not [line for line in table.rows if line.kind == "paper"]
    for file in files[:5]:
        assert "quick" in file.read_text().lower(), file
    figures = [file.name for file in files if file.parent.name == "figures"]
    assert any(name.startswith("robustness-") for name in figures)
    assert all("quick" in name for name in figures)
    rows = list(csv.DictReader((tmp_path / "table1-quick.csv").read_text().splitlines()))
    assert {row["data"] for row in rows} == {"cifar10 (quick)"}
    assert "Do not compare it with the paper" in (tmp_path / "table1-quick.tex").read_text()


@pytest.mark.parametrize(
    "finished",
    [
        {"cifar10": ("focal", "flsd")},
        {"cifar10": ("ce",)},
        {"cifar10": ("ce",), "cifar100": ("focal", "flsd")},
    ],
)
def test_report_of_table5_without_differences_to_cross_entropy_still_shows_what_there_is(
    finished: dict[str, tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrant.grid.export.draw_all", partial(draw_names, []))
    plan = plan_reproduction("table5", data=list(finished), seeds=1)
    runs = [entry for data, methods in finished.items() for entry in entries(methods, data=data)]
    table, _ = write_experiment(plan, runs, tmp_path)
    shown = {section.data: tuple(line.method for line in section.rows if line.kind == "ours") for section in table.sections}
    assert shown == finished


def test_report_of_figures_has_the_bins_of_the_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[object] = []
    monkeypatch.setattr("calibrant.grid.export.draw_all", partial(draw_names, drawn))
    plan = plan_reproduction("figures", data=["cifar10"])
    table, files = write_experiment(plan, entries(("ce",), data="cifar10"), tmp_path)
    assert drawn == [(10, 20, 50, 100)]
    assert table.name == "figures"
    assert (tmp_path / "report.html") in files
