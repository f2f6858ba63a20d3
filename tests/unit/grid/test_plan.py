from __future__ import annotations

import re
from pathlib import Path

import pytest

from calibrant.engine.recipe import Recipe, to_toml
from calibrant.grid.export import write_table
from calibrant.grid.layout import Table
from calibrant.grid.plan import cell_name, check_data, check_folders, check_out, parse_seeds, plan_cells


def names(*arguments, **options) -> list[str]:
    return [cell.name for cell in plan_cells(*arguments, **options)]


def test_plan_cells_go_through_data_then_seeds_then_methods() -> None:
    found = plan_cells(["digits", "mixture"], ["ce", "focal"], [0, 7])
    assert [(cell.data, cell.seed, cell.method) for cell in found] == [
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


def test_plan_cells_of_a_scaled_method_alone_hide_its_base() -> None:
    base, scaled = plan_cells(["digits"], ["focal+sb-ece+ts"], [0])
    assert (base.method, base.shown) == ("focal+sb-ece", False)
    assert (scaled.method, scaled.shown, scaled.base) == ("focal+sb-ece+ts", True, base.name)


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


def test_plan_cells_take_a_setting_that_says_something_about_one_method() -> None:
    cells = plan_cells(["mixture"], ["ce", "flgamma-sece"], [0], settings={"train.average_share": 0.3})
    assert {cell.recipe.train.average_share for cell in cells} == {0.3}


@pytest.mark.parametrize("key", ["train.average_share", "ce:train.average_share"])
def test_plan_cells_with_a_setting_that_says_nothing_about_its_runs_say_so(key: str) -> None:
    methods = ["ce", "focal"] if ":" not in key else ["ce+ts", "flgamma-sece"]
    with pytest.raises(ValueError, match="`train.average_share` must come with train.average=phase, got train.average=no"):
        plan_cells(["mixture"], methods, [0], settings={key: 0.3})
    told = {key: 0.3, key.replace("average_share", "average"): "phase"}
    assert plan_cells(["mixture"], methods, [0], settings=told)[0].recipe.train.average_share == 0.3


def test_cell_name_tells_preset_and_own_network_and_has_no_odd_characters(tmp_path: Path) -> None:
    settings = {"method.preset": "paper", "backbone.name": "my.networks:small"}
    assert names([str(tmp_path / "my birds.npz")], ["ce"], [2], settings=settings) == ["my-birds-small-ce-paper-seed2"]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((["digits"], ["ce", "fokal"], [0]), {}, "unknown method 'fokal'. Did you mean 'focal'?"),
        ((["digits"], ["fokal+ts"], [0]), {}, "unknown method 'fokal'. Did you mean 'focal'?"),
        ((["digits"], ["CE+TS"], [0]), {}, r"unknown method 'CE\+TS'\. Did you mean 'ce\+ts'\?"),
        ((["digits"], [], [0]), {}, "`methods` must hold at least one, got none"),
        (([], ["ce"], [0]), {}, "`data` must hold at least one"),
        ((["digits"], ["ce"], [0]), {"settings": {"train.epochs": 0}}, "`train.epochs` must be a whole number >= 1"),
        ((["digits"], ["ce"], [0]), {"settings": {"backbone.name": "resnet19"}}, "unknown backbone 'resnet19'"),
        ((["digits"], ["ce"], [0]), {"settings": {"seed": 3}}, "`seed` is what the grid varies. Use `--seeds`"),
        ((["digits"], ["ce"], [0]), {"settings": {"focal:optim.lr": 3}}, "unknown method of this grid 'focal'"),
        ((["digits"], ["ce"], [0]), {"settings": {"method.options.gamma": 3}}, "method 'ce' has no options"),
        ((["a/birds", "b/birds"], ["ce"], [0]), {}, "the last part of paths must differ, .* got a/birds and b/birds"),
        ((["a/birds 1", "a/birds-1"], ["ce"], [0]), {}, "the last part of paths must differ, .* got a/birds 1 and a/birds-1"),
    ],
)
def test_plan_cells_of_what_cannot_be_run_say_so(arguments, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        plan_cells(*arguments, **options)


@pytest.mark.parametrize(
    ("given", "found"), [(2, [0, 1]), ("2", [0, 1]), ("0,3,7", [0, 3, 7]), ("5,", [5]), ([4, 4, 1], [4, 1]), ((9,), [9])]
)
def test_parse_seeds_counts_or_takes_a_list(given, found) -> None:
    assert parse_seeds(given) == found


def test_parse_seeds_with_a_comma_takes_one_seed_alone() -> None:
    assert parse_seeds("7,") == [7]


@pytest.mark.parametrize("given", [0, "", "-1,2", "a", [], "1.5", [-1]])
def test_parse_seeds_of_something_else_is_refused(given) -> None:
    with pytest.raises(ValueError, match="`seeds` must be how many, as 5, or a list of numbers >= 0.*`7,` is seed 7 alone"):
        parse_seeds(given)


@pytest.mark.parametrize("given", [20261116, "20261116", " 20261116 "])
def test_parse_seeds_of_a_count_that_must_be_a_seed_says_how_to_write_one(given) -> None:
    message = "`seeds` must be at most 1,000 where it says how many, got 20261116. .*: `20261116,` is seed 20261116 alone"
    with pytest.raises(ValueError, match=message):
        parse_seeds(given)
    assert len(parse_seeds("1000")) == 1000
    assert parse_seeds("20261116,") == parse_seeds([20261116]) == [20261116]


def test_seeds_beyond_what_a_recipe_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="`seeds` must be at most 1,000"):
        parse_seeds("99999999999999999999")
    with pytest.raises(ValueError, match=r"`seed` must be a whole number from 0 to 2\*\*63 - 1, got 99999999999999999999"):
        plan_cells(["digits"], ["ce"], parse_seeds("99999999999999999999,"))


def test_check_data_names_the_first_set_that_is_missing(tmp_path: Path) -> None:
    check_data(plan_cells(["digits", "mixture"], ["ce"], [0]))
    with pytest.raises(FileNotFoundError, match="calibrant data fetch cifar10"):
        check_data(plan_cells(["digits", "cifar10"], ["ce"], [0], settings={"data.root": str(tmp_path)}))
    with pytest.raises(FileNotFoundError, match="must be a folder of class folders"):
        check_data(plan_cells([str(tmp_path / "none")], ["ce"], [0]))
    with pytest.raises(ValueError, match="unknown data set 'digit'. Did you mean 'digits'"):
        check_data(plan_cells(["digit"], ["ce"], [0]))


def test_check_folders_of_another_recipe_names_what_differs(tmp_path: Path) -> None:
    (cell,) = plan_cells(["digits"], ["ce"], [0])
    folder = tmp_path / cell.name
    folder.mkdir()
    (folder / "recipe.toml").write_text(to_toml(cell.recipe))
    check_folders([cell], tmp_path)
    (other,) = plan_cells(["digits"], ["ce"], [0], settings={"train.epochs": 20})
    assert cell_name(other.recipe) == cell.name
    with pytest.raises(ValueError, match="compare: .* `train.epochs` is 30 there and 20 here. Use another folder"):
        check_folders([other], tmp_path)


def test_check_out_takes_a_folder_beside_or_below_a_recipe_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "recipe.toml").write_text("")
    for place in (tmp_path, tmp_path / "out", tmp_path / "other"):
        check_out(place)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="must not lie in a run"):
        check_out(tmp_path / "out")


def test_check_out_takes_a_comparison_with_a_copied_run_beside_its_own(tmp_path: Path) -> None:
    for name in ("runs", "copy"):
        (tmp_path / name).mkdir()
    for name in ("recipe.toml", "run.json"):
        (tmp_path / "copy" / name).write_text("")
    check_out(tmp_path)
    (tmp_path / "runs").rmdir()
    with pytest.raises(ValueError, match="must not be a folder of runs"):
        check_out(tmp_path)


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


def test_setting_of_a_method_made_from_another_names_that() -> None:
    with pytest.raises(ValueError, match=r"`ce\+ts` is made from the runs of ce .* Set `ce:train.average`"):
        plan_cells(["mixture"], ["ce", "ce+ts"], [0], settings={"ce+ts:train.average": "phase"})
    with pytest.raises(ValueError, match=r"unknown method of this grid 'focal\+ts'"):
        plan_cells(["mixture"], ["ce", "ce+ts"], [0], settings={"focal+ts:train.average": "phase"})
