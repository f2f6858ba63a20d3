from __future__ import annotations

import pytest

from calibrant.backbones import BACKBONES
from calibrant.data import DATASETS
from calibrant.engine.methods import METHODS, split_name
from calibrant.grid.tables import load_paper
from calibrant.metrics import METRICS
from calibrant.report.rows import Mean

SIX = ("error", "nll", "ece", "mce", "ace", "classwise_ece")


def test_paper_value_is_in_the_unit_of_measure() -> None:
    row = load_paper().tables["table1"].row("cifar10", "ce")
    assert row is not None
    assert row.cells["error"] == Mean(0.04812, 0.00122)
    assert row.cells["nll"] == Mean(0.335, 0.01)
    assert row.cells["classwise_ece"] == Mean(0.00848, 0.00023)


@pytest.mark.parametrize(
    ("name", "data", "methods"),
    [
        ("table1", "cifar10", 12),
        ("table1", "cifar100", 12),
        ("table1", "tiny-imagenet", 10),
        ("table2", "cifar10", 2),
        ("table2", "cifar100", 2),
        ("table3", "cifar10", 12),
        ("table3", "cifar100", 10),
        ("table4", "cifar10", 5),
        ("table5", "cifar10", 7),
        ("table5", "cifar100", 7),
        ("table5", "tiny-imagenet", 7),
    ],
)
def test_paper_table_has_every_printed_row(name: str, data: str, methods: int) -> None:
    table = load_paper().tables[name]
    rows = table.rows[data]
    assert len(rows) == methods
    columns = {"table3": ("ece", "error"), "table5": ("error", "ece")}.get(name, SIX)
    for row in rows:
        assert tuple(row.cells) == columns
        assert all((value.std is None) == (name in ("table3", "table5")) for value in row.cells.values())


def test_paper_names_are_those_of_the_catalogue() -> None:
    paper = load_paper()
    for table in paper.tables.values():
        assert set(table.rows) <= set(DATASETS)
        assert {split_name(method)[0] for method in table.methods} <= set(METHODS)
        models = {row.model for rows in table.rows.values() for row in rows} - {None}
        assert models <= set(BACKBONES)
        assert {key for rows in table.rows.values() for row in rows for key in row.cells} <= set(METRICS)
    assert set(paper.labels) == {method for table in paper.tables.values() for method in table.methods}


def differences() -> dict[tuple[str, str, str], tuple[float, float]]:
    """Cells of Table 5 that are not the difference of Table 1's means: (printed, by Table 1), in per cent."""
    first, fifth, found = load_paper().tables["table1"], load_paper().tables["table5"], {}
    for data, rows in fifth.rows.items():
        base = first.row(data, "ce")
        for row in rows:
            source = first.row(data, row.method)
            assert base is not None
            assert source is not None
            for key, value in row.cells.items():
                expected = source.cells[key].mean - base.cells[key].mean
                # Both were rounded to three digits of per cent.
                if abs(value.mean - expected) > 0.6e-5:
                    found[data, row.method, key] = (round(100 * value.mean, 3), round(100 * expected, 3))
    return found


def test_table5_is_the_difference_of_table1_but_for_one_cell() -> None:
    assert differences() == {("cifar100", "ce-dece", "error"): (-0.164, 0.836)}
    (said,) = (n for n in load_paper().notes if n["table"] == "table5" and n.get("metric") == "error")
    assert (said["data"], said["methods"]) == ("cifar100", ["ce-dece"])


def test_claims_of_the_text_follow_from_table1_but_for_ece() -> None:
    first, means = load_paper().tables["table1"], {}
    for claim in load_paper().claims:
        key = claim["metric"]
        gains = {}
        for data in first.rows:
            base, ours = first.row(data, "ce-dece"), first.row(data, "flgamma-sece")
            assert base is not None
            assert ours is not None
            gains[data] = 100 * (base.cells[key].mean - ours.cells[key].mean)
        for data in set(claim["points"]) - {"mean"}:
            assert claim["points"][data] == pytest.approx(gains[data], abs=0.0051)
        means[key] = (claim["points"]["mean"], round(sum(gains.values()) / 3, 3), "note" in claim)
    assert means == {"mce": (14.37, 14.372, False), "ace": (3.917, 3.917, False), "ece": (4.198, 4.079, True)}
