from __future__ import annotations

from pathlib import Path

import pytest

from calibrant.engine.recipe import Recipe
from calibrant.grid.schedule import parse_seeds, plan_cells


def names(*arguments, **options) -> list[str]:
    return [cell.name for cell in plan_cells(*arguments, **options)]


def test_plan_cells_go_through_data_then_seeds_then_methods() -> None:
    found = plan_cells(["digits", "mixture"], ["ce", "focal"], [0, 7])
    assert [(cell.data, cell.recipe.seed, cell.method) for cell in found] == [
        (data, seed, method) for data in ("digits", "mixture") for seed in (0, 7) for method in ("ce", "focal")
    ]
    assert all(cell.shown and cell.base is None for cell in found)
    assert found[1].recipe.data.name == "digits"
    assert (found[1].recipe.seed, found[1].recipe.method.name) == (0, "focal")


def test_plan_cells_of_a_scaled_method_use_the_base_of_the_grid() -> None:
    found = {cell.method: cell for cell in plan_cells(["digits"], ["ce+ts", "ce"], [3])}
    assert list(found) == ["ce", "ce+ts"]
    assert found["ce+ts"].base == found["ce"].name == "digits-convnet-ce-seed3"
    assert found["ce"].shown


def test_plan_cells_on_embedded_data_are_small_unless_told_otherwise() -> None:
    (cell,) = plan_cells(["digits"], ["ce"], [0])
    assert (cell.recipe.backbone.name, cell.recipe.train.epochs, cell.recipe.data.val) == ("convnet", 30, 300)
    (cell,) = plan_cells(["digits"], ["ce"], [0], settings={"train.epochs": "2", "backbone.name": "mlp"})
    assert (cell.recipe.backbone.name, cell.recipe.train.epochs) == ("mlp", 2)
    (cell,) = plan_cells(["digits"], ["ce"], [0], recipe=Recipe())
    assert (cell.recipe.backbone.name, cell.recipe.train.epochs) == ("resnet18", 350)
    (cell,) = plan_cells(["cifar10"], ["ce"], [0])
    assert (cell.recipe.backbone.name, cell.recipe.train.epochs) == ("resnet18", 350)


def test_plan_cells_with_a_setting_of_one_method_leave_others_alone() -> None:
    found = plan_cells(
        ["digits"], ["ce", "focal", "focal+ts"], [0], settings={"focal:method.options.gamma": "3", "optim.lr": "0.2"}
    )
    assert [dict(cell.recipe.method.options) for cell in found] == [{}, {"gamma": 3}, {"gamma": 3}]
    assert {cell.recipe.optim.lr for cell in found} == {0.2}


def test_cell_name_tells_preset_and_own_network_and_has_no_odd_characters(tmp_path: Path) -> None:
    settings = {"method.preset": "paper", "backbone.name": "my.networks:small"}
    assert names([str(tmp_path / "my birds.npz")], ["ce"], [2], settings=settings) == ["my-birds-small-ce-paper-seed2"]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((["digits"], ["ce", "fokal"], [0]), {}, "unknown method 'fokal'. Did you mean 'focal'?"),
        ((["digits"], ["CE+TS"], [0]), {}, r"unknown method 'CE\+TS'\. Did you mean 'ce\+ts'\?"),
        ((["digits"], [], [0]), {}, "`methods` must hold at least one, got none"),
        (([], ["ce"], [0]), {}, "`data` must hold at least one"),
        ((["digits"], ["ce"], [0]), {"settings": {"train.epochs": 0}}, "`train.epochs` must be a whole number >= 1"),
        ((["digits"], ["ce"], [0]), {"settings": {"backbone.name": "resnet19"}}, "unknown backbone 'resnet19'"),
        ((["digits"], ["ce"], [0]), {"settings": {"seed": 3}}, "`seed` is what the grid varies. Use `--seeds`"),
        ((["digits"], ["ce"], [0]), {"settings": {"focal:optim.lr": 3}}, "unknown method of this grid 'focal'"),
        ((["digits"], ["ce"], [10**20]), {}, "`seed` must be a whole number from 0"),
        ((["digits"], ["ce"], [0]), {"settings": {"method.options.gamma": 3}}, "method 'ce' has no options"),
        ((["a/birds", "b/birds"], ["ce"], [0]), {}, "`data` must have different last parts of paths, .* got a/birds, b/birds"),
    ],
)
def test_plan_cells_of_what_cannot_be_run_say_so(arguments, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        plan_cells(*arguments, **options)


@pytest.mark.parametrize(
    ("given", "found"), [(2, [0, 1]), ("2", [0, 1]), ("0,3,7", [0, 3, 7]), ("20261116,", [20261116]), ([4, 4, 1], [4, 1])]
)
def test_parse_seeds_counts_or_takes_a_list(given, found) -> None:
    assert parse_seeds(given) == found


@pytest.mark.parametrize("given", [0, "", "-1,2", "a", [], "1.5", [-1], 20261116, "20261116"])
def test_parse_seeds_of_something_else_is_refused(given) -> None:
    with pytest.raises(ValueError, match="`seeds` must be how many, at most 1,000, or a list of numbers >= 0.*`7,` is seed 7"):
        parse_seeds(given)
