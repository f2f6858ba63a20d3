from __future__ import annotations

import io

from rich.console import Console

from calibrant.calibrators import AutoCalibrator, Ranked
from calibrant.cli.repair import ranking_table


def test_ranking_shows_changes_and_why_each_method_was_chosen_or_not() -> None:
    ranking = [
        Ranked("matrix", 0.49, 0.11, 0.01, 0.21, note="hardly better than temperature"),
        Ranked("temperature", 0.5, 0.1, 0.05, 0.15, note="chosen"),
        Ranked("none", 0.6, 0.0, 0.0, 0.0),
        Ranked("platt", 0.7, -0.1, -0.2, 0.0),
        Ranked("bbq", failure="few examples", note="not used"),
    ]
    auto = AutoCalibrator()
    auto.ranking_ = tuple(ranking)
    console = Console(file=io.StringIO(), width=100)
    console.print(ranking_table(auto, width=100))
    assert isinstance(console.file, io.StringIO)
    assert [" ".join(line.split()) for line in console.file.getvalue().splitlines()[2:]] == [
        "matrix 0.4900 −0.1100 −0.2100 – −0.0100 hardly better than temperature",
        "temperature 0.5000 −0.1000 −0.1500 – −0.0500 chosen",
        "doing nothing 0.6000",
        "platt 0.7000 +0.1000 0.0000 – +0.2000",
        "bbq n/a not used",
    ]
