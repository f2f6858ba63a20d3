from __future__ import annotations

from dataclasses import replace

import pytest

from calibrant.core.entry import Entry
from calibrant.core.records import Predictions
from calibrant.engine.recipe import Recipe, override
from calibrant.grid import rows as rows_module
from calibrant.grid.rows import (
    Row,
    catalogue_order,
    chosen,
    comparable,
    group_rows,
    preset_matters,
    settings_of,
    tell_apart,
)
from made_up_runs import run_of


def test_group_rows_joins_seeds_in_their_order() -> None:
    runs = [run_of("ce", 0.06, seed=2), run_of("focal"), run_of("ce", 0.05, seed=0)]
    rows = group_rows(runs)
    assert [(row.method, row.seeds) for row in rows] == [("ce", (0, 2)), ("focal", (0,))]
    assert rows[0].values("error") == (0.05, 0.06)


@pytest.mark.parametrize(
    "other",
    [
        {"data": "cifar100"},
        {"model": "densenet100"},
        {"epochs": 20},
        {"preset": "paper"},
        {"command": "calibrant train --set optim.lr=0.2"},
    ],
)
def test_group_rows_keeps_different_settings_apart(other: dict[str, object]) -> None:
    rows = group_rows([run_of("flgamma-sece", seed=0), run_of("flgamma-sece", seed=1, **other)])  # type: ignore[arg-type]
    assert len(rows) == 2


def test_group_rows_joins_presets_of_a_method_without_any() -> None:
    rows = group_rows([run_of("ce", seed=0, preset="paper"), run_of("ce", seed=1, preset="default")])
    assert [(row.preset, row.seeds) for row in rows] == [(None, (0, 1))]


def test_group_rows_keeps_presets_apart_where_they_repeat_a_seed() -> None:
    rows = group_rows([run_of("ce", seed=0, preset="paper"), run_of("ce", seed=0, preset="default")])
    assert [row.preset for row in rows] == ["paper", "default"]


def test_tell_apart_takes_off_what_changes_nothing() -> None:
    runs = [run_of("ce", seed=0, preset="paper"), run_of("flgamma", seed=0, preset="paper"), run_of("ce", seed=1)]
    assert [entry.preset for entry in tell_apart(runs)] == [None, "paper", None]
    same = [run_of("ce", seed=0, preset="paper"), run_of("ce", seed=0)]
    assert tell_apart(same) == same


def test_catalogue_order_puts_full_runs_before_short_ones() -> None:
    runs = [run_of("ce", epochs=20), run_of("ce", epochs=350), run_of("ce", epochs=350, seed=1)]
    assert [(entry.epochs, entry.seed) for entry in sorted(runs, key=catalogue_order)] == [(350, 0), (350, 1), (20, 0)]


def test_tell_apart_names_the_settings_that_rows_of_one_method_differ_in() -> None:
    common = "calibrant train --set train.batch_size=64"
    commands = [common, f"{common} --set train.average=phase --set train.select=nll", f"{common} --set optim.lr=0.2"]
    runs = [run_of("ce", command=command) for command in commands[:2]]
    runs += [run_of("flgamma", preset=preset, command=command) for preset in ("paper", "default") for command in commands[1:]]
    told = [entry.preset for entry in tell_apart(runs)]
    averaged = "train.average=phase, train.select=nll"
    assert told == [None, averaged, f"paper, {averaged}", "paper, optim.lr=0.2", averaged, "optim.lr=0.2"]
    # Also beside a run of another preset or length that is not told so.
    paper = run_of("flgamma", preset="paper", command=commands[2])
    assert [entry.preset for entry in tell_apart([paper, run_of("flgamma")])] == [
        "paper, optim.lr=0.2, train.batch_size=64",
        "default",
    ]
    long = run_of("ce", epochs=700, command="calibrant train --set optim.lr=0.2")
    assert [entry.preset for entry in tell_apart([long, run_of("ce")])] == ["optim.lr=0.2", None]
    unknown, known = (run_of("mine", preset=preset, command=commands[2]) for preset in (None, "default"))
    other = run_of("mine", preset="default", command=commands[1])
    assert len({entry.preset for entry in tell_apart([unknown, known, other])}) == 3
    # What all runs of a method have in common says nothing.
    assert [entry.preset for entry in tell_apart(runs[1:3])] == [None, "paper"]


def test_group_rows_same_run_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="must have different seeds, got seed 3 of ce on cifar10 twice"):
        group_rows([run_of("ce", seed=3), run_of("ce", seed=3)])


def sized(entry: Entry, n: int) -> Entry:
    return replace(entry, scores=replace(entry.scores, n=n), folder=f"runs/{n}")


def test_group_rows_runs_of_different_numbers_of_test_examples_are_not_averaged() -> None:
    runs = [sized(run_of("ce", seed=0), 36), run_of("ce", seed=1), sized(run_of("ce", seed=2), 40)]
    said = "got runs/36 and a record of ce on cifar10: 36 test images in the first and 10,000 in the second. Leave one out."
    with pytest.raises(ValueError, match=f"^tables: runs of one row must have the same data, {said}$"):
        group_rows(runs)
    # Other rows may be of another test set, and files of predictions of a part of it.
    assert len(group_rows([runs[0], replace(runs[2], method="focal")])) == 2
    theirs = [replace(run, model=None, epochs=None) for run in runs]
    assert [len(row.runs) for row in group_rows(theirs)] == [3]


def test_group_rows_runs_on_other_images_are_not_averaged() -> None:
    first, second, third = (replace(run_of("ce", seed=seed), folder=f"runs/{seed}") for seed in range(3))
    known = [replace(run, facts={"data": {"test": text}}) for run, text in ((first, "17"), (second, "9a"), (third, "17"))]
    with pytest.raises(ValueError, match="got runs/0 and runs/1 of ce on cifar10: other test images or labels. Leave one out"):
        group_rows(known)
    # One that does not say it may be of either, but does not hide that two others differ.
    assert len(group_rows([known[0], second, known[2]])) == 1
    with pytest.raises(ValueError, match="got runs/1 and runs/2"):
        group_rows([first, *known[1:]])


@pytest.mark.parametrize("seeds", [(None, None), (0, None), (None, 3)])
def test_group_rows_run_without_a_seed_is_no_seed_of_a_row(seeds: tuple[int | None, int | None]) -> None:
    with pytest.raises(ValueError, match="must have different seeds, got no seed of theirs on cifar10 twice"):
        group_rows([run_of("theirs", seed=seed, model=None, epochs=None) for seed in seeds])


def test_catalogue_order_puts_plain_runs_first_and_scaled_ones_after_their_base() -> None:
    averaged = "calibrant train --set train.average=phase"
    runs = [
        run_of("unheard-of"),
        run_of("focal"),
        run_of("ce+ts", command=averaged),
        run_of("ce", command=averaged),
        run_of("ce+ts", seed=1),
        run_of("ce+ts"),
        run_of("ce"),
    ]
    found = [(entry.method, settings_of(entry), entry.seed) for entry in sorted(runs, key=catalogue_order)]
    said = ("train.average=phase",)
    assert found == [
        ("ce", (), 0),
        ("ce+ts", (), 0),
        ("ce+ts", (), 1),
        ("ce", said, 0),
        ("ce+ts", said, 0),
        ("focal", (), 0),
        ("unheard-of", (), 0),
    ]


def test_comparable_needs_the_same_number_of_test_examples() -> None:
    few = replace(run_of("theirs", model=None, epochs=None), scores=replace(run_of("ce").scores, n=500))
    many = run_of("ours", model=None, epochs=None)
    ce, theirs, ours = group_rows([run_of("ce"), few, many])
    assert (comparable(ce, theirs), comparable(theirs, ce), comparable(ce, ours)) == (False, False, True)


def test_comparable_takes_what_a_run_says_that_it_did_before_what_its_method_does_now() -> None:
    plain = replace(run_of("flgamma-sece"), facts={"effective": {"train.average": "no", "train.select": "error"}})
    told = run_of("ce", command="calibrant train --set train.average=phase")
    assert not comparable(*group_rows([told, plain]))
    assert chosen(group_rows([plain])[0], "train.average") == "no"


def test_row_without_a_metric_has_no_values_of_it() -> None:
    assert group_rows([run_of("ce")])[0].values("brier") == ()


def test_preset_matters_only_where_something_is_learned_on_held_out_data() -> None:
    assert [name for name in ("ce", "ce+ts", "mixup", "crl", "ce-dece", "flgamma") if preset_matters(name)] == [
        "ce-dece",
        "flgamma",
    ]
    assert preset_matters("somebody's own")


def test_settings_of_leaves_out_where_and_how_often() -> None:
    command = (
        "calibrant train --method ce --set train.eval_every_epochs=5 --set data.root=/x --set method.options.every=8 "
        "--init w.safetensors --set optim.lr=0.2"
    )
    assert settings_of(run_of("ce", command=command)) == (
        "backbone.init=w.safetensors",
        "method.options.every=8",
        "optim.lr=0.2",
    )
    assert settings_of(run_of("ce")) == ()
    assert settings_of(run_of("ce", command="don't know")) == ()


def row(**other: object) -> Row:
    found: dict[str, object] = {"data": "cifar10", "model": "resnet18", "method": "ce", "preset": None, "epochs": 350}
    return Row(**(found | {"settings": (), "runs": ()} | other))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"method": "focal", "preset": "paper"}, True),
        ({"settings": ("method.options.every=8",)}, True),
        ({"settings": ("optim.lr=0.2",)}, False),
        ({"epochs": 349}, False),
        ({"model": "densenet100"}, False),
        ({"data": "cifar100"}, False),
        ({"model": None, "epochs": None}, True),
        ({"data": "cifar100", "model": None, "epochs": None}, False),
    ],
)
def test_comparable_needs_same_data_network_epochs_and_settings(other: dict[str, object], expected: bool) -> None:
    assert comparable(row(), row(**other)) is expected
    assert comparable(row(**other), row()) is expected


AVERAGED = ("train.average=phase", "train.select=error+nll")
LEARNS: dict[str, object] = {"method": "flgamma-sece", "preset": "default"}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # What both were left to choose is theirs.
        ({}, LEARNS, True),
        # An average that one was told is the average that the other chooses.
        ({"settings": AVERAGED}, LEARNS, True),
        ({"settings": AVERAGED, "method": "ce+ts"}, LEARNS | {"method": "flgamma-sece+ts"}, True),
        ({"settings": AVERAGED}, {"settings": AVERAGED, "method": "focal"}, True),
        ({"settings": AVERAGED}, {}, False),
        ({"settings": AVERAGED}, LEARNS | {"preset": "paper"}, False),
        ({"settings": AVERAGED}, LEARNS | {"settings": ("train.average=no",)}, False),
        ({}, LEARNS | {"settings": ("train.average=no", "train.select=error")}, True),
        ({"settings": ("train.reduction=mean",)}, LEARNS, False),
        ({"settings": AVERAGED}, {"settings": ("train.average=uniform", "train.select=error+nll")}, False),
        # What one was told decides no more than it says.
        ({"settings": AVERAGED, "preset": "paper"}, LEARNS | {"settings": ("method.options.every=8",)}, True),
        ({"settings": ("train.average=uniform",)}, LEARNS | {"settings": ("train.average=uniform",)}, True),
        ({"settings": ("train.average=uniform",)}, LEARNS, False),
        ({"settings": ("train.select=last",)}, LEARNS | {"settings": ("train.select=last",)}, True),
        ({"settings": ("train.select=last",)}, LEARNS, False),
        # What says nothing about one of the two does not part them.
        ({}, LEARNS | {"settings": ("train.average_share=0.3", "train.select_within=1.0")}, True),
        ({"settings": AVERAGED}, LEARNS | {"settings": ("train.average_share=0.3",)}, False),
        ({"settings": ("train.average=ema",)}, LEARNS | {"settings": ("train.average=ema", "train.average_decay=0.9")}, False),
        ({"settings": ("train.average=half",)}, {}, False),
        ({"settings": ("train.average=half",)}, {"settings": ("train.average=half",)}, True),
    ],
)
def test_comparable_looks_at_averaging_and_selection_and_not_at_who_chose_them(
    first: dict[str, object], second: dict[str, object], expected: bool
) -> None:
    assert comparable(row(**first), row(**second)) is expected
    assert comparable(row(**second), row(**first)) is expected


def test_catalogue_order_puts_predictions_last_as_they_came() -> None:
    test = Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1])
    theirs = [run_of(name, model=None, epochs=None, preset=None, seed=None, test=test) for name in ("b", "a")]
    assert [entry.method for entry in sorted([*theirs, run_of("ce")], key=catalogue_order)] == ["ce", "b", "a"]


def test_comparable_takes_a_record_of_unknown_length_for_no_predictions() -> None:
    known, lacking = group_rows([run_of("ce"), run_of("focal", epochs=None)])
    assert not comparable(known, lacking)


def test_comparable_makes_the_recipes_of_a_method_once_however_many_rows_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def noting(recipe: Recipe, changes: dict[str, object]) -> Recipe:
        made.append(changes)
        return override(recipe, changes)

    for kept in (rows_module._idle_after, rows_module._chosen_by):
        kept.cache_clear()
    monkeypatch.setattr(rows_module, "override", noting)
    several = [Row("x", "mlp", method, None, epochs, (), ()) for epochs in (1, 2, 3) for method in ("ce", "focal", "mmce")]
    assert sum(comparable(first, second) for first in several for second in several) == 27
    assert len(made) == 6
