"""What a table says of its rows beside the numbers."""

from __future__ import annotations

import json

from calibrant.grid.export import to_json, to_markdown
from calibrant.grid.tables import compare_table
from made_up_runs import run_of


def test_column_says_of_all_rows_how_they_average_and_select_or_of_none() -> None:
    theirs = run_of("theirs", model=None, epochs=None, seed=None, preset=None)
    told = "train.average=no train.select=last"
    runs = [run_of("ce"), run_of("ce", told=told), run_of("flgamma-sece"), run_of("flgamma-sece", preset="paper"), theirs]
    table = compare_table(runs)
    assert [row.info("choices") for row in table.rows] == ["raw, error", "raw, last", "phase, error+nll", "raw, error", "–"]
    assert table.info[0] == "choices"
    assert [row.label for row in table.rows] == ["CE", "CE (select=last)", "FLγ-SECE", "FLγ-SECE (paper)", "theirs"]
    assert "| CE (select=last) |        raw, last |" in to_markdown(table)
    assert json.loads(to_json(table))["sections"][0]["lines"][2]["choices"] == "phase, error+nll"
    alike = compare_table([run_of("ce", told=told), run_of("flgamma-sece", told=told), theirs])
    assert "choices" not in alike.info
