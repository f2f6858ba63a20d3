from __future__ import annotations

from dataclasses import replace

from calibrant.core.records import Entry
from calibrant.report.rows import group_rows
from figure_data import run_of


def test_group_rows_puts_seeds_together_by_rising_seed() -> None:
    groups = group_rows([run_of("ce", seed=2), run_of("focal", seed=0), run_of("ce", seed=0), run_of("ce", seed=1)])
    assert [(group.data, group.model) for group in groups] == [("digits", "convnet")]
    assert [row.label for row in groups[0].rows] == ["CE", "Focal"]
    assert [run.seed for run in groups[0].rows[0].runs] == [0, 1, 2]
    assert groups[0].title == "digits, convnet"


def test_group_rows_keeps_data_sets_and_networks_apart_in_one_look() -> None:
    entries = [run_of("ce"), run_of("ce", data="cifar10", model="resnet18"), run_of("ce", data="mixture", model=None)]
    groups = group_rows(entries)
    assert [group.title for group in groups] == ["digits, convnet", "CIFAR-10, resnet18", "mixture"]
    assert len({group.rows[0].style for group in groups}) == 1


def test_group_rows_puts_unknown_networks_beside_the_first_network_of_their_data() -> None:
    theirs = [run_of("theirs", data=data, model=None, preset=None, epochs=None) for data in ("digits", "mixture")]
    groups = group_rows([*theirs, run_of("ce"), run_of("focal", model="mlp"), run_of("ce", data="cifar10")])
    assert [(group.title, [row.label for row in group.rows]) for group in groups] == [
        ("digits, convnet", ["theirs", "CE"]),
        ("mixture", ["theirs"]),
        ("digits, mlp", ["Focal"]),
        ("CIFAR-10, convnet", ["CE"]),
    ]


def test_common_seed_does_not_ask_rows_of_unknown_seed() -> None:
    theirs = run_of("theirs", model=None, seed=None)
    (group,) = group_rows([run_of("ce", seed=0), run_of("ce", seed=1), run_of("focal", seed=0), theirs])
    assert group.common_seed == 0
    assert group_rows([theirs])[0].common_seed is None


def told(method: str, **settings: str) -> Entry:
    return replace(run_of(method), recipe={key.replace("_", "."): value for key, value in settings.items()})


def test_group_rows_names_the_settings_in_which_rows_differ() -> None:
    runs = [told("ce", optim_lr="0.05", data_val="30"), told("focal", data_val="30"), told("flsd", data_val="30", optim_lr="1")]
    rows = group_rows(runs)[0].rows
    assert [row.label for row in rows] == ["CE (lr=0.05)", "Focal", "FLSD (lr=1)"]
    # They look as the methods do, which nothing else stands for here.
    assert all(row.style.filled for row in rows)
    rows = group_rows([told("ce", train_average="phase"), told("ce", train_average="ema")])[0].rows
    assert [(row.label, row.style.filled) for row in rows] == [("CE (average=phase)", True), ("CE (average=ema)", False)]


def test_group_rows_names_the_preset_where_a_method_has_two() -> None:
    rows = group_rows([run_of("flgamma-sece"), run_of("flgamma-sece", preset="paper"), run_of("ce", preset="paper")])[0].rows
    assert [row.label for row in rows] == ["FLγ-SECE", "FLγ-SECE (paper)", "CE"]
    assert rows[0].style.filled
    assert not rows[1].style.filled
    assert rows[0].style.color == rows[1].style.color


def test_group_rows_names_the_epochs_where_rows_differ_in_them() -> None:
    # A shortened schedule must not pass for the full one.
    rows = group_rows([run_of("ce", epochs=350), run_of("focal", epochs=8)])[0].rows
    assert [row.label for row in rows] == ["CE (350 epochs)", "Focal (8 epochs)"]
    rows = group_rows([run_of("ce", epochs=350), run_of("ce", epochs=8)])[0].rows
    assert rows[0].style != rows[1].style
