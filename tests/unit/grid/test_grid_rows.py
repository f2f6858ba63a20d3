from __future__ import annotations

from dataclasses import replace

import pytest

from calibrant.core.records import Entry
from calibrant.engine.recipe import Recipe, override
from calibrant.grid.collect import catalogue_order, command_of, identity, settings_of
from calibrant.report.rows import Row, comparable, group_rows
from made_up_runs import run_of

FOREIGN = {"model": None, "epochs": None, "preset": None}


def rows_of(entries: list[Entry]) -> list[Row]:
    return [row for section in group_rows(entries) for row in section.rows]


@pytest.mark.parametrize(
    "other", [{"data": "cifar100"}, {"model": "densenet100"}, {"epochs": 20}, {"preset": "paper"}, {"told": "optim.lr=0.2"}]
)
def test_group_rows_keeps_different_settings_apart(other: dict[str, str]) -> None:
    assert len(rows_of([run_of("flgamma-sece", seed=0), run_of("flgamma-sece", seed=1, **other)])) == 2  # type: ignore[arg-type]


def test_group_rows_joins_presets_that_change_nothing() -> None:
    runs = [run_of("ce", seed=0, preset="paper"), run_of("ce", seed=1, preset="default")]
    assert [(row.preset, row.seeds) for row in rows_of(runs)] == [(None, (0, 1))]
    assert identity(runs[0]) == identity(replace(runs[1], seed=0))


@pytest.mark.parametrize("seeds", [(3, 3), (None, None), (0, None), (None, 3)])
def test_group_rows_runs_that_are_no_two_seeds_are_refused(seeds: tuple[int | None, int | None]) -> None:
    with pytest.raises(ValueError, match="must have different seeds, got .* of ce on cifar10"):
        rows_of([run_of("ce", seed=seed) for seed in seeds])


def sized(entry: Entry, n: int) -> Entry:
    return replace(entry, scores=replace(entry.scores, n=n), folder=f"runs/{n}")


def test_group_rows_runs_that_held_out_different_numbers_of_examples_are_not_averaged() -> None:
    first, second = run_of("flgamma-sece", seed=0), run_of("flgamma-sece", seed=1)
    trained = [replace(run, facts={**run.facts, "examples": {"train": n}}) for run, n in ((first, 40_000), (second, 45_000))]
    with pytest.raises(ValueError, match="must have the same data.*40,000 and 45,000 images to train on"):
        rows_of(trained)
    assert len(rows_of([first, second])) == 1


def test_group_rows_runs_of_different_numbers_of_test_examples_are_not_averaged() -> None:
    runs = [sized(run_of("ce", seed=0), 36), run_of("ce", seed=1), sized(run_of("ce", seed=2), 40)]
    with pytest.raises(ValueError, match="must have the same data, got 36 and "):
        rows_of(runs)
    # Other rows may be of a part of the test set.
    assert [row.label for row in rows_of([runs[0], replace(runs[2], method="focal")])] == ["CE (36 examples)", "Focal"]


def test_group_rows_runs_on_other_images_are_not_averaged() -> None:
    first, second, third = (replace(run_of("ce", seed=seed), folder=f"runs/{seed}") for seed in range(3))
    known = [replace(run, facts={"data": {"test": text}}) for run, text in ((first, "17"), (second, "9a"), (third, "17"))]
    with pytest.raises(ValueError, match="other test images or labels of ce on cifar10"):
        rows_of(known)
    # One that does not say it may be of either, but does not hide that two others differ.
    assert len(rows_of([known[0], second, known[2]])) == 1
    with pytest.raises(ValueError, match="must have the same data"):
        rows_of([first, *known[1:]])


def test_catalogue_order_puts_plain_long_runs_first_scaled_ones_after_their_base_and_predictions_last() -> None:
    averaged = "train.average=phase"
    runs = [
        run_of("theirs", seed=None, **FOREIGN),  # type: ignore[arg-type]
        run_of("a", seed=None, **FOREIGN),  # type: ignore[arg-type]
        run_of("unheard-of"),
        run_of("focal"),
        run_of("ce+ts", told=averaged),
        run_of("ce", told=averaged),
        run_of("ce", epochs=20),
        run_of("ce+ts", seed=1),
        run_of("ce+ts"),
        run_of("ce"),
    ]
    found = [(e.method, settings_of(e), e.epochs, e.seed) for e in sorted(runs, key=catalogue_order)]
    said = {"train.average": "phase"}
    assert found == [
        ("ce", {}, 350, 0),
        ("ce+ts", {}, 350, 0),
        ("ce+ts", {}, 350, 1),
        ("ce", said, 350, 0),
        ("ce+ts", said, 350, 0),
        ("ce", {}, 20, 0),
        ("focal", {}, 350, 0),
        ("unheard-of", {}, 350, 0),
        ("theirs", {}, None, None),
        ("a", {}, None, None),
    ]


def test_settings_of_leaves_out_where_and_how_often_and_what_the_method_does_by_itself() -> None:
    told = "train.eval_every_epochs=5 data.root=/x method.options.every=8 backbone.init=w.safetensors train.average=no"
    assert settings_of(run_of("ce", told=told)) == {"backbone.init": "w.safetensors", "method.options.every": "8"}
    assert settings_of(run_of("flgamma", told="train.average=no")) == {"train.average": "no"}
    # A key or value that this version does not know is kept as it was told.
    assert settings_of(run_of("ce", told="train.watch=3 optim.lr=big")) == {"optim.lr": "big", "train.watch": "3"}


def test_command_of_a_recipe_makes_it_again() -> None:
    changes = {"method.name": "flgamma", "train.average": "no", "backbone.init": "w x.safetensors", "data.root": "/x"}
    command = command_of(override(Recipe(), changes | {"optim.milestones_epochs": "1,2"}))
    assert command.startswith("calibrant train --data cifar10 --model resnet18 --method flgamma --preset default --epochs 350")
    # Where data lie is left out.
    assert command.endswith(
        "--set 'backbone.init=w x.safetensors' --set train.average=no --set optim.milestones_epochs=1.0,2.0"
    )


AVERAGED = "train.average=phase train.select=error+nll"
LEARNS = {"method": "flgamma-sece"}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {"method": "focal", "preset": "paper"}, True),
        ({}, {"told": "method.options.every=8"}, True),
        ({}, {"told": "optim.lr=0.2"}, False),
        ({}, {"epochs": 349}, False),
        ({}, {"epochs": None}, False),
        ({}, {"model": "densenet100"}, False),
        ({}, {"data": "cifar100"}, False),
        ({}, {"method": "theirs", **FOREIGN}, True),
        ({}, {"method": "theirs", "data": "cifar100", **FOREIGN}, False),
        ({"told": "optim.milestones_epochs=1,2"}, {}, False),
        # What both were left to choose is theirs.
        ({}, LEARNS, True),
        # An average that one was told is the average that the other chooses.
        ({"told": AVERAGED}, LEARNS, True),
        ({"told": AVERAGED, "method": "ce+ts"}, {"method": "flgamma-sece+ts"}, True),
        ({"told": AVERAGED}, {"told": AVERAGED, "method": "focal"}, True),
        ({"told": AVERAGED}, {"method": "focal"}, False),
        ({"told": AVERAGED}, LEARNS | {"preset": "paper"}, False),
        ({"told": AVERAGED}, LEARNS | {"told": "train.average=no"}, False),
        ({"told": "train.reduction=mean"}, LEARNS, False),
        # What one was told decides no more than it says.
        ({"told": AVERAGED}, LEARNS | {"told": "method.options.every=8"}, True),
        ({"told": "train.average=ema"}, LEARNS | {"told": "train.average=ema"}, True),
        ({"told": "train.average=ema"}, LEARNS, False),
        ({"told": "train.select=last"}, LEARNS, False),
        ({"told": AVERAGED}, LEARNS | {"told": "train.average_share=0.3"}, False),
        ({"told": "train.average=half"}, {"method": "focal"}, False),
        ({"told": "train.average=half"}, {"method": "focal", "told": "train.average=half"}, True),
    ],
)
def test_comparable_needs_the_same_data_network_epochs_and_settings_whoever_chose_them(
    first: dict[str, object], second: dict[str, object], expected: bool
) -> None:
    one, two = (rows_of([run_of(**({"method": "ce"} | other))])[0] for other in (first, second))  # type: ignore[arg-type]
    assert comparable(one, two) is expected
    assert comparable(two, one) is expected


def test_comparable_needs_the_same_number_of_test_examples() -> None:
    few, many = (sized(run_of(f"of {n}", **FOREIGN), n) for n in (500, 10000))  # type: ignore[arg-type]
    ce, part, whole = rows_of([run_of("ce"), few, many])
    assert (comparable(ce, part), comparable(part, ce), comparable(ce, whole)) == (False, False, True)
